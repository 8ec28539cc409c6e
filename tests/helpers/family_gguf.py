"""GGUF files of the family cases, in the conventions of llama.cpp's converter: keys, names, order of rows, values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.helpers.family_data import FamilyCase, text_tensors
from tests.helpers.gguf_factory import CHATML, _add_value, _quantised, _tokenizer_metadata, vocabulary

ARCHITECTURES = {
    "cohere2": "cohere2", "ernie4_5": "ernie4_5", "exaone4": "exaone4", "gemma2": "gemma2", "gemma3": "gemma3",
    "gemma3_text": "gemma3", "gemma4_text": "gemma4", "granite": "granite", "granitemoe": "granitemoe",
    "granitemoehybrid": "granitehybrid",
    "falcon_h1": "falcon-h1", "nemotron_h": "nemotron_h_moe", "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next", "gpt_oss": "gpt-oss", "lfm2_moe": "lfm2moe", "olmoe": "olmoe",
    "qwen3_moe": "qwen3moe", "qwen3_5_text": "qwen35", "hunyuan_v1_dense": "hunyuan-dense", "lfm2": "lfm2",
    "llama": "llama",
    "ministral3": "mistral3", "mistral": "llama", "mistral3": "mistral3", "olmo2": "olmo2", "olmo3": "olmo2",
    "phi3": "phi3", "qwen2": "qwen2", "qwen3": "qwen3", "smollm3": "smollm3", "stablelm": "stablelm",
}  # fmt: skip
PLAIN = ("norm", "conv.conv", "conv1d", "gate_inp", "ssm_a", "ssm_d")
"""Parts of the names of tensors that are floats in every file."""
PERMUTED = ("llama", "granite", "granitemoe", "granitehybrid", "smollm3", "mistral3")
"""Architectures whose q and k rows the converter brings from split halves into adjacent pairs."""


def write_gguf(
    path: Path,
    case: FamilyCase,
    *,
    weight_type: str = "F32",
    embedding_type: str | None = None,
    types: Mapping[str, str] | None = None,
    extra_metadata: Mapping[str, object] | None = None,
    drop_metadata: tuple[str, ...] = (),
    extra_tensors: Mapping[str, np.ndarray] | None = None,
    drop_tensors: tuple[str, ...] = (),
    raw: Mapping[str, tuple[np.ndarray, str]] | None = None,
) -> Path:
    """Write a case as a GGUF file and return its path.

    Args:
        path: file to write.
        case: what to write; ``case.gguf`` says whether llama.cpp computes the same.
        weight_type: ggml type of matrices: F32, F16, BF16, or one that the gguf package quantises (Q8_0, Q4_0, ...).
        embedding_type: of ``token_embd.weight`` and ``output.weight``; default: ``weight_type``.
        types: exceptions, by the names of tensors in the file.
        extra_metadata: keys to add or replace.
        drop_metadata: keys to leave out.
        extra_tensors: tensors to add, by their names in the file.
        drop_tensors: tensors to leave out.
        raw: bytes of tensors, uint8 ``[..., row bytes]``, and their ggml types.
    """
    tensors = gguf_tensors(case) | dict(extra_tensors or {})
    tensors = {name: array for name, array in tensors.items() if name not in drop_tensors}
    values = gguf_metadata(case) | dict(extra_metadata or {})
    writer = gguf.GGUFWriter(path, values.pop("general.architecture"))
    for key, value in values.items():
        if key not in drop_metadata:
            _add_value(writer, key, value)
    for name, array in tensors.items():
        if name in (raw or {}):
            blocks, type_name = raw[name]
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[type_name])
            continue
        matrix_type = embedding_type if name in ("token_embd.weight", "output.weight") else None
        is_plain = array.ndim == 1 or name.endswith("bias") or any(part in name for part in PLAIN)
        chosen = (types or {}).get(name) or ("F32" if is_plain else matrix_type or weight_type)
        # As the converter does with rows that are no whole blocks.
        chosen = chosen if chosen in ("F16", "BF16") or array.shape[-1] % 32 == 0 else "F32"
        writer.add_tensor(name, _quantised(name, array, chosen), raw_dtype=gguf.GGMLQuantizationType[chosen])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def head_dim(config: Mapping[str, Any]) -> int:
    """Return the size of a head."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _expert_metadata(config: Mapping[str, Any]) -> dict[str, object]:
    if "num_experts_per_tok" not in config:
        return {}
    found = {
        "expert_count": config.get("num_experts", config.get("num_local_experts")),
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
    }
    if "num_dense_layers" in config:
        found |= {"leading_dense_block_count": config["num_dense_layers"], "expert_gating_func": 2}
    return found


