"""User turns from a list of prompts, in place of those that the model writes itself."""

from __future__ import annotations

import random
from collections.abc import Sequence

from edge_rt.train.dialogues.tasks import Opening


class Prompts:
    """Draws prompts in random order, each once before any comes again.

    Args:
        prompts: at least one.
        rng: draws.
    """

    def __init__(self, prompts: Sequence[str], rng: random.Random) -> None:
        self._prompts, self._rng = list(prompts), rng
        self._left: list[str] = []
        self._rounds = 0

    def first(self) -> Opening:
        """Return the next prompt."""
        if not self._left:
            self._left = self._rng.sample(self._prompts, len(self._prompts))
            self._rounds += 1
        return Opening(self._left.pop(), is_whole=True, is_repeated=self._rounds > 1)

    def next(self) -> Opening | None:
        """Return None: a conversation is over with its first answer."""
        return None

    def learn(self, answer: str) -> None:
        """Do nothing: prompts do not depend on answers."""
        del answer
