"""Checkpoint -> package: read, plan, write the weights, write the graph, check, publish."""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import UnsupportedModel
from edge_rt.export.calibration.calibrate import calibrate
from edge_rt.export.check.compare import CheckResult, check_package
from edge_rt.export.check.predictions import measure_kv_losses, preferred_kv
from edge_rt.export.check.quality import describe_weights, measure_quality, require_quality
from edge_rt.export.check.rounding import measure_rounding
from edge_rt.export.check.segmenting import cut_graph
from edge_rt.export.checkpoint import Checkpoint
from edge_rt.export.decoder.weights import place_weights
from edge_rt.export.estimate import ExportEstimate, require_room
from edge_rt.export.graph.native_products import NO_FINE_BLOCKS
from edge_rt.export.options import ExportOptions
from edge_rt.export.preparing import Decided, decide, prepare, settle_types
from edge_rt.export.sources.adapters import Adapter
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.source import Source
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.weights_file import WeightsLayout, verify_checksums
from edge_rt.export.writing import (
    AHEAD_GRAPH_FILE,
    DRAFT_GRAPH_FILE,
    GRAPH_FILE,
    STATES_GRAPH_FILE,
    Written,
    weights_message,
    write_ahead_graph,
    write_draft_graph,
    write_graph,
    write_states_graph,
    write_texts,
    write_weights,
)
from edge_rt.ort.session import check_window_support
from edge_rt.package.ahead import AheadInfo, shortlist
from edge_rt.package.decoder import Decoder
from edge_rt.package.manifest import (
    FORMAT_VERSION,
    KV_FORMATS,
    NESTED_TYPES,
    PER_LAYER,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    TOOL_TEMPLATE_FILE,
    WEIGHTS_FILE,
    AdapterInfo,
    KvLosses,
    Manifest,
    Pooling,
    Rounding,
    Segment,
    SourceInfo,
    TokenizerInfo,
)
from edge_rt.package.reader import Package, absolute_path, stored_name
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.package.weights_info import Quality, WeightsInfo
from edge_rt.package.writer import PackageWriter
from edge_rt.system.files import sha256_files
from edge_rt.system.machine import collecting_what_is_new, return_free_memory
from edge_rt.system.process_memory import peak_rss_bytes
from edge_rt.system.progress import ProgressCallback, ProgressEvent
from edge_rt.version import VERSION

STAGES: Final = ("read", "plan", "weights", "graph", "calibrate", "rounding", "check", "publish")
"""Names of the stages, in order. Packages without constants of 4-bit keys have no stage ``"calibrate"``, and those
whose rounding is not measured no ``"rounding"``."""


