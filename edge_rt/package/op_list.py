"""The custom operators of the native op profile, each described once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from edge_rt.errors import UnsupportedModel
from edge_rt.package.decoder import Decoder

DOMAIN: Final = "edge_rt"
"""Domain of the operators in a graph."""

TILE_ROWS: Final = 16
"""Rows of a tile of a packed matrix."""

MAX_HEAD_DIM: Final = 512
"""Largest head size that ``SpecAttention`` supports; it must be even."""
MAX_HEADS: Final = 1024
STRIPE: Final = 16
"""Columns of a state that are computed together: sizes of values, and of a delta rule's keys, are multiples of it."""
STATE_ROWS: Final = 4
"""Rows of a head's state are a multiple of this."""
MAX_STATE_KEY_DIM: Final = 512
"""Most rows of a head's state."""
MAX_FINE_RUNS: Final = 16
"""Stretches of neighbouring blocks that one input may have in 16 bits."""

MAX_HEAD_BLOCKS: Final = 4
MAX_HEAD_DEPTH: Final = 8
"""Most blocks of ``DraftHead``, and steps."""


@dataclass(frozen=True)
class Port:
    """An input or output: its name, element type (``"any"``: several) and shape in the letters of the operator."""

    name: str
    dtype: str
    shape: str
    is_optional: bool = False