def lfm2_size(config: Mapping[str, Any]) -> int:
    """Return the features of a feed-forward of LFM2."""
    size, multiple = config["intermediate_size"], config.get("block_multiple_of")
    if not config.get("block_auto_adjust_ff_dim"):
        return size
    return -(-int(config["block_ffn_dim_multiplier"] * int(2 * size / 3)) // multiple) * multiple


# --- tensors --------------------------------------------------------------------------------------


def gguf_tensors(case: FamilyCase) -> dict[str, np.ndarray]:
    """Return the float32 tensors of the file by their names there, outermost dimension first."""
    config = case.text_config
    arch = _architecture_of(config)
    layers = num_layers(config)
    names = gguf.get_tensor_name_map(_architecture(arch), layers)
    # Where every layer has experts, the map has no plain feed-forwards.
    plain = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    found = _rope_tensors(config, arch)
    for name, values in _stacked(text_tensors(case.tensors())).items():
        suffixes = (".weight", ".bias")
        if "in_proj_qkvz" in name:
            found |= _fused_by_head(name, values, config)
            continue
        mapped = names.get_name(name, try_suffixes=suffixes) or plain.get_name(name, try_suffixes=suffixes)
        # Of Gemma 4's router the map has the matrix alone.
        for theirs, ours in (("router.scale", "ffn_gate_inp"), ("router.per_expert_scale", "ffn_down_exps")):
            if name.endswith(theirs):
                mapped = f"blk.{name.split('.')[2]}.{ours}.scale"
        if mapped is None:
            raise ValueError(f"{case.name}: {name} has no name in {arch}")
        # Falcon-H1's norm has no end, because the whole of its name is in the map.
        if not mapped.endswith(("weight", "bias", ".scale", "ssm_a", "ssm_d")) and not (
            arch == "falcon-h1" and "norm" in mapped
        ):
            mapped = f"{mapped}.weight"
        found[mapped] = _converted(name, values, arch, config)
    return found


def _architecture_of(config: Mapping[str, Any]) -> str:
    """Return GGUF's name of an architecture; that of Nemotron says whether there are experts."""
    if config["model_type"] == "nemotron_h" and "moe" not in config["layers_block_type"]:
        return "nemotron_h"
    return ARCHITECTURES[config["model_type"]]


def _architecture(name: str) -> gguf.MODEL_ARCH:
    return next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)


def _stacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors with StableLM's norms of single heads stacked, and experts; gate and up of these apart."""
    found: dict[str, Any] = {}
    for name, values in tensors.items():
        if ".norms." in name:
            found.setdefault(name.split(".norms.")[0] + ".weight", []).append(values)
        elif one := re.fullmatch(r"(.*\.experts)\.(\d+)(\..*)", name):
            whole = one[1].replace("backbone.", "model.").replace(".mixer.", ".mlp.") + one[3]
            for theirs, ours in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
                whole = whole.replace(f"feed_forward.experts.{theirs}", f"mlp.experts.{ours}")
            found.setdefault(whole, {})[int(one[2])] = values
        elif ".mlp.experts." in name:
            found |= _of_gpt_oss(name, values)
        elif "shared_mlp" in name:
            module = "mlp.shared_expert" if any("block_sparse_moe" in one for one in tensors) else "mlp"
            parts = np.split(values, 2) if "input" in name else [values]
            kinds = ("gate", "up") if "input" in name else ("down",)
            prefix = name.split("shared_mlp")[0] + module
            found |= {f"{prefix}.{kind}_proj.weight": part for kind, part in zip(kinds, parts, strict=True)}
        elif name.endswith("input_linear.weight"):
            gate, up = np.split(values, 2, axis=1)
            found |= {name.replace("block_sparse_moe.input_linear", f"mlp.experts.{kind}_proj"): part
                      for kind, part in (("gate", gate), ("up", up))}  # fmt: skip
        else:
            name = name.replace(".expert_bias", ".expert_bias.bias").replace("correction_bias", "correction.bias")
            found[name.replace(".dt_bias", ".dt.bias" if ".mixer." in name else ".dt_proj.bias")] = values
    stacked = {name: [values[n] for n in sorted(values)] if isinstance(values, dict) else values
               for name, values in found.items()}  # fmt: skip
    return {name: np.stack(values) if isinstance(values, list) else values for name, values in stacked.items()}


