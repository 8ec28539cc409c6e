"""Matrices of 4-bit codes with zero points, written as GPTQ's, AWQ's and compressed-tensors' tools write them.

Words are put together code by code, from the descriptions of the layouts; nothing is shared with what reads them.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

import numpy as np

from edge_rt.export.sources.awq import AWQLayout
from edge_rt.export.sources.compressed_tensors import CompressedTensorsLayout
from edge_rt.export.sources.gptq import GPTQLayout
from edge_rt.export.sources.packed_config import PackedSettings
from edge_rt.export.sources.safetensors_folder import DTYPE_BYTES, StoredTensor
from tests.helpers.hf_factory import hf_tensors, write_hf_folder

NUMPY = {
    "I32": "<u4", "U32": "<u4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "BF16": "<u2", "U8": "u1", "F8_E4M3": "u1",
}  # fmt: skip
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
LAYOUTS = {"gptq": GPTQLayout, "awq": AWQLayout, "compressed-tensors": CompressedTensorsLayout}
LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
           "mlp.up_proj", "mlp.down_proj")  # fmt: skip


@dataclass
class Matrix:
    """A matrix, not packed.

    Attributes:
        codes: ``[rows, inputs]``, 0 to 15.
        zeros: ``[rows, groups]``.
        scales: float16 ``[rows, groups]``.
        groups_of: group of every input.
    """

    codes: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    groups_of: np.ndarray

    @property
    def values(self):
        """The weights, float32 ``[rows, inputs]``."""
        less = self.codes.astype(np.int64) - self.zeros[:, self.groups_of]
        return (less * self.scales.astype(np.float64)[:, self.groups_of]).astype(np.float32)


def random_matrix(rng, rows, inputs, group, *, zeros=(1, 16), scale=0.01, order=None):
    """Return a matrix.

    Args:
        rng: numpy's.
        rows: how many.
        inputs: how many.
        group: inputs of a group.
        zeros: least and largest zero point.
        scale: standard deviation of scales.
        order: a permutation of inputs; those of a group are its neighbours there.
    """
    groups = -(-inputs // group)
    groups_of = np.empty(inputs, np.int64)
    groups_of[np.arange(inputs) if order is None else order] = np.arange(inputs) // group
    return Matrix(
        codes=rng.integers(0, 16, (rows, inputs)),
        zeros=rng.integers(zeros[0], zeros[1] + 1, (rows, groups)),
        scales=(rng.standard_normal((rows, groups)) * scale).astype(np.float16),
        groups_of=groups_of,
    )


def words(codes, axis, order=range(8)):
    """Put eight neighbours along an axis into a word; ``order[j]`` is the one in bits 4 j to 4 j + 3."""
    codes = np.moveaxis(np.asarray(codes, np.uint32), axis, 0)
    padded = np.zeros((-(-len(codes) // 8) * 8, *codes.shape[1:]), np.uint32)
    padded[: len(codes)] = codes
    packed = np.zeros((len(padded) // 8, *codes.shape[1:]), np.uint32)
    for place, neighbour in enumerate(order):
        packed |= padded[neighbour::8] << np.uint32(4 * place)
    return np.ascontiguousarray(np.moveaxis(packed, 0, axis))


def gptq(matrix, *, less=1, with_order=True):
    """Return suffix -> type and array; ``less`` is taken from zero points."""
    parts = {
        "qweight": ("I32", words(matrix.codes.T, 0)),
        "qzeros": ("I32", words(matrix.zeros.T - less, 1)),
        "scales": ("F16", np.ascontiguousarray(matrix.scales.T)),
    }
    return parts | ({"g_idx": ("I32", matrix.groups_of.astype("<i4"))} if with_order else {})


def awq(matrix):
    """Return suffix -> type and array."""
    return {
        "qweight": ("I32", words(matrix.codes.T, 1, AWQ_ORDER)),
        "qzeros": ("I32", words(matrix.zeros.T, 1, AWQ_ORDER)),
        "scales": ("F16", np.ascontiguousarray(matrix.scales.T)),
    }


def compressed(matrix, *, symmetric=False, with_order=False):
    """Return suffix -> type and array; the zero points of a symmetric matrix are 8."""
    parts = {
        "weight_packed": ("I32", words(matrix.codes, 1)),
        "weight_scale": ("F16", matrix.scales),
        "weight_shape": ("I64", np.array(matrix.codes.shape)),
    }
    if not symmetric:
        parts["weight_zero_point"] = ("I32", words(matrix.zeros, 0))
    return parts | ({"weight_g_idx": ("I32", matrix.groups_of.astype("<i4"))} if with_order else {})


class BytesReader:
    """What reads tensors, from memory."""

    def __init__(self, data):
        self._data = data

    def read(self, tensor, begin, size):
        """Return bytes of a tensor."""
        found = self._data[tensor.offset + begin : tensor.offset + begin + size]
        assert len(found) == size
        return found


def raw_bytes(dtype, array):
    """Return the bytes of an array in a file; bfloat16 is given as its bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(array).astype(NUMPY[dtype], casting="unsafe").tobytes()