@dataclass(frozen=True)
class Op:
    """One operator: inputs and outputs in order; attributes with their kind, those with ``?`` have a default."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """The operator as the library describes it: ``Name(x:float,bias:float?)->(y:float)``."""
        inputs, outputs = (
            ",".join(f"{port.name}:{port.dtype}{'?' * port.is_optional}" for port in ports)
            for ports in (self.inputs, self.outputs)
        )
        return f"{self.name}({inputs})->({outputs})"


_WEIGHT: Final = Port("weight", "uint8", "[tiles, blocks, bytes]")

_ROW_PORTS: Final = (
    Port("past_length", "int32", "[B]"),
    Port("row_map", "int32", "[B, P]"),
    Port("parents", "int32", "[S], or with one sequence longer by nodes of earlier passes"),
)
"""Inputs that say which rows of a cache a pass reads and writes."""

_ATTENTION_PORTS: Final = (
    Port("cache", "uint8", "[2, KV, C, row bytes]"),
    *_ROW_PORTS,
    Port("kv_formats", "int32", "[layers]"),
    Port("cos", "float", "[P, R / 2]"),
    Port("sin", "float", "[P, R / 2]"),
    Port("q_norm", "float", "[D] or [H D]", is_optional=True),
    Port("k_norm", "float", "[D] or [KV D]", is_optional=True),
    Port("sinks", "float", "[H]", is_optional=True),
)
"""Inputs of attention in addition to queries, keys and values."""

_KEY_CONSTANT_PORTS: Final = (
    Port("key_centre", "float", "[KV, D]", is_optional=True),
    Port("key_balance", "float", "[KV, D]", is_optional=True),
    Port("key_feedback", "float", "[KV, D, D]", is_optional=True),
)
"""Constants of 4-bit keys; ``key_centre`` only without softcap and sinks."""

_SEQUENCE_ROWS: Final = Port("sequence_rows", "int32", "[B]")
"""The last input of every operator that attends."""
_STATE_PORTS: Final = (
    Port("state", "float", "[N, 2, D]"),
    Port("past_length", "int32", "[B]"),
    Port("state_index", "int32", "[B]"),
    Port("slot", "int32", "[B]"),
    Port("advance", "int32", "[B, A]"),
    Port("certain", "int32", "[B]"),
    Port("parents", "int32", "[S]"),
    _SEQUENCE_ROWS,
)
"""Inputs of operators with a state, which say which slot a pass reads, and what it does to it."""
_QUERY_SCALE: Final = Port("query_scale", "float", "[P]", is_optional=True)

STATE_INPUTS: Final[Mapping[str, tuple[str, ...]]] = {
    "state_index": ("sequences",),
    "slot": ("sequences",),
    "advance": ("sequences", "drafts"),
    "certain": ("sequences",),
}
"""Inputs of a graph with states that change from pass to pass, int32, and their shapes."""

OPS: Final[tuple[Op, ...]] = (
    # y = residual + residual_scale * post_norm(softcap(output_scale * activation(norm(x) @ weight.T + bias))):
    # M rows, K inputs, N outputs; Nout is N, or half of it where tiles of gate and up rows alternate.
    Op(
        "QuantLinear",
        (
            Port("x", "float", "[M, K]"),
            _WEIGHT,
            Port("norm_weight", "float", "[K]", is_optional=True),
            Port("bias", "float", "[N]", is_optional=True),
            Port("residual", "float", "[M, Nout]", is_optional=True),
            Port("gate", "float", "[M, Nout]", is_optional=True),
            Port("post_norm", "float", "[Nout], or of groups", is_optional=True),
            Port("norm_bias", "float", "[K]", is_optional=True),
        ),
        (Port("y", "float", "[M, Nout]"),),
        {
            "format": "string",
            "out_features": "int",
            "in_features": "int",
            "part_rows": "string?",
            "fine_blocks": "string?",
            "epsilon": "float?",
            "activation": "string?",
            "norm": "string?",
            "output_scale": "float?",
            "softcap": "float?",
            "residual_scale": "float?",
        },
    ),
    # Rows of the same packed matrix that a tied head multiplies by, times `scale`.
    Op(
        "QuantEmbed",
        (Port("ids", "int64", "[S]"), _WEIGHT),
        (Port("y", "float", "[S, K]"),),
        {"format": "string", "out_features": "int", "in_features": "int", "scale": "float?", "stays_in_file": "int?"},
    ),
    # Rotates, appends keys and values to `cache` in place, and attends over the committed rows and a row's ancestors.
    Op(
        "SpecAttention",
        (
            Port("qkv", "float", "[S, (H + 2 KV) D], or fewer: see the attributes"),
            *_ATTENTION_PORTS,
            *_KEY_CONSTANT_PORTS,
            _QUERY_SCALE,
            _SEQUENCE_ROWS,
        ),
        (Port("y", "float", "[S, H D]"),),
        {
            "num_heads": "int",
            "num_kv_heads": "int",
            "head_dim": "int",
            "layer": "int",
            "scale": "float",
            "window": "int?",
            "softcap": "float?",
            "interleaved": "int?",
            "rotate": "int?",
            "norm_after_rotation": "int?",
            "norms_values": "int?",
            "values_are_keys": "int?",
            "shares_cache": "int?",
            "gated": "int?",
            "clip": "float?",
            "epsilon": "float?",
        },
    ),
    # c * conv(b * x), bcx being b, c and x of C channels: a convolution over a row and the K - 1 rows before it, whose
    # b * x are kept in `cache`, written in place.
    Op(
        "ShortConv",
        (
            Port("bcx", "float", "[S, 3 C]"),
            Port("cache", "float", "[W, C]"),
            *_ROW_PORTS,
            Port("weight", "float", "[K, C]"),
            Port("bias", "float", "[C]", is_optional=True),
            _SEQUENCE_ROWS,
        ),
        (Port("y", "float", "[S, C]"),),
    ),
    # silu(bias + conv(x)), x being C columns from `first` on: a convolution whose K - 1 last rows are in one of two
    # slots of `state`, and behind them rows of drafts; D = (K - 1 + drafts) x C. A pass reads one slot and writes the
    # other.
    Op(
        "StateConv",
        (
            Port("x", "float", "[S, first + C or more]"),
            *_STATE_PORTS,
            Port("weight", "float", "[K, C]"),
            Port("bias", "float", "[C]", is_optional=True),
        ),
        (Port("y", "float", "[S, C]"),),
        {"first": "int?"},
    ),
    # The gated delta rule: heads with a matrix each as their memory of a text, in one of two slots of `state`, and
    # behind it room for what drafts did to them. K = key_heads x key dim, V = value_heads x value dim,
    # D = V x key dim + drafts x (value_heads + K + V). A pass reads one slot and writes the other, in place.
    Op(
        "GatedDelta",
        (
            Port("qkv", "float", "[S, 2 K + V]"),
            *_STATE_PORTS,
            Port("z", "float", "[S, V]"),
            Port("b", "float", "[S, value_heads]"),
            Port("a", "float", "[S, value_heads]"),
            Port("a_scale", "float", "[value_heads]"),
            Port("dt_bias", "float", "[value_heads]"),
            Port("norm", "float", "[value dim]"),
        ),
        (Port("y", "float", "[S, V]"),),
        {"key_heads": "int", "is_tiled": "int?", "epsilon": "float?", "key_epsilon": "float?"},
    ),
    # State spaces with one decay for each head (Mamba-2), which keep their states like a gated delta rule. K = groups x
    # state size, V = heads x head_dim, D = V x state size + drafts x (heads + K + V). z are the first columns of their
    # input, and t the last ones of theirs.
    Op(
        "SsmScan",
        (
            Port("xbc", "float", "[S, V + 2 K]"),
            *_STATE_PORTS,
            Port("z", "float", "[S, at least V]"),
            Port("t", "float", "[S, at least heads]"),
            Port("a_scale", "float", "[heads]"),
            Port("skip", "float", "[heads]"),
            Port("dt_bias", "float", "[heads]"),
            Port("norm", "float", "[V]", is_optional=True),
        ),
        (Port("y", "float", "[S, V]"),),
        {"head_dim": "int", "groups": "int", "norm_first": "int?", "epsilon": "float?"},
    ),
    # The weighted sum of the experts that a router chooses for each row, added to a residual: E experts of W inputs and
    # I features between their matrices, all experts' matrices one behind the other. W is K, the router's inputs, unless
    # `expert_x` gives experts rows of their own.
    Op(
        "Experts",
        (
            Port("x", "float", "[S, K]"),
            Port("router", "float", "[E, K]"),
            Port("gate_up", "uint8", "[tiles, blocks, bytes]"),
            Port("down", "uint8", "[tiles, blocks, bytes]"),
            Port("norm_weight", "float", "[K]", is_optional=True),
            Port("norm_bias", "float", "[K]", is_optional=True),
            Port("router_bias", "float", "[E]", is_optional=True),
            Port("choice_bias", "float", "[E]", is_optional=True),
            Port("gate_up_bias", "float", "[E 2 I], in the order of tiles; [E I] without a gate", is_optional=True),
            Port("down_bias", "float", "[E W]", is_optional=True),
            Port("residual", "float", "[S, W]", is_optional=True),
            Port("expert_x", "float", "[S, W]", is_optional=True),
            Port("shared", "float", "[S, W]", is_optional=True),
            Port("shared_gate", "float", "[K]", is_optional=True),
            Port("expert_scale", "float", "[E]", is_optional=True),
            Port("post_norm", "float", "[W]", is_optional=True),
            Port("expert_norm", "float", "[K]", is_optional=True),
            Port("sum_norm", "float", "[W]", is_optional=True),
        ),
        (Port("y", "float", "[S, W]"), Port("numbers", "int32", "[S, chosen]", is_optional=True)),
        {
            "hidden": "int",
            "intermediate": "int",
            "width": "int?",
            "experts": "int",
            "chosen": "int",
            "groups": "int?",
            "chosen_groups": "int?",
            "gating": "string?",
            "normalise": "int?",
            "weight_epsilon": "float?",
            "weight_scale": "float?",
            "activation": "string?",
            "limit": "float?",
            "slope": "float?",
            "up_offset": "float?",
            "gate_up_format": "string",
            "down_format": "string",
            "epsilon": "float?",
            "norm": "string?",
            "residual_scale": "float?",
        },
    ),
    # A whole layer: the operators above in sequence, in one parallel section.
    Op(
        "DecoderLayer",
        (
            Port("x", "float", "[S, K]"),
            *_ATTENTION_PORTS,
            Port("attention_norm", "float", "[K]", is_optional=True),
            Port("qkv", "uint8", "[tiles, blocks, bytes]"),
            Port("output", "uint8", "[tiles, blocks, bytes]"),
            Port("mlp_norm", "float", "[K]", is_optional=True),
            Port("gate_up", "uint8", "[tiles, blocks, bytes]"),
            Port("down", "uint8", "[tiles, blocks, bytes]"),
            *_KEY_CONSTANT_PORTS,
            Port("qkv_bias", "float", "[rows of qkv]", is_optional=True),
            Port("output_bias", "float", "[K]", is_optional=True),
            Port("gate_up_bias", "float", "[2 I], in the order of tiles; [I] without a gate", is_optional=True),
            Port("down_bias", "float", "[K]", is_optional=True),
            Port("attention_post_norm", "float", "[K]", is_optional=True),
            Port("mlp_post_norm", "float", "[K]", is_optional=True),
            _QUERY_SCALE,
            Port("attention_norm_bias", "float", "[K]", is_optional=True),
            Port("mlp_norm_bias", "float", "[K]", is_optional=True),
            _SEQUENCE_ROWS,
        ),
        (Port("y", "float", "[S, K]"),),
        {
            "num_heads": "int",
            "num_kv_heads": "int",
            "head_dim": "int",
            "layer": "int",
            "scale": "float",
            "hidden": "int",
            "intermediate": "int",
            "qkv_format": "string",
            "output_format": "string",
            "gate_up_format": "string",
            "down_format": "string",
            "qkv_fine_blocks": "string?",
            "output_fine_blocks": "string?",
            "gate_up_fine_blocks": "string?",
            "down_fine_blocks": "string?",
            "window": "int?",
            "softcap": "float?",
            "interleaved": "int?",
            "rotate": "int?",
            "norm_after_rotation": "int?",
            "norms_values": "int?",
            "values_are_keys": "int?",
            "shares_cache": "int?",
            "gated": "int?",
            "clip": "float?",
            "epsilon": "float?",
            "activation": "string?",
            "norm": "string?",
            "residual_scale": "float?",
        },
    ),
    # The k largest of each row, descending; of equal ones the smaller id first.
    Op(
        "RowTopK",
        (Port("logits", "float", "[R, V]"),),
        (Port("ids", "int32", "[R, k]"), Port("values", "float", "[R, k]"), Port("log_sum_exp", "float", "[R]")),
        {"k": "int"},
    ),
    # A tree of guesses behind a hidden state and a token, grown by a small recurrent head of `blocks` blocks: N and M
    # rows of a reduced LM head, attribute `nodes` T.
    Op(
        "DraftHead",
        (
            Port("hidden", "float", "[1, D]"),
            Port("token", "int64", "[1]"),
            Port("embedding", "uint8", "[tiles, blocks, bytes]"),
            Port("fc", "uint8", "[tiles, blocks, bytes]"),
            Port("state_norm", "float", "[D]"),
            Port("token_norm", "float", "[D]"),
            Port("output_norm", "float", "[D]"),
            Port("head", "uint8", "[tiles, blocks, bytes]"),
            Port("head_ids", "int32", "[N], ascending"),
            Port("more_head", "uint8", "[tiles, blocks, bytes]", is_optional=True),
            Port("more_ids", "int32", "[M], ascending, none of head_ids", is_optional=True),
            Port("limits", "int32", "[3]: nodes, width, depth"),
            *(
                Port(f"{name}_{block}", dtype, shape, is_optional=block > 1)
                for block in range(1, MAX_HEAD_BLOCKS + 1)
                for name, dtype, shape in (
                    ("norm", "float", "[D]"),
                    ("gate_up", "uint8", "[tiles, blocks, bytes]"),
                    ("down", "uint8", "[tiles, blocks, bytes]"),
                )
            ),
        ),
        (
            *(Port(name, "int32", "[T]") for name in ("ids", "parents", "depths")),
            Port("log_probs", "float", "[T]"),
            Port("count", "int32", "[1]"),
        ),
        {
            "hidden": "int",
            "intermediate": "int",
            "vocabulary": "int",
            "nodes": "int",
            "blocks": "int?",
            "epsilon": "float?",
            **{f"{name}_format": "string" for name in ("embedding", "fc", "gate_up", "down", "head")},
        },
    ),
)
"""Shapes and meaning are described in ``docs/adding-an-op.md`` and in each operator's header in ``csrc/ops``."""


