"""Small models of many families, with the logits that transformers computes for them.

``tests/data/families/<case>.json`` holds a case's ``config.json``, in the keys of transformers 5 and in the older ones,
and the names and shapes of its tensors; ``<case>.npz`` holds token ids and logits. The weights are not stored: they
follow from the names, so that the same bytes come back on every machine (:func:`tensor_values`).
``python -m tests.slow.family_oracle`` makes these files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / "data" / "families"
CASES = tuple(sorted(path.stem for path in DATA.glob("*.json")))
"""Names of all cases."""


@dataclass(frozen=True)
class FamilyCase:
    """A model and what it computes.

    Attributes:
        name: of the case.
        config: ``config.json`` as transformers 5 writes it.
        old_config: the same in the keys of older releases (``rope_theta``, ``rope_scaling``, ``torch_dtype``).
        shapes: shape of every tensor of the folder, by its name there.
        tokens: token ids, int64 [positions].
        logits: float32 [positions, vocabulary], of one pass over all tokens.
        default_keys: keys of the text model in ``old_config`` that say what transformers assumes without them.
        gguf: None, or why there is no GGUF file of this case that llama.cpp computes alike.
    """

    name: str
    config: dict[str, Any]
    old_config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    tokens: np.ndarray
    logits: np.ndarray
    gguf: str | None
    default_keys: tuple[str, ...] = ()

    @property
    def text_config(self) -> dict[str, Any]:
        """The part of ``config`` that describes the text model."""
        return self.config.get("text_config", self.config)

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all tensors of the folder, float32, by their names there."""
        return {name: tensor_values(self.name, name, shape, self.config) for name, shape in self.shapes.items()}


def load_case(name: str) -> FamilyCase:
    """Return a case by its name."""
    document = json.loads((DATA / f"{name}.json").read_text())
    with np.load(DATA / f"{name}.npz") as arrays:
        tokens, logits = arrays["tokens"], arrays["logits"]
    shapes = {tensor: tuple(shape) for tensor, shape in document["tensors"].items()}
    return FamilyCase(
        name,
        document["config"],
        document["old_config"],
        shapes,
        tokens,
        logits,
        document["gguf"],
        tuple(document["default_keys"]),
    )


def tensor_values(case: str, name: str, shape: tuple[int, ...], config: dict[str, Any]) -> np.ndarray:
    """Return the float32 values of a tensor, which float16 and bfloat16 hold exactly.

    They are sums of four bytes of SHAKE-128 over the names, as integers from -127 to 127 (standard deviation 37) times
    a power of two. Norms lie in 0.5 .. 1.5 after what the family adds to them.
    """
    count = math.prod(shape)
    drawn = np.frombuffer(hashlib.shake_128(f"{case}/{name}".encode()).digest(4 * count), np.uint8)
    # Whole columns: NumPy sums rows of four one by one.
    sums = drawn[0::4].astype(np.int32) + drawn[1::4] + drawn[2::4] + drawn[3::4]
    integers = (sums - 510) // 4
    integers = np.clip(integers, -127, 127).astype(np.float32).reshape(shape)
    scaled_embedding = config["model_type"].startswith(("gemma", "granite"))
    if name.endswith(".bias"):
        return integers * np.float32(2.0**-8)
    if name.endswith("layer_scalar"):
        return np.floor(integers / 2) * np.float32(2.0**-8) + np.float32(0.75)
    if name.endswith(("router.scale", "per_expert_scale")):
        return integers * np.float32(2.0**-7) + np.float32(1)
    if name.endswith("router.proj.weight"):
        return integers * np.float32(2.0**-5)
    if "norm" in name:
        is_gemma4 = config["model_type"].startswith("gemma4")
        # Its scores have no scale.
        size = np.float32(2.0**-3 if is_gemma4 and name.endswith("q_norm.weight") else 1.0)
        added_later = (
            config["model_type"].startswith(("gemma", "qwen3_5", "qwen3_next"))
            and not is_gemma4
            and not any(part in name for part in ("vision", "linear_attn"))
        )
        return size * (np.floor(integers / 2) * np.float32(2.0**-7) + np.float32(0.0 if added_later else 1.0))
    if "embed_tokens_per_layer" in name:
        return integers * np.float32(2.0**-7)
    if "embed_tokens" in name or name.endswith("backbone.embeddings.weight"):
        return integers * np.float32(2.0**-9 if scaled_embedding else 2.0**-6)
    if name.endswith(("sinks", "A_log", "conv1d.weight")):
        return integers * np.float32(2.0**-6)
    if name.endswith((".mamba.D", ".mixer.D")):
        return integers * np.float32(2.0**-7) + np.float32(1)
    if name.endswith("dt_bias"):
        return integers * np.float32(2.0**-5)
    if name.endswith(("expert_bias", "proj_bias", "correction_bias")):
        return integers * np.float32(2.0**-7)
    if name.endswith("conv.conv.weight"):
        return integers * np.float32(2.0**-6)
    if any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "lm_head")):
        return integers * np.float32(2.0**-8)
    return integers * np.float32(2.0**-9)


def text_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of the text model, by the names that they have in a model of text alone."""
    found = {}
    for name, values in tensors.items():
        if "vision" in name or "multi_modal_projector" in name:
            continue
        for prefix in ("model.language_model.", "language_model.model."):
            if name.startswith(prefix):
                name = "model." + name.removeprefix(prefix)
        found[name.removeprefix("language_model.")] = values
    return found


def checksum(tensors: dict[str, np.ndarray]) -> str:
    """Return SHA-256 over names and little-endian float32 values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + np.ascontiguousarray(tensors[name], "<f4").tobytes())
    return digest.hexdigest()
