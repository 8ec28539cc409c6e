"""What a model computes, layer by layer, as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_rt.byte_size import counted

if TYPE_CHECKING:
    from edge_rt.package.decoder import Attention, Decoder, Layer, Rope

Row = tuple[str, str]

_FACTORS = ("embedding_scale", "residual_scale", "logit_scale")
_QK_NORMS = {"none": "", "head": "norms of heads", "row": "norms of rows"}


def decoder_rows(decoder: Decoder) -> list[Row]:
    """Return the rows about a decoder: each kind of layer once, with the numbers of its layers."""
    rows = [("family", decoder.family)]
    for number, kind in enumerate(decoder.kinds):
        layers = [layer for layer, found in enumerate(decoder.pattern) if found == number]
        name = "every layer" if len(decoder.kinds) == 1 else f"layers {ranges(layers)}"
        rows.append((name, _layer_text(kind, decoder)))
    rows.append(
        ("norms", f"{'LayerNorm' if decoder.norm == 'layer' else 'RMSNorm'}, epsilon {decoder.norm_epsilon:.6g}")
    )
    rows += [(name.replace("_", " "), f"{value:.6g}") for name in _FACTORS if (value := getattr(decoder, name)) != 1.0]
    if decoder.logit_softcap:
        rows.append(("soft-cap of logits", f"{decoder.logit_softcap:.6g}"))
    where = "when the package is loaded" if decoder.loads_rope else "weights.bin"
    rows.append(("tables of rotations", where))
    return rows


def ranges(numbers: list[int]) -> str:
    """Return ascending numbers as text, neighbours joined: ``0-4, 6-10``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _layer_text(layer: Layer, decoder: Decoder) -> str:
    inner = layer.feed_forward
    parts = [_attention_text(layer.attention, decoder)]
    parts.append(f"{inner.activation} {'with' if inner.is_gated else 'without'} a gate, {inner.size}")
    if inner.has_bias:
        parts[-1] += ", biases"
    if layer.has_post_norms:
        parts.append("norms before and behind" if layer.has_pre_norms else "norms behind only")
    return "; ".join(parts)


def _attention_text(attention: Attention, decoder: Decoder) -> str:
    parts = [f"{counted(attention.num_heads, 'head')} of {attention.head_dim} over {attention.num_kv_heads}"]
    parts.append(f"window {attention.window}" if attention.window else "all tokens")
    parts.append("no rotation" if attention.rope is None else _rope_text(decoder.ropes[attention.rope], attention))
    if norms := _QK_NORMS[attention.qk_norm]:
        parts.append(f"{norms} behind the rotation" if attention.norm_after_rope else norms)
    if attention.softcap:
        parts.append(f"soft-cap {attention.softcap:.6g}")
    if attention.has_qkv_bias:
        parts.append("biases of q, k, v and output" if attention.has_output_bias else "biases of q, k, v")
    if attention.has_sinks:
        parts.append("sinks")
    if (scaling := attention.query_scaling) is not None:
        parts.append(f"queries grow from position {scaling.original_context}")
    return ", ".join(parts)


def _rope_text(rope: Rope, attention: Attention) -> str:
    text = f"rope {rope.kind} {rope.base:.6g}"
    if rope.dimensions != attention.head_dim:
        text += f" of {rope.dimensions}"
    if rope.long_frequencies:
        text += f" (others in loads with a context beyond {rope.short_context})"
    return text
