"""How many examples hypothesis draws."""

from __future__ import annotations

from hypothesis import settings

ALL = 100
"""What a profile that draws all of them has as its ``max_examples``."""


def share_of(count: int) -> int:
    """Return how many of ``count`` examples to draw: all with ``--hypothesis-profile all``, else a third of them."""
    return max(count * settings.default.max_examples // ALL, 10)
