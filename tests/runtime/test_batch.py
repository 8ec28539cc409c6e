"""Several generations in shared passes: each has the tokens, the end and the log probabilities that it has alone."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from edge_rt.errors import Busy, ConfigError, DeviceLost, DeviceMemoryExhausted, InferenceError, InvalidGrammar
from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.speculation.adaptive import AdaptiveDrafter
from edge_rt.runtime.speculation.arms import DiscountedUCB
from edge_rt.runtime.speculation.core import DraftCore
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.system.side_thread import SideThread
from tests.helpers.arrivals import CONTEXT, check_arrivals, facts, random_requests
from tests.helpers.cheap_drafts import CheapDrafts
from tests.helpers.fake_batch import FakeBatch
from tests.helpers.fake_model import Run
from tests.helpers.fake_sources import OracleSource, linear_costs
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY


@pytest.mark.parametrize(("kv", "slots"), [("f16", 3), ("int8", 8), ("int4", 4)])
def test_answers_are_those_alone_whatever_arrives_and_leaves(native_package, kv, slots):
    assert check_arrivals(native_package, np.random.default_rng(slots), 24, kv=kv, slots=slots) > 12


def test_so_they_are_where_a_package_is_cut_at_exits(agreeing):
    """Whoever begins alone drafts with the first layers, until others join; what these have computed is forgotten."""
    modes = ("exit", "off", "exit", "suffix")
    options = {"kv": "int8", "slots": 3, "modes": modes, "spec": "exit", "costs": CheapDrafts()}
    assert check_arrivals(agreeing.cut, np.random.default_rng(2), 12, **options) > 6


def test_threads_share_passes_and_wait_for_slots(native_package):
    requests = random_requests(np.random.default_rng(5), 9)
    with load_package(native_package, ctx=CONTEXT, spec="off") as model:
        alone = [facts(model.generate(prompt, **options)) for prompt, options in requests]
    found = [None] * len(requests)
    with load_package(native_package, ctx=CONTEXT, slots=3) as model:

        def answer(number):
            prompt, options = requests[number]
            found[number] = facts(model.generate(prompt, **options))

        threads = [threading.Thread(target=answer, args=(number,)) for number in range(len(requests))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        model._batch.check()
        # Nobody generates any more: the model can be used for passes of its own.
        model.reset()
    assert found == alone


@pytest.mark.parametrize("mode", ["auto", "suffix", "ngram"])
def test_answers_that_share_passes_draft_and_say_how_much_stayed(native_package, mode):
    prompts = [[20, 21, 22, 23 + number] * 12 for number in range(3)]
    with load_package(native_package, ctx=CONTEXT, spec="off") as model:
        alone = [facts(model.generate(prompt, max_tokens=90, **GREEDY)) for prompt in prompts]
    with load_package(native_package, ctx=CONTEXT, slots=3, spec=mode) as model:
        model.speculation.costs = linear_costs(4.0, 0.01)
        streams = [model.stream(prompt, max_tokens=90, **GREEDY) for prompt in prompts]
        events = [iter(stream) for stream in streams]
        for one in events:
            next(one)
        together = 0
        while len(model._batch._active) == 3 and model._batch.step():
            model._batch.check()
            together += 1
        results = [stream.result() for stream in streams]
    assert [facts(result) for result in results] == alone
    for result in results:
        assert result.spec.draft_n_accepted > 20
        assert result.spec.steps < 89
        assert result.spec.tokens_per_step == pytest.approx(89 / result.spec.steps)
    assert together < 80


def test_a_callback_that_generates_is_refused(native_package):
    with load_package(native_package, ctx=CONTEXT, slots=2, prefill_chunk=16) as model:
        with pytest.raises(Busy, match="is computing"):
            model.generate([9] * 60, max_tokens=2, on_prefill_progress=lambda *_: model.generate([5], max_tokens=1))
        seen = []
        model.generate([7] * 60, max_tokens=2, on_prefill_progress=lambda *numbers: seen.append(numbers))
        assert seen == [(16, 60), (32, 60), (48, 60)]
        model._batch.check()


def test_closing_the_model_ends_what_is_under_way(native_package):
    model = load_package(native_package, ctx=CONTEXT, slots=2)
    streams = [model.stream([5, 6, 7 + number], max_tokens=100, **GREEDY) for number in range(2)]
    events = [iter(stream) for stream in streams]
    for one in events:
        next(one)
    model.close()
    for stream in streams:
        assert stream.result().finish_reason == "cancelled"


def test_what_computes_one_sequence_at_a_time_lets_others_wait(small_package):
    with load_package(small_package, ctx=CONTEXT, slots=3) as model:
        assert model.slots == 1
        assert "slots: 1 instead of 3" in " ".join(model.plan.given_up)
        alone = [model.generate([5, 6, number], max_tokens=6, **GREEDY).token_ids for number in (7, 8)]
        streams = [model.stream([5, 6, number], max_tokens=6, **GREEDY) for number in (7, 8)]
        events = [iter(stream) for stream in streams]
        next(events[0])
        next(events[1])
        assert [stream.result().token_ids for stream in streams] == alone


@pytest.mark.parametrize("slots", [0, 65, True, "4"])
def test_slots_are_a_number_from_1_to_64(native_package, slots):
    with pytest.raises(ConfigError, match=r"number of slots|'slots' is of the wrong type"):
        load_package(native_package, slots=slots)


PROMPTS = ([5, 6, 7], [1, 2], [9, 8, 7, 6])


@pytest.fixture(scope="module")
def alone():
    return [Run(prompt, max_tokens=6).result().token_ids for prompt in PROMPTS]


def read(streams):
    """Read streams in turn; return their tokens, or what they failed with."""
    iterators, found = [iter(stream) for stream in streams], [None] * len(streams)
    left = list(range(len(streams)))
    while left:
        for number in tuple(left):
            try:
                next(iterators[number])
            except StopIteration:
                found[number] = streams[number].result().token_ids
                left.remove(number)
            except BaseException as error:
                found[number] = error
                left.remove(number)
    return found


@pytest.mark.parametrize("index", range(8))
def test_a_pass_that_fails_ends_its_generations_and_no_others(alone, index):
    error = InferenceError("Failed.", "", "")
    fake = FakeBatch(2, fail_at={index: error})
    found = read([fake.stream(prompt) for prompt in PROMPTS])
    fake.batch.check()
    for tokens, expected in zip(found, alone, strict=True):
        assert tokens is error or tokens == expected
    assert error in found
    assert read([fake.stream(PROMPTS[1])]) == [alone[1]]


@pytest.mark.parametrize("index", range(6))
def test_an_interrupted_pass_is_raised_where_it_was_computed_and_moves_nobody(alone, index):
    fake = FakeBatch(3, fail_at={index: KeyboardInterrupt()})
    found = read([fake.stream(prompt) for prompt in PROMPTS])
    fake.batch.check()
    assert sum(isinstance(one, KeyboardInterrupt) for one in found) == 1
    assert all(isinstance(one, KeyboardInterrupt) or one == alone[number] for number, one in enumerate(found))


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 4}])
def test_answers_go_on_in_as_many_slots_as_what_takes_the_place_of_a_gpu_has(slots, options):
    wanted, taken = [], 0
    for prompt in PROMPTS:
        wanted += read([FakeBatch(1).stream(prompt, **options)])
    for index in range(8):
        fake = FakeBatch(3, fail_at={index: DeviceLost("It is lost.", "", "")}, replaced_by=slots)
        assert read([fake.stream(prompt, **options) for prompt in PROMPTS]) == wanted, index
        fake.batch.check()
        taken += fake.replaced_by is None
    assert taken > 4


def test_what_has_begun_on_a_gpu_and_is_cancelled_before_it_goes_on_keeps_its_tokens(alone):
    fake = FakeBatch(2, fail_at={3: DeviceLost("It is lost.", "", "")}, replaced_by=1)
    first, second = (fake.submit(prompt) for prompt in PROMPTS[:2])
    while fake.replaced_by is not None:
        fake.batch.step()
    given = list(second.generation.sequence.answer_ids)
    assert 0 < len(given) < len(alone[1])
    assert second in fake.admission.waiting
    fake.batch.cancel(second)
    fake.compute_all()
    assert second.generation.settled().token_ids == tuple(given) == tuple(alone[1][: len(given)])
    assert second.generation.settled().finish_reason == "cancelled"
    assert first.generation.settled().token_ids == tuple(alone[0])
    assert any("It is lost" in text for text in first.generation.settled().warnings)
    fake.batch.check()


@pytest.mark.parametrize("error", [DeviceLost("It is lost.", "", ""), DeviceMemoryExhausted("It is full.", "", "")])
def test_a_gpu_whose_place_nothing_takes_fails_those_whose_pass_it_was(alone, error):
    fake = FakeBatch(2, fail_at={2: error})
    found = read([fake.stream(prompt) for prompt in PROMPTS])
    assert error in found
    assert all(one is error or one == alone[number] for number, one in enumerate(found))
    fake.batch.check()


class FailingSampler(Sampler):
    """Fails at its third token."""

    count = 0

    @property
    def takes_best(self):
        self.count += 1
        if self.count == 3:
            raise MemoryError
        return super().takes_best


def test_a_sampler_that_fails_ends_its_generation_alone(alone):
    fake = FakeBatch(3)
    streams = [fake.stream(prompt, sampler=FailingSampler if prompt is PROMPTS[1] else Sampler) for prompt in PROMPTS]
    found = read(streams)
    fake.batch.check()
    assert (found[0], found[2]) == (alone[0], alone[2])
    assert "memory" in str(found[1])


class CostlyGrammar:
    """Turns out to be too costly when a pass is prepared."""

    def begin(self, sampler, room):
        return ()

    def pruned(self, draft):
        raise InvalidGrammar("The grammar is too costly.", "", "")


@pytest.mark.parametrize("prompt", [PROMPTS[1], [3] * 30])
def test_a_grammar_that_fails_before_a_pass_ends_its_generation_alone(alone, prompt):
    fake = FakeBatch(3)
    failing = fake.submit(prompt, grammar=CostlyGrammar())
    assert read([fake.stream(PROMPTS[0]), fake.stream(PROMPTS[2])]) == [alone[0], alone[2]]
    assert isinstance(failing.error, InvalidGrammar)
    fake.batch.check()


class InterruptedDrafter(NullDrafter):
    """Is interrupted when an answer begins."""

    def begin(self, sequence):
        raise KeyboardInterrupt


def test_an_interrupt_while_a_generation_begins_leaves_the_model_free(alone):
    fake = FakeBatch(2)
    (interrupt,) = read([fake.stream(PROMPTS[0], drafter=InterruptedDrafter())])
    assert isinstance(interrupt, KeyboardInterrupt)
    fake.batch.check()
    assert read([fake.stream(PROMPTS[1])]) == [alone[1]]


def test_answers_get_a_token_in_every_pass_and_prompts_the_rest_in_their_order():
    fake = FakeBatch(3, most_rows=12)
    for prompt, count in (([5, 6], 20), ([1] * 25, 2), ([2] * 9, 2)):
        fake.submit(prompt, max_tokens=count)
    fake.compute_all()
    beside = [dict(rows) for rows in fake.runner.passes]
    assert [[rows.get(slot, 0) for slot in range(3)] for rows in beside[:6]] == [
        [2, 10, 0], [1, 11, 0], [1, 4, 7], [1, 1, 2], [1, 0, 1], [1, 0, 0],
    ]  # fmt: skip
    assert len(beside) == 20


def test_a_long_prompt_beside_an_answer_gets_larger_pieces_once_their_cost_is_known():
    fake = FakeBatch(2, most_rows=40)
    fake.submit([5, 6], max_tokens=20)
    fake.batch.step()
    fake.submit([1] * 60, max_tokens=2)
    fake.compute_all()
    pieces = [dict(rows).get(1) for rows in fake.runner.passes[1:4]]
    assert pieces[0] == 16
    assert pieces[1] > 16


def drafter_of(text, truthful, bandit=None):
    """Return a drafter that knows a text and guesses the next token, truly or not."""
    source = OracleSource(text, lambda position: truthful)
    return AdaptiveDrafter(DraftCore(draft_library(), [source]), linear_costs(4.0, 0.5), bandit, max_nodes=8)


def test_answers_without_room_for_drafts_teach_those_who_draft_nothing_of_costs(alone):
    fake = FakeBatch(3, most_rows=16, draft_max=0)
    whole = [[*prompt, *tokens] for prompt, tokens in zip(PROMPTS, alone, strict=True)]
    drafters = [drafter_of(text, truthful=True, bandit=DiscountedUCB([1.0, 1.0])) for text in whole]
    tickets = [
        fake.submit(prompt, max_tokens=6, drafter=drafter) for prompt, drafter in zip(PROMPTS, drafters, strict=True)
    ]
    fake.compute_all()
    assert [ticket.error for ticket in tickets] == [None] * 3
    assert [ticket.generation.settled().token_ids for ticket in tickets] == alone


def test_drafts_share_the_rows_of_a_pass_and_rest_where_nothing_is_right(alone):
    fake = FakeBatch(3, most_rows=16, draft_max=6)
    whole = [[*prompt, *Run(prompt, max_tokens=40).result().token_ids] for prompt in PROMPTS]
    tickets = [
        fake.submit(prompt, max_tokens=40, drafter=drafter_of(text, index != 1))
        for index, (prompt, text) in enumerate(zip(PROMPTS, whole, strict=True))
    ]
    while fake.batch.step():
        fake.batch.check()
    assert [ticket.generation.settled().token_ids for ticket in tickets] == [
        tuple(text[len(prompt) :]) for prompt, text in zip(PROMPTS, whole, strict=True)
    ]
    rows = [sum(count for _, count in one) for one in fake.runner.passes[1:]]
    assert max(rows) > 3
    assert max(rows) <= 3 + 6
    right, wrong = tickets[0].generation.settled().spec, tickets[1].generation.settled().spec
    assert right.draft_n_accepted == right.draft_n > 20
    assert right.steps < 15
    assert (wrong.draft_n_accepted, wrong.steps) == (0, 39)
    assert wrong.rows_drafted < 20


def test_drafts_leave_room_for_prompts_that_wait(alone):
    fake = FakeBatch(3, most_rows=20, draft_max=30)
    for prompt in PROMPTS[:2]:
        text = [*prompt, *Run(prompt, max_tokens=60).result().token_ids]
        fake.submit(prompt, max_tokens=56, drafter=drafter_of(text, True))
    for _ in range(2):
        fake.batch.step()
    fake.submit([1] * 40, max_tokens=2)
    fake.compute_all()
    assert max(sum(count for _, count in one) for one in fake.runner.passes[:2]) > 4
    pieces = [dict(rows).get(2, 0) for rows in fake.runner.passes[2:]]
    assert pieces[:3] == [16, 16, 8]


def test_who_came_first_gets_the_next_slot():
    fake = FakeBatch(2, most_rows=8)
    tickets = [fake.submit([number + 1] * 2, max_tokens=3) for number in range(7)]
    ended = []
    while fake.batch.step():
        ended += [number for number, ticket in enumerate(tickets) if ticket.has_ended and number not in ended]
        fake.batch.check()
    assert ended == list(range(6))


def test_a_cancelled_generation_leaves_whole_steps(alone):
    fake = FakeBatch(3)
    stream, other = fake.stream(PROMPTS[0]), fake.stream(PROMPTS[1])
    events, others = iter(stream), iter(other)
    next(events)
    next(others)
    stream.close()
    assert stream.result().finish_reason == "cancelled"
    assert stream.result().token_ids == alone[0][: len(stream.result().token_ids)]
    assert other.result().token_ids == alone[1]
    fake.batch.check()


def test_a_stream_that_is_collected_in_the_middle_of_a_step_ends_with_the_next_one(alone):
    fake = FakeBatch(3)
    left = iter(fake.stream(PROMPTS[0], max_tokens=30))
    next(left)

    class CollectingDrafter(NullDrafter):
        def begin(self, sequence):
            left.close()

    assert read([fake.stream(PROMPTS[1], drafter=CollectingDrafter())]) == [alone[1]]
    fake.batch.check()
    assert not fake.admission.active


def test_rows_are_saved_from_whichever_slot_has_them(native_package, tmp_path):
    prompts = [[10 + slot, *range(20, 90)] for slot in range(2)]
    with load_package(native_package, ctx=CONTEXT, slots=2) as model:
        streams = [iter(model.stream(prompt, max_tokens=4, **GREEDY)) for prompt in prompts]
        for _ in range(4):
            for events in streams:
                next(events, None)
        for events in streams:
            events.close()
        assert [model.save_rows(tmp_path / f"{prompt[0]}.rows", prompt) for prompt in prompts] == [64, 64]


def test_an_answer_that_its_format_decides_needs_no_pass(native_package):
    with load_package(native_package, ctx=CONTEXT, slots=2) as model:
        result = model.generate("a", regex="abc", max_tokens=20, temperature=0.0)
        assert (result.text, result.finish_reason, result.usage.forced_tokens) == ("abc", "stop", len(result.token_ids))
        model._batch.check()


class Collecting(NullDrafter):
    """Collects garbage beside passes, which wait for it."""

    is_asked = False
    thread = None

    def pass_begins(self, draft):
        if self.is_asked:
            self.thread = SideThread(gc.collect, "test")
            assert self.thread.begin()

    def pass_ends(self, *, quietly=False):
        if self.thread is not None:
            self.thread.join(60)
            assert not self.thread.is_alive(), "it waits for the step"


def test_a_stream_that_is_collected_as_garbage_beside_a_pass_waits_for_no_step():
    fake, drafter = FakeBatch(1), Collecting()
    gc.disable()
    try:
        left = [iter(fake.stream([1, 2, 3], drafter=drafter, max_tokens=30))]
        next(left[0])
        left.append(left)
        del left
        drafter.is_asked = True
        tokens = [event.token_ids for event in fake.stream([4, 5], max_tokens=3)]
    finally:
        gc.enable()
    assert len(tokens) == 3
    assert drafter.thread is not None
    assert not fake.admission.active
    fake.batch.check()
