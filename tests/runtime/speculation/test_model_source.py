"""Guesses of a second model, on one without a graph whose logits depend on the whole text."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edge_rt.errors import Cancelled
from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.speculation.draft_model import DraftModel
from edge_rt.runtime.speculation.model_source import ModelSource, UpperHalves, Way
from edge_rt.runtime.speculation.source import MAX_CHAIN
from tests.helpers.fake_model import VOCABULARY, FakeTarget, fake_cache
from tests.reference.core import Asked

KNOWN = 40
"""Tokens that both models know; the second one has more."""


class Eager:
    """A planner to which every token pays, up to a length."""

    def __init__(self, length=MAX_CHAIN, token_cost=0.16):
        self.length = length
        self.token_cost = token_cost
        self.learned = []

    def begin(self):
        self.learned.clear()

    def gain(self, depth):
        return 1.0 + self.length

    def price(self, depth, tokens, passes):
        return self.token_cost * (tokens + 6 * passes)

    def goes_on(self, depth, values, most, ready=0):
        return len(values) < min(self.length, most)

    def value_of(self, probability):
        return probability

    def learn(self, probability, hit):
        self.learned.append(hit)


def made(planner=None, *, capacity=256, known=VOCABULARY, chunk=5, **options):
    """Return a source, its model and what computes."""
    target, cache = FakeTarget(**options.pop("target", {})), fake_cache(capacity)
    model = DraftModel(target, cache, known_tokens=known, stand_in=1, chunk=chunk)
    return Asked(ModelSource([Way(model, planner or Eager())], **options)), model, target


def chain_of(forest):
    """Return the tokens of a forest's chain: the first child each time."""
    parents = forest.parents.tolist()
    tokens, at = [], ROOT
    while at in parents:
        at = parents.index(at)
        tokens.append(int(forest.token_ids[at]))
    return tokens


def likeliest(text, count):
    """Return what the fake model says behind a text, greedily."""
    text, begin = list(text), len(text)
    for _ in range(count):
        text.append(int(FakeTarget.logits(text).argmax()))
    return text[begin:]


def test_the_chain_is_what_the_model_says_whatever_was_accepted():
    rng = random.Random(2)
    source, model, _ = made()
    text = [rng.randrange(VOCABULARY) for _ in range(23)]
    source.begin(text)
    for _ in range(30):
        chain = chain_of(source.forest())
        assert chain == likeliest(text, MAX_CHAIN)
        kept = rng.randrange(MAX_CHAIN + 1)
        emitted = [*chain[:kept], rng.randrange(VOCABULARY)][: rng.randrange(1, MAX_CHAIN + 2)]
        source.observe(Draft.chain(chain), Accepted(tuple(emitted), (), 0), None, ())
        source.extend(emitted)
        text += emitted
        model.cache.check()
        if len(text) > 200:
            break


def test_accepted_tokens_are_not_computed_again():
    source, model, target = made()
    text = [3, 1, 4, 1, 5]
    source.begin(text)
    chain = chain_of(source.forest())
    before = target.computed
    source.extend([*chain, 7])
    source.forest()
    # The last token of the chain was drafted and not computed; 7 is new; then a pass for every further token.
    assert target.computed - before == 2 + MAX_CHAIN - 1
    assert model.cache.token_ids[: len(text)] == tuple(text)


def test_long_texts_are_computed_in_chunks():
    source, _, target = made(chunk=5)
    source.begin(list(range(23)))
    source.forest()
    assert [len(tokens) for _, tokens, _ in target.passes[:5]] == [5, 5, 5, 5, 3]


@pytest.mark.parametrize("stop_at", range(9))
def test_a_stopped_pass_leaves_the_cache_whole(stop_at):
    source, model, target = made(target={"stop_at": stop_at})
    text = list(range(12))
    source.begin(text)
    with pytest.raises(Cancelled):
        source.forest()
    model.cache.check()
    source.extend([9])
    assert chain_of(source.forest()) == likeliest([*text, 9], MAX_CHAIN)
    assert len(target.passes) > stop_at


def test_tokens_that_it_does_not_share_are_neither_read_nor_guessed():
    rng = random.Random(5)
    source, model, _ = made(known=KNOWN)
    for _ in range(40):
        text = [rng.randrange(VOCABULARY + 30) for _ in range(9)]
        source.begin(text)
        forest = source.forest()
        assert model.cache.token_ids[:9] == tuple(token if token < KNOWN else 1 for token in text)
        assert not len(forest.token_ids) or int(forest.token_ids.max()) < KNOWN
        shared = likeliest([token if token < KNOWN else 1 for token in text], MAX_CHAIN)
        expected = next((at for at, token in enumerate(shared) if token >= KNOWN), MAX_CHAIN)
        assert chain_of(forest) == shared[:expected]


