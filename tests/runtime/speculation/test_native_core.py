"""The core in the native library beside its oracle: the same trees, the same probabilities, the same speeds."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import ConfigError, InferenceError
from edge_rt.memory.terms import TABLES
from edge_rt.ort.op_library import library_path
from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.speculation.core import DraftCore
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.source import WALKED_NODES, Forest, ForestSource, forest_of
from edge_rt.runtime.speculation.text_sources import NativeRecyclingSource, NativeReferenceSource, NativeSuffixSource
from tests.helpers.examples import share_of
from tests.helpers.fake_sources import SourceBase
from tests.reference.copies import ReferenceSource
from tests.reference.core import Asked, PythonCore
from tests.reference.recycling import RecyclingSource
from tests.reference.suffix import SuffixSource

pytestmark = pytest.mark.skipif(library_path() is None, reason="installed without a C++ compiler")

LIMIT = 24
LIKELY = 6


class GuessingModel(SourceBase, ForestSource):
    """Hands over a forest of guesses that depend on the known tokens alone."""

    def __init__(self, seed, vocabulary):
        super().__init__("forest", (0.1, 0.4, 0.8))
        self._seed, self._vocabulary = seed, vocabulary

    def observe(self, draft, accepted, outputs, context):
        pass

    def forest(self):
        chance = random.Random(f"{self._seed} {len(self.known)} {self.known[-3:]}")
        nodes = {}
        for _ in range(chance.choice([0, 1, 5, 12])):
            place = (chance.randrange(ROOT, len(nodes)), chance.randrange(self._vocabulary))
            nodes.setdefault(place, chance.randrange(3))
        return Forest.of([token for _, token in nodes], [parent for parent, _ in nodes], list(nodes.values()))


class AskedModel(SourceBase):
    """Has the same guesses, and is asked for them one by one."""

    def __init__(self, seed, vocabulary):
        super().__init__("asked", (0.1, 0.4, 0.8))
        self._inner = Asked(GuessingModel(seed, vocabulary))
        self.root, self.children = self._inner.root, self._inner.children

    def observe(self, draft, accepted, outputs, context):
        pass

    def begin(self, token_ids):
        self._inner.begin(token_ids)

    def extend(self, token_ids):
        self._inner.extend(token_ids)


class Pair:
    """Both cores with the same sources, each step compared."""

    def __init__(self, chance, *, vocabulary=12, names=("suffix", "recycling"), chain=False, tokens=64, contexts=40,
                 order=2):  # fmt: skip
        self.chance, self.vocabulary = chance, vocabulary
        library = draft_library()
        text = [chance.randrange(vocabulary) for _ in range(60)]
        makers = {
            "suffix": (lambda: SuffixSource(max_tokens=tokens), lambda: NativeSuffixSource(library, max_tokens=tokens)),
            "recycling": (
                lambda: RecyclingSource(max_order=order, max_contexts=contexts),
                lambda: NativeRecyclingSource(library, max_order=order, max_contexts=contexts),
            ),
            "reference": (lambda: ReferenceSource(text), lambda: NativeReferenceSource(library, text)),
            "asked": (lambda: AskedModel(tokens, vocabulary), lambda: AskedModel(tokens, vocabulary)),
            "forest": (lambda: GuessingModel(tokens, vocabulary), lambda: GuessingModel(tokens, vocabulary)),
        }
        self.cores = (
            PythonCore([makers[name][0]() for name in names], chain=chain),
            DraftCore(library, [makers[name][1]() for name in names], chain=chain),
        )
        self.known = []
        self.proposed = 0

    def both(self, ask):
        """Return what both answer, which must be the same."""
        first, second = (ask(core) for core in self.cores)
        assert first == second
        return first

    def begin(self, token_ids):
        self.known = list(token_ids)
        self.price()
        for core in self.cores:
            core.begin(self.known)

    def price(self):
        steps = [self.chance.uniform(0.0, 0.6) for _ in range(LIMIT)]
        costs = [4.0 + sum(steps[:count]) for count in range(LIMIT + 1)]
        for core in self.cores:
            core.price(costs)

    def step(self, follow=0.7, text=None):
        """Draft, accept some of it, learn; ``text`` is what is emitted where it goes on with it."""
        chance = self.chance
        arm = chance.randrange(len(self.cores[0].arms))
        limit, least, whole = chance.choice([0, 1, 3, LIMIT]), chance.choice([0.0, 0.03, 0.2]), chance.random() < 0.3
        draft = self.both(lambda core: core.propose(limit, arm, least, whole=whole))
        for count in range(len(draft) + 1):
            self.both(lambda core, count=count: core.expected(count))
        self.proposed += len(draft)
        draft = draft.first(chance.choice([0, 2, LIMIT]))
        accepted = self.accept(draft, follow, text)
        outputs = self.outputs(len(draft) + 1)
        context = tuple(self.known[-4:])
        counted = None if chance.random() < 0.1 else arm
        self.both(lambda core: core.observe(draft, accepted, outputs, context, counted))
        self.known += accepted.token_ids
        self.both(lambda core: core.speeds())
        for core in self.cores:
            core.drafting[arm] = 0.01 * len(self.known)
        if chance.random() < 0.05:
            self.price()
        if chance.random() < 0.1:
            for core in self.cores:
                core.clear()
        return accepted

    def accept(self, draft, follow, text):
        emitted, path, node = [], [], ROOT
        while node is not None:
            children = {draft.token_ids[n]: n for n, parent in enumerate(draft.parents) if parent == node}
            if text is not None:
                token = text[len(emitted)]
            elif children and self.chance.random() < follow:
                token = self.chance.choice(sorted(children))
            else:
                token = self.chance.randrange(self.vocabulary)
            emitted.append(token)
            node = children.get(token)
            path += [] if node is None else [node]
        return Accepted(tuple(emitted), tuple(path), len(draft))

    def outputs(self, rows):
        chance = self.chance
        logits = np.zeros((rows, 1), np.float32)
        if chance.random() < 0.1:
            return Outputs(logits)
        ids = np.array([chance.sample(range(self.vocabulary), LIKELY) for _ in range(rows)], np.int32)
        shares = -np.sort(-np.array([[chance.expovariate(1.0) for _ in range(LIKELY)] for _ in range(rows)]))
        shares = np.log(shares / (shares.sum(axis=1, keepdims=True) + 0.2)).astype(np.float32)
        sums = np.array([chance.uniform(-9, 9) for _ in range(rows)], np.float32)
        return Outputs(logits, TopTokens(ids, shares + sums[:, None], sums))


NAMES = {
    "auto": ("suffix", "recycling"),
    "suffix": ("suffix",),
    "recycling": ("recycling",),
    "referring": ("suffix", "recycling", "reference"),
    "a model": ("forest",),
    "a model that is asked": ("suffix", "asked"),
    "all": ("forest", "asked", "suffix", "reference", "recycling"),
}


@pytest.mark.parametrize("chain", [False, True], ids=["tree", "chain"])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_a_thousand_random_steps(names, chain):
    chance = random.Random(f"{names} {chain}")
    pair = Pair(chance, names=names, chain=chain)
    pair.begin([1, 2, 3])
    for _ in range(1000):
        if chance.random() < 0.02:
            # Another text, the same one again, or one that departs from it.
            kept = pair.known[: chance.choice([0, 5, len(pair.known) // 2, len(pair.known)])]
            pair.begin([*kept, *(chance.randrange(pair.vocabulary) for _ in range(chance.choice([0, 1, 30, 200])))])
        pair.step()
    assert pair.proposed > 400


@settings(max_examples=share_of(150))
@given(
    seed=st.integers(0, 1 << 40), names=st.sampled_from(list(NAMES.values())), vocabulary=st.integers(LIKELY, 60),
    tokens=st.integers(64, 200), contexts=st.integers(1, 100), order=st.integers(1, 3), steps=st.integers(1, 30),
)  # fmt: skip
def test_steps_of_any_kind(seed, names, vocabulary, tokens, contexts, order, steps):
    chance = random.Random(seed)
    pair = Pair(chance, names=names, vocabulary=vocabulary, tokens=tokens, contexts=contexts, order=order)
    for _ in range(3):
        pair.begin([chance.randrange(vocabulary) for _ in range(chance.randrange(300))])
        for _ in range(steps):
            pair.step(follow=chance.random())


@pytest.mark.parametrize("tokens", [512, 1 << 16], ids=["rebuilt often", "whole"])
def test_a_real_text_is_drafted_alike(tokens):
    text = list((Path(__file__).parents[3] / "docs" / "decoding.md").read_bytes())
    pair = Pair(random.Random(5), vocabulary=256, tokens=tokens, contexts=3000)
    pair.begin(text[:300])
    at = 300
    while at < 6000:
        at += len(pair.step(text=text[at:]).token_ids)
    pair.begin(text[7000:9000])
    for _ in range(200):
        pair.step()
    # Its regularity was found: most of what it accepted was drafted.
    assert pair.proposed > 5000


def test_the_tables_keep_their_bounds_and_take_less_memory():
    pair = Pair(random.Random(1), vocabulary=3000, tokens=256, contexts=100)
    pair.begin([1])
    for _ in range(2000):
        pair.step()
    for ours, native in zip(*(core.sources for core in pair.cores), strict=True):
        assert 0 < native.memory_bytes < 0.8 * ours.memory_bytes
    suffix, _ = pair.cores[1].sources
    assert suffix.num_tokens <= 256
    for core in pair.cores:
        core.sources[0].limit(64)
    assert suffix.num_tokens <= 64
    for _ in range(100):
        pair.step()


@pytest.mark.parametrize("vocabulary", [2, 30, 40000])
def test_full_tables_take_no_more_than_is_planned(vocabulary):
    chance, library, tokens, contexts = random.Random(7), draft_library(), 4096, 512
    suffix, recycling = (
        NativeSuffixSource(library, max_tokens=tokens),
        NativeRecyclingSource(library, max_order=2, max_contexts=contexts),
    )
    # A context is at most half of what the automaton holds.
    for _ in range(2):
        suffix.begin([chance.randrange(vocabulary) for _ in range(tokens // 2 - 20)])
    assert 0.9 * tokens < suffix.num_tokens <= tokens
    assert suffix.memory_bytes <= TABLES.token * tokens
    row = Outputs(np.zeros((1, 1)), TopTokens(np.arange(8)[None], np.full((1, 8), -2.0), np.zeros(1)))
    for number in range(2 * contexts):
        recycling.observe(Draft(), Accepted((1,), (), 0), row, (number, number + 1))
    assert 140 * contexts < recycling.memory_bytes <= TABLES.context * contexts


def test_what_a_source_is_asked_one_by_one_is_the_same():
    chance = random.Random(3)
    pair = Pair(chance, names=NAMES["referring"])
    pair.begin([1, 2, 3, 1, 2])
    for _ in range(200):
        pair.step()
        for ours, native in zip(*(core.sources for core in pair.cores), strict=True):
            front = [(ours.root(), native.root())]
            for _ in range(3):
                behind = []
                for one, other in front:
                    assert (one is None) == (other is None)
                    guesses, others = (ours.children(one), native.children(other)) if one is not None else ((), ())
                    assert [guess[:2] for guess in guesses] == [guess[:2] for guess in others]
                    behind += [(mine.cursor, its.cursor) for mine, its in zip(guesses, others, strict=True)]
                front = behind
            assert [ours.prior(kind) for kind in range(ours.num_kinds)] == [
                native.prior(kind) for kind in range(native.num_kinds)
            ]


def test_a_source_without_end_is_asked_for_its_likeliest_guesses():
    source = SuffixSource()
    source.begin([*range(100), 0, 1, 2])
    forest = forest_of(source)
    assert forest.token_ids.tolist() == list(range(3, 3 + WALKED_NODES))
    assert forest.parents.tolist() == list(range(ROOT, WALKED_NODES - 1))


def test_a_source_is_asked_once_a_step():
    source, calls = GuessingModel(0, 5), []
    forest = source.forest
    source.forest = lambda: calls.append(1) or forest()
    core = DraftCore(draft_library(), [NativeSuffixSource(draft_library()), source])
    core.price([1.0] * 9)
    core.begin([1, 2, 1, 2])
    core.propose(8, 1, 0.0)
    assert len(calls) == 0
    for _ in range(2):
        core.propose(8, 2, 0.0)
    assert len(calls) == 1
    core.observe(Draft(), Accepted((1,), (), 0), Outputs(np.zeros((1, 1))), (), None)
    core.propose(8, 2, 0.0)
    assert len(calls) == 2


class TestRefusals:
    @pytest.mark.parametrize("token", [-1, 1 << 31, 1 << 70])
    def test_of_tokens_that_are_none(self, token):
        pair = Pair(random.Random(0))
        pair.begin([1, 2, 3])
        _, native = pair.cores
        with pytest.raises(InferenceError, match="refused"):
            native.begin([1, token])
        with pytest.raises(InferenceError, match="refused"):
            native.observe(Draft(), Accepted((token,), (), 0), Outputs(np.zeros((1, 1))), (), None)
        for source in native.sources:
            with pytest.raises(InferenceError, match="refused"):
                source.extend([token])
        # Nothing is lost.
        pair.step()

    @pytest.mark.parametrize(
        ("draft", "accepted"),
        [
            (Draft.chain([1] * 9), Accepted((1,), (), 9)),
            (Draft(), Accepted((1, 2), (0,), 0)),
            (Draft.chain([1]), Accepted((1, 2), (-1,), 1)),
        ],
        ids=["more nodes than drafted", "a path without a draft", "a path through the root"],
    )
    def test_of_steps_that_were_not_drafted(self, draft, accepted):
        core = DraftCore(draft_library(), [NativeSuffixSource(draft_library())])
        core.begin([1, 2, 1, 2, 1])
        core.propose(1, 1, 0.0, whole=True)
        with pytest.raises(InferenceError, match="refused"):
            core.observe(draft, accepted, Outputs(np.zeros((len(draft) + 1, 1))), (), None)

    @pytest.mark.parametrize(
        "forest",
        [
            Forest.of([1], [0], [0]),
            Forest.of([-1], [-1], [0]),
            Forest.of([1], [-1], [3]),
            Forest.of([1, 1], [-1, -1], [0, 0]),
            Forest.of(range(300), [-1] * 300, [0] * 300),
        ],
        ids=["its own parent", "no token", "no kind", "twins", "too many"],
    )
    def test_of_forests_that_are_none(self, forest):
        source = GuessingModel(0, 5)
        source.forest = lambda: forest
        core = DraftCore(draft_library(), [source])
        core.begin([1])
        with pytest.raises(InferenceError, match="refused"):
            core.propose(4, 1, 0.0, whole=True)

    def test_of_tables_that_are_too_small(self):
        with pytest.raises(ConfigError, match="too small"):
            NativeSuffixSource(draft_library(), max_tokens=63)
        source = NativeSuffixSource(draft_library())
        with pytest.raises(ConfigError, match="too small"):
            source.limit(63)
        with pytest.raises(ConfigError, match="empty"):
            NativeReferenceSource(draft_library(), [])

    def test_of_costs_that_are_too_few(self):
        core = DraftCore(draft_library(), [NativeSuffixSource(draft_library())])
        core.begin([1, 2, 1])
        core.price([1.0, 2.0])
        with pytest.raises(InferenceError, match="refused"):
            core.propose(2, 1, 0.0)
