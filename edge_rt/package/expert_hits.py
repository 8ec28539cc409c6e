"""How often experts that rows have were there in a text, by how many a cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

MOST_POINTS: Final = 64


@dataclass(frozen=True)
class ExpertHits:
    """Hits of a cache in which the expert goes that was not used for the longest time, token by token.

    Attributes:
        tokens: of the text.
        shares: of all experts that a cache holds: rising, above 0 and below 1.
        hits: for each of them the share of what rows had that was there.
        union_share: neighbouring rows have more experts together than one by so much of what rows would that choose
            evenly.
    """

    tokens: int
    shares: tuple[float, ...]
    hits: tuple[float, ...]
    union_share: float = 1.0

    def at(self, share: float) -> float:
        """Return the share of hits, interpolated."""
        points = ((0.0, 0.0), *zip(self.shares, self.hits, strict=True), (1.0, 1.0))
        for (low, least), (high, most) in pairwise(points):
            if share <= high:
                return least + (share - low) * (most - least) / (high - low)
        return 1.0

    def faults(self) -> Iterator[tuple[str, object, str]]:
        """Yield the fields that are out of range: name, value, and what is wanted, in words."""
        if self.tokens < 1:
            yield "tokens", self.tokens, "a number above 0"
        points = (0.0, *self.shares, 1.0)
        if len(points) > MOST_POINTS or not all(a < b for a, b in pairwise(points)):
            yield "shares", len(self.shares), f"up to {MOST_POINTS} rising numbers between 0 and 1"
        counts = (0.0, *self.hits, 1.0)
        if len(self.hits) != len(self.shares) or not all(a <= b for a, b in pairwise(counts)):
            yield "hits", len(self.hits), "as many numbers from 0 to 1, which do not fall"
        if not 0 <= self.union_share <= 1:
            yield "union_share", self.union_share, "a number from 0 to 1"


EVEN: Final = ExpertHits(1, (), ())
"""Of experts that are all as likely: an expert is there as often as a cache has room for it."""
