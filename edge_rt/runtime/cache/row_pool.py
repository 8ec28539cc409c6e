"""Rows of one cache that several sequences share, in blocks: what is free, and how many maps hold the others.

Rows of sequences that have ended rest: whoever begins alike takes them up, until somebody else wants the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.package.kv_formats import ROW_BLOCK
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.sliding_window import SlidingWindow
from edge_rt.runtime.cache.state_slots import StateSlots
from edge_rt.runtime.cache.window_copies import WindowCopies
from edge_rt.system.byte_size import counted


@dataclass(frozen=True, eq=False)
class Resting:
    """The rows of a sequence that nobody computes any more.

    Attributes:
        token_ids: int32 ``[length]``.
        row_map: int32 ``[>= length]``, position -> row; it has all rows of its blocks.
    """

    token_ids: npt.NDArray[Any]
    row_map: npt.NDArray[Any]

    def common_prefix(self, token_ids: npt.NDArray[Any]) -> int:
        """Return how many of its first tokens are those of another sequence."""
        count = min(len(self.token_ids), len(token_ids))
        differ = self.token_ids[:count] != token_ids[:count]
        return int(differ.argmax()) if differ.any() else count

    @property
    def blocks(self) -> list[int]:
        """Blocks of the pool that it holds, each once."""
        return _blocks_of(self.row_map)


class RowPool:
    """Blocks of a cache's rows, with counts of the maps that hold them.

    A block that several hold is never written: its rows are a common beginning of their sequences. The IO binding has
    the memory of the rows (``NativeIOBinding`` with ``rows``).

    Args:
        most_resting: sequences whose rows are kept after their end, until the memory is wanted.
    """

    def __init__(self, rows: int, *, most_resting: int = 0) -> None:
        assert rows >= ROW_BLOCK, rows
        self._counts: npt.NDArray[Any] = np.zeros(rows // ROW_BLOCK, np.int32)
        self._most_resting = most_resting
        self._resting: list[Resting] = []  # the oldest first
        self.recount(())

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return len(self._counts)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Blocks that nobody computes with: free ones, and those that resting sequences alone hold."""
        return int(np.count_nonzero(self._counts == self._resting_counts))

    @property
    def resting(self) -> tuple[Resting, ...]:
        """The sequences that rest, the oldest first."""
        return tuple(self._resting)

    def take(self, count: int) -> list[int]:
        """Return blocks that nobody computes with, all or none; what rests makes room, the oldest first."""
        if count > len(self._free) and count > (available := self.num_available):
            raise MemoryBudgetExceeded(
                "The cache that sequences share has no rows left.",
                f"{counted(count * ROW_BLOCK, 'row')} wanted, {available * ROW_BLOCK} of "
                f"{self.num_blocks * ROW_BLOCK} free.",
                "Wait until another answer has ended, or load the model with more rows.",
            )
        while count > len(self._free):
            self.drop(self.wake(self._resting[0]).blocks)
        blocks = [self._free.pop() for _ in range(count)]
        self._counts[blocks] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Count one map more that holds blocks which somebody holds."""
        assert (self._counts[blocks] > 0).all(), blocks
        self._counts[blocks] += 1

    def drop(self, blocks: Sequence[int]) -> None:
        """Count one map less; blocks that nobody holds any more are free."""
        assert (self._counts[blocks] > 0).all(), blocks
        self._counts[blocks] -= 1
        self._free += [block for block in blocks if self._counts[block] == 0]
        self._free.sort(reverse=True)

    def keep(self, sequence: Resting) -> None:
        """Let a sequence rest, whose blocks its cache has held until now; what says less than another one goes."""
        self._resting.append(sequence)
        self._resting_counts[sequence.blocks] += 1
        for other in self._resting[:-1]:
            count = other.common_prefix(sequence.token_ids)
            if count == len(other.token_ids):
                self.drop(self.wake(other).blocks)
            elif count == len(sequence.token_ids):
                self.drop(self.wake(sequence).blocks)
                # It is as good as new.
                self._resting.remove(other)
                self._resting.append(other)
                return
        while len(self._resting) > self._most_resting:
            self.drop(self.wake(self._resting[0]).blocks)

    def wake(self, sequence: Resting) -> Resting:
        """Return a resting sequence, which rests no longer; its blocks are the caller's."""
        self._resting.remove(sequence)
        self._resting_counts[sequence.blocks] -= 1
        return sequence

    def forget(self) -> None:
        """Free the rows of all sequences that rest."""
        while self._resting:
            self.drop(self.wake(self._resting[0]).blocks)

    def recount(self, caches: Iterable[PooledCache]) -> None:
        """Count anew what all caches and resting sequences hold: an interrupt may have come between two counts.

        Sequences rest as many as may; an interrupt here changes nothing.
        """
        kept = self._resting[max(0, len(self._resting) - self._most_resting) :]
        resting, own = np.zeros_like(self._counts), np.zeros_like(self._counts)
        for sequence in kept:
            resting[sequence.blocks] += 1
        for cache in caches:
            own[cache.blocks] += 1
        counts = own + resting
        # The lowest first: rows that were never written take no memory.
        free: list[int] = np.flatnonzero(counts == 0)[::-1].tolist()
        self._resting, self._resting_counts, self._counts, self._free = kept, resting, counts, free

    def is_shared(self, blocks: npt.NDArray[Any]) -> bool:
        """Return whether several maps hold one of some blocks."""
        return bool((self._counts[blocks] > 1).any())

    def check(self, caches: Iterable[PooledCache]) -> None:
        """Assert the invariants of the pool and of all its caches.

        Every block is free, or counted once for each cache that holds it; nobody writes what others hold.
        """
        counts, resting = Counter[int](), Counter[int]()
        for cache in caches:
            cache.check()
            counts.update(cache.blocks)
        for sequence in self._resting:
            assert len(sequence.token_ids) <= len(sequence.row_map) == len(sequence.blocks) * ROW_BLOCK, sequence
            resting.update(sequence.blocks)
        counts += resting
        kept = {block: count for block, count in enumerate(self._resting_counts.tolist()) if count}
        assert kept == dict(resting), (kept, resting)
        assert len(self._resting) <= self._most_resting, len(self._resting)
        assert {block: count for block, count in enumerate(self._counts.tolist()) if count} == dict(counts), counts
        assert sorted(self._free) == [block for block in range(self.num_blocks) if block not in counts], self._free


