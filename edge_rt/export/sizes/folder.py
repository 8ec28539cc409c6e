"""The size of a package that a folder would become if edge-rt could run its model: from headers alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InputError, InvalidModelFile, ModelNotFound, UnsupportedModel
from edge_rt.export.families.registry import MODEL_TYPES, require_decoder
from edge_rt.export.sizes.size import JSON_TOKEN_BYTES, MATRIX_BITS, SizeEstimate, checked_config, estimated
from edge_rt.export.sources.hf_templates import MAX_JSON_BYTES
from edge_rt.export.sources.packed_config import read_packed_settings
from edge_rt.export.sources.safetensors_header import WEIGHTS_PATTERN, read_json, read_tensors
from edge_rt.package.manifest import ModelConfig
from edge_rt.system.checkpoint_names import CONFIG_FILE, TOKENIZER_FILE

_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.([0-9]{1,6})\.")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_FULL_LAYER_EVERY: Final = {"gemma2": 2, "gemma3_text": 6}
"""Kind of model -> n: one in n layers has no window, if the configuration does not say."""
_QWEN_WINDOW_FROM: Final = 28  # the first windowed layer of its family, if the configuration does not say


def estimate_foreign_folder(folder: Path, refusal: UnsupportedModel) -> SizeEstimate:
    """Return the package that ``config.json`` and ``*.safetensors`` would become; only headers are read.

    Args:
        folder: holds them.
        refusal: why they cannot be exported.

    Raises:
        ModelNotFound: there are no weights.
        InvalidModelFile: a file is malformed, or part of the weights is missing.
        UnsupportedModel: the configuration lacks the usual fields.
        StorageError: a file cannot be read.
    """
    document = read_json(folder / CONFIG_FILE, MAX_JSON_BYTES)
    require_decoder(folder.name, document)
    if next(folder.glob(WEIGHTS_PATTERN), None) is None:
        raise ModelNotFound(
            f"{folder} holds no weights.",
            f"{CONFIG_FILE} is there, {WEIGHTS_PATTERN} is missing.",
            "Fetch the model's safetensors files, too, or give a GGUF file.",
        )
    # Multimodal models keep the configuration of their language model in a section of its own.
    text = document.get("text_config")
    numbers = {**document, **text} if isinstance(text, dict) else document
    tensors = read_tensors(folder)
    shapes = tensors.shapes
    architectures = document.get("architectures")
    name = str(architectures[0] if isinstance(architectures, list) and architectures else "unknown")
    kind = str(numbers.get("model_type", name))
    tied = bool(numbers.get("tie_word_embeddings", not any("lm_head" in key for key in shapes)))
    windows, window_layers = _windows(numbers, kind)
    config = checked_config(
        folder.name,
        kind,
        hidden=numbers.get("hidden_size"),
        layers=numbers.get("num_hidden_layers"),
        heads=numbers.get("num_attention_heads"),
        kv_heads=numbers.get("num_key_value_heads"),
        head_dim=numbers.get("head_dim"),
        inner=numbers.get("intermediate_size"),
        vocabulary=numbers.get("vocab_size"),
        context=numbers.get("max_position_embeddings"),
        window=windows,
        tied=tied,
        shapes=shapes,
        where=f"{folder.name}/{CONFIG_FILE}",
    )
    _require_layers(folder, config, shapes)
    notes = [f"Estimated from headers: {MATRIX_BITS}."]
    if kind in MODEL_TYPES:
        notes.append(f"edge-rt cannot run this model yet: {refusal.what} {refusal.numbers}")
    else:
        notes.append(f"edge-rt cannot run the architecture {kind:.40} yet ({name:.60}).")
    experts = max((value for key in _EXPERTS if type(value := numbers.get(key)) is int), default=0)
    if tensors.are_packed:
        if experts > 1:
            raise UnsupportedModel(
                f"{folder.name}: the size of this model cannot be estimated.",
                f"It has {experts} experts in each layer, and its matrices are quantised already.",
                "Give the checkpoint that it was quantised from.",
            )
        shapes = _usual_shapes(config)
        config = replace(config, num_parameters=sum(map(math.prod, shapes.values())))
        notes.append(
            f"These weights are quantised already{_packing(folder.name, document)}: sizes are those of a usual "
            f"model with the dimensions in {CONFIG_FILE}."
        )
    elif experts > 1:
        notes.append(
            f"A mixture of {experts} experts, which edge-rt cannot run yet: all of them are counted as weights, and as "
            "read for every token, though a token needs only some; what passes take is that of a dense model."
        )
    tokenizer = folder / TOKENIZER_FILE
    size = tokenizer.stat().st_size if tokenizer.is_file() else JSON_TOKEN_BYTES * config.vocab_size
    return estimated(config, shapes, size, window_layers, tuple(notes))


def _packing(name: str, document: Mapping[str, Any]) -> str:
    """Return a remark about weights that are packed in a way that edge-rt does not read; empty if it does."""
    try:
        found = read_packed_settings(name, document)
    except InputError:
        found = None
    return "" if found is not None else ", in a form that edge-rt does not read"


def _require_layers(folder: Path, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights that lack whole layers; weights with other names for layers are not checked.

    Raises:
        InvalidModelFile: layers are missing.
    """
    found = {int(match[1]) for name in shapes if (match := _LAYER.search(name))}
    missing = [layer for layer in range(config.num_layers) if layer not in found] if found else []
    if missing or not shapes:
        count = f"{len(missing)} of {config.num_layers} layers" if shapes else "All tensors"
        raise InvalidModelFile(
            f"{folder.name} lacks weights of the model that {CONFIG_FILE} describes.",
            f"{count} are missing" + (f", the first is layer {missing[0]}." if missing else "."),
            "Fetch the model again, all of its files.",
        )


def _usual_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a llama-like model with these dimensions."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, pairs = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (config.vocab_size, hidden), "norm": (hidden,)}
    if not config.tied_embedding:
        shapes["lm_head"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        shapes |= {
            f"{layer}.q": (heads, hidden), f"{layer}.k": (pairs, hidden), f"{layer}.v": (pairs, hidden),
            f"{layer}.o": (hidden, heads), f"{layer}.gate": (inner, hidden), f"{layer}.up": (inner, hidden),
            f"{layer}.down": (hidden, inner), f"{layer}.norm": (hidden,), f"{layer}.other_norm": (hidden,),
        }  # fmt: skip
    return shapes


def _windows(numbers: Mapping[str, Any], kind: str) -> tuple[int, int]:
    """Return the sliding window, and how many layers have it."""
    window, layers = numbers.get("sliding_window"), numbers.get("num_hidden_layers")
    is_qwen = kind.startswith(("qwen2", "qwen3"))
    used = numbers.get("use_sliding_window", not is_qwen)
    if type(window) is not int or window < 1 or not used or type(layers) is not int:
        return 0, 0
    kinds = numbers.get("layer_types")
    pattern = numbers.get("sliding_window_pattern", _FULL_LAYER_EVERY.get(kind))
    first = numbers.get("max_window_layers", _QWEN_WINDOW_FROM if is_qwen else 0)
    if isinstance(kinds, list):
        count = sum(kind == "sliding_attention" for kind in kinds)
    elif type(pattern) is int and pattern > 0:
        count = layers - layers // pattern
    else:
        # Earlier layers have full attention, whatever the name says.
        count = layers - first if type(first) is int and first >= 0 else layers
    return (window, min(count, layers)) if count > 0 else (0, 0)
