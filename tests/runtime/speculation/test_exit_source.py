"""Guesses at exits as a source, alone or among others: one tree, and the text of plain decoding."""

from __future__ import annotations

from itertools import product

import pytest

from edge_rt.errors import Cancelled, ConfigError
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.runtime.decode.draft import ROOT, NullDrafter
from edge_rt.runtime.speculation.exit_source import ExitSource
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.source import MAX_CHAIN, RANKS
from edge_rt.runtime.speculation.text_sources import NativeRecyclingSource, NativeSuffixSource
from tests.helpers.models import load_package
from tests.helpers.pairs import all_pairs, with_slow
from tests.helpers.segmented import (
    EXITS,
    PROMPT,
    CutPasses,
    RandomPlanner,
    answer,
    drafter_of,
    exit_source,
    whole_passes,
)
from tests.helpers.small import GREEDY
from tests.reference.core import Asked
from tests.runtime.forward.test_segmented_runner import LateSwitch

FORMATS = KV_FORMATS["native"]
TEXTS = (lambda: NativeSuffixSource(draft_library()), lambda: NativeRecyclingSource(draft_library()))
OTHERS = {"alone": (), "among others": TEXTS}
SAMPLING = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.0, "seed": 4}}
SAME = (FORMATS, SAMPLING, OTHERS)


@pytest.fixture(scope="module", params=["agreeing", "segmented_window"])
def pair(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(("kv_format", "sampling", "others"), with_slow(product(*SAME), all_pairs(*SAME)))
def test_the_text_is_that_of_plain_decoding(pair, kv_format, sampling, others):
    options, others = SAMPLING[sampling], OTHERS[others]
    cut, whole = CutPasses(pair.cut, kv_format), whole_passes(pair.whole, kv_format)
    expected = answer(whole, NullDrafter(), PROMPT, 60, **options)
    drafted = 0
    for seed in range(3):
        drafter = drafter_of(*(make() for make in others), exit_source(cut, seed))
        assert answer(cut, drafter, PROMPT, 60, **options) == expected
        drafted += drafter.statistics("exit").rows_drafted
    assert drafted > 0


def test_tokens_of_chains_and_siblings_stay(agreeing):
    cut = CutPasses(agreeing.cut)
    records = []
    drafter = drafter_of(exit_source(cut, 1, exits=[2]), trace=records.append)
    answer(cut, drafter, PROMPT, 200, temperature=0.1, seed=2)
    stats = drafter.statistics("exit")
    assert stats.draft_n_accepted > 40
    assert stats.accepted_per_position[1] > 0
    assert {record["arm"] for record in records} == {"exit"}
    assert set(stats.choices) == {"off", "exit"}
    assert sum(stats.choices.values()) == stats.steps
    assert any(record["drafted"] > 2 for record in records)


class CountingRunner:
    """Counts the nodes that a runner drafts."""

    def __init__(self, runner):
        self._runner = runner
        self.most_ahead = runner.most_ahead
        self.count = 0

    def draft(self, token_id, parent):
        self.count += 1
        return self._runner.draft(token_id, parent)


def begun(agreeing, seed=3, **options):
    """Return a source behind a prompt whose last token is not computed, and what counts its drafts."""
    cut = CutPasses(agreeing.cut)
    cut.append(PROMPT[:-1])
    asked = CountingRunner(cut.runner)
    source = Asked(ExitSource(lambda: asked, cut.cache, RandomPlanner(seed), **options))
    source.begin(PROMPT)
    return cut, asked, source


def test_chain_and_siblings(agreeing):
    _, asked, source = begun(agreeing)
    cursor, length = source.root(), 0
    while guesses := source.children(cursor):
        assert len(guesses) == 1 + RANKS
        assert len({guess.token_id for guess in guesses}) == len(guesses)
        assert all(0 <= guess.kind < source.num_kinds for guess in guesses)
        assert all(source.children(guess.cursor) == () for guess in guesses[1:])
        cursor, length = guesses[0].cursor, length + 1
    assert length == asked.count <= MAX_CHAIN


def test_a_chain_ends_with_the_answer(agreeing):
    _, _, source = begun(agreeing)
    source.root()
    first = source.children(ROOT)[0].token_id
    _, asked, source = begun(agreeing, end_ids=[first])
    source.root()
    assert asked.count == 1


def test_nothing_where_more_than_one_token_is_not_computed(agreeing):
    cut, asked, source = begun(agreeing)
    cut.cache.truncate(4)
    assert source.root() is None
    assert source.children(ROOT) == ()
    assert asked.count == 0


def test_priors_are_probabilities_that_rise_with_sureness(agreeing):
    source = exit_source(CutPasses(agreeing.cut))
    priors = [source.prior(kind) for kind in range(source.num_kinds)]
    assert all(0 < prior < 1 for prior in priors)
    assert priors[:8] == sorted(priors[:8])
    assert priors[-RANKS:] == sorted(priors[-RANKS:], reverse=True)


def test_the_model_drafts_and_says_so(agreeing):
    options = {**GREEDY, "max_tokens": 80}
    with load_package(agreeing.whole, spec="off") as model:
        expected = model.generate("The little boat", **options).token_ids
    with load_package(agreeing.cut, spec="exit") as model:
        result = model.generate("The little boat", **options)
        assert result.token_ids == expected
        assert result.spec.mode == "exit"
        assert model.generate("The little boat", spec="auto", **options).token_ids == expected
        arms = [arm.name for arm in model.speculation.drafter("auto").arms]
        assert arms == ["off", "texts", "fusion"]
        assert model.describe()["speculation"] == "exit"


def test_packages_without_exits_refuse_it(native_package):
    with pytest.raises(ConfigError, match="no exits at which a draft could end"):
        load_package(native_package, spec="exit")
    with load_package(native_package) as model, pytest.raises(ConfigError, match="no exits"):
        model.generate("Hello", spec="exit")


@pytest.mark.parametrize("looks", range(0, 40, 3))
def test_stopped_anywhere(agreeing, looks):
    switch = LateSwitch()
    cut, whole = CutPasses(agreeing.cut, switch=switch), whole_passes(agreeing.whole)
    expected = answer(whole, NullDrafter(), PROMPT, 30, temperature=0.0)
    drafter = drafter_of(exit_source(cut, looks))
    assert answer(cut, drafter, PROMPT, 5, temperature=0.0) == expected[:5]
    switch.looks_left = looks
    with pytest.raises(Cancelled):
        answer(cut, drafter, PROMPT, 200, temperature=0.0)
    switch.looks_left = 1 << 30
    cut.cache.check()
    assert set(cut.cache.valid_lengths(len(EXITS) + 1)) == {cut.cache.length}
    assert answer(cut, drafter, PROMPT, 30, temperature=0.0) == expected
