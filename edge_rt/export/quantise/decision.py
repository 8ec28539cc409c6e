"""Which type every matrix gets in the package: the one decision that plan, dry run, pull and export share."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from edge_rt.errors import ConfigError
from edge_rt.export.families.llama_config import LlamaConfig
from edge_rt.export.sources.source import Source

WEIGHTS: Final = ("keep", "int4", "int8", "f16", "f32")
"""Values of the option ``weights``."""
KEEP: Final = "keep"

_FLOATS: Final = ("F32", "F16", "BF16")
_WIDE: Final = (*_FLOATS, "Q8_0")
"""Types that have more than 4 bits; what has fewer already stays as it is."""
_UNIT: Final = 256
_BLOCK: Final = 32


@dataclass(frozen=True)
class Rivals:
    """Matrices of one shape, of which the most sensitive half gets more bits.

    Attributes:
        names: their tensors.
        usual: type of the others.
        better: type of the most sensitive.
    """

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
        name: the option, one of ``WEIGHTS``.
        types: name of a tensor -> type that its values are stored in; others keep theirs.
        rivals: groups of matrices that compete for more bits. Which win does not change the size of the package; until
            it is measured, the first ones do.
    """

    name: str
    types: Mapping[str, str]
    rivals: tuple[Rivals, ...] = ()

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


def choose_weights(source: Source, config: LlamaConfig, wanted: str | None = None) -> WeightChoice:
    """Decide the types of a package's matrices from the checkpoint's header.

    Args:
        source: the checkpoint.
        config: its dimensions.
        wanted: one of ``WEIGHTS``, or None: ``"keep"`` for GGUF files and for folders that are quantised, ``"int4"``
            for folders of floats.

    Raises:
        ConfigError: ``wanted`` is unknown.
    """
    matrices = {name: tensor for name, tensor in source.tensors.items() if len(tensor.shape) == 2}
    if wanted is None:
        is_float = all(tensor.type_name in _FLOATS for tensor in matrices.values())
        wanted = "int4" if source.kind == "safetensors" and is_float else KEEP
    if wanted not in WEIGHTS:
        raise ConfigError(
            "The type of weights is unknown.", f"Got {wanted!r:.40}.", f"Choose one of {', '.join(WEIGHTS)}."
        )
    if wanted == KEEP:
        return WeightChoice(KEEP, {})
    if wanted in ("f16", "f32"):
        others = set(_FLOATS) - {wanted.upper()}
        return WeightChoice(
            wanted, {name: wanted.upper() for name, tensor in matrices.items() if tensor.type_name in others}
        )
    if wanted == "int8":
        floats = {name: tensor for name, tensor in matrices.items() if tensor.type_name in _FLOATS}
        return WeightChoice(wanted, {name: "Q8_0" for name, tensor in floats.items() if tensor.shape[0] % _BLOCK == 0})
    wide = {name: tensor.shape[0] for name, tensor in matrices.items() if tensor.type_name in _WIDE}
    types = {name: _four_bits(inputs) for name, inputs in wide.items() if inputs % _BLOCK == 0}
    ends = ("token_embd.weight", "output.weight")
    types |= dict.fromkeys((name for name in ends if name in types), "Q8_0")
    rivals = []
    for kind in ("attn_v", "ffn_down"):
        names = [name for layer in range(config.num_layers) if (name := f"blk.{layer}.{kind}.weight") in types]
        if names:
            inputs = wide[names[0]]
            rivals.append(Rivals(tuple(names), _four_bits(inputs), _six_bits(inputs)))
    choice = WeightChoice(wanted, types, tuple(rivals))
    return choice.with_winners([name for group in rivals for name in group.names[: group.count]])


def _four_bits(inputs: int) -> str:
    """Return the type of 4 bits: a table of 16 values loses less than as many equal steps, at fewer bytes."""
    return "IQ4_NL" if inputs % _UNIT else "IQ4_XS"


def _six_bits(inputs: int) -> str:
    return "Q5_1" if inputs % _UNIT else "Q6_K"
