"""Token recycling: drafts the tokens that the model found likely the last time it saw the same context.

Every pass computes the most likely next tokens of every row, rows of rejected draft tokens included. They are kept per
context and drafted when the context occurs again. Source: Luo et al., "Turning Trash into Treasure: Accelerating
Inference of Large Language Models with Token Recycling" (contexts of one token), with the longer keys of STAND (Song et
al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling").
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Final

import numpy as np

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.source import Guess
from edge_rt.runtime.speculation.text_sources import (
    LEVELS,
    LOG_BOUNDS,
    MAX_CONTEXTS,
    MAX_ORDER,
    RANKS,
    recycling_kinds,
    recycling_prior,
)

MAX_LIKELY: Final = 8
"""Most likely tokens that are kept of a context."""
# Measured bytes: of a context, and of each of its likely tokens.
_CONTEXT_BYTES: Final = 150
_LIKELY_BYTES: Final = 45

Cursor = tuple[int, ...]
Entry = list[tuple[int, int]]


class RecyclingSource:
    """Remembers the likely tokens after contexts of 1 to ``max_order`` tokens.

    A context that occurs again replaces its earlier entry. Cursors are contexts: the last ``max_order`` tokens.

    Args:
        max_order: longest context in tokens.
        max_contexts: contexts kept of each order.
    """

    name = "recycling"

    def __init__(self, *, max_order: int = MAX_ORDER, max_contexts: int = MAX_CONTEXTS) -> None:
        self.num_kinds = recycling_kinds(max_order)
        self._max_order = max_order
        self._max_contexts = max_contexts
        self._entries: list[dict[Cursor, Entry]] = [{} for _ in range(max_order)]
        self._context: Cursor = ()
        self._likely = 0

    def prior(self, kind: int) -> float:
        """Return the probability that the model gave, reduced for shorter contexts."""
        return recycling_prior(kind)

    def begin(self, token_ids: Items[int]) -> None:
        """Move to the end of the known tokens; learned contexts are kept."""
        self._context = tuple(token_ids[-self._max_order :])

    def extend(self, token_ids: Items[int]) -> None:
        """Move past emitted tokens."""
        self._context = (*self._context, *token_ids)[-self._max_order :]

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Keep the likely tokens of every row, accepted or not; without ``outputs.top`` nothing is learned."""
        del accepted
        if outputs.top is None:
            return
        # Compared as logarithms, which takes no exponential and has the same result on every machine.
        shares = outputs.top.logits[:, :MAX_LIKELY] - outputs.top.log_sum_exp[:, None]
        levels = np.searchsorted(LOG_BOUNDS[1:], shares, side="right").tolist()
        counts = (shares >= LOG_BOUNDS[0]).sum(axis=1).tolist()
        ids = outputs.top.ids[:, :MAX_LIKELY].tolist()
        contexts = [context[-self._max_order :]]
        for parent, token in zip(draft.parents, draft.token_ids, strict=True):
            contexts.append((*contexts[parent - ROOT], token)[-self._max_order :])
        for row, behind in enumerate(contexts):
            count = counts[row]
            if not count:
                continue
            entry = list(zip(ids[row][:count], levels[row][:count], strict=True))
            for order in range(1, len(behind) + 1):
                self._keep(self._entries[order - 1], behind[-order:], entry)

    def _keep(self, entries: dict[Cursor, Entry], context: Cursor, entry: Entry) -> None:
        # Inserted again, so that the entry not seen for longest is dropped first.
        old = entries.pop(context, None)
        if old is None and len(entries) >= self._max_contexts:
            old = entries.pop(next(iter(entries)))
        self._likely += len(entry) - (len(old) if old is not None else 0)
        entries[context] = entry

    def root(self) -> Cursor | None:
        """Return the last known tokens."""
        return self._context or None

    def children(self, cursor: Cursor) -> list[Guess]:
        """Return the likely tokens after the longest context that is known."""
        for order in range(len(cursor), 0, -1):
            entry = self._entries[order - 1].get(cursor[-order:])
            if entry is not None:
                base = (order - 1) * RANKS * LEVELS
                rest = cursor[-(self._max_order - 1) :] if self._max_order > 1 else ()
                return [
                    Guess(token, base + (rank if rank < RANKS else RANKS - 1) * LEVELS + level, (*rest, token))
                    for rank, (token, level) in enumerate(entry)
                ]
        return []

    @property
    def memory_bytes(self) -> int:
        """Bytes of the kept contexts: about 150 each, and 45 for each of their one to eight likely tokens."""
        return _CONTEXT_BYTES * sum(len(entries) for entries in self._entries) + _LIKELY_BYTES * self._likely
