from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from edge_rt.errors import Cancelled, InferenceError
from edge_rt.measure.prompts import LeftOut, Prompt
from edge_rt.measure.speculation_benchmark import Sample, figures, measure_prompts, report, speedup_interval
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.forward.cancel import CancelToken
from tests.helpers.fake_answers import FakeAnswers, result, spec_stats

PROMPTS = [Prompt(0, "zero", "a"), Prompt(1, "one", "b"), Prompt(2, "two", "a")]
CONFIG = GenerationConfig(max_tokens=40, temperature=0.0, seed=0)
IDS = tuple(range(31))

SAMPLE = Sample(
    prompt=0, category="a", tokens=31, plain_ms=60.0, spec_ms=20.0, plain_total_ms=80.0, spec_total_ms=40.0, steps=10,
    tested=40, accepted=20, accepted_at=(8, 6), drafting_ms=1.0, verifying_ms=19.0, grams=28, repeated=0,
)  # fmt: skip


def sample(**changes):
    return dataclasses.replace(SAMPLE, **changes)


def quicker(text, config):
    """Answer 31 tokens: plainly in 60 ms, speculatively in 20."""
    if config.spec == "off":
        return result(IDS, predicted_ms=60.0, ttft_ms=20.0)
    return result(IDS, predicted_ms=20.0, ttft_ms=20.0, spec=spec_stats(config.spec))


def asked(model):
    """Return (text, mode) of the generations behind the warm-up."""
    return [entry[:2] for entry in model.log if isinstance(entry, tuple) and entry[2] == CONFIG.max_tokens]


def test_samples_hold_what_was_measured():
    found = list(measure_prompts(FakeAnswers(quicker), PROMPTS, CONFIG, "auto"))
    assert found == [sample(prompt=prompt.index, category=prompt.category) for prompt in PROMPTS]


def test_plain_and_speculative_take_turns_in_going_first():
    model = FakeAnswers(quicker)
    list(measure_prompts(model, PROMPTS, CONFIG, "suffix"))
    order = [("zero", "off"), ("zero", "suffix"), ("one", "suffix"), ("one", "off"), ("two", "off"), ("two", "suffix")]
    assert asked(model) == order
    assert all(model.log[i - 1] == "reset" for i, entry in enumerate(model.log) if isinstance(entry, tuple))


@pytest.mark.parametrize(("cold", "times"), [(False, 2), (True, 1 + len(PROMPTS))])
def test_tables_are_empty_at_the_start_or_before_every_prompt(cold, times):
    model = FakeAnswers(quicker)
    list(measure_prompts(model, PROMPTS, CONFIG, "auto", cold=cold))
    assert model.log.count("forget") == times
    # The warm-up is short, and nothing of it is kept.
    warm_up = ["forget", "reset", ("zero", "off", 16), "reset", ("zero", "auto", 16), "forget"]
    assert model.log[: len(warm_up)] == warm_up


def test_other_tokens_are_an_error():
    def lying(text, config):
        ids = (*IDS[:7], 99, *IDS[8:]) if (text, config.spec) == ("one", "auto") else IDS
        return result(ids, spec=None)

    work = measure_prompts(FakeAnswers(lying), PROMPTS, CONFIG, "auto")
    assert next(work).prompt == 0
    with pytest.raises(InferenceError, match="Prompt 1, token 7: plain 7, speculative 99"):
        next(work)


def test_prompts_that_do_not_fit_are_told():
    found = list(measure_prompts(FakeAnswers(quicker, context_tokens=43), PROMPTS, CONFIG, "auto"))
    assert found[0] == LeftOut(0, 4, 40, 43)
    assert [type(item) for item in found] == [LeftOut, Sample, Sample]


def test_stopping():
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        next(measure_prompts(FakeAnswers(quicker), PROMPTS, CONFIG, "auto", cancel=token))


def test_repeated_grams_are_counted():
    model = FakeAnswers(lambda text, config: result((1, 2, 3, 4, 1, 2, 3, 4, 1)))
    found = next(measure_prompts(model, PROMPTS, CONFIG, "auto"))
    # 1234 2341 3412 4123, then 1234 and 2341 again.
    assert (found.grams, found.repeated) == (6, 2)
    assert found.repetition == pytest.approx(1 / 3)


def test_without_drafts_every_token_is_a_step():
    found = next(measure_prompts(FakeAnswers(lambda text, config: result(IDS)), PROMPTS, CONFIG, "off"))
    document = figures([found])
    assert (document["tokens_per_step"], document["acceptance"], document["drafting_share"]) == (1.0, None, 0.0)


def test_figures():
    slow = sample(
        plain_ms=40.0, spec_ms=80.0, plain_total_ms=100.0, spec_total_ms=160.0, steps=30, tested=10, accepted=0,
        accepted_at=(), drafting_ms=4.0, verifying_ms=76.0, grams=22, repeated=11,
    )  # fmt: skip
    document = figures([SAMPLE, slow])
    interval = document.pop("speedup_interval")
    assert document == {
        "prompts": 2,
        "tokens": 62,
        "speedup": 1.0,
        "speedup_mean": 1.75,
        "speedup_with_prefill": 180 / 200,
        "tokens_per_step": 1.5,
        "acceptance": 0.4,
        "accepted_per_position": [0.2, 0.15],
        "tok_s": 600.0,
        "tok_s_plain": 600.0,
        "drafting_share": 0.05,
        "repetition": 0.22,
    }
    # Of two prompts, each may be drawn twice.
    assert interval == [0.5, 3.0]


def test_answers_of_one_token_are_no_decoding():
    short = sample(tokens=1, plain_ms=0.0, spec_ms=0.0, steps=0, grams=0, repeated=0, accepted_at=(), tested=0)
    assert figures([short])["speedup"] is None
    both = figures([SAMPLE, short])
    assert (both["speedup"], both["speedup_mean"], both["speedup_interval"]) == (3.0, 3.0, None)


@given(st.lists(st.tuples(st.floats(1, 1e3), st.floats(1, 1e3)), min_size=2, max_size=30))
def test_the_interval_lies_between_the_extremes(times):
    plain, spec = (np.array(column) for column in zip(*times, strict=True))
    low, high = speedup_interval(plain, spec)
    ratios = plain / spec
    assert ratios.min() * (1 - 1e-9) <= low <= high <= ratios.max() * (1 + 1e-9)
    assert speedup_interval(plain, spec) == [low, high]


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(100):
        spec = rng.uniform(50, 150, 40)
        plain = 2.0 * spec * rng.lognormal(-0.045, 0.3, 40)
        low, high = speedup_interval(plain, spec)
        covered += low <= 2.0 <= high
    assert 88 <= covered <= 99


def test_the_report_has_categories_and_the_calm_half():
    samples = [
        sample(prompt=0, category="a", repeated=20),
        sample(prompt=1, category="b", repeated=0, plain_ms=30.0),
        sample(prompt=2, category="a", repeated=5, plain_ms=24.0),
    ]
    document = report(samples, [LeftOut(3, 900, 10, 512)])
    assert list(document["by_category"]) == ["a", "b"]
    assert document["by_category"]["a"] == figures([samples[0], samples[2]])
    assert document["least_repetitive_half"] == figures(samples[1:])
    assert document["speedup"] == figures(samples)["speedup"]
    left = {"prompt": 3, "prompt_tokens": 900, "requested_tokens": 10, "context_tokens": 512}
    assert document["left_out"] == [left]
