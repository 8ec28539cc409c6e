"""The check of an export: the package's weights against the checkpoint, its graphs against a numpy forward."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from edge_rt.export.check.compare import (
    CheckResult,
    check_token_ids,
    compare,
    compare_steps,
    require_close,
    run_graph,
    run_steps,
)
from edge_rt.export.checkpoint import Checkpoint
from edge_rt.export.reference.reference import DecoderReference
from edge_rt.export.sources.tensor_reader import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices, PackageMatrices
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.export.writing import GRAPH_FILE, write_graph
from edge_rt.package.manifest import WEIGHTS_FILE


def check_package(
    stream: TensorReader, checkpoint: Checkpoint, layout: WeightsLayout, activations: str, folder: Path
) -> tuple[CheckResult, ...]:
    """Compare the weights with the checkpoint, and then the profile's graphs with the reference."""
    profile = checkpoint.profile
    for linear in checkpoint.weights.linears():
        profile.verify(linear, stream, layout, folder / WEIGHTS_FILE)
    ids = check_token_ids(checkpoint.decoder.vocab_size, min(24, checkpoint.decoder.context_length))
    plain = CheckpointMatrices(stream, checkpoint.source.tensors)
    stored = profile.stored(folder / WEIGHTS_FILE, layout)
    matrices = PackageMatrices(plain, checkpoint.weights.linears(), stored)
    judge = DecoderReference(matrices, checkpoint.source, checkpoint.decoder, types=checkpoint.choice.types)
    if profile.rounds_by_rule:
        result = _check_steps(judge, checkpoint, activations, folder / GRAPH_FILE, ids)
        require_close(result)
        return (result,)
    reference = judge.logits(ids)
    results = []
    for kind in profile.checked_activations(activations):
        graph = folder / (GRAPH_FILE if kind == activations else f"check-{kind}.onnx")
        if kind != activations:
            write_graph(checkpoint, layout, kind, graph)
        result = compare(reference, run_graph(graph, checkpoint.decoder, ids, profile), kind)
        require_close(result)
        results.append(result)
        if kind != activations:
            graph.unlink()
        gc.collect()
    return tuple(results)


def _check_steps(
    judge: DecoderReference, checkpoint: Checkpoint, activations: str, graph: Path, ids: Sequence[int]
) -> CheckResult:
    """Compare the published graph as a whole and step by step, with never more than one session open."""
    streams = run_steps(graph, checkpoint.decoder, ids, checkpoint.profile)
    gc.collect()
    logits = run_graph(graph, checkpoint.decoder, ids, checkpoint.profile)
    gc.collect()
    reference, steps = judge.logits_and_steps(ids, streams)
    errors = compare_steps(streams, logits, steps)
    del steps
    return compare(reference, logits, activations, errors)
