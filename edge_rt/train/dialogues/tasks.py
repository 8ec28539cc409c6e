"""What user turns are about: openings that the model continues, and tasks on texts that it wrote before.

A model that is only shown its own user marker writes what it was trained on most. Openings make it write about other
things as well; passages of its own earlier answers, and German sentences put together from a small grammar, give it
texts to work on. All of it is in ``openings.json``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, Protocol

LEAST_PASSAGE: Final = 350
"""Characters of an answer that is kept as a passage."""
_LEAST_WORDS: Final = 50
_MOST_PASSAGES: Final = 3000
_FEW_PASSAGES: Final = 40
_SHARES: Final = (
    ("nothing", 0.08),
    ("chat", 0.20),
    ("code", 0.04),
    ("question", 0.09),
    ("arithmetic", 0.10),
    ("article", 0.05),
    ("translation", 0.12),
    ("passage", 0.20),
    ("question on a passage", 0.12),
)


@dataclass(frozen=True)
class Opening:
    """The beginning of a user turn.

    Attributes:
        is_whole: whether it is the whole turn; otherwise the model continues it.
        is_repeated: whether it came before, and so has its greedy answer already.
    """

    text: str
    is_whole: bool
    is_repeated: bool = False


class Openings(Protocol):
    """Where user turns come from."""

    def first(self) -> Opening:
        """Return the opening of a conversation."""

    def next(self) -> Opening | None:
        """Return the opening of a later user turn; None ends the conversation."""

    def learn(self, answer: str) -> None:
        """Take note of a long answer."""


class Tasks:
    """Draws openings.

    Args:
        rng: draws; with the same seed and the same passages the openings are the same.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._texts: dict[str, Any] = json.loads((files(__package__) / "openings.json").read_text(encoding="utf-8"))
        self._passages: list[str] = []

    def learn(self, answer: str) -> None:
        """Keep an answer as a passage for later tasks, if it is long and does not repeat itself."""
        answer = answer.strip()
        if len(answer) < LEAST_PASSAGE or len(set(answer.split())) < _LEAST_WORDS:
            return
        if len(self._passages) >= _MOST_PASSAGES:
            self._passages.pop(self._rng.randrange(_MOST_PASSAGES // 2))
        self._passages.append(answer)

    def first(self) -> Opening:
        """Return the opening of a conversation."""
        kinds, shares = zip(*_SHARES, strict=True)
        kind = self._rng.choices(kinds, shares)[0]
        if len(self._passages) < _FEW_PASSAGES and "passage" in kind:
            kind = "article"
        if kind == "nothing":
            return Opening("", is_whole=False)
        if kind == "translation":
            return Opening(self._one("translate") + self._german(), is_whole=True)
        if kind == "passage":
            return Opening(self._one("on_passage").replace("{passage}", self._passage(400, 2200)), is_whole=True)
        if kind == "question on a passage":
            return Opening(f"{self._passage(300, 2000)}\n{self._one('ask')}", is_whole=False)
        name, other = self._rng.sample(self._texts["names"], 2)
        text = self._one(kind).replace("{name}", name).replace("{other}", other)
        return Opening(text, is_whole=False)

    def next(self) -> Opening:
        """Return the opening of a later user turn."""
        return Opening(self._one("next"), is_whole=False)

    def _one(self, kind: str) -> str:
        choices: Sequence[str] = self._texts[kind]
        return self._rng.choice(choices)

    def _passage(self, least: int, most: int) -> str:
        """Return a piece of text of about ``least`` to ``most`` characters, cut at the end of a sentence mostly."""
        size = self._rng.randint(least, most)
        text = self._rng.choice(self._passages)
        while len(text) < size:
            text += "\n" * self._rng.choice((1, 2)) + self._rng.choice(self._passages)
        text = text[:size]
        end = max(text.rfind(". "), text.rfind(".\n")) + 1
        return text[:end] if end > size // 2 and self._rng.random() < 0.7 else text

    def _german(self) -> str:
        grammar, rng = self._texts["german"], self._rng
        sentences = []
        for _ in range(1 if rng.random() < 0.75 else 2):
            infinitive, participle = rng.choice(grammar["verbs"])
            auxiliary, order = rng.choice(grammar["orders"])
            place, subject = rng.choice(grammar["places"]), rng.choice(grammar["subjects"])
            rest = order.format(
                object=rng.choice(grammar["objects"]), place=place, infinitive=infinitive, participle=participle
            )
            if place not in rest and rng.random() < 0.5:
                begin = f"{place[0].upper()}{place[1:]} {auxiliary} {subject[0].lower()}{subject[1:]}"
            else:
                begin = f"{subject} {auxiliary}"
            sentences.append(f"{begin} {rest}{rng.choice(grammar['ends'])}")
        return " ".join(sentences)
