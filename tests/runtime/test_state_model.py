"""Models with states: every drafter gives plain texts, chats go on and back, and memory is what was planned."""

from __future__ import annotations

import pytest

from edge_rt.errors import ConfigError, UnsupportedModel
from edge_rt.export import export_model
from edge_rt.memory.device import GENERIC_GPU, presets
from edge_rt.memory.fallbacks import why_one_slot
from edge_rt.memory.plan import Request, make_plan
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.state_memory import StateMemory
from edge_rt.runtime.load.facts import why_rows_are_not_stored
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.small import FREE_ROWS, GREEDY

# Logits with a wide spread: what is likely can be guessed.
_SHARP = ({"logits_scaling": 0.1}, {"granitehybrid.logit_scale": 0.1})
CASES = dict.fromkeys(("granite_h_dense", "granite_h"), _SHARP)
"""Case -> what differs in its config.json, and in a file."""
PROMPT = [5 + (7 * i) % 11 for i in range(70)]
OPTIONS = {"profile": "native", "calibration": None, "accept_loss": True, "weights": "int8"}
SAMPLING = (GREEDY, {"temperature": 1.0, "seed": 3})


@pytest.fixture(scope="module", params=CASES)
def package(request, tmp_path_factory):
    require_native()
    folder = tmp_path_factory.mktemp(request.param)
    source = write_folder(folder / "model", load_case(request.param), config=CASES[request.param][0])
    export_model(source, folder / "p", **OPTIONS)
    return folder / "p"


def test_a_file_becomes_the_package_of_the_folder(package, tmp_path):
    name = package.parent.name.rstrip("0123456789")
    write_gguf(tmp_path / "m.gguf", load_case(name), extra_metadata=CASES[name][1])
    export_model(tmp_path / "m.gguf", tmp_path / "p", **OPTIONS)
    assert (tmp_path / "p" / "weights.bin").read_bytes() == (package / "weights.bin").read_bytes()


@pytest.mark.parametrize("spec", ["suffix", "ngram", "recycling", "auto"])
def test_drafted_texts_are_the_plain_ones(package, spec):
    drafted = accepted = 0
    with load_package(package, spec=spec) as model:
        model.speculation.costs = FREE_ROWS
        for sampling in SAMPLING:
            plain = model.generate(PROMPT, max_tokens=60, spec="off", **sampling)
            for _ in range(2):
                found = model.generate(PROMPT, max_tokens=60, **sampling)
                assert found.token_ids == plain.token_ids
                drafted += found.spec.rows_drafted
                accepted += found.spec.draft_n_accepted
                model._cache.check()
    assert drafted > accepted > 0


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


def test_the_plan_counts_the_states_that_there_are(package):
    manifest = open_package(package).manifest
    with load_package(package, spec="suffix", draft_max=7) as loaded:
        term = next(term for term in loaded.plan.terms if term.name == "states")
        assert term.bytes == StateMemory(manifest.model, 1, loaded.plan.choice.tree_rows).nbytes
    with load_package(package, spec="off") as loaded:
        assert next(other for other in loaded.plan.terms if other.name == "states").bytes < term.bytes


def test_what_is_not_there_yet_is_said(package, tmp_path):
    with load_package(package, slots=2) as model:
        assert model.slots == 1
        assert why_one_slot(model.plan.shape, model.plan.device) == "layers with a state have one sequence"
        with_gpu = presets()[GENERIC_GPU].device
        assert with_gpu.gpu is not None
        assert make_plan(model.plan.shape, with_gpu, Request()).device.gpu is None
    assert "state" in why_rows_are_not_stored(open_package(package).manifest)
    with pytest.raises(UnsupportedModel, match=r"(Layers with a state|Experts) are not computed on a GPU"):
        load_package(package, device="cuda:0")
    with pytest.raises(ConfigError, match="state"):
        export_model(package.parent / "model", tmp_path / "cut", exits=(1, 2), **OPTIONS)
