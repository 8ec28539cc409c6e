"""The quantised matrices of a folder: which tensors make them, and inputs that come in another order.

GPTQ with ``desc_act`` puts inputs into groups in the order of their importance. A package has groups of neighbours, so
the inputs are moved. That can be done where another matrix computes them row by row: the inputs of ``ffn_down`` are the
rows of ``ffn_gate`` and ``ffn_up``. All others come from norms and from attention, whose order is that of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.sources.awq import AWQLayout
from edge_rt.export.sources.bitsandbytes import BitsAndBytesLayout
from edge_rt.export.sources.compound import CompoundTensor, MatrixLayout
from edge_rt.export.sources.compressed_tensors import CompressedTensorsLayout
from edge_rt.export.sources.float4 import Float4Layout
from edge_rt.export.sources.float8 import Float8Layout
from edge_rt.export.sources.gguf_types import FETCH_AGAIN
from edge_rt.export.sources.gptq import GPTQLayout
from edge_rt.export.sources.hf_folder import GGML_TYPE_OF, HFFolder
from edge_rt.export.sources.mlx import MLXLayout
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed import PackedLayout, PackedTensor
from edge_rt.export.sources.packed_arrays import read_floats
from edge_rt.export.sources.packed_config import (
    Float4Settings,
    Float8Settings,
    MLXSettings,
    PackedSettings,
    QuantisedSettings,
)
from edge_rt.export.sources.safetensors_folder import StoredTensor

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
    if isinstance(settings, Float4Settings):
        return Float4Layout(settings)
    if isinstance(settings, Float8Settings):
        return Float8Layout(settings)
    return BitsAndBytesLayout(settings)


def _parts(folder: HFFolder, name: str, layout: MatrixLayout) -> dict[str, StoredTensor]:
    """Return the stored tensors of a matrix, by what follows its layer's name; none if it is there as floats."""
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
    """Return tensors of which those rows are moved that feed moved inputs."""
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
