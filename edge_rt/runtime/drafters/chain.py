"""Chains that a network drafts a token at a time, with siblings from the same rows, as a forest of guesses."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence as Items
from typing import Final, NamedTuple

from edge_rt.runtime.decode.draft import ROOT
from edge_rt.runtime.drafters.forest import Forest

MAX_CHAIN: Final = 8
"""Longest chain that is drafted."""
RANKS: Final = 3
"""Further likely tokens of a row that may be drafted beside the first one."""
SURENESS: Final = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92)
"""Bounds of the ranges of probability that a network gives its guess."""
_LEVELS: Final = len(SURENESS) + 1
_SIBLINGS: Final = MAX_CHAIN * _LEVELS
CHAIN_KINDS: Final = _SIBLINGS + RANKS
"""Kinds of guesses: a place of the chain with a range of probability, or a sibling's rank."""
_SIBLING: Final = 0.1


class ChainGuess(NamedTuple):
    """What a network says behind one row of the chain.

    Attributes:
        token_id: the likeliest token, which goes on with the chain.
        probability: that the network gives it.
        siblings: the next likely ones.
    """

    token_id: int
    probability: float
    siblings: tuple[int, ...]


def chain_prior(kind: int, first: float) -> float:
    """Return the probability that a guess is right before anything is learned.

    Args:
        kind: of the guess.
        first: that a guess of middling probability is right.
    """
    if kind >= _SIBLINGS:
        return _SIBLING / (1 + kind - _SIBLINGS)
    return first * (0.5 + kind % _LEVELS / (_LEVELS - 1))


def chain_forest(guesses: Items[ChainGuess]) -> Forest:
    """Return a chain with its siblings, behind which there is nothing."""
    tokens: list[int] = []
    parents: list[int] = []
    kinds: list[int] = []
    parent = ROOT
    for place, guess in enumerate(guesses):
        node = len(tokens)
        tokens += [guess.token_id, *guess.siblings]
        parents += [parent] * (1 + len(guess.siblings))
        kinds.append(min(place, MAX_CHAIN - 1) * _LEVELS + bisect(SURENESS, guess.probability))
        kinds += range(_SIBLINGS, _SIBLINGS + len(guess.siblings))
        parent = node
    return Forest.of(tokens, parents, kinds)
