"""The KV cache: rows per token, append-only, in buffers that the graph updates in place."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ContextOverflow
from edge_rt.package import ModelConfig


class KVCache:
    """Keys and values of the tokens computed so far.

    A row belongs to one token and never changes once committed; rolling back is a smaller length. Rows are written
    under a reservation, which leaves the cache as it was unless it is committed.

    Args:
        config: numbers of the model.
        capacity: rows, one per token.

    Attributes:
        keys: per layer, float32 ``[1, kv_heads, capacity, head_dim]``; pages are touched only as rows are written.
        values: likewise.
        capacity: rows, one per token.
        row_bytes: bytes of one token in all layers.
    """

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        shape = (config.num_layers, 2, 1, config.num_kv_heads, capacity, config.head_dim)
        buffer = _untouched(shape)
        self.keys: list[npt.NDArray[Any]] = [layer[0] for layer in buffer]
        self.values: list[npt.NDArray[Any]] = [layer[1] for layer in buffer]
        self.capacity = capacity
        self.row_bytes = buffer.nbytes // capacity
        self._token_ids: list[int] = []
        self._reserved = 0

    @property
    def length(self) -> int:
        """Committed rows."""
        return len(self._token_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the committed rows."""
        return tuple(self._token_ids)

    def common_prefix(self, token_ids: Sequence[int]) -> int:
        """Return how many leading tokens of ``token_ids`` are committed already."""
        for index, (ours, theirs) in enumerate(zip(self._token_ids, token_ids, strict=False)):
            if ours != theirs:
                return index
        return min(len(self._token_ids), len(token_ids))

    def truncate(self, length: int) -> None:
        """Roll back to the first ``length`` rows."""
        assert 0 <= length <= self.length, (length, self.length)
        assert self._reserved == 0, "rows are reserved"
        del self._token_ids[length:]

    def reserve(self, count: int) -> Reservation:
        """Return ``count`` rows behind the committed ones, to be used as a context manager.

        Raises:
            ContextOverflow: there are not that many rows left.
        """
        if self.length + count > self.capacity:
            raise ContextOverflow(self.length, count, self.capacity)
        return Reservation(self, count)

    def release(self) -> None:
        """Let go of the buffers; the cache keeps its counts and cannot be written any more."""
        self.keys, self.values = [], []

    def check(self) -> None:
        """Assert the invariant: committed + reserved + free == capacity, all of them at least 0."""
        free = self.capacity - self.length - self._reserved
        assert free >= 0, (self.capacity, self.length, self._reserved)
        assert self._reserved >= 0, self._reserved


def _untouched(shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return float32 zeros whose pages take memory only once they are written.

    numpy asks for huge pages, and then the first row of a head would take the memory of thousands.
    """
    memory = mmap.mmap(-1, math.prod(shape) * np.dtype(np.float32).itemsize)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # A kernel without huge pages refuses, and has nothing to be kept from.
        with suppress(OSError):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(shape)


class Reservation:
    """Rows being written; without ``commit`` they are free again when the block ends.

    Attributes:
        start: index of the first row.
        count: number of rows.
    """

    def __init__(self, cache: KVCache, count: int) -> None:
        self._cache = cache
        self.start = cache.length
        self.count = count

    def __enter__(self) -> Self:
        assert self._cache._reserved == 0, "rows are reserved already"
        self._cache._reserved = self.count
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cache._reserved = 0

    def commit(self, token_ids: Sequence[int]) -> None:
        """Keep the first ``len(token_ids)`` rows, which hold these tokens; the rest are free again."""
        assert self._cache._reserved == self.count, "not inside the block, or committed twice"
        assert len(token_ids) <= self.count, (len(token_ids), self.count)
        self._cache._reserved = 0
        self._cache._token_ids.extend(token_ids)
