"""Which rotations a package has, read from its tables: a manifest does not say how frequencies were divided."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.export.families.rope import llama3_divisors, plain_frequencies

Floats = npt.NDArray[Any]

_LARGEST_ANGLE: Final = 1.5
_EQUAL: Final = 1e-4
"""Relative error of frequencies that are taken for equal; tables are float32."""


def frequencies_of(
    base: float, pairs: int, context: int, tables: Callable[[Sequence[int]], tuple[Floats, Floats]]
) -> Floats:
    """Return the frequencies behind tables of cosines and sines, float64 ``[pairs]``, in radians per position.

    Args:
        base: of the frequencies if nothing were changed.
        pairs: of a head.
        context: positions that the tables have.
        tables: returns cosines and sines of positions, ``[positions, pairs]``.

    Raises:
        UnsupportedModel: cosines and sines are multiplied with a factor, or turn faster than the base says.
    """
    plain = plain_frequencies(base, 2 * pairs)
    # The largest angle below a quarter of a turn has the smallest relative error.
    positions = [max(1, min(context - 1, int(_LARGEST_ANGLE / one))) for one in plain]
    cosines, sines = (np.diagonal(table).astype(np.float64) for table in tables(positions))
    angles = np.arctan2(sines, cosines)
    if np.abs(np.hypot(cosines, sines) - 1.0).max() > _EQUAL or (angles <= 0).any():
        raise _unknown("Its cosines and sines have a factor of their own")
    return angles / np.asarray(positions, np.float64)


def rope_settings(base: float, frequencies: Floats) -> dict[str, Any]:
    """Return what ``config.json`` says of rotations: ``rope_theta``, and ``rope_scaling`` if they are scaled.

    Known are no scaling, linear scaling, and that of Llama 3, whose four numbers are two ratios and a factor: original
    context and borders are returned with a distance of 1 between the borders.

    Args:
        base: of the frequencies if nothing were changed.
        frequencies: float64 ``[pairs]``.

    Raises:
        UnsupportedModel: they are scaled in another way.
    """
    dimensions = 2 * len(frequencies)
    divisors = np.asarray(plain_frequencies(base, dimensions)) / frequencies
    if _agree(divisors, np.ones_like(divisors)):
        return {"rope_theta": base}
    factor = float(divisors.max())
    if _agree(divisors, np.full_like(divisors, factor)):
        return {"rope_theta": base, "rope_scaling": {"rope_type": "linear", "factor": factor}}
    shares = (1 / divisors - 1 / factor) / (1 - 1 / factor)
    turns = 1 / np.asarray([2 * math.pi * base ** (2 * pair / dimensions) for pair in range(len(divisors))])
    blended = (shares > _EQUAL) & (shares < 1 - _EQUAL)
    if blended.sum() >= 2:
        slope, offset = np.polyfit(turns[blended], shares[blended], 1)
        low, original = -float(offset), float(slope)
        scaling = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": low + 1.0,
            "original_max_position_embeddings": original,
        }
        found = llama3_divisors(base, dimensions, factor=factor, low=low, high=low + 1.0, original_context=original)
        if low > 0 and _agree(divisors, np.asarray(found)):
            return {"rope_theta": base, "rope_scaling": scaling}
    raise _unknown(f"Its frequencies are divided by {divisors.min():.4g} to {factor:.4g}, in a way that is not known")


def _agree(one: Floats, other: Floats) -> bool:
    return bool(np.abs(one / other - 1.0).max() < _EQUAL)


def _unknown(why: str) -> UnsupportedModel:
    return UnsupportedModel(
        "No draft model can be trained for this model.",
        f"{why}.",
        "Train --kind head, or use a drafter that needs no training.",
    )
