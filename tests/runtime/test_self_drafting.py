"""Drafting with fewer bits of the model itself: the same texts, the same memory, errors that say what is missing."""

from __future__ import annotations

import pytest

import edge_rt
from edge_rt.errors import Cancelled, ConfigError
from edge_rt.export import export_model
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.model_source import ChainCosts
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.packages import copied, edit_manifest
from tests.helpers.small import FREE_ROWS, GREEDY

PROMPTS = ("Hello", "The little boat left the harbour at dawn, and the sea was calm. " * 4, "1 2 3 4 5 6")
CHEAP = RowCosts((1, 16), (0,), ((10.0, 10.5),))
"""So cheap a row that drafting always pays."""


@pytest.fixture(scope="module", params=[0, 24], ids=["plain", "window"])
def package(request, tmp_path_factory):
    require_native()
    folder = tmp_path_factory.mktemp("nested")
    more = {"llama.attention.sliding_window": request.param} if request.param else {}
    write_llama_gguf(
        folder / "m.gguf", weight_type="F32", embedding_type="F32", output_type="F32", context=320, extra_metadata=more
    )
    export_model(folder / "m.gguf", folder / "p", profile="native", weights="nested8")
    return folder / "p"


@pytest.fixture
def model(package):
    with load_package(package, spec="self", ctx=320) as model:
        model.speculation.costs = FREE_ROWS
        yield model


def test_texts_are_those_of_plain_decoding(model):
    drafted_rows = 0
    for prompt in PROMPTS:
        for options in (GREEDY, {"temperature": 1.0, "seed": 3}):
            plain = model.generate(prompt, max_tokens=60, spec="off", **options)
            drafted = model.generate(prompt, max_tokens=60, **options)
            assert drafted.token_ids == plain.token_ids
            drafted_rows += drafted.spec.rows_drafted
            model._cache.check()
    # On a busy machine an answer may have none: the drafter sees how long its drafts take.
    assert drafted_rows > 0


def test_it_drafts_among_others(package):
    """In auto the chain joins the trees of texts, where the cache has upper halves."""
    with load_package(package, spec="auto", kv="int4x2", ctx=320) as model:
        model.speculation.costs = FREE_ROWS
        drafted = 0
        for prompt in PROMPTS:
            for options in (GREEDY, {"temperature": 1.0, "seed": 3}):
                plain = model.generate(prompt, max_tokens=60, spec="off", **options)
                found = model.generate(prompt, max_tokens=60, **options)
                assert found.token_ids == plain.token_ids
                drafted += found.spec.choices.get("fusion", 0)
                assert model.generate(prompt, max_tokens=20, spec="self", **options).token_ids == plain.token_ids[:20]
                model._cache.check()
        assert drafted > 0
        names = [source.name for source in model.speculation.drafter("auto").sources]
        assert names == ["suffix", "recycling", "self"]
        assert any(term.name == "drafters" and "second graph" in term.text for term in model.plan.terms)
    with load_package(package, spec="auto", kv="f16", ctx=320) as model:
        assert [source.name for source in model.speculation.drafter("auto").sources] == ["suffix", "recycling"]
        assert not any("second graph" in term.text for term in model.plan.terms)


def test_the_draft_reads_the_same_cache_and_agrees_mostly(model):
    found = model.generate(PROMPTS[1], max_tokens=100, **GREEDY).spec
    # Noise of random weights is told apart by the finest bits; text by coarser ones.
    assert found.acceptance > 0.3
    assert set(found.choices) <= {"self", "off"}


def test_the_cache_gets_the_format_that_has_halves(package, model):
    assert model.describe()["kv_format"] == "int4x2"
    with pytest.raises(ConfigError, match="no upper halves to draft with"):
        load_package(package, spec="self", kv="f16")


def test_a_package_without_nested_weights_is_refused(native_package):
    with pytest.raises(ConfigError, match=r"no nested weights to draft with.*Q4_1"):
        load_package(native_package, spec="self")


def test_a_model_that_was_loaded_without_it_is_refused(package):
    with (
        load_package(package, spec="off") as model,
        pytest.raises(ConfigError, match="loaded without the drafter 'self'"),
    ):
        model.generate("Hello", spec="self", max_tokens=4)


