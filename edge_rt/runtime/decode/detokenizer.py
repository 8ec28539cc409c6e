"""Streaming detokenizer: only whole characters are released, and stop texts never are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenDecoder(Protocol):
    """Turns tokens into text one at a time."""

    def push(self, token_id: int) -> str:
        """Return the text that became complete with this token."""

    def flush(self) -> str:
        """Return what is left of an incomplete character."""


class TextStream:
    """Text of an answer, released as soon as no stop text can begin in it.

    Attributes:
        stop_string: the stop text that was found, or None.
    """

    def __init__(self, decoder: TokenDecoder, stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._held = ""
        self.text = ""
        self.stop_string: str | None = None

    def push(self, token_ids: Sequence[int]) -> str:
        """Add tokens and return the text that may be shown."""
        return self._advance("".join(self._decoder.push(token) for token in token_ids))

    def finish(self) -> str:
        """Return everything that is still held back."""
        shown = self._advance(self._decoder.flush())
        if self.stop_string is None:
            self.text += self._held
            shown, self._held = shown + self._held, ""
        return shown

    def _advance(self, new: str) -> str:
        if self.stop_string is not None:
            return ""
        self._held += new
        found = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            # The stop text that is complete first wins, then the longest: the cut into tokens makes no difference.
            at, self.stop_string = min(found, key=lambda item: (item[0] + len(item[1]), item[0]))
            shown, self._held = self._held[:at], ""
        else:
            keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
            cut = len(self._held) - keep
            shown, self._held = self._held[:cut], self._held[cut:]
        self.text += shown
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
