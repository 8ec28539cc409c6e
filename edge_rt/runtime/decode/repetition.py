"""Tells from the tokens of an answer that it goes round in circles."""

from __future__ import annotations

from typing import Final

import numpy as np

LONGEST_CYCLE: Final = 512
"""In tokens."""
LEAST_TOKENS: Final = 320
LEAST_COPIES: Final = 8
SLIP: Final = 64
"""What a token that differs takes from a count."""


class RepetitionGuard:
    """Tells when an answer has become periodic: the same tokens, in the same order, again and again.

    For every length of a cycle it counts tokens that equal the one a cycle before them; one that differs takes ``SLIP``
    off, down to 0. The answer ends at a count of ``LEAST_TOKENS`` and ``LEAST_COPIES`` cycles: after 11 more copies of
    100 tokens, 40 of 10, 328 of one. Tables, refrains and rows of signs that people ask for end sooner. A running
    number in every copy keeps the count down, unless copies are longer than ``SLIP``; a slip in a circle that has
    lasted long does not save it.

    What it says depends on the tokens alone, not on the steps in which they come. A token costs the same at any length
    of the answer.
    """

    def __init__(self) -> None:
        # The last tokens, newest first, begin at an index that falls by one for each token.
        self._tokens = np.full(2 * LONGEST_CYCLE, -1, np.int64)
        self._begin = LONGEST_CYCLE
        self._equal = np.zeros(LONGEST_CYCLE, np.bool_)
        self._change = np.zeros(LONGEST_CYCLE, np.int32)
        self._counts = np.zeros(LONGEST_CYCLE, np.int32)
        self._limits = LEAST_TOKENS + LEAST_COPIES * np.arange(1, LONGEST_CYCLE + 1, dtype=np.int32)

    def push(self, token_id: int) -> bool:
        """Add the next token of the answer, at least 0; return whether the answer ends with it."""
        last = self._tokens[self._begin : self._begin + LONGEST_CYCLE]
        np.equal(last, token_id, out=self._equal)
        np.multiply(self._equal, SLIP + 1, out=self._change)
        self._change -= SLIP
        self._counts += self._change
        np.maximum(self._counts, 0, out=self._counts)
        if self._begin == 0:
            self._tokens[LONGEST_CYCLE:] = last
            self._begin = LONGEST_CYCLE
        self._begin -= 1
        self._tokens[self._begin] = token_id
        return bool((self._counts >= self._limits).any())
