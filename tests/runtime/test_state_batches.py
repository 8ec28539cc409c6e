"""Several generations in shared passes over states and windows: each is what it is alone, wherever it begins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_rt.export import export_model
from edge_rt.memory.plan import Request, make_plan
from edge_rt.memory.sizes import sizes_of
from edge_rt.package.states import states_bytes, wanted_checkpoints
from edge_rt.runtime.decode.draft import Draft
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding
from edge_rt.runtime.forward.state_memory import StateMemory
from tests.helpers.arrivals import CONTEXT, SAMPLED, arrivals, is_whole
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.small import FREE_ROWS, GREEDY

MODES = ("auto", "suffix", "ngram", "recycling", "off")
CASES = {"qwen3_5": {}, "granite_h": {"logits_scaling": 0.1}, "lfm2": {}, "gemma3_text": {}}
"""Case -> what differs in its config.json: a gated delta rule; a state space, and experts; convolutions; windows."""


@pytest.fixture(scope="module", params=CASES)
def package(request, tmp_path_factory):
    require_native()
    folder = tmp_path_factory.mktemp(request.param)
    source = write_folder(folder / "model", load_case(request.param), config=CASES[request.param])
    export_model(source, folder / "p", profile="native", calibration=None, accept_loss=True, weights="int8")
    return folder / "p"


def random_requests(rng, count):
    """Return prompts with options: greedy or seeded, of all lengths, every third one begins like others."""
    beginning = [5 + (7 * i) % 11 for i in range(70)]
    requests = []
    for number in range(count):
        own = rng.integers(10, 250, int(rng.choice([2, 5, 30, 60]))).tolist()
        prompt = beginning[: int(rng.choice([40, 70]))] + own if number % 3 == 0 else own
        options = {"max_tokens": int(rng.integers(1, 24)), "repetition_guard": False}
        options |= GREEDY if number % 2 else SAMPLED | {"seed": number}
        requests.append((prompt, options | ({"logprobs": 2} if number % 4 == 0 else {})))
    return requests


def test_answers_are_those_alone_whatever_arrives_and_leaves(package):
    rng = np.random.default_rng(4)
    requests = random_requests(rng, 20)
    with load_package(package, ctx=CONTEXT, spec="off") as model:
        alone = []
        for prompt, options in requests:
            model.reset()
            alone.append(model.generate(prompt, **options))
    given = shared = accepted = 0
    with load_package(package, ctx=CONTEXT, slots=3, prefill_chunk=32) as model:
        assert model.slots == 3
        model.speculation.costs = FREE_ROWS

        def start(number):
            prompt, options = requests[number]
            return model.stream(prompt, **options, spec=MODES[number % len(MODES)])

        for number, result in arrivals(model, len(requests), start, rng):
            given += is_whole(result, alone[number])
            shared += result.usage.cached_tokens
            accepted += 0 if result.spec is None else result.spec.draft_n_accepted
    assert given > 10
    assert shared > 0
    assert accepted > 0


def test_a_prompt_that_several_begin_with_is_computed_once(package):
    prompt = [5 + (7 * i) % 11 for i in range(70)]
    with load_package(package, ctx=CONTEXT, spec="off") as model:
        alone = []
        for number in range(4):
            model.reset()
            alone.append(model.generate([*prompt, 9 + number], max_tokens=12, **GREEDY).token_ids)
    with load_package(package, ctx=CONTEXT, slots=4, spec="suffix") as model:
        streams = [model.stream([*prompt, 9 + number], max_tokens=12, **GREEDY) for number in range(4)]
        events = [iter(stream) for stream in streams]
        while [one for one in events if next(one, None) is not None]:
            model._batch.check()
        results = [stream.result() for stream in streams]
        assert [result.token_ids for result in results] == alone
        # Whole blocks of 16 rows, and a state that has seen exactly these.
        assert [result.usage.cached_tokens for result in results] == [0, 64, 64, 64]
        # A conversation goes on where its answer has ended, whatever came between.
        gone_on = model.generate([*prompt, 10, *alone[1], 7], max_tokens=5, **GREEDY)
        assert gone_on.usage.cached_tokens > len(prompt)
        model._batch.check()
        model.reset()
        assert model.cached_tokens == 0
        computed = model.generate([*prompt, 10, *alone[1], 7], max_tokens=5, **GREEDY)
        assert (computed.usage.cached_tokens, computed.token_ids) == (0, gone_on.token_ids)


def test_states_that_were_given_up_are_computed_again(package):
    prompts = [[7 + number, *[5 + (number * i) % 13 for i in range(40)]] for number in range(6)]
    with load_package(package, ctx=CONTEXT, spec="off") as model:
        alone = [model.generate(prompt, max_tokens=6, **GREEDY).token_ids for prompt in prompts]
    with load_package(package, ctx=CONTEXT, slots=2, spec="off") as model:
        assert model.plan.choice.checkpoints == wanted_checkpoints(2)
        assert model._cache._keeps == wanted_checkpoints(2)
        for _ in range(2):
            for prompt, expected in zip(prompts, alone, strict=True):
                assert model.generate(prompt, max_tokens=6, **GREEDY).token_ids == expected
                model._batch.check()
        assert model.generate(prompts[-1], max_tokens=6, **GREEDY).usage.cached_tokens == 32
        # What no generation computes with leaves no trace: a pass of somebody else in the first slot.
        score = model.score(prompts[0])
        assert model.generate(prompts[0], max_tokens=6, **GREEDY).token_ids == alone[0]
        assert model.score(prompts[0]) == score
        model._batch.check()


def test_a_pass_that_is_stopped_leaves_all_states_as_they_were(package):
    prompts = [[5 + (number * i) % 13 for i in range(20)] for number in (3, 5)]
    with load_package(package, ctx=CONTEXT, slots=2, spec="suffix") as model:
        model.speculation.costs = FREE_ROWS
        alone = [model.generate(prompt, max_tokens=30, **GREEDY).token_ids for prompt in prompts]
        model.reset()
        streams = [model.stream(prompt, max_tokens=30, **GREEDY) for prompt in prompts]
        events = [iter(stream) for stream in streams]
        for one in events:
            next(one)

        def bookkeeping():
            caches = model._batch.admission.caches
            slots = [(one.slot, one.length, one.advance) for cache in caches if (one := cache.states) is not None]
            rows = [
                maps[: cache.length].tolist()
                for cache in caches
                for maps in (cache.row_map, cache.window_map)
                if maps is not None
            ]
            return [cache.token_ids for cache in caches], slots, rows

        before = bookkeeping()
        # What a pass of both computes, and nobody takes.
        tickets = tuple(model._batch._active)
        runner = model._runner.get()
        for tokens in ([9], [9, 4, 3]):
            parts = [ticket.running.prepare(None, Draft.chain(tokens)) for ticket in tickets]
            runner.forward_many(parts)
            for ticket in tickets:
                ticket.running.drop()
        assert bookkeeping() == before
        # One leaves; the other goes on.
        streams[0].cancel()
        for _ in events[0]:
            pass
        for _ in events[1]:
            pass
        assert streams[1].result().token_ids == alone[1]
        assert streams[0].result().token_ids == alone[0][: len(streams[0].result().token_ids)]
        model._batch.check()


def test_the_plan_counts_the_states_of_all_slots(package):
    with load_package(package, ctx=CONTEXT, slots=4, spec="suffix", draft_max=7, prefill_chunk=32) as loaded:
        choice, model = loaded.plan.choice, loaded.package.manifest.model
        terms = {term.name: term for term in loaded.plan.terms}
        plan = loaded.plan
    # Where memory is short fewer are kept, but one for each slot, as long as there are slots.
    asked = Request(None, CONTEXT, slots=4, spec="off", prefill_chunk=32)
    whole = make_plan(plan.shape, plan.device, asked).choice
    for count in (0, 1, 4):
        needs = sizes_of(plan.shape, plan.device, replace(whole, checkpoints=count), asked).needs.host
        less = make_plan(plan.shape, plan.device, replace(asked, budget_bytes=needs)).choice
        assert less.slots <= less.checkpoints < wanted_checkpoints(4) or less.slots == 1
    assert (choice.slots, choice.tree_rows, choice.checkpoints) == (4, 8, wanted_checkpoints(4))
    states, cache = terms["states"], terms["kv_cache"].bytes
    there = NativeIOBinding(
        model, CONTEXT, choice.kv_format, sequences=4, largest_pass=choice.largest_pass, drafts=8,
        checkpoints=choice.checkpoints,
    )  # fmt: skip
    # Each layer's part begins at a multiple of 64.
    assert 0 <= there.cache_bytes - cache < 64 * model.num_layers
    if model.recurrent_layers:
        assert states.bytes == 4 * states_bytes(model, 8) + choice.checkpoints * states_bytes(model, 0) // 2
        assert states.bytes == StateMemory(model, 4, 8, choice.checkpoints).nbytes
        assert "of 4 slots" in states.text
    else:
        kept = [part for place in range(choice.checkpoints) for part in there._kept_rows.parts(place)]
        assert states.bytes == sum(part.nbytes for part in kept) > 0
        assert states.text == "what windows saw of 10 earlier texts"
