"""What an export will do, what it will take, and which types are measured, before anything is written."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from edge_rt.errors import ConfigError, EdgeRTError, ErrorJSON
from edge_rt.export.calibration.text import CalibrationText
from edge_rt.export.check.quality import tensor_classes
from edge_rt.export.check.rounding import measured_tokens
from edge_rt.export.checkpoint import Checkpoint, calibration_text, read_checkpoint
from edge_rt.export.decoder.weights import calibrated_layers, collect_weights, place_weights
from edge_rt.export.estimate import ExportEstimate, estimate_export, require_room
from edge_rt.export.op_profile import OpProfile, choose_profile
from edge_rt.export.options import ExportOptions
from edge_rt.export.quantise.decision import MEASURED_TOKENS, WeightChoice, choose_weights
from edge_rt.export.quantise.rows import LimitedMatrices
from edge_rt.export.quantise.sensitivity import measured_choice, require_budget
from edge_rt.export.reference.gradients import DecoderGradients
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.source import Source
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.native import tile_bytes
from edge_rt.export.weights.weights_file import (
    PAGE_ALIGNED_FROM_BYTES,
    PAGE_BYTES,
    SMALL_ALIGNMENT_BYTES,
    WeightsLayout,
)
from edge_rt.ort.op_library import library_path
from edge_rt.ort.session import check_window_support
from edge_rt.package.decoder import Decoder
from edge_rt.package.exits import require_exits
from edge_rt.package.manifest import KV_FORMATS, ChosenOptions
from edge_rt.package.reader import absolute_path
from edge_rt.package.weights_info import TensorClass
from edge_rt.package.writer import PackageWriter
from edge_rt.system.machine import return_free_memory
from edge_rt.system.process_memory import peak_rss_bytes


@dataclass(frozen=True)
class Decided:
    """What follows from the options and the checkpoint's header.

    Attributes:
        activations: of the graph's linear layers: ``"int8"`` or ``"float"``.
        measures_rounding: whether it is measured which blocks of activations need 16 bits.
        chosen: options that a package tells, if any was given.
        kv: the default format of the cache, if it was stated; None: it is measured, where there is a choice and a text.
    """

    profile: OpProfile
    activations: str
    measures_rounding: bool
    choice: WeightChoice
    text: CalibrationText | None
    has_constants: bool
    exits: tuple[int, ...]
    chosen: ChosenOptions | None
    kv: str | None

    @property
    def measures_kv(self) -> bool:
        """Whether what caches lose decides the default format."""
        return self.kv is None and self.text is not None and len(KV_FORMATS[self.profile.name]) > 1


@dataclass(frozen=True)
class Prepared:
    """A checkpoint that was read and judged.

    Attributes:
        most: types and bits by class if every matrix gets the most bits that it may have; None without a size.
    """

    checkpoint: Checkpoint
    layout: WeightsLayout
    estimate: ExportEstimate
    most: dict[str, TensorClass] | None


def decide(
    source: Source,
    decoder: Decoder,
    options: ExportOptions,
) -> Decided:
    """Decide from the options and the header."""
    activations = options.activations or "auto"
    profile = choose_profile(options.profile, activations, library_path(), decoder)
    choice = choose_weights(source, decoder, options.weights, options.size_bytes, has_tables=profile.has_tables)
    if choice.size and profile.name != "native":
        raise ConfigError(
            "A size needs the native op profile.",
            f"The op profile is {profile.name}, which stores 5 and 6 bits in 8.",
            "Choose --weights int4 or int8 instead.",
        )
    require_exits(options.exits, decoder.num_layers, profile.name)
    if options.exits and decoder.recurrent_layers:
        raise ConfigError(
            "A model with states cannot be cut at exits.",
            f"{decoder.name} has them in {len(decoder.recurrent_layers)} layers, which drafts would change.",
            "Leave out --exits.",
        )
    _check_kv(options.kv, profile)
    text = calibration_text(options.calibration, profile, choice)
    has_constants = text is not None and profile.has_4_bit_keys and bool(calibrated_layers(decoder))
    chosen = ChosenOptions(None if activations == "auto" else activations, options.kv)
    return Decided(
        profile,
        "float" if activations == "float" else "int8",
        activations == "auto" and profile.rounds_by_rule and text is not None and decoder.unmeasured_part is None,
        choice,
        text,
        has_constants=has_constants,
        exits=tuple(options.exits),
        chosen=None if chosen == ChosenOptions() else chosen,
        kv=options.kv,
    )


def _check_kv(kv: str | None, profile: OpProfile) -> None:
    formats = KV_FORMATS[profile.name]
    if kv is not None and kv not in formats:
        raise ConfigError(
            "The op profile has no such format of the KV cache.",
            f"Got {kv!r:.40}; formats of the op profile {profile.name}: {', '.join(formats)}.",
            "Choose one of these, or leave it out.",
        )


def prepare(source: Source, decoder: Decoder, decided: Decided) -> Prepared:
    """Read everything but the tensors, and predict what the export takes."""
    checkpoint = read_checkpoint(source, decoder, decided.profile, decided.choice, decided.text)
    layout = place_weights(checkpoint.weights, decoder, decided.profile, is_calibrated=decided.has_constants)
    if decided.choice.size:
        require_least_size(checkpoint, layout)
    tokens = 0 if checkpoint.calibration is None else len(checkpoint.calibration.token_ids)
    most, most_bytes = None, 0
    if ladders := decided.choice.ladders:
        types = {name: ladder[-1] for name, ladder in ladders.items()}
        largest = collect_weights(source, decoder, decided.profile, types)
        widest = place_weights(largest, decoder, decided.profile, is_calibrated=decided.has_constants)
        most, most_bytes = tensor_classes(largest, widest), min(decided.choice.size, widest.size)
    # Reading the tokenizer leaves free memory, which later stages are predicted without.
    return_free_memory()
    reached, resident = peak_rss_bytes(), int(psutil.Process().memory_info().rss)
    estimate = estimate_export(
        checkpoint.weights,
        layout,
        checkpoint.decoder,
        decided.profile,
        tokens if decided.has_constants else 0,
        choice=decided.choice,
        moment_tokens=tokens if decided.choice.quantises else 0,
        kv_tokens=tokens if decided.measures_kv else 0,
        rounding_tokens=measured_tokens(source.num_parameters, tokens) if decided.measures_rounding else 0,
        most_bytes=most_bytes,
        resident_bytes=resident,
        reached_bytes=reached,
    )
    return Prepared(checkpoint, layout, estimate, most)


@dataclass(frozen=True)
class ExportForecast:
    """What an export would do.

    Attributes:
        disk_bytes: most bytes of the package.
        size: bytes that ``weights.bin`` may have; 0: no limit.
        classes: types and bits by class of tensors; with a size those of the fewest bits.
        most: with a size those of the most bits, between which measuring decides; else None.
        refusal: why the export would be refused on this machine; None if it would not.
        warnings: sentences about weights that are not read as they are stored, and about the chat template.
    """

    disk_bytes: int
    peak_memory_bytes: int
    profile: str
    choice: str
    size: int
    classes: dict[str, TensorClass]
    most: dict[str, TensorClass] | None
    refusal: ErrorJSON | None
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as the JSON object that the command line prints."""
        return asdict(self)


