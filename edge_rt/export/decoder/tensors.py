"""The tensors that a decoder has: names as in GGUF files, shapes, types; and how fused ones are taken apart."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID, EXPORTABLE_TYPES, FETCH_AGAIN, GGUFHeader, TensorInfo
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import Attention, Experts, FeedForward, GatedDelta, Layer, ShortConv, StateSpace
from edge_rt.system.byte_size import counted

FLOAT_VECTORS: Final = ("F32", "F16", "BF16")
"""Types of norms and other vectors, and of the matrices that nobody quantises."""
PLAIN: Final = ("shortconv.conv.weight", "ffn_gate_inp.weight", "ssm_conv1d.weight")
"""Ends of these matrices' names."""
RATES: Final = ("ssm_alpha.weight", "ssm_beta.weight")
"""Ends of the names of small matrices that decide how much a state forgets: nobody quantises floats of theirs."""
OPTIONAL: Final = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors whose numbers are in the description."""

OWN_NORMS: Final = ("pre_ffw_norm_2", "post_ffw_norm_2", "post_ffw_norm_1")
"""Norms before and behind experts that have their own, and behind the feed-forward beside them."""

FUSED: Final = (".attn_qkv", ".ffn_gate_up", "_exps", ".ssm_qkvz", ".ssm_ba")
"""Ends of the names of tensors that hold several of a decoder's."""

INPUT_OF: Final[Mapping[str, str]] = {
    "attn_q": "qkv",
    "attn_k": "qkv",
    "attn_v": "qkv",
    "attn_output": "output",
    "shortconv.in_proj": "conv_in",
    "shortconv.out_proj": "conv_out",
    "attn_qkv": "state_in",
    "attn_gate": "state_in",
    "ssm_alpha": "state_in",
    "ssm_beta": "state_in",
    "ssm_in": "state_in",
    "ssm_out": "state_out",
    "ffn_gate": "gate_up",
    "ffn_up": "gate_up",
    "ffn_down": "down",
    "inp_gate": "per_layer_gate",
    "proj": "per_layer_out",
    "nextn.eh_proj": "ahead",
}
"""Kind of matrix -> what its input is called."""

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(decoder: Decoder) -> Shapes:
    """Return tensor name -> shape in ggml order (innermost dimension first) of a complete checkpoint."""
    width = decoder.hidden_size
    shapes: Shapes = {"token_embd.weight": (width, decoder.vocab_size), "output_norm.weight": (width,)}
    if decoder.has_norm_bias:
        shapes["output_norm.bias"] = (width,)
    if not decoder.is_tied:
        shapes["output.weight"] = (width, decoder.vocab_size)
    if features := decoder.per_layer_embedding * decoder.num_layers:
        shapes |= {
            "per_layer_token_embd.weight": (features, decoder.vocab_size),
            "per_layer_model_proj.weight": (width, features),
            "per_layer_proj_norm.weight": (decoder.per_layer_embedding,),
        }
    for index, layer in enumerate(decoder.layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer_shapes(decoder, layer).items()}
    return shapes


AHEAD_TENSORS: Final = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
"""Of a block that predicts further ahead, besides those of its layer: its first matrix, and norms of embeddings, of
states and of what it gives."""


def ahead_shapes(decoder: Decoder, layer: Layer) -> Shapes:
    """Return the same of a block that predicts further ahead, which has the number behind the last layer."""
    width, (matrix, *norms) = decoder.hidden_size, AHEAD_TENSORS
    shapes = {f"{matrix}.weight": (2 * width, width), **{f"{norm}.weight": (width,) for norm in norms}}
    shapes |= layer_shapes(decoder, layer)
    return {f"blk.{decoder.num_layers}.{name}": shape for name, shape in shapes.items()}


def held_by(name: str, experts: int) -> tuple[str, ...]:
    """Return the tensors that one of all experts of a layer holds, or the name alone if it is none of these."""
    prefix, kind = name.rpartition("ffn_")[::2]
    parts = _STACKS.get(kind)
    if parts is None:
        return (name,)
    return tuple(f"{prefix}ffn_{part}.{number}.weight" for part in parts for number in range(experts))


