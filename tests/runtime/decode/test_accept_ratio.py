from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.accept_ratio import Proposal, accept_ratio
from edge_rt.runtime.decode.draft import ROOT, Draft
from edge_rt.runtime.decode.sampling import Chance, Sampler
from tests.helpers.enumerated import Replay

VOCABULARY = 12
PAIR = Draft((4, 5), (ROOT, ROOT))


class Rows:
    """A sampler whose rows are the probabilities themselves, and which remembers what it was told."""

    def __init__(self):
        self.seen = []

    def distribution(self, logits):
        return np.flatnonzero(logits), logits[logits > 0].astype(np.float64)

    def observe(self, token_id):
        self.seen.append(token_id)


class Told:
    """Choices told beforehand; remembers what it was asked."""

    def __init__(self, *choices):
        self._choices = list(choices)
        self.asked = []

    def happens(self, probability):
        self.asked.append(probability)
        return self._choices.pop(0)

    def choose(self, weights):
        self.asked.append((np.asarray(weights) / np.sum(weights)).tolist())
        return self._choices.pop(0)


def row(**probabilities):
    """Return a row such as ``row(t4=0.5, t7=0.5)``."""
    result = np.zeros(VOCABULARY)
    for name, probability in probabilities.items():
        result[int(name[1:])] = probability
    return result


def sure(*tokens):
    return [row(**{f"t{token}": 1.0}) for token in tokens]


def proposal(**weights):
    return Proposal.of([int(name[1:]) for name in weights], list(weights.values()))


class TestOneStep:
    def test_a_token_stays_with_the_quotient_of_the_probabilities(self):
        logits = np.stack([row(t4=0.3, t5=0.7), *sure(9)])
        chance = Told(True, 0)
        accepted = accept_ratio(Draft.chain((4,)), [proposal(t4=0.6, t5=0.4)], logits, Rows(), (), chance)
        assert (accepted.token_ids, accepted.path, accepted.num_drafted) == ((4, 9), (0,), 1)
        assert chance.asked == [pytest.approx(0.5), [1.0]]

    def test_a_token_that_the_model_likes_better_stays_for_sure(self):
        logits = np.stack([row(t4=0.7, t5=0.3), *sure(9)])
        chance = Told(True, 0)
        accept_ratio(Draft.chain((4,)), [proposal(t4=0.6, t5=0.4)], logits, Rows(), (), chance)
        assert chance.asked[0] == 1.0

    def test_the_residual_follows_a_reject(self):
        logits = np.stack([row(t4=0.2, t5=0.3, t7=0.5), *sure(9)])
        chance = Told(False, 2)
        accepted = accept_ratio(Draft.chain((4,)), [proposal(t4=0.8, t5=0.1, t8=0.1)], logits, Rows(), (), chance)
        assert (accepted.token_ids, accepted.path, accepted.num_drafted) == ((7,), (), 1)
        # max(p - q, 0) is 0.2 for token 5 and 0.5 for token 7.
        assert chance.asked == [pytest.approx(0.25), pytest.approx([0, 2 / 7, 5 / 7])]

    def test_the_second_sibling_is_judged_by_the_residual_and_without_the_first(self):
        logits = np.stack([row(t4=0.2, t5=0.3, t7=0.5), *sure(1, 9)])
        q = proposal(t4=0.8, t5=0.1, t8=0.1)
        chance = Told(False, True, 0)
        accepted = accept_ratio(PAIR, [q, q], logits, Rows(), (), chance)
        assert (accepted.token_ids, accepted.path) == ((5, 9), (1,))
        assert chance.asked == [pytest.approx(0.25), pytest.approx((2 / 7) / 0.5), [1.0]]

    def test_weights_count_by_their_proportion(self):
        logits = np.stack([row(t4=0.2, t5=0.3, t7=0.5), *sure(1, 9)])
        asked = []
        for scale in (1.0, 0.125):
            q = proposal(t4=0.8 * scale, t5=0.2 * scale)
            chance = Told(False, False, 0)
            accept_ratio(PAIR, [q, q], logits, Rows(), (), chance)
            asked.append(chance.asked)
        assert asked[0][:2] == pytest.approx(asked[1][:2])
        assert asked[0][2] == pytest.approx(asked[1][2])

    def test_picked_siblings_are_taken_out_one_after_the_other(self):
        logits = np.stack([row(t4=0.2, t5=0.3, t7=0.5), *sure(1, 9)])
        chance = Told(False, False, 2)
        assert accept_ratio(PAIR, [None, None], logits, Rows(), (), chance).token_ids == (7,)
        assert chance.asked == [pytest.approx(0.2), pytest.approx(0.375), [0, 0, 1]]

    def test_a_token_that_plain_decoding_would_not_draw_never_stays(self):
        logits = np.stack([row(t5=0.3, t7=0.7), *sure(9)])
        for guess in (proposal(t4=0.6, t5=0.4), proposal(t4=1.0), proposal(t4=0.5, t11=0.5), None):
            chance = Told(False, 1)
            assert accept_ratio(Draft.chain((4,)), [guess], logits, Rows(), (), chance).token_ids == (7,)
            assert chance.asked[0] == 0.0

    def test_a_reject_that_only_rounding_explains_is_none(self):
        q = proposal(t4=0.1, t5=0.2, t7=0.7)
        logits = np.stack([row(t4=0.1, t5=0.2, t7=0.7), *sure(9)])
        assert accept_ratio(Draft.chain((4,)), [q], logits, Rows(), (), Told(False, 0)).token_ids == (4, 9)

    @pytest.mark.parametrize("guess", [proposal(t4=0.5, t6=0.5), proposal(t4=1.0)])
    def test_a_token_that_cannot_have_been_drawn_is_a_mistake(self, guess):
        logits = np.stack([row(t5=1.0), *sure(9, 9)])
        with pytest.raises(AssertionError):
            accept_ratio(PAIR, [guess, guess], logits, Rows(), (), Replay((1, 0)))

    def test_every_node_needs_its_entry(self):
        with pytest.raises(AssertionError):
            accept_ratio(PAIR, [None], np.stack(sure(4, 4, 4)), Rows(), (), Replay())


