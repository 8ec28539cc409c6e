"""Which experts the rows of the calibration text have, and how often a cache would have held them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.package.expert_hits import ExpertHits

Array = npt.NDArray[Any]
_POINTS: Final = 16
_UNIONS: Final = (2, 4, 8)


class Routing:
    """Collects which experts rows have, layer by layer."""

    def __init__(self) -> None:
        self._layers: dict[int, list[Array]] = {}

    def add(self, layer: int, has: Array) -> None:
        """Add rows of a layer that follow those before: bool ``[rows, experts]``."""
        self._layers.setdefault(layer, []).append(has)

    def hits(self) -> ExpertHits | None:
        """Return what a cache would have held; None without experts."""
        return hits_of({layer: np.concatenate(parts) for layer, parts in self._layers.items()})


def hits_of(layers: Mapping[int, Array]) -> ExpertHits | None:
    """Return the hits of a text.

    A cache of all layers in which the expert goes that was not used for the longest time holds of each layer what its
    last rows had: a row finds an expert if fewer others of its layer were used since than the layer's share has room
    for. The first use of an expert is a miss, whatever the room.

    Args:
        layers: for every layer with experts, bool ``[rows, experts]``.
    """
    found: list[Array] = []
    growth: list[float] = []
    for has in layers.values():
        found += _distances(has)
        growth += _growth(has)
    if not found:
        return None
    distances = np.concatenate(found)
    shares = tuple(point / _POINTS for point in range(1, _POINTS))
    hits = tuple(round(float(np.mean(distances <= share)), 4) for share in shares)
    union = float(np.mean(growth)) if growth else 1.0
    return ExpertHits(len(next(iter(layers.values()))), shares, hits, round(min(max(union, 0.0), 1.0), 4))


def _distances(has: Array) -> list[Array]:
    """Return, of every row, the share of a layer's experts that a cache must hold so that each of its own is there."""
    last = np.full(has.shape[1], -1)
    uses, result = 0, []
    for row in has:
        own = np.flatnonzero(row)
        found = np.full(len(own), np.inf)
        for place, expert in enumerate(own.tolist()):
            if last[expert] >= 0:
                # Itself, and those that were used since.
                found[place] = (1 + np.count_nonzero(last > last[expert])) / has.shape[1]
            last[expert] = uses
            uses += 1
        result.append(found)
    return result


def _growth(has: Array) -> Sequence[float]:
    """Return how many more experts 2, 4 and 8 neighbouring rows have than one, relative to rows that choose evenly."""
    result = []
    chosen = float(has.sum(axis=1).mean())
    for rows in _UNIONS:
        if len(has) < rows or not 0 < chosen < has.shape[1]:
            continue
        whole = has[: len(has) // rows * rows].reshape(-1, rows, has.shape[1])
        union = float(whole.any(axis=1).sum(axis=1).mean()) / chosen
        even = (1 - (1 - chosen / has.shape[1]) ** rows) * has.shape[1] / chosen
        result.append((union - 1) / (even - 1))
    return result
