"""What a pass over the graph computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most likely tokens behind every row, as the graph's operator RowTopK finds them.

    Attributes:
        ids: int32 ``[rows, k]``, the most likely first; equal logits by id.
        logits: float32 ``[rows, k]``.
        log_sum_exp: float32 ``[rows]``, of the whole row of logits.
    """

    ids: Array
    logits: Array
    log_sum_exp: Array

    def probabilities(self) -> Array:
        """Return the tokens' probabilities at temperature 1, float32 ``[rows, k]``."""
        result: Array = np.exp(self.logits - self.log_sum_exp[:, None])
        return result


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a pass computed for the rows that wanted logits; overwritten by the next pass of the same shape.

    Attributes:
        logits: float32 ``[rows, vocabulary]``.
        top: the most likely tokens of the same rows; None from a graph that does not look for them.
    """

    logits: Array
    top: TopTokens | None = None
