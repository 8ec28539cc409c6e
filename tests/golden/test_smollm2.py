"""The real model: pulled and exported by edge-rt itself, judged by recorded token ids and a real chat."""

from __future__ import annotations

import json

import pytest

from edge_rt.runtime.engine import load_package
from edge_rt.store import load_recipes

pytestmark = pytest.mark.model

RECIPE = "smollm2-135m-instruct"


def answers():
    return load_recipes()[RECIPE].golden["answers"]


@pytest.fixture(scope="module")
def float_model(smollm2_float_package):
    with load_package(smollm2_float_package, ctx=512, prefill_chunk=128) as model:
        yield model


@pytest.mark.parametrize("answer", answers(), ids=lambda answer: answer["prompt"][:24])
def test_greedy_answers_are_the_recorded_ones(float_model, answer):
    float_model.reset()
    golden = load_recipes()[RECIPE].golden
    result = float_model.generate(
        [{"role": "user", "content": answer["prompt"]}], temperature=0.0, max_tokens=golden["max_tokens"]
    )
    assert list(result.token_ids) == answer["token_ids"]


def test_second_turn_computes_only_what_is_new(smollm2_package):
    with load_package(smollm2_package) as model:
        chat = model.chat()
        history = "The ship's cat is called Biscuit and sleeps in the engine room. " * 70
        first = chat.send(history, temperature=0.0, max_tokens=16)
        second = chat.send("What is the cat called?", temperature=0.0, max_tokens=16)
        assert first.usage.prompt_tokens > 1000
        assert second.usage.cached_tokens >= first.usage.total_tokens - 1
        new = second.usage.prompt_tokens - second.usage.cached_tokens
        assert new < 32
        assert second.timings.prompt_n == new
        assert second.timings.ttft_ms < first.timings.ttft_ms / 5


@pytest.mark.parametrize("package", ["smollm2_package", "smollm2_native_package"])
def test_the_packages_users_get_begin_most_answers_alike(package, request):
    """int8 activations flip near ties, and one flip changes the rest; first tokens are what can be compared."""
    with load_package(request.getfixturevalue(package), ctx=512) as model:
        alike = 0
        for answer in answers():
            model.reset()
            messages = [{"role": "user", "content": answer["prompt"]}]
            alike += model.generate(messages, temperature=0.0, max_tokens=1).token_ids[0] == answer["token_ids"][0]
    assert alike >= 7


def test_export_report_stands_in_the_manifest(smollm2_package):
    manifest = json.loads((smollm2_package / "manifest.json").read_text())
    assert manifest["quantisation"] == {
        "embedding": "Q8_0",
        "attention": "Q4_1",
        "feed_forward": "Q4_1",
        "head": "Q8_0",
    }
    assert manifest["source"]["sha256"] == load_recipes()[RECIPE].file.sha256