_STACKS: Final[Mapping[str, tuple[str, ...]]] = {
    "gate_exps.weight": ("gate",),
    "up_exps.weight": ("up",),
    "down_exps.weight": ("down",),
    "gate_up_exps.weight": ("gate", "up"),
}
"""Ends of the names of tensors of all experts of a layer -> their matrices."""


def layer_shapes(decoder: Decoder, layer: Layer) -> Shapes:
    """Return the shapes of a layer's tensors, by their names within it."""
    width = decoder.hidden_size
    shapes: Shapes = {}
    if layer.attention is not None:
        shapes |= _attention_shapes(width, layer.attention)
    if layer.short_conv is not None:
        shapes |= _short_conv_shapes(width, layer.short_conv)
    if layer.gated_delta is not None:
        shapes |= _gated_delta_shapes(width, layer.gated_delta)
    if layer.state_space is not None:
        shapes |= _state_space_shapes(width, layer.state_space)
    if layer.feed_forward is not None:
        shapes |= _feed_forward_shapes(width, layer.feed_forward, "")
    if layer.experts is not None:
        shapes |= _experts_shapes(width, layer.experts)
    if layer.has_scale:
        shapes["layer_output_scale.weight"] = (1,)
    if features := decoder.per_layer_embedding:
        shapes |= {"inp_gate.weight": (width, features), "proj.weight": (features, width), "post_norm.weight": (width,)}
    norms = (
        ("attn_norm", layer.has_mixer and layer.has_pre_norms),
        ("ffn_norm", bool(layer.feed_forwards) and layer.has_pre_norms),
        ("post_attention_norm", layer.has_mixer and layer.has_post_norms),
        ("post_ffw_norm", bool(layer.feed_forwards) and layer.has_post_norms),
        *((name, layer.experts is not None and layer.experts.has_own_norms) for name in OWN_NORMS),
    )
    for name, is_there in norms:
        if is_there:
            shapes[f"{name}.weight"] = (width,)
            if decoder.has_norm_bias:
                shapes[f"{name}.bias"] = (width,)
    return shapes


def _attention_shapes(width: int, attention: Attention) -> Shapes:
    queries, keys = attention.query_size, attention.key_size
    matrices: Shapes = {"attn_q.weight": (width, attention.query_rows)}
    matrices |= {f"{kind}.weight": (width, keys) for kind in kv_kinds(attention)}
    shapes = _with_biases(matrices, attention.has_qkv_bias)
    shapes |= _with_biases({"attn_output.weight": (queries, width)}, attention.has_output_bias)
    if attention.qk_norm != "none":
        is_row = attention.qk_norm == "row"
        shapes["attn_q_norm.weight"] = (queries if is_row else attention.head_dim,)
        if attention.kv_from is None:
            shapes["attn_k_norm.weight"] = (keys if is_row else attention.head_dim,)
    if attention.has_sinks:
        shapes["attn_sinks.weight"] = (attention.num_heads,)
    return shapes


def kv_kinds(attention: Attention) -> tuple[str, ...]:
    """Return the matrices of keys and values that a layer has."""
    if attention.kv_from is not None:
        return ()
    return ("attn_k",) if attention.values_are_keys else ("attn_k", "attn_v")


def unread_tensors(decoder: Decoder) -> frozenset[str]:
    """Return the names of tensors that files may have and nobody reads: keys and values of layers without a cache."""
    return frozenset(
        f"blk.{layer}.{kind}.{suffix}"
        for layer in decoder.attention_layers
        if layer not in decoder.kv_layers
        for kind in ("attn_k", "attn_v", "attn_k_norm", "attn_v_norm")
        for suffix in ("weight", "bias")
    )


