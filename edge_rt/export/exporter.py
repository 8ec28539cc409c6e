"""Checkpoint -> package: read, plan, write the weights, write the graph, check, publish."""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir

from edge_rt.errors import StorageError
from edge_rt.export.calibration.calibrate import calibrate
from edge_rt.export.check.compare import (
    CheckResult,
    check_token_ids,
    compare,
    compare_steps,
    require_close,
    run_graph,
    run_steps,
)
from edge_rt.export.check.reference import LlamaReference
from edge_rt.export.checkpoint import Checkpoint, calibration_text, read_checkpoint
from edge_rt.export.estimate import ExportEstimate, estimate_export, require_room
from edge_rt.export.families.llama_config import LlamaConfig
from edge_rt.export.families.llama_graph import (
    build_graph,
    place_weights,
    write_rope_tables,
)
from edge_rt.export.op_profile import choose_profile
from edge_rt.export.sources.source import Source, TokenizerBuild
from edge_rt.export.sources.tensor_reader import TensorReader
from edge_rt.export.weights.blocks import float_rows, float_values, read_rows, rope_factors
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.rows import CheckpointRows
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout, verify_checksums
from edge_rt.ops import library_path
from edge_rt.package.manifest import (
    FORMAT_VERSION,
    KV_FORMATS,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    Manifest,
    Segment,
    SourceInfo,
    TokenizerInfo,
    graph_version,
)
from edge_rt.package.reader import Package, absolute_path, stored_name
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.package.writer import PackageWriter
from edge_rt.progress import ProgressCallback, ProgressEvent
from edge_rt.session import check_window_support
from edge_rt.system.file_hash import sha256_files
from edge_rt.system.process_memory import peak_rss_bytes
from edge_rt.version import VERSION

GRAPH_FILE: Final = "model.onnx"
STAGES: Final = ("read", "plan", "weights", "graph", "calibrate", "check", "publish")
"""Names of the stages, in order. Packages without constants of 4-bit keys have no stage ``"calibrate"``."""


