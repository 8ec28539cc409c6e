"""Drafts of a head: a small trained network that guesses from the model's last hidden state, in one call."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Items
from typing import Final

import numpy as np

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.drafters.forest import NO_GUESSES, Forest, ForestSource
from edge_rt.runtime.drafters.head_runner import HeadRunner
from edge_rt.runtime.graph.outputs import Outputs

BOUNDS: Final = (0.06, 0.12, 0.2, 0.32, 0.5, 0.7, 0.9)
"""Between the probabilities of two kinds."""
_LEVELS: Final = len(BOUNDS) + 1
_DEPTHS: Final = 3
_LOG_BOUNDS: Final = tuple(np.log(BOUNDS).tolist())


class HeadSource(ForestSource):
    """Guesses what a head finds likely after the last accepted token, and after its own guesses.

    The head runs once in a step, when the guesses are asked for. It starts from the hidden state of the row that chose
    the last token, which ``observe`` finds in the outputs; without it, as in the first step behind a cache that was
    restored, nothing is guessed. A kind is a depth (1, 2, 3 and more) and a level of the head's own probability.

    Args:
        runner: runs the head.
        nodes: most nodes of its tree.
        width: most guesses after a node.
        depth: steps of the head.
    """

    name = "head"
    num_kinds = _DEPTHS * _LEVELS

    def __init__(self, runner: HeadRunner, *, nodes: int = 8, width: int = 8, depth: int = 1) -> None:
        self._runner = runner
        self._limits = (nodes, width, depth)
        # Set by ``observe`` with the runner's state; ``extend`` must add these tokens for it to hold.
        self._emitted: tuple[int, ...] = ()
        self._is_known = False
        self._made: Forest | None = None

    def prior(self, kind: int) -> float:
        """Return the middle of the kind's probabilities, as if the head were always right about them."""
        bounds, level = (0.0, *BOUNDS, 1.0), kind % _LEVELS
        return (bounds[level] + bounds[level + 1]) / 2

    def begin(self, token_ids: Items[int]) -> None:
        """Add the known tokens to what the head can guess; until the next step there is no state to guess from."""
        self._forget()
        self._runner.add_tokens(token_ids)

    def extend(self, token_ids: Items[int]) -> None:
        """Move past emitted tokens; other ones than those observed have no known state."""
        self._is_known = bool(self._emitted) and tuple(token_ids) == self._emitted
        self._made = None

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Keep the hidden state of the last accepted row."""
        del draft, context
        self._forget()
        if outputs.hidden is not None:
            row = accepted.path[-1] - ROOT if accepted.path else 0
            self._runner.state[:] = outputs.hidden[row]
            self._emitted = accepted.token_ids

    def forest(self) -> Forest:
        """Run the head if it did not in this step; return its guesses, none where the last state is not known."""
        if self._made is None:
            self._made = self._guess() if self._is_known else NO_GUESSES
        return self._made

    def _guess(self) -> Forest:
        found = self._runner.grow(self._runner.state, self._emitted[-1], *self._limits)
        kinds = [
            (min(depth, _DEPTHS) - 1) * _LEVELS + bisect_right(_LOG_BOUNDS, log_prob)
            for depth, log_prob in zip(found.depths, found.log_probs, strict=True)
        ]
        return Forest.of(found.ids, found.parents, kinds)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the head's weights, of its reduced matrices and of a step."""
        return self._runner.memory_bytes

    def _forget(self) -> None:
        self._emitted, self._is_known, self._made = (), False, None
