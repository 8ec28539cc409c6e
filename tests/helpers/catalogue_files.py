"""GGUF files of the catalogue's models: headers with their numbers and types, and zeros that take no room on disk."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from edge_rt.export.decoder.tensors import expected_shapes
from edge_rt.export.opening import describe_config
from edge_rt.store.catalogue_plan import file_types
from tests.helpers.family_data import FamilyCase
from tests.helpers.family_gguf import gguf_metadata
from tests.helpers.gguf_factory import BOOL, FLOAT32, INT32, STRING, UINT32, RawGGUF, raw_tensor_info

_KINDS = {bool: BOOL, int: UINT32, float: FLOAT32, str: STRING}

_NEWER_WORDS = {
    "mamba": "linear_attention", "attention": "full_attention",
    "M": "linear_attention", "*": "full_attention", "-": "mlp",
}  # fmt: skip


def newer_config(config):
    """Return a ``config.json`` with the keys of transformers 5, whose defaults are filled in."""
    theta = config.get("rope_theta", 10000.0)
    scaling = config.get("rope_scaling", {"rope_type": "default"})
    rope = config.get("rope_parameters") or {"rope_theta": theta, **scaling}
    if "partial_rotary_factor" in config:
        rope = {**rope, "partial_rotary_factor": config["partial_rotary_factor"]}
    newer = {**config, "rope_parameters": rope}
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    period = {"gemma3_text": 6, "gemma2": 2, "olmo3": 4, "gpt_oss": 2}.get(config["model_type"])
    if window and period:
        kinds = ["full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(layers)]
        newer["layer_types"] = kinds
    if "full_attn_idxs" in config:
        kinds = ["full_attention" if layer in config["full_attn_idxs"] else "conv" for layer in range(layers)]
        newer |= {"layer_types": kinds, "intermediate_size": config["block_ff_dim"]}
    if config["model_type"] == "qwen3_5_text":
        interval = config["full_attention_interval"]
        newer["layer_types"] = ["linear_attention" if (n + 1) % interval else "full_attention" for n in range(layers)]
    if config["model_type"] == "granitemoehybrid":
        newer["layer_types"] = [_NEWER_WORDS[kind] for kind in config["layer_types"]]
    if config["model_type"] == "nemotron_h":
        newer["layers_block_type"] = [_NEWER_WORDS[mark] for mark in config["hybrid_override_pattern"]]
        newer["moe_intermediate_size"] = 0
    if config["model_type"] == "gemma4_text":
        full = [str(n) for n, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
        newer["per_layer_config"] = {layer: {"head_dim": config["global_head_dim"]} for layer in full}
        newer["enable_moe_block"] = False
        turned = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
        local = {"rope_type": "default", "rope_theta": 1e4}
        newer["rope_parameters"] = {"full_attention": turned, "sliding_attention": local}
    if config["model_type"] == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": config["rope_local_base_freq"]}
        newer["rope_parameters"] = {"full_attention": rope, "sliding_attention": local}
    return newer


def with_fewer_tokens(model, most):
    """Return a model of the catalogue with a part of its vocabulary, whose strings are most of what a file costs."""
    fewer = {key: min(size, most) for key, size in model.config.items() if key.startswith("vocab_size")}
    return replace(model, config=model.config | fewer)


def tensors_of(model) -> dict[str, tuple[tuple[int, ...], gguf.GGMLQuantizationType, int]]:
    """Return shape, type and padded bytes of the tensors that the file of a model of the catalogue has, by name."""
    decoder = describe_config(model.name, model.config)
    shapes, found = expected_shapes(decoder), {}
    types = file_types(decoder, shapes, model.weights)
    config = newer_config(model.config)
    if _has_divisors(config):
        shapes = {"rope_freqs.weight": (_divided_size(config) // 2,), **shapes}
    for name, shape in joined(shapes).items():
        kind = gguf.GGMLQuantizationType[types.get(name.replace("_exps", ".0"), "F32")]
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        found[name] = shape, kind, -(-math.prod(shape) // block * block_bytes // 32) * 32
    return found


def write_header(path: Path, model) -> None:
    """Write the file of a model of the catalogue, sparse."""
    config = newer_config(model.config)
    none = np.zeros(0)
    metadata = gguf_metadata(FamilyCase(model.name, config, {}, {}, none, none, None))
    file = RawGGUF()
    for key, value in metadata.items():
        if isinstance(value, list):
            file.array(key, {bool: BOOL, int: INT32, str: STRING}[type(value[0])], value)
        else:
            file.kv(key, _KINDS[type(value)], value)
    offset = 0
    for name, (shape, kind, size) in tensors_of(model).items():
        file.infos.append(raw_tensor_info(name, shape, kind.value, offset))
        offset += size
    header = file.header()
    with path.open("wb") as stream:
        stream.write(header + bytes(-len(header) % file.alignment))
        begin = stream.tell()
        if _has_divisors(config):
            stream.write(_divisors(config).tobytes())
        stream.truncate(begin + offset)


def joined(shapes):
    """Return the shapes of a file's tensors, in which the experts of a layer are one."""
    experts = [int(found[1]) for name in shapes if (found := re.search(r"ffn_up\.(\d+)\.weight", name))]
    count = max(experts, default=-1) + 1
    found = {}
    for name, shape in shapes.items():
        whole = re.sub(r"(ffn_\w+)\.\d+\.weight", r"\1_exps.weight", name)
        found[whole] = shape if whole == name else (*shape, count)
    return found


def _divided_size(config):
    """Return how many numbers of a head are rotated with divided frequencies."""
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return config.get("global_head_dim", size)


def _divisors(config):
    """Return what a file divides the frequencies of pairs by; of Gemma 4 three pairs in four stand still."""
    size = _divided_size(config)
    found = np.ones(size // 2, np.float32)
    if config["model_type"] == "gemma4_text":
        found[size // 8 :] = 1e30
    return found


def _has_divisors(config):
    if config["model_type"] in ("llama", "exaone4"):
        return config["rope_parameters"]["rope_type"] == "llama3"
    return config["model_type"] == "gemma4_text"
