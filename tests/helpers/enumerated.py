"""Laws computed exactly: a random procedure is run once for every way its choices can fall."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np

from edge_rt.runtime.decode.draft import ROOT
from edge_rt.runtime.decode.sampling import Sampler


class Replay:
    """Makes the random choices that a script tells, and the first possible ones behind its end.

    Attributes:
        probability: of all choices made so far.
        others: scripts of the choices that were possible instead, behind the end of this one.
    """

    def __init__(self, script=()):
        self.probability = 1.0
        self.others = []
        self._script = script
        self._made = []

    def happens(self, probability):
        assert 0.0 <= probability <= 1.0
        return self.choose([probability, 1.0 - probability]) == 0

    def choose(self, weights):
        total = math.fsum(weights)
        possible = [index for index, weight in enumerate(weights) if weight > 0.0]
        assert possible, weights
        step = len(self._made)
        if step < len(self._script):
            index = self._script[step]
            assert index in possible, (index, weights)
        else:
            index = possible[0]
            self.others += [(*self._made, other) for other in possible[1:]]
        self._made.append(index)
        self.probability *= float(weights[index]) / total
        return index


def law(procedure):
    """Return value -> probability of ``procedure(replay)``."""
    result = defaultdict(float)
    scripts = [()]
    while scripts:
        replay = Replay(scripts.pop())
        value = procedure(replay)
        result[value] += replay.probability
        scripts += replay.others
    return dict(result)


class ReplayedSampler:
    """The real sampler, with choices from a replay: what ``accept`` and ``accept_ratio`` ask for."""

    def __init__(self, replay, config, vocabulary, prompt):
        self._replay = replay
        self._sampler = Sampler(config, vocabulary, prompt)
        self.distribution = self._sampler.distribution
        self.observe = self._sampler.observe

    def sample(self, logits):
        ids, probabilities = self.distribution(logits)
        return int(ids[self._replay.choose(probabilities)])


class TinyModel:
    """Logits that depend on the history, for a vocabulary small enough to enumerate.

    Args:
        seed: of the logits.
        vocabulary: number of tokens.
        config: the sampler's options.
        prompt: tokens before the answer.
        end_ids: tokens behind which nothing follows.
    """

    def __init__(self, seed, vocabulary, config, *, prompt=(0, 1), end_ids=()):
        self.vocabulary = vocabulary
        self.config = config
        self.prompt = prompt
        self.end_ids = end_ids
        self._seed = seed
        self._known = {}

    def logits(self, answer):
        seed = [self._seed, *(1 + token for token in answer)]
        return (np.random.default_rng(seed).standard_normal(self.vocabulary) * 1.5).astype(np.float32)

    def rows(self, draft):
        """Return the logits behind the last known token and behind every node of a draft."""
        histories = {ROOT: ()}
        for node, (token, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
            histories[node] = (*histories[parent], token)
        return np.stack([self.logits(histories[node]) for node in range(ROOT, len(draft))])

    def sampler(self, replay):
        return ReplayedSampler(replay, self.config, self.vocabulary, self.prompt)

    def plain(self, answer):
        """Return token -> probability of what plain decoding emits behind an answer."""
        if answer in self._known:
            return self._known[answer]
        sampler = self.sampler(Replay())
        for token in answer:
            sampler.observe(token)
        ids, probabilities = sampler.distribution(self.logits(answer))
        self._known[answer] = dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
        return self._known[answer]

    def error(self, outcomes, length):
        """Return how far a law of emitted tokens, gone on with by plain decoding, is from plain decoding's.

        Args:
            outcomes: emitted tokens, at most ``length``, -> probability.
            length: of the answers to compare; shorter where a token ends them.
        """
        assert max(map(len, outcomes)) <= length
        plain, found = defaultdict(float), defaultdict(float)
        self._go_on({(): 1.0}, length, plain)
        self._go_on(outcomes, length, found)
        return max(abs(plain[answer] - found[answer]) for answer in itertools.chain(list(plain), list(found)))

    def _go_on(self, outcomes, length, into):
        pending = dict(outcomes)
        while pending:
            answer, probability = pending.popitem()
            if len(answer) == length or (answer and answer[-1] in self.end_ids):
                into[answer] += probability
                continue
            for token, share in self.plain(answer).items():
                longer = (*answer, token)
                pending[longer] = pending.get(longer, 0.0) + probability * share