#        +-- 4 -- 5
# root --+        +-- 6 -- 8
#        +-- 3 -- 7 (and 3 -- 5)
TREE = Draft((4, 3, 5, 6, 7, 5, 8), (-1, -1, 0, 0, 1, 1, 3))


@pytest.mark.parametrize(
    ("chosen", "expected", "path"),
    [
        ({-1: 9}, (9,), ()),
        ({-1: 4, 0: 9}, (4, 9), (0,)),
        ({-1: 4, 0: 5, 2: 9}, (4, 5, 9), (0, 2)),
        ({-1: 4, 0: 6, 3: 8, 6: 9}, (4, 6, 8, 9), (0, 3, 6)),
        ({-1: 3, 1: 5, 5: 9}, (3, 5, 9), (1, 5)),
        ({-1: 3, 1: 2}, (3, 2), (1,)),
        ({-1: 2}, (2,), ()),
        ({-1: 4, 0: 6, 3: 11}, (4, 6, 11), (0, 3)),
    ],
)
@pytest.mark.parametrize("drawn", [True, False])
def test_tokens_down_a_tree(chosen, expected, path, drawn):
    # A sure model leaves nothing to chance, whatever the drafter thinks.
    logits = np.stack(sure(*[chosen.get(node, 0) for node in range(ROOT, len(TREE))]))
    wide = proposal(**{f"t{token}": 1.0 for token in range(VOCABULARY)})
    sampler = Rows()
    accepted = accept_ratio(TREE, [wide if drawn else None] * len(TREE), logits, sampler, {2}, Chance(1))
    assert (accepted.token_ids, accepted.path, accepted.num_drafted) == (expected, path, len(TREE))
    assert tuple(sampler.seen) == expected


@pytest.mark.parametrize("guess", [None, proposal(t4=1.0, t5=1.0)])
def test_a_drafted_end_token_is_the_last_one(guess):
    draft = Draft.chain((4, 5))
    accepted = accept_ratio(draft, [guess] * 2, np.stack(sure(4, 5, 6)), Rows(), {4}, Chance(1))
    assert (accepted.token_ids, accepted.path) == ((4,), ())


class TestProposal:
    def test_tokens_without_weight_are_left_out(self):
        kept = Proposal.of([4, 2, 9], [0.5, 0.0, 0.25])
        kept.check()
        assert (kept.token_ids.tolist(), kept.weights.tolist()) == ([4, 9], [0.5, 0.25])

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 9])
    def test_drawn_tokens_differ(self, count):
        for seed in range(20):
            drawn = proposal(t4=0.5, t2=1e-3, t9=0.25).draw(count, Chance(seed))
            assert len(set(drawn)) == len(drawn) == min(count, 3)
            assert set(drawn) <= {4, 2, 9}

    def test_pairs_are_drawn_without_replacement(self):
        q, chance, count = {4: 0.5, 2: 0.2, 9: 0.3}, Chance(3), 6000
        drawn = Counter(proposal(t4=0.5, t2=0.2, t9=0.3).draw(2, chance) for _ in range(count))
        expected = {(a, b): q[a] * q[b] / (1 - q[a]) for a in q for b in q if a != b}
        assert chi_square(drawn, expected, count) < 25.7  # passed once in ten thousand seeds

    @pytest.mark.parametrize(
        ("token_ids", "weights"),
        [([1, 1], [0.5, 0.5]), ([1, 2], [0.5, 0.0]), ([1], [0.5, 0.5]), ([], []), ([1], [np.nan]), ([1], [np.inf])],
    )
    def test_malformed_ones_are_found(self, token_ids, weights):
        with pytest.raises(AssertionError):
            Proposal(np.asarray(token_ids, np.int64), np.asarray(weights, np.float64)).check()


