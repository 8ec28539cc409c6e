"""Whether a source that computes is worth asking in a step, given how sure the texts are."""

from __future__ import annotations

import math
from typing import Final

_LEVELS: Final = 10
_KEEP: Final = 0.9
_FADE: Final = 0.8
_EXPLORE_STEPS: Final = 24
# Gains before anything is learned: a head helps where texts say nothing, and not where they are sure.
_FIRST_GAIN: Final = 0.15
_SURE: Final = 0.7


class Asking:
    """Learns how much faster steps become, by how likely the best guess of the texts is.

    A head, early layers or a second model cost milliseconds whether or not their guesses are right. Where the text
    before has been seen already they find what it says; where it has not, they are all there is. For ten levels of the
    texts' best guess the gain is kept: the logarithm of expected tokens per millisecond with the source, its own time
    included, over those without it. A source is asked where the gain is positive, and now and then elsewhere.
    """

    def __init__(self) -> None:
        self._gains = [self._first(level) for level in range(_LEVELS)]
        self._skipped = 0

    @staticmethod
    def _first(level: int) -> float:
        return _FIRST_GAIN * (1.0 - (level + 0.5) / _LEVELS / _SURE)

    def begin(self) -> None:
        """Start a generation: what was learned fades a little, as in ``AcceptanceModel``."""
        for level, gain in enumerate(self._gains):
            first = self._first(level)
            self._gains[level] = first + _FADE * (gain - first)

    def wants(self, value: float) -> bool:
        """Return whether to ask, where the best guess of the texts is right with the probability ``value``."""
        if self._gains[_level(value)] > 0.0:
            return True
        self._skipped += 1
        if self._skipped < _EXPLORE_STEPS:
            return False
        self._skipped = 0
        return True

    def learn(self, value: float, without: float, with_it: float) -> None:
        """Learn from a step in which the source was asked.

        Args:
            value: as given to ``wants``.
            without: expected tokens per millisecond of the texts' draft alone.
            with_it: the same of the draft with the source, its time included.
        """
        level = _level(value)
        gain = math.log(with_it / without)
        self._gains[level] += (1.0 - _KEEP) * (gain - self._gains[level])


def _level(value: float) -> int:
    return min(int(value * _LEVELS), _LEVELS - 1)
