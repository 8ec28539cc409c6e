"""A checkpoint, read and checked before anything is written: dimensions, matrices, tokenizer, calibration text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_rt.errors import ConfigError, InvalidTemplate
from edge_rt.export.calibration.text import Calibration, CalibrationText, encode_calibration, read_calibration
from edge_rt.export.decoder.weights import DecoderWeights, collect_weights
from edge_rt.export.op_profile import OpProfile
from edge_rt.export.quantise.decision import WeightChoice
from edge_rt.export.quantise.native import has_native_rounding
from edge_rt.export.sources.source import Source, TokenizerBuild
from edge_rt.package.decoder import Decoder
from edge_rt.package.manifest import BUILT_IN_CALIBRATION
from edge_rt.text.template import ChatTemplate, lint
from edge_rt.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Checkpoint:
    """Everything that is known about the checkpoint once its header is read and checked."""

    source: Source
    decoder: Decoder
    weights: DecoderWeights
    profile: OpProfile
    tokenizer: TokenizerBuild
    calibration: Calibration | None
    choice: WeightChoice
    warnings: tuple[str, ...]


def calibration_text(
    calibration: Path | str | None, profile: OpProfile, choice: WeightChoice
) -> CalibrationText | None:
    """Read the text for the constants of 4-bit keys and for quantising weights; None if there is neither."""
    if calibration is None:
        return None
    if profile.has_4_bit_keys or choice.quantises:
        return read_calibration(calibration)
    if calibration == BUILT_IN_CALIBRATION:
        return None
    raise ConfigError(
        f"The {profile.name} op profile has no 4-bit cache, and no weights are quantised.",
        f"Got the calibration text {calibration}.",
        "Leave it out, or export with --profile native.",
    )


def read_checkpoint(
    source: Source,
    decoder: Decoder,
    profile: OpProfile,
    choice: WeightChoice,
    text: CalibrationText | None = None,
) -> Checkpoint:
    """Read and check everything that can be checked without the tensor data."""
    tokenizer = source.build_tokenizer(decoder.vocab_size)
    loaded = Tokenizer.from_text(tokenizer.json_text, info=tokenizer, embedding_rows=decoder.vocab_size)
    calibration = None
    if text is not None:
        calibration = encode_calibration(text, loaded, tokenizer.chat_template, decoder.context_length)
    return Checkpoint(
        source=source,
        decoder=decoder,
        weights=collect_weights(source, decoder, profile, choice.types),
        profile=profile,
        tokenizer=tokenizer,
        calibration=calibration,
        choice=choice,
        warnings=(
            *source.remarks,
            *_rounding_warnings(choice),
            *_rotation_warnings(decoder),
            *text_warnings(tokenizer, loaded),
        ),
    )


def _rounding_warnings(choice: WeightChoice) -> tuple[str, ...]:
    if not choice.quantises or has_native_rounding():
        return ()
    return ("The native library cannot be used here: numpy rounds the weights, many times slower.",)


def _rotation_warnings(decoder: Decoder) -> tuple[str, ...]:
    if not (short := decoder.short_context):
        return ()
    text = (
        f"The model has other rotations for contexts beyond {short} tokens (longrope): a load chooses by its context, "
        f"where transformers goes by the length of the text. Load it with --ctx {short} for short texts."
    )
    return (text,)


def text_warnings(build: TokenizerBuild, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return warnings about tokenizer and templates."""
    return (
        *build.warnings,
        *_template_warnings(build.chat_template, tokenizer, lint),
        # It may need tools: only whether it can be used is asked.
        *(() if build.tool_template is None else _template_warnings(build.tool_template, tokenizer, lambda _: [])),
    )


def _template_warnings(
    template: str | None, tokenizer: Tokenizer, asks: Callable[[ChatTemplate], list[str]]
) -> tuple[str, ...]:
    """Return warnings about the template; one that cannot be used only prevents chats, so it is not refused."""
    try:
        return tuple(asks(ChatTemplate(template, special_tokens=tokenizer.special_tokens)))
    except InvalidTemplate as error:
        return (f"The chat template cannot be used: {error}" if template is not None else f"{error}",)
