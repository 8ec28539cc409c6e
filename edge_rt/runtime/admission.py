"""Who waits for a slot, who gets one with which rows, and what becomes of the rows afterwards."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence as Items
from typing import Final, NamedTuple

import numpy as np

from edge_rt.errors import QueueFull
from edge_rt.package.kv_formats import ROW_BLOCK
from edge_rt.runtime.cache.kv_cache import KVCache, common_prefix
from edge_rt.runtime.cache.row_pool import PooledCache, Resting, RowPool, in_blocks
from edge_rt.runtime.decode.draft import Drafter
from edge_rt.runtime.decode.loop import AcceptanceRule, Decoding
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.generation import Generation
from edge_rt.runtime.results import Event
from edge_rt.runtime.stream import Outcome

MOST_OVERTAKEN: Final = 8
"""How often a generation whose rows do not fit is overtaken by one that came later."""
LOOKED_AT: Final = 16
"""Generations that wait of which one may overtake."""
LEAST_AWAITED: Final = 32
"""Tokens of a prompt that are worth waiting for, if another generation is about to compute them."""

Drafting = Callable[[int, bool], tuple[Drafter, AcceptanceRule]]
"""Returns who drafts for an answer of a slot, networks as well or texts alone, and which of the drafted tokens stay."""


class Wanted(NamedTuple):
    """How a generation is computed.

    Attributes:
        drafting: chooses who drafts.
        is_alone: whether it shares no pass, because its text depends on its drafts.
        outer: the caller's token, which stops it.
    """

    drafting: Drafting
    is_alone: bool = False
    outer: CancelToken | None = None


class Ticket:
    """A generation that was submitted.

    Attributes:
        events: made and not read yet.
        error: what it failed with; None: it did not.
        has_ended: whether no further event comes.
        overtaken: how often one that came later began before it.
        note: what is said of it once it goes on, which was begun on a device that has failed; None: it was not.
    """

    def __init__(self, generation: Generation, outcome: Outcome, wanted: Wanted) -> None:
        self.generation, self.outcome, self.wanted = generation, outcome, wanted
        self.events: deque[Event] = deque()
        self.error: BaseException | None = None
        self.has_ended = False
        self.overtaken = 0
        self.slot: int | None = None
        self.decoding: Decoding | None = None
        self.drafts = False
        self.note: str | None = None
        self.unsubscribe: Callable[[], None] | None = None

    @property
    def running(self) -> Decoding:
        """What computes it."""
        assert self.decoding is not None, "it has no slot"
        return self.decoding


class Turn:
    """Somebody who waits for a model that computes no generation; those behind wait as well."""


class Awaited(NamedTuple):
    """Rows that a generation is about to compute, and another one waits for."""

    ticket: Ticket
    length: int

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for any more."""
        decoding = self.ticket.decoding
        return self.ticket.has_ended or decoding is None or decoding.cache.length >= self.length


