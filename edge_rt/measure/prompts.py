"""Prompts for measurements and verification: read from a file, or a few built-in ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_rt.errors import InputError
from edge_rt.package.documents import is_text
from edge_rt.system.files import read_text
from edge_rt.system.json_files import parse_object

MAX_PROMPTS_BYTES: Final = 64 << 20
NO_CATEGORY: Final = "all"


@dataclass(frozen=True)
class Prompt:
    """One user message.

    Attributes:
        index: its index among all prompts of the file, from 0.
        category: kind of the request; ``"all"`` if the file has none.
    """

    index: int
    text: str
    category: str = NO_CATEGORY

    def given_to(self, *, raw: bool) -> str | Sequence[Mapping[str, str]]:
        """Return the input of the model: the raw text, or a message for the chat template."""
        return self.text if raw else [{"role": "user", "content": self.text}]


_BUILT_IN: Final = {
    "prose": "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "facts": "Why is the sky blue during the day and red in the evening? Explain it to a child.",
    "list": "List the numbers from one to forty, one on each line, as digits and as words.",
    "code": "Write a Python function that returns the prime numbers below n, and a test for it.",
    "edit": (
        "Repeat the following text word for word, but with every 'boat' changed to 'ship': The boat left the harbour "
        "at dawn. The boat was small, but the sea was calm, and the people on the boat were happy. At noon the boat "
        "came to an island, and everybody left the boat to look for water."
    ),
    "summary": (
        "Summarise in two sentences: The town council met on Tuesday to talk about the old bridge. Engineers said that "
        "it could carry cars for ten more years if the pillars were mended this summer. The mayor wanted a new bridge, "
        "which would cost four times as much. After three hours the council decided to mend the pillars."
    ),
}
"""Category -> text."""


def built_in_prompts() -> list[Prompt]:
    """Return a few prompts of different kinds; enough for a check, too few for figures to report."""
    return [Prompt(index, text, category) for index, (category, text) in enumerate(_BUILT_IN.items())]


def read_prompts(path: Path) -> list[Prompt]:
    """Read a file of prompts.

    Its lines are either JSON objects or plain texts, one prompt per line. An object has ``turns`` (a list of messages,
    of which the first is used, as in Spec-Bench) or ``prompt``, and optionally ``category``. Empty lines are skipped.

    Raises:
        StorageError: the file cannot be read.
        InputError: it is too large, not UTF-8, has no prompt, or a line is malformed.
    """
    # Editors on Windows may write a byte order mark before the text.
    text = read_text(path.expanduser(), MAX_PROMPTS_BYTES).removeprefix("\ufeff")
    # Not splitlines, which also splits at other characters that JSON texts may hold.
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise InputError(f"{path} holds no prompt.", "Every line is empty.", "Write one prompt per line.")
    if not lines[0][1].startswith("{"):
        return [Prompt(index, line) for index, (_, line) in enumerate(lines)]
    return [_from_json(path, number, index, line) for index, (number, line) in enumerate(lines)]


def texts_hash(prompts: Sequence[Prompt]) -> str:
    """Return the SHA-256 of the texts of prompts in order, as hexadecimal digits."""
    return hashlib.sha256(json.dumps([prompt.text for prompt in prompts]).encode()).hexdigest()


def _from_json(path: Path, number: int, index: int, line: str) -> Prompt:
    document = parse_object(line, lambda reason: _malformed(path, number, f"it is not a JSON object: {reason[:-1]}"))
    turns = document.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else document.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise _malformed(path, number, "it has neither 'turns' nor 'prompt' with a text")
    if not is_text(text):
        raise _malformed(path, number, "its text has a lone surrogate, which is not a character")
    category = document.get("category", NO_CATEGORY)
    if not isinstance(category, str):
        raise _malformed(path, number, "its 'category' is not a text")
    return Prompt(index, text, category)


def _malformed(path: Path, number: int, reason: str) -> InputError:
    return InputError(
        f"{path} is not a file of prompts.",
        f"Line {number}: {reason:.200}.",
        "Write a JSON object with 'turns' or 'prompt' on every line, or a plain text on every line.",
    )