class PooledCache(KVCache):
    """The bookkeeping of one sequence whose rows are a pool's, with a map of its own.

    It has rows only where some were provided, which reserving does as well. Sequences that begin alike share the rows
    of their beginning, whole blocks of them. With states, or windows, they share what a copy of these is kept of, and
    what rests is as long as the last one.

    Args:
        capacity: most positions.
        row_bytes: bytes of one token in all layers.
        states: of the sequence, in layers that have some; None: there are no such layers.
        window: rows of its own, in layers with a sliding window; None: there are no such layers.
        copies: of what the window's rows are; only with one.
    """

    _stop_step = ROW_BLOCK

    def __init__(
        self,
        capacity: int,
        pool: RowPool,
        *,
        row_bytes: int = 0,
        states: StateSlots | None = None,
        window: SlidingWindow | None = None,
        copies: WindowCopies | None = None,
    ) -> None:
        assert (window is None) == (copies is None), "a window whose rows nobody copies"
        assert states is None or window is None, "states and a window"
        self._map = np.zeros(in_blocks(capacity) * ROW_BLOCK, np.int32)
        super().__init__(capacity, row_bytes=row_bytes, row_map=self._map[:capacity], window=window, states=states)
        self._pool, self._copies = pool, copies
        self._kept = states or copies
        self._provided = 0

    @property
    def blocks(self) -> list[int]:
        """Blocks of the pool that this cache holds, each once."""
        return self._blocks_of(0, self._provided)

    def provide(self, positions: int) -> None:
        """Give rows to those of the first positions that have none, to all or to none of them."""
        missing = in_blocks(positions) - self._provided // ROW_BLOCK
        if missing > 0:
            blocks = np.asarray(self._pool.take(missing), np.int32)
            end = self._provided + missing * ROW_BLOCK
            self._map[self._provided : end] = (
                blocks[:, None] * ROW_BLOCK + np.arange(ROW_BLOCK, dtype=np.int32)
            ).ravel()
            self._provided = end

    def reach_of(self, source: PooledCache | Resting, length: int) -> int:
        """Return with how many of another sequence's first rows, at most ``length``, this one can begin.

        Those are all of one that rests, which then rests no longer; else whole blocks.
        """
        rows, token_ids = self._rows_of(source)
        lengths = [length] if self._kept is None else self._kept.kept_lengths(token_ids, length)
        if isinstance(source, Resting) and lengths[:1] == [len(token_ids)]:
            return length
        if self._kept is None:
            return _whole_blocks(rows, length)
        return next((kept for kept in lengths if _whole_blocks(rows, kept) == kept), 0)

    def next_reach(self, length: int) -> int:
        """Return with how many of this sequence's first rows, at most ``length``, others can begin before long."""
        if self._kept is None:
            return length // ROW_BLOCK * ROW_BLOCK
        return max((stop for stop in self.next_stops if stop <= length), default=0)

    def begin(self, source: PooledCache | Resting | None, length: int) -> None:
        """Begin with so many rows of another sequence, as ``reach_of`` says; this one must have no rows."""
        if isinstance(source, Resting) and length == len(source.token_ids):
            self.resume(source)
        elif source is not None:
            self.fork(source, length)

    def fork(self, source: PooledCache | Resting, length: int) -> int:
        """Begin with the first rows of another sequence of the pool, which both then share; they are not copied.

        This one must have no rows. A copy of states or windows of exactly so many tokens must be kept.

        Returns:
            The number of rows shared: at most ``length``, whole blocks.
        """
        assert self._provided == 0, self._provided
        rows, token_ids = self._rows_of(source)
        assert length <= len(token_ids), (length, len(token_ids))
        length = _whole_blocks(rows, length)
        self._pool.share(_blocks_of(rows[:length]))
        self._map[:length] = rows[:length]
        self._provided = length
        self._take_over(np.asarray(token_ids[:length]).tolist())
        return length

    def resume(self, sequence: Resting) -> None:
        """Go on with a sequence that rests, from its last row; this cache must have no rows."""
        assert self._provided == 0, self._provided
        self._pool.wake(sequence)
        self._provided = len(sequence.row_map)
        self._map[: self._provided] = sequence.row_map
        self._take_over(sequence.token_ids.tolist())

    def _take_over(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids
        if self._kept is not None:
            self._kept.go_on(token_ids)

    def rest(self) -> None:
        """Leave the rows to the pool, until somebody begins alike or wants their memory, and forget all tokens."""
        length = self._resting_length()
        end = in_blocks(length) * ROW_BLOCK
        while _whole_blocks(self._map, end) < end:
            end += ROW_BLOCK
        sequence = Resting(np.asarray(self._token_ids[:length], np.int32), self._map[:end].copy())
        if not end:
            self.release()
            return
        self._give_back(end)
        super().truncate(0)
        self._pool.keep(sequence)
        self._provided = 0

    def truncate(self, length: int) -> int:
        """Roll back to the first ``length`` rows, or to fewer where another cache shares what would be written next.

        Returns:
            The number of rows kept.
        """
        length = super().truncate(length)
        if self._is_shared_behind(length):
            self._give_back(length)
        return length

    def _reach(self, length: int) -> int:
        while True:
            if self._is_shared_behind(length):
                length = _whole_blocks(self._map, length)
            if (reached := super()._reach(length)) == length:
                return length
            length = reached

    def _resting_length(self) -> int:
        """Return how many rows somebody could go on with; of these states and windows are kept."""
        self._stops, self._last_stop = [], 0
        if self._kept is None:
            return self.length
        self.keep_state()
        seen = self._token_ids if self._states is None else self._token_ids[: self._states.length]
        return len(seen) if len(seen) in self._kept.kept_lengths(seen, len(seen)) else 0

    @property
    def _keeps(self) -> int:
        return 0 if self._kept is None else self._kept.keeps

    def _copies_of(self, token_ids: Sequence[int]) -> dict[int, list[npt.NDArray[Any]]]:
        return {} if self._copies is None else self._copies.kept(token_ids)

    def _keep_seen(self, begin: int) -> None:
        if self._copies is None:
            return
        for stop in sorted({*self._stops, self._last_stop}):
            if begin < stop <= self.length:
                self._copies.keep(self._token_ids[:stop])

    def keep_state(self) -> None:
        """Keep what the next token depends on besides rows of the pool, if there is anything, to go on from later."""
        if self._kept is not None:
            self._kept.keep(self._token_ids)

    @property
    def _most_behind(self) -> int:
        return self.most_drafts - 1

    def _is_shared_behind(self, length: int) -> bool:
        """Return whether another cache shares a block behind the first rows."""
        return self._pool.is_shared(np.asarray(self._blocks_of(length, self._provided), np.intp))

    def release(self) -> None:
        """Forget all tokens and give all rows back to the pool."""
        super().truncate(0)
        self._give_back(0)

    def pretend(self, length: int) -> None:
        """Treat ``length`` rows as committed; see ``KVCache.pretend``. Nobody else may have rows; what rests goes."""
        self.release()
        self._pool.forget()
        assert self._pool.num_free == self._pool.num_blocks, "another sequence has rows"
        super().pretend(length)
        self.provide(length)

    def _give_back(self, length: int) -> None:
        """Drop the blocks behind the first ``length`` positions, which have whole ones."""
        blocks, self._provided = self._blocks_of(length, self._provided), length
        self._pool.drop(blocks)

    def _blocks_of(self, begin: int, end: int) -> list[int]:
        return _blocks_of(self._map[begin:end])

    def _rows_of(self, source: PooledCache | Resting) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | list[int]]:
        if isinstance(source, Resting):
            return source.row_map, source.token_ids
        assert self._pool is source._pool, "caches of two pools"
        return source._map, source._token_ids

    def _require_rows(self, count: int, *, is_restored: bool = False) -> None:
        super()._require_rows(count, is_restored=is_restored)
        self.provide(self.length + count)

    def _check_rows(self) -> None:
        """Assert that all positions provided have rows, each its own, and share none that will be written."""
        assert self.length + self._reserved <= self._provided <= len(self._map), (self.length, self._provided)
        assert len(set(self._map[: self._provided].tolist())) == self._provided, "a row is mapped twice"
        assert len(self.blocks) * ROW_BLOCK == self._provided, "a part of a block is held"
        if self._copies is not None:
            self._copies.check()
        assert not self._is_shared_behind(self.length), "rows that will be written are shared"


def in_blocks(rows: int) -> int:
    """Return how many blocks so many rows take."""
    return -(-rows // ROW_BLOCK)


def _blocks_of(row_map: npt.NDArray[Any]) -> list[int]:
    blocks: list[int] = np.unique(row_map // ROW_BLOCK).tolist()
    return blocks


def _whole_blocks(row_map: npt.NDArray[Any], length: int) -> int:
    """Return how many of the first positions, at most ``length``, have all rows of their blocks.

    A path of a tree that was committed over the end of a block has mixed its rows with those of the next one.
    """
    length = length // ROW_BLOCK * ROW_BLOCK
    while len(_blocks_of(row_map[:length])) * ROW_BLOCK != length:
        length -= ROW_BLOCK
    return length
