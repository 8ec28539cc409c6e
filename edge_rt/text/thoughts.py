"""The thoughts of a model: what it writes between markers of its own, before its answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True)
class ThoughtMarkers:
    """How a model marks its thoughts.

    Attributes:
        begin: text in front of the thoughts; they begin an answer, or there are none.
        answer: text in front of an answer, with thoughts or without; empty if there is none. What calls tools has
            another one in its place, which is a part of its text.
        is_open: whether the prompt ends with ``begin``, so that the answer begins with thoughts.
        is_begun: whether the prompt ends in the middle of thoughts.

    With a text in front of answers, thoughts and answers are messages in channels. An answer may have several:
    thoughts, what is said before a call (in the channel of calls, but to nobody), and the call itself.
    """

    begin: str
    end: str
    answer: str = ""
    is_open: bool = False
    is_begun: bool = False

    @property
    def has_channels(self) -> bool:
        """Whether an answer is messages in channels."""
        return bool(self.answer)

    @property
    def texts(self) -> tuple[str, ...]:
        """The markers that there are."""
        return tuple(text for text in (self.begin, self.end, self.answer) if text)


KNOWN_MARKERS: Final = (
    ThoughtMarkers("<think>", "</think>"),
    ThoughtMarkers("[THINK]", "[/THINK]"),
    ThoughtMarkers("<|channel>thought\n", "<channel|>"),
    ThoughtMarkers("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtMarkers("<seed:think>", "</seed:think>"),
    ThoughtMarkers("<|channel|>analysis<|message|>", "<|end|><|start|>assistant", answer="<|channel|>final<|message|>"),
)


def find_markers(source: str, token_id: Callable[[str], int | None], prompt: str = "") -> ThoughtMarkers | None:
    """Return the markers of a model.

    Args:
        token_id: id of a token by its text: a template of a model that thinks need not mention it.

    Returns:
        None if the model has no markers that are known.
    """
    for markers in KNOWN_MARKERS:
        first = markers.begin.split("thought")[0].split("analysis")[0]
        last = markers.end.split("<|start|>")[0]
        in_source = first in source and (last in source or markers.end in source)
        if in_source or all(token_id(text) is not None for text in (markers.begin, markers.end)):
            return replace(markers, is_open=prompt.rstrip().endswith(markers.begin.rstrip()))
    return None


def answer_so_far(markers: ThoughtMarkers | None, reasoning: str, content: str) -> list[tuple[str, bool]]:
    """Return an answer that is not at its end as the model would have written it: texts, and whether one is a marker.

    Args:
        markers: of the model, behind the prompt that the answer follows.
        reasoning: its thoughts; they are at their end if there is any content.
    """
    if markers is None or not (reasoning or (content and markers.is_open)):
        return [(content, False)]
    # Models that think between these two words write them on lines of their own.
    line = "\n" if markers.begin == "<think>" else ""
    begun = [] if markers.is_open else [(markers.begin + line, True)]
    if not content:
        return [*begun, (reasoning, False)]
    return [*begun, (reasoning, False), (line + markers.end + 2 * line + markers.answer, True), (content, False)]


_HEAD: Final = re.compile(r"<\|channel\|>\s*(\w+)\s*(?:<\|constrain\|>\s*\w+\s*)?<\|message\|>")
"""Of a message to the user, or to nobody."""
_TO_TOOL: Final = re.compile(r"(?:<\|channel\|>\s*\w+\s+)?to=")
_MAY_BE_HEAD: Final = re.compile(r"<\|channel\|>\s*\w*\s*(?:to?|<[\w|<>\s]{0,60})?")
_FIRSTS: Final = ("<|channel|>", "to=")
"""What a head begins with."""


class ThoughtStream:
    """Takes the text of an answer apart, into thoughts and answer, however it is cut into pieces.

    White space around the thoughts belongs to neither. Of messages in channels the texts are returned without their
    heads, a blank line between two; a call is returned as it is, with its head.

    Args:
        markers: of the model; None for one without thoughts, whose text passes as it is.
        is_exact: whether white space behind the thoughts is a part of the answer, as where that has a format.
    """

    def __init__(self, markers: ThoughtMarkers | None, *, is_exact: bool = False) -> None:
        self._markers = markers
        self._behind = "answer" if is_exact else "answer start"
        self._held = ""
        self._is_parted = False
        if markers is None:
            self._state = "answer"
        else:
            if markers.has_channels:
                self._behind = "start"
            self._state = "thought" if markers.is_begun else "thought start" if markers.is_open else "start"
        self.reasoning = ""
        self.text = ""

    @property
    def is_answering(self) -> bool:
        """Whether the answer's text has begun."""
        return self._state in ("answer", "message", "call")

    @property
    def has_channels(self) -> bool:
        """Whether the answer is messages in channels."""
        return self._markers is not None and self._markers.has_channels

    @property
    def is_calling(self) -> bool:
        """Whether a message to a tool has begun, in a channel."""
        return self._state == "call"

    @property
    def num_held(self) -> int:
        """Characters that are held back, until it is certain what they belong to."""
        return len(self._held)

    def push(self, text: str) -> tuple[str, str]:
        """Add text; return the thoughts and the answer that are certain now."""
        return self._take(text, is_end=False)

    def finish(self) -> tuple[str, str]:
        """Return the thoughts and the answer that were held back."""
        return self._take("", is_end=True)

    def _take(self, text: str, *, is_end: bool) -> tuple[str, str]:
        self._held += text
        thoughts = answer = ""
        while self._held:
            state = self._state
            if state in ("answer", "call"):
                answer += self._held
                self._held = ""
            elif state in ("thought", "message"):
                shown = self._message(is_end, strips=state == "thought")
                if state == "thought":
                    thoughts += self._parted(shown, self.reasoning + thoughts)
                else:
                    answer += self._parted(shown, self.text + answer)
            elif state == "start":
                self._start(is_end)
            else:
                # White space behind a marker; what follows decides nothing.
                self._held = self._held.lstrip()
                if self._held:
                    self._state = "thought" if state == "thought start" else "answer"
            if self._state == state:
                break
        self.reasoning += thoughts
        self.text += answer
        return thoughts, answer

    def _start(self, is_end: bool) -> None:
        """Decide whether the answer begins with thoughts, or what the next of its messages is."""
        assert self._markers is not None
        begun = self._held.lstrip()
        if self._markers.has_channels:
            self._head(begun, is_end)
            return
        for marker, state in ((self._markers.begin, "thought start"), (self._markers.answer, "answer")):
            wanted = marker.rstrip()
            if marker and begun.startswith(wanted):
                self._held, self._state = begun[len(wanted) :], state
                return
        could_be = any(marker.startswith(begun) for marker in (self._markers.begin, self._markers.answer) if marker)
        if is_end or not could_be:
            self._state = "answer"

    def _head(self, begun: str, is_end: bool) -> None:
        """Decide what a message is by its head."""
        head = _HEAD.match(begun)
        if _TO_TOOL.match(begun):
            self._state = "call"
        elif head is not None:
            self._held = begun[head.end() :]
            self._state = "thought start" if head[1] == "analysis" else "message"
            self._is_parted = True
        elif is_end or not (_MAY_BE_HEAD.fullmatch(begun) or any(one.startswith(begun) for one in _FIRSTS)):
            self._state = "answer"

    def _parted(self, shown: str, before: str) -> str:
        """Return a text of a message; its first one is parted from messages of its kind that came before."""
        if not shown or not self._is_parted:
            return shown
        self._is_parted = False
        return f"\n\n{shown}" if before else shown

    def _message(self, is_end: bool, *, strips: bool) -> str:
        """Return a text up to its end marker, or up to where it may begin.

        Args:
            strips: whether white space in front of the marker belongs to no text.
        """
        assert self._markers is not None
        end = self._markers.end
        at = self._held.find(end)
        if at >= 0:
            shown, self._held = self._held[:at], self._held[at + len(end) :]
            self._state = self._behind
            return shown.rstrip() if strips else shown
        held = self._held if is_end else self._held[: len(self._held) - overlap(self._held, end)]
        shown = held.rstrip() if strips else held
        self._held = "" if is_end else self._held[len(shown) :]
        return shown


def overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of a text that is a proper beginning of a marker."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)
