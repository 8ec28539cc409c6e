"""The KV cache's bookkeeping: which rows hold which tokens. The IO binding owns the memory of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sequence as Items
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ContextOverflow
from edge_rt.package.states import CHECKPOINTS
from edge_rt.runtime.cache.ahead import Ahead
from edge_rt.runtime.cache.checkpoints import SHORT, Array, stops
from edge_rt.runtime.cache.sliding_window import SlidingWindow
from edge_rt.runtime.cache.state_slots import StateSlots


def common_prefix(first: Items[int], second: Items[int]) -> int:
    """Return the number of tokens that two sequences of the same type have in common at their beginning: O(n)."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    # Comparing slices is as fast as memcmp; comparing items one by one is not.
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


class KVCache:
    """Bookkeeping of the tokens whose keys and values are in the cache.

    A row belongs to one token and never changes once it is committed; rolling back only lowers ``length``. Rows are
    written under a reservation, which leaves the cache unchanged unless it is committed. Layers with a sliding window
    keep the last rows only, so that after rolling back far the prompt has to be computed from its beginning.

    Args:
        row_bytes: bytes of one token in all layers.
        row_map: int32 ``[capacity]``, logical row -> row in memory, which the graph reads. It is permuted when a path
            through a draft tree is committed, so that no row is ever moved. None: rows in memory are in logical order.
        window: rows of layers with a sliding window, which have a map of their own; None: there are no such layers.
        states: of layers that have some, which go back by few rows only; None: there are no such layers.

    Attributes:
        ahead: rows behind the committed ones that the first segments of a package have computed for a draft.
    """

    _stop_step = 1
    """Of what the positions are multiples where states of prompts are kept."""

    def __init__(
        self,
        capacity: int,
        *,
        row_bytes: int = 0,
        row_map: npt.NDArray[Any] | None = None,
        window: SlidingWindow | None = None,
        states: StateSlots | None = None,
    ) -> None:
        assert row_map is None or row_map.shape == (capacity,), (row_map, capacity)
        assert window is None or window.row_map.shape == (capacity,), (window, capacity)
        self.capacity = capacity
        self.row_bytes = row_bytes
        self._row_map = row_map
        self._window = window
        self._states = states
        self._token_ids: list[int] = []
        self._reserved = 0
        self._stops: list[int] = []
        self._last_stop = 0
        self._seen: dict[int, list[Array]] = {}
        self.ahead = Ahead()

    @property
    def row_map(self) -> npt.NDArray[Any] | None:
        """The map that passes read, in layers without a sliding window; None: rows are in logical order."""
        return self._row_map

    @property
    def window_map(self) -> npt.NDArray[Any] | None:
        """The same in layers with a sliding window; None: there are no such layers."""
        return None if self._window is None else self._window.row_map

    @property
    def states(self) -> StateSlots | None:
        """Where the states of the sequence are; None: its layers have none."""
        return self._states

    @property
    def most_drafts(self) -> int:
        """Most rows of a pass that are drafts."""
        return self.capacity if self._states is None else self._states.most_drafts

    @property
    def length(self) -> int:
        """Committed rows."""
        return len(self._token_ids)

    def valid_lengths(self, segments: int) -> tuple[int, ...]:
        """Return how many rows each of a package's segments has computed, those that run ahead included."""
        return tuple(self.length + (len(self.ahead) if index < self.ahead.segments else 0) for index in range(segments))

    @property
    def reserved(self) -> int:
        """Rows that are reserved."""
        return self._reserved

    @property
    def largest_pass(self) -> int:
        """Most rows that can be reserved at once."""
        return self.capacity if self._window is None else self._window.largest_pass

    @property
    def goes_back(self) -> bool:
        """Whether it can go back to any row: no layer has a state, or a window that gives rows up."""
        return self._states is None and self._window is None

    @property
    def used_bytes(self) -> int:
        """Bytes of the rows that hold committed tokens, in all layers."""
        window = self._window
        if window is None:
            return self.row_bytes * self.length
        others = self.row_bytes - window.row_bytes
        return others * self.length + window.row_bytes * min(self.length, window.capacity)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the committed rows."""
        return tuple(self._token_ids)

    def tokens_from(self, row: int) -> list[int]:
        """Return the tokens of the committed rows from one on."""
        return self._token_ids[row:]

    def common_prefix(self, token_ids: Sequence[int]) -> int:
        """Return how many leading tokens of ``token_ids`` are committed already."""
        return common_prefix(self._token_ids, list(token_ids))

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return where positions lie in memory, in layers without a sliding window."""
        return np.arange(begin, end, dtype=np.int32) if self._row_map is None else self._row_map[begin:end]

    def truncate(self, length: int) -> int:
        """Roll back to the first ``length`` rows.

        Returns:
            The number of rows kept: ``length``, or fewer if layers with a sliding window no longer hold what the next
            token would see, states have seen more, or a device fails to read those that are kept. The tokens after the
            kept rows have to be computed again.
        """
        assert 0 <= length <= self.length, (length, self.length)
        assert self._reserved == 0, "rows are reserved"
        self.ahead.clear()
        length = self._reach(length)
        if self._states is not None:
            length = self._states.cut(length, self._token_ids)
        if self._window is not None and length == 0:
            self._window.reset()
        del self._token_ids[length:]
        self._seen = {stop: rows for stop, rows in self._seen.items() if stop <= length}
        return length

    def _reach(self, length: int) -> int:
        """Return to how many rows, at most ``length``, the cache can go back."""
        if self._window is not None and not self._window.holds(length):
            length = 0
        return length if self._states is None else self._states.reach(length, self._token_ids)

    def plan_stops(self, prompt: Sequence[int], end_ids: Iterable[int], *, has_answer: bool = False) -> None:
        """Plan where the states of a prompt are kept on the way; without states, or room for some, nowhere.

        What is there now is kept as well: the text that the prompt goes on with.

        Args:
            end_ids: tokens that end a turn of a conversation.
            has_answer: whether tokens of the answer are there already, which are computed with the prompt.
        """
        self._stops, self._last_stop = [], 0
        if not (keeps := self._keeps):
            return
        self.keep_state()
        found, last = stops(prompt, end_ids, self._stop_step)
        # Earlier ones would make room for later ones.
        most = min(keeps, CHECKPOINTS) - 1
        self._stops, self._last_stop = found[-most:] if most else [], last
        if has_answer or (self._stop_step > 1 and len(prompt) - last > self._most_behind):
            # No pass can take it on its way: it is the end of one.
            self._stops.append(last)

    @property
    def _keeps(self) -> int:
        """How many states, or copies of what windows see, are kept."""
        if self._states is not None:
            return self._states.keeps
        return 0 if self._window is None else self._window.most_kept

    @property
    def next_stops(self) -> list[int]:
        """Where states of the prompt will be kept on the way that is left, rising."""
        return [stop for stop in (*self._stops, self._last_stop) if stop > self.length]

    def keep_state(self) -> None:
        """Keep the states as they are, if there are any, to go on from them later."""
        if self._states is not None:
            self._states.keep(self._token_ids)

    def states_of(self, token_ids: Sequence[int]) -> dict[int, list[Array]]:
        """Return of how many of a text's first tokens there are rows and a state -> the state, part by part.

        A state is also what layers with a window see behind the text, where that can be taken elsewhere.
        """
        common = self.common_prefix(token_ids)
        if self._states is not None:
            return self._states.kept(token_ids[:common])
        window = self._window
        if window is None or window.memory is None:
            return {}
        kept = self._copies_of(token_ids[:common])
        found = {length: rows for length, rows in kept.items() if length >= window.window}
        if window.holds(common) and common >= window.window:
            found[common] = window.seen(common)
        return found

    def _copies_of(self, token_ids: Sequence[int]) -> dict[int, list[Array]]:
        """Return of how many of the first tokens there are copies of what windows see -> these, part by part."""
        return {stop: rows for stop, rows in self._seen.items() if stop <= len(token_ids)}

    def spare_state(self, length: int) -> list[Array]:
        """Return memory for a state of ``length`` tokens as of ``states_of``, for a reservation that restores one."""
        if self._states is not None:
            return self._states.spare()
        assert self._window is not None, "the layers have no state"
        return self._window.spare(length)

    def _take_state(self) -> None:
        """Go on from the spare state behind all committed rows."""
        if self._states is not None:
            self._states.take(self.length)
        elif self._window is not None and self._window.memory is not None:
            self._window.take(self.length)

    def _keep_seen(self, begin: int) -> None:
        """Keep copies of what is seen behind the stops that are not before ``begin``, of layers with a window."""
        window = self._window
        if window is None or not window.most_kept:
            return
        for stop in (*self._stops, self._last_stop):
            if begin < stop <= self.length and window.holds(stop) and stop >= window.window:
                self._seen[stop] = window.seen(stop)
        while len(self._seen) > window.most_kept:
            del self._seen[min(self._seen)]

    def until_stop(self, count: int) -> int:
        """Return how many of the next ``count`` rows a pass may have that ends where states are kept."""
        if self._states is None:
            return count
        return min([count, *(stop - self.length for stop in self._stops if stop > self.length)])

    def certain_of(self, count: int) -> int:
        """Return how many of the next ``count`` rows, which are text, a pass should take for certain.

        Those behind, as drafts that are accepted, leave the states where these are kept.
        """
        if self._states is None:
            return count
        certain = self._last_stop - self.length
        return certain if 0 <= certain < count <= certain + self._most_behind else count

    @property
    def _most_behind(self) -> int:
        """Rows of a prompt's last pass that can be behind where its states are kept."""
        return min(SHORT, self.most_drafts - 1)

    def pretend(self, length: int) -> None:
        """Treat ``length`` rows as committed, whatever they hold: for passes that are only timed.

        The cache must be emptied before it is used for anything else.
        """
        assert length <= self.capacity, (length, self.capacity)
        self.truncate(0)
        if self._window is not None:
            self._window.assign(length)
        if self._states is not None:
            self._states.pretend(length)
        self._token_ids = [0] * length

    def make_room(self, count: int) -> None:
        """Let ``count`` rows behind the committed ones be written before they are reserved, by a draft."""
        self._require_rows(count)
        if self._window is not None:
            self._window.assign(self.length + count)

    def reserve(
        self,
        count: int,
        parents: Sequence[int] | None = None,
        *,
        certain: int | None = None,
        is_restored: bool = False,
    ) -> Reservation:
        """Reserve ``count`` rows after the committed ones; use the result as a context manager.

        Args:
            parents: for every row the earlier reserved row that it follows, or -1; None for a chain.
            certain: how many, the first ones, are committed or none is; of the others, at most ``most_drafts``, any
                path may be. None: all of a chain, none of a tree.
            is_restored: no pass writes them, but who has them from elsewhere, and a state behind all of them as well.
        """
        self._require_rows(count, is_restored=is_restored)
        if certain is None:
            certain = count if parents is None else 0
        return Reservation(self, count, parents, certain, is_restored=is_restored)

    def end_pass(self) -> None:
        """Free rows that are reserved; does nothing where none are."""
        self._reserved = 0
        self.ahead.clear()
        if self._states is not None:
            self._states.end_pass()

    def _require_rows(self, count: int, *, is_restored: bool = False) -> None:
        if self.length + count > self.capacity:
            raise ContextOverflow(self.length, count, self.capacity)
        assert is_restored or count <= self.largest_pass, (count, self.largest_pass)

    def check(self) -> None:
        """Assert the invariants: committed + reserved + free == capacity; the row map is a permutation.

        Rows that run ahead lie behind the committed ones. Layers with a window are checked by ``SlidingWindow.check``.
        """
        ahead = self.ahead
        assert len(ahead.token_ids) == len(ahead.parents), ahead.parents
        assert bool(ahead.segments) or not len(ahead), ahead.token_ids
        assert not ahead.segments or ahead.start == self.length, (ahead.start, self.length)
        assert self.length + len(ahead) <= self.capacity, (self.length, len(ahead), self.capacity)
        free = self.capacity - self.length - self._reserved
        assert free >= 0, (self.capacity, self.length, self._reserved)
        assert self._reserved >= 0, self._reserved
        self._check_rows()
        if self._window is not None:
            self._window.check(self.length, self.length + max(self._reserved, len(ahead)))
        if self._states is not None:
            self._states.check(self.length)

    def _check_rows(self) -> None:
        if self._row_map is not None:
            # Of several slots each has rows of its own.
            rows = np.sort(self._row_map)
            assert np.array_equal(rows - rows[0], np.arange(self.capacity)), "a row is mapped twice"