def test_a_reference_is_not_copied(model):
    with pytest.raises(ConfigError, match="does not copy"):
        model.generate("Hello", reference="Hello there", max_tokens=4)


def test_the_draft_graph_is_a_graph_of_the_package(package, tmp_path):
    other = copied(package, tmp_path / "p")
    edit_manifest(other, lambda document: document.update(draft_graph="weights.bin"))
    with pytest.raises(edge_rt.errors.InvalidPackage, match=r"must be an \.onnx file"):
        open_package(other)


def test_one_mapping_of_the_cache_serves_both(package):
    manifest = open_package(package).manifest
    binding = open_io_binding(manifest, 64, "int4x2")
    shared = binding.sharing(reads_upper=True)
    assert [one.ctypes.data for one in shared.buffers] == [one.ctypes.data for one in binding.buffers]
    assert shared.outputs is not binding.outputs
    assert "int4x2" in KV_FORMATS["native"]


class Stopping:
    """A runner whose passes are stopped."""

    def forward(self, *_, **__):
        raise Cancelled("stopped")


def test_a_stopped_draft_leaves_the_cache_as_it_was(model):
    model.generate(PROMPTS[0], max_tokens=8, **GREEDY)
    drafter = model.speculation.drafter("self")
    length = model._cache.length
    (source,) = drafter.sources
    for way in source.ways:
        way.model._runner = Stopping()
    assert model.generate(PROMPTS[0], max_tokens=8, **GREEDY).finish_reason == "cancelled"
    assert model._cache.length <= length
    model._cache.check()


def costs_of(upper_ms, acceptance=None):
    costs = ChainCosts(CHEAP, RowCosts((1,), (0,), ((upper_ms,),)), 8)
    for _ in range(0 if acceptance is None else 400):
        for hit in (True,) * round(10 * acceptance) + (False,) * round(10 - 10 * acceptance):
            costs.learn(0.9, hit)
    return costs


@pytest.mark.parametrize(("upper_ms", "acceptance", "drafts"), [(5.0, 0.9, True), (9.5, 0.5, False), (5.0, 0.2, False)])
def test_nothing_is_drafted_where_it_does_not_pay(upper_ms, acceptance, drafts):
    costs = costs_of(upper_ms, acceptance)
    assert costs.goes_on(100, (), 8) is drafts
    assert (costs.gain(100) > 1.0) is drafts


def test_better_drafts_are_longer_and_dearer_ones_shorter():
    def length(costs):
        values = []
        while len(values) < 8 and costs.goes_on(100, values, 8):
            values.append((values[-1] if values else 1.0) * costs.value_of(0.95))
        return len(values)

    assert length(costs_of(2.0, 0.9)) > length(costs_of(6.0, 0.9)) >= 1
    assert length(costs_of(4.0, 0.9)) > length(costs_of(4.0, 0.7))


def test_nested_weights_in_a_package_with_exits(tmp_path):
    require_native()
    write_llama_gguf(
        tmp_path / "m.gguf", layers=4, weight_type="F32", embedding_type="F32", output_type="F32", context=320
    )
    export_model(tmp_path / "m.gguf", tmp_path / "whole", profile="native", weights="nested8")
    export_model(tmp_path / "m.gguf", tmp_path / "cut", profile="native", weights="nested8", exits=(1, 3))
    manifest = open_package(tmp_path / "cut").manifest
    assert (manifest.exits, manifest.draft_graph) == ((1, 3), "draft.onnx")
    options = {"max_tokens": 50, "temperature": 1.0, "seed": 3}
    with load_package(tmp_path / "whole", spec="off", kv="int4x2", ctx=320) as model:
        expected = model.generate(PROMPTS[1], **options).token_ids
    # Hidden states are outputs of the model's own passes alone.
    with load_package(tmp_path / "cut", spec="self", hidden=True, ctx=320) as model:
        model.speculation.costs = FREE_ROWS
        for mode in ("self", "exit", "off", "self"):
            found = model.generate(PROMPTS[1], spec=mode, **options)
            assert found.token_ids == expected
            assert mode == "off" or found.spec.rows_drafted > 0
            model._cache.check()
