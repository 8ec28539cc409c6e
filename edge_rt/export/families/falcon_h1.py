"""Falcon-H1: in every layer attention and a state space read the same rows, and are added.

Transformers multiplies what goes into matrices and what comes out of them by factors of the configuration. They are
folded into the matrices here, as the converter to GGUF does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.config_rope import read_rope
from edge_rt.export.families.family import LAYER_NAMES, TOP_NAMES, Family, RowFactors
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.families.header_rope import read_header_rope
from edge_rt.export.families.state_spaces import SPACE_HEADER_NAMES, SPACE_NAMES, config_space, header_space
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import MAX_WIDTH, Layer

_LEAST, _MOST = 1e-6, 1e6
_BIASES: Final = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
_FACTORS: Final = (
    *("embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier"),
    *("attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"),
)
_LISTS: Final[Mapping[str, int]] = {"mlp_multipliers": 2, "ssm_multipliers": 5}


def from_config(config: ConfigReader, name: str) -> Decoder:
    """Describe the model of a ``config.json``."""
    if not config.is_null("num_key_value_heads"):
        config.defaults(num_key_value_heads=8)
    dims = config.dimensions(name, epsilon_default=1e-5)
    config.activation("hidden_act", {"silu": "silu", "swish": "silu"}, "silu")
    for key in _BIASES:
        if config.flag(key):
            # Factors on what comes out of a matrix are on its bias, too.
            raise config.refused(f"{key} is true")
    size = config.count("mamba_expand", MAX_WIDTH, default=2) * dims.hidden_size
    if not config.is_null("mamba_d_ssm"):
        size = config.count("mamba_d_ssm", MAX_WIDTH, default=1024)
    is_before = config.flag("mamba_norm_before_gate", default=True)
    norm = ("before" if is_before else "behind") if config.flag("mamba_rms_norm") else "none"
    rope = read_rope(config, dims.head_dim, dims.context_length)
    factors, _ = _read_factors(config)
    # A tied head is the embedding: neither has factors of its own.
    scales = {
        "embedding_scale": factors["embedding_multiplier"] if dims.is_tied else 1.0,
        "logit_scale": factors["lm_head_multiplier"] if dims.is_tied else 1.0,
    }
    layer = Layer(dims.attention(), dims.feed_forward(), state_space=config_space(config, size, norm=norm))
    return dims.decoder("falcon_h1", layer, rope, **scales)


def _read_factors(config: ConfigReader) -> tuple[dict[str, float], dict[str, tuple[float, ...]]]:
    """Return the factors that are numbers, and those that are lists."""
    numbers = {key: config.number(key, least=_LEAST, most=_MOST, default=1.0) for key in _FACTORS}
    lists = {
        key: config.numbers(key, count, least=_LEAST, most=_MOST) if config.has(key) else (1.0,) * count
        for key, count in _LISTS.items()
    }
    return numbers, lists


def config_factors(config: ConfigReader, decoder: Decoder) -> Mapping[str, RowFactors]:
    """Return the factors on matrices, in the order in which the converter to GGUF multiplies."""
    numbers, lists = _read_factors(config)
    attends, spaces = numbers["attention_in_multiplier"], numbers["ssm_in_multiplier"]
    found: dict[str, RowFactors] = {}
    if not decoder.is_tied and (decoder.embedding_scale, decoder.logit_scale) == (1.0, 1.0):
        rows = decoder.vocab_size
        found["token_embd.weight"] = ((rows, (numbers["embedding_multiplier"],)),)
        found["output.weight"] = ((rows, (numbers["lm_head_multiplier"],)),)
    for number, layer in enumerate(decoder.layers):
        attention, space, inner = layer.attention, layer.state_space, layer.feed_forward
        assert attention is not None
        assert space is not None
        assert inner is not None
        width, states = decoder.hidden_size, space.groups * space.state_size
        parts = (space.size, space.size, states, states, space.heads)
        of_layer: dict[str, RowFactors] = {
            "attn_q": ((attention.query_size, (attends,)),),
            "attn_k": ((attention.key_size, (numbers["key_multiplier"], attends)),),
            "attn_v": ((attention.key_size, (attends,)),),
            "attn_output": ((width, (numbers["attention_out_multiplier"],)),),
            "ssm_in": tuple(
                (rows, (spaces, factor)) for rows, factor in zip(parts, lists["ssm_multipliers"], strict=True)
            ),
            "ssm_out": ((width, (numbers["ssm_out_multiplier"],)),),
            "ffn_gate": ((inner.size, (lists["mlp_multipliers"][0],)),),
            "ffn_down": ((width, (lists["mlp_multipliers"][1],)),),
        }
        found |= {f"blk.{number}.{module}.weight": factors for module, factors in of_layer.items()}
    return found


def from_header(reader: HeaderReader) -> Decoder:
    """Describe the model of a GGUF header, which has the factors in its matrices."""
    dims = reader.dimensions()
    norm = "behind" if reader.has_tensor("blk.0.ssm_norm.weight") else "none"
    space = header_space(reader, "blk.0.", norm=norm)
    rope = read_header_rope(reader, dims)
    return dims.decoder("falcon_h1", Layer(dims.attention(), dims.feed_forward(), state_space=space), rope)


FALCON_H1: Final = Family(
    "falcon_h1",
    ("falcon_h1",),
    ("falcon-h1",),
    from_config,
    from_header,
    {
        **{name: ours for name, ours in LAYER_NAMES.items() if name.startswith(("self_attn", "input"))},
        "pre_ff_layernorm": "ffn_norm",
        "feed_forward.gate_proj": "ffn_gate",
        "feed_forward.up_proj": "ffn_up",
        "feed_forward.down_proj": "ffn_down",
        **{f"mamba.{name}": ours for name, ours in SPACE_NAMES.items()},
    },
    top_names={"embed_tokens": TOP_NAMES["embed_tokens"], "final_layernorm": TOP_NAMES["norm"]},
    header_names={**SPACE_HEADER_NAMES, "ffn_norm": "ffn_norm.weight"},
    config_factors=config_factors,
)
