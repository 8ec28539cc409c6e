"""Rows of layers with a sliding window, and the cache that rolls back over them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from edge_rt.package.kv_formats import window_capacity
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.sliding_window import SlidingWindow
from tests.helpers.fake_model import VOCABULARY, Run, ScriptedDrafter


@pytest.mark.parametrize(
    ("window", "largest_pass", "positions", "rows"),
    [(100, 24, 8192, 128), (100, 28, 8192, 128), (100, 29, 8192, 192), (4096, 256, 32768, 4352), (100, 24, 90, 90)],
)
def test_there_is_room_for_the_window_and_the_largest_pass(window, largest_pass, positions, rows):
    assert window_capacity(window, largest_pass, positions) == rows
    ring = SlidingWindow(min(window, positions), rows, positions)
    assert ring.largest_pass >= min(largest_pass, positions)


def test_positions_beyond_the_rows_take_those_of_earlier_ones():
    rows = SlidingWindow(window=3, capacity=5, positions=14)
    assert (rows.assigned, list(rows.row_map)) == (5, [0, 1, 2, 3, 4] + 9 * [0])
    rows.assign(13)
    assert (rows.assigned, list(rows.row_map)) == (13, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 0])
    rows.assign(9)
    assert rows.assigned == 13
    rows.reset()
    assert (rows.assigned, list(rows.row_map[:6])) == (5, [0, 1, 2, 3, 4, 0])


def test_as_many_rows_as_positions_need_no_ring():
    rows = SlidingWindow(window=3, capacity=14, positions=14)
    assert rows.largest_pass == 14
    rows.assign(14)
    assert list(rows.row_map) == list(range(14))
    assert all(rows.holds(length) for length in range(15))


def test_before_what_was_taken_from_elsewhere_there_is_nothing():
    """Those rows are of another text, however few positions have been given rows since."""
    rows, memory = SlidingWindow(window=3, capacity=8, positions=40), np.arange(8, dtype=np.uint8)[:, None]
    rows.memory = lambda: [memory]
    rows.spare(10)[0][:] = 99
    rows.take(10)
    assert [length for length in range(14) if rows.holds(length)] == [10, 11, 12, 13]
    assert rows.seen(10)[0].tolist() == [[99], [99]]
    rows.check(10, 10)
    rows.reset()
    assert rows.holds(0)


def windowed(window=3, capacity=6, positions=40):
    rows = SlidingWindow(window, capacity, positions, row_bytes=10)
    return KVCache(positions, row_bytes=30, window=rows), rows


def commit(cache, count):
    with cache.reserve(count) as rows:
        rows.commit(list(range(cache.length, cache.length + count)))
    cache.check()


def test_rolling_back_keeps_what_the_window_still_holds():
    cache, rows = windowed()
    for _ in range(10):
        commit(cache, 1)
    # The rows of positions 4 to 9 are there; behind token 6 the tokens 4 and 5 are seen.
    assert cache.truncate(6) == 6
    cache.check()
    assert cache.length == 6
    # Behind token 5 token 3 would be.
    assert cache.truncate(5) == 0
    cache.check()
    assert (cache.length, rows.assigned, list(rows.row_map[:6])) == (0, 6, [0, 1, 2, 3, 4, 5])


def test_rows_that_were_reserved_count_although_they_were_not_kept():
    cache, rows = windowed()
    for _ in range(9):
        commit(cache, 1)
    with cache.reserve(cache.largest_pass):
        cache.check()
    cache.check()
    assert rows.assigned == 13
    assert cache.truncate(9) == 9
    cache.check()
    assert cache.truncate(8) == 0


def test_a_text_that_fits_the_rows_can_be_rolled_back_anywhere():
    cache, _ = windowed()
    for length in range(7):
        cache.truncate(0)
        for _ in range(6):
            commit(cache, 1)
        assert cache.truncate(length) == length


def test_more_rows_than_there_is_room_for_are_a_mistake_of_the_caller():
    cache, _ = windowed()
    assert cache.largest_pass == 4
    with pytest.raises(AssertionError):
        cache.reserve(5)


def test_bytes_of_committed_rows():
    cache, _ = windowed()
    commit(cache, 4)
    assert cache.used_bytes == 4 * 30
    commit(cache, 4)
    assert cache.used_bytes == 8 * 20 + 6 * 10
    assert KVCache(9, row_bytes=7).used_bytes == 0


def test_rows_that_are_taken_for_committed():
    """A deep pass is timed over whatever lies in the rows."""
    cache, rows = windowed()
    cache.pretend(30)
    cache.check()
    assert (cache.length, rows.assigned) == (30, 30)
    with cache.reserve(4) as reserved:
        assert reserved.start == 30
        assert sorted(rows.row_map[28:34]) == [0, 1, 2, 3, 4, 5]
    assert cache.truncate(0) == 0
    assert rows.assigned == 6
    plain = KVCache(9)
    plain.pretend(5)
    assert (plain.length, plain.truncate(3)) == (5, 3)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: rows.row_map.__setitem__(8, rows.row_map[9]), "mapped twice"),
        (lambda rows: rows.row_map.__setitem__(0, 6), "no such row"),
        (lambda rows: rows.row_map.__setitem__(39, -1), "no such row"),
        (lambda rows: rows.assign(20), "are gone"),
    ],
)
def test_a_spoilt_window_is_found(spoil, message):
    cache, rows = windowed()
    for _ in range(10):
        commit(cache, 1)
    spoil(rows)
    with pytest.raises(AssertionError, match=message):
        cache.check()


@given(st.data())
def test_every_token_that_is_seen_keeps_its_row(data):
    """However trees come and go, what the next token sees lies where it was written, in both kinds of layers."""
    positions = 40
    window, room = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 8))
    rows = SlidingWindow(window, window + room, positions)
    row_map = np.arange(positions, dtype=np.int32)
    cache = KVCache(positions, row_map=row_map, window=rows)
    memory, token = {}, 0
    for _ in range(data.draw(st.integers(1, 25))):
        if data.draw(st.integers(0, 3)) == 0:
            wanted = data.draw(st.integers(0, cache.length))
            held = max(wanted + 1 - window, 0) >= rows.assigned - rows.capacity
            kept = cache.truncate(wanted)
            assert kept == cache.length == (wanted if held else 0)
            cache.check()
        count = data.draw(st.integers(0, min(cache.largest_pass, positions - cache.length)))
        parents = [data.draw(st.integers(-1, row - 1)) for row in range(count)]
        with cache.reserve(count, parents) as reserved:
            cache.check()
            tokens = list(range(token, token + count))
            for row in range(count):
                memory["window", rows.row_map[reserved.start + row]] = tokens[row]
                memory["whole", row_map[reserved.start + row]] = tokens[row]
            path = [data.draw(st.integers(0, count - 1))] if count and data.draw(st.booleans()) else []
            while path and parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            if data.draw(st.booleans()):
                reserved.commit([tokens[row] for row in path], path)
        token += count
        cache.check()
        seen = range(max(cache.length + 1 - window, 0), cache.length)
        assert [memory["window", rows.row_map[i]] for i in seen] == [cache.token_ids[i] for i in seen]
        assert [memory["whole", row_map[i]] for i in range(cache.length)] == list(cache.token_ids)


class TestGenerations:
    """What a generation makes of a cache that cannot be rolled back anywhere."""

    PROMPT = tuple((7 * i) % VOCABULARY for i in range(30))

    @staticmethod
    def cache():
        return windowed(window=3, capacity=8, positions=64)[0]

    def test_prompts_are_cut_and_drafts_shortened_to_the_largest_pass(self):
        plain = Run(self.PROMPT, max_tokens=20).result().token_ids
        drafter = ScriptedDrafter(lambda answer, limit: plain[len(answer) : len(answer) + 9])
        run = Run(self.PROMPT, cache=self.cache(), chunk=1000, drafter=drafter, max_tokens=20)
        assert run.result().token_ids == plain
        sizes = [len(tokens) for _, tokens, _ in run.target.passes]
        assert max(sizes) == run.cache.largest_pass == 6
        # 24 tokens of the prompt in four passes; the fifth has its last 6 and no draft, the others drafts of 5.
        assert sizes == [*[6] * 8, 1]

    def test_what_the_window_has_lost_is_computed_again(self):
        first = Run(self.PROMPT, cache=self.cache(), max_tokens=4)
        first.result()
        text = list(first.sequence.token_ids)
        near = Run([*text[:-2], 9], target=first.target, cache=first.cache, max_tokens=2)
        assert near.result().usage.cached_tokens == len(text) - 2
        far = Run([*text[:20], 9], target=first.target, cache=first.cache, max_tokens=2)
        found = far.result()
        assert found.usage.cached_tokens == 0
        assert found.token_ids == Run([*text[:20], 9], max_tokens=2).result().token_ids

    def test_the_end_of_a_draft_behind_a_stop_text_is_taken_back(self):
        plain = Run(self.PROMPT, max_tokens=12).result()
        drafter = ScriptedDrafter(lambda answer, limit: plain.token_ids[len(answer) : len(answer) + limit])
        run = Run(self.PROMPT, cache=self.cache(), drafter=drafter, max_tokens=12, stop=(plain.text[4],))
        result = run.result()
        assert result.finish_reason == "stop"
        assert run.cache.length == len(run.sequence.token_ids) - 1
