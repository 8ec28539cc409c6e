"""EXAONE 4: norms behind sub-layers only, norms of heads; where there are windows, only layers with one are rotated."""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.dimensions import Dimensions
from edge_rt.export.families.family import SANDWICH_NAMES, Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import config_windows, header_windows, with_attention
from edge_rt.package.decoder import Decoder, Layer, Rope

_PERIOD: Final = 4


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    dims = config.dimensions(name, epsilon_default=1e-5)
    has_window = config.has("sliding_window")
    windows = config_windows(config, dims, period=_PERIOD if has_window else 0, period_keys=("sliding_window_pattern",))
    return _decoder(dims, windows, has_window, read_rope(config, dims.head_dim, dims.context_length))


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    windows = header_windows(reader, dims, period=_PERIOD)
    return _decoder(dims, windows, any(windows), read_header_rope(reader, dims))


def _decoder(dims: Dimensions, windows: tuple[int, ...], has_window: bool, rope: Rope) -> Decoder:
    layer = Layer(dims.attention(qk_norm="head"), dims.feed_forward(), has_pre_norms=False, has_post_norms=True)
    layers = (with_attention(layer, window=window, rope=None if has_window and not window else 0) for window in windows)
    return dims.decoder("exaone4", tuple(layers), rope)


EXAONE4: Final = Family("exaone4", ("exaone4",), ("exaone4",), from_config, from_header, layer_names=SANDWICH_NAMES)
