"""The real model: pulled and exported by edge-rt itself, judged by recorded token ids and a real chat."""

from __future__ import annotations

import hashlib
import json

import pytest

from edge_rt.ort.op_library import library_path, native_status
from edge_rt.package.kv_formats import BLOCK_TOKENS
from edge_rt.runtime.decode.repetition import RepetitionGuard
from edge_rt.store.recipes import load_recipes
from tests.golden.answers import RECIPE, greedy_answer, recorded
from tests.golden.record import RECIPES, spelled
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.pairs import with_slow
from tests.helpers.repetitive_texts import TEXTS

pytestmark = pytest.mark.model

ISAS = native_status(library_path()).instruction_sets or (None,)
WAYS = [*((isa, None) for isa in ISAS if isa != "scalar"), (ISAS[0], 5)]
"""Instruction set and tokens of a pass: neither may show in an answer. Plain C++ would take minutes; a small model is
compared on it in ``tests/runtime/test_native_model.py``."""


ROWS = "37946fbaf459aea4a1979817083b617f5888b881819665bb62cfa6682fbacd71"
"""SHA-256 of the rows of some tokens, with the cache's recorded format."""


def answers(op_profile, count=None):
    """Parametrise over the recorded answers; those behind the first ``count`` are slow."""
    found = recorded(op_profile)["answers"]
    return pytest.mark.parametrize(
        "answer", with_slow(found, found[:count]), ids=lambda answer: answer["prompt"].replace(" ", "-")[:24]
    )


@pytest.fixture(scope="module")
def float_model(smollm2_float_package):
    with load_package(smollm2_float_package, ctx=512, prefill_chunk=recorded("portable")["prefill_chunk"]) as model:
        yield model


@answers("portable", 4)
def test_greedy_answers_are_the_recorded_ones(float_model, answer):
    found = greedy_answer(float_model, answer["prompt"], recorded("portable")["max_tokens"])
    assert found == answer["token_ids"]


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0]}, passes of {way[1] or 'the usual size'}")
def native_model(request, smollm2_native_package):
    require_native()
    isa, chunk = request.param
    kv_format = recorded("native")["kv_format"]
    with load_package(smollm2_native_package, ctx=512, kv=kv_format, isa=isa, prefill_chunk=chunk) as model:
        yield model


@answers("native")
def test_native_answers_are_the_recorded_ones_on_every_instruction_set(native_model, answer):
    found = greedy_answer(native_model, answer["prompt"], recorded("native")["max_tokens"])
    assert found == answer["token_ids"], "after a change of the order of a sum: python -m tests.golden.record"


def test_stored_rows_have_these_bits(native_model, tmp_path):
    native_model.reset()
    token_ids = list(range(1000, 1064))
    native_model.generate([*token_ids, 5], max_tokens=1)
    assert native_model.save_rows(tmp_path / "rows", token_ids) == BLOCK_TOKENS
    rows = (tmp_path / "rows").read_bytes()[-BLOCK_TOKENS * native_model.describe()["kv_bytes_per_token"] :]
    assert hashlib.sha256(rows).hexdigest() == ROWS, "stored prompts would change answers: raise ROWS_VERSION"


def test_recording_spells_a_recipe_as_it_is_written():
    text = (RECIPES / f"{RECIPE}.json").read_text(encoding="utf-8")
    assert spelled(json.loads(text)) + "\n" == text


def test_second_turn_computes_only_what_is_new(smollm2_package):
    with load_package(smollm2_package) as model:
        chat = model.chat()
        history = "The ship's cat is called Biscuit and sleeps in the engine room. " * 40
        first = chat.send(history, temperature=0.0, max_tokens=16)
        second = chat.send("What is the cat called?", temperature=0.0, max_tokens=16)
        assert first.usage.prompt_tokens > 500
        assert second.usage.cached_tokens >= first.usage.total_tokens - 1
        new = second.usage.prompt_tokens - second.usage.cached_tokens
        assert new < 32
        assert second.timings.prompt_n == new


@pytest.mark.parametrize("package", ["smollm2_package", "smollm2_native_package"])
def test_the_packages_users_get_begin_most_answers_alike(package, request):
    """int8 activations flip near ties, and one flip changes the rest; first tokens are what can be compared."""
    with load_package(request.getfixturevalue(package), ctx=512) as model:
        alike = sum(
            greedy_answer(model, answer["prompt"], 1) == answer["token_ids"][:1]
            for answer in recorded("portable")["answers"]
        )
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


@pytest.fixture(scope="module")
def drafting_model(smollm2_native_package):
    require_native()
    with load_package(smollm2_native_package, ctx=2048) as model:
        yield model


def test_an_answer_that_circles_ends_at_the_same_token_with_and_without_drafts(drafting_model):
    prompt = [{"role": "user", "content": "List animals."}]  # 288 tokens
    options = {"temperature": 0.0, "repetition_guard": True}
    drafted, plain = (drafting_model.generate(prompt, **options, spec=mode) for mode in ("suffix", "off"))
    # How much is drafted depends on how busy the machine is.
    assert drafted.spec.draft_n_accepted > 50
    assert (drafted.finish_reason, drafted.token_ids, drafted.text) == ("repetition", plain.token_ids, plain.text)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_texts_that_repeat_themselves_rightly_are_no_circles(text, drafting_model):
    guard = RepetitionGuard(drafting_model.tokenizer.token_bytes)
    assert not any(guard.push(token) for token in drafting_model.tokenizer.encode_prompt(text))


@pytest.mark.parametrize(("text", "least", "most"), [("{n}\n", 2000, 2400), ("| {n} | {m} |\n", 512, 700)])
def test_counting_without_end_is_ended(text, least, most, drafting_model):
    tokenizer = drafting_model.tokenizer
    guard = RepetitionGuard(tokenizer.token_bytes)
    for n in range(1, most):
        if any(guard.push(token) for token in tokenizer.encode_prompt(text.format(n=n, m=n + 1))):
            break
    assert least < n < most - 1
