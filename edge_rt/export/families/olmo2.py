"""OLMo 2 and 3: norms behind sub-layers only, and over the whole rows of queries and keys.

OLMo 3 has a window in three layers of four, and YaRN in the others.
"""

from __future__ import annotations

from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import SANDWICH_NAMES, Family
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.layers import Windows, config_windows, header_windows, windows_of, with_attention
from edge_rt.export.families.rope import MAX_ROPE_THETA, MIN_ROPE_THETA, default_rope
from edge_rt.package.decoder import Decoder, Dimensions, Rope
from edge_rt.package.layers import Layer

_PERIOD: Final = 4
_BASE: Final = 500_000.0


def olmo2_from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of OLMo 2's ``config.json``."""
    dims, has_bias = config.dimensions(name, epsilon_default=1e-5), config.flag("attention_bias")
    windows = windows_of(dims, (False,) * dims.num_layers, 0)
    return _decoder("olmo2", dims, windows, has_bias, read_rope(config, dims.head_dim, dims.context_length))


def olmo3_from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of OLMo 3's ``config.json``."""
    dims, has_bias = config.dimensions(name, epsilon_default=1e-5), config.flag("attention_bias")
    windows = config_windows(config, dims, window=4096, period=_PERIOD)
    size, context = dims.head_dim, dims.context_length
    full = read_rope(config, size, context, layer_type="full_attention", theta=_BASE)
    # Older configurations have one base, which is that of the layers without a window.
    sliding = read_rope(
        config, size, context, layer_type="sliding_attention", theta_key=None, theta=_BASE, is_scaled=False
    )
    return _decoder("olmo3", dims, windows, has_bias, full, sliding)


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header."""
    dims = reader.dimensions()
    windows = header_windows(reader, dims, period=_PERIOD)
    rope = read_header_rope(reader, dims)
    has_bias = reader.has_tensor("blk.0.attn_q.bias")
    if not any(windows.kinds):
        return _decoder("olmo2", dims, windows, has_bias, rope)
    base = reader.number("rope.freq_base_swa", least=MIN_ROPE_THETA, most=MAX_ROPE_THETA, default=rope.base)
    return _decoder("olmo3", dims, windows, has_bias, rope, default_rope(base, rope.dimensions))


def _decoder(family: str, dims: Dimensions, windows: Windows, has_bias: bool, *ropes: Rope) -> Decoder:
    layer = Layer(
        dims.attention(qk_norm="row", has_qkv_bias=has_bias, has_output_bias=has_bias),
        dims.feed_forward(),
        has_pre_norms=False,
        has_post_norms=True,
    )
    layers = (
        with_attention(layer, window=size, rope=int(kind))
        for kind, size in zip(windows.kinds, windows.sizes, strict=True)
    )
    return dims.decoder(family, tuple(layers), *ropes)


OLMO2: Final = Family("olmo2", ("olmo2",), ("olmo2",), olmo2_from_config, from_header, layer_names=SANDWICH_NAMES)
OLMO3: Final = Family("olmo3", ("olmo3",), (), olmo3_from_config, from_header, layer_names=SANDWICH_NAMES)
