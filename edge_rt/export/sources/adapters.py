"""LoRA adapters: what they add to the tensors of a model; and how llama.cpp stores them in a GGUF file.

An adapter has for each matrix that it changes two small ones, and adds ``scale * B @ A`` to it. In a GGUF file they are
``NAME.lora_a`` and ``NAME.lora_b`` of the tensor ``NAME``; A of ``token_embd.weight`` is stored as its transpose. The
scale is ``adapter.lora.alpha / rank``, and 1 if alpha is 0. Norms are stored whole. PEFT's folders: ``peft_adapter``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.sources.gguf_split import read_gguf
from edge_rt.export.sources.gguf_types import FETCH_AGAIN, GGUFHeader, TensorInfo, shown
from edge_rt.system.checkpoint_names import folder_name

GGUF: Final = "gguf"
PEFT: Final = "peft"
MERGE_YOURSELF: Final = (
    "Merge it with PEFT (merge_and_unload, then save_pretrained), and export the folder that this gives."
)
MOST: Final = 1e9
"""Largest rank and alpha."""
_EMBEDDING: Final = "token_embd.weight"
_A, _B = ".lora_a", ".lora_b"


@dataclass(frozen=True)
class LowRank:
    """What is added to a matrix: ``scale * left [rows, rank] @ right [rank, inputs]``; what turns is transposed."""

    left: TensorInfo
    right: TensorInfo
    scale: float
    turns_left: bool = False
    turns_right: bool = False

    @property
    def rows(self) -> int:
        """Rows of the product."""
        return self.left.shape[0 if self.turns_left else 1]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the product, as in ``TensorInfo``."""
        return self.right.shape[1 if self.turns_right else 0], self.rows


@dataclass(frozen=True)
class TokenRows:
    """Rows of the embedding that are replaced, ``[tokens, inputs]``."""

    tensor: TensorInfo
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter whose headers were read and checked.

    Attributes:
        paths: all files that are read, whose hash identifies it; the first one is ``weights``.
        scale: that was asked for; it is a factor in that of every product, too.
        model: that it was trained on, as it says; None if it does not.
        products: name of a matrix -> what is added to it.
        copies: names of those in ``wholes`` that are the model's own, stored once more.
        tokens: name of an embedding -> rows that are replaced.
        architecture: of the model, as GGUF files call it; None if it is not stated.
    """

    path: Path
    kind: str
    weights: Path
    paths: tuple[Path, ...]
    scale: float
    license: str | None
    model: str | None
    products: Mapping[str, LowRank]
    wholes: Mapping[str, TensorInfo] = field(default_factory=dict)
    copies: frozenset[str] = frozenset()
    tokens: Mapping[str, TokenRows] = field(default_factory=dict)
    architecture: str | None = None

    @property
    def name(self) -> str:
        """Name for people."""
        return folder_name(self.path) if self.kind == PEFT else self.path.name


def low_rank(where: str, name: str, product: LowRank) -> LowRank:
    """Return what is added to a matrix, its two matrices checked against each other."""
    left, right = product.left.shape, product.right.shape
    is_fit = len(left) == len(right) == 2 and min(*left, *right) > 0
    if not is_fit or left[1 if product.turns_left else 0] != right[0 if product.turns_right else 1]:
        raise InvalidModelFile(
            f"{where}: the two matrices for {shown(name)} do not fit each other.",
            f"They have the shapes {list(left[::-1])} and {list(right[::-1])}.",
            FETCH_AGAIN,
        )
    return product


def incomplete(where: str, name: str, missing: str) -> InvalidModelFile:
    """Return the error for a matrix of which one of the two is not there."""
    return InvalidModelFile(
        f"{where}: one of the two matrices for {shown(name)} is missing.", f"There is no {missing}.", FETCH_AGAIN
    )


def unsupported(where: str, found: str) -> UnsupportedModel:
    """Return the error for an adapter of a kind that cannot be merged."""
    return UnsupportedModel(f"{where}: edge-rt does not merge adapters of this kind.", f"{found}.", MERGE_YOURSELF)


def model_name(stated: object) -> str | None:
    """Return the name of the model that an adapter says it was trained on; None if it says none."""
    return stated if isinstance(stated, str) and stated.isprintable() and stated else None


def is_gguf_adapter(header: GGUFHeader) -> bool:
    """Return whether a GGUF file says that it is an adapter."""
    return header.values.get("general.type") == "adapter"


def read_gguf_adapter(path: Path, scale: float, number: int) -> Adapter:
    """Read the header of a GGUF file that holds a LoRA adapter; ``number`` as ``TensorInfo.file`` counts."""
    header = read_gguf(path)
    if not is_gguf_adapter(header):
        raise InvalidModelFile(
            f"{path.name} is not an adapter.",
            f"'general.type' is {shown(str(header.values.get('general.type')))}, must be 'adapter'.",
            "Give a model with -m/--model, and a LoRA adapter with --adapter.",
        )
    kind = header.get_str("adapter.type", default="")
    if kind != "lora":
        raise unsupported(path.name, f"'adapter.type' is {shown(kind)}, must be 'lora'")
    if "adapter.alora.invocation_tokens" in header.values:
        raise unsupported(path.name, "It is an activated LoRA (aLoRA), which begins in the middle of a prompt")
    alpha = header.get_float("adapter.lora.alpha", default=0.0, minimum=-MOST, maximum=MOST)
    if header.more_paths:
        raise UnsupportedModel(
            f"{path.name}: the adapter is split into several files.",
            f"There are {len(header.paths)} parts.",
            "Join them with llama.cpp: llama-gguf-split --merge FIRST_PART ADAPTER.gguf, and give that file.",
        )
    tensors = {name: replace(tensor, file=number) for name, tensor in header.tensors.items()}
    products, wholes = {}, {}
    for name, tensor in tensors.items():
        target = name.removesuffix(_A).removesuffix(_B)
        if target == name:
            if not name.endswith("_norm.weight"):
                raise unsupported(path.name, f"It has the tensor {shown(name)}")
            wholes[name] = tensor
        elif missing := [end for end in (_A, _B) if f"{target}{end}" not in tensors]:
            raise incomplete(path.name, target, f"{target}{missing[0]}")
        else:
            products[target] = _product(path.name, target, tensors, alpha, scale)
    return Adapter(
        path=path,
        kind=GGUF,
        weights=path,
        paths=(path,),
        scale=scale,
        license=cast("str | None", header.get_str("general.license", default=None)),
        model=model_name(header.values.get("general.base_model.0.name")),
        products=products,
        wholes=wholes,
        architecture=header.get_str("general.architecture"),
    )


def _product(where: str, target: str, tensors: Mapping[str, TensorInfo], alpha: float, scale: float) -> LowRank:
    a, b = tensors[f"{target}{_A}"], tensors[f"{target}{_B}"]
    factor = scale * alpha / b.shape[0] if alpha and b.shape[0] else scale
    if target == _EMBEDDING:
        return low_rank(where, target, LowRank(a, b, factor, turns_right=True))
    return low_rank(where, target, LowRank(b, a, factor))