def _short_conv_shapes(width: int, conv: ShortConv) -> Shapes:
    return _with_biases(
        {
            "shortconv.in_proj.weight": (width, 3 * width),
            "shortconv.conv.weight": (conv.taps, width),
            "shortconv.out_proj.weight": (width, width),
        },
        conv.has_bias,
    )


def _gated_delta_shapes(width: int, delta: GatedDelta) -> Shapes:
    heads, values = delta.value_heads, delta.value_size
    return {
        "attn_qkv.weight": (width, delta.conv_size),
        "attn_gate.weight": (width, values),
        "ssm_alpha.weight": (width, heads),
        "ssm_beta.weight": (width, heads),
        "ssm_conv1d.weight": (delta.taps, delta.conv_size),
        "ssm_dt.bias": (heads,),
        "ssm_a.weight": (heads,),
        "ssm_norm.weight": (delta.value_dim,),
        "ssm_out.weight": (values, width),
    }


def _state_space_shapes(width: int, space: StateSpace) -> Shapes:
    matrices: Shapes = {
        "ssm_in.weight": (width, space.size + space.conv_size + space.heads),
        "ssm_out.weight": (space.size, width),
    }
    norm: Shapes = {} if space.norm == "none" else {"ssm_norm.weight": (space.size,)}
    return {
        **_with_biases(matrices, space.has_bias),
        **_with_biases({"ssm_conv1d.weight": (space.taps, space.conv_size)}, space.has_conv_bias),
        "ssm_dt.bias": (space.heads,),
        "ssm_a.weight": (space.heads,),
        "ssm_d.weight": (space.heads,),
        **norm,
    }


def _feed_forward_shapes(width: int, inner: FeedForward, suffix: str) -> Shapes:
    matrices: Shapes = {f"ffn_up{suffix}.weight": (width, inner.size), f"ffn_down{suffix}.weight": (inner.size, width)}
    if inner.is_gated:
        matrices[f"ffn_gate{suffix}.weight"] = (width, inner.size)
    return _with_biases(matrices, inner.has_bias)


def _experts_shapes(width: int, experts: Experts) -> Shapes:
    shapes = _with_biases({"ffn_gate_inp.weight": (width, experts.count)}, experts.has_router_bias)
    if experts.has_choice_bias:
        shapes["exp_probs_b.bias"] = (experts.count,)
    if experts.has_shared_gate:
        shapes["ffn_gate_inp_shexp.weight"] = (width,)
    if experts.has_scales:
        shapes["ffn_down_exps.scale"] = (experts.count,)
    if experts.has_own_norms:
        shapes["ffn_gate_inp.scale"] = (width,)
    if experts.latent:
        shapes |= {"ffn_latent_down.weight": (width, experts.latent), "ffn_latent_up.weight": (experts.latent, width)}
    for number in range(experts.count):
        shapes |= _feed_forward_shapes(experts.latent or width, experts.each, f".{number}")
    return shapes


def _with_biases(matrices: Shapes, has_bias: bool) -> Shapes:
    """Return the shapes of matrices, and of their biases if they have them."""
    biases = {f"{name.removesuffix('weight')}bias": shape[1:] for name, shape in matrices.items()}
    return matrices | (biases if has_bias else {})


def kind_of(name: str) -> str:
    """Return which matrix of its layer a tensor is, as in ``INPUT_OF``."""
    return name.split(".", 2)[-1].removesuffix(".weight")


def name_in_layer(module: str, layer: Layer) -> str:
    """Return the name of a module where checkpoints call a layer's only norm alike, whatever follows it."""
    return "ffn_norm" if module == "attn_norm" and not layer.has_mixer else module


def input_of_kind(kind: str) -> str | None:
    """Return what the input of a kind of matrix is called, of an expert's with its number; None: it has no name."""
    whole, _, number = kind.partition(".")
    if kind in INPUT_OF or not number.isdigit() or whole not in INPUT_OF:
        return INPUT_OF.get(kind)
    return f"{INPUT_OF[whole]}.{number}"


