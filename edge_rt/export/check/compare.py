"""The check of an export: weights against the checkpoint, graphs against a plain numpy forward of it."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPackage, StorageError
from edge_rt.export.check.predictions import Divergence
from edge_rt.export.checkpoint import Checkpoint
from edge_rt.export.decoder.weights import DecoderWeights
from edge_rt.export.graph.builder import as_output
from edge_rt.export.graph.native_products import NO_FINE_BLOCKS, FineBlocks
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.op_profile import OpProfile
from edge_rt.export.reference.reference import DecoderReference, Step
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices, PackageMatrices
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.export.writing import GRAPH_FILE, write_graph
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session
from edge_rt.package.decoder import Decoder
from edge_rt.package.manifest import WEIGHTS_FILE

CHECK_ROWS: Final = 24
MAX_ERROR: Final = {"float": 2e-3, "int8": 0.25}
"""Largest accepted root mean square of the logit differences, relative to the spread of the reference's logits.

Float activations differ from the reference by rounding alone (about 1e-5 on real models). int8 activations lose about
0.05 on a trained model; random weights lose more. In a small random model a matrix in a wrong order or place gives 0.4
to 1.6, whatever the activations; two swapped norms give 0.09 and a wrong rope base 0.03. So the int8 limit finds only
gross faults; the others are found with the float graph, or step by step (``StepErrors``).
"""
MAX_STEP_ERROR: Final = 1.5
MAX_TYPICAL_STEP_ERROR: Final = 0.25
"""Limits of ``StepErrors``. Two results that were rounded independently differ by 1.41.

Measured: right graphs give at most 1.06 in the first layer, where some values of embeddings and norms are on the border
between two codes, 0.2 after it, and typically below 1e-4. A norm in the place of another one gives more than 4 in its
layer, a matrix in a wrong order more than 17; a rope base 1.1 times the right one typically gives 0.4 to 1.2.
"""
_FLOAT_ERROR: Final = 1e-3
"""Difference of a step that is allowed besides rounding, relative to its change of the stream; right graphs gave 1e-6.
"""

_TINY: Final = 1e-30
"""Added to divisors that may be 0."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class StepErrors:
    """Errors of a graph's steps against the reference, in units of the change that rounding to int8 makes in that step.

    Attributes:
        largest: largest error among embedding, all layers and head; shows a fault in one place.
        typical: error of the median layer's median row, without the first layer if there are three or more. Values
            that are rounded the other way are rare, so this is near 0 unless something is wrong everywhere. 0 for a
            single layer, and of two the smaller error.
    """

    largest: float
    step: str
    typical: float


@dataclass(frozen=True)
class CheckResult:
    """Differences between the logits of a graph and of the reference.

    Attributes:
        activations: ``"float"`` or ``"int8"``.
        relative_error: root mean square of the differences over the standard deviation of the reference.
        top1_agreement: share of rows whose most likely token is the same.
        mean_kl: mean Kullback-Leibler divergence of the reference from the graph, in nats.
        steps: errors step by step; None unless the rule of the graph's rounding is known, as in the native profile.
    """

    activations: str
    relative_error: float
    top1_agreement: float
    mean_kl: float
    steps: StepErrors | None = None


def check_token_ids(vocab_size: int, count: int = CHECK_ROWS) -> list[int]:
    """Return ids spread over the vocabulary, the same at every call."""
    return [(7 + 9973 * i) % vocab_size for i in range(count)]


def run_graph(graph: Path, decoder: Decoder, token_ids: Sequence[int], profile: OpProfile) -> Array:
    """Return the graph's logits for a whole sequence, float32 ``[len(token_ids), vocabulary]``."""
    return _run(graph, decoder, token_ids, profile, {})


def _run(graph: Path, decoder: Decoder, token_ids: Sequence[int], profile: OpProfile, more: dict[str, Array]) -> Array:
    """Return the logits; ``more`` are outputs in addition to those of the profile."""
    session = Session(graph, profile=profile.name)
    inputs, outputs = profile.feeds(decoder, token_ids)
    binding = session.binding()
    binding.bind(inputs, outputs | more)
    binding.run(StopSwitch())
    return outputs["logits"]


def run_steps(graph: Path, decoder: Decoder, token_ids: Sequence[int], profile: OpProfile) -> list[Array]:
    """Return the residual stream of a native graph after the embedding and after every layer.

    The nodes of the file itself run: a temporary copy of the graph beside the weights has these values as outputs.
    """
    model = ir.load(graph)
    values = {value.name: value for node in model.graph for value in node.outputs}
    # A layer is one operator or several; its result is named after the last one.
    names = [f"layer{i}" if f"layer{i}" in values else f"layer{i}.down" for i in range(decoder.num_layers)]
    streams = {name: np.empty((len(token_ids), decoder.hidden_size), np.float32) for name in ("embedding", *names)}
    for name in streams:
        model.graph.outputs.append(as_output(values[name], ir.DataType.FLOAT, ["rows", decoder.hidden_size]))
    exposed = graph.with_name(f"steps-{graph.name}")
    try:
        exposed.write_bytes(ir.to_proto(model).SerializeToString())
    except OSError as error:
        raise StorageError("The graph could not be written.", f"{error.strerror}.", "Free some space.") from error
    try:
        _run(exposed, decoder, token_ids, profile, streams)
    finally:
        exposed.unlink()
    return list(streams.values())


