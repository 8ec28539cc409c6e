"""What a family of models is: how its checkpoints are read as a description of a decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import Layer

TOP_NAMES: Final[Mapping[str, str]] = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
}
"""transformers' names of tensors outside of layers, without the model's prefix -> GGUF's; the head is apart."""
LAYER_NAMES: Final[Mapping[str, str]] = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""transformers' names of modules within a layer -> GGUF's, as most families have them."""
SANDWICH_NAMES: Final[Mapping[str, str]] = {
    **LAYER_NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""The same where sub-layers have norms behind them."""
FUSED_NAMES: Final[Mapping[str, str]] = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_gate_up",
    "mlp.down_proj": "ffn_down",
}
"""The same where queries, keys and values are one matrix, and gate and up another."""
EXPERT_NAMES: Final[Mapping[str, str]] = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.*.gate_proj": "ffn_gate.*",
    "mlp.experts.*.up_proj": "ffn_up.*",
    "mlp.experts.*.down_proj": "ffn_down.*",
}
"""What most families with experts have besides."""

RowFactors = Sequence[tuple[int, tuple[float, ...]]]
"""Neighbouring rows of a matrix, and the factors on them, in order; all rows in turn."""


@dataclass(frozen=True)
class Family:
    """A family of models, described by two functions and by names.

    Attributes:
        from_config: describes the model of a ``config.json``; the second argument is its name.
        layer_names: transformers' names of modules within a layer -> GGUF's; a star stands for the number of an expert,
            and a tensor that is no weight of a module has its end in GGUF's name.
        top_names: the same outside of layers.
        stacked_experts: module within a layer whose experts lie as in ``edge_rt.export.sources.stacked``; empty: none.
        header_names: names of GGUF files' modules that are not those of other families -> these.
        config_has_halves: whether a rotated pair is half a head apart in the rows of transformers' checkpoints; else
            its elements are neighbours.
        header_has_halves: the same of GGUF files. Where they differ, the converter has reordered rows.
        config_norm_offset: what transformers adds to the weights of norms; GGUF files hold the sum.
        config_factors: returns the factors on matrices that transformers multiplies by while it runs, by our names,
            for each the rows that they are on; GGUF files have the products. None: there are none.
        ignored_tensors: beginnings of the names of tensors in folders that transformers does not read either.
        ahead: returns the layer of a block that predicts further ahead, which checkpoints may have; None: none is read.
        ahead_names: transformers' names of what such a block has besides its layer -> GGUF's.
        skipped_keys: beginnings of keys below the architecture that describe how a model sees, in files of both halves.
        skipped_tensors: beginnings of the names of tensors of that half.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    from_config: Callable[[ConfigReader, str], Decoder]
    from_header: Callable[[HeaderReader], Decoder]
    layer_names: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES)
    top_names: Mapping[str, str] = field(default_factory=lambda: TOP_NAMES)
    header_names: Mapping[str, str] = field(default_factory=dict)
    stacked_experts: str = ""
    config_has_halves: bool = True
    header_has_halves: bool = True
    config_norm_offset: float = 0.0
    config_factors: Callable[[ConfigReader, Decoder], Mapping[str, RowFactors]] | None = None
    ignored_tensors: tuple[str, ...] = ()
    ahead: Callable[[Decoder], Layer] | None = None
    ahead_names: Mapping[str, str] = field(default_factory=dict)
    skipped_keys: tuple[str, ...] = ()
    skipped_tensors: tuple[str, ...] = ()