def is_fused(name: str) -> bool:
    """Return whether a tensor holds several of a decoder's."""
    return name.rpartition(".")[0].endswith(FUSED)


def split_fused(where: str, tensors: Mapping[str, TensorInfo], decoder: Decoder) -> dict[str, TensorInfo]:
    """Return the tensors in which queries, keys and values, and gate and up, are apart."""
    found = dict(tensors)
    for index, layer in enumerate(decoder.layers):
        attention, inner, prefix = layer.attention, layer.feed_forward, f"blk.{index}."
        fused: list[tuple[str, dict[str, int]]] = []
        if attention is not None:
            keys = dict.fromkeys(kv_kinds(attention), attention.key_size)
            fused.append(("attn_qkv", {"attn_q": attention.query_rows, **keys}))
        if layer.gated_delta is not None:
            _split_delta(found, prefix, layer.gated_delta)
        if layer.experts is not None:
            _split_experts(where, found, prefix, layer.experts.count)
            size = layer.experts.each.size
            fused += [
                (f"ffn_gate_up.{number}", {f"ffn_gate.{number}": size, f"ffn_up.{number}": size})
                for number in range(layer.experts.count)
            ]
        if inner is not None:
            gate_up = {"ffn_gate": inner.size, "ffn_up": inner.size}
            fused.append(("ffn_gate_up", gate_up))
            up = found.get(f"{prefix}ffn_up.weight")
            has_gate = f"{prefix}ffn_gate.weight" in found
            if inner.is_gated and not has_gate and up is not None and up.shape[-1] == 2 * inner.size:
                fused.append(("ffn_up", gate_up))
        for name, parts in fused:
            for kind in ("weight", "bias"):
                tensor = found.get(f"{prefix}{name}.{kind}")
                if tensor is not None and tensor.shape[-1] == sum(parts.values()):
                    del found[tensor.name]
                    found |= _rows_of(where, tensor, {f"{prefix}{part}.{kind}": rows for part, rows in parts.items()})
    return found


def _split_delta(found: dict[str, TensorInfo], prefix: str, delta: GatedDelta) -> None:
    """Take apart matrices that have, head of keys by head of keys, what belongs to each."""
    import numpy as np

    from edge_rt.export.weights.derived import reordered_tensor

    of_each = delta.value_heads // delta.key_heads
    wide = of_each * delta.value_dim
    # Name of what is fused -> its parts, and the rows of each that belong to a head of keys.
    fused: dict[str, tuple[tuple[str, int], ...]] = {
        "ssm_qkvz": (("attn_qkv", delta.key_dim), ("attn_qkv", delta.key_dim), ("attn_qkv", wide), ("attn_gate", wide)),
        "ssm_ba": (("ssm_beta", of_each), ("ssm_alpha", of_each)),
    }
    for name, parts in fused.items():
        tensor = found.get(f"{prefix}{name}.weight")
        total = sum(rows for _, rows in parts)
        if tensor is None or tensor.shape[1:] != (delta.key_heads * total,):
            continue
        del found[tensor.name]
        numbers = np.arange(tensor.shape[1]).reshape(delta.key_heads, total)
        rows: dict[str, list[np.typing.NDArray[np.int64]]] = {}
        begin = 0
        for part, count in parts:
            rows.setdefault(part, []).append(numbers[:, begin : begin + count].reshape(-1))
            begin += count
        for part, some in rows.items():
            ours = f"{prefix}{part}.weight"
            found[ours] = reordered_tensor(ours, tensor, np.concatenate(some))


def _split_experts(where: str, found: dict[str, TensorInfo], prefix: str, count: int) -> None:
    """Put the tensors of single experts in the places of those that hold all of a layer's."""
    for kind, suffix in itertools.product(("gate", "up", "down", "gate_up"), ("weight", "bias")):
        tensor = found.get(f"{prefix}ffn_{kind}_exps.{suffix}")
        if tensor is None or len(tensor.shape) != (3 if suffix == "weight" else 2) or tensor.shape[-1] != count:
            continue
        del found[tensor.name]
        names = {f"{prefix}ffn_{kind}.{number}.{suffix}": 1 for number in range(count)}
        for name, one in _rows_of(where, tensor, names).items():
            found[name] = replace(one, shape=tensor.shape[:-1])


