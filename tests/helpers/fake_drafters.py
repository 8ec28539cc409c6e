"""A network that drafts, without one: guesses that come from hidden states."""

from __future__ import annotations

from edge_rt.runtime.decode.draft import ROOT
from edge_rt.runtime.speculation.source import Guess
from tests.helpers.fake_sources import SourceBase


class StateSource(SourceBase):
    """Guesses tokens from the bits of the hidden state of the last accepted row; keeps every state that it saw."""

    def __init__(self, vocabulary):
        super().__init__("head")
        self.states = []
        self._vocabulary, self._state = vocabulary, None

    def observe(self, draft, accepted, outputs, context):
        super().observe(draft, accepted, outputs, context)
        assert outputs.hidden is not None
        row = accepted.path[-1] - ROOT if accepted.path else 0
        self._state = outputs.hidden[row].copy()
        self.states.append(self._state)

    def root(self):
        return None if self._state is None else 0

    def children(self, cursor):
        token = int(abs(self._state[cursor]) * 1e4) % len(self._vocabulary)
        return [Guess(self._vocabulary[token], 0, cursor + 1)] if cursor < 4 else []
