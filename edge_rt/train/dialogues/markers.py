"""What a chat template writes around the turns of a conversation, as token ids."""

from __future__ import annotations

from dataclasses import dataclass

from edge_rt.errors import UnsupportedModel
from edge_rt.runtime.prompts import PromptEncoder
from edge_rt.text.rendered import RenderedPrompt

_TURNS = ("one", "two", "three")


@dataclass(frozen=True)
class Markers:
    """What stands before a turn.

    Attributes:
        first_user: before the first user turn, the system message included.
        answer: between a user turn and the answer to it.
        next_user: between an answer and the next user turn; empty if the template's text after an answer is not known.
        ends: tokens that end a turn.
    """

    first_user: tuple[int, ...]
    answer: tuple[int, ...]
    next_user: tuple[int, ...]
    ends: frozenset[int]


def find_markers(texts: PromptEncoder) -> Markers:
    """Return the markers of a package's chat template.

    Raises:
        UnsupportedModel: it does not write the text of user turns as it is.
    """
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, _TURNS, strict=True)]
    rendered = texts.render(messages)
    # What the template writes: before the first turn, between them, and after the last one.
    places: list[int] = []
    for text in _TURNS:
        start = rendered.text.find(text, places[-1] if places else 0)
        if start < 0:
            raise UnsupportedModel(
                "The chat template does not show where turns begin.",
                f"A turn of {text!r} is not in what it writes for a conversation of {len(_TURNS)} turns.",
                "Train with --data FILE.",
            )
        places += (start, start + len(text))
    first_user, answer, next_user, last = (
        _encode(texts, rendered, begin, end)
        for begin, end in zip((0, *places[1::2]), (*places[::2], len(rendered.text)), strict=True)
    )
    ends = {*texts.tokenizer.eos_token_ids}
    ends |= {ids[0] for ids in (answer, next_user, last) if ids and ids[0] in texts.tokenizer.special_ids}
    return Markers(tuple(first_user), tuple(last), tuple(next_user), frozenset(ends))


def _encode(texts: PromptEncoder, rendered: RenderedPrompt, begin: int, end: int) -> list[int]:
    part = rendered.text[begin:end]
    return texts.tokenizer.encode_spans([(part, True)]) if part else []
