"""Which blocks of the linear layers' inputs need 16 bits, and what rounding the others to 8 changes.

An error e of an input changes the predictions, as a Kullback-Leibler divergence, by about half of ``(g e)^2`` with g
the gradient there (``reference.gradients``). Rounding errors are independent and spread evenly over a step, so a block
costs half of the squared step over 12, times the sum of its squared gradients. A few blocks, in which one number is
much larger than its neighbours, cost most of it.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.export.check.predictions import Divergence, Predictor
from edge_rt.export.checkpoint import Checkpoint
from edge_rt.export.decoder.tensors import INPUT_OF, kind_of
from edge_rt.export.decoder.weights import DecoderWeights
from edge_rt.export.graph.native_products import NO_FINE_BLOCKS
from edge_rt.export.reference.gradients import DecoderGradients, Pass
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices, PackageMatrices
from edge_rt.export.weights.tile_formats import BLOCK, tile_format
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.export.writing import write_graph
from edge_rt.package.manifest import WEIGHTS_FILE, Rounding
from edge_rt.package.op_list import MAX_FINE_RUNS

MEASURED_TOKENS: Final = 256
"""Tokens that the model runs on and back, and then as many that predictions are compared on."""
FINE_SHARE: Final = 0.06
"""Most multiply-adds that fine blocks may add, over those of all matrices: 8 rows then take about as much longer."""
_LEAST_SHARE: Final = 1e-3
"""Of what rounding costs in all: blocks that cost less stay as they are."""
_LARGE: Final = 2 << 30
"""Parameters from which fewer tokens are run, so that measuring takes minutes at most."""
_LEAST_TOKENS: Final = 64
_DIGITS: Final = 3
"""Significant digits of costs and divergences; the rest depends on the order of sums, which machines differ in."""
_GRAPH_FILE: Final = "rounding.onnx"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Input:
    """An input of matrices.

    Attributes:
        outputs: rows of the matrices with codes that read it.
        unit: blocks that are never cut.
    """

    outputs: int
    unit: int


def measured_tokens(parameters: int, tokens: int) -> int:
    """Return how many tokens of a text a model of so many parameters is run on."""
    wanted = max(_LEAST_TOKENS, min(MEASURED_TOKENS, MEASURED_TOKENS * _LARGE // max(parameters, 1)))
    return min(wanted, tokens)


def measure_rounding(
    stream: TensorReader,
    checkpoint: Checkpoint,
    layout: WeightsLayout,
    folder: Path,
    on_step: Callable[[int, int], None],
) -> Rounding | None:
    """Choose the fine blocks of a native package whose weights were written, and compare its predictions.

    Returns:
        None if no input is rounded.
    """
    decoder, calibration = checkpoint.decoder, checkpoint.calibration
    assert calibration is not None, "measuring needs a text"
    inputs = _inputs(checkpoint.weights)
    if not inputs:
        return None
    tokens = calibration.token_ids
    count = measured_tokens(checkpoint.source.num_parameters, len(tokens))
    # Other tokens than those by which the blocks are chosen, if the text is long enough.
    others = tokens[count : 2 * count] if len(tokens) >= 2 * count else tokens[:count]
    plain = CheckpointMatrices(stream, checkpoint.source.tensors)
    stored = checkpoint.profile.stored(folder / WEIGHTS_FILE, layout)
    matrices = PackageMatrices(plain, checkpoint.weights.linears(), stored)
    model = DecoderGradients(matrices, checkpoint.source, decoder)
    steps = 2 * decoder.num_layers + 3
    costs = _costs(model, tokens[:count], inputs, lambda done: on_step(done, steps))
    fine = choose_blocks(costs, inputs, _multiply_adds(checkpoint.weights))
    final = model.final(others)
    on_step(steps - 2, steps)
    head = "token_embd.weight" if decoder.is_tied else "output.weight"
    logits = np.empty((len(others), decoder.vocab_size), np.float32)
    first = 0
    for rows in matrices.pieces(head):
        logits[:, first : first + len(rows)] = model.logits_of(final @ rows.T)
        first += len(rows)
    del model, rows
    int8 = _divergence(checkpoint, layout, folder, others, logits, NO_FINE_BLOCKS)
    on_step(steps - 1, steps)
    kl = _divergence(checkpoint, layout, folder, others, logits, fine) if fine else int8
    on_step(steps, steps)
    return Rounding(tokens=len(others), int8_kl=int8, kl=kl, fine_blocks=fine)


def _inputs(weights: DecoderWeights) -> dict[str, _Input]:
    """Return the inputs that are rounded."""
    found = {}
    for name, linears in weights.by_input().items():
        coded = [linear for linear in linears if linear.is_quantised]
        if coded:
            units = [tile_format(part.type_name).unit_inputs // BLOCK for linear in coded for part in linear.parts]
            found[name] = _Input(sum(linear.out_features for linear in coded), max(units))
    return found


def _multiply_adds(weights: DecoderWeights) -> int:
    """Return those of a row through all matrices."""
    linears = [weights.head, *(linear for layer in weights.layers for linear in layer.linears())]
    return sum(linear.in_features * linear.out_features for linear in linears)


def _costs(
    model: DecoderGradients, token_ids: Sequence[int], inputs: Mapping[str, _Input], on_layer: Callable[[int], None]
) -> dict[str, Array]:
    """Return what rounding costs, in nats a token, by input and unit of blocks."""
    costs: dict[str, Array] = {}

    def add(found: Pass, of_input: Mapping[str, str]) -> None:
        for name, matrix in of_input.items():
            if name not in inputs:
                continue
            shape = (len(token_ids), -1, inputs[name].unit, BLOCK)
            step = np.abs(found.inputs[matrix].reshape(shape)).max(axis=-1).astype(np.float64) / 127
            square = np.square(found.at_inputs[name].reshape(shape)).sum(axis=-1)
            costs[name] = (0.5 / 12 * step * step * square).sum(axis=-1).mean(axis=0)

    def of_layer(found: Pass) -> None:
        layer = next(iter(found.at_inputs)).split(".")[0].removeprefix("layer")
        add(found, {f"layer{layer}.{INPUT_OF[kind_of(matrix)]}": matrix for matrix in found.inputs})

    with np.errstate(over="ignore", invalid="ignore"):
        whole = model.run(token_ids, on_layer=on_layer, on_gradients=of_layer)
        add(whole, {"head": next(iter(whole.inputs))})
    for name, cost in costs.items():
        if not np.isfinite(cost).all():
            raise UnsupportedModel(
                "The model's activations on the calibration text are too large for float32.",
                f"At the input '{name}'.",
                "Export with --activations int8.",
            )
    return costs


def choose_blocks(
    costs: Mapping[str, Array], inputs: Mapping[str, _Input], multiply_adds: int
) -> dict[str, tuple[int, ...]]:
    """Return the fine blocks of every input that has some: those that cost most for their multiply-adds."""
    least = _LEAST_SHARE * sum(float(cost.sum()) for cost in costs.values())
    left = FINE_SHARE * multiply_adds
    chosen: dict[str, list[int]] = {}

    def units() -> Iterator[tuple[float, str, int]]:
        for name, cost in costs.items():
            of_input = inputs[name]
            for unit, value in enumerate(cost.tolist()):
                if value > least:
                    yield -_rounded(value / (of_input.outputs * of_input.unit)), name, unit

    for _, name, unit in sorted(units()):
        of_input = inputs[name]
        more = of_input.outputs * of_input.unit * BLOCK
        with_it = sorted([*chosen.get(name, ()), unit])
        stretches = 1 + sum(after > before + 1 for before, after in itertools.pairwise(with_it))
        if more <= left and stretches <= MAX_FINE_RUNS:
            chosen[name] = with_it
            left -= more
    return {
        name: tuple(inputs[name].unit * unit + block for unit in chosen[name] for block in range(inputs[name].unit))
        for name in costs
        if name in chosen
    }


def _divergence(
    checkpoint: Checkpoint,
    layout: WeightsLayout,
    folder: Path,
    token_ids: Sequence[int],
    reference: Array,
    fine: Mapping[str, Sequence[int]],
) -> float:
    """Return how far the predictions of a graph with these fine blocks are from logits, in nats a token."""
    graph, found = folder / _GRAPH_FILE, Divergence()
    write_graph(checkpoint, layout, "int8", graph, fine)
    try:
        predictor = Predictor(graph, checkpoint.decoder)
        for logits in predictor.logits(token_ids, "f32"):
            found.add(reference[found.tokens : found.tokens + len(logits)], logits)
            del logits  # else they would be there beside the next ones
        del predictor
        gc.collect()
    finally:
        graph.unlink()
    return _rounded(found.kl)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
