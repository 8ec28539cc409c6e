"""The tensors that a decoder has: names as in GGUF files, shapes, types; and how fused ones are taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.sources.awq import AWQLayout
from edge_rt.export.sources.bitsandbytes import BitsAndBytesLayout
from edge_rt.export.sources.compound import CompoundTensor, MatrixLayout
from edge_rt.export.sources.compressed_tensors import CompressedTensorsLayout
from edge_rt.export.sources.float8 import Float8Layout
from edge_rt.export.sources.gguf_types import COMPOUND_TYPE_ID, EXPORTABLE_TYPES, FETCH_AGAIN, GGUFHeader, TensorInfo
from edge_rt.export.sources.gptq import GPTQLayout
from edge_rt.export.sources.hf_folder import GGML_TYPE_OF, HFFolder
from edge_rt.export.sources.mlx import MLXLayout
from edge_rt.export.sources.packed import PackedLayout, PackedTensor
from edge_rt.export.sources.packed_arrays import read_floats
from edge_rt.export.sources.packed_config import Float8Settings, MLXSettings, PackedSettings, QuantisedSettings
from edge_rt.export.sources.safetensors_folder import StoredTensor
from edge_rt.export.sources.tensor_reader import TensorReader
from edge_rt.package.decoder import Decoder, Layer
from edge_rt.system.byte_size import counted

_PACKED: dict[str, type[PackedLayout]] = {
    "gptq": GPTQLayout,
    "awq": AWQLayout,
    "compressed-tensors": CompressedTensorsLayout,
}


def packed_tensors(
    folder: HFFolder, names: Mapping[str, str], settings: QuantisedSettings
) -> tuple[dict[str, CompoundTensor], set[str]]:
    """Return the quantised matrices by the names that GGUF files have, and the names of all tensors that they explain.

    Matrices that are floats, because the quantisation left them out, are not among them. A bias of zeros counts as
    part of its matrix: some tools write one for every matrix.

    Args:
        names: of the float tensors that a checkpoint without quantisation has -> names that GGUF files have.

    Raises:
        InvalidModelFile: tensors of a matrix are missing, or do not fit each other.
        UnsupportedModel: groups of inputs cannot be stored in a package.
        StorageError: the file cannot be read.
    """
    layout, stored = _layout_of(settings), folder.weights.tensors
    found: dict[str, CompoundTensor] = {}
    used = {name for name in stored if name.endswith(layout.ignored)}
    with TensorReader(folder.weights.paths) as source:
        for hf, ours in names.items():
            parts = _parts(folder, hf, layout)
            if not parts:
                continue
            found[ours] = layout.tensor(ours, parts, source)
            used |= {part.name for part in parts.values()}
            bias = stored.get(f"{hf.removesuffix('weight')}bias")
            # One of another size is no bias, and may be too large to be read.
            if bias is not None and bias.shape == found[ours].shape[1:] and _is_zero(source, bias):
                used.add(bias.name)
    return _in_order(folder, found), used


def _layout_of(settings: QuantisedSettings) -> MatrixLayout:
    if isinstance(settings, PackedSettings):
        return _PACKED[settings.layout](settings)
    if isinstance(settings, MLXSettings):
        return MLXLayout(settings)
    if isinstance(settings, Float8Settings):
        return Float8Layout(settings)
    return BitsAndBytesLayout(settings)


def _parts(folder: HFFolder, name: str, layout: MatrixLayout) -> dict[str, StoredTensor]:
    """Return the stored tensors of a matrix, by what follows its layer's name; none if it is there as floats.

    Raises:
        InvalidModelFile: some are missing, or it is there as floats, too.
    """
    stored, module = folder.weights.tensors, name.removesuffix("weight")
    suffixes = [suffix for suffix in (*layout.required, *layout.optional) if f"{module}{suffix}" in stored]
    # Some layouts' codes have the name of the floats.
    if name in stored and stored[name].dtype in GGML_TYPE_OF and "weight" in suffixes:
        suffixes.remove("weight")
    if not suffixes:
        return {}
    if name in stored and "weight" not in suffixes:
        raise _wrong(folder, name, f"it is there as floats and packed, as {module}{suffixes[0]}")
    missing = [suffix for suffix in layout.required if suffix not in suffixes]
    if missing:
        raise _wrong(folder, f"{module}{suffixes[0]}", f"{module}{missing[0]} is missing")
    return {suffix: stored[f"{module}{suffix}"] for suffix in suffixes}


def _is_zero(source: TensorReader, bias: StoredTensor) -> bool:
    return bias.dtype in GGML_TYPE_OF and not np.any(read_floats(source, bias))


def _in_order(folder: HFFolder, tensors: dict[str, CompoundTensor]) -> dict[str, CompoundTensor]:
    """Return tensors of which those rows are moved that feed moved inputs.

    Raises:
        UnsupportedModel: inputs had to be moved that cannot be.
    """
    packed = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, PackedTensor)}
    moved: dict[str, CompoundTensor] = {}
    for name, tensor in packed.items():
        if tensor.input_order is None:
            continue
        before = [name.replace("ffn_down", kind) for kind in ("ffn_gate", "ffn_up")]
        if "ffn_down" not in name:
            raise _unordered(folder, tensor, "only those of the down projection can be moved")
        for feeding in before:
            if feeding not in packed:
                raise _unordered(folder, tensor, f"{feeding}, which computes them, is not packed")
            if packed[feeding].shape[1] != len(tensor.input_order):
                raise _wrong(folder, name, f"it has {len(tensor.input_order)} inputs, {feeding} computes others")
            moved[feeding] = replace(packed[feeding], row_order=tensor.input_order)
    return tensors | moved


def _unordered(folder: HFFolder, tensor: PackedTensor, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{folder.path.name}: the inputs of a matrix are grouped in an order that edge-rt cannot use.",
        f"'{tensor.name}': {why}; the groups are in the order of importance ('desc_act' or 'actorder').",
        "Get the model quantised without it, or with groups that are fixed beforehand ('static_groups').",
    )


def _wrong(folder: HFFolder, name: str, why: str) -> InvalidModelFile:
    return InvalidModelFile(
        f"{folder.path.name}: the tensors of a packed matrix contradict each other.", f"{name}: {why}.", FETCH_AGAIN
    )


FLOAT_VECTORS: Final = ("F32", "F16", "BF16")
"""Types of norms and other vectors."""
OPTIONAL: Final = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors whose numbers are in the description."""

