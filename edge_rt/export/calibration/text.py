"""The calibration text for the constants of 4-bit keys: the built-in one, or one that a user names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import InputError, InvalidTemplate
from edge_rt.package.manifest import BUILT_IN_CALIBRATION, KeyCalibration
from edge_rt.package.reader import stored_name
from edge_rt.system.files import read_text
from edge_rt.system.json_files import parse_json
from edge_rt.text.template import ChatTemplate
from edge_rt.text.template_messages import ROLES
from edge_rt.text.tokenizer import Tokenizer

CALIBRATION_TOKENS: Final = 2048
"""Most tokens that are used; the rest of a text is ignored."""
LEAST_TOKENS: Final = 512
"""Least tokens of a text, if the context has room for that many."""

_FILE: Final = Path(__file__).with_name("calibration.json")
_MAX_CHARACTERS: Final = 1 << 18  # enough for the tokens that are used, and quick to read
# Templates may write the date; the same checkpoint gives the same bytes on every day.
_NOON: Final = datetime(2025, 1, 1, 12)

Conversation = list[dict[str, str]]


@dataclass(frozen=True)
class CalibrationText:
    """A calibration text and its origin.

    Attributes:
        conversations: each a list of messages with ``role`` and ``content``; empty for a plain text.
    """

    source: str
    conversations: tuple[Conversation, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Calibration:
    """A calibration text in a model's tokens."""

    source: str
    token_ids: tuple[int, ...]

    def to_manifest(self) -> KeyCalibration:
        """Return its entry in the manifest."""
        return KeyCalibration(len(self.token_ids), self.source)


def read_calibration(calibration: Path | str) -> CalibrationText:
    """Read ``BUILT_IN_CALIBRATION``, a JSON file with conversations, or any other text file."""
    if calibration == BUILT_IN_CALIBRATION:
        return CalibrationText(BUILT_IN_CALIBRATION, _conversations(_FILE, _read(_FILE)))
    path = Path(calibration)
    text = _read(path)
    if path.suffix.lower() == ".json":
        return CalibrationText(stored_name(path), _conversations(path, text))
    return CalibrationText(stored_name(path), text=text)


def _read(path: Path) -> str:
    # Some editors begin a file with a byte order mark.
    return read_text(path, called="The calibration text ").removeprefix("\ufeff")


def _conversations(path: Path, text: str) -> tuple[Conversation, ...]:
    def refuse(reason: str) -> InputError:
        what = f"The calibration text {path} is not JSON."
        return InputError(what, reason, "Give it another suffix if it is plain text.")

    conversations = parse_json(text, refuse)
    if not isinstance(conversations, list) or not conversations or not all(map(_is_conversation, conversations)):
        raise InputError(
            f"The calibration text {path} is not a list of conversations.",
            "Each must be a list of objects with the texts 'role' and 'content'.",
            "Correct the file, or give a plain text.",
        )
    for number, conversation in enumerate(conversations):
        for index, message in enumerate(conversation):
            _check_message(path, f"message {index} of conversation {number}", message)
    return tuple(conversations)


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(
            isinstance(message, dict)
            and set(message) == {"role", "content"}
            and all(isinstance(text, str) for text in message.values())
            for message in value
        )
    )


def _check_message(path: Path, place: str, message: dict[str, str]) -> None:
    if message["role"] not in ROLES:
        raise InputError(
            f"The calibration text {path} has an unknown role.",
            f"In {place}: {message['role'][:40]!r}; known: {', '.join(sorted(ROLES))}.",
            "Use one of these roles.",
        )
    try:
        message["content"].encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"The calibration text {path} has a lone surrogate, which is not a character.",
            f"In {place}: character {error.start} of the content.",
            "Remove the character.",
        ) from error


def encode_calibration(
    text: CalibrationText, tokenizer: Tokenizer, template: str | None, context_length: int
) -> Calibration:
    """Write the text as the model would see it, and encode it.

    Conversations go through the model's chat template; without one that works, their contents are joined by blank
    lines.
    """
    least = min(LEAST_TOKENS, context_length)
    ids = _rendered(text.conversations, tokenizer, template)
    if len(ids) < least:
        contents = [message["content"] for conversation in text.conversations for message in conversation]
        ids = tokenizer.encode_prompt((text.text or "\n\n".join(contents))[:_MAX_CHARACTERS])
    if len(ids) < least:
        raise InputError(
            f"The calibration text {text.source} is too short.",
            f"It has {len(ids)} tokens, {least} are needed and {min(CALIBRATION_TOKENS, context_length)} are used.",
            "Give a longer text, such as some answers of the kind that you expect.",
        )
    return Calibration(text.source, tuple(ids[: min(CALIBRATION_TOKENS, context_length)]))


def _rendered(conversations: tuple[Conversation, ...], tokenizer: Tokenizer, source: str | None) -> list[int]:
    """Return the tokens of the conversations, one after another; None without a template that works."""
    if not conversations or source is None:
        return []
    bos = tokenizer.bos_token_id
    ids: list[int] = []
    try:
        template = ChatTemplate(
            source,
            special_tokens=tokenizer.special_tokens,
            bos_token="" if bos is None else tokenizer.id_to_token(bos) or "",
            eos_token=(tokenizer.id_to_token(tokenizer.eos_token_ids[0]) or "") if tokenizer.eos_token_ids else "",
            clock=lambda: _NOON,
        )
        for conversation in conversations:
            if len(ids) < CALIBRATION_TOKENS:
                ids += tokenizer.encode_rendered(template.render(conversation, add_generation_prompt=False))
    except InvalidTemplate:
        return []
    return ids