@dataclass(frozen=True)
class ExportReport:
    """What an export did.

    Attributes:
        predicted_peak_bytes: peak memory predicted before the work.
        peak_bytes: highest memory of this process so far.
        stages: wall time of each stage, in seconds.
        check: differences of the published graph from the checkpoint, after those of the float graph if the profile has
            one.
        quality: what quantising the weights changed in the model's predictions; None if nothing was quantised, or
            without calibration.
        weights: their types and errors by class of tensors; None for those of the checkpoint.
        rounding: which activations have 16 bits and what that changes; None where it was not measured.
        adapters: those that were merged into the checkpoint's weights.
        kv_formats: of the cache; the package is loaded with the first by default.
        kv_losses: what that was chosen by; None if nothing was measured.
        warnings: sentences about weights that are not read as they are stored, about the chat template, about heads
            without constants for 4-bit keys, and about a loss of quality that was accepted.
    """

    path: Path
    package_id: str
    predicted_disk_bytes: int
    disk_bytes: int
    predicted_peak_bytes: int
    peak_bytes: int
    seconds: float
    stages: dict[str, float]
    profile: str
    check: tuple[CheckResult, ...]
    quality: Quality | None
    weights: WeightsInfo | None
    rounding: Rounding | None
    adapters: tuple[AdapterInfo, ...]
    kv_formats: tuple[str, ...]
    kv_losses: KvLosses | None
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as the JSON object that the command line prints."""
        return {**dataclasses.asdict(self), "path": str(self.path)}


@collecting_what_is_new()
def export_checkpoint(
    source: Source, decoder: Decoder, out: Path, options: ExportOptions, started: float
) -> ExportReport:
    """Export a checkpoint whose header was read and checked; ``started``: ``time.monotonic`` at the call."""
    if options.exits:
        # Drafts at exits and those of a block that predicts further ahead are two ways; a package has one.
        source = replace(source, ahead=None)
    decided = decide(source, decoder, options)
    # Needed by the last stage, which runs the graph.
    check_window_support(decided.profile.name, decoder.sliding_window)
    left_out = {"calibrate": not decided.has_constants, "rounding": not decided.measures_rounding}
    names = [name for name in STAGES if not left_out.get(name)]
    stage = Stages(names, options.progress, started)
    stage("read")
    # Before anything is read, and long before minutes of measuring.
    PackageWriter(out, force=options.force).check_destination()
    advice = source.read_advice() if options.sampling is None else options.sampling
    pooling, without = _pooling(source, decided)
    prepared = prepare(source, decoder, decided)
    stage("plan")
    if options.on_estimate is not None:
        options.on_estimate(prepared.estimate)
    require_room(prepared.estimate, absolute_path(out))
    with PackageWriter(out, force=options.force) as writer, TensorReader(source.files) as stream:
        on_step = functools.partial(stage, "plan", unit="steps")
        checkpoint = settle_types(prepared.checkpoint, prepared.layout, on_step)
        return_free_memory()
        is_calibrated = decided.has_constants
        layout = place_weights(checkpoint.weights, decoder, decided.profile, is_calibrated=is_calibrated)
        written, warnings = _write(stream, checkpoint, layout, decided, writer.folder, stage)
        rounding, more = _rounding(stream, checkpoint, layout, decided, writer.folder, stage)
        fine_blocks = NO_FINE_BLOCKS if rounding is None else rounding.fine_blocks
        warnings += more
        stage("check")
        verify_checksums(writer.folder / WEIGHTS_FILE, layout, written.checksums)
        results = check_package(stream, checkpoint, layout, decided.activations, writer.folder, fine_blocks)
        gc.collect()
        return_free_memory()
        losses = _measure_kv(checkpoint, decided, writer.folder / GRAPH_FILE, stage)
        quality = None
        if written.walk is not None:
            stage("check", message="comparing the predictions with those of the checkpoint's own weights")
            matrices = CheckpointMatrices(stream, checkpoint.source.tensors)
            quality = measure_quality(checkpoint, matrices, written.walk, writer.folder / GRAPH_FILE)
            warnings += require_quality(quality, accept_loss=options.accept_loss)
        ahead = _ahead(checkpoint)
        if ahead is not None:
            write_ahead_graph(checkpoint, layout, writer.folder / ahead.graph, ahead)
        if pooling is not None:
            write_states_graph(checkpoint, layout, writer.folder / pooling.graph, fine_blocks)
        segments = cut_graph(checkpoint, layout, decided.exits, writer.folder, fine_blocks)
        stage("publish")
        described = describe_weights(checkpoint, layout, written.errors, quality)
        manifest = _manifest(checkpoint, decided, segments, advice, described, losses, rounding)
        package = writer.publish(replace(manifest, pooling=pooling, expert_hits=written.hits, ahead=ahead))
    stage("publish", 1, 1, "done")
    warnings = (*checkpoint.warnings, *without, *warnings)
    return report_of(package, prepared.estimate, results, warnings, stage.seconds())


def _ahead(checkpoint: Checkpoint) -> AheadInfo | None:
    """Return what the package says of a block that predicts further ahead; None without one."""
    layer, weights = checkpoint.source.ahead, checkpoint.weights
    if weights.ahead is None or layer is None:
        return None
    is_nested = weights.head.type_name in NESTED_TYPES
    return AheadInfo(AHEAD_GRAPH_FILE, layer, shortlist(checkpoint.decoder.vocab_size, is_nested=is_nested))


def _pooling(source: Source, decided: Decided) -> tuple[Pooling | None, tuple[str, ...]]:
    """Return how the package makes embeddings; and why it makes none, if the checkpoint is for that."""
    advice = source.read_pooling()
    if advice is None:
        return None, ()
    why_not = advice.why_not or (
        "" if decided.profile.name == "native" else "packages for ONNX Runtime's own operators do not"
    )
    if why_not:
        return None, (f"The checkpoint is made for embeddings, but the package does not give them: {why_not}.",)
    return Pooling(STATES_GRAPH_FILE, advice.mode, advice.normalises, advice.prompts, advice.end_token_id), ()


def _write(
    stream: TensorReader, checkpoint: Checkpoint, layout: WeightsLayout, decided: Decided, folder: Path, stage: Stages
) -> tuple[Written, tuple[str, ...]]:
    """Write weights, texts, graphs and constants; return what was written, and warnings about the constants."""
    stage("weights", message=weights_message(checkpoint))
    written = write_weights(stream, checkpoint, layout, folder, functools.partial(stage, "weights"))
    return_free_memory()
    stage("graph")
    write_texts(checkpoint.tokenizer, folder)
    write_graph(checkpoint, layout, decided.activations, folder / GRAPH_FILE)
    if _is_nested(checkpoint):
        write_draft_graph(checkpoint, layout, folder / DRAFT_GRAPH_FILE, NO_FINE_BLOCKS)
    hits = None if written.walk is None else written.walk.routing.hits()
    warnings: tuple[str, ...] = ()
    if decided.has_constants and checkpoint.calibration is not None:
        # The graph contains the positions of the constants, not their values.
        on_step = functools.partial(stage, "calibrate", unit="steps")
        tokens = checkpoint.calibration.token_ids
        counted, warnings = calibrate(folder, checkpoint.weights, layout, checkpoint.decoder, tokens, on_step)
        # The float model ran on more of the text.
        hits = hits or counted
        gc.collect()
        return_free_memory()
    return replace(written, hits=hits), warnings


def _measure_kv(checkpoint: Checkpoint, decided: Decided, graph: Path, stage: Stages) -> KvLosses | None:
    """Return what caches lose that could be the default; None where nothing decides between them."""
    if not decided.measures_kv or checkpoint.calibration is None:
        return None
    stage("check", message="measuring what caches in f16 and int8 lose")
    on_tokens = functools.partial(stage, "check", unit="tokens")
    losses = measure_kv_losses(graph, checkpoint.decoder, checkpoint.calibration, on_tokens)
    gc.collect()
    return_free_memory()
    return losses


def _rounding(
    stream: TensorReader, checkpoint: Checkpoint, layout: WeightsLayout, decided: Decided, folder: Path, stage: Stages
) -> tuple[Rounding | None, tuple[str, ...]]:
    """Measure which activations need 16 bits and write the graphs anew with these; return it, and warnings."""
    if not decided.measures_rounding:
        return None, ()
    stage("rounding", message="measuring which activations need 16 bits")
    try:
        rounding = measure_rounding(
            stream, checkpoint, layout, folder, functools.partial(stage, "rounding", unit="steps")
        )
    except UnsupportedModel as error:
        return None, (f"All activations have 8 bits: {error}",)
    gc.collect()
    return_free_memory()
    if rounding is not None and rounding.fine_blocks:
        write_graph(checkpoint, layout, decided.activations, folder / GRAPH_FILE, rounding.fine_blocks)
        if _is_nested(checkpoint):
            write_draft_graph(checkpoint, layout, folder / DRAFT_GRAPH_FILE, rounding.fine_blocks)
    return rounding, ()


class Stages:
    """Tells the progress of stages, and measures how long each takes; the first one began at ``started``."""

    def __init__(self, names: Sequence[str], progress: ProgressCallback, started: float) -> None:
        self._names = names
        self._progress = progress
        self._begins = {names[0]: started}

    def __call__(
        self, name: str, done: int = 0, total: int | None = None, message: str = "", unit: str = "bytes"
    ) -> None:
        """Tell how far a stage is; the first call for it begins it, and ends the one before."""
        self._begins.setdefault(name, time.monotonic())
        step = self._names.index(name) + 1
        self._progress(ProgressEvent(name, step, len(self._names), done, total, unit, message))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every stage; the last one ends now."""
        ends = [*self._begins.values(), time.monotonic()][1:]
        return {name: end - begin for (name, begin), end in zip(self._begins.items(), ends, strict=True)}