@dataclass(frozen=True)
class ExportReport:
    """What an export did.

    Attributes:
        path: the package.
        package_id: its identity.
        predicted_disk_bytes: what was predicted before the work.
        disk_bytes: bytes of the package.
        predicted_peak_bytes: peak memory predicted before the work.
        peak_bytes: highest memory of this process so far.
        seconds: wall time.
        profile: op profile of the package.
        check: differences of the published graph from the checkpoint, after those of the float graph if the profile has
            one.
        warnings: sentences about the chat template, and about heads without constants for 4-bit keys.
    """

    path: Path
    package_id: str
    predicted_disk_bytes: int
    disk_bytes: int
    predicted_peak_bytes: int
    peak_bytes: int
    seconds: float
    profile: str
    check: tuple[CheckResult, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as the JSON object that the command line prints."""
        return {**dataclasses.asdict(self), "path": str(self.path)}


def export_checkpoint(
    source: Source,
    config: LlamaConfig,
    out: Path,
    *,
    profile: str | None,
    activations: str,
    calibration: Path | str | None,
    sampling: SamplingAdvice | None,
    force: bool,
    progress: ProgressCallback,
    on_estimate: Callable[[ExportEstimate], None] | None,
    started: float,
) -> ExportReport:
    """Export a checkpoint whose header was read and checked; see ``edge_rt.export.export_model``.

    Args:
        source: the checkpoint.
        config: its dimensions.
        out: folder to create.
        profile: as in ``export_model``.
        activations: as in ``export_model``.
        calibration: as in ``export_model``.
        sampling: as in ``export_model``.
        force: as in ``export_model``.
        progress: as in ``export_model``.
        on_estimate: as in ``export_model``.
        started: time of the call, from ``time.monotonic``.

    Raises:
        InputError, StorageError, MemoryBudgetExceeded, ConfigError, RuntimeUnavailable: as in ``export_model``.
    """
    chosen = choose_profile(profile, activations, library_path(), config)
    text = calibration_text(calibration, chosen)
    # Needed by the last stage, which runs the graph.
    check_window_support(chosen.name, config.sliding_window)

    stages = [name for name in STAGES if name != "calibrate" or text is not None]

    def stage(name: str, done: int = 0, total: int | None = None, message: str = "", unit: str = "bytes") -> None:
        progress(ProgressEvent(name, stages.index(name) + 1, len(stages), done, total, unit, message))

    stage("read")
    advice = source.read_advice() if sampling is None else sampling
    checkpoint = read_checkpoint(source, config, chosen, text)
    stage("plan")
    layout = place_weights(checkpoint.weights, checkpoint.config, chosen, is_calibrated=text is not None)
    tokens = () if checkpoint.calibration is None else checkpoint.calibration.token_ids
    estimate = estimate_export(checkpoint.weights, layout, checkpoint.model, chosen, len(tokens))
    if on_estimate is not None:
        on_estimate(estimate)
    require_room(estimate, absolute_path(out))
    with PackageWriter(out, force=force) as writer, TensorReader(checkpoint.source.paths) as stream:
        checksums = _write_weights(stream, checkpoint, layout, writer.folder, stage)
        stage("graph")
        _write_texts(checkpoint.tokenizer, writer.folder)
        _write_graph(checkpoint, layout, activations, writer.folder / GRAPH_FILE)
        warnings = checkpoint.warnings
        if tokens:
            # The graph contains the positions of the constants, not their values.
            on_step = functools.partial(stage, "calibrate", unit="steps")
            warnings += calibrate(writer.folder, checkpoint.weights, layout, checkpoint.model, tokens, on_step)
            gc.collect()
        stage("check")
        verify_checksums(writer.folder / WEIGHTS_FILE, layout, checksums)
        results = _check(stream, checkpoint, layout, activations, writer.folder)
        stage("publish")
        package = writer.publish(_manifest(checkpoint, activations, advice))
    stage("publish", 1, 1, "done")
    return _report(package, estimate, results, warnings, started)


def _report(
    package: Package,
    estimate: ExportEstimate,
    results: tuple[CheckResult, ...],
    warnings: tuple[str, ...],
    started: float,
) -> ExportReport:
    return ExportReport(
        path=package.path,
        package_id=package.id,
        predicted_disk_bytes=estimate.disk_bytes,
        disk_bytes=package.size_bytes,
        predicted_peak_bytes=estimate.peak_memory_bytes,
        peak_bytes=peak_rss_bytes(),
        seconds=time.monotonic() - started,
        profile=package.manifest.op_profile,
        check=results,
        warnings=warnings,
    )


def _write_weights(
    stream: TensorReader, checkpoint: Checkpoint, layout: WeightsLayout, folder: Path, stage: Callable[..., None]
) -> dict[str, int]:
    """Write all tensors but the constants of 4-bit keys, and return their checksums."""
    total = sum(part.tensor.nbytes for linear in checkpoint.weights.linears() for part in linear.parts)
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        stage("weights", done, total)

    stage("weights", 0, total)
    with WeightsFile(folder / WEIGHTS_FILE, layout) as out:
        for linear in checkpoint.weights.linears():
            checkpoint.profile.fill(linear, CheckpointRows(stream), layout, out, on_bytes)
        _write_vectors(stream, checkpoint, layout, out)
        return out.checksums


def _write_vectors(stream: TensorReader, checkpoint: Checkpoint, layout: WeightsLayout, out: WeightsFile) -> None:
    for name, tensor in checkpoint.weights.vectors.items():
        out.write(layout.slots[name], 0, float_values(float_rows(tensor, read_rows(stream, tensor)))[0])
    factors = None
    if (freqs := checkpoint.source.tensors.get("rope_freqs.weight")) is not None:
        factors = rope_factors(freqs, read_rows(stream, freqs))
    write_rope_tables(out, layout.slots["rope.cos"], layout.slots["rope.sin"], checkpoint.config, factors)


def _write_texts(tokenizer: TokenizerBuild, folder: Path) -> None:
    try:
        (folder / TOKENIZER_FILE).write_text(tokenizer.json_text, encoding="utf-8")
        if tokenizer.chat_template is not None:
            (folder / TEMPLATE_FILE).write_text(tokenizer.chat_template, encoding="utf-8", newline="")
    except OSError as error:
        raise StorageError("The tokenizer could not be written.", f"{error.strerror}.", "Free some space.") from error


def _write_graph(checkpoint: Checkpoint, layout: WeightsLayout, activations: str, path: Path) -> None:
    model = build_graph(
        checkpoint.weights,
        layout,
        checkpoint.model,
        profile=checkpoint.profile,
        activations=activations,
        producer="edge-rt",
    )
    try:
        path.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
    except OSError as error:
        raise StorageError("The graph could not be written.", f"{error.strerror}.", "Free some space.") from error


def _check(
    stream: TensorReader, checkpoint: Checkpoint, layout: WeightsLayout, activations: str, folder: Path
) -> tuple[CheckResult, ...]:
    """Compare the weights with the checkpoint, and then the profile's graphs with the reference."""
    profile = checkpoint.profile
    for linear in checkpoint.weights.linears():
        profile.verify(linear, stream, layout, folder / WEIGHTS_FILE)
    ids = check_token_ids(checkpoint.config.vocab_size, min(24, checkpoint.config.context_length))
    judge = LlamaReference(CheckpointMatrices(stream, checkpoint.source.tensors), checkpoint.source, checkpoint.config)
    if profile.rounds_by_rule:
        result = _check_steps(judge, checkpoint, activations, folder / GRAPH_FILE, ids)
        require_close(result)
        return (result,)
    reference = judge.logits(ids)
    results = []
    for kind in profile.checked_activations(activations):
        graph = folder / (GRAPH_FILE if kind == activations else f"check-{kind}.onnx")
        if kind != activations:
            _write_graph(checkpoint, layout, kind, graph)
        result = compare(reference, run_graph(graph, checkpoint.model, ids, profile), kind)
        require_close(result)
        results.append(result)
        if kind != activations:
            graph.unlink()
        gc.collect()
    return tuple(results)


def _check_steps(
    judge: LlamaReference, checkpoint: Checkpoint, activations: str, graph: Path, ids: Sequence[int]
) -> CheckResult:
    """Compare the published graph as a whole and step by step, with never more than one session open."""
    streams = run_steps(graph, checkpoint.model, ids, checkpoint.profile)
    gc.collect()
    logits = run_graph(graph, checkpoint.model, ids, checkpoint.profile)
    gc.collect()
    reference, steps = judge.logits_and_steps(ids, streams)
    errors = compare_steps(streams, logits, steps)
    del steps
    return compare(reference, logits, activations, errors)


def _manifest(checkpoint: Checkpoint, activations: str, sampling: SamplingAdvice | None) -> Manifest:
    source, tokenizer = checkpoint.source, checkpoint.tokenizer
    calibration = None if checkpoint.calibration is None else checkpoint.calibration.to_manifest()
    quantisation = _quantisation(checkpoint)
    return Manifest(
        format_version=FORMAT_VERSION,
        graph_version=graph_version(
            checkpoint.profile.name,
            checkpoint.model.sliding_window,
            is_calibrated=calibration is not None,
            types=quantisation.values(),
        ),
        producer=f"edge-rt {VERSION}",
        model=checkpoint.model,
        op_profile=checkpoint.profile.name,
        activations=activations,
        quantisation=quantisation,
        kv_formats=KV_FORMATS[checkpoint.profile.name],
        segments=(Segment("model", GRAPH_FILE, 0, checkpoint.config.num_layers),),
        drafters=(),
        tokenizer=TokenizerInfo(TOKENIZER_FILE, tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.add_bos),
        chat_template=TEMPLATE_FILE if tokenizer.chat_template is not None else None,
        source=SourceInfo(source.kind, stored_name(source.path), sha256_files(source.paths), source.size),
        license=source.license,
        key_calibration=calibration,
        sampling=sampling,
        files={},
    )


def _quantisation(checkpoint: Checkpoint) -> dict[str, str]:
    layers = checkpoint.weights.layers

    def types(groups: list[tuple[Any, ...]]) -> str:
        parts = (part for group in groups for linear in group for part in linear.parts)
        return "+".join(dict.fromkeys(part.type_name for part in parts))

    return {
        "embedding": checkpoint.weights.embedding.type_name,
        "attention": types([layer.qkv for layer in layers] + [layer.output for layer in layers]),
        "feed_forward": types([layer.gate_up for layer in layers] + [layer.down for layer in layers]),
        "head": checkpoint.weights.head.type_name,
    }
