"""Tells from the tokens of an answer that it goes round in circles."""

from __future__ import annotations

from typing import Final

import numpy as np

LONGEST_CYCLE: Final = 512
"""Tokens."""
LEAST_TOKENS: Final = 320
LEAST_COPIES: Final = 8


class RepetitionGuard:
    """Tells when an answer has become periodic: the same tokens, in the same order, again and again.

    For every length of a cycle it counts how many of the last tokens equal the one a cycle before them. The answer is
    ended when that are ``LEAST_TOKENS`` + ``LEAST_COPIES`` cycles: 11 more copies of a verse of 100 tokens, 40 of a
    row of 10, 328 of a single token. Lists, tables and refrains that people ask for end sooner, and one token that
    differs, such as a running number, makes the count begin anew.

    What it says depends on the tokens alone, not on the steps in which they come. A token costs the same at any length
    of the answer.
    """

    def __init__(self) -> None:
        # The last tokens, newest first, begin at an index that falls by one for each token.
        self._tokens = np.full(2 * LONGEST_CYCLE, -1, np.int64)
        self._begin = LONGEST_CYCLE
        self._equal = np.zeros(LONGEST_CYCLE, np.bool_)
        self._counts = np.zeros(LONGEST_CYCLE, np.int32)
        self._limits = LEAST_TOKENS + LEAST_COPIES * np.arange(1, LONGEST_CYCLE + 1, dtype=np.int32)

    def push(self, token_id: int) -> bool:
        """Add the next token of the answer, at least 0; return whether the answer ends with it."""
        last = self._tokens[self._begin : self._begin + LONGEST_CYCLE]
        np.equal(last, token_id, out=self._equal)
        self._counts += 1
        self._counts *= self._equal
        if self._begin == 0:
            self._tokens[LONGEST_CYCLE:] = last
            self._begin = LONGEST_CYCLE
        self._begin -= 1
        self._tokens[self._begin] = token_id
        return bool((self._counts >= self._limits).any())