class Admission:
    """Slots and rows, and the generations that wait for them.

    First come, first served. Whoever begins has all rows that its longest answer needs, so it is cut short by nobody.
    It shares those of the longest beginning that any other generation has computed, or has left behind; where another
    one is about to compute much of its prompt, it waits for that, with a slot kept for it. One whose rows do not fit is
    overtaken by later ones whose rows do, at most ``MOST_OVERTAKEN`` times; then nobody begins before it.

    Args:
        caches: one for every slot.
        pool: that of the caches; None: there is one cache, with rows of its own, which keeps what it holds.
        most_waiting: how many may wait; None: any number.
    """

    def __init__(self, caches: Items[KVCache], pool: RowPool | None = None, *, most_waiting: int | None = None) -> None:
        self.caches: tuple[KVCache, ...] = ()
        self.pool: RowPool | None = None
        self._pooled: tuple[PooledCache, ...] = ()
        self._awaited: list[Awaited] = []
        self._take(caches, pool)
        self.active: list[Ticket] = []  # in the order in which they began
        self._most_waiting = most_waiting
        self._waiting: deque[Ticket | Turn] = deque()
        # Reentrant: a stream that is collected as garbage leaves wherever a thread happens to be.
        self._lock = threading.RLock()

    @property
    def waiting(self) -> tuple[Ticket, ...]:
        """Those that wait, in the order in which they came."""
        with self._lock:
            waiting = tuple(self._waiting)
        return tuple(one for one in waiting if isinstance(one, Ticket))

    @property
    def head(self) -> Ticket | None:
        """Who waits for a slot that is free, and came first; None: nobody."""
        with self._lock:
            first = self._waiting[0] if self._waiting and len(self.active) < len(self.caches) else None
        return first if isinstance(first, Ticket) else None

    def cache_of(self, ticket: Ticket) -> KVCache:
        """Return the cache of a generation that has begun."""
        assert ticket.slot is not None, "it has no slot"
        return self.caches[ticket.slot]

    def exchange(self, caches: Items[KVCache], pool: RowPool | None, note: str) -> None:
        """Take other caches in place of those whose rows are lost; who was under way begins again, before who waits.

        Args:
            note: what is said of those.
        """
        for ticket in self.active:
            ticket.note = ticket.note if ticket.decoding is None else note
            ticket.slot, ticket.decoding = None, None
        with self._lock:
            self._waiting.extendleft(reversed(self.active))
            self.active.clear()
            self._take(caches, pool)

    def _take(self, caches: Items[KVCache], pool: RowPool | None) -> None:
        assert pool is not None or len(caches) == 1, len(caches)
        self.caches, self.pool = tuple(caches), pool
        self._pooled = tuple(cache for cache in caches if isinstance(cache, PooledCache))
        assert not self._pooled or len(self._pooled) == len(caches), "slots of two kinds"
        # Looking through all that wait in vain takes time, so it is done only when something has changed.
        self._has_changed, self._awaited = True, []

    @property
    def has_work(self) -> bool:
        """Whether anything is under way or waits."""
        return bool(self.active or self._waiting)

    @property
    def most(self) -> int | None:
        """How many may be under way or wait together; None: any number."""
        return None if self._most_waiting is None else len(self.caches) + self._most_waiting

    @property
    def is_full(self) -> bool:
        """Whether one more would be refused."""
        return self.most is not None and self._num_there >= self.most

    @property
    def _num_there(self) -> int:
        """How many are under way or wait."""
        # Who has ended may not have left yet, and its reader may come back at once.
        with self._lock:
            return sum(isinstance(one, Turn) or not one.has_ended for one in (*self.active, *self._waiting))

    def add(self, ticket: Ticket, retry_after: Callable[[], float]) -> None:
        """Let a generation wait, from any thread.

        Args:
            retry_after: estimates in how many seconds there is room.

        Raises:
            QueueFull: too many wait.
        """
        with self._lock:
            if self.is_full:
                # Some that wait may only not have been given their slots yet.
                raise QueueFull(self._num_there - len(self.caches), retry_after())
            self._waiting.append(ticket)
            self._has_changed = True

    def add_turn(self, turn: Turn) -> None:
        """Let somebody wait until all that came before have ended, from any thread."""
        with self._lock:
            self._waiting.append(turn)

    def is_turn(self, turn: Turn) -> bool:
        """Return whether all that came before have ended."""
        with self._lock:
            return not self.active and self._waiting[0] is turn

    @property
    def is_held(self) -> bool:
        """Whether somebody's turn has come, or is about to."""
        with self._lock:
            return not self.active and bool(self._waiting) and isinstance(self._waiting[0], Turn)

    def end_turn(self, turn: Turn) -> None:
        """Let those behind somebody begin."""
        with self._lock:
            self._waiting.remove(turn)
            self._has_changed = True

    def next(self) -> Ticket | None:
        """Return the generation that begins now, with a slot and its rows; None: nobody can."""
        taken = {ticket.slot for ticket in self.active}
        # Networks that draft know the first slot alone, which is free where nobody else computes.
        free = [index for index in range(len(self.caches)) if index not in taken]
        if not free or not (self._has_changed or any(one.is_over for one in self._awaited)):
            return None
        with self._lock:
            candidates = list(self._waiting)[:LOOKED_AT]
            self._has_changed = False
        self._awaited = []
        if self._pooled:
            self._pooled[free[0]].rest()  # what passes without a generation have left
        passed: list[Ticket] = []
        kept = 0
        for ticket in candidates:
            if isinstance(ticket, Turn) or len(free) <= len(self._awaited):
                return None
            if self.active and (ticket.wanted.is_alone or self.active[0].wanted.is_alone):
                return None
            sequence = ticket.generation.sequence
            source, length = self._longest(sequence.token_ids[:-1])
            awaited = self._about_to_be_computed(sequence.token_ids[:-1])
            if awaited is not None and awaited.length >= length + LEAST_AWAITED:
                self._awaited.append(awaited)
                kept += in_blocks(sequence.most_rows) - awaited.length // ROW_BLOCK
            elif self._claim(free[0], sequence.most_rows, source, length, kept):
                self._begin(ticket, free[0], passed)
                return ticket
            elif ticket.overtaken >= MOST_OVERTAKEN:
                return None
            else:
                passed.append(ticket)
        return None

    def _begin(self, ticket: Ticket, slot: int, passed: Items[Ticket]) -> None:
        ticket.slot = slot
        for other in passed:
            other.overtaken += 1
        with self._lock:
            # In this order: who is in both, as behind an interrupt, is lost by neither.
            self.active.append(ticket)
            self._waiting.remove(ticket)
            self._has_changed = True

    def leave(self, ticket: Ticket) -> None:
        """Forget a generation that has ended, or waits no longer; its rows rest. After an interrupt call it again."""
        if ticket in self.active:
            self._give_back(ticket)
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            self._has_changed = True

    def _give_back(self, ticket: Ticket) -> None:
        """Let the rows of a generation rest, and free its slot."""
        if self._pooled and ticket.slot is not None:
            cache = self._pooled[ticket.slot]
            try:
                cache.rest()
            except MemoryError:
                cache.release()
        self.active.remove(ticket)

    def mend(self) -> None:
        """Count anew who holds which rows, and let those wait again that were about to begin: after an interrupt.

        After another one, call it again.
        """
        if self.pool is not None:
            self.pool.recount(self._pooled)
        for ticket in reversed(tuple(self.active)):
            if ticket.decoding is None:
                with self._lock:
                    if ticket not in self._waiting:
                        self._waiting.appendleft(ticket)
                self._give_back(ticket)
        self._has_changed = True

    def forget(self) -> None:
        """Forget all rows that no generation computes with."""
        taken = {ticket.slot for ticket in self.active}
        for slot in set(range(len(self.caches))) - taken:
            self.caches[slot].truncate(0)
            if self._pooled:
                self._pooled[slot].release()
        if self.pool is not None:
            self.pool.forget()

    def cache_with(self, token_ids: Items[int]) -> KVCache:
        """Return a free cache with the longest beginning of some tokens that there is; nothing may be under way."""
        assert not self.active, "a generation is under way"
        if self._pooled:
            self._pooled[0].rest()
            self._pooled[0].begin(*self._longest(token_ids))
        return self.caches[0]

    def check(self) -> None:
        """Assert the invariants between two steps."""
        taken = [ticket.slot for ticket in self.active]
        assert len(set(taken)) == len(taken), taken
        for cache in self.caches:
            cache.check()
            assert not cache.reserved, cache.reserved
        if self.pool is not None:
            self.pool.check(self._pooled)
        for ticket in self.active:
            sequence, cache = ticket.generation.sequence, self.caches[ticket.slot or 0]
            assert cache.token_ids == tuple(sequence.token_ids[: cache.length]), ticket.slot
            if self._pooled:
                assert len(self._pooled[ticket.slot or 0].blocks) >= in_blocks(sequence.most_rows), "rows are missing"

    def _claim(self, slot: int, rows: int, source: PooledCache | Resting | None, length: int, kept: int) -> bool:
        """Give a slot all its rows, the first of them another sequence's; return False where they do not fit.

        Args:
            kept: blocks that are kept for those who wait for rows that are about to be computed.
        """
        if self.pool is None:
            return True
        cache = self._pooled[slot]
        try:
            cache.begin(source, length)
        except BaseException:
            # Rows without their tokens, or without what is seen behind them, are nothing that could rest.
            cache.release()
            raise
        try:
            if in_blocks(rows) - len(cache.blocks) <= self.pool.num_available - kept:
                cache.provide(rows)
                return True
        except BaseException:
            self._put_back(cache, source)
            raise
        self._put_back(cache, source)
        return False

    def _put_back(self, cache: PooledCache, source: PooledCache | Resting | None) -> None:
        if isinstance(source, Resting):
            cache.rest()
        else:
            cache.release()

    def _longest(self, token_ids: Items[int]) -> tuple[PooledCache | Resting | None, int]:
        """Return the sequence with the longest beginning of some tokens, and its length; the newest of equal ones."""
        ids = np.asarray(token_ids, np.int32)
        best: tuple[PooledCache | Resting | None, int] = (None, 0)
        if not self._pooled:
            return best
        for cache in self._live():
            # All slots reach as far.
            if (length := cache.reach_of(cache, cache.common_prefix(token_ids))) > best[1]:
                best = cache, length
        for resting in () if self.pool is None else self.pool.resting:
            if (length := resting.common_prefix(ids)) and length >= best[1]:
                length = self._pooled[0].reach_of(resting, length)
                best = (resting, length) if length and length >= best[1] else best
        return best

    def _live(self) -> Iterator[PooledCache]:
        return (self._pooled[ticket.slot] for ticket in self.active if self._pooled and ticket.slot is not None)

    def _about_to_be_computed(self, token_ids: list[int]) -> Awaited | None:
        """Return the longest beginning of some tokens that is part of a prompt under way, and can be shared then."""
        best = None
        for ticket in self.active if self._pooled else ():
            assert ticket.slot is not None
            other, cache = ticket.generation.sequence, self._pooled[ticket.slot]
            if cache.length >= other.num_prompt_tokens:
                continue
            length = cache.next_reach(common_prefix(token_ids, other.token_ids[: other.num_prompt_tokens]))
            if length > cache.length and (best is None or length > best.length):
                best = Awaited(ticket, length)
        return best
