"""What the measured process does with a trained drafter: it must reach the limits of the plan, too."""

from __future__ import annotations

import pytest

from edge_rt.measure.memory_report import TERM_OF_STAGE, Stage, measured_terms
from edge_rt.measure.memory_worker import Drive
from edge_rt.package.reader import open_package
from edge_rt.system.process_memory import ProcessMemory
from tests.helpers.fake_drafters import StateSource
from tests.helpers.models import load_package
from tests.helpers.packages import copied
from tests.helpers.tiny_adapters import adapters_of
from tests.helpers.tiny_drafter import for_package


@pytest.mark.parametrize("spec", [None, "head"])
def test_a_drafter_takes_in_a_long_prompt_and_drafts_from_a_state(native_package, tmp_path, spec):
    package, told = copied(native_package, tmp_path), []
    drafter = for_package(package / "drafters" / "tiny", open_package(package).manifest)
    source = StateSource(drafter.vocabulary)

    def tell(name, **facts):
        told.append(name)

    with load_package(package, spec=spec, ctx=256, on_load=tell) as model:
        model.speculation.replace("head", source)
        Drive(model, tell).run()
    assert told.index("session") < told.index("drafter") < told.index("drafters")
    assert max(len(set(tokens)) for tokens in source.begun) > 100
    assert source.states


@pytest.mark.parametrize("is_adapted", [False, True], ids=["exits", "adapters"])
@pytest.mark.parametrize("spec", [None, "exit"])
def test_a_package_with_exits_is_driven_to_the_end(agreeing, tmp_path, spec, is_adapted):
    """What drafts at exits empties the cache when it is made; the context is filled again."""
    drafter = adapters_of(agreeing.cut, tmp_path / "exits").path if is_adapted else None
    told = []
    with load_package(agreeing.cut, spec=spec, drafter=drafter, ctx=256) as model:
        Drive(model, lambda name, **facts: told.append(name)).run()
    assert told[-2:] == ["together", "answer"]


def test_all_slots_answer_in_full_contexts(native_package):
    told = []
    with load_package(native_package, ctx=256, slots=2) as model:
        Drive(model, lambda name, **facts: told.append(name)).run()
        assert model.cached_tokens == 2 * 256
    assert told[-2:] == ["answer", "slots"]


def test_what_a_drafter_adds_while_it_is_loaded_is_its_term():
    def stage(name, anon, drafter):
        memory = ProcessMemory(anon << 20, drafter << 20, 0, (anon + drafter) << 20)
        return Stage(name, 0.0, memory, 0, 0, 0, {}, drafter_bytes=drafter << 20)

    terms = measured_terms([stage("runtime", 50, 0), stage("session", 60, 0), stage("drafter", 64, 3)])
    assert TERM_OF_STAGE["drafter"] == "drafter_head"
    assert (terms["drafter"], terms["drafter_head"]) == (3 << 20, 4 << 20)
