"""What the rules of acceptance emit is what plain decoding emits: exactly, by enumeration of every random choice."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.accept import accept
from edge_rt.runtime.decode.accept_ratio import Proposal, accept_ratio
from edge_rt.runtime.decode.draft import ROOT, Draft
from tests.helpers.enumerated import TinyModel, law
from tests.helpers.pairs import all_pairs, with_slow

EXACT = 1e-12
SAMPLED = GenerationConfig(temperature=1.0, top_p=1.0)
OPTIONS = {
    "plain": SAMPLED,
    "truncated": GenerationConfig(temperature=0.7, top_k=3, top_p=0.9),
    "min-p": GenerationConfig(temperature=1.5, top_p=1.0, min_p=0.3),
    "penalties": GenerationConfig(
        temperature=1.0, top_p=1.0, repetition_penalty=1.6, presence_penalty=0.5, frequency_penalty=0.7,
        logit_bias={0: 0.8, 2: -0.6},
    ),
    "xtc": GenerationConfig(temperature=1.0, top_p=1.0, xtc_probability=0.4, xtc_threshold=0.15),
    "repetitions": GenerationConfig(temperature=1.0, top_p=1.0, dry_multiplier=0.5, dry_allowed_length=1, fsd=0.3),
    "greedy": GenerationConfig(temperature=0.0),
}  # fmt: skip


class TableDrafter:
    """Draws trees of a given shape from distributions of its own.

    Args:
        seed: of the distributions.
        vocabulary: number of tokens.
        shape: (path of a node, number of its children), paths as indices of siblings.
        tokens: how many tokens a distribution knows; the others have probability 0.
    """

    def __init__(self, seed, vocabulary, shape, tokens=None):
        self._seed = seed
        self._vocabulary = vocabulary
        self._shape = shape
        self._tokens = tokens or vocabulary

    def proposal(self, history):
        random = np.random.default_rng([self._seed, *(1 + token for token in history)])
        ids = random.permutation(self._vocabulary)[: self._tokens]
        # Not normalised, as the probabilities of a model's few most likely tokens are not.
        return Proposal.of(ids.tolist(), (random.dirichlet(np.ones(self._tokens)) * 0.8).tolist())

    def draw(self, replay):
        """Return a draft and its proposals."""
        nodes, histories = {(): ROOT}, {(): ()}
        token_ids, parents, proposals = [], [], []
        for path, count in self._shape:
            if path not in nodes:
                continue
            proposal = self.proposal(histories[path])
            proposal.check()
            for index, token in enumerate(proposal.draw(count, replay)):
                nodes[*path, index], histories[*path, index] = len(token_ids), (*histories[path], token)
                token_ids.append(token)
                parents.append(nodes[path])
                proposals.append(proposal)
        return Draft(tuple(token_ids), tuple(parents)), proposals


def emitted_by_ratio(model, drafted):
    """Return the law of ``accept_ratio``'s tokens over drafts ``drafted(replay)`` and its own choices."""

    def step(replay):
        draft, proposals = drafted(replay)
        draft.check()
        accepted = accept_ratio(draft, proposals, model.rows(draft), model.sampler(replay), model.end_ids, replay)
        assert [draft.token_ids[node] for node in accepted.path] == list(accepted.token_ids[:-1])
        assert [draft.parents[node] for node in accepted.path] == [ROOT, *accepted.path][: len(accepted.path)]
        return accepted.token_ids

    return law(step)


CHAINS = {length: tuple(((0,) * depth, 1) for depth in range(length)) for length in (1, 2, 3)}
SHAPES = {
    "nothing": (0, ()),
    "chain of 1": (1, CHAINS[1]),
    "chain of 2": (2, CHAINS[2]),
    "2 siblings": (1, (((), 2),)),
    "3 siblings": (1, (((), 3),)),
    "4 siblings": (1, (((), 4),)),
    "2 siblings, one goes on": (2, (((), 2), ((1,), 1))),
    "depth 2": (2, (((), 2), ((0,), 1), ((1,), 1))),
    "2 grandchildren": (2, (((), 1), ((0,), 2))),
}


FEW = (OPTIONS, (1, 2, 4), range(3))
"""Options of the sampler, tokens that a drafter knows, seeds."""


