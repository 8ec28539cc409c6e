"""EXAONE 4: norms behind sub-layers only, norms of heads; where there are windows, only layers with one are rotated."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import SANDWICH_NAMES, Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import Windows, config_windows, header_windows, with_attention
from edge_rt.package.decoder import Decoder, Dimensions, Rope
from edge_rt.package.layers import Layer

_PERIOD: Final = 4
_WINDOW: Final = 4096


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    dims = config.dimensions(name, epsilon_default=1e-5)
    # Null stands for no window, and a key that is not there for the family's.
    has_window = config.has("sliding_window") or "sliding_window" not in config.values
    period = _PERIOD if has_window else 0
    windows = config_windows(config, dims, window=_WINDOW, period=period, period_key="sliding_window_pattern")
    if any(windows.kinds) and not has_window:
        raise config.refused("layer_types has sliding layers, sliding_window is null")
    return _decoder(dims, windows, has_window, read_rope(config, dims.head_dim, dims.context_length))


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    windows = header_windows(reader, dims, period=_PERIOD)
    return _decoder(dims, windows, any(windows.kinds), read_header_rope(reader, dims))


def _decoder(dims: Dimensions, windows: Windows, has_window: bool, rope: Rope) -> Decoder:
    layer = Layer(dims.attention(qk_norm="head"), dims.feed_forward(), has_pre_norms=False, has_post_norms=True)
    layers = (
        with_attention(layer, window=size, rope=None if has_window and not kind else 0)
        for kind, size in zip(windows.kinds, windows.sizes, strict=True)
    )
    return dims.decoder("exaone4", tuple(layers), rope)


EXAONE4: Final = Family("exaone4", ("exaone4",), ("exaone4",), from_config, from_header, layer_names=SANDWICH_NAMES)