class Reservation:
    """Rows being written; unless they are committed, they are free again when the block ends."""

    def __init__(
        self, cache: KVCache, count: int, parents: Sequence[int] | None, certain: int, *, is_restored: bool = False
    ) -> None:
        assert parents is None or len(parents) == count, (parents, count)
        assert 0 <= certain <= count <= certain + cache.most_drafts or cache.states is None, (certain, count)
        self._certain = certain
        self._is_restored = is_restored
        self._cache = cache
        self._parents = parents
        self.start = cache.length
        self.count = count

    def __enter__(self) -> Self:
        assert self._cache._reserved == 0, "rows are reserved already"
        if self._cache._window is not None and not self._is_restored:
            self._cache._window.assign(self.start + self.count)
        if self._cache.states is not None:
            self._cache.states.begin(self._certain)
        self._cache._reserved = self.count
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cache.end_pass()

    def commit(self, token_ids: Sequence[int], path: Sequence[int] | None = None) -> None:
        """Keep the rows that hold these tokens; the others are free again. Those that are restored all are.

        Args:
            path: the rows of the reservation that hold them, each the parent of the next; None for the first rows. Any
                other path needs a row map.
        """
        cache, count = self._cache, len(token_ids)
        assert cache._reserved == self.count, "not inside the block, or committed twice"
        assert count <= self.count, (count, self.count)
        first = range(count)
        path = first if path is None else path
        assert len(path) == count, (path, count)
        assert self._is_path(path), (path, self._parents, self.count)
        if path is not first and list(path) != list(first):
            self._bring_forward(path)
        cache._reserved = 0
        cache.ahead.clear()
        cache._token_ids.extend(token_ids)
        if self._is_restored:
            assert count == self.count, (count, self.count)
            cache._take_state()
        elif cache.states is not None:
            cache.states.commit(path)
        if cache.states is None:
            cache._keep_seen(self.start)
        elif cache.states.length in (*cache._stops, cache._last_stop):
            cache.keep_state()

    def _is_path(self, path: Sequence[int]) -> bool:
        """Return whether these are rows of the reservation, each the parent of the next."""
        parents, before = self._parents, -1
        for row in path:
            if not 0 <= row < self.count or (row - 1 if parents is None else parents[row]) != before:
                return False
            before = row
        return True

    def _bring_forward(self, path: Sequence[int]) -> None:
        """Make the rows of a path the first rows of the reservation, by permuting the row maps."""
        cache = self._cache
        of_window = None if cache._window is None else cache._window.row_map
        maps = [row_map for row_map in (cache._row_map, of_window) if row_map is not None]
        assert maps, "rows of this cache cannot change places"
        order = [*path, *(row for row in range(self.count) if row not in set(path))]
        for row_map in maps:
            rows = row_map[self.start : self.start + self.count]
            rows[:] = rows[order]
