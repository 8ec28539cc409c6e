"""Which type every matrix gets in the package: the one decision that plan, dry run, pull and export share."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from edge_rt.errors import ConfigError
from edge_rt.export.decoder.tensors import PLAIN, RATES
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.source import Source
from edge_rt.package.decoder import Decoder
from edge_rt.package.weights_info import KEEP, NESTED, require_known

SIZE: Final = "size"
_LAYERS: Final = "blk."
"""Begin of the names of tensors that belong to a layer."""
NESTED_TYPE: Final = "W8N"
"""Type of nested codes: 8 bits whose upper four are a type of their own."""

MEASURED_TOKENS: Final = 256
"""Tokens of the calibration text that the model runs on, and back, to measure which matrices need more bits."""
QUALITY_TOKENS: Final = 256
"""Most tokens that a package's predictions are compared on; their logits are in memory at once."""

_FLOATS: Final = ("F32", "F16", "BF16")
_WIDE: Final = (*_FLOATS, "Q8_0")
"""Types that have more than 4 bits; what has fewer already stays as it is."""
_UNIT: Final = 256
_BLOCK: Final = 32
_ENDS: Final = ("token_embd.weight", "output.weight")
_TABLE: Final = "per_layer_token_embd.weight"
_FURTHER: Final = (_TABLE, "per_layer_model_proj.weight")
_FURTHER_OF_LAYER: Final = (".inp_gate.weight", ".proj.weight")
"""Matrices of further embeddings for each layer, and ends of the names of those within layers."""
_PLAIN: Final = ("Q4_0", "Q8_0")
"""Types of about 4 bits and of more, without tables."""


@dataclass(frozen=True)
class Rivals:
    """Matrices of one shape, of which the most sensitive half gets more bits."""

    names: tuple[str, ...]
    usual: str
    better: str

    @property
    def count(self) -> int:
        """How many get the better type."""
        return len(self.names) // 2


@dataclass(frozen=True)
class WeightChoice:
    """The types of a package's matrices.

    Attributes:
        types: name of a tensor -> type that its values are stored in; others keep theirs.
        rivals: groups of matrices that compete for more bits. Which win does not change the size of the package; until
            it is measured, the first ones do.
        ladders: name of a tensor -> types that it may have, if a size is to be met; until it is measured which, all
            have the one of the fewest bits.
        size: bytes that ``weights.bin`` may have; 0: whatever it takes.
    """

    name: str
    types: Mapping[str, str]
    rivals: tuple[Rivals, ...] = ()
    ladders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    size: int = 0

    @property
    def quantises(self) -> bool:
        """Whether any matrix is rounded to codes."""
        return any(type_name not in _FLOATS for type_name in self.types.values())

    def with_winners(self, winners: Collection[str]) -> WeightChoice:
        """Return the choice in which these of the rivals have the better type."""
        types = dict(self.types)
        for group in self.rivals:
            types |= {name: group.better if name in winners else group.usual for name in group.names}
        return dataclasses.replace(self, types=types)