def chi_square(found, expected, count):
    assert set(found) <= set(expected)
    assert math.fsum(expected.values()) == pytest.approx(1.0)
    return sum((found[value] - count * p) ** 2 / (count * p) for value, p in expected.items())


class TestWithTheRealSampler:
    """Chi-square with fixed seeds, through the functions that users run."""

    LOGITS = np.random.default_rng(17).standard_normal((4, VOCABULARY)).astype(np.float32) * 1.5
    OPTIONS = (
        {"temperature": 1.0, "top_p": 1.0},
        {"temperature": 0.6, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 4, "top_p": 1.0},
        {"temperature": 1.0, "top_p": 1.0, "min_p": 0.2, "logit_bias": {3: 1.0}},
    )
    GUESS = Proposal.of([1, 0, 11, 2, 9, 5], [0.3, 0.2, 0.15, 0.15, 0.1, 0.1])

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    @pytest.mark.parametrize("drawn", [True, False])
    def test_first_and_second_tokens_are_distributed_as_plain(self, options, drawn):
        config = GenerationConfig(seed=23, **options)
        sampler, drafts, count = Sampler(config, VOCABULARY), Chance(29), 6000
        firsts, seconds = Counter(), Counter()
        for _ in range(count):
            tokens = self.GUESS.draw(3, drafts) if drawn else (1, 11, 4)
            draft = Draft(tokens, (ROOT,) * 3)
            proposals = [self.GUESS if drawn else None] * 3
            accepted = accept_ratio(draft, proposals, self.LOGITS, sampler, (), sampler.chance)
            firsts[accepted.token_ids[0]] += 1
            if accepted.path:
                # Rows go with the places of the siblings here, so that tokens behind them have laws of their own.
                seconds[accepted.path[0], accepted.token_ids[1]] += 1

        plain = Sampler(config, VOCABULARY)
        laws = [dict(zip(*(part.tolist() for part in plain.distribution(line)), strict=True)) for line in self.LOGITS]
        # Eleven degrees of freedom at most: 37.4 is passed once in ten thousand seeds.
        assert chi_square(firsts, laws[0], count) < 37.4
        tested = 0
        for place in range(3):
            behind = Counter({token: number for (at, token), number in seconds.items() if at == place})
            # Too few say nothing: a sibling that the model would not draw never stays.
            if behind.total() > 400:
                assert chi_square(behind, laws[1 + place], behind.total()) < 37.4
                tested += behind.total()
        assert tested > 1000

    def test_picked_tokens_with_a_proposal_would_be_found(self):
        config = GenerationConfig(seed=23, temperature=1.0, top_p=1.0)
        sampler, count = Sampler(config, VOCABULARY), 6000
        picked = Draft.chain((1,))
        found = Counter(
            accept_ratio(picked, [self.GUESS], self.LOGITS[:2], sampler, (), sampler.chance).token_ids[0]
            for _ in range(count)
        )
        law = dict(zip(*(part.tolist() for part in sampler.distribution(self.LOGITS[0])), strict=True))
        assert chi_square(found, law, count) > 370

    def texts(self, seed, drafter_seed):
        """Return 40 steps' tokens, by the rule and by plain sampling."""
        config = GenerationConfig(seed=seed, temperature=1.0, top_p=0.95, repetition_penalty=1.2)
        sampler, plain, drafts = Sampler(config, VOCABULARY), Sampler(config, VOCABULARY), Chance(drafter_seed)
        text = []
        for _ in range(40):
            draft = Draft.chain(self.GUESS.draw(1, drafts))
            text.append(accept_ratio(draft, [self.GUESS], self.LOGITS[:2], sampler, (), sampler.chance).token_ids)
        return text, [plain.sample(self.LOGITS[0]) for _ in range(40)]

    def test_a_seed_repeats_but_is_not_plain_decodings_text(self):
        text, plain = self.texts(seed=3, drafter_seed=4)
        assert text == self.texts(seed=3, drafter_seed=4)[0]
        assert text != self.texts(seed=5, drafter_seed=4)[0]
        assert [tokens[0] for tokens in text] != plain

    def test_emitted_tokens_are_penalised_at_once(self):
        config = GenerationConfig(seed=1, temperature=1.0, top_p=1.0, presence_penalty=100.0)
        sampler = Sampler(config, VOCABULARY)
        logits = np.zeros((VOCABULARY, VOCABULARY), np.float32)
        draft = Draft.chain(range(VOCABULARY - 1))
        for _ in range(3):
            accepted = accept_ratio(draft, [None] * len(draft), logits, sampler, (), sampler.chance)
            assert len(set(accepted.token_ids)) == len(accepted.token_ids)