FUSED: Final = (".attn_qkv", ".ffn_gate_up")
"""Ends of the names of tensors that hold several of a decoder's."""

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(decoder: Decoder) -> Shapes:
    """Return tensor name -> shape in ggml order (innermost dimension first) of a complete checkpoint."""
    width = decoder.hidden_size
    shapes: Shapes = {"token_embd.weight": (width, decoder.vocab_size), "output_norm.weight": (width,)}
    if decoder.has_norm_bias:
        shapes["output_norm.bias"] = (width,)
    if not decoder.is_tied:
        shapes["output.weight"] = (width, decoder.vocab_size)
    for index, layer in enumerate(decoder.layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer_shapes(decoder, layer).items()}
    return shapes


def layer_shapes(decoder: Decoder, layer: Layer) -> Shapes:
    """Return the shapes of a layer's tensors, by their names within it."""
    width, attention, inner = decoder.hidden_size, layer.attention, layer.feed_forward
    queries, keys = attention.query_size, attention.key_size
    shapes: Shapes = {
        "attn_q.weight": (width, queries),
        "attn_k.weight": (width, keys),
        "attn_v.weight": (width, keys),
        "attn_output.weight": (queries, width),
        "ffn_up.weight": (width, inner.size),
        "ffn_down.weight": (inner.size, width),
    }
    if inner.is_gated:
        shapes["ffn_gate.weight"] = (width, inner.size)
    biased = {"attn_q": attention.has_qkv_bias, "attn_k": attention.has_qkv_bias, "attn_v": attention.has_qkv_bias}
    biased |= {"attn_output": attention.has_output_bias}
    biased |= dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), inner.has_bias)
    shapes |= {
        f"{name}.bias": shapes[f"{name}.weight"][1:]
        for name, has_bias in biased.items()
        if has_bias and f"{name}.weight" in shapes
    }
    norms = {"attn_norm": layer.has_pre_norms, "ffn_norm": layer.has_pre_norms}
    norms |= {"post_attention_norm": layer.has_post_norms, "post_ffw_norm": layer.has_post_norms}
    for name, is_there in norms.items():
        if is_there:
            shapes[f"{name}.weight"] = (width,)
            if decoder.has_norm_bias:
                shapes[f"{name}.bias"] = (width,)
    if attention.qk_norm != "none":
        is_row = attention.qk_norm == "row"
        shapes["attn_q_norm.weight"] = (queries if is_row else attention.head_dim,)
        shapes["attn_k_norm.weight"] = (keys if is_row else attention.head_dim,)
    if attention.has_sinks:
        shapes["attn_sinks.weight"] = (attention.num_heads,)
    return shapes


def is_fused(name: str) -> bool:
    """Return whether a tensor holds several of a decoder's."""
    return name.rpartition(".")[0].endswith(FUSED)


def split_fused(where: str, tensors: Mapping[str, TensorInfo], decoder: Decoder) -> dict[str, TensorInfo]:
    """Return the tensors in which queries, keys and values, and gate and up, are apart.

    Args:
        where: name of the checkpoint, for errors.
        tensors: by the names that GGUF files have.

    Raises:
        UnsupportedModel: a fused matrix is packed by another tool.
    """
    found = dict(tensors)
    for index, layer in enumerate(decoder.layers):
        attention, inner = layer.attention, layer.feed_forward
        prefix, heads = f"blk.{index}.", {"attn_q": attention.query_size, "attn_k": attention.key_size}
        heads["attn_v"] = attention.key_size
        gate_up = {"ffn_gate": inner.size, "ffn_up": inner.size}
        fused = [("attn_qkv", heads), ("ffn_gate_up", gate_up)]
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
    decoder: Decoder,
    names: Mapping[str, str] | None = None,
    action: str = FETCH_AGAIN,
) -> None:
    """Collect every missing or misshapen tensor and raise once.

    Args:
        where: name of the checkpoint, for the error.
        tensors: by the names that GGUF files have.
        names: what missing ones are called where they should be; None: the same.

    Raises:
        InvalidModelFile: tensors are missing or misshapen.
    """
    expected = expected_shapes(decoder)
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


def check_tensors(header: GGUFHeader, tensors: Mapping[str, TensorInfo], decoder: Decoder) -> None:
    """Collect every missing, misshapen or surplus tensor of a GGUF file and raise once.

    Args:
        tensors: of the file; fused ones are apart.

    Raises:
        InvalidModelFile: tensors are missing or misshapen.
        UnsupportedModel: there are surplus tensors, or types that cannot be exported.
    """
    check_shapes(header.path.name, tensors, decoder)
    expected = expected_shapes(decoder)
    require_no_surplus(header.path.name, [name for name in tensors if name not in expected and name not in OPTIONAL])
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
    vectors = [n for n, tensor in tensors.items() if len(tensor.shape) == 1 and tensor.type_name not in FLOAT_VECTORS]
    matrices = [
        f"{n} is {tensor.type_name}"
        for n, tensor in tensors.items()
        if len(tensor.shape) == 2 and tensor.type_name not in EXPORTABLE_TYPES
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