def _of_gpt_oss(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the tensors of the experts of gpt-oss, outputs first; gate and up, which take turns, apart."""
    suffix, rows = ("bias", values) if name.endswith("_bias") else ("weight", values.swapaxes(1, 2))
    module = name.removesuffix("_bias")
    if "gate_up" not in name:
        return {f"{module}.{suffix}": np.ascontiguousarray(rows)}
    return {
        module.replace("gate_up", kind) + f".{suffix}": np.ascontiguousarray(rows[:, first::2])
        for first, kind in enumerate(("gate", "up"))
    }


def _rates(logs: np.ndarray) -> np.ndarray:
    """Return rates of decay, rounded once: numpy's exponentials of float32 differ from one CPU to another."""
    return (-np.exp(logs.astype(np.float64))).astype(np.float32)


def _of_state_space(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    if "conv1d.weight" in name:
        return values.squeeze(1)
    if name.endswith(("A_log", ".D")):
        return (_rates(values) if name.endswith("A_log") else values)[:, None]
    groups = config["n_groups"] if ".mixer." in name else config["mamba_n_groups"]
    return values.reshape(groups, -1) if "norm" in name else values


def _with_multipliers(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Return a matrix of Falcon-H1 with the multipliers that the converter folds into it."""
    inner, states = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    attends = config["attention_in_multiplier"]
    factors = {
        "gate_proj": config["mlp_multipliers"][:1], "down_proj": config["mlp_multipliers"][1:],
        "k_proj": [config["key_multiplier"], attends], "q_proj": [attends], "v_proj": [attends],
        "o_proj": [config["attention_out_multiplier"]], "out_proj": [config["ssm_out_multiplier"]],
        "in_proj": [config["ssm_in_multiplier"]], "lm_head": [config["lm_head_multiplier"]],
        "embed_tokens": [config["embedding_multiplier"]],
    }  # fmt: skip
    module = name.removesuffix(".weight")
    for one in next((some for key, some in factors.items() if module.endswith(("." + key, key))), []):
        values = values * np.float32(one)
    if module.endswith("in_proj"):
        rows = np.repeat(np.array(config["ssm_multipliers"], np.float32),
                         [inner, inner, states, states, config["mamba_n_heads"]])  # fmt: skip
        values = values * rows[:, None]
    return values


def _fused_by_head(name: str, values: np.ndarray, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return what Qwen3-Next's largest matrix holds, as the converter takes it apart."""
    groups, heads, dk, dv = (config[f"linear_{key}"] for key in
                             ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))  # fmt: skip
    wide = heads // groups * dv
    q, k, v, z = (
        part.reshape(-1, values.shape[1])
        for part in np.split(values.reshape(groups, -1, values.shape[1]), [dk, 2 * dk, 2 * dk + wide], axis=1)
    )
    layer = "blk." + name.split(".layers.")[1].split(".", maxsplit=1)[0]
    return {f"{layer}.attn_qkv.weight": np.concatenate([q, k, v]), f"{layer}.attn_gate.weight": z}


def _tiled(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Return a tensor of a gated delta rule in the order of GGUF: head v of values has head v mod n of keys."""
    groups, heads, size = (config[f"linear_{key}"] for key in
                           ("num_key_heads", "num_value_heads", "value_head_dim"))  # fmt: skip
    order = np.arange(heads).reshape(groups, -1).T.reshape(-1)
    rows = (order[:, None] * size + np.arange(size)).reshape(-1)
    before = 2 * groups * config["linear_key_head_dim"]
    if "in_proj_qkv" in name or "conv1d" in name:
        return np.concatenate([values[:before], values[before:][rows]])
    if "in_proj_z" in name:
        return values[rows]
    if "out_proj" in name:
        return np.ascontiguousarray(values[:, rows])
    if name.endswith("A_log"):
        return _rates(values[order])
    return values if "norm" in name else values[order]


def _converted(name: str, values: np.ndarray, arch: str, config: Mapping[str, Any]) -> np.ndarray:
    if (
        arch in ("gemma2", "gemma3", "qwen35", "qwen35moe", "qwen3next")
        and name.endswith("norm.weight")
        and "linear_attn" not in name
    ):
        return values + np.float32(1)
    if arch == "falcon-h1":
        values = _with_multipliers(name, values, config)
    if "mamba." in name or ".mixer." in name:
        return _of_state_space(name, values, config)
    if arch == "qwen3next" and "linear_attn" in name:
        return _rates(values) if name.endswith("A_log") else values.squeeze(1) if "conv1d" in name else values
    if "linear_attn" in name:
        return _tiled(name, values.squeeze(1) if "conv1d" in name else values, config)
    if arch in PERMUTED and ("q_proj" in name or "k_proj" in name):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
    return values.squeeze(1) if name.endswith("conv.conv.weight") else values


def _rope_tensors(config: Mapping[str, Any], arch: str) -> dict[str, np.ndarray]:
    if "rope_parameters" not in config:
        return {}
    rope = full_rope(config)
    if arch == "gemma4":
        size = full_heads(config)[1]
        turning = int(size * rope["partial_rotary_factor"] / 2)
        return {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (size // 2 - turning), np.float32)}
    if rope["rope_type"] == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32) for kind in ("long", "short")
        }
    if rope["rope_type"] == "llama3" and arch in ("llama", "exaone4"):
        return {"rope_freqs.weight": _llama3_divisors(rope, head_dim(config))}
    return {}


def _llama3_divisors(rope: Mapping[str, Any], size: int) -> np.ndarray:
    """Return what llama3 scaling divides every frequency by, float32 [size / 2]."""
    divisors = []
    for pair in range(size // 2):
        rotations = rope["original_max_position_embeddings"] / (2 * math.pi * rope["rope_theta"] ** (2 * pair / size))
        slow, fast = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = min(max((rotations - slow) / (fast - slow), 0.0), 1.0)
        divisors.append(1 / ((1 - kept) / rope["factor"] + kept))
    return np.array(divisors, np.float32)


# --- metadata -------------------------------------------------------------------------------------


def full_heads(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of kv heads and the size of heads of Gemma 4's layers with full attention."""
    layer = next(iter(config["per_layer_config"].values()))
    return layer.get("num_key_value_heads", config["num_key_value_heads"]), layer["head_dim"]


def full_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rope parameters of all layers, or of those with full attention."""
    rope = config["rope_parameters"]
    return rope.get("full_attention", rope)


def gguf_metadata(case: FamilyCase) -> dict[str, object]:
    """Return the keys of the file and their values."""
    config = case.text_config
    arch = _architecture_of(config)
    found: dict[str, object] = {
        "block_count": num_layers(config),
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("intermediate_size"),
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
    }
    if arch.startswith("nemotron_h"):
        return _named(found | _nemotron_metadata(config), arch, config)
    found["rope.freq_base"] = float(full_rope(config)["rope_theta"])
    if "rms_norm_eps" in config:
        found["attention.layer_norm_rms_epsilon"] = float(config["rms_norm_eps"])
    if "norm_eps" in config:
        found["attention.layer_norm_rms_epsilon"] = float(config["norm_eps"])
    if "layer_norm_eps" in config:
        found["attention.layer_norm_epsilon"] = float(config["layer_norm_eps"])
    if config.get("head_dim") and not arch.startswith("granite"):
        found |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    if arch in PERMUTED:
        found["rope.dimension_count"] = head_dim(config)
    if arch in (*PERMUTED, "exaone4", "cohere2"):
        found["vocab_size"] = config["vocab_size"]
    if arch in ("gemma2", "stablelm") and found["rope.freq_base"] == 10000.0:
        del found["rope.freq_base"]  # the default of readers; the converter leaves it out
    found |= _rope_metadata(config, arch) | _window_metadata(config, arch) | _family_metadata(config, arch)
    return _named(found, arch, config)


def num_layers(config: Mapping[str, Any]) -> int:
    """Return how many layers there are."""
    return config.get("num_hidden_layers") or len(config["layers_block_type"])


def _named(found: Mapping[str, object], arch: str, config: Mapping[str, Any]) -> dict[str, object]:
    found = {key: value for key, value in found.items() if value is not None}
    tokens, merges = vocabulary(config["vocab_size"])
    return (
        {"general.architecture": arch, "general.name": "Test of a family", "general.license": "apache-2.0"}
        | {f"{arch}.{key}": value for key, value in found.items()}
        | _tokenizer_metadata(tokens, merges, "smollm", CHATML)
    )


def _nemotron_metadata(config: Mapping[str, Any]) -> dict[str, object]:
    kinds = config["layers_block_type"]
    sparse = "moe" in kinds
    sizes = {"moe": config["moe_intermediate_size"], "mlp": config["intermediate_size"]}
    found: dict[str, object] = {
        "attention.head_count_kv": [config["num_key_value_heads"] * (kind == "full_attention") for kind in kinds],
        "feed_forward_length": [sizes.get(kind, 0) for kind in kinds],
        "attention.layer_norm_rms_epsilon": float(config["layer_norm_epsilon"]),
        "attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"],
        "vocab_size": config["vocab_size"], "rope.scaling.finetuned": False, "rope.dimension_count": config["head_dim"],
        "rope.freq_base": 10000.0,
        "ssm.conv_kernel": config["conv_kernel"], "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"], "ssm.time_step_rank": config["mamba_num_heads"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
    }  # fmt: skip
    if sparse:
        found |= {
            "expert_count": config["n_routed_experts"], "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": sizes["moe"], "expert_shared_count": config["n_shared_experts"],
            "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
            "expert_weights_norm": config["norm_topk_prob"],
            "expert_weights_scale": float(config["routed_scaling_factor"]),
            "expert_group_count": config["n_group"], "expert_group_used_count": config["topk_group"],
            "moe_latent_size": config["moe_latent_size"],
        }  # fmt: skip
    return found


def _rope_metadata(config: Mapping[str, Any], arch: str) -> dict[str, object]:
    rope = full_rope(config)
    found: dict[str, object] = {}
    if rope["rope_type"] in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        for key, name in (("attention_factor", "yarn_attn_factor"), ("beta_fast", "yarn_beta_fast"),
                          ("beta_slow", "yarn_beta_slow")):  # fmt: skip
            if rope.get(key) is not None:
                found[f"rope.scaling.{name}"] = float(rope[key])
    if "sliding_attention" in config["rope_parameters"]:
        found["rope.freq_base_swa"] = float(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if arch == "phi3":
        original = rope.get("original_max_position_embeddings", config["max_position_embeddings"])
        found["rope.dimension_count"] = int(head_dim(config) * rope.get("partial_rotary_factor", 1.0))
        found["rope.scaling.original_context_length"] = original
        if rope["rope_type"] == "longrope":
            scale = config["max_position_embeddings"] / original
            found["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
    if arch == "hunyuan-dense" and rope["rope_type"] == "dynamic":
        size = head_dim(config)
        found["rope.freq_base"] = rope["rope_theta"] * rope["alpha"] ** (size / (size - 2))
        found |= {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}
        # A context cannot be derived from alpha; the converter writes that of the releases.
        found |= {"context_length": 1 << 18, "rope.scaling.original_context_length": 1 << 18}
    return found


def _window_metadata(config: Mapping[str, Any], arch: str) -> dict[str, object]:
    window = config.get("sliding_window")
    if arch == "phi3":
        return {"attention.sliding_window": window or 0}
    if window is None or arch not in ("gemma2", "gemma3", "olmo2", "exaone4", "cohere2", "gpt-oss"):
        return {}
    found: dict[str, object] = {"attention.sliding_window": window}
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    usual = {"gemma2": 2, "gpt-oss": 2, "gemma3": 6, "cohere2": 4}.get(arch)
    if usual is None or sliding != [(layer + 1) % usual != 0 for layer in range(len(sliding))]:
        found["attention.sliding_window_pattern"] = sliding
    return found


def _family_metadata(config: Mapping[str, Any], arch: str) -> dict[str, object]:
    if arch == "gemma4":
        kv_heads, size = full_heads(config)
        sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
        own = len(sliding) - config["num_kv_shared_layers"]
        wide = config["intermediate_size"] * (2 if config["use_double_wide_mlp"] else 1)
        found: dict[str, object] = {
            "attention.key_length": size, "attention.value_length": size,
            "attention.key_length_swa": config["head_dim"], "attention.value_length_swa": config["head_dim"],
            "rope.dimension_count": size, "rope.dimension_count_swa": config["head_dim"],
            "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": sliding,
            "attention.shared_kv_layers": config["num_kv_shared_layers"],
            "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
            "final_logit_softcapping": config["final_logit_softcapping"],
        }  # fmt: skip
        if config["enable_moe_block"]:
            found |= {"expert_count": config["num_experts"], "expert_used_count": config["top_k_experts"],
                      "expert_feed_forward_length": config["moe_intermediate_size"]}  # fmt: skip
        if wide != config["intermediate_size"]:
            found["feed_forward_length"] = [config["intermediate_size"] if layer < own else wide
                                            for layer in range(len(sliding))]  # fmt: skip
        if kv_heads != config["num_key_value_heads"]:
            found["attention.head_count_kv"] = [config["num_key_value_heads"] if one else kv_heads for one in sliding]
        return found
    if arch in ("gemma2", "gemma3"):
        return {
            "attn_logit_softcapping": config.get("attn_logit_softcapping"),
            "final_logit_softcapping": config.get("final_logit_softcapping"),
        }
    hybrid: dict[str, object] = {}
    if arch == "granitehybrid":
        has_heads = [kind == "full_attention" for kind in config["layer_types"]]
        hybrid = {
            "attention.head_count_kv": [config["num_key_value_heads"] * is_full for is_full in has_heads],
            "expert_shared_feed_forward_length": config["shared_intermediate_size"],
            "ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"],
            "ssm.group_count": config["mamba_n_groups"], "ssm.time_step_rank": config["mamba_n_heads"],
            "ssm.inner_size": config["mamba_n_heads"] * config["mamba_d_head"],
            "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
        }  # fmt: skip
        if not config["num_local_experts"]:
            hybrid |= {"feed_forward_length": config["shared_intermediate_size"],
                       "expert_count": None, "expert_used_count": None}  # fmt: skip
    if arch.startswith("granite"):
        return (
            _expert_metadata(config)
            | hybrid
            | {
                "attention.scale": float(config["attention_multiplier"]),
                "embedding_scale": float(config["embedding_multiplier"]),
                "residual_scale": float(config["residual_multiplier"]),
                "logit_scale": float(config["logits_scaling"]),
            }
        )
    if arch == "mistral3":
        rope = config["rope_parameters"]
        return {
            "rope.scaling.yarn_log_multiplier": float(rope["mscale_all_dim"]),
            "attention.temperature_scale": float(rope["llama_4_scaling_beta"]),
        }
    if arch == "stablelm":
        rotated = int(head_dim(config) * config["rope_parameters"]["partial_rotary_factor"])
        return {"use_parallel_residual": config["use_parallel_residual"], "rope.dimension_count": rotated}
    if arch in ("qwen35", "qwen35moe", "qwen3next"):
        heads, wide = config["linear_num_value_heads"], config["linear_value_head_dim"]
        sections = full_rope(config).get("mrope_section")
        linear = [kind == "linear_attention" for kind in config["layer_types"]]
        usual = [(layer + 1) % 3 != 0 for layer in range(len(linear))]
        return _expert_metadata(config) | {
            "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
            "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": heads,
            "ssm.inner_size": heads * wide, "rope.dimension_sections": None if sections is None else [*sections, 0],
            "rope.dimension_count": int(config["head_dim"] * full_rope(config)["partial_rotary_factor"]),
            "attention.recurrent_layers": None if linear == usual else linear, "full_attention_interval": 3,
        }  # fmt: skip
    if arch == "falcon-h1":
        return {
            "vocab_size": config["vocab_size"], "ssm.conv_kernel": config["mamba_d_conv"],
            "ssm.state_size": config["mamba_d_state"], "ssm.group_count": config["mamba_n_groups"],
            "ssm.time_step_rank": config["mamba_n_heads"], "ssm.inner_size": config["mamba_d_ssm"],
        }  # fmt: skip
    if arch in ("qwen3moe", "olmoe", "gpt-oss"):
        return _expert_metadata(config)
    if arch in ("lfm2", "lfm2moe"):
        heads = [config["num_key_value_heads"] * (kind != "conv") for kind in config["layer_types"]]
        return {
            **_expert_metadata(config),
            "attention.head_count_kv": heads, "feed_forward_length": lfm2_size(config),
            "shortconv.l_cache": config["conv_L_cache"], "vocab_size": config["vocab_size"],
        }  # fmt: skip
    if arch == "cohere2":
        return {
            "logit_scale": float(config["logit_scale"]), "rope.dimension_count": head_dim(config),
            "rope.scaling.type": "none",
        }  # fmt: skip
    return {}