def forecast(source: Source, decoder: Decoder, decided: Decided, out: Path, *, force: bool = False) -> ExportForecast:
    """Return what an export would do; nothing is written."""
    check_window_support(decided.profile.name, decoder.sliding_window)
    prepared = prepare(source, decoder, decided)
    choice, refusal = decided.choice, None
    try:
        PackageWriter(out, force=force).check_destination()
        require_room(prepared.estimate, absolute_path(out))
    except EdgeRTError as error:
        refusal = error.to_json()
    return ExportForecast(
        disk_bytes=prepared.estimate.disk_bytes,
        peak_memory_bytes=prepared.estimate.peak_memory_bytes,
        profile=decided.profile.name,
        choice=choice.name,
        size=choice.size,
        classes=tensor_classes(prepared.checkpoint.weights, prepared.layout),
        most=prepared.most,
        refusal=refusal,
        warnings=prepared.checkpoint.warnings,
    )


class OnStep(Protocol):
    """Is told how far measuring is."""

    def __call__(self, done: int, total: int, message: str = "") -> None:
        """Take the number of steps that are done, and of all; what begins now, in words."""


def require_least_size(checkpoint: Checkpoint, layout: WeightsLayout) -> None:
    """Refuse a size that the model does not fit with the types of fewest bits."""
    size = checkpoint.choice.size
    require_budget(_changing_bytes(checkpoint), size - _other_bytes(checkpoint, layout), size)


def settle_types(checkpoint: Checkpoint, layout: WeightsLayout, on_step: OnStep) -> Checkpoint:
    """Return the checkpoint with types that were measured, if its choice asks for that."""
    choice, source = checkpoint.choice, checkpoint.source
    if not choice.ladders and (checkpoint.decoder.unmeasured_part or not choice.rivals):
        return checkpoint
    layers = 2 * checkpoint.decoder.num_layers if checkpoint.calibration is not None else 0
    matrices_count = len(choice.ladders) or sum(len(group.names) for group in choice.rivals)
    total = layers + matrices_count
    on_step(0, total, "measuring which matrices need more bits")
    with TensorReader(source.files) as stream:
        matrices = LimitedMatrices(CheckpointMatrices(stream, source.tensors), choice.types)
        influences = {}
        if checkpoint.calibration is not None:
            gradients = DecoderGradients(matrices, source, checkpoint.decoder)
            tokens = checkpoint.calibration.token_ids[:MEASURED_TOKENS]
            influences = gradients.influences(tokens, on_layer=lambda done: on_step(done, total))
        budget = choice.size - _other_bytes(checkpoint, layout)
        choice = measured_choice(
            choice,
            source.tensors,
            matrices,
            influences,
            budget,
            lambda done, _: on_step(layers + done, total),
        )
    on_step(total, total)
    weights = collect_weights(source, checkpoint.decoder, checkpoint.profile, choice.types)
    return dataclasses.replace(checkpoint, choice=choice, weights=weights)


def _other_bytes(checkpoint: Checkpoint, layout: WeightsLayout) -> int:
    """Return the bytes of ``weights.bin`` that no choice of types changes, and what other gaps between may add."""
    # With 8 bits a matrix takes twice as many bytes at most, and then may begin at a page.
    gaps = sum(
        PAGE_BYTES if 2 * slot.nbytes >= PAGE_ALIGNED_FROM_BYTES else SMALL_ALIGNMENT_BYTES
        for slot in layout.slots.values()
    )
    return layout.size - _changing_bytes(checkpoint) + gaps


def _changing_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the matrices whose types are to be measured, in those that they have so far."""
    types, tensors = checkpoint.choice.types, checkpoint.source.tensors
    return sum(tile_bytes(tensors[name], types[name]) for name in checkpoint.choice.ladders)
