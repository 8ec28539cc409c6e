"""Detects from its tokens that an answer repeats itself endlessly."""

from __future__ import annotations

from typing import Final

import numpy as np

LONGEST_CYCLE: Final = 512
"""In tokens."""
LEAST_TOKENS: Final = 320
LEAST_COPIES: Final = 8
SLIP: Final = 64
"""How much a count is lowered by a token that breaks the cycle."""


class RepetitionGuard:
    """Detects an answer that has become periodic: the same tokens, in the same order, again and again.

    For every cycle length it counts the tokens that equal the token one cycle earlier; a token that differs lowers the
    count by ``SLIP``, down to 0. The answer ends when a count has reached both ``LEAST_TOKENS`` tokens and
    ``LEAST_COPIES`` cycles: after 11 more copies of a cycle of 100 tokens, 40 of 10 tokens, or 328 of one token.
    Tables, refrains and rows of symbols that people ask for are shorter than that. A number that changes in every copy,
    such as a list's, keeps the count low, unless copies are longer than ``SLIP``. A single deviation does not reset a
    cycle that has lasted long.

    The result depends on the tokens alone, not on how many are pushed per step. The cost per token does not grow with
    the length of the answer.
    """

    def __init__(self) -> None:
        # The last tokens, newest first; the index where they begin falls by one for each token.
        self._tokens = np.full(2 * LONGEST_CYCLE, -1, np.int64)
        self._begin = LONGEST_CYCLE
        self._equal = np.zeros(LONGEST_CYCLE, np.bool_)
        self._change = np.zeros(LONGEST_CYCLE, np.int32)
        self._counts = np.zeros(LONGEST_CYCLE, np.int32)
        self._limits = LEAST_TOKENS + LEAST_COPIES * np.arange(1, LONGEST_CYCLE + 1, dtype=np.int32)

    def push(self, token_id: int) -> bool:
        """Add the next token of the answer, at least 0; return whether the answer should end with it."""
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
