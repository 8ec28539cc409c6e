"""A second model that drafts beside the passes of its model: the text of plain decoding, whatever else goes on."""

from __future__ import annotations

import threading

import pytest

from edge_rt.package.spec_modes import MODEL
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.speculation.beside import Beside
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.model_source import ModelSource, Way
from tests.helpers.models import load_package
from tests.helpers.plain_answers import PROMPT, SAMPLING, TOKENS
from tests.helpers.small import FREE_ROWS, GREEDY

# Beside passes that cost so much nothing is long to wait for.
DEAR = RowCosts((1,), (0,), ((500.0,),))
LETTERS = {"type": "array", "items": {"enum": ["ab", "abc", "b"]}, "minItems": 4, "maxItems": 9}


def drafting(package, **options):
    """Load a package with itself as the second model, which drafts beside passes as if a device computed these."""
    mode = f"{MODEL}:{package}"
    model = load_package(package, spec=mode, kv="f16", ctx=512, **options)
    model.speculation.costs = FREE_ROWS
    (source,) = model.speculation.drafter(mode).sources
    assert source.beside == "off: the CPU computes the model as well"
    way = source.ways[0]
    beside = Beside(way.model, DEAR, 0.01, way.planner.value_of, clock=lambda: 0.0)  # never too busy
    model.speculation.replace(mode, ModelSource([Way(way.model, way.planner, beside)], beside="on"))
    return model, way.model


def is_quiet():
    return not any(thread.name == "edge-rt drafts" for thread in threading.enumerate())


@SAMPLING
def test_the_text_is_that_of_plain_decoding(native_package, plain_answer, sampling):
    model, second = drafting(native_package)
    passes = 0
    with model:
        for _ in range(3):
            result = model.generate(PROMPT, max_tokens=TOKENS, **sampling)
            assert result.token_ids == plain_answer("f16", sampling)
            assert result.spec.beside == "on"
            passes += result.spec.beside_n
        assert passes > 0
        assert is_quiet()
        second.cache.check()


def test_a_format(native_package):
    with load_package(native_package, spec="off", kv="f16", ctx=512) as plain:
        expected = plain.generate(PROMPT, max_tokens=TOKENS, response_format=LETTERS, **GREEDY)
    model, second = drafting(native_package)
    with model:
        result = model.generate(PROMPT, max_tokens=TOKENS, response_format=LETTERS, **GREEDY)
        assert result.token_ids == expected.token_ids
        second.cache.check()


def test_several_answers_at_once(native_package, plain_answer):
    """The one that began alone drafts beside passes until others join it, and again behind them."""
    model, second = drafting(native_package, slots=3)
    with model:
        first = model.stream(PROMPT, max_tokens=TOKENS, **GREEDY)
        events = iter(first)
        found = [[], [], []]
        for _ in range(3):
            found[0] += next(events).token_ids
        others = [model.stream(PROMPT, max_tokens=12, **GREEDY) for _ in range(2)]
        for tokens, stream in zip(found[1:], others, strict=True):
            for event in stream:
                tokens += event.token_ids
        for event in events:
            found[0] += event.token_ids
        whole = list(plain_answer("f16", GREEDY))
        assert found == [whole, whole[:12], whole[:12]]
        assert first.result().spec.beside == "on"
        second.cache.check()
        model._batch.check()


@pytest.mark.parametrize("slots", [1, 2])
def test_stopped_or_failed_in_the_middle(native_package, plain_answer, slots):
    expected = plain_answer("f16", GREEDY)
    model, second = drafting(native_package, slots=slots)
    with model:
        for count in range(1, 9, 2):
            cancel, seen = CancelToken(), []

            def stop(event, cancel=cancel, seen=seen, count=count):
                seen.append(event)
                if len(seen) == count:
                    cancel.cancel()

            model.generate(PROMPT, max_tokens=TOKENS, cancel=cancel, on_token=stop, **GREEDY)
            assert is_quiet()
            second.cache.check()
            assert model.generate(PROMPT, max_tokens=TOKENS, **GREEDY).token_ids == expected
        stream = iter(model.stream(PROMPT, max_tokens=TOKENS, **GREEDY))
        next(stream)
        next(stream)
        model.close()
        list(stream)
        assert is_quiet()
