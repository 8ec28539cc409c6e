"""A second model that drafts: the text of plain decoding, a cache that follows, and what is refused."""

from __future__ import annotations

import json

import pytest

import edge_rt
from edge_rt.errors import ConfigError
from edge_rt.export import export_model
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.runtime.forward.cancel import CancelToken
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.packages import copied, replace_file
from tests.helpers.plain_answers import PROMPT, SAMPLING, TOKENS
from tests.helpers.small import FREE_ROWS, GREEDY


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A package with the same tokenizer and other weights, which is hardly ever right."""
    require_native()
    folder = tmp_path_factory.mktemp("other")
    gguf = write_llama_gguf(folder / "other.gguf", seed=9, layers=1, context=512)
    return export_model(gguf.path, folder / "package", profile="native").path


def drafting(package, second, **options):
    """Load a package with a second one, whose passes seem to cost nothing."""
    model = load_package(package, spec=f"model:{second}", **options)
    model.speculation.costs = FREE_ROWS
    return model


@SAMPLING
@pytest.mark.parametrize("kv_format", KV_FORMATS["native"])
@pytest.mark.parametrize("second", ["itself", "other"])
@pytest.mark.parametrize("mode", ["model", "auto"])
def test_the_text_is_that_of_plain_decoding(native_package, other, plain_answer, second, mode, kv_format, sampling):
    path = native_package if second == "itself" else other
    asked = {"spec": f"model:{path}"} if mode == "model" else {"spec": "auto", "drafter": path}
    with load_package(native_package, kv=kv_format, **asked) as model:
        model.speculation.costs = FREE_ROWS
        result = model.generate(PROMPT, max_tokens=TOKENS, **sampling)
        assert result.token_ids == plain_answer(kv_format, sampling)
        assert result.spec.rows_drafted > 0
        assert mode == "auto" or set(result.spec.choices) <= {"model", "off"}
        if second == "itself" and mode == "model" and sampling is GREEDY:
            assert result.spec.acceptance > 0.2
        # Another turn goes on from the rows in both caches.
        assert model.generate(PROMPT, max_tokens=TOKENS, **sampling).token_ids == result.token_ids
        longer = model.generate(PROMPT * 2, max_tokens=TOKENS, **sampling)
        assert longer.token_ids == plain_answer(kv_format, sampling, PROMPT * 2)


def test_the_same_model_is_always_right(native_package):
    """Greedy, with its own weights: a step that drafts gives more than the token of a plain one."""
    steps = []
    with drafting(native_package, native_package, spec_trace=steps.append) as model:
        model.generate(PROMPT, max_tokens=TOKENS, **GREEDY)
    # How many steps draft follows from the measured time of a pass, which a busy machine makes longer.
    drafted = [step for step in steps if step["drafted"]]
    assert drafted
    assert all(step["emitted"] > 1 for step in drafted)


def test_a_shorter_context_stops_drafting_and_not_the_answer(native_package, tmp_path):
    gguf = write_llama_gguf(tmp_path / "short.gguf", seed=0, context=128)
    short = export_model(gguf.path, tmp_path / "short", profile="native").path
    with load_package(native_package, spec="off") as model:
        expected = model.generate(PROMPT * 3, max_tokens=200, **GREEDY)
    assert len(expected.token_ids) + expected.usage.prompt_tokens > 160
    with drafting(native_package, short) as model:
        assert model.generate(PROMPT * 3, max_tokens=200, **GREEDY).token_ids == expected.token_ids


def test_a_stopped_answer_leaves_both_caches_whole(native_package):
    """With the same model as draft, so that a wrong row in its cache would be seen in a wrong guess."""
    steps = []
    with drafting(native_package, native_package, spec_trace=steps.append) as model:
        expected = model.generate(PROMPT, max_tokens=TOKENS, **GREEDY).token_ids
        for count in range(1, 12):
            cancel, seen = CancelToken(), []

            def stop(event, cancel=cancel, seen=seen, count=count):
                seen.append(event)
                if len(seen) == count:
                    cancel.cancel()

            model.generate(PROMPT, max_tokens=TOKENS, cancel=cancel, on_token=stop, **GREEDY)
            with model.passes() as (_, cache):
                cache.check()
            steps.clear()
            assert model.generate(PROMPT, max_tokens=TOKENS, **GREEDY).token_ids == expected
            assert all(step["emitted"] > 1 for step in steps if step["drafted"])


def test_its_memory_is_planned(native_package, other):
    with load_package(native_package, spec="off") as model:
        without = model.plan
    with load_package(native_package, spec=f"model:{other}") as model:
        terms = {term.name: term.bytes for term in model.plan.terms}
        assert model.plan.total_bytes > without.total_bytes
    assert terms["draft_weights"] > 0
    assert terms["draft_model"] > 0
    plan = edge_rt.plan(native_package, spec="auto", drafter=other)
    assert plan.choice.drafter
    assert {"draft_weights", "draft_model"} <= {term.name for term in plan.terms}


def test_it_is_told(native_package, other):
    with load_package(native_package, spec=f"model:{other}") as model:
        assert model.describe()["draft_model"] == str(other)
        held = model.generate(PROMPT, max_tokens=4, **GREEDY).spec.memory_bytes
        assert (other / "weights.bin").stat().st_size <= held < 2 * (other / "weights.bin").stat().st_size
    with load_package(native_package) as model:
        assert model.describe()["draft_model"] is None


class TestRefusals:
    def test_a_folder_that_is_no_package(self, native_package, tmp_path):
        with pytest.raises(ConfigError, match="does not exist"):
            load_package(native_package, spec=f"model:{tmp_path}")

    def test_a_portable_package(self, native_package, small_package):
        with pytest.raises(ConfigError, match="op profile is 'portable'"):
            load_package(native_package, spec=f"model:{small_package}")

    def test_another_tokenizer(self, native_package, other, tmp_path):
        path = copied(other, tmp_path)
        document = json.loads((path / "tokenizer.json").read_text())
        vocabulary = document["model"]["vocab"]
        first, second = list(vocabulary)[100:102]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        replace_file(path, "tokenizer.json", json.dumps(document).encode())
        with pytest.raises(ConfigError, match="neither extends the other"):
            load_package(native_package, spec=f"model:{path}")

    def test_a_mode_that_was_not_loaded(self, native_package, other):
        with (
            load_package(native_package, spec=f"model:{other}") as model,
            pytest.raises(ConfigError, match="without the drafter 'model:elsewhere'"),
        ):
            model.generate(PROMPT, spec="model:elsewhere")

    def test_a_package_is_no_drafter_of_a_kind(self, native_package, other):
        with pytest.raises(edge_rt.EdgeRTError):
            load_package(native_package, spec="head", drafter=other)


def test_a_tokenizer_that_extends_the_models(native_package, tmp_path):
    """Tokens that only one of them knows are never drafted, and stand for something else in the second one's text."""
    gguf = write_llama_gguf(tmp_path / "same.gguf", seed=0, context=512)
    path = export_model(gguf.path, tmp_path / "same", profile="native").path
    document = json.loads((path / "tokenizer.json").read_text())
    more = max([*document["model"]["vocab"].values(), *(one["id"] for one in document["added_tokens"])]) + 1
    document["added_tokens"].append(
        {"id": more, "content": "<|more|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
    )  # fmt: skip
    replace_file(path, "tokenizer.json", json.dumps(document).encode())
    with load_package(native_package, spec="off") as model:
        expected = model.generate(PROMPT, max_tokens=TOKENS, **GREEDY).token_ids
    with drafting(native_package, path) as model:
        result = model.generate(PROMPT, max_tokens=TOKENS, **GREEDY)
    assert result.token_ids == expected
    assert result.spec.draft_n_accepted > 0
