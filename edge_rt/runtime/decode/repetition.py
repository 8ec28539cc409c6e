"""Detects from its tokens that an answer repeats itself, or counts, without end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

LONGEST_CYCLE: Final = 512
"""In tokens."""
LEAST_TOKENS: Final = 320
LEAST_COPIES: Final = 8
LEAST_SHORT_TOKENS: Final = 200
LEAST_SHORT_COPIES: Final = 16
LONGEST_COUNTING_CYCLE: Final = 64
"""In tokens, a number counted as one."""
LEAST_COUNTING_TOKENS: Final = 4200
LEAST_COUNTING_COPIES: Final = 512
SLIP: Final = 64
"""How much a count is lowered by a token that breaks the cycle."""
NUMBER: Final = -1
"""Stands for any number; no token's id."""


_LONGEST_TEXT: Final = 64
"""Of a cycle that is looked for in a text, in bytes."""


def cycle_of(text: bytes) -> bytes:
    """Return what the end of a text repeats, at least four times; nothing if it is longer than 64 bytes."""
    for length in range(1, min(_LONGEST_TEXT, len(text) // 4) + 1):
        end = text[-4 * length :]
        if end[length:] == end[:-length]:
            return end[:length]
    return b""


class RepetitionGuard:
    """Detects an answer that has become periodic: the same tokens in the same order, or the same but for its numbers.

    For every cycle length n it counts the tokens that equal the token n before; a token that differs lowers the count
    by ``SLIP``, down to 0. The answer ends when a count reaches ``LEAST_TOKENS + LEAST_COPIES * n``, or
    ``LEAST_SHORT_TOKENS + LEAST_SHORT_COPIES * n`` if that is less: after 11 more copies of a cycle of 100 tokens, 36
    of 10 tokens, or 216 of one token. Tables, refrains and rows of symbols that people ask for are shorter than that. A
    single deviation does not reset a cycle that has lasted long.

    A number that changes in every copy keeps those counts low. So tokens are counted once more with all numbers taken
    for equal, whatever they are, and digits that follow each other without a space for one. Lists with a number in
    every line are often wanted, and long, so the limit is larger: ``max(LEAST_COUNTING_TOKENS,
    LEAST_COUNTING_COPIES * n)``, which is 1,400 copies of a cycle of 3 tokens, 1,050 of 4 and 525 of 8.

    The result depends on the tokens alone, not on how many are pushed per step. The cost per token does not grow with
    the length of the answer.

    Args:
        token_bytes: returns the text of a token in UTF-8.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        lengths = np.arange(1, LONGEST_CYCLE + 1, dtype=np.int32)
        short = LEAST_SHORT_TOKENS + LEAST_SHORT_COPIES * lengths
        self._exact = _Cycles(np.minimum(LEAST_TOKENS + LEAST_COPIES * lengths, short))
        lengths = lengths[:LONGEST_COUNTING_CYCLE]
        self._counting = _Cycles(np.maximum(LEAST_COUNTING_TOKENS, LEAST_COUNTING_COPIES * lengths))
        self._in_number = False
        self._digits: dict[int, tuple[bool, bool]] = {}

    def push(self, token_id: int) -> bool:
        """Add the next token of the answer, at least 0; return whether the answer should end with it."""
        was_in_number, (self._in_number, has_space) = self._in_number, self._digits_of(token_id)
        is_endless = self._exact.push(token_id)
        if not self._in_number:
            return self._counting.push(token_id) or is_endless
        # Digits that go on without a space are more of the same number.
        if was_in_number and not has_space:
            return is_endless
        return self._counting.push(NUMBER) or is_endless

    def forget(self) -> None:
        """Begin to count anew."""
        self._exact.forget()
        self._counting.forget()

    def _digits_of(self, token_id: int) -> tuple[bool, bool]:
        """Return whether a token is digits, and whether a space is before them."""
        found = self._digits.get(token_id)
        if found is None:
            text = self._token_bytes(token_id).decode("utf-8", "replace")
            found = self._digits[token_id] = (text.strip().isdecimal(), text[:1].isspace())
        return found


_AT_ONCE: Final = 32
"""Most tokens that are counted together: one by one they take ten times as long."""


class _Cycles:
    """Counts, for cycles of 1, 2, ... tokens, how long each has lasted.

    A token raises a count by one at most, so nothing has to be counted before as many tokens have come as the nearest
    limit is away.

    Args:
        limits: for every cycle length, the count that is too much; int32.
    """

    def __init__(self, limits: npt.NDArray[np.int32]) -> None:
        # The last tokens, as many as the longest cycle has, and behind them those that are not counted yet.
        self._tokens = np.full(len(limits) + _AT_ONCE, NUMBER - 1, np.int64)
        self._waiting = 0
        self._counts = np.zeros(len(limits), np.int32)
        self._limits = limits
        self._most_waiting = min(_AT_ONCE, int(limits.min()))

    def push(self, token: int) -> bool:
        """Add the next token; return whether a cycle has reached its limit."""
        self._tokens[len(self._limits) + self._waiting] = token
        self._waiting += 1
        return self._waiting >= self._most_waiting and self._count()

    def forget(self) -> None:
        """Begin to count anew."""
        self._counts[:] = 0

    def _count(self) -> bool:
        longest, new = len(self._limits), self._waiting
        # For every cycle length the tokens that should be equal to the new ones.
        before = np.lib.stride_tricks.sliding_window_view(self._tokens[: longest + new - 1], new)[::-1]
        equal = before == self._tokens[longest : longest + new]
        sums = np.where(equal, np.int32(1), np.int32(-SLIP)).cumsum(axis=1, dtype=np.int32)
        # A sum that may not fall below 0 at any token.
        self._counts = sums[:, -1] - np.minimum(sums.min(axis=1), -self._counts)
        self._tokens[:longest] = self._tokens[new : new + longest].copy()
        self._waiting = 0
        left = int((self._limits - self._counts).min())
        self._most_waiting = max(1, min(_AT_ONCE, left))
        return left <= 0