class TestDrawnDrafts:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("seed", range(4))
    def test_the_law_is_plain_decodings(self, shape, seed):
        depth, counts = SHAPES[shape]
        vocabulary = 4 if depth > 1 else 4 + seed % 3
        model = TinyModel(seed, vocabulary, SAMPLED)
        drafter = TableDrafter(100 + seed, vocabulary, counts)
        outcomes = emitted_by_ratio(model, drafter.draw)
        assert sum(outcomes.values()) == pytest.approx(1.0, abs=EXACT)
        assert model.error(outcomes, depth + 1) <= EXACT

    @pytest.mark.parametrize("seed", range(3))
    def test_a_chain_of_3(self, seed):
        model = TinyModel(seed, 4, SAMPLED)
        drafter = TableDrafter(200 + seed, 4, CHAINS[3])
        assert model.error(emitted_by_ratio(model, drafter.draw), 4) <= EXACT

    def test_a_tree_of_depth_2_with_6_nodes(self):
        model = TinyModel(1, 4, SAMPLED)
        drafter = TableDrafter(5, 4, (((), 2), ((0,), 2), ((1,), 2)), tokens=3)
        assert model.error(emitted_by_ratio(model, drafter.draw), 3) <= EXACT

    @pytest.mark.parametrize(("options", "tokens", "seed"), with_slow(product(*FEW), all_pairs(*FEW)))
    def test_with_every_option_of_the_sampler_and_drafters_that_know_few_tokens(self, options, tokens, seed):
        model = TinyModel(seed, 5, OPTIONS[options], end_ids=(3,))
        drafter = TableDrafter(300 + seed, 5, (((), 2), ((0,), 1)), tokens=tokens)
        assert model.error(emitted_by_ratio(model, drafter.draw), 3) <= EXACT

    def test_a_drafter_that_is_the_model_is_always_right(self):
        model = TinyModel(3, 5, SAMPLED)

        def drafted(replay):
            history, proposals = (), []
            for _ in range(2):
                plain = model.plain(history)
                proposals.append(Proposal.of(list(plain), list(plain.values())))
                history += proposals[-1].draw(1, replay)
            return Draft.chain(history), proposals

        outcomes = emitted_by_ratio(model, drafted)
        assert sum(p for tokens, p in outcomes.items() if len(tokens) < 3) <= EXACT
        assert model.error(outcomes, 3) <= EXACT

    @pytest.mark.parametrize("seed", range(4))
    def test_one_drawn_token_stays_as_often_as_the_distributions_overlap(self, seed):
        model = TinyModel(seed, 5, SAMPLED)
        drafter = TableDrafter(seed, 5, CHAINS[1])
        proposal = drafter.proposal(())
        drawn = dict(zip(proposal.token_ids.tolist(), proposal.weights / proposal.weights.sum(), strict=True))
        overlap = sum(min(p, drawn.get(token, 0.0)) for token, p in model.plain(()).items())
        outcomes = emitted_by_ratio(model, drafter.draw)
        assert sum(p for tokens, p in outcomes.items() if len(tokens) == 2) == pytest.approx(overlap, abs=EXACT)

    def test_whether_a_node_follows_may_depend_on_those_before_it(self):
        model = TinyModel(2, 4, SAMPLED)
        drafter = TableDrafter(9, 4, (((), 1), ((0,), 1), ((), 1)))

        def drafted(replay):
            proposal, first_child = drafter.proposal(()), None
            first, second = proposal.draw(2, replay)
            token_ids, parents, proposals = [first], [ROOT], [proposal]
            if first != 1:
                behind = drafter.proposal((first,))
                (first_child,) = behind.draw(1, replay)
                token_ids, parents, proposals = [first, first_child], [ROOT, 0], [proposal, behind]
            if first_child in (None, 2, 3):
                token_ids, parents, proposals = [*token_ids, second], [*parents, ROOT], [*proposals, proposal]
            return Draft(tuple(token_ids), tuple(parents)), proposals

        assert model.error(emitted_by_ratio(model, drafted), 3) <= EXACT

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_a_draft_may_be_cut(self, count):
        model = TinyModel(2, 4, SAMPLED)
        drafter = TableDrafter(9, 4, (((), 2), ((0,), 1)))

        def drafted(replay):
            draft, proposals = drafter.draw(replay)
            return draft.first(count), proposals[:count]

        assert model.error(emitted_by_ratio(model, drafted), 2) <= EXACT