def part_without_operator(decoder: Decoder) -> str | None:
    """Return a part of a model that no operator of any profile computes; None: there is none."""
    inner = [layer.feed_forward for layer in decoder.kinds if layer.feed_forward is not None]
    with_experts = [layer.experts for layer in decoder.kinds if layer.experts is not None]
    parts = {
        "a norm behind latent experts": any(
            layer.has_post_norms and layer.experts.latent for layer in decoder.kinds if layer.experts is not None
        ),
        "limits of feed-forwards": any(part.limit or part.slope != 1.0 or part.up_offset for part in inner),
        "a gate of an expert beside latent ones": any(
            experts.has_shared_gate and experts.latent for experts in with_experts
        ),
    }
    return next((name for name, is_there in parts.items() if is_there), None)


def native_part(decoder: Decoder) -> str | None:
    """Return a part of a model that the native op profile alone computes, besides those that have flags; or None."""
    attentions = [layer.attention for layer in decoder.kinds if layer.attention is not None]
    parts = {
        "heads that differ, or keys of another layer": not decoder.has_equal_heads,
        "values that are normed, or keys": any(one.norms_values or one.values_are_keys for one in attentions),
        "a further embedding for each layer": decoder.per_layer_embedding > 0,
        "a scale behind a layer": any(layer.has_scale for layer in decoder.kinds),
    }
    return next((name for name, is_there in parts.items() if is_there), None)


def not_carried(decoder: Decoder, what: str) -> UnsupportedModel:
    """Return the error for a part of a description that no operator computes."""
    return UnsupportedModel(
        f"{decoder.name}: the operators do not compute a part of the model.",
        f"It is {what}, in the architecture {decoder.family}.",
        "Choose another --profile, or another model.",
    )