def test_a_chain_ends_with_the_answer():
    text = [1, 2, 3]
    said = likeliest(text, MAX_CHAIN)
    source, _, _ = made(end_ids=[said[2]])
    source.begin(text)
    assert chain_of(source.forest()) == said[: said.index(said[2]) + 1]


def test_there_is_room_for_the_chain_or_it_is_shorter():
    source, model, _ = made(capacity=10)
    source.begin(list(range(7)))
    assert len(chain_of(source.forest())) == 4
    assert model.cache.length == 10
    source.begin(list(range(11)))
    assert not len(source.forest().token_ids)


@pytest.mark.parametrize(("token_cost", "least", "most"), [(0.001, 70, 70), (0.02, 4, 8), (0.16, 0, 0)])
def test_where_nothing_pays_trials_take_a_small_part_of_the_time(token_cost, least, most):
    """Reading the text is part of a trial's price; where that alone is too much, there is none."""
    source, _, _ = made(Eager(0, token_cost=token_cost))
    source.begin([1])
    sizes = []
    for step in range(70):
        sizes.append(len(chain_of(source.forest())))
        source.extend([step % VOCABULARY])
    assert sum(sizes) == sizes.count(1)
    assert least <= sum(sizes) <= most


def test_a_long_text_is_read_only_where_drafts_pay_it_back():
    text = list(range(40)) * 5
    for planner, is_read in (
        (Eager(4, token_cost=0.5), True),
        (Eager(4, token_cost=2.0), False),
        (Eager(0, token_cost=0.01), False),
    ):
        source, model, _ = made(planner, capacity=512)
        source.begin(text)
        source.forest()
        assert (model.cache.length > 0) == is_read
        source.extend([1])
        assert bool(len(source.forest().token_ids)) == is_read


def test_it_learns_up_to_the_first_wrong_guess():
    planner = Eager(3)
    source, _, _ = made(planner)
    source.begin([1, 2])
    chain = chain_of(source.forest())
    source.observe(Draft(), Accepted((chain[0], chain[1] ^ 1, chain[2]), (), 0), None, ())
    assert planner.learned == [True, False]


class TestUpperHalves:
    """Drafts on the model's own cache."""

    def made(self, capacity=64):
        target, cache = FakeTarget(), fake_cache(capacity)
        text = list(range(9))
        with cache.reserve(8) as rows:
            target.forward(text[:8], rows.start, 1)
            rows.commit(text[:8])
        return UpperHalves(target, cache, VOCABULARY), cache, target, text

    def test_a_chain_behind_the_committed_rows(self):
        model, cache, target, text = self.made()
        source = ModelSource([Way(model, Eager(4))])
        source.begin(text)
        assert chain_of(source.forest()) == likeliest(text, 4)
        assert [len(tokens) for _, tokens, _ in target.passes[1:]] == [1] * 4
        assert cache.token_ids == tuple(text[:8])
        cache.check()

    def test_a_prompt_that_is_not_computed_yet_gets_no_draft(self):
        model, _, target, text = self.made()
        source = ModelSource([Way(model, Eager())])
        source.begin([*text, 3])
        assert not len(source.forest().token_ids)
        assert len(target.passes) == 1

    def test_the_end_of_the_context(self):
        model, _, _, text = self.made(capacity=11)
        source = ModelSource([Way(model, Eager())])
        source.begin(text)
        assert len(chain_of(source.forest())) == 2


def test_the_way_that_promises_most_drafts():
    (slow, first, _), (fast, second, _) = made(Eager(2)), made(Eager(5))
    assert slow is not fast
    source = ModelSource([Way(first, Eager(2)), Way(second, Eager(5))])
    source.begin([1, 2, 3])
    assert len(chain_of(source.forest())) == 5
    assert (first.cache.length, second.cache.length) == (0, 7)


def test_what_promises_too_little_is_only_tried():
    source, _, _ = made(Eager(4), least_gain=5.1)
    source.begin([1, 2, 3])
    assert not len(source.forest().token_ids)


def test_kinds_and_probabilities():
    source, _, _ = made()
    source.begin([1, 2, 3])
    forest = source.forest()
    assert set(forest.kinds.tolist()) <= set(range(source.num_kinds))
    siblings = [forest.token_ids[np.flatnonzero(forest.parents == parent)] for parent in np.unique(forest.parents)]
    assert all(len(set(group.tolist())) == len(group) for group in siblings)
    assert all(0 < source.prior(kind) < 1 for kind in range(source.num_kinds))
