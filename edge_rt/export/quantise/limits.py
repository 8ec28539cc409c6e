"""Refuses weights that are too large for the type that was chosen, before anything is computed with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.export.quantise.grids import LARGEST_HALF
from edge_rt.export.weights.matrices import Matrices

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
