"""The thoughts of a model: what it writes between markers of its own, before its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final


@dataclass(frozen=True)
class ThoughtMarkers:
    """How a model marks its thoughts.

    Attributes:
        begin: text in front of the thoughts; they begin an answer, or there are none.
        answer: text in front of an answer without thoughts; empty if there is none.
        is_open: whether the prompt ends with ``begin``, so that the answer begins with thoughts.
        is_begun: whether the prompt ends in the middle of thoughts.
    """

    begin: str
    end: str
    answer: str = ""
    is_open: bool = False
    is_begun: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The markers that there are."""
        return tuple(text for text in (self.begin, self.end, self.answer) if text)


_HARMONY_ANSWER: Final = "<|channel|>final<|message|>"
KNOWN_MARKERS: Final = (
    ThoughtMarkers("<think>", "</think>"),
    ThoughtMarkers("[THINK]", "[/THINK]"),
    ThoughtMarkers("<|channel>thought\n", "<channel|>"),
    ThoughtMarkers("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtMarkers("<seed:think>", "</seed:think>"),
    ThoughtMarkers(
        "<|channel|>analysis<|message|>", f"<|end|><|start|>assistant{_HARMONY_ANSWER}", answer=_HARMONY_ANSWER
    ),
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
    return [*begun, (reasoning, False), (line + markers.end + 2 * line, True), (content, False)]


class ThoughtStream:
    """Takes the text of an answer apart, into thoughts and answer, however it is cut into pieces.

    White space around the thoughts belongs to neither.

    Args:
        markers: of the model; None for one without thoughts, whose text passes as it is.
        is_exact: whether white space behind the thoughts is a part of the answer, as where that has a format.
    """

    def __init__(self, markers: ThoughtMarkers | None, *, is_exact: bool = False) -> None:
        self._markers = markers
        self._behind = "answer" if is_exact else "answer start"
        self._held = ""
        if markers is None:
            self._state = "answer"
        else:
            self._state = "thought" if markers.is_begun else "thought start" if markers.is_open else "start"
        self.reasoning = ""
        self.text = ""

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
            if state == "answer":
                answer += self._held
                self._held = ""
            elif state == "thought":
                thoughts += self._thought(is_end)
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
        """Decide whether the answer begins with thoughts."""
        assert self._markers is not None
        begun = self._held.lstrip()
        for marker, state in ((self._markers.begin, "thought start"), (self._markers.answer, "answer")):
            wanted = marker.rstrip()
            if marker and begun.startswith(wanted):
                self._held, self._state = begun[len(wanted) :], state
                return
        could_be = any(marker.startswith(begun) for marker in (self._markers.begin, self._markers.answer) if marker)
        if is_end or not could_be:
            self._state = "answer"

    def _thought(self, is_end: bool) -> str:
        """Return thoughts up to their end, or up to where it, or the white space in front of it, may begin."""
        assert self._markers is not None
        end = self._markers.end
        at = self._held.find(end)
        if at >= 0:
            shown, self._held = self._held[:at].rstrip(), self._held[at + len(end) :]
            self._state = self._behind
            return shown
        held = self._held if is_end else self._held[: len(self._held) - _overlap(self._held, end)]
        shown = held.rstrip()
        self._held = "" if is_end else self._held[len(shown) :]
        return shown


def _overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of a text that is a proper beginning of a marker."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)


_MAX_CALLS: Final = 128
_BEGIN: Final = "<tool_call>"
_END: Final = "</tool_call>"
_PYTHON_TAG: Final = "<|python_tag|>"


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants to have called.

    Attributes:
        name: the function.
        arguments: its arguments, a JSON object.
    """

    name: str
    arguments: dict[str, Any]


def tool_names(tools: Iterable[object] | None) -> frozenset[str] | None:
    """Return the names of tools; None if one of them has none that is known, or there are no tools.

    Args:
        tools: descriptions of functions: ``{"type": "function", "function": {"name": ...}}`` or ``{"name": ...}``.
    """
    names: set[str] = set()
    for tool in tools or ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            return None
        names.add(name)
    return frozenset(names) or None


def parse_tool_calls(text: str, names: Container[str] | None = None) -> tuple[ToolCall, ...]:
    """Return the calls in an answer; what is malformed, or names a function that there is not, is no call.

    Two forms are known: that of Qwen, ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, and that of
    Llama 3, an answer that is one JSON object or several with ``;`` between them, with ``"parameters"`` instead of
    ``"arguments"``, and ``<|python_tag|>`` in front of them or not. Arguments may be absent or null.

    Args:
        names: of the functions; None: any.
    """
    return split_tool_calls(text, names)[1]


def split_tool_calls(text: str, names: Container[str] | None = None) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of an answer without its calls and the white space around it, and the calls.

    Without calls the text is the answer as it is. Arguments are those of ``parse_tool_calls``.
    """
    rest, calls = _tagged(text, names) if _BEGIN in text else _bare(text, names)
    return (rest.strip(), calls) if calls else (text, ())


def _tagged(text: str, names: Container[str] | None) -> tuple[str, tuple[ToolCall, ...]]:
    rest: list[str] = []
    calls: list[ToolCall] = []
    decoder = json.JSONDecoder()
    done = at = 0
    for _ in range(_MAX_CALLS):
        begin = text.find(_BEGIN, at)
        if begin < 0:
            break
        body = _skip_blanks(text, begin + len(_BEGIN))
        value = None
        # The end may occur in a text within the JSON, so that is read first.
        try:
            value, at = decoder.raw_decode(text, body)
        except (ValueError, RecursionError):
            at = body
        at = _skip_blanks(text, at)
        is_whole = at == len(text) or text.startswith(_END, at)
        call = _call(value, names) if is_whole else None
        found = text.find(_END, at)
        at = len(text) if found < 0 else found + len(_END)
        if call is not None:
            rest.append(text[done:begin])
            calls.append(call)
            done = at
    return "".join([*rest, text[done:]]), tuple(calls)


def _bare(text: str, names: Container[str] | None) -> tuple[str, tuple[ToolCall, ...]]:
    before, tag, rest = text.partition(_PYTHON_TAG)
    if not tag:
        before, rest = "", text
    rest = rest.strip()
    calls: list[ToolCall] = []
    decoder = json.JSONDecoder()
    while rest.startswith("{") and len(calls) < _MAX_CALLS:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return text, ()
        call = _call(value, names)
        if call is None:
            return text, ()
        calls.append(call)
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    # Text behind the objects means that they were part of an explanation.
    return (text, ()) if rest else (before, tuple(calls))


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _call(value: Any, names: Container[str] | None) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    if names is not None and value["name"] not in names:
        return None
    arguments: Any = next((value[key] for key in ("arguments", "parameters") if value.get(key) is not None), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
        arguments = {} if arguments is None else arguments
    return ToolCall(value["name"], arguments) if isinstance(arguments, dict) else None
