"""The score of a text: log probabilities of a model's own rows, whole or in windows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_rt.errors import Cancelled, ConfigError
from edge_rt.runtime.decode.scoring import score_tokens, windows_of
from edge_rt.runtime.forward.cancel import CancelToken
from tests.helpers.plain_answers import PROMPT
from tests.helpers.small import GREEDY


def expected(model, ids):
    """Return the log probability of every token but the first, from one pass."""
    with model.passes() as (target, cache):
        cache.truncate(0)
        with cache.reserve(len(ids)) as rows:
            logits = target.forward(ids, rows.start, len(ids)).logits[:-1].astype(np.float64)
    total = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    return logits[np.arange(len(ids) - 1), ids[1:]] - total


def test_it_is_that_of_one_pass_over_the_text(model):
    told = []
    score = model.score(PROMPT, on_progress=lambda *counts: told.append(counts))
    ids = model.tokenizer.encode_prompt(PROMPT)
    assert score.token_ids == tuple(ids)
    np.testing.assert_allclose(score.logprobs, expected(model, ids), atol=1e-4)
    assert score.perplexity == pytest.approx(math.exp(-sum(score.logprobs) / len(score.logprobs)))
    assert told[-1] == (len(ids), len(ids))
    assert model.score(ids) == score


def test_a_text_beyond_the_context_is_scored_in_windows(model):
    size = model.context_tokens
    ids = np.random.default_rng(1).integers(0, 200, size + size // 2 + 3).tolist()
    score = model.score(ids)
    assert len(score.logprobs) == len(ids) - 1
    wanted = []
    for begin, scored, end in windows_of(len(ids), size):
        wanted += expected(model, ids[begin:end])[max(0, scored - 1 - begin) :].tolist()
    np.testing.assert_allclose(score.logprobs, wanted, atol=1e-4)


def test_rows_that_an_earlier_window_has_scored_need_no_logits(model):
    size = model.context_tokens
    ids = np.random.default_rng(1).integers(0, 200, 2 * size).tolist()
    asked = []

    class Target:
        def forward(self, token_ids, start, num_logits, *, parents=None):
            asked.append(num_logits)
            return target.forward(token_ids, start, num_logits, parents=parents)

    with model.passes() as (target, cache):
        score = score_tokens(ids, Target(), cache, rows=8, chunk=32)
    assert score == model.score(ids)
    assert sum(asked) <= len(ids) + 2 + 2 * size // 2 // 32 + 2


@pytest.mark.parametrize(("count", "size"), [(5, 10), (10, 10), (11, 10), (14, 10), (16, 10), (37, 8), (3, 2)])
def test_windows_score_every_token_once_and_see_half_a_window(count, size):
    scored = []
    for begin, first, end in windows_of(count, size):
        assert end - begin <= size
        assert begin == 0 or first - begin >= size // 2
        scored += range(first, end)
    assert scored == list(range(count))


def test_answers_afterwards_are_what_they_were(model):
    before = model.generate(PROMPT, max_tokens=8, **GREEDY).token_ids
    model.score("Something else, and more of it.")
    assert model.cached_tokens == 0
    assert model.generate(PROMPT, max_tokens=8, **GREEDY).token_ids == before


def test_one_token_has_no_score(model):
    with pytest.raises(ConfigError, match="too short"):
        model.score([5])


def test_it_can_be_stopped(model):
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(Cancelled):
        model.score(PROMPT, cancel=cancel)
    assert model.score("It works again afterwards.").perplexity > 1
