"""Models with states: every drafter gives plain texts, chats go on and back, and memory is what was planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_rt.errors import Cancelled, ConfigError, InvalidPackage
from edge_rt.export import export_model
from edge_rt.memory.plan import Request, make_plan
from edge_rt.package.reader import open_package
from edge_rt.package.states import CHECKPOINTS, states_bytes
from edge_rt.runtime.forward.state_memory import StateMemory
from tests.helpers.drafted_texts import PROMPT, check_drafted
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.packages import copied, edit_manifest
from tests.helpers.small import FREE_ROWS, GREEDY

# Logits with a wide spread: what is likely can be guessed.
_SHARP = {"logits_scaling": 0.1}
CASES = {"granite_h_dense": _SHARP, "granite_h": _SHARP, "falcon_h1": {"lm_head_multiplier": 3.0}}
"""Case -> what differs in its config.json."""
OPTIONS = {"profile": "native", "calibration": None, "accept_loss": True, "weights": "int8"}


@pytest.fixture(scope="module", params=CASES)
def package(request, tmp_path_factory):
    require_native()
    folder = tmp_path_factory.mktemp(request.param)
    source = write_folder(folder / "model", load_case(request.param), config=CASES[request.param])
    export_model(source, folder / "p", **OPTIONS)
    return folder / "p"


def test_a_file_becomes_the_package_of_the_folder(package, tmp_path):
    name = next(name for name in CASES if package.parent.name.removesuffix("0") == name)
    case = load_case(name)
    write_gguf(tmp_path / "m.gguf", replace(case, config=case.config | CASES[name]))
    export_model(tmp_path / "m.gguf", tmp_path / "p", **OPTIONS)
    assert (tmp_path / "p" / "weights.bin").read_bytes() == (package / "weights.bin").read_bytes()


@pytest.mark.parametrize("spec", ["suffix", "ngram", "recycling", "auto"])
def test_drafted_texts_are_the_plain_ones(package, spec):
    with load_package(package, spec=spec) as model:
        drafted, accepted = check_drafted(model)
    assert drafted > accepted > 0


def test_rows_have_the_bits_of_their_text_however_it_is_cut(package):
    text = [(11 * i) % 200 for i in range(300)]
    with load_package(package, spec="off", kv="f16", ctx=400, prefill_chunk=256) as model, model.passes() as passes:
        runner, cache = passes

        def rows(sizes):
            found = []
            cache.truncate(0)
            for size in sizes:
                ids = text[cache.length : cache.length + size]
                with cache.reserve(size) as reserved:
                    runner.forward([9] * size, reserved.start, size)  # a pass that nobody takes
                    found.append(runner.forward(ids, reserved.start, size).logits.copy())
                    reserved.commit(ids)
                cache.check()
            return np.concatenate(found)

        bits = rows([256, 44])
        for sizes in ([1] * 9, [2, 7, 64, 1, 200]):
            assert rows(sizes).tobytes() == bits[: sum(sizes)].tobytes(), sizes
        # A tree, of whose rows one path is the text, and then the text goes on.
        rows([50])
        tree, parents = [text[50], 3, text[51], 4, text[52], 5], [-1, 0, 0, 1, 2, 2]
        with cache.reserve(6, parents, certain=1) as reserved:
            found = runner.forward(tree, reserved.start, 6, parents=parents).logits
            assert found[[0, 2, 4]].tobytes() == bits[50:53].tobytes()
            reserved.commit(text[50:53], [0, 2, 4])
        cache.check()
        with cache.reserve(20) as reserved:
            found = runner.forward(text[53:73], reserved.start, 20).logits
            assert found.tobytes() == bits[53:73].tobytes()
        # Stopped in the middle, and then computed.
        model._runner.switch.stop()
        with pytest.raises(Cancelled), cache.reserve(20) as reserved:
            runner.forward(text[53:73], reserved.start, 20)
        model._runner.switch.reset()
        with cache.reserve(20) as reserved:
            assert runner.forward(text[53:73], reserved.start, 20).logits.tobytes() == bits[53:73].tobytes()


def test_a_chat_goes_on_from_states_that_were_kept(package):
    with load_package(package, spec="suffix", prefill_chunk=32) as model:
        model.speculation.costs = FREE_ROWS
        first = model.generate(PROMPT, max_tokens=20, **GREEDY)
        assert model.generate(PROMPT, max_tokens=20, **GREEDY).usage.cached_tokens == len(PROMPT) - 1
        text = [*PROMPT, *first.token_ids]
        gone_on = model.generate([*text, 9, 8], max_tokens=20, **GREEDY)
        assert gone_on.usage.cached_tokens >= len(text) - 1
        # Back into the answer: on from the end of the prompt.
        back = model.generate([*text[:-10], 9, 8], max_tokens=20, **GREEDY)
        back_to = back.usage.cached_tokens
        assert len(PROMPT) - 1 <= back_to < len(text) - 10
        model._cache.check()
        for prompt, found in (([*text, 9, 8], gone_on), ([*text[:-10], 9, 8], back)):
            model.reset()
            model._cache.states._checkpoints.forget()
            fresh = model.generate(prompt, max_tokens=20, **GREEDY)
            assert (fresh.usage.cached_tokens, fresh.token_ids) == (0, found.token_ids)


def test_a_chat_goes_on_and_back(package):
    with load_package(package, spec="suffix", prefill_chunk=16, draft_max=7) as model:
        first = model.generate(PROMPT, max_tokens=20, **GREEDY)
        text = [*PROMPT, *first.token_ids, 9, 8]
        on = model.generate(text, max_tokens=8, **GREEDY)
        assert on.usage.cached_tokens > len(PROMPT)
        back = model.generate([*text[:-30], 9, 8], max_tokens=8, **GREEDY)
        model.reset()
        assert model.generate([*text[:-30], 9, 8], max_tokens=8, **GREEDY).token_ids == back.token_ids
        model.reset()
        assert model.generate(text, max_tokens=8, **GREEDY).token_ids == on.token_ids


def test_texts_are_gone_on_with_after_a_restart(package, tmp_path):
    prompt = [5 + (7 * i) % 11 for i in range(150)]
    with load_package(package, spec="off") as model:
        first = model.generate(prompt, max_tokens=20, **GREEDY)
        text = [*prompt, *first.token_ids, 9, 8, 7, 6]
        then = model.generate(text, max_tokens=8, logprobs=2, **GREEDY)
    options = {"spec": "suffix", "prompt_cache": tmp_path / "prompts"}
    with load_package(package, **options) as model:
        model.speculation.costs = FREE_ROWS
        assert model.generate(prompt, max_tokens=20, **GREEDY).token_ids == first.token_ids
        assert model.save_rows(tmp_path / "chat.rows", text) >= len(prompt) - 1
    with load_package(package, **options) as model:
        model.speculation.costs = FREE_ROWS
        found = model.generate(text, max_tokens=8, logprobs=2, **GREEDY)
        assert len(prompt) - 1 <= found.usage.cached_tokens < len(text)
        assert (found.token_ids, found.logprobs, found.warnings) == (then.token_ids, then.logprobs, ())
    with load_package(package, spec="off", ctx=400) as model, model.passes() as (runner, cache):

        def logits():
            with cache.reserve(len(text) - cache.length) as rows:
                return runner.forward(text[cache.length :], rows.start, 3).logits.tobytes()

        computed = logits()
        model.load_rows(tmp_path / "chat.rows")
        assert model._prompts.restore(cache, text) == cache.length >= len(prompt) - 1
        cache.check()
        assert logits() == computed


def test_the_plan_counts_the_states_that_there_are(package):
    model = open_package(package).manifest.model
    with load_package(package, ctx=400, spec="suffix", draft_max=7) as loaded:
        choice, shape, device = loaded.plan.choice, loaded.plan.shape, loaded.plan.device
        term = next(term for term in loaded.plan.terms if term.name == "states")
    assert (choice.tree_rows, choice.checkpoints) == (8, CHECKPOINTS)
    assert term.bytes == states_bytes(model, 8) + CHECKPOINTS * states_bytes(model, 0) // 2
    assert term.bytes == StateMemory(model, 1, 8, CHECKPOINTS).nbytes
    # What is left decides how many states are kept.
    whole = make_plan(shape, device, Request(ctx=400, draft_max=7))
    less = make_plan(shape, device, Request(ctx=400, draft_max=7, budget_bytes=whole.total_bytes - 1))
    assert less.choice.checkpoints == CHECKPOINTS - 1
    assert "states of earlier texts: 3 instead of 4" in less.given_up[0]


@pytest.mark.parametrize("taps", [1, 5])
def test_a_manifest_with_convolutions_of_another_size_is_refused(package, tmp_path, taps):
    def change(document):
        for kind in document["decoder"]["kinds"]:
            if kind.get("state_space") is not None:
                assert kind["state_space"]["taps"] != taps
                kind["state_space"]["taps"] = taps

    found = copied(package, tmp_path)
    layer = open_package(found).manifest.model.recurrent_layers[0]
    edit_manifest(found, change)
    with pytest.raises(InvalidPackage, match=rf"convolution of layer {layer} is not as large.*'layer{layer}.conv'"):
        open_package(found)


def test_what_is_not_there_yet_is_said(package, tmp_path):
    with pytest.raises(ConfigError, match="state"):
        export_model(package.parent / "model", tmp_path / "cut", exits=(1, 2), **OPTIONS)
    with pytest.raises(ConfigError, match="Nested weights"):
        export_model(package.parent / "model", tmp_path / "nested", **OPTIONS | {"weights": "nested8"})
    with pytest.raises(ConfigError, match="which takes no draft back"):
        load_package(package, spec=f"model:{package}")
