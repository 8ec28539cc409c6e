"""Parsing of what is typed in a chat: a message, a command, or several lines that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

QUOTES: Final = '"""'


@dataclass(frozen=True)
class Entry:
    """One message or command that was typed."""

    kind: Literal["message", "command", "nothing"]
    text: str


def needs_more(text: str) -> bool:
    r"""Return whether the input continues on the next line: inside ``\"\"\"``, or after a backslash at a line's end."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return len(stripped) < 2 * len(QUOTES) or not stripped.endswith(QUOTES)
    return text.endswith("\\")


def parse_entry(text: str) -> Entry:
    """Parse a complete input."""
    stripped = text.strip()
    if len(stripped) >= 2 * len(QUOTES) and stripped.startswith(QUOTES) and stripped.endswith(QUOTES):
        inner = stripped[len(QUOTES) : -len(QUOTES)].removeprefix("\n").removesuffix("\n")
        return Entry("message", inner) if inner.strip() else Entry("nothing", "")
    joined = text.replace("\\\n", "\n").strip()
    if not joined:
        return Entry("nothing", "")
    if joined.startswith("//"):
        return Entry("message", joined[1:])
    return Entry("command" if joined.startswith("/") else "message", joined)