def choose_weights(
    source: Source, decoder: Decoder, wanted: str | None = None, size: int = 0, *, has_tables: bool = True
) -> WeightChoice:
    """Decide the types of a package's matrices from the checkpoint's header.

    Args:
        wanted: one of ``WEIGHTS``, or None: ``"keep"`` for GGUF files and for folders that are quantised, ``"int4"``
            for folders of floats.
        has_tables: whether the package holds tables and codes of 5 and 6 bits in as many bits, not in 8.
    """
    found = source.tensors.items()
    left = (*PLAIN, *RATES)
    matrices = {name: tensor for name, tensor in found if len(tensor.shape) == 2 and not name.endswith(left)}
    floats = {name: tensor for name, tensor in matrices.items() if tensor.type_name in _FLOATS}
    require_known(wanted, size)
    if size and (part := decoder.unmeasured_part) is not None:
        layers = decoder.expert_layers or decoder.recurrent_layers or range(decoder.num_layers)
        raise ConfigError(
            f"A size cannot be met by a model with {part}.",
            f"{decoder.name} has them in {len(layers)} layers, and their types are not measured.",
            "Choose --weights int4 or int8.",
        )
    if size:
        return _for_size(matrices, size)
    if wanted is None:
        wanted = "int4" if source.kind == "safetensors" and len(floats) == len(matrices) else KEEP
    if wanted == "int4":
        return _int4(matrices, decoder, has_tables=has_tables)
    if wanted == NESTED:
        if not has_tables:
            raise ConfigError(
                "The op profile has no nested codes.",
                f"Got weights {wanted!r}; the native op profile alone has them.",
                "Export with --profile native, or choose --weights int8.",
            )
        if decoder.recurrent_layers:
            raise ConfigError(
                "Nested weights are of no use to a model with states.",
                f"{decoder.name} has them in {len(decoder.recurrent_layers)} layers, and cannot draft with itself.",
                "Choose --weights int8 or int4.",
            )
        nested = _wide(matrices)
        if not any(name.startswith(_LAYERS) for name in nested):
            raise ConfigError(
                "The layers have no weights that nested codes are fewer bits for.",
                f"Got weights {wanted!r}; of {len(matrices)} matrices {len(nested)} are floats or of 8 bits, none in a "
                "layer.",
                "Export the model from floats, or choose --weights keep.",
            )
        # Both halves of experts would be read with gaps: these have 8 bits that are one.
        types = {name: "Q8_0" if _is_expert(name) or _is_per_layer(name) else NESTED_TYPE for name in nested}
        return WeightChoice(wanted, types)
    if wanted == "int8":
        return WeightChoice(wanted, {name: "Q8_0" for name, tensor in floats.items() if tensor.shape[0] % _BLOCK == 0})
    if wanted in ("f16", "f32"):
        target = wanted.upper()
        return WeightChoice(wanted, {name: target for name, tensor in floats.items() if tensor.type_name != target})
    return WeightChoice(KEEP, {})


def _is_expert(name: str) -> bool:
    return name.split(".")[-2].isdigit()


def _is_per_layer(name: str) -> bool:
    return name in _FURTHER or name.endswith(_FURTHER_OF_LAYER)


def _wide(matrices: Mapping[str, TensorInfo]) -> dict[str, int]:
    """Return the matrices that 4 bits are fewer for, and their inputs."""
    return {
        name: tensor.shape[0]
        for name, tensor in matrices.items()
        if tensor.type_name in _WIDE and tensor.shape[0] % _BLOCK == 0
    }


def _int4(matrices: Mapping[str, TensorInfo], decoder: Decoder, *, has_tables: bool) -> WeightChoice:
    wide = _wide(matrices)
    pairs = {name: _ladder(inputs)[0:3:2] if has_tables else _PLAIN for name, inputs in wide.items()}
    types = {name: usual for name, (usual, _) in pairs.items()}
    types |= dict.fromkeys((name for name in _ENDS if name in types), "Q8_0")
    # What makes further embeddings of the stream is small; their table has as few bits as others.
    types |= dict.fromkeys((name for name in types if _is_per_layer(name) and name != _TABLE), "Q8_0")
    rivals = []
    for kind in ("attn_v", "ffn_down"):
        names = [name for layer in range(decoder.num_layers) if (name := f"blk.{layer}.{kind}.weight") in types]
        if names:
            rivals.append(Rivals(tuple(names), *pairs[names[0]]))
    choice = WeightChoice("int4", types, tuple(rivals))
    return choice.with_winners([name for group in rivals for name in group.names[: group.count]])


def _for_size(matrices: Mapping[str, TensorInfo], size: int) -> WeightChoice:
    ladders: dict[str, tuple[str, ...]] = {name: _ladder(inputs) for name, inputs in _wide(matrices).items()}
    # Embeddings of rare tokens are not seen in any text that one could measure with.
    ladders |= {name: ladders[name][1:] for name in _ENDS if name in ladders}
    return WeightChoice(SIZE, {name: ladder[0] for name, ladder in ladders.items()}, ladders=ladders, size=size)


def _ladder(inputs: int) -> tuple[str, str, str, str]:
    """Return types of about 4 (a table loses less than equal steps), 5, 6 and 8 bits for these inputs."""
    return ("IQ4_NL", "Q5_0", "Q5_1", "Q8_0") if inputs % _UNIT else ("IQ4_XS", "Q5_K", "Q6_K", "Q8_0")
