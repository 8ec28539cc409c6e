"""Trees grown from sources: well formed, the best first, merged where sources agree."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.speculation.adaptive import LEAST_VALUE, context_of
from edge_rt.runtime.speculation.source import CONTEXT_TOKENS, Guess
from tests.helpers.examples import share_of
from tests.helpers.fake_sources import OracleSource, RandomSource, SourceBase, accept_all
from tests.reference.acceptance import AcceptanceModel
from tests.reference.tree import EMPTY, TreeGrower

SEEDS = st.lists(st.integers(0, 10**6), max_size=4)


def grower(seeds, **options):
    sources = [RandomSource(seed, name=f"s{index}") for index, seed in enumerate(seeds)]
    return TreeGrower(sources, AcceptanceModel(sources), **options)


def check(tree, sources, use=-1):
    """Assert what holds for every tree."""
    tree.draft.check()
    assert len(tree.draft) == len(tree.values) == len(tree.evidence)
    assert all(first >= second for first, second in pairwise(tree.values))
    cursors = {ROOT: {index: source.root() for index, source in enumerate(sources) if use >> index & 1}}
    for node, (parent, token) in enumerate(zip(tree.draft.parents, tree.draft.token_ids, strict=True)):
        assert 0 < tree.values[node] <= (1.0 if parent == ROOT else tree.values[parent])
        guesses, _ = tree.evidence[node]
        # Exactly those guessed it that stand at its parent and name it.
        named = {
            index: guess
            for index, cursor in cursors[parent].items()
            if cursor is not None
            for guess in sources[index].children(cursor)
            if guess.token_id == token
        }
        assert dict(guesses) == {index: guess.kind for index, guess in named.items()}
        assert guesses
        cursors[node] = {index: guess.cursor for index, guess in named.items()}


@settings(max_examples=share_of(150))
@given(seeds=SEEDS, limit=st.integers(0, 40), use=st.integers(-1, 15), least=st.sampled_from([0.0, LEAST_VALUE, 0.3]))
def test_trees_are_well_formed(seeds, limit, use, least):
    found = grower(seeds)
    tree = found.grow(limit, use, least)
    assert len(tree.draft) <= limit
    check(tree, found.sources, use)
    assert all(value >= least for value in tree.values)


@settings(max_examples=share_of(80))
@given(seeds=SEEDS, limit=st.integers(0, 20), steps=st.integers(1, 12), data=st.data())
def test_trees_stay_well_formed_whatever_is_learned(seeds, limit, steps, data):
    found = grower(seeds)
    for _ in range(steps):
        tree = found.grow(limit)
        check(tree, found.sources)
        right = set(data.draw(st.lists(st.integers(0, 20), max_size=6)))
        found.learn(tree, accept_all(tree, lambda node, right=right: node in right))


@settings(max_examples=share_of(80))
@given(seeds=SEEDS, limit=st.integers(0, 20), size=st.integers(0, 20))
def test_a_smaller_tree_is_the_beginning_of_a_larger_one(seeds, limit, size):
    found = grower(seeds)
    large, small = found.grow(max(limit, size)), found.grow(min(limit, size))
    cut = large.first(min(limit, size))
    assert (cut.draft, cut.values) == (small.draft, small.values)
    check(cut, found.sources)


@settings(max_examples=share_of(80))
@given(seeds=SEEDS, limit=st.integers(1, 12))
def test_no_node_left_out_is_worth_more(seeds, limit):
    """The tree of a size is the best one: its least value is not below that of any node that it could have."""
    found = grower(seeds)
    tree, whole = found.grow(limit, least=0.05), found.grow(100_000, least=0.05)
    assert sum(tree.values) == pytest.approx(sum(sorted(whole.values, reverse=True)[:limit]))


@settings(max_examples=share_of(80))
@given(seeds=SEEDS, limit=st.integers(0, 20))
def test_chains_for_models_that_cannot_verify_trees(seeds, limit):
    found, free = grower(seeds, chain=True), grower(seeds)
    tree = found.grow(limit)
    assert tree.draft.is_chain
    check(tree, found.sources)
    # It begins like the tree does: with the best token.
    assert tree.draft.token_ids[:1] == free.grow(limit).draft.token_ids[:1]


def test_nobody_guesses():
    assert TreeGrower((), AcceptanceModel(())).grow(8) == EMPTY
    assert grower([1, 2]).grow(8, use=0) == EMPTY
    silent = [SourceBase()]
    silent[0].root = lambda: None
    assert TreeGrower(silent, AcceptanceModel(silent)).grow(8) == EMPTY
    assert len(EMPTY.draft) == 0


def test_a_limit_of_zero():
    source = OracleSource([1, 2, 3], lambda position: True)
    assert TreeGrower([source], AcceptanceModel([source])).grow(0) == EMPTY


class Listed(SourceBase):
    """Guesses from a table: path of tokens -> [(token, kind), ...]."""

    def __init__(self, table, **options):
        super().__init__(**options)
        self.table = table

    def root(self):
        return ()

    def children(self, cursor):
        return [Guess(token, kind, (*cursor, token)) for token, kind in self.table.get(cursor, ())]


def test_sources_that_agree_share_a_node():
    one = Listed({(): [(5, 0)], (5,): [(6, 0)]}, priors=(0.6,))
    other = Listed({(): [(5, 0), (7, 0)], (5,): [(8, 0)]}, priors=(0.6,))
    tree = TreeGrower([one, other], AcceptanceModel([one, other])).grow(10, least=0.0)
    nodes = set(zip(tree.draft.parents, tree.draft.token_ids, strict=True))
    assert nodes == {(ROOT, 5), (ROOT, 7), (0, 6), (0, 8)}
    assert tree.evidence[0][0] == [(0, 0), (1, 0)]
    alone = TreeGrower([one], AcceptanceModel([one])).grow(1)
    assert tree.values[0] > alone.values[0]


def test_the_better_kind_comes_first():
    source = Listed({(): [(1, 0), (2, 1), (3, 2)]}, priors=(0.05, 0.9, 0.4))
    tree = TreeGrower([source], AcceptanceModel([source])).grow(3, least=0.0)
    assert tree.draft.token_ids == (2, 3, 1)


def test_a_sure_chain_goes_deep_and_an_unsure_place_wide():
    sure = OracleSource(list(range(40)), lambda position: True, priors=(0.97,))
    tree = TreeGrower([sure], AcceptanceModel([sure])).grow(12)
    assert (tree.draft.is_chain, len(tree.draft)) == (True, 12)
    unsure = Listed({(): [(1, 0), (2, 0), (3, 0)], (1,): [(4, 1)], (2,): [(4, 1)], (3,): [(4, 1)]}, priors=(0.25, 0.1))
    tree = TreeGrower([unsure], AcceptanceModel([unsure])).grow(3)
    assert tree.draft == Draft((1, 2, 3), (ROOT, ROOT, ROOT))


def test_only_chosen_sources_guess():
    sources = [Listed({(): [(token, 0)]}) for token in (1, 2, 3)]
    found = TreeGrower(sources, AcceptanceModel(sources))
    for use, expected in ((1, {1}), (2, {2}), (5, {1, 3}), (7, {1, 2, 3}), (-1, {1, 2, 3})):
        assert set(found.grow(8, use).draft.token_ids) == expected


class Told:
    """An acceptance model that notes what it is told."""

    def __init__(self, sources):
        self.model = AcceptanceModel(sources)
        self.odds, self.probabilities, self.cell = self.model.odds, self.model.probabilities, self.model.cell
        self.heard = []

    def learn(self, guesses, cell, hit):
        self.heard.append((guesses, cell, hit))


def test_only_what_was_tested_is_learned():
    #  1 -> 2 -> 3 and 1 -> 4; 5 -> 6
    source = Listed({(): [(1, 0), (5, 0)], (1,): [(2, 0), (4, 0)], (1, 2): [(3, 0)], (5,): [(6, 0)]})
    told = Told([source])
    found = TreeGrower([source], told)
    tree = found.grow(10, least=0.0)
    ids = tree.draft.token_ids
    assert sorted(ids) == [1, 2, 3, 4, 5, 6]
    # 1 and 4 are right: 2 was tested and wrong, and so was 5; 3 and 6 were never tested.
    found.learn(tree, Accepted((1, 4, 9), (ids.index(1), ids.index(4)), 6))
    expected = [(*tree.evidence[node], token in (1, 4)) for node, token in enumerate(ids) if token in (1, 2, 4, 5)]
    assert told.heard == expected


@settings(max_examples=share_of(60))
@given(seeds=SEEDS, right=st.sets(st.integers(0, 15)))
def test_what_is_learned_is_what_accepting_tested(seeds, right):
    sources = [RandomSource(seed) for seed in seeds]
    told = Told(sources)
    found = TreeGrower(sources, told)
    tree = found.grow(16)
    accepted = accept_all(tree, lambda node: node in right)
    found.learn(tree, accepted)
    tested = [node for node, parent in enumerate(tree.draft.parents) if parent in (ROOT, *accepted.path)]
    assert [hit for _, _, hit in told.heard] == [node in accepted.path for node in tested]
    assert sum(hit for _, _, hit in told.heard) == accepted.num_accepted


def test_the_context_before_a_step():
    sequence = Sequence([1, 2], capacity=100, max_tokens=None, end_ids=())
    sequence.append([3])
    assert context_of(sequence, 1) == (1, 2)
    sequence.append([4, 5, 6, 7])
    assert context_of(sequence, 4) == (1, 2, 3)
    sequence.append([8])
    assert context_of(sequence, 1) == (4, 5, 6, 7)
    assert len(context_of(sequence, 1)) == CONTEXT_TOKENS
    assert context_of(sequence, 8) == ()
