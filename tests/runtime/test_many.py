"""Answers to many prompts: each is that of ``generate`` alone, a bad prompt stops nobody, and few are under way."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import ConfigError, ContextOverflow, ModelClosed
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.many import AHEAD, MOST_KEPT
from tests.helpers.models import load_package
from tests.helpers.small import GREEDY
from tests.runtime.test_batch import CONTEXT, facts, random_requests


@pytest.fixture(scope="module")
def requests():
    return random_requests(np.random.default_rng(8), 14)


@pytest.fixture(scope="module")
def alone(native_package, requests):
    with load_package(native_package, ctx=CONTEXT, spec="off") as model:
        return [facts(model.generate(prompt, **options)) for prompt, options in requests]


@pytest.mark.parametrize("slots", [None, 3])
def test_answers_are_those_alone_in_order_and_as_they_come(native_package, requests, alone, slots):
    with load_package(native_package, ctx=CONTEXT, slots=slots) as model:
        assert [facts(answer) for answer in model.generate_many(requests)] == alone
        pairs = [(index, facts(answer)) for index, answer in model.generate_many(requests, ordered=False)]
    assert sorted(pairs, key=lambda pair: pair[0]) == list(enumerate(alone))
    assert slots is None or [index for index, _ in pairs] != sorted(index for index, _ in pairs)


@pytest.mark.parametrize("slots", [None, 2])
def test_a_bad_prompt_gives_its_error_and_the_others_their_answers(native_package, slots):
    prompts = [[5, 6], [7] * (CONTEXT + 1), ([8, 9], {"temprature": 1.0}), ([5, 6], {"max_tokens": 3}), [-1]]
    with load_package(native_package, ctx=CONTEXT, slots=slots) as model:
        first, long, misspelt, longer, wrong = model.generate_many(prompts, max_tokens=2, **GREEDY)
        assert isinstance(long, ContextOverflow)
        assert isinstance(misspelt, ConfigError)
        assert "temperature" in str(misspelt)
        assert isinstance(wrong, ConfigError)
        assert longer.token_ids[:2] == first.token_ids
        assert len(longer.token_ids) == 3
        with pytest.raises(ConfigError, match="max_tokens"):
            model.generate_many(prompts, max_tokens=0)


@pytest.mark.parametrize("slots", [None, 2])
def test_few_prompts_are_taken_and_leaving_early_leaves_the_model_usable(native_package, slots):
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield [5, 6, 7 + len(taken) % 50], {"max_tokens": 90 if len(taken) == 1 else 2}

    with load_package(native_package, ctx=CONTEXT, slots=slots) as model:
        for _ in model.generate_many(endless(), **GREEDY):
            break
        assert len(taken) <= MOST_KEPT * (slots or 1) + AHEAD
        model.reset()  # nothing is generated any more
        token, seen = CancelToken(), []
        for index, _ in model.generate_many(endless(), ordered=False, cancel=token, **GREEDY):
            seen.append(index)
            if len(seen) == 5:
                token.cancel()
        assert len(seen) == 5
        model.reset()


def test_what_ends_every_generation_is_raised(native_package):
    model = load_package(native_package, ctx=CONTEXT, slots=2)
    answers = model.generate_many([[5, 6]] * 4, max_tokens=2)
    next(answers)
    model.close()
    with pytest.raises(ModelClosed):
        list(answers) + list(model.generate_many([[5, 6]]))


def test_a_queue_that_others_fill_is_waited_for(native_package):
    with load_package(native_package, ctx=CONTEXT, slots=1 + 1, max_queue=0) as model:
        answers = list(model.generate_many([[5, 6, number] for number in range(7)], max_tokens=3, **GREEDY))
        assert [len(answer.token_ids) for answer in answers] == [3] * 7
