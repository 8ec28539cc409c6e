"""A second model that drafts: its rows follow the text of another model, and may run ahead of it."""

from __future__ import annotations

from collections.abc import Sequence as Items

from edge_rt.runtime.cache.kv_cache import KVCache, common_prefix
from edge_rt.runtime.decode.loop import Target
from edge_rt.runtime.forward.outputs import TopTokens


class DraftModel:
    """A model that drafts: its own graph and cache, which follow the tokens of another model.

    Its cache holds what was drafted, too: what the other model accepts need not be computed again. What it says behind
    some rows can be kept until it is asked for (``advance``).

    Args:
        known_tokens: ids below are the same tokens in both models; others are unknown here.
    """

    def __init__(self, runner: Target, cache: KVCache, *, known_tokens: int, stand_in: int, chunk: int) -> None:
        self.cache = cache
        self.known_tokens = known_tokens
        self._runner = runner
        self._stand_in = stand_in
        self._chunk = max(1, min(chunk, cache.largest_pass))
        # Known tokens; so many of the first rows hold them, unless the cache has fewer.
        self._known: list[int] = []
        self._agreed = 0
        # Row -> the likely tokens behind it, of rows that were computed before they were asked for.
        self._ready: dict[int, TopTokens] = {}

    def begin(self, token_ids: Items[int]) -> None:
        """Start a text; what the cache has of it stays."""
        self._known = self._shared(token_ids)
        self._agreed = self.cache.common_prefix(self._known)
        self._ready.clear()

    def extend(self, token_ids: Items[int]) -> None:
        """Add known tokens; rows that were drafted for them stay."""
        known = len(self._known)
        self._known += (more := self._shared(token_ids))
        if self._agreed == known:
            self._agreed += common_prefix(self.cache.tokens_from(known), more)
        if self._ready:
            last = len(self._known) - 1
            self._ready = {row: top for row, top in self._ready.items() if row >= last}

    @property
    def depth(self) -> int:
        """Known tokens."""
        return len(self._known)

    def room(self) -> int:
        """Return how many tokens it can draft: the last one of a chain is not computed."""
        return self.cache.capacity - len(self._known) + 1 if self._known else 0

    def behind(self) -> int:
        """Return how many known tokens it has to compute before the last one."""
        return len(self._known) - 1 - min(self._agreed, len(self._known) - 1)

    def follow(self, drafted: Items[int]) -> TopTokens:
        """Compute what is new of a text, in chunks; see ``Follower.follow``."""
        if (ready := self.ready(drafted)) is not None:
            return ready
        while (top := self._advance(drafted, self._chunk)) is None:
            pass
        return top

    def ready(self, drafted: Items[int]) -> TopTokens | None:
        """Return what ``follow`` would, if it is known already."""
        length = len(self._known) + len(drafted)
        return self._ready.get(length - 1) if self._ready and self._computed(drafted) == length else None

    def advance(self, drafted: Items[int], most: int) -> TopTokens | None:
        """Compute at most so many (at least 1) tokens of what is new, and keep the result for ``follow``.

        Returns:
            As ``follow``; None if there is more to be computed.

        Raises:
            Cancelled: the pass was stopped; what is computed is whole.
        """
        if (top := self.ready(drafted)) is None and (top := self._advance(drafted, min(most, self._chunk))) is not None:
            # The next pass overwrites them.
            top = TopTokens(top.ids.copy(), top.logits.copy(), top.log_sum_exp.copy())
            self._ready[len(self._known) + len(drafted) - 1] = top
        return top

    def _computed(self, drafted: Items[int]) -> int:
        """Return how many rows hold known tokens, and then drafted ones."""
        count = min(self._agreed, self.cache.length)
        if count == len(self._known):
            count += common_prefix(self.cache.tokens_from(count), list(drafted))
        return count

    def _advance(self, drafted: Items[int], most: int) -> TopTokens | None:
        cache, known = self.cache, self._known
        length = len(known) + len(drafted)
        # The last token is computed again if nothing is new: its row's outputs are gone.
        kept = min(self._computed(drafted), length - 1)
        # Before their rows go: an interrupt may come in between.
        self._agreed = min(self._agreed, kept)
        self._ready = {row: top for row, top in self._ready.items() if row < kept}
        kept = cache.truncate(kept)
        pending = [*known[kept : kept + most], *drafted[max(kept - len(known), 0) :]][:most]
        try:
            with cache.reserve(len(pending)) as rows:
                top = self._runner.forward(pending, rows.start, 1).top
                rows.commit(pending)
        finally:
            # An interrupt may come at the end of the block as well.
            cache.end_pass()
        self._agreed = min(cache.length, len(known))
        assert top is not None, "native graphs compute the most likely tokens"
        return top if cache.length == length else None

    def _shared(self, token_ids: Items[int]) -> list[int]:
        return [token if token < self.known_tokens else self._stand_in for token in token_ids]
