"""Which drafted tokens are accepted: speculative sampling, by the probabilities that the tokens were drawn with.

Where a drafter *draws* its tokens from distributions of its own, each drawn token may be accepted with probability
``min(1, p / q)``, p being the model's probability and q the drafter's (Leviathan et al., arXiv:2211.17192; Chen et al.,
arXiv:2302.01318). More tokens are accepted than by ``accept``, and the text still follows the model's own distribution.
But more than one random number is drawn per token, so a seed gives another text than with plain decoding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence as Items
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft

Array = npt.NDArray[Any]


class RandomChoices(Protocol):
    """A source of random choices: ``Sampler.chance``, or a ``Chance`` of the drafter's own."""

    def happens(self, probability: float) -> bool:
        """Return True with this probability."""

    def choose(self, weights: Array) -> int:
        """Return an index with a probability proportional to its weight."""


class TokenLaw(Protocol):
    """What ``accept_ratio`` needs of a sampler."""

    def distribution(self, logits: Array) -> tuple[Array, Array]:
        """Return the token ids that plain decoding would draw from, ascending, and their probabilities."""

    def observe(self, token_id: int) -> None:
        """Remember an emitted token."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A drafter's distribution of the token after one context; siblings share one proposal.

    Attributes:
        token_ids: int64 ``[n]``, each once, in any order; a few of the most likely tokens are enough.
        weights: float64 ``[n]``, above 0 and proportional to the probabilities. They need not sum to 1.
    """

    token_ids: Array
    weights: Array

    @classmethod
    def of(cls, token_ids: Items[int], weights: Items[float]) -> Proposal:
        """Return the proposal of these tokens, leaving out those whose weight is 0."""
        values = np.asarray(weights, np.float64)
        return cls(np.asarray(token_ids, np.int64)[values > 0], values[values > 0])

    def draw(self, count: int, random: RandomChoices) -> tuple[int, ...]:
        """Return at most ``count`` different tokens, drawn one after the other without replacement.

        They are distributed as the Gumbel-top-k trick draws them. The order matters: siblings stand in a draft in the
        order in which they were drawn.

        Args:
            count: at least 0.
            random: random choices of the drafter's own. They must not share a seed with the sampler: drafts must be
                independent of the sampler's choices.
        """
        drawn: list[int] = []
        weights = self.weights.copy()
        for _ in range(min(count, len(weights))):
            index = random.choose(weights)
            weights[index] = 0.0
            drawn.append(int(self.token_ids[index]))
        return tuple(drawn)

    def check(self) -> None:
        """Assert the invariants."""
        assert self.token_ids.shape == self.weights.shape == (len(set(self.token_ids.tolist())),), self
        assert len(self.weights), self
        assert (self.weights > 0).all(), self
        assert np.isfinite(self.weights).all(), self


def accept_ratio(
    draft: Draft,
    proposals: Items[Proposal | None],
    logits: Array,
    sampler: TokenLaw,
    end_ids: Collection[int],
    random: RandomChoices,
) -> Accepted:
    """Accept drafted tokens level by level as long as one of them passes the test, and emit one token more.

    After every token, a distribution r starts as the model's distribution p. The drafted tokens x are tested in the
    order of the draft; q is the distribution that x was drawn from, without its earlier siblings. x is accepted with
    probability ``min(1, r(x) / q(x))``, otherwise r becomes ``norm(max(r - q, 0))``. If none is accepted, the token is
    drawn from r (Jeon et al., Recursive Speculative Decoding, arXiv:2402.14160; Yang et al., Multi-Candidate
    Speculative Decoding, arXiv:2401.06706). For a token that was picked and not drawn, q is 1 on that token.

    The emitted tokens have the distribution of plain decoding if the proposals state correctly how the draft was made.
    That is, if every node, given those with a lower index, was

    * *drawn* from its proposal without the tokens of its earlier siblings, as ``Proposal.draw`` does, or
    * picked, for instance as the most likely token or by a search in the text. Its proposal must be None then, even if
      its drafter knows probabilities: with a proposal that it was not drawn from, the text's distribution is wrong.

    The position of the next node, and whether there is one, may depend on the nodes before it, but not on its own
    token. So a draft may be cut to its first nodes; but drawn siblings must not be sorted, and an unlikely one must not
    be dropped after it was drawn.

    Args:
        proposals: per node the distribution that its token was drawn from, or None if it was picked.
        logits: float32 ``[len(draft) + 1, vocabulary]``: after the last known token, and after every node.
        random: ``Sampler.chance``. A seed repeats the text as long as the drafts are the same.
    """
    assert len(proposals) == len(draft), (len(proposals), len(draft))
    children: dict[int, list[int]] = {}
    for index, parent in enumerate(draft.parents):
        children.setdefault(parent, []).append(index)
    emitted: list[int] = []
    path: list[int] = []
    node: int | None = ROOT
    while node is not None:
        ids, probabilities = sampler.distribution(logits[node + 1])
        token, node = _next_token(ids, probabilities, children.get(node, ()), draft, proposals, random)
        sampler.observe(token)
        emitted.append(token)
        if token in end_ids:
            node = None
        if node is not None:
            path.append(node)
    return Accepted(tuple(emitted), tuple(path), len(draft))


def _next_token(
    ids: Array,
    probabilities: Array,
    nodes: Items[int],
    draft: Draft,
    proposals: Items[Proposal | None],
    random: RandomChoices,
) -> tuple[int, int | None]:
    """Return the token after one context, and its node if it was drafted."""
    rest, total = probabilities, 1.0
    tried: list[int] = []
    for node in nodes:
        token = draft.token_ids[node]
        guessed, q = _without(proposals[node], token, tried)
        places = np.minimum(np.searchsorted(ids, guessed), len(ids) - 1)
        shared = ids[places] == guessed
        mine = guessed == token
        assert mine.any(), (token, proposals[node], tried)
        has = float(rest[places[mine & shared]].sum()) / total
        if random.happens(min(1.0, has / float(q[mine][0]))):
            return token, node
        left = rest.copy()
        left[places[shared]] = np.maximum(left[places[shared]] - q[shared] * total, 0.0)
        rest, total = left, float(left.sum())
        if total <= 0.0:
            # r and q are equal up to rounding: the token was rejected because of rounding alone.
            return token, node
        tried.append(token)
    return int(ids[random.choose(rest)]), None


def _without(proposal: Proposal | None, token: int, tried: list[int]) -> tuple[Array, Array]:
    """Return the tokens among which ``token`` was drawn, and their probabilities."""
    if proposal is None:
        return np.full(1, token, np.int64), np.ones(1)
    ids, weights = proposal.token_ids, proposal.weights
    if tried:
        open_ = ~np.isin(ids, tried)
        ids, weights = ids[open_], weights[open_]
    return ids, weights / weights.sum()