def _rows_of(where: str, tensor: TensorInfo, parts: Mapping[str, int]) -> dict[str, TensorInfo]:
    """Return tensors that consist of consecutive rows of another one, or of elements of a vector."""
    if tensor.type_id == COMPOUND_TYPE_ID:
        raise UnsupportedModel(
            f"{where}: packed matrices that hold several ones are not supported.",
            f"'{tensor.name}' holds {', '.join(parts)}.",
            "Get the model in BF16 or F16, or as a GGUF file.",
        )
    found, begin = {}, 0
    row_bytes = tensor.nbytes // tensor.shape[-1]
    for name, rows in parts.items():
        found[name] = replace(
            tensor,
            name=name,
            shape=(*tensor.shape[:-1], rows),
            offset=tensor.offset + begin * row_bytes,
            nbytes=rows * row_bytes,
        )
        begin += rows
    return found


def check_shapes(
    where: str,
    tensors: Mapping[str, TensorInfo],
    expected: Shapes,
    names: Mapping[str, str] | None = None,
    action: str = FETCH_AGAIN,
) -> None:
    """Collect every missing or misshapen tensor and raise once; ``names``: how the checkpoint calls them."""
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise InvalidModelFile(
            f"{where}: {counted(len(missing), 'tensor')} {'is' if len(missing) == 1 else 'are'} missing.",
            f"{listed([(names or {}).get(name, name) for name in missing])}.",
            action,
        )
    wrong = [
        f"{tensors[name].label} {tensors[name].shape} instead of {shape}"
        for name, shape in expected.items()
        if tensors[name].shape != shape
    ]
    if wrong:
        raise InvalidModelFile(
            f"{where}: {counted(len(wrong), 'tensor')} {'has' if len(wrong) == 1 else 'have'} a wrong shape.",
            f"{listed(wrong)}.",
            action,
        )


def check_tensors(header: GGUFHeader, tensors: Mapping[str, TensorInfo], decoder: Decoder, expected: Shapes) -> None:
    """Collect every missing, misshapen or surplus tensor of a GGUF file and raise once."""
    check_shapes(header.path.name, tensors, expected)
    known = {*expected, *OPTIONAL, *unread_tensors(decoder)}
    require_no_surplus(header.path.name, [name for name in tensors if name not in known])
    _check_types(header.path.name, {name: tensors[name] for name in expected})


def require_no_surplus(
    where: str, names: list[str], action: str = "It is a variant that edge-rt cannot run yet; choose another model."
) -> None:
    """Refuse tensors that nothing reads: they would change what is computed."""
    if names:
        raise UnsupportedModel(
            f"{where}: the model has {counted(len(names), 'tensor')} that this architecture does not use.",
            f"{listed(names)}.",
            action,
        )


def _check_types(where: str, tensors: Mapping[str, TensorInfo]) -> None:
    plain = {n for n, tensor in tensors.items() if len(tensor.shape) == 1 or n.endswith(PLAIN)}
    vectors = [n for n in tensors if n in plain and tensors[n].type_name not in FLOAT_VECTORS]
    matrices = [
        f"{n} is {tensor.type_name}"
        for n, tensor in tensors.items()
        if n not in plain and tensor.type_name not in EXPORTABLE_TYPES
    ]
    if vectors or matrices:
        raise UnsupportedModel(
            f"{where}: the quantisation of {counted(len(vectors) + len(matrices), 'tensor')} is not supported.",
            f"{listed(matrices or vectors)}; supported: {', '.join(EXPORTABLE_TYPES)}.",
            "Choose a file in one of the supported quantisations.",
        )


def listed(items: list[str], limit: int = 5) -> str:
    """Return the first items as text, and how many more there are."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more