def stored(parts, module="layer."):
    """Return suffix -> stored tensor, and what reads them."""
    found, data = {}, b""
    for suffix, (dtype, array) in parts.items():
        raw = raw_bytes(dtype, array)
        assert len(raw) == array.size * DTYPE_BYTES[dtype]
        found[suffix] = StoredTensor(module + suffix, dtype, tuple(array.shape), len(data), len(raw), 0)
        data += raw
    return found, BytesReader(data)


def opened(layout, parts, **settings):
    """Return the tensor and the matrix that a layout reads from parts."""
    found, source = stored(parts)
    tensor = LAYOUTS[layout](PackedSettings(layout, **settings)).tensor("m", found, source)
    return tensor, tensor.open(source)


def write_tensors(path, tensors):
    """Write a file of safetensors: name -> type and array."""
    header, data, at = {}, [], 0
    for name, (dtype, array) in tensors.items():
        raw = raw_bytes(dtype, array)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


SETTINGS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False},
    "gptq_v2": {
        "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False,
        "checkpoint_format": "gptq_v2",
    },
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    "auto-round": {
        "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 128,
        "data_type": "int", "sym": True, "autoround_version": "0.9.0",
        "extra_config": {"model.layers.0.self_attn.k_proj": {"bits": 16, "data_type": "float"}},
    },
    "compressed-tensors": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "input_activations": None, "output_activations": None,
            "weights": {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 128},
        }},
    },
}  # fmt: skip
"""Name of a layout -> what ``config.json`` says of it."""
WRITERS = {
    "gptq": gptq, "gptq_v2": lambda matrix: gptq(matrix, less=0), "awq": awq,
    "auto-round": lambda matrix: gptq(matrix, with_order=False), "compressed-tensors": compressed,
}  # fmt: skip
ZEROS = {"gptq": (1, 15), "gptq_v2": (0, 15), "awq": (0, 15), "auto-round": (8, 8), "compressed-tensors": (0, 15)}
"""Name of a layout -> least and largest zero point that both op profiles can store."""


def write_packed_folder(
    folder, model, name, *, matrices=None, floats=(), tensors=None, settings=None, group=128, config=None
):
    """Write a folder whose matrices are packed at random, and return module -> matrix.

    Args:
        folder: to make.
        model: what ``write_llama_gguf`` returned; sizes, and all that is not packed, are its own.
        name: a key of ``SETTINGS``.
        matrices: module -> matrix, those that are not drawn.
        floats: modules that stay as they are.
        tensors: name -> type and array, those to add; None instead leaves one out.
        settings: of the quantisation, instead of those of ``SETTINGS``.
        group: inputs of a group.
        config: more keys of ``config.json``.
    """
    document = {"quantization_config": SETTINGS[name] if settings is None else settings, **(config or {})}
    write_hf_folder(folder, model, config=document)
    rng, packed, all_tensors = np.random.default_rng(5), {}, {}
    for tensor, values in hf_tensors(model).items():
        module = tensor.removesuffix(".weight")
        if not module.endswith(LINEARS) or module in floats:
            all_tensors[tensor] = ("F32", values)
            continue
        drawn = random_matrix(rng, *values.shape, group, zeros=ZEROS[name])
        packed[module] = (matrices or {}).get(module, drawn)
        all_tensors |= {f"{module}.{suffix}": part for suffix, part in WRITERS[name](packed[module]).items()}
    all_tensors |= tensors or {}
    write_tensors(folder / "model.safetensors", {k: v for k, v in all_tensors.items() if v is not None})
    return packed


def write_float_folder(folder, model, matrices):
    """Write the same folder with the weights that packed matrices stand for."""
    values = {f"{module}.weight": matrix.values for module, matrix in matrices.items()}
    return write_hf_folder(folder, model, tensors=values)
