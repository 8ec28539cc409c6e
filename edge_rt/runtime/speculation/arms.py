"""Ways of drafting (arms), where a source that computes is asked, and the bandit for sources that take time."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True)
class Arm:
    """One way of drafting."""

    name: str
    mask: int


OFF = 0
"""Arm that drafts nothing."""


def arms_of(names: Items[str], computing: Items[str] = ()) -> tuple[Arm, ...]:
    """Return the arms of sources: no drafting, those that look texts up if others compute, and all together.

    Args:
        computing: of those that compute their guesses, such as a head.
    """
    masks = {name: 1 << index for index, name in enumerate(names)}
    texts = [name for name in names if name not in computing]
    arms = [Arm("off", 0)]
    if 0 < len(texts) < len(names):
        arms.append(Arm(texts[0] if len(texts) == 1 else "texts", sum(masks[name] for name in texts)))
    if names:
        arms.append(Arm(names[0] if len(names) == 1 else "fusion", sum(masks.values())))
    return tuple(arms)


def texts_arm(arms: Items[Arm]) -> int | None:
    """Return the arm of all sources that look texts up; None where no source computes, or no other does not."""
    return 1 if len(arms) > 2 else None


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
            without: expected tokens per millisecond of the texts' draft alone.
            with_it: the same of the draft with the source, its time included.
        """
        level = _level(value)
        gain = math.log(with_it / without)
        self._gains[level] += (1.0 - _KEEP) * (gain - self._gains[level])


def _level(value: float) -> int:
    return min(int(value * _LEVELS), _LEVELS - 1)


MAX_REWARD: Final = 2.0
"""Largest reward; larger ones are cut to it."""


class Bandit(Protocol):
    """Chooses among arms."""

    def choose(self) -> int:
        """Return the arm to try next."""

    def learn(self, arm: int, reward: float) -> None:
        """Learn the reward of an arm."""


class DiscountedUCB:
    """Chooses the arm with the largest mean plus a bonus for arms with few trials; old trials fade.

    Args:
        priors: assumed mean of every arm, worth one trial that never fades.
        keep: factor on the weight of every earlier trial, applied at each new trial.
    """

    def __init__(self, priors: tuple[float, ...], *, keep: float = 0.995, bonus: float = 0.08) -> None:
        self._priors = priors
        self._keep = keep
        self._bonus = bonus
        self._sums = [0.0] * len(priors)
        self._counts = [0.0] * len(priors)

    def means(self) -> list[float]:
        """Return the expected reward of every arm."""
        facts = zip(self._priors, self._sums, self._counts, strict=True)
        return [(prior + total) / (1.0 + count) for prior, total, count in facts]

    def choose(self) -> int:
        """Return the arm with the largest upper bound; of equal arms the first."""
        log = math.log(2.0 + sum(self._counts))
        pairs = zip(self.means(), self._counts, strict=True)
        bounds = [mean + self._bonus * math.sqrt(log / (1.0 + count)) for mean, count in pairs]
        return bounds.index(max(bounds))

    def learn(self, arm: int, reward: float) -> None:
        """Learn a reward; earlier trials of every arm fade."""
        self._sums = [self._keep * total for total in self._sums]
        self._counts = [self._keep * count for count in self._counts]
        self._sums[arm] += reward
        self._counts[arm] += 1.0
