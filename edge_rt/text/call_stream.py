"""Calls of tools in an answer that is still being written: its text, and the calls piece by piece.

What is a call for certain only when it is whole is held back: behind a mark until the answer's end, where all calls are
known; an object that an answer begins with, until it is seen to be none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from edge_rt.text import python_calls, xml_calls
from edge_rt.text.call_syntaxes import HARMONY_HEAD, PYTHON_TAG, SYNTAXES
from edge_rt.text.thoughts import overlap
from edge_rt.text.tool_calls import ToolCall, Tools, split_tool_calls

_LONGEST_HEAD: Final = 4096
_BLANK: Final = " \t\r\n"
_JSON_HEAD: Final = re.compile(
    r'[\s\[,;]*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_PLAIN_HEAD: Final = re.compile(r"\s*([^\s\[\]{},]+)\s*(?:\[CALL_ID\][^\s\[\]{}]*)?\s*(?:\[ARGS\])?\s*(?=\{)")
_NAMED: Final = {
    "xml": (xml_calls.HEAD, xml_calls.next_argument),
    "python": (python_calls.HEAD, python_calls.next_argument),
}
"""Notation with named values -> what is in front of them, and what reads the next one."""
_MARKS: Final = tuple(dict.fromkeys(syntax.mark for syntax in SYNTAXES if syntax.mark))


@dataclass(frozen=True)
class CallPiece:
    """A piece of a call.

    Attributes:
        index: which call of the answer, from 0 on.
        name: the function, with the first piece of a call; None with later ones.
        arguments: what is added to the JSON text of the arguments.
    """

    index: int
    name: str | None
    arguments: str


class CallStream:
    """Takes the text of an answer apart, into text and calls, however it is cut into pieces.

    Args:
        tools: functions that it may call; None: all is text.
        begun: text of the answer that the prompt ends with.
    """

    def __init__(self, tools: Tools | None, begun: str = "") -> None:
        self._tools = tools
        syntax = None if tools is None else tools.syntax
        # Whatever a template teaches, calls of other syntaxes are read as well.
        self._marks = () if tools is None else (*_MARKS, PYTHON_TAG)
        self._taught = () if syntax is None or not syntax.mark else (syntax.mark,)
        # Calls in Gemma's notation, or whose way of writing is unknown, are read when they are whole.
        self._named = None if syntax is None else _NAMED.get(syntax.notation)
        self._is_pieced = syntax is not None and (syntax.notation == "json" or self._named is not None)
        self._name, self._num_arguments = "", 0
        self._head = _JSON_HEAD if self._named is None else self._named[0]
        if self._named is None and syntax is not None and syntax.has_plain_names:
            self._head = HARMONY_HEAD if "<|message|>" in syntax.call[1] else _PLAIN_HEAD
        self._closers = () if syntax is None else tuple(filter(None, (*syntax.marks, syntax.close, syntax.end)))
        self._is_bare = syntax is not None and not syntax.mark
        self._state = "begin"
        if tools is None or begun.strip():
            self._state = "all text" if tools is None else "text"
            if any(mark in begun for mark in (*self._marks, "{")):
                self._state = "whole"
        self._held = self._mark = ""
        self._num_calls = 0
        self._seen = self._scanned = 0
        self._depth, self._in_text, self._is_escaped = 0, False, False

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._num_calls

    def push(self, text: str) -> tuple[str, tuple[CallPiece, ...]]:
        """Add text; return the text and the pieces of calls that are certain now."""
        if self._state == "all text":
            return text, ()
        self._held += text
        shown: list[str] = []
        pieces: list[CallPiece] = []
        while self._held and self._step(shown, pieces):
            pass
        return "".join(shown), tuple(pieces)

    def finish(self, calls: Sequence[ToolCall]) -> tuple[str, tuple[CallPiece, ...]]:
        """Return the rest of the text, and what of the answer's calls was not returned yet.

        Args:
            calls: all calls of the answer.
        """
        rest = tuple(
            CallPiece(index, call.name, json.dumps(call.arguments, ensure_ascii=False))
            for index, call in enumerate(calls)
            if index >= self._num_calls
        )
        held, self._held = self._held, ""
        if self._state in ("head", "whole", "object"):
            held = self._mark + held
            if rest and self._tools is not None:
                held = split_tool_calls(held, self._tools.names)[0]
        is_blank = not held.strip() and (calls or self._num_calls)
        return "" if is_blank or self._state in ("behind", "named") else held, rest

    def _step(self, shown: list[str], pieces: list[CallPiece]) -> bool:
        """Take what is certain from the text that is held; return whether there may be more."""
        if self._state == "begin":
            return self._begin()
        if self._state == "text":
            return self._find_mark(shown)
        if self._state == "head":
            return self._read_head(pieces)
        if self._state == "arguments":
            return self._read_arguments(pieces)
        if self._state == "named":
            return self._read_named(pieces)
        if self._state == "behind":
            return self._read_behind()
        if self._state == "object":
            return self._read_object()
        return False  # "whole": the end tells

    def _begin(self) -> bool:
        """Decide whether an answer begins with what may be a call that no mark shows."""
        text = self._held.lstrip()
        if not text:
            return False
        self._state = "text"
        if text.startswith("{"):
            self._state = "head" if self._is_bare and self._is_pieced else "object"
        return True

    def _read_object(self) -> bool:
        """Decide whether objects that an answer begins with may be calls: only if there is nothing else in it."""
        at = self._seen
        while at < len(self._held) and self._held[at] in _BLANK + ";" * bool(at):
            at += 1
        inner = self._held[at + 1 :].lstrip()[:1]
        if at == len(self._held) or (self._held[at] == "{" and not inner):
            return False
        if self._held[at] != "{" or inner != '"':
            return self._is_text()
        self._scanned = max(self._scanned, at)
        end = self._scan(self._scanned)
        self._scanned = len(self._held) if end is None else end
        if end is None:
            return False
        if not split_tool_calls(self._held[at:end], None if self._tools is None else self._tools.names)[1]:
            return self._is_text()
        self._seen = end
        return True

    def _is_text(self) -> bool:
        self._state = "text"
        return True

    def _scan(self, start: int) -> int | None:
        """Return where the object that is read ends; None: not yet."""
        for at in range(start, len(self._held)):
            character = self._held[at]
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_text:
                self._is_escaped = character == "\\"
                self._in_text = character != '"'
            elif character == '"':
                self._in_text = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return at + 1
        return None

    def _find_mark(self, shown: list[str]) -> bool:
        found = min(
            ((at, mark) for mark in self._marks if (at := self._held.find(mark)) >= 0),
            default=None,
        )
        if found is None:
            keep = max((overlap(self._held, mark) for mark in self._marks), default=0)
            # White space in front of a call is no part of the text.
            body = self._held[: len(self._held) - keep]
            kept = body.rstrip(_BLANK) if self._marks else body
            shown.append(kept)
            self._held = self._held[len(kept) :]
            return False
        at, mark = found
        shown.append(self._held[:at].rstrip(_BLANK))
        self._mark, self._held = mark, self._held[at + len(mark) :]
        is_taught = mark in self._taught or (mark == PYTHON_TAG and self._is_bare)
        self._state = "head" if self._is_pieced and is_taught else "whole"
        return True

    def _read_head(self, pieces: list[CallPiece]) -> bool:
        head = self._head.match(self._held)
        if head is None:
            if len(self._held) <= _LONGEST_HEAD and self._may_be_head():
                return False
            return self._give_up()
        try:
            name = json.loads(head[1]) if self._head is _JSON_HEAD else head[1]
        except ValueError:
            return self._give_up()
        names = None if self._tools is None else self._tools.names
        if names is not None and name not in names:
            return self._give_up()
        pieces.append(CallPiece(self._num_calls, name, ""))
        self._num_calls += 1
        self._marks = self._taught
        self._held = self._held[head.end() :]
        self._state, self._depth, self._in_text, self._is_escaped = "arguments", 0, False, False
        if self._named is not None:
            self._state, self._name, self._num_arguments = "named", name, 0
        return True

    def _may_be_head(self) -> bool:
        """Return whether the text that is held may go on as the head of a call."""
        if self._named is not None:
            # JSON between the same marks is read when it is whole.
            return not self._held.lstrip(_BLANK + "[").startswith("{")
        if self._head is not _JSON_HEAD:
            return True
        text = self._held.lstrip(_BLANK + "[,;")
        first = text[1:].lstrip()[:6]
        return not text or (text[0] == "{" and any(word.startswith(first) for word in ('"name"', '"type"')))

    def _give_up(self) -> bool:
        """Leave to the end what is no call, as it seems; without a mark to the end of the object."""
        self._state = "object" if self._is_bare and not self._mark and not self._num_calls else "whole"
        return self._state == "object"

    def _read_arguments(self, pieces: list[CallPiece]) -> bool:
        end = self._scan(0)
        text = self._held if end is None else self._held[:end]
        pieces.append(CallPiece(self._num_calls - 1, None, text))
        self._held = self._held[len(text) :]
        if end is not None:
            self._state = "behind"
        return end is not None

    def _read_named(self, pieces: list[CallPiece]) -> bool:
        """Read an argument that has a name, or the end of the call."""
        assert self._named is not None
        names = None if self._tools is None else self._tools.names
        try:
            found = self._named[1](self._held, None if names is None else names.get(self._name))
        except ValueError:
            self._mark, self._state = "", "whole"
            return False
        if found is None:
            return False
        argument, end = found
        text = "}" if self._num_arguments else "{}"
        if argument is not None:
            key, value = (json.dumps(one, ensure_ascii=False) for one in argument)
            text = f"{', ' if self._num_arguments else '{'}{key}: {value}"
            self._num_arguments += 1
        else:
            self._state = "behind"
        pieces.append(CallPiece(self._num_calls - 1, None, text))
        self._held = self._held[end:]
        return True

    def _read_behind(self) -> bool:
        """Skip what closes a call; find the next one, or text."""
        if self._head is python_calls.HEAD and self._held.lstrip().startswith(","):
            self._mark, self._held, self._state = "", self._held.lstrip()[1:], "head"
            return True
        text = self._held.lstrip(_BLANK + "}],;")
        if not text:
            self._held = ""
            return False
        for mark in self._marks:
            if text.startswith(mark):
                self._mark, self._held, self._state = mark, text[len(mark) :], "head"
                return True
        for closer in self._closers:
            if text.startswith(closer):
                self._held = text[len(closer) :]
                return True
        if any(closer.startswith(text) for closer in (*self._closers, *self._marks)):
            self._held = text
            return False
        if text.startswith("{"):
            self._mark, self._held, self._state = "", text, "head"
            return True
        self._held, self._state = text, "text"
        return True
