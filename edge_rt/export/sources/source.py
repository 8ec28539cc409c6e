"""What every kind of checkpoint gives the exporter: named tensors, a tokenizer, and facts about where it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_rt.export.sources.adapters import Adapter
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.pooling import PoolingAdvice
from edge_rt.package.layers import Layer
from edge_rt.package.sampling import SamplingAdvice

DEFAULT_TEMPLATE_NAME: Final = "default"
TOOL_TEMPLATE_NAME: Final = "tool_use"
"""Name of a chat template for requests with tools, where a checkpoint has several."""


@dataclass(frozen=True)
class TokenizerBuild:
    """The tokenizer of a checkpoint, ready to be written into a package.

    Attributes:
        eos_token_ids: tokens that end an answer, the checkpoint's own end token first.
        tool_template: that of a second one for requests with tools, or None.
        warnings: sentences about what the checkpoint leaves open, and what was mended.
    """

    json_text: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool
    chat_template: str | None
    tool_template: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A checkpoint whose headers were read and checked.

    Attributes:
        paths: its files, whose hash identifies it: first those that hold tensors, in the order that
            ``TensorInfo.file`` counts, then the others that an export reads.
        has_halves: whether rows of queries and keys are in split-half order, as in transformers; else in adjacent
            pairs.
        norm_offset: what is added to the weights of norms; it is not in the checkpoint's numbers.
        build_tokenizer: makes the tokenizer for a number of embedding rows.
        read_pooling: reads how embeddings of texts are made; it returns None where the checkpoint is not for that.
        ahead: the layer of a block that predicts further ahead (``edge_rt.package.ahead``), whose tensors have the
            number behind the last layer; None without one.
        remarks: sentences for the report of an export: what is not read as it is stored.
    """

    kind: str
    path: Path
    paths: tuple[Path, ...]
    size: int
    tensors: Mapping[str, TensorInfo]
    has_halves: bool
    license: str | None
    build_tokenizer: Callable[[int], TokenizerBuild]
    read_advice: Callable[[], SamplingAdvice | None]
    read_pooling: Callable[[], PoolingAdvice | None]
    remarks: tuple[str, ...] = ()
    ahead: Layer | None = None
    norm_offset: float = 0.0
    adapters: tuple[Adapter, ...] = ()

    @property
    def has_log_decays(self) -> bool:
        """Whether decays of states are stored as transformers has them, ``log(-a)``; GGUF files have ``a``."""
        return self.kind != "gguf"

    @property
    def num_parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(tensor.elements for tensor in self.tensors.values())

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that hold tensors, in the order that ``TensorInfo.file`` counts; others may be among them."""
        return (*self.paths, *(adapter.weights for adapter in self.adapters))
