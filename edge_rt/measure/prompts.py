"""Prompts for measurements and verification, and plain and speculative answers to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge_rt.errors import Cancelled, ContextOverflow, InputError
from edge_rt.package.documents import is_text
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.system.files import read_text
from edge_rt.system.json_files import parse_object

if TYPE_CHECKING:
    from edge_rt.runtime.config import GenerationConfig
    from edge_rt.runtime.model import Model
    from edge_rt.runtime.results import Result

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
    text = turns[0] if isinstance(turns, list) and turns else document.get("prompt", document.get("text"))
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


PLAIN: Final = "off"
"""The mode that the others are compared with."""


@dataclass(frozen=True)
class LeftOut:
    """A prompt that does not fit the context.

    Attributes:
        prompt_tokens: its tokens; a lower bound if it was refused before it was fully encoded.
    """

    prompt: int
    prompt_tokens: int
    requested_tokens: int
    context_tokens: int


def answer_each(
    model: Model,
    prompts: Iterable[Prompt],
    config: GenerationConfig,
    modes: Sequence[str],
    *,
    raw: bool = False,
    cold: bool = False,
    cancel: CancelToken | None = None,
) -> Generator[tuple[Prompt, list[Result] | LeftOut]]:
    """Answer every prompt with every mode of speculation; which mode is first alternates.

    Every answer begins with an empty KV cache and a seed of its own, that of ``config`` plus the prompt's index, so
    that a resumed run gives the same answers. The drafters' tables are emptied first, because those of another run
    might hold the answers already. They are then kept from prompt to prompt, as in normal use, which is also the harder
    case; with ``cold`` they are emptied before every prompt. The reference drafter copies from the prompt's text.

    Args:
        model: a model that is not used elsewhere at the same time.

    Yields:
        The prompt, and its answers in the order of ``modes``.
    """
    token = cancel or CancelToken()
    model.speculation.forget()
    for number, prompt in enumerate(prompts):
        if cold and number:
            model.speculation.forget()
        step = 1 if prompt.index % 2 == 0 else -1
        results = []
        try:
            for mode in modes[::step]:
                model.reset()
                reference = prompt.text if mode == "reference" else None
                asked = config.with_options(seed=(config.seed or 0) + prompt.index, spec=mode, reference=reference)
                results.append(model.generate(prompt.given_to(raw=raw), asked, cancel=token))
                if token.cancelled:
                    raise Cancelled("Stopped on request.")
        except ContextOverflow as error:
            yield prompt, LeftOut(prompt.index, error.prompt_tokens, error.requested_tokens, error.context_tokens)
        else:
            yield prompt, results[::step]


def steps_of(result: Result) -> int:
    """Return the verification passes after an answer's first token; without statistics there is one per token."""
    return result.spec.steps if result.spec is not None else max(len(result.token_ids) - 1, 0)


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> tuple[int, int | None, int | None] | None:
    """Return position, plain and speculative token of the first difference of two answers; None if they are equal.

    A token is None where that answer has ended.
    """
    pairs = enumerate(zip_longest(plain, speculative))
    return next(((position, a, b) for position, (a, b) in pairs if a != b), None)
