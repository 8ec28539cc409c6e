"""Descriptions of ``config.json`` alone, as a model's is checked before its weights are fetched."""

from __future__ import annotations

from pathlib import Path

from edge_rt.export.families.folder import describe_folder
from edge_rt.export.sources.hf_folder import HFFolder
from edge_rt.export.sources.safetensors_folder import SafetensorsFolder

SMALL = {
    "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 8, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 264, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
}  # fmt: skip


def described(document):
    """Return the description of the model of a ``config.json``."""
    return describe_folder(HFFolder(Path("m"), document, SafetensorsFolder((), {})))[1]


def small(model_type, **keys):
    """Return the description of a small model with some more keys; None stands for null."""
    return described({**SMALL, "model_type": model_type, **keys})