def report_of(
    package: Package,
    estimate: ExportEstimate,
    results: tuple[CheckResult, ...],
    warnings: tuple[str, ...],
    stages: dict[str, float],
) -> ExportReport:
    """Return the report on a package that was published; ``stages`` are seconds."""
    return ExportReport(
        path=package.path,
        package_id=package.id,
        predicted_disk_bytes=estimate.disk_bytes,
        disk_bytes=package.size_bytes,
        predicted_peak_bytes=estimate.peak_memory_bytes,
        peak_bytes=peak_rss_bytes(),
        seconds=sum(stages.values()),
        stages=stages,
        profile=package.manifest.op_profile,
        check=results,
        quality=None if package.manifest.weights is None else package.manifest.weights.quality,
        weights=package.manifest.weights,
        rounding=package.manifest.rounding,
        adapters=package.manifest.source.adapters,
        kv_formats=package.manifest.kv_formats,
        kv_losses=package.manifest.kv_losses,
        warnings=warnings,
    )


def _manifest(
    checkpoint: Checkpoint,
    decided: Decided,
    cut: tuple[tuple[Segment, ...], str | None],
    sampling: SamplingAdvice | None,
    weights: WeightsInfo | None,
    losses: KvLosses | None,
    rounding: Rounding | None,
) -> Manifest:
    source, tokenizer = checkpoint.source, checkpoint.tokenizer
    calibration = None
    if checkpoint.calibration is not None and decided.has_constants:
        calibration = checkpoint.calibration.to_manifest()
    return Manifest(
        format_version=FORMAT_VERSION,
        producer=f"edge-rt {VERSION}",
        num_parameters=source.num_parameters,
        op_profile=checkpoint.profile.name,
        activations=decided.activations,
        quantisation=_quantisation(checkpoint),
        kv_formats=_kv_formats(checkpoint.profile.name, decided.kv if losses is None else preferred_kv(losses)),
        segments=cut[0],
        tokenizer=TokenizerInfo(TOKENIZER_FILE, tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.add_bos),
        chat_template=TEMPLATE_FILE if tokenizer.chat_template is not None else None,
        tool_template=TOOL_TEMPLATE_FILE if tokenizer.tool_template is not None else None,
        source=SourceInfo(
            source.kind,
            stored_name(source.path),
            sha256_files(source.paths),
            source.size,
            tuple(_adapter_info(adapter) for adapter in source.adapters),
        ),
        license=source.license,
        chosen=decided.chosen,
        rounding=rounding,
        key_calibration=calibration,
        kv_losses=losses,
        sampling=sampling,
        weights=weights,
        decoder=checkpoint.decoder,
        exit_head=cut[1],
        draft_graph=DRAFT_GRAPH_FILE if _is_nested(checkpoint) else None,
        files={},
    )


