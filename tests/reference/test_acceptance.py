"""Acceptance probabilities: learned from what became of guesses, calibrated, never sure."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from edge_rt.runtime.decode.draft import Accepted
from edge_rt.runtime.speculation.core import joint_priors
from edge_rt.runtime.speculation.source import Guess
from tests.helpers.fake_sources import RandomSource, SourceBase, accept_all
from tests.reference.acceptance import AcceptanceModel
from tests.reference.tree import TreeGrower


class Scripted(SourceBase):
    """Guesses what the test wrote down last: the guesses behind the root, and behind every cursor."""

    def __init__(self, *facts):
        super().__init__(*facts)
        self.script = {}

    def root(self):
        return "root"

    def children(self, cursor):
        return self.script.get(cursor, ())


class World:
    """Draws next tokens, and sources that name them as often as their kinds say.

    Args:
        rates: for every source the probability that a guess of its kinds is right.
    """

    def __init__(self, rates, *, priors=0.5, seed=0):
        self.draws = random.Random(seed)
        self.rates = rates
        self.sources = [Scripted(f"s{index}", (priors,) * len(kinds)) for index, kinds in enumerate(rates)]
        self.model = AcceptanceModel(self.sources)
        self.grower = TreeGrower(self.sources, self.model)

    def step(self, limit=1, depth=1, use=-1):
        """Draft a tree for a new text and learn from it; return it and the set of right nodes."""
        truth = [self.draws.randrange(1000) for _ in range(depth)]
        for source, kinds in zip(self.sources, self.rates, strict=True):
            source.script = {}
            cursor, right = "root", True
            # What follows a wrong guess looks like what follows a right one.
            for level, token in enumerate(truth):
                kind = self.draws.randrange(len(kinds))
                right = right and self.draws.random() < kinds[kind]
                guess = Guess(token if right else self.draws.randrange(1000, 10**6), kind, (source.name, level))
                source.script[cursor] = [guess]
                cursor = guess.cursor
        tree = self.grower.grow(limit, use, least=0.0)
        accepted = accept_all(tree, lambda node: tree.draft.token_ids[node] in truth)
        self.grower.learn(tree, accepted)
        return tree, set(accepted.path)


def bins(pairs, width=0.1, fewest=200):
    """Return (mean prediction, share that came true) of predictions that are alike."""
    groups: dict[int, list] = {}
    for value, hit in pairs:
        groups.setdefault(int(value / width), []).append((value, hit))
    large = [group for group in groups.values() if len(group) >= fewest]
    assert sum(map(len, large)) > 0.9 * sum(map(len, groups.values()))
    return [tuple(sum(column) / len(group) for column in zip(*group, strict=True)) for group in large]


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.35, 0.6, 0.85, 0.98])
@pytest.mark.parametrize("prior", [0.1, 0.9])
def test_a_source_alone_is_learned(rate, prior):
    world = World([[rate]], priors=prior)
    for _ in range(3000):
        world.step()
    later = [world.step() for _ in range(1500)]
    predicted = sum(tree.values[0] for tree, _ in later) / len(later)
    assert predicted == pytest.approx(rate, abs=0.035)
    true = sum(bool(right) for _, right in later) / len(later)
    assert predicted == pytest.approx(true, abs=0.03)


def test_kinds_are_told_apart():
    rates = [0.05, 0.3, 0.6, 0.95]
    world = World([rates])
    for _ in range(4000):
        world.step()
    found: dict[int, list] = {}
    for _ in range(2000):
        tree, _ = world.step()
        ((_, kind),) = tree.evidence[0][0]
        found.setdefault(kind, []).append(tree.values[0])
    for kind, rate in enumerate(rates):
        assert sum(found[kind]) / len(found[kind]) == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize("rates", [[[0.7], [0.3]], [[0.5], [0.5]], [[0.9, 0.2], [0.6, 0.1]]])
def test_predictions_of_two_sources_come_true(rates):
    world = World(rates)
    for _ in range(4000):
        world.step(limit=2)
    pairs = []
    for _ in range(4000):
        tree, right = world.step(limit=2)
        pairs += [(value, node in right) for node, value in enumerate(tree.values)]
    found = bins(pairs)
    assert len(found) > 1
    for predicted, true in found:
        assert predicted == pytest.approx(true, abs=0.06)


def test_predictions_along_a_path_come_true():
    world = World([[0.8], [0.4]])
    for _ in range(3000):
        world.step(limit=8, depth=3)
    pairs = []
    for _ in range(3000):
        tree, right = world.step(limit=8, depth=3)
        pairs += [(value, node in right) for node, value in enumerate(tree.values)]
    for predicted, true in bins(pairs, fewest=300):
        assert predicted == pytest.approx(true, abs=0.08)


def test_sources_that_agree_are_believed_more():
    world = World([[0.6], [0.6]])
    for _ in range(2000):
        world.step(limit=2)
    together, alone = [], []
    for _ in range(500):
        tree, _ = world.step(limit=2)
        (together if len(tree.evidence[0][0]) == 2 else alone).append(tree.values[0])
    # Wrong guesses never agree in this world.
    assert min(together) > 0.95
    assert max(alone) < 0.7


def test_agreement_counts_before_anything_is_learned():
    model = AcceptanceModel([SourceBase(), SourceBase()])
    odds = model.odds[0][0]
    both = model.probabilities[model.cell(0b11, 2 * odds, None)]
    assert both > model.probabilities[model.cell(0b01, odds, None)] == pytest.approx(0.5)


def test_what_recycling_says_alone_is_believed_less_beside_a_head():
    alone, both = joint_priors(["suffix", "recycling"])[0b10], joint_priors(["suffix", "recycling", "head"])[0b10]
    assert alone == (0.0, 1.0)
    assert both[0] < 0.0 < both[1] < 1.0


def test_a_change_is_followed():
    world = World([[0.95]])
    for _ in range(3000):
        world.step()
    world.rates = [[0.1]]
    for _ in range(1500):
        tree, _ = world.step()
    assert tree.values[0] < 0.2
    world.rates = [[0.95]]
    for _ in range(1500):
        tree, _ = world.step()
    assert tree.values[0] > 0.85


@pytest.mark.parametrize("hit", [False, True])
def test_nothing_is_ever_certain(hit):
    world = World([[1.0 if hit else 0.0], [1.0 if hit else 0.0]])
    for _ in range(5000):
        tree, _ = world.step(limit=2)
        assert all(0 < value < 1 for value in tree.values)
    assert all(value > 0.99 for value in tree.values) if hit else all(value < 0.02 for value in tree.values)


def test_priors_stand_at_first():
    sources = [SourceBase("a", (0.02, 0.5, 0.97)), SourceBase("b", (0.3,))]
    model = AcceptanceModel(sources)
    for index, source in enumerate(sources):
        for kind in range(source.num_kinds):
            found = model.probabilities[model.cell(1 << index, model.odds[index][kind], None)]
            assert found == pytest.approx(source.prior(kind), abs=0.07)


def test_beside_a_sure_guess_others_are_worth_little():
    model = AcceptanceModel([SourceBase()])
    leads = [None, 0.1, 0.3, 0.6, 0.9]
    shares = [model.probabilities[model.cell(1, 0.0, lead)] for lead in leads]
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 5


@given(
    events=st.lists(
        st.tuples(
            st.integers(1, 7), st.integers(0, 2), st.floats(-200, 200), st.none() | st.floats(0, 1), st.booleans()
        ),
        max_size=200,
    )
)
def test_probabilities_stay_inside_whatever_is_learned(events):
    sources = [RandomSource(index, priors=(1e-9, 0.5, 1 - 1e-9)) for index in range(3)]
    model = AcceptanceModel(sources)
    for mask, kind, odds, lead, hit in events:
        guesses = [(source, kind) for source in range(3) if mask >> source & 1]
        cell = model.cell(mask, odds, lead)
        assert 0 <= cell < len(model.probabilities)
        model.learn(guesses, cell, hit)
    assert all(0 < value < 1 for value in model.probabilities)
    assert all(abs(value) < 10 for kinds in model.odds for value in kinds)


def test_cells_of_different_facts_differ():
    model = AcceptanceModel([SourceBase()] * 3)
    leads = (None, 0.1, 0.3, 0.6, 0.9)
    facts = [(mask, odds, lead) for mask in range(8) for odds in range(-5, 6) for lead in leads]
    assert len({model.cell(*fact) for fact in facts}) == len(facts)
    assert model.cell(1, 1e9, None) == model.cell(1, 5.0, None)
    assert model.cell(1, -1e9, None) == model.cell(1, -5.0, None)


def test_outcomes_without_a_draft_teach_nothing():
    world = World([[0.5]])
    before = list(world.model.probabilities)
    world.grower.learn(world.grower.grow(0), Accepted((1,), (), 0))
    assert world.model.probabilities == before
