"""Rows of one cache that several sequences share, in blocks: what is free, and how many maps hold the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.system.byte_size import counted

BLOCK: Final = 16
"""Rows of a block: a tile of keys, as attention reads them."""


class RowPool:
    """Blocks of a cache's rows, with counts of the maps that hold them.

    A block that several hold is never written: its rows are a common beginning of their sequences. The IO binding has
    the memory of the rows (``NativeIOBinding`` with ``rows``).
    """

    def __init__(self, rows: int) -> None:
        assert rows >= BLOCK, rows
        self._counts: npt.NDArray[Any] = np.zeros(rows // BLOCK, np.int32)
        # The lowest first: rows that were never written take no memory.
        self._free = list(range(rows // BLOCK - 1, -1, -1))

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return len(self._counts)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Return blocks that nobody holds, all of them or none."""
        if count > len(self._free):
            raise MemoryBudgetExceeded(
                "The cache that sequences share has no rows left.",
                f"{counted(count * BLOCK, 'row')} wanted, {len(self._free) * BLOCK} of {self.num_blocks * BLOCK} free.",
                "Wait until another answer has ended, or load the model with more rows.",
            )
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
        self._free += sorted((block for block in blocks if self._counts[block] == 0), reverse=True)

    def is_shared(self, blocks: npt.NDArray[Any]) -> bool:
        """Return whether several maps hold one of some blocks."""
        return bool((self._counts[blocks] > 1).any())

    def check(self, caches: Iterable[PooledCache]) -> None:
        """Assert the invariants of the pool and of all its caches.

        Every block is free, or counted once for each cache that holds it; nobody writes what others hold.
        """
        counts: Counter[int] = Counter()
        for cache in caches:
            cache.check()
            counts.update(cache.blocks)
        assert {block: count for block, count in enumerate(self._counts.tolist()) if count} == dict(counts), counts
        assert sorted(self._free) == [block for block in range(self.num_blocks) if block not in counts], self._free


class PooledCache(KVCache):
    """The bookkeeping of one sequence whose rows are a pool's, with a map of its own.

    It has rows only where some were provided, which reserving does as well. Sequences that begin alike share the rows
    of their beginning, whole blocks of them.

    Args:
        capacity: most positions.
        row_bytes: bytes of one token in all layers.
    """

    def __init__(self, capacity: int, pool: RowPool, *, row_bytes: int = 0) -> None:
        self._map = np.zeros(-(-capacity // BLOCK) * BLOCK, np.int32)
        super().__init__(capacity, row_bytes=row_bytes, row_map=self._map[:capacity])
        self._pool = pool
        self._provided = 0

    @property
    def blocks(self) -> list[int]:
        """Blocks of the pool that this cache holds, each once."""
        return self._blocks_of(0, self._provided)

    def provide(self, positions: int) -> None:
        """Give rows to those of the first positions that have none, to all or to none of them."""
        missing = -(-positions // BLOCK) - self._provided // BLOCK
        if missing > 0:
            blocks = np.asarray(self._pool.take(missing), np.int32)
            end = self._provided + missing * BLOCK
            self._map[self._provided : end] = (blocks[:, None] * BLOCK + np.arange(BLOCK, dtype=np.int32)).ravel()
            self._provided = end

    def fork(self, source: PooledCache, length: int) -> int:
        """Begin with the first rows of another cache of the pool, which both then share; nothing is copied.

        This one must have no rows.

        Returns:
            The number of rows shared: at most ``length``, whole blocks.
        """
        assert self._pool is source._pool, "caches of two pools"
        assert self._provided == 0, self._provided
        assert length <= source.length, (length, source.length)
        length = source._whole_blocks(length)
        self._pool.share(source._blocks_of(0, length))
        self._map[:length] = source._map[:length]
        self._provided = length
        self._token_ids = source._token_ids[:length]
        return length

    def truncate(self, length: int) -> int:
        """Roll back to the first ``length`` rows, or to fewer where another cache shares what would be written next.

        Returns:
            The number of rows kept.
        """
        behind = np.asarray(self._blocks_of(length, self._provided), np.intp)
        if self._pool.is_shared(behind):
            length = self._whole_blocks(length)
            self._give_back(length)
        return super().truncate(length)

    def release(self) -> None:
        """Forget all tokens and give all rows back to the pool."""
        super().truncate(0)
        self._give_back(0)

    def pretend(self, length: int) -> None:
        """Treat ``length`` rows as committed; see ``KVCache.pretend``."""
        super().pretend(length)
        self.provide(length)

    def _give_back(self, length: int) -> None:
        """Drop the blocks behind the first ``length`` positions, which have whole ones."""
        blocks, self._provided = self._blocks_of(length, self._provided), length
        self._pool.drop(blocks)

    def _blocks_of(self, begin: int, end: int) -> list[int]:
        blocks: list[int] = np.unique(self._map[begin:end] // BLOCK).tolist()
        return blocks

    def _whole_blocks(self, length: int) -> int:
        """Return how many of the first positions, at most ``length``, have all rows of their blocks.

        A path of a tree that was committed over the end of a block has mixed its rows with those of the next one.
        """
        length = length // BLOCK * BLOCK
        while len(self._blocks_of(0, length)) * BLOCK != length:
            length -= BLOCK
        return length

    def _require_rows(self, count: int) -> None:
        super()._require_rows(count)
        self.provide(self.length + count)

    def _check_rows(self) -> None:
        """Assert that all positions provided have rows, each its own, and share none that will be written."""
        assert self.length + self._reserved <= self._provided <= len(self._map), (self.length, self._provided)
        assert len(set(self._map[: self._provided].tolist())) == self._provided, "a row is mapped twice"
        assert len(self.blocks) * BLOCK == self._provided, "a part of a block is held"
        behind = np.asarray(self._blocks_of(self.length, self._provided), np.intp)
        assert not self._pool.is_shared(behind), "rows that will be written are shared"
