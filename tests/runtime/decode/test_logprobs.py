"""Log probabilities and processors of logits: what a model says, and the same with every way of drafting."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import ConfigError
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.plain_answers import PROMPT, SAMPLING, TOKENS
from tests.helpers.small import GREEDY

MODES = ("off", "recycling", "ngram")


@pytest.fixture(scope="module")
def native(native_package):
    require_native()
    with load_package(native_package) as model:
        yield model


@SAMPLING
@pytest.mark.parametrize("count", [0, 3, 20])
def test_they_are_the_same_with_and_without_speculation(native, sampling, count):
    first, *others = (
        native.generate(PROMPT, max_tokens=TOKENS, logprobs=count, spec=mode, **sampling).logprobs for mode in MODES
    )
    assert others == [first] * 2
    assert [len(one.top) for one in first] == [count] * TOKENS


def test_they_are_those_of_the_logits(model):
    result = model.generate(PROMPT, max_tokens=6, logprobs=5, repetition_penalty=1.5, seed=1, temperature=1.5)
    ids = model.tokenizer.encode_prompt(PROMPT)
    with model.passes() as (target, cache):
        cache.truncate(0)
        tokens = [*ids, *result.token_ids[:-1]]
        with cache.reserve(len(tokens)) as rows:
            logits = target.forward(tokens, rows.start, 6).logits.astype(np.float64)
    logits -= np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)) + logits.max(1, keepdims=True)
    for row, token, found in zip(logits, result.token_ids, result.logprobs, strict=True):
        assert (found.token_id, found.logprob) == (token, pytest.approx(row[token], abs=1e-4))
        assert [one.token_id for one in found.top] == np.argsort(-row, kind="stable")[:5].tolist()
        assert found.text == model.tokenizer.token_bytes(token).decode("utf-8", "replace")


def test_events_have_those_of_their_tokens_and_a_stop_text_takes_some_back(model):
    text = model.generate(PROMPT, max_tokens=12, **GREEDY).text
    with model.stream(PROMPT, max_tokens=12, stop=text[3:5], logprobs=0, **GREEDY) as stream:
        events = list(stream)
    result = stream.result()
    assert [one.token_id for one in result.logprobs] == list(result.token_ids)
    assert [one for event in events for one in event.logprobs] == list(result.logprobs)


@SAMPLING
def test_a_processor_sees_the_tokens_before_each_row_and_the_text_is_plain_decodings(native, sampling):
    def no_token_twice(token_ids, logits):
        assert logits.dtype == np.float32
        logits[token_ids] = -np.inf

    answers = [
        native.generate(PROMPT, max_tokens=TOKENS, logits_processor=no_token_twice, spec=mode, **sampling).token_ids
        for mode in MODES
    ]
    assert answers[1:] == answers[:1] * 2
    seen = [*native.tokenizer.encode_prompt(PROMPT), *answers[0]]
    assert len(set(answers[0])) == len(answers[0])
    assert not set(answers[0]) & set(seen[: -len(answers[0])])


def test_what_a_processor_raises_ends_the_answer(model):
    def fails(token_ids, logits):
        raise ZeroDivisionError(len(token_ids))

    with pytest.raises(ZeroDivisionError):
        model.generate(PROMPT, max_tokens=3, logits_processor=fails)
    assert model.generate(PROMPT, max_tokens=3, **GREEDY).usage.completion_tokens == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda row: setattr(row, "shape", (1, -1)),
        lambda row: setattr(row, "dtype", np.int32),
        lambda row: row.fill(np.nan),
        lambda row: row.fill(np.inf),
    ],
)
def test_a_row_that_a_processor_spoils_is_its_error_and_not_the_models(model, spoil):
    with pytest.raises(ConfigError, match="logits_processor"):
        model.generate(PROMPT, max_tokens=3, logits_processor=lambda token_ids, row: spoil(row))


@pytest.mark.parametrize("options", [{"logprobs": -1}, {"logprobs": 101}, {"logits_processor": 3}])
def test_wrong_options_are_refused(model, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        model.generate(PROMPT, max_tokens=3, **options)
