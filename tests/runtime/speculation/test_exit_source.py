"""Guesses at exits as a source among others: one tree, and the text of plain decoding."""

from __future__ import annotations

import pytest

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft, NullDrafter
from edge_rt.runtime.speculation.adaptive import AdaptiveDrafter
from edge_rt.runtime.speculation.core import open_core
from edge_rt.runtime.speculation.exit_source import ExitSource
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.reference.recycling import RecyclingSource
from edge_rt.runtime.speculation.reference.suffix import SuffixSource
from edge_rt.runtime.speculation.source import MAX_CHAIN, RANKS
from tests.helpers.fake_sources import linear_costs
from tests.helpers.segmented import CutPasses, answer, whole_passes
from tests.runtime.speculation.test_exit_drafter import PROMPT, RandomController


def source_of(passes, seed=0, **options):
    return ExitSource(lambda: passes.runner, passes.cache, RandomController(seed), **options)


def fused(passes, seed, library):
    """Return a drafter with all sources, to which nearly every guess seems to pay."""
    sources = (SuffixSource(), RecyclingSource(), source_of(passes, seed))
    core = open_core(sources, library)
    return AdaptiveDrafter(core, linear_costs(4.0, 0.01), None, max_nodes=20)


@pytest.mark.parametrize("is_native", [False, True], ids=["python", "library"])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 4}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("pair", ["agreeing", "segmented_window"])
def test_the_text_is_that_of_plain_decoding(pair, options, is_native, request):
    library = draft_library() if is_native else None
    assert is_native == (library is not None)
    pair = request.getfixturevalue(pair)
    cut, whole = CutPasses(pair.cut, "int8"), whole_passes(pair.whole, "int8")
    expected = answer(whole, NullDrafter(), PROMPT, 80, **options)
    accepted = 0
    for seed in range(3):
        drafter = fused(cut, seed, library)
        assert answer(cut, drafter, PROMPT, 80, **options) == expected
        accepted += drafter.statistics("auto").draft_n_accepted
    assert accepted > 0


class Asked:
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
    asked = Asked(cut.runner)
    source = ExitSource(lambda: asked, cut.cache, RandomController(seed), **options)
    source.begin(PROMPT)
    return cut, asked, source


def test_it_is_drafted_once_a_step(agreeing):
    cut, asked, source = begun(agreeing)
    assert source.root() == ROOT
    once = asked.count
    assert once > 0
    assert source.root() == ROOT
    assert asked.count == once
    guess = source.children(ROOT)[0]
    source.observe(Draft(), Accepted((guess.token_id,), (), 0), None, ())
    source.extend([guess.token_id])
    cut.append(PROMPT[-1:])
    source.root()
    assert asked.count > once


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
    source = source_of(CutPasses(agreeing.cut))
    priors = [source.prior(kind) for kind in range(source.num_kinds)]
    assert all(0 < prior < 1 for prior in priors)
    assert priors[:8] == sorted(priors[:8])
    assert priors[-RANKS:] == sorted(priors[-RANKS:], reverse=True)