def _kv_formats(profile: str, preferred: str | None) -> tuple[str, ...]:
    """Return the cache formats of an op profile, the preferred one first."""
    formats = KV_FORMATS[profile]
    return formats if preferred is None else tuple(dict.fromkeys((preferred, *formats)))


def _adapter_info(adapter: Adapter) -> AdapterInfo:
    return AdapterInfo(
        kind=adapter.kind,
        name=stored_name(Path(adapter.name)),
        scale=adapter.scale,
        sha256=sha256_files(adapter.paths),
        size=sum(path.stat().st_size for path in adapter.paths),
        license=adapter.license,
        model=adapter.model,
    )


def _is_nested(checkpoint: Checkpoint) -> bool:
    """Return whether any matrix of the layers has nested codes."""
    linears = (linear for layer in checkpoint.weights.layers for linear in layer.linears())
    return any(part.type_name in NESTED_TYPES for linear in linears for part in linear.parts)


def _quantisation(checkpoint: Checkpoint) -> dict[str, str]:
    layers = checkpoint.weights.layers

    def types(groups: list[tuple[Any, ...]]) -> str:
        parts = (part for group in groups for linear in group for part in linear.parts)
        return "+".join(dict.fromkeys(part.type_name for part in parts))

    return {
        "embedding": checkpoint.weights.embedding.type_name,
        "attention": types([layer.mixer_in for layer in layers] + [layer.mixers for layer in layers]),
        "feed_forward": types([layer.gate_up for layer in layers] + [layer.feed_forwards for layer in layers]),
        "head": checkpoint.weights.head.type_name,
        **({PER_LAYER: types([checkpoint.weights.per_layer_linears()])} if checkpoint.weights.per_layer else {}),
    }
