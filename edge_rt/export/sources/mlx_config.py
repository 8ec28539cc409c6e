"""What ``config.json`` says of matrices that MLX quantised.

Standard library only: a model that is refused is refused before numpy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_rt.export.sources.config_object import ConfigObject

MLX_KEY: Final = "quantization"

_BITS: Final = (4, 8)
_GROUPS: Final = (32, 64, 128)
_KEYS: Final = ("bits", "group_size", "mode")


@dataclass(frozen=True)
class MLXSettings:
    """How the matrices of a folder are stored.

    Attributes:
        bits: of a code.
        group: inputs that share a scale.
        layers: module -> bits and group of those that have their own.
    """

    bits: int
    group: int
    layers: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, module: str) -> tuple[int, int]:
        """Return the bits and the group of a module's matrix."""
        return self.layers.get(module, (self.bits, self.group))


def read_mlx(where: str, config: Mapping[str, Any]) -> MLXSettings:
    """Return the settings of a folder that MLX wrote.

    Args:
        where: name of the folder, for errors.
        config: contents of ``config.json``, which has the key ``MLX_KEY``.

    Raises:
        UnsupportedModel: bits, groups or a mode that are not read.
        InvalidModelFile: a setting is missing or has the wrong type.
    """
    values = ConfigObject(where, MLX_KEY, config[MLX_KEY])
    # MLX writes the same object a second time, for the hub.
    if config.get("quantization_config") not in (None, config[MLX_KEY]):
        raise values.refused("quantization_config", "another object than 'quantization'", "the same object")
    layers = {}
    for key, value in values.values.items():
        if isinstance(value, dict):
            layers[key] = _sizes(ConfigObject(where, key, value))
        # True and False say which layers are quantised, and so do their tensors.
        elif key not in _KEYS and not isinstance(value, bool):
            raise values.refused(key, repr(value), f"{', '.join(_KEYS)} and settings of layers")
    return MLXSettings(*_sizes(values), layers)


def _sizes(values: ConfigObject) -> tuple[int, int]:
    """Return bits and group."""
    mode = values.text("mode", "affine")
    if mode != "affine":
        raise values.refused("mode", mode, "affine")
    bits, group = values.integer("bits"), values.integer("group_size")
    if bits not in _BITS:
        raise values.refused("bits", str(bits), " or ".join(map(str, _BITS)))
    if group not in _GROUPS:
        raise values.refused("group_size", str(group), ", ".join(map(str, _GROUPS)))
    return bits, group
