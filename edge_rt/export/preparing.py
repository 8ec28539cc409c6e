"""What an export will do, and what it will take, before anything is written; a dry run ends here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from edge_rt.errors import ConfigError, EdgeRTError, ErrorJSON
from edge_rt.export.calibration.text import CalibrationText
from edge_rt.export.check.quality import tensor_classes
from edge_rt.export.checkpoint import Checkpoint, calibration_text, read_checkpoint
from edge_rt.export.decoder.weights import calibrated_layers, collect_weights, place_weights
from edge_rt.export.estimate import ExportEstimate, estimate_export, require_room
from edge_rt.export.measuring import require_least_size
from edge_rt.export.op_profile import OpProfile, choose_profile
from edge_rt.export.options import ExportOptions
from edge_rt.export.quantise.decision import WeightChoice, choose_weights
from edge_rt.export.sources.source import Source
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.ort.op_library import library_path
from edge_rt.ort.session import check_window_support
from edge_rt.package.decoder import Decoder
from edge_rt.package.exits import require_exits
from edge_rt.package.reader import absolute_path
from edge_rt.package.weights_info import TensorClass
from edge_rt.package.writer import PackageWriter
from edge_rt.system.machine import return_free_memory
from edge_rt.system.process_memory import peak_rss_bytes


@dataclass(frozen=True)
class Decided:
    """What follows from the options and the checkpoint's header."""

    profile: OpProfile
    activations: str
    choice: WeightChoice
    text: CalibrationText | None
    has_constants: bool
    exits: tuple[int, ...]


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
    activations = options.activations or "int8"
    profile = choose_profile(options.profile, activations, library_path(), decoder)
    choice = choose_weights(source, decoder, options.weights, options.size_bytes, has_tables=profile.has_tables)
    if choice.size and profile.name != "native":
        raise ConfigError(
            "A size needs the native op profile.",
            f"The op profile is {profile.name}, which stores 5 and 6 bits in 8.",
            "Choose --weights int4 or int8 instead.",
        )
    require_exits(options.exits, decoder.num_layers, profile.name)
    text = calibration_text(options.calibration, profile, choice)
    has_constants = text is not None and profile.has_4_bit_keys and bool(calibrated_layers(decoder))
    return Decided(profile, activations, choice, text, has_constants=has_constants, exits=tuple(options.exits))


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
        peak_memory_bytes: most memory of the process.
        choice: as in ``WeightsInfo``, or ``"keep"``.
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
