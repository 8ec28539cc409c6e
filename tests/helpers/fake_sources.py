"""Sources of guesses whose quality is known, the trees they grow, and a clock that a test turns."""

from __future__ import annotations

import random

import numpy as np

from edge_rt.runtime.decode.draft import ROOT, Accepted
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.source import Guess
from tests.helpers.fake_model import VOCABULARY, FakeTarget


class Clock:
    """Seconds that pass only when somebody says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, ms):
        self.now += 1e-3 * ms


class SourceBase:
    """What all fake sources share.

    Attributes:
        begun: what every ``begin`` was given.
        observed: (draft, accepted, rows of outputs, context) of every step.
        known: all known tokens.
    """

    memory_bytes = 1000

    def __init__(self, name="fake", priors=(0.5,)):
        self.name = name
        self.num_kinds = len(priors)
        self.begun, self.observed, self.known = [], [], []
        self._priors = priors

    def prior(self, kind):
        return self._priors[kind]

    def begin(self, token_ids):
        self.begun.append(tuple(token_ids))
        self.known = list(token_ids)

    def extend(self, token_ids):
        self.known.extend(token_ids)

    def observe(self, draft, accepted, outputs, context):
        assert outputs.logits.shape[0] == len(draft) + 1
        self.observed.append((draft, accepted, tuple(self.known), context))


class RandomSource(SourceBase):
    """Guesses a few tokens that a seed and the path to them determine."""

    def __init__(self, seed, *, name="random", priors=(0.9, 0.6, 0.3, 0.1), tokens=6, most=4, silent=0.2):
        super().__init__(name, priors)
        self._seed, self._tokens, self._most, self._silent = seed, tokens, most, silent

    def root(self):
        return None if random.Random(f"{self._seed}").random() < self._silent else ()

    def children(self, cursor):
        draws = random.Random(f"{self._seed} {cursor}")
        if draws.random() < self._silent:
            return []
        ids = draws.sample(range(self._tokens), draws.randint(0, self._most))
        return [Guess(token, draws.randrange(self.num_kinds), (*cursor, token)) for token in ids]


class OracleSource(SourceBase):
    """Knows a text and guesses its next token, truly or not.

    Args:
        text: prompt and answer.
        truthful: called with a position in the text: whether to tell the truth about it.
        lie: what is added to the true token for a lie.
        clock: of the drafting; a forest takes ``ms``.
    """

    def __init__(
        self, text, truthful, *, name="oracle", priors=(0.5,), kind=lambda position: 0, lie=1, clock=None, ms=0.0
    ):
        super().__init__(name, priors)
        self._lie = lie
        self._text, self._truthful, self._kind, self._clock, self._ms = text, truthful, kind, clock, ms

    def root(self):
        if self._clock is not None:
            self._clock.sleep(self._ms)
        return len(self.known)

    def children(self, cursor):
        if cursor >= len(self._text):
            return []
        token = self._text[cursor]
        if not self._truthful(cursor):
            token = (token + self._lie) % VOCABULARY
        return [Guess(token, self._kind(cursor), cursor + 1)]


class TimedTarget(FakeTarget):
    """A fake model whose passes take time.

    Args:
        clock: is moved on by every pass.
        costs: how much, by rows; the depth does not matter.
    """

    def __init__(self, clock, costs):
        super().__init__()
        self._clock, self._ms = clock, costs.curve(costs.depths[0], 64)

    def forward(self, token_ids, start, num_logits, *, parents=None):
        self._clock.sleep(self._ms[min(len(token_ids), len(self._ms)) - 1])
        return super().forward(token_ids, start, num_logits, parents=parents)


def linear_costs(first=4.0, per_row=0.4, rows=64):
    """Return costs that rise by the same for every row, at every depth."""
    return RowCosts((1, rows), (0,), ((first, first + (rows - 1) * per_row),))


WRONG = 1 << 20
"""A token that no source guesses."""


def accept_all(tree, is_right):
    """Return the outcome of a tree, given which tokens are right at which node: ``is_right(node)``."""
    path, node = [], ROOT
    while True:
        children = [child for child, parent in enumerate(tree.draft.parents) if parent == node and is_right(child)]
        if not children:
            break
        node = children[0]
        path.append(node)
    tokens = [tree.draft.token_ids[node] for node in path]
    return Accepted((*tokens, WRONG), tuple(path), len(tree.draft))


def outputs_of(probabilities, top=8):
    """Return the outputs of a pass whose rows have these probabilities: ``[rows, vocabulary]``, not all zeros."""
    shares = np.asarray(probabilities, np.float64)
    logits = np.log(np.maximum(shares, 1e-12)).astype(np.float32)
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :top].astype(np.int32)
    sums = np.log(np.exp(logits.astype(np.float64)).sum(-1)).astype(np.float32)
    return Outputs(logits, TopTokens(ids, np.take_along_axis(logits, ids, -1), sums))
