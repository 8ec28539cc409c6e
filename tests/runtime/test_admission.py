"""Who begins with which rows: beginnings are computed once, nobody starves, and whatever fails gives all rows back."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import Busy, Cancelled, ContextOverflow, InferenceError, MemoryBudgetExceeded, QueueFull
from edge_rt.runtime.admission import MOST_OVERTAKEN
from edge_rt.runtime.cache.row_pool import PooledCache
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.forward.cancel import CancelToken
from tests.helpers.fake_batch import FakeBatch
from tests.helpers.fake_model import Run
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY

SYSTEM = list(range(2, 38))


def steps_of(fake):
    """Compute to the end, and check the invariants behind every step."""
    count = 0
    while fake.batch.step():
        fake.batch.check()
        count += 1
    fake.batch.check()
    return count


def alone(prompt, count):
    return Run(prompt, max_tokens=count).result().token_ids


def computed(fake):
    return sum(rows for parts in fake.runner.passes for _, rows in parts)


def test_a_beginning_in_common_is_computed_and_stored_once():
    fake = FakeBatch(4, most_rows=64)
    prompts = [[*SYSTEM, number, number] for number in range(4)]
    tickets = [fake.submit(prompt, max_tokens=4) for prompt in prompts]
    fake.batch.step()
    assert len(fake.admission.active) == 1  # the others wait for its rows
    fake.batch.step()
    assert len(fake.admission.active) == 4
    held = {block for cache in fake.caches for block in cache.blocks}
    assert len(held) == 2 + 4
    steps_of(fake)
    assert [ticket.generation.settled().token_ids for ticket in tickets] == [alone(prompt, 4) for prompt in prompts]
    # The first of them, then of each what follows two whole blocks.
    assert computed(fake) == len(prompts[0]) + 3 * (len(prompts[0]) - 32) + 4 * 3


def test_who_waits_for_rows_that_are_not_computed_after_all_computes_them():
    fake = FakeBatch(2, most_rows=8)
    first, second = fake.submit([*SYSTEM, 1], max_tokens=4), fake.submit([*SYSTEM, 2], max_tokens=4)
    fake.batch.step()
    assert first.slot is not None
    assert second.slot is None
    fake.batch.cancel(first)
    steps_of(fake)
    assert second.generation.settled().token_ids == alone([*SYSTEM, 2], 4)


def test_conversations_in_turn_find_their_rows_again():
    fake = FakeBatch(2)
    texts = [[number, *range(3, 20)] for number in range(4)]
    for turn in range(3):
        for number, text in enumerate(texts):
            ticket = fake.submit([*text, 40 + turn], max_tokens=3)
            steps_of(fake)
            result = ticket.generation.settled()
            assert result.token_ids == alone([*text, 40 + turn], 3)
            if turn:
                assert result.usage.cached_tokens == len(text) - 1
            texts[number] = [*text, 40 + turn, *result.token_ids]
    assert len(fake.pool.resting) <= 4


def test_the_oldest_rows_make_room_and_no_others():
    fake = FakeBatch(2, rows=128)
    for number in range(3):
        fake.submit([number] * 20, max_tokens=4)
        steps_of(fake)
    fake.submit([9] * 60, max_tokens=4)  # 64 rows: one of three beginnings of 32 must go
    steps_of(fake)
    assert [int(resting.token_ids[0]) for resting in fake.pool.resting] == [1, 2, 9]


def test_one_whose_rows_do_not_fit_is_overtaken_so_often_and_no_more():
    fake = FakeBatch(3, rows=96)
    long = fake.submit([1] * 30, max_tokens=30)
    fake.batch.step()
    large = fake.submit([2] * 40, max_tokens=20)
    small = [fake.submit([3 + number, 5], max_tokens=2) for number in range(MOST_OVERTAKEN + 3)]
    while large.slot is None:
        assert fake.batch.step()
        fake.batch.check()
    assert long.has_ended
    assert large.overtaken == MOST_OVERTAKEN
    assert sum(ticket.slot is not None or ticket.has_ended for ticket in small) >= MOST_OVERTAKEN
    steps_of(fake)
    assert large.generation.settled().token_ids == alone([2] * 40, 20)


def test_a_full_queue_says_when_there_is_room():
    fake = FakeBatch(1, most_waiting=1)
    fake.submit([1, 2], max_tokens=20)
    fake.batch.step()
    fake.batch.step()
    fake.submit([3, 4], max_tokens=2)
    with pytest.raises(QueueFull, match="1 wait") as caught:
        fake.submit([5, 6], max_tokens=2)
    assert isinstance(caught.value, Busy)
    assert 0 < caught.value.retry_after < 60
    steps_of(fake)
    fake.submit([5, 6], max_tokens=2)
    steps_of(fake)


def test_a_full_queue_counts_those_who_wait_for_a_slot_that_is_free_as_if_they_had_it():
    fake = FakeBatch(2, most_waiting=1)
    for number in range(3):
        fake.submit([number, 2])
    with pytest.raises(QueueFull, match="1 wait, and no more may") as caught:
        fake.submit([4, 2])
    assert caught.value.waiting == 1
    steps_of(fake)


def test_who_has_ended_takes_no_place_although_it_has_not_left():
    fake = FakeBatch(1, most_waiting=0)
    ticket = fake.submit([1, 2], max_tokens=20)
    fake.batch.step()
    with pytest.raises(QueueFull):
        fake.submit([3, 4], max_tokens=2)
    # As a reader in another thread sees it, which asks for the next answer at once.
    ticket.has_ended = True
    other = fake.submit([3, 4], max_tokens=2)
    steps_of(fake)
    assert other.generation.settled().finish_reason == "length"


def test_a_generation_may_leave_while_its_thread_adds_another_one():
    # As when the thread that adds one collects the stream of another as garbage.
    fake = FakeBatch(1, most_waiting=1)
    tickets = [fake.submit([number, 2]) for number in (1, 3)]
    with pytest.raises(QueueFull):
        fake.admission.add(tickets[0], lambda: fake.batch.cancel(tickets[1]) or 1.0)
    steps_of(fake)
    assert [ticket.generation.settled().finish_reason for ticket in tickets] == ["length", "cancelled"]


class FailingSampler(Sampler):
    """Fails at its second token."""

    count = 0

    @property
    def takes_best(self):
        self.count += 1
        if self.count == 2:
            raise MemoryError
        return super().takes_best


@pytest.mark.parametrize("index", range(12))
@pytest.mark.parametrize("kind", ["rows", "pass", "sampler"])
def test_whatever_fails_all_rows_are_free_again_and_the_others_have_their_tokens(kind, index):
    error = InferenceError("Failed.")
    fake = FakeBatch(
        3,
        rows=128,
        fail_at={index: error} if kind == "pass" else None,
        fail_taking=index if kind == "rows" else None,
    )
    prompts = [[*SYSTEM[: 20 + number % 3], number] for number in range(12)]
    tickets = [
        fake.submit(prompt, max_tokens=5, sampler=FailingSampler if kind == "sampler" and number == index else Sampler)
        for number, prompt in enumerate(prompts)
    ]
    steps_of(fake)
    failed = [number for number, ticket in enumerate(tickets) if ticket.error is not None]
    assert len(failed) == 1 or (kind == "pass" and 1 <= len(failed) <= 3) or (kind == "rows" and not failed)
    for number, ticket in enumerate(tickets):
        assert ticket.has_ended
        if number not in failed:
            assert ticket.generation.settled().token_ids == alone(prompts[number], 5)
    fake.admission.forget()
    assert fake.pool.num_free == fake.pool.num_blocks


def test_random_arrivals_and_cancels_leave_no_row_behind():
    rng = np.random.default_rng(3)
    fake = FakeBatch(3, rows=160)
    left, under_way = list(range(60)), []
    while left or under_way:
        if left and rng.random() < 0.4:
            left.pop()
            prompt = [*SYSTEM[: int(rng.integers(0, 30))], *rng.integers(1, 50, int(rng.integers(1, 20))).tolist()]
            count = int(rng.integers(1, 15))
            under_way.append((fake.submit(prompt, max_tokens=count), prompt, count))
        fake.batch.step()
        fake.batch.check()
        if under_way and rng.random() < 0.05:
            fake.batch.cancel(under_way[int(rng.integers(len(under_way)))][0])
        for one in [one for one in under_way if one[0].has_ended]:
            ticket, prompt, count = one
            result = ticket.generation.settled()
            assert result.token_ids == alone(prompt, count)[: len(result.token_ids)]
            assert result.finish_reason == "cancelled" or len(result.token_ids) == count
            under_way.remove(one)
    fake.admission.forget()
    assert fake.pool.num_free == fake.pool.num_blocks


CONTEXT = 192


def test_what_fits_no_context_is_refused_at_once_while_others_wait(native_package):
    with load_package(native_package, ctx=CONTEXT, slots=2) as model:
        streams = [model.stream([5, 6, number], max_tokens=20, **GREEDY) for number in range(3)]
        events = [iter(stream) for stream in streams]
        next(events[0])
        with pytest.raises(ContextOverflow):
            model.generate([7] * 100, max_tokens=CONTEXT)
        for one in events:
            one.close()


def test_a_score_waits_until_those_before_it_have_ended_and_those_behind_wait(native_package):
    text = list(range(20, 60))
    with load_package(native_package, ctx=CONTEXT, slots=2, prefill_chunk=16) as model:
        expected = model.score(text).logprobs
        stream = model.stream([5, 6, 7], max_tokens=30, **GREEDY)
        events = iter(stream)
        next(events)
        assert model.score(text).logprobs == expected
        assert stream.result().finish_reason == "length"
        token = CancelToken()
        stream = model.stream([5] * 100, max_tokens=20, on_prefill_progress=lambda *_: token.cancel(), **GREEDY)
        ticket = stream.submit()
        with pytest.raises(Cancelled):
            model.score(text, cancel=token)
        assert not ticket.has_ended
        # What nobody computes with is forgotten beside an answer.
        model.reset()
        model._batch.compute_until(lambda: ticket.has_ended)
        assert ticket.generation.settled().finish_reason == "length"
        model._batch.check()


def test_chats_in_turn_compute_what_is_new(native_package):
    with load_package(native_package, ctx=CONTEXT, slots=2, spec="off") as model:
        texts = [[number, *range(30, 70)] for number in range(3)]
        for turn in range(2):
            for number, text in enumerate(texts):
                result = model.generate(text, max_tokens=5, **GREEDY)
                assert result.usage.cached_tokens == (len(text) - 2 if turn else 0)
                texts[number] = [*text, *result.token_ids, 9]
        model._batch.check()


def test_who_cannot_begin_with_rows_of_others_leaves_none_behind():
    class Failing(PooledCache):
        def _take_over(self, token_ids):
            raise MemoryError

    fake = FakeBatch(2)
    first = fake.submit([*SYSTEM, 1], max_tokens=4)
    steps_of(fake)
    for cache in fake.caches:
        cache.__class__ = Failing
    second = fake.submit([*SYSTEM, 1, *first.generation.settled().token_ids, 2], max_tokens=4)
    steps_of(fake)
    assert isinstance(second.error, MemoryBudgetExceeded)
    assert [cache.blocks for cache in fake.caches] == [[], []]
