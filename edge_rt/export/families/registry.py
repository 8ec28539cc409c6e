"""All families, and which of them a checkpoint belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from edge_rt.errors import UnsupportedModel
from edge_rt.export.families.ernie4_5 import ERNIE4_5
from edge_rt.export.families.exaone4 import EXAONE4
from edge_rt.export.families.experts import GRANITEMOE, LFM2MOE, OLMOE, QWEN3MOE
from edge_rt.export.families.falcon_h1 import FALCON_H1
from edge_rt.export.families.family import Family
from edge_rt.export.families.gemma2 import GEMMA2
from edge_rt.export.families.gemma3 import GEMMA3
from edge_rt.export.families.gemma4 import GEMMA4
from edge_rt.export.families.gpt_oss import GPT_OSS
from edge_rt.export.families.granite import GRANITE
from edge_rt.export.families.granite_hybrid import GRANITE_HYBRID
from edge_rt.export.families.hunyuan import HUNYUAN
from edge_rt.export.families.lfm2 import LFM2
from edge_rt.export.families.llama import LLAMA
from edge_rt.export.families.ministral3 import MINISTRAL3
from edge_rt.export.families.nemotron_h import NEMOTRON_H
from edge_rt.export.families.olmo2 import OLMO2, OLMO3
from edge_rt.export.families.phi3 import PHI3
from edge_rt.export.families.qwen2 import QWEN2
from edge_rt.export.families.qwen3 import QWEN3
from edge_rt.export.families.qwen35 import QWEN35
from edge_rt.export.families.qwen35moe import QWEN3NEXT, QWEN35MOE
from edge_rt.export.families.smollm3 import SMOLLM3
from edge_rt.export.families.stablelm import STABLELM

FAMILIES: Final[tuple[Family, ...]] = (
    LLAMA,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    PHI3,
    MINISTRAL3,
    SMOLLM3,
    GRANITE,
    OLMO2,
    OLMO3,
    EXAONE4,
    ERNIE4_5,
    HUNYUAN,
    STABLELM,
    LFM2,
    QWEN3MOE,
    OLMOE,
    GRANITEMOE,
    LFM2MOE,
    GPT_OSS,
    QWEN35,
    GRANITE_HYBRID,
    FALCON_H1,
    NEMOTRON_H,
    QWEN35MOE,
    QWEN3NEXT,
)
"""Every family that edge-rt runs."""
MODEL_TYPES: Final = {name: family for family in FAMILIES for name in family.model_types}
"""``model_type`` of a ``config.json`` -> family."""
ARCHITECTURES: Final = {name: family for family in FAMILIES for name in family.architectures}
"""``general.architecture`` of a GGUF file -> family."""
REASONS: Final = {
    "gemma4_assistant": "It drafts for a Gemma 4 model, and such drafts are not read",
    "jamba": "Its state spaces have a decay for each feature (Mamba-1): edge-rt has those with one for each head",
    "cohere2": "Its layers are parallel blocks (attention and feed-forward side by side): edge-rt has none",
}
"""Architecture of files of either kind that is refused -> what of it no description can state."""


_ENCODERS: Final = re.compile(r".*bert.*|.*electra.*|mpnet|longformer|t5encoder")
"""Architectures of files of either kind that compute states of a whole text at once."""
_ENCODER_CLASSES: Final = re.compile(
    r".*For(?:MaskedLM|PreTraining|SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice)"
)


def is_encoder(architecture: str) -> bool:
    """Return whether an architecture, of a ``config.json`` or a GGUF file, is known to be one of encoders."""
    return _ENCODERS.fullmatch(architecture) is not None


def require_decoder(where: str, config: Mapping[str, Any]) -> None:
    """Refuse what a ``config.json`` says is an encoder, with a decoder or without: no exporter can carry it."""
    kind, names = config.get("model_type"), config.get("architectures")
    classes = [one for one in names if isinstance(one, str)] if isinstance(names, list) else []
    numbers = f"Its model_type is {str(kind)[:60]!r}{', its class ' + classes[0][:60] if classes else ''}."
    if config.get("is_encoder_decoder") is True:
        raise _no_decoder(where, "an encoder with a decoder", numbers)
    is_known = isinstance(kind, str) and is_encoder(kind)
    if (is_known or any(map(_ENCODER_CLASSES.fullmatch, classes))) and config.get("is_decoder") is not True:
        raise _no_decoder(where, "an encoder", numbers)


def _no_decoder(where: str, what: str, numbers: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{where} is {what}; edge-rt runs decoders.", numbers, "Choose a model that continues a text."
    )


def family_of_config(where: str, model_type: str) -> Family:
    """Return the family of a ``config.json``."""
    if model_type not in MODEL_TYPES:
        raise _unknown(
            where,
            model_type,
            ", ".join(MODEL_TYPES),
            "Choose a model of a supported architecture; or export a folder with --via transformers, if layers keep "
            "keys and values alone.",
        )
    return MODEL_TYPES[model_type]


def family_of_header(where: str, architecture: str) -> Family:
    """Return the family of a GGUF file."""
    if is_encoder(architecture):
        raise _no_decoder(where, "an encoder", f"Its architecture is {architecture[:60]!r}.")
    if architecture not in ARCHITECTURES:
        raise _unknown(where, architecture, ", ".join(ARCHITECTURES), "Choose a model of a supported architecture.")
    return ARCHITECTURES[architecture]


def _unknown(where: str, found: str, known: str, action: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{where}: the architecture {found[:60]!r} is not supported.",
        f"{REASONS[found]}. Supported: {known}." if found in REASONS else f"Supported: {known}.",
        action,
    )
