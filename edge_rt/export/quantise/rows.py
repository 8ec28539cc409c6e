"""Gives the rows of a package's matrices, quantised where they are to be, and measures what that loses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.export.decoder.tensors import input_of_kind, kind_of
from edge_rt.export.quantise.feedback import feedback, importance, quantise
from edge_rt.export.quantise.grids import LARGEST_HALF, Grid
from edge_rt.export.quantise.moments import HeldOut, InputMoments, Moments
from edge_rt.export.quantise.nested import quantise_nested
from edge_rt.export.weights.blocks import FLOAT_TYPES
from edge_rt.export.weights.codes import Codes, joined_rows
from edge_rt.export.weights.linear import Part
from edge_rt.export.weights.matrices import Matrices, whole_matrix
from edge_rt.export.weights.rows import RowReader, Rows
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.system.machine import usable_cpus

Array = npt.NDArray[Any]

_WIDE_TYPES = ("F32", "BF16")
"""Types with the range of float32; all others hold halves, or codes whose scales are halves."""


class LimitedMatrices:
    """Matrices whose values must fit the types that they are stored in, by name; others are not checked."""

    def __init__(self, matrices: Matrices, types: Mapping[str, str]) -> None:
        self._matrices = matrices
        self._limited = {name for name, type_name in types.items() if type_name not in _WIDE_TYPES}

    def pieces(self, name: str) -> Iterator[Array]:
        """Yield the rows of a matrix; see ``Matrices``."""
        for rows in self._matrices.pieces(name):
            yield self._checked(name, rows)

    def rows(self, name: str, numbers: Iterable[int]) -> Array:
        """Return some rows of a matrix; see ``Matrices``."""
        return self._checked(name, self._matrices.rows(name, numbers))

    def _checked(self, name: str, rows: Array) -> Array:
        # Absolute values would take as much memory again.
        largest = max(float(rows.max(initial=0)), -float(rows.min(initial=0))) if name in self._limited else 0.0
        if largest > LARGEST_HALF:
            raise UnsupportedModel(
                f"The tensor '{name}' does not fit half precision.",
                f"Its largest value is {largest:.4g}, the largest half is {LARGEST_HALF:.0f}.",
                "Choose --weights f32 or keep.",
            )
        return rows


SAMPLE_ROWS: Final = 128
"""Rows of a matrix that feedback is tried on, and that its error is measured on."""
CHUNK_VALUES: Final = 1 << 20
"""Weights that one thread quantises at a time."""
_LEAST_MOMENTS: Final = 64
"""Tokens from which on moments are used: to fit weights to, and to judge by."""


@dataclass(frozen=True)
class PartError:
    """What quantising a matrix lost.

    Attributes:
        has_feedback: whether errors were made up for by the inputs behind them.
        error: mean square of the error of the outputs on held-out tokens over that of the outputs; without calibration,
            of the weights over that of the weights. Of a sample of rows.
        upper_error: of nested codes, what their upper halves alone lose.
    """

    name: str
    type_name: str
    has_feedback: bool
    error: float
    values: int
    upper_error: float | None = None


class QuantisedRows:
    """A ``RowReader`` that quantises the parts that have another type in the package.

    Args:
        matrices: the checkpoint's values, none of them too large for its type (``LimitedMatrices``).
        moments: of the inputs, by name as in ``input_of_kind`` or ``"head"``; empty without calibration. The caller
            changes it from layer to layer.
    """

    def __init__(self, plain: RowReader, matrices: Matrices, moments: Mapping[str, InputMoments]) -> None:
        self._plain = plain
        self._matrices = matrices
        self._moments = moments
        self._factors: tuple[InputMoments, Array, Sequence[Array]] | None = None
        self.errors: list[PartError] = []

    def forget(self) -> None:
        """Drop what was computed of the last inputs."""
        self._factors = None

    def rows(self, part: Part, *, multiple: int = 1) -> Iterator[tuple[Rows, int]]:
        """Yield the rows of a part; see ``RowReader``."""
        if part.quantised_to is None:
            yield from self._plain.rows(part, multiple=multiple)
        elif part.quantised_to in FLOAT_TYPES:
            for values, read in self._pieces(part, multiple):
                yield values.astype(np.float16) if part.type_name == "F16" else values, read
        else:
            yield from self._quantised(part, multiple)

    def _pieces(self, part: Part, multiple: int) -> Iterator[tuple[Array, int]]:
        """Yield float rows in the package's order, and the bytes of the checkpoint that they took."""
        inputs, count = part.tensor.shape
        per_row = part.tensor.nbytes // count
        if part.row_order is not None:
            yield whole_matrix(self._matrices, part.tensor)[part.row_order], part.tensor.nbytes
            return
        rest = np.empty((0, inputs), np.float32)
        for piece in self._matrices.pieces(part.tensor.name):
            rows = np.concatenate([rest, piece])
            if whole_rows := len(rows) // multiple * multiple:
                yield rows[:whole_rows], whole_rows * per_row
            rest = rows[whole_rows:]
        if len(rest):
            yield rest, len(rest) * per_row

    def _quantised(self, part: Part, multiple: int) -> Iterator[tuple[Rows, int]]:
        form = tile_format(part.type_name)
        step = max(1, CHUNK_VALUES // part.tensor.shape[0])
        if form.is_nested:
            work = self._nested(part)
        else:
            grid = Grid(form)
            weight_of, feedbacks = self._fit(part, grid)

            def work(rows: Array) -> Codes:
                return quantise(rows, weight_of, feedbacks, grid)[0]

        with ThreadPoolExecutor(usable_cpus()) as workers:
            for values, read in self._pieces(part, multiple):
                chunks = [values[begin : begin + step] for begin in range(0, len(values), step)]
                yield joined_rows(list(workers.map(work, chunks))), read

    def _nested(self, part: Part) -> Callable[[Array], Codes]:
        """Return what quantises rows to nested codes; note the errors."""
        inputs, count = part.tensor.shape
        moments = self._moments.get(_input_of(part.tensor.name))
        has_moments = moments is not None and moments.fitted.tokens >= _LEAST_MOMENTS
        weight_of = np.ones(inputs, np.float32)
        sample = self._sample(part)
        if moments is not None and has_moments:
            weight_of = importance(moments.fitted.diagonal)
        _, errors, upper_errors = quantise_nested(np.ascontiguousarray(sample.T), weight_of)
        total, whole, upper = (
            self._judged(moments if has_moments else None, rows) for rows in (sample, errors.T, upper_errors.T)
        )
        relative = [lost / total if total > 0 else 0.0 for lost in (whole, upper)]
        self.errors.append(
            PartError(part.tensor.name, part.type_name, False, relative[0], inputs * count, upper_error=relative[1])
        )
        return lambda rows: quantise_nested(np.ascontiguousarray(rows.T), weight_of)[0]

    def _judged(self, moments: InputMoments | None, rows: Array) -> float:
        """Return the squares of the outputs of rows on held-out tokens; without moments those of the rows."""
        return float(np.square(rows).sum()) if moments is None else _judge(moments).error(rows)

    def _sample(self, part: Part) -> Array:
        count = part.tensor.shape[1]
        numbers = np.unique(np.linspace(0, count - 1, min(count, SAMPLE_ROWS)).astype(np.int64))
        return self._matrices.rows(part.tensor.name, numbers.tolist())

    def _fit(self, part: Part, grid: Grid) -> tuple[Array, Sequence[Array]]:
        """Return what the inputs count, and feedback if it wins on held-out tokens; note the error."""
        inputs = part.tensor.shape[0]
        moments = self._moments.get(_input_of(part.tensor.name))
        sample = self._sample(part)
        if moments is None or moments.fitted.tokens < _LEAST_MOMENTS:
            weight_of = np.ones(inputs, np.float32)
            _, errors = quantise(sample, weight_of, (), grid)
            self._note(part, False, float(np.square(errors).sum()), float(np.square(sample).sum()))
            return weight_of, ()
        weight_of = importance(moments.fitted.diagonal)
        judge = _judge(moments)
        # Both ways to count inputs are tried with feedback: moments of few tokens say little of what it leaves.
        ways: list[tuple[Array, Sequence[Array]]] = [(weight_of, ())]
        if judge is moments.held_out:
            left, factors = self._factors_of(moments)
            ways += [(left, factors), (weight_of, factors)]
        lost = [judge.error(quantise(sample, counts, factors, grid)[1]) for counts, factors in ways]
        best = min(range(len(ways)), key=lost.__getitem__)
        self._note(part, best > 0, lost[best], judge.error(sample))
        return ways[best]

    def _factors_of(self, moments: InputMoments) -> tuple[Array, Sequence[Array]]:
        # Matrices with one input are quantised one behind the other.
        if self._factors is None or self._factors[0] is not moments:
            self.forget()
            tokens = np.float32(moments.fitted.tokens)
            factors, left = zip(*(feedback(block / tokens) for block in moments.fitted.blocks), strict=True)
            self._factors = moments, importance(np.concatenate(left)), factors
        return self._factors[1:]

    def _note(self, part: Part, has_feedback: bool, error: float, total: float) -> None:
        inputs, count = part.tensor.shape
        relative = error / total if total > 0 else 0.0
        self.errors.append(PartError(part.tensor.name, part.type_name, has_feedback, relative, inputs * count))


def _judge(moments: InputMoments) -> Moments | HeldOut:
    """Return what errors are judged by: a last sequence of a few tokens is nothing to judge by."""
    return moments.held_out if moments.held_out.tokens >= _LEAST_MOMENTS else moments.fitted


def _input_of(name: str) -> str:
    return input_of_kind(kind_of(name)) or "head"