def compare_steps(streams: Sequence[Array], logits: Array, steps: Sequence[Step]) -> StepErrors:
    """Measure the error of every step against the reference's result for the same input."""
    found = [*streams, logits]
    # A layer adds to its input; embedding and head replace it.
    before = [np.zeros_like(streams[0]), *streams[:-1], np.zeros_like(logits)]
    names = ["embedding", *(f"layer {i}" for i in range(len(streams) - 1)), "head"]
    largest, medians = [], []
    for ours, source, step in zip(found, before, steps, strict=True):
        change = _squares(step.exact - source)
        unit = np.sqrt(_squares(step.exact - step.rounded)) + _FLOAT_ERROR * np.sqrt(change)
        error = _squares(ours - step.rounded)
        largest.append(float(np.sqrt(error.mean()) / max(np.sqrt((unit**2).mean()), _TINY)))
        medians.append(float(np.median(np.sqrt(error) / np.maximum(unit, _TINY))))
    # One key that is rounded the other way changes all rows after it, and a single layer is no median.
    layers = sorted(medians[1:-1] if len(streams) == 3 else medians[2:-1])
    # NaN counts as the largest error, wherever it occurs.
    worst = int(np.argmax(largest))
    return StepErrors(
        largest=largest[worst],
        step=names[worst],
        typical=layers[(len(layers) - 1) // 2] if layers else 0.0,
    )


def _squares(rows: Array) -> Array:
    """Return the mean square of every row."""
    squares: Array = np.square(rows, dtype=np.float64).mean(axis=-1)
    return squares


def compare(reference: Array, found: Array, activations: str, steps: StepErrors | None = None) -> CheckResult:
    """Measure the differences of two sets of logits, both ``[rows, vocabulary]``."""
    divergence = Divergence()
    divergence.add(reference, found)
    return CheckResult(
        activations=activations,
        relative_error=float(np.sqrt(np.mean((found - reference) ** 2)) / max(float(reference.std()), 1e-12)),
        top1_agreement=divergence.same_best,
        mean_kl=divergence.kl,
        steps=steps,
    )


def require_close(result: CheckResult) -> None:
    """Refuse a graph that computes something else than the checkpoint."""
    limit = MAX_ERROR[result.activations]
    if not result.relative_error <= limit:
        raise _wrong(
            f"Relative error of the logits with {result.activations} activations: {result.relative_error:.3g}, "
            f"limit {limit:.3g}."
        )
    if (steps := result.steps) is None:
        return
    if not steps.largest <= MAX_STEP_ERROR:
        raise _wrong(
            f"Error of {steps.step}: {steps.largest:.3g} times what rounding changes there, limit {MAX_STEP_ERROR:.3g}."
        )
    if not steps.typical <= MAX_TYPICAL_STEP_ERROR:
        raise _wrong(
            f"Typical error of a layer: {steps.typical:.3g} times what rounding changes there, "
            f"limit {MAX_TYPICAL_STEP_ERROR:.3g}."
        )


def _wrong(numbers: str) -> InvalidPackage:
    return InvalidPackage(
        "The exported model does not compute what the checkpoint says, so it was not published.",
        numbers,
        "Report this with the name of the checkpoint.",
    )


def check_package(
    stream: TensorReader,
    checkpoint: Checkpoint,
    layout: WeightsLayout,
    activations: str,
    folder: Path,
    fine_blocks: FineBlocks = NO_FINE_BLOCKS,
) -> tuple[CheckResult, ...]:
    """Compare the weights with the checkpoint, and then the profile's graphs with the reference."""
    profile = checkpoint.profile
    for linear in checkpoint.weights.linears():
        profile.verify(linear, stream, layout, folder / WEIGHTS_FILE)
    ids = check_token_ids(checkpoint.decoder.vocab_size, min(CHECK_ROWS, checkpoint.decoder.context_length))
    plain = CheckpointMatrices(stream, checkpoint.source.tensors)
    stored = profile.stored(folder / WEIGHTS_FILE, layout)
    matrices = PackageMatrices(plain, checkpoint.weights.linears(), stored)
    judge = DecoderReference(
        matrices,
        checkpoint.source,
        checkpoint.decoder,
        types=checkpoint.choice.types,
        fine=_fine_by_matrix(checkpoint.weights, fine_blocks),
    )
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


def _fine_by_matrix(weights: DecoderWeights, fine_blocks: FineBlocks) -> dict[str, Sequence[int]]:
    """Return the fine blocks of every matrix's input, by the checkpoint's name of the matrix."""
    return {
        part.tensor.name: fine_blocks[name]
        for name, linears in weights.by_input().items()
        if name in fine_blocks
        for linear in linears
        for part in linear.parts
    }


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
