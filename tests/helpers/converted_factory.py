"""Matrices of floats in fewer bits, written as the tools that make such folders write them.

Values are computed from the descriptions of the layouts and by ``ml_dtypes``; nothing is shared with what reads them.
"""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np

from edge_rt.export.sources.bitsandbytes import BitsAndBytesLayout
from edge_rt.export.sources.float8 import Float8Layout
from edge_rt.export.sources.mlx import MLXLayout
from edge_rt.export.sources.packed_config import BitsAndBytesSettings, Float8Settings, MLXSettings
from tests.helpers.hf_factory import hf_tensors, write_hf_folder
from tests.helpers.packed_factory import LINEARS, stored, words, write_tensors

BLOCK = (128, 128)


def as_stored(values, dtype):
    """Return what a file holds of floats, and the floats that this is."""
    kind = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}[dtype]
    rounded = np.asarray(values).astype(kind)
    return rounded.view(np.uint16) if dtype == "BF16" else rounded, rounded.astype(np.float32)


def float8(values, *, kind="block", block=BLOCK, dtype="F32", suffix="weight_scale_inv", powers=False):
    """Quantise a matrix to FP8; return suffix -> type and array, and the weights that these stand for.

    Args:
        values: float32 ``[rows, inputs]``.
        kind: what has a scale: ``"scalar"``, ``"tensor"``, ``"channel"`` or ``"block"``.
        block: rows and inputs of a block.
        dtype: of scales.
        suffix: name of the scales.
        powers: whether scales are powers of two.
    """
    rows, inputs = values.shape
    high, wide = {"channel": (1, inputs), "block": block}.get(kind, values.shape)
    grid = np.empty((-(-rows // high), -(-inputs // wide)))
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            largest = np.abs(values[i * high : (i + 1) * high, j * wide : (j + 1) * wide]).max()
            grid[i, j] = 2.0 ** np.ceil(np.log2(largest / 448)) if powers else largest / 448
    scales, numbers = as_stored(grid, dtype)
    each = np.repeat(np.repeat(numbers, high, axis=0), wide, axis=1)[:rows, :inputs]
    # A scale that was rounded down may make a code of more than the largest.
    codes = np.clip(values / each, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    shapes = {"scalar": (), "tensor": (1,)}
    parts = {
        "weight": ("F8_E4M3", codes.view(np.uint8)),
        suffix: (dtype, scales.reshape(shapes.get(kind, scales.shape))),
    }
    return parts, codes.astype(np.float32) * each


def opened_float8(parts, **settings):
    """Return the tensor and the matrix that are read from parts."""
    found, source = stored(parts)
    tensor = Float8Layout(Float8Settings(**settings)).tensor("m", found, source)
    return tensor, tensor.open(source)


NUMBERS = (np.sign(np.linspace(-1, 1, 16)) * np.abs(np.linspace(-1, 1, 16)) ** 1.3).astype(np.float32)
"""What codes of 4 bits stand for; any table can be in a file."""
NESTED_NUMBERS = (np.linspace(-1, 1, 256) ** 3).astype(np.float32)


def bitsandbytes(values, *, kind="nf4", block=64, nested_block=0, state=None):
    """Quantise a matrix to 4 bits as bitsandbytes does; return suffix -> type and array, and the weights.

    Args:
        values: float32 ``[rows, inputs]``.
        kind: of the codes.
        block: values that share a scale.
        nested_block: scales that share a scale; 0 for scales of float32.
        state: keys of the JSON object to change, or to leave out where they are None.
    """
    flat = values.reshape(-1)
    starts = np.arange(0, len(flat), block)
    scales = np.maximum.reduceat(np.abs(flat), starts).astype(np.float32)
    document = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": list(values.shape)}
    parts = {"weight.absmax": ("F32", scales)}
    if nested_block:
        offset = np.float32(scales.mean())
        each = np.maximum.reduceat(np.abs(scales - offset), np.arange(0, len(scales), nested_block)) + np.float32(1e-6)
        spread = np.repeat(each, nested_block)[: len(scales)]
        places = np.abs(((scales - offset) / spread)[:, None] - NESTED_NUMBERS).argmin(axis=1)
        scales = NESTED_NUMBERS[places] * spread + offset
        parts = {
            "weight.absmax": ("U8", places.astype(np.uint8)),
            "weight.nested_absmax": ("F32", each),
            "weight.nested_quant_map": ("F32", NESTED_NUMBERS),
        }
        document |= {"nested_blocksize": nested_block, "nested_dtype": "float32", "nested_offset": float(offset)}
    every = np.repeat(scales, block)[: len(flat)]
    codes = np.abs((flat / every)[:, None] - NUMBERS).argmin(axis=1).astype(np.uint8)
    document = {key: value for key, value in (document | (state or {})).items() if value is not None}
    parts |= {
        "weight": ("U8", (codes[0::2] << 4 | codes[1::2])[:, None]),
        "weight.quant_map": ("F32", NUMBERS),
        f"weight.quant_state.bitsandbytes__{kind}": ("U8", np.frombuffer(json.dumps(document).encode(), np.uint8)),
    }
    return parts, (NUMBERS[codes] * every).reshape(values.shape)


def opened_bitsandbytes(parts, **settings):
    """Return the tensor and the matrix that are read from parts."""
    found, source = stored(parts)
    tensor = BitsAndBytesLayout(BitsAndBytesSettings(**settings)).tensor("m", found, source)
    return tensor, tensor.open(source)


BITSANDBYTES_SETTINGS = {
    "nf4": {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": None,
    },
    "fp4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
}  # fmt: skip


def mlx(values, *, bits=4, group=64, dtype="BF16"):
    """Quantise a matrix as MLX does in its mode affine; return suffix -> type and array, and the weights.

    Args:
        values: float32 ``[rows, inputs]``.
        bits: of a code, 4 or 8.
        group: inputs that share a scale.
        dtype: of scales and biases.
    """
    rows, inputs = values.shape
    grouped, largest = values.reshape(rows, -1, group), (1 << bits) - 1
    low, high = grouped.min(axis=2), grouped.max(axis=2)
    raw_scales, scales = as_stored((high - low) / largest, dtype)
    raw_biases, biases = as_stored(low, dtype)
    codes = np.clip(np.rint((grouped - biases[:, :, None]) / scales[:, :, None]), 0, largest)
    weights = codes.astype(np.float32) * scales[:, :, None] + biases[:, :, None]
    codes = codes.reshape(rows, inputs).astype(np.uint8)
    parts = {
        "weight": ("U32", words(codes, 1) if bits == 4 else codes.view("<u4")),
        "scales": (dtype, raw_scales),
        "biases": (dtype, raw_biases),
    }
    return parts, weights.reshape(rows, inputs)


def opened_mlx(parts, **settings):
    """Return the tensor and the matrix that are read from parts."""
    found, source = stored(parts)
    tensor = MLXLayout(MLXSettings(**settings)).tensor("m", found, source)
    return tensor, tensor.open(source)


FLOAT8_SETTINGS = {
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "fp8 of tensors": {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    "compressed-tensors": {
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": {
            "targets": ["Linear"], "output_activations": None,
            "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
        }},
    },
}  # fmt: skip
"""Name of a layout -> what ``config.json`` says of it."""
WRITERS = {
    "fp8": float8,
    "fp8 of tensors": lambda values: float8(values, kind="scalar", suffix="weight_scale"),
    "compressed-tensors": lambda values: float8(values, kind="channel", suffix="weight_scale", dtype="BF16"),
    "nf4": lambda values: bitsandbytes(values, nested_block=256),
    "fp4": lambda values: bitsandbytes(values, kind="fp4"),
    "mlx of 8 bits": lambda values: mlx(values, bits=8, group=32),
}
MLX_SETTINGS = {"group_size": 64, "bits": 4, "mode": "affine"}
SETTINGS = FLOAT8_SETTINGS | BITSANDBYTES_SETTINGS | {"mlx of 8 bits": {"group_size": 32, "bits": 8}}


def write_converted_folder(
    folder, model, name, *, floats=(), also=(), tensors=None, settings=None, write=None, config=None
):
    """Write a folder whose matrices are stored in fewer bits, and return module -> weights.

    Args:
        folder: to make.
        model: what ``write_llama_gguf`` returned.
        name: a key of ``SETTINGS``; of no use where both ``settings`` and ``write`` are given.
        floats: modules that stay as they are.
        also: modules of embedding and head that are stored so, too.
        tensors: name -> type and array, those to add; None instead leaves one out.
        settings: of the quantisation, instead of those of ``SETTINGS``.
        write: writes a matrix, instead of what ``WRITERS`` has.
        config: more keys of ``config.json``.
    """
    document = {"quantization_config": SETTINGS[name] if settings is None else settings}
    if "bits" in document["quantization_config"]:
        # MLX's, which are there twice.
        document["quantization"] = document["quantization_config"]
    document |= config or {}
    write_hf_folder(folder, model, config=document)
    written, all_tensors = {}, {}
    for tensor, values in hf_tensors(model).items():
        module = tensor.removesuffix(".weight")
        if (not module.endswith(LINEARS) and module not in also) or module in floats:
            all_tensors[tensor] = ("F32", values)
            continue
        parts, written[module] = (write or WRITERS[name])(values)
        all_tensors |= {f"{module}.{suffix}": part for suffix, part in parts.items()}
    all_tensors |= tensors or {}
    write_tensors(folder / "model.safetensors", {k: v for k, v in all_tensors.items() if v is not None})
    return written


def write_float_folder(folder, model, weights):
    """Write the same folder with the weights as float32."""
    return write_hf_folder(folder, model, tensors={f"{module}.weight": values for module, values in weights.items()})
