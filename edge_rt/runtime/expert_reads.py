"""What an answer reads of experts that are not in the cache."""

from __future__ import annotations

from collections.abc import Callable

from edge_rt.ort.expert_cache import ExpertReads
from edge_rt.runtime.results import ExpertStats

ExpertCounts = Callable[[], tuple[ExpertReads, int]]
"""Returns what a cache of experts has done so far, and its bytes."""


class ReadsOfAnswer:
    """Counts from the begin of an answer on, and from its first token on."""

    def __init__(self, counts: ExpertCounts) -> None:
        self._counts = counts
        self._first: ExpertReads | None = None
        self.begin()

    def begin(self) -> None:
        """Begin to count."""
        self._begun, self._cache_bytes = self._counts()

    def tick(self) -> None:
        """Count a step that gave tokens."""
        if self._first is None:
            self._first = self._counts()[0]

    def statistics(self, tokens: int) -> ExpertStats:
        """Return what was read for an answer of that many tokens."""
        now = self._counts()[0]
        whole = now.since(self._begun)
        behind = 0 if self._first is None else now.since(self._first).bytes
        return ExpertStats(
            cache_bytes=self._cache_bytes,
            hits=whole.hits,
            misses=whole.misses,
            hit_share=whole.hit_share,
            read_bytes=whole.bytes,
            read_bytes_per_token=behind / max(1, tokens - 1),
            waited_ms=whole.waited_ms,
        )