class TestPickedDrafts:
    TREES = (
        Draft.chain((1,)),
        Draft.chain((1, 1, 3)),
        Draft((2, 0), (ROOT, ROOT)),
        Draft((0, 1, 2, 3), (ROOT,) * 4),
        Draft((3, 1, 0, 2, 3), (ROOT, ROOT, 0, 0, 1)),
    )

    @pytest.mark.parametrize("draft", TREES, ids=str)
    @pytest.mark.parametrize("options", OPTIONS)
    def test_the_law_is_plain_decodings(self, draft, options):
        model = TinyModel(7, 4, OPTIONS[options], end_ids=(0,))
        outcomes = emitted_by_ratio(model, lambda replay: (draft, [None] * len(draft)))
        assert model.error(outcomes, 4) <= EXACT

    def test_siblings_stay_as_often_as_the_model_says_one_of_them(self):
        model = TinyModel(7, 5, SAMPLED)
        plain = model.plain(())
        outcomes = emitted_by_ratio(model, lambda replay: (Draft((2, 0), (ROOT, ROOT)), [None, None]))
        stayed = sum(p for tokens, p in outcomes.items() if len(tokens) == 2)
        assert stayed == pytest.approx(plain[2] + plain[0], abs=EXACT)

    @pytest.mark.parametrize("picked_first", [True, False])
    @pytest.mark.parametrize("seed", range(4))
    def test_picked_and_drawn_siblings_mix(self, picked_first, seed):
        model = TinyModel(seed, 5, SAMPLED)
        proposal = TableDrafter(seed, 5, ()).proposal(())
        best = int(proposal.token_ids[proposal.weights.argmax()])

        def drafted(replay):
            if picked_first:
                rest = proposal.token_ids != best
                (drawn,) = Proposal(proposal.token_ids[rest], proposal.weights[rest]).draw(1, replay)
                return Draft((best, drawn), (ROOT, ROOT)), [None, proposal]
            (drawn,) = proposal.draw(1, replay)
            if drawn == best:
                return Draft((drawn,), (ROOT,)), [proposal]
            return Draft((drawn, best), (ROOT, ROOT)), [proposal, None]

        assert model.error(emitted_by_ratio(model, drafted), 2) <= EXACT


class TestDraftsThatLie:
    """Where the documented condition is not kept, the law is another one: the enumeration finds that."""

    def test_a_picked_token_with_a_proposal(self):
        model = TinyModel(2, 5, SAMPLED)
        proposal = TableDrafter(9, 5, ()).proposal(())
        best = int(proposal.token_ids[proposal.weights.argmax()])
        assert model.error(emitted_by_ratio(model, lambda replay: (Draft.chain((best,)), [proposal])), 2) > 1e-2

    def test_sorted_siblings(self):
        model = TinyModel(2, 5, SAMPLED)
        drafter = TableDrafter(9, 5, (((), 2),))

        def drafted(replay):
            draft, proposals = drafter.draw(replay)
            return Draft(tuple(sorted(draft.token_ids)), draft.parents), proposals

        assert model.error(emitted_by_ratio(model, drafted), 2) > 1e-3

    def test_a_drawn_token_that_was_dropped(self):
        model = TinyModel(2, 5, SAMPLED)
        drafter = TableDrafter(9, 5, CHAINS[1])

        def drafted(replay):
            draft, proposals = drafter.draw(replay)
            return (draft, proposals) if draft.token_ids[0] < 3 else (Draft(), [])

        assert model.error(emitted_by_ratio(model, drafted), 2) > 1e-3


class TestSampleAndMatch:
    MATCHED = ([*TestPickedDrafts.TREES, Draft((3, 1, 0, 2, 3, 1), (ROOT, 0, 1, 1, 0, ROOT))], OPTIONS, [(), (0,)])

    @pytest.mark.parametrize(
        ("draft", "options", "end_ids"), with_slow(product(*MATCHED), all_pairs(*MATCHED)), ids=str
    )
    def test_the_law_is_plain_decodings(self, draft, options, end_ids):
        draft.check()
        model = TinyModel(7, 4, OPTIONS[options], end_ids=end_ids)
        rows = model.rows(draft)
        outcomes = law(lambda replay: accept(draft, rows, model.sampler(replay), model.end_ids).token_ids)
        assert model.error(outcomes, 4) <= EXACT

    @pytest.mark.parametrize("seed", range(5))
    def test_whatever_way_the_draft_was_made(self, seed):
        model = TinyModel(seed, 4, SAMPLED)
        drafter = TableDrafter(seed, 4, (((), 2), ((1,), 1)))

        def step(replay):
            draft, _ = drafter.draw(replay)
            # Neither sorting nor dropping does any harm here.
            draft = Draft(tuple(sorted(draft.token_ids[:2])), (ROOT, ROOT)) if 2 in draft.token_ids else draft
            return accept(draft, model.rows(draft), model.sampler(replay), ()).token_ids

        assert model.error(law(step), 3) <= EXACT
