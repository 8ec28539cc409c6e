"""Lines broken between words, for text that comes in pieces and goes to a screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

TAB: Final = 8


class WordWrap:
    """Breaks lines before the word that would not fit; a word is held back until it is complete.

    Characters that take two columns, as those of Chinese and Japanese, are words of their own. A word that is longer
    than a line is cut.
    """

    def __init__(self, write: Callable[[str], None], columns: Callable[[], int]) -> None:
        self._write = write
        self._columns = columns
        self._column = 0
        self._spaces = ""
        self._word = ""

    def push(self, text: str) -> None:
        """Take a piece of text, and write the words that it completes."""
        out: list[str] = []
        # The last column stays free: where the cursor stands behind it differs between terminals.
        room = max(1, self._columns() - 1)
        for character in text:
            if character == "\n":
                self._place(out, room)
                out.append("\n")
                self._column, self._spaces = 0, ""
            elif character.isspace() and character != "\N{NO-BREAK SPACE}":
                self._place(out, room)
                self._spaces += character
            else:
                wide = _width(character) > 1
                if wide or _width(self._word) >= room:
                    self._place(out, room)
                self._word += character
                if wide:
                    self._place(out, room)
        if out:
            self._write("".join(out))

    def finish(self) -> None:
        """Write what was held back; the next text is a new one."""
        out: list[str] = []
        self._place(out, max(1, self._columns() - 1))
        if out:
            self._write("".join(out))
        self._column, self._spaces = 0, ""

    def _place(self, out: list[str], room: int) -> None:
        """Put the word on this line or the next one."""
        if not self._word:
            return
        width = _width(self._word)
        begin = self._column
        for space in self._spaces:
            begin = (begin // TAB + 1) * TAB if space == "\t" else begin + 1
        if begin + width > room and self._column:
            out += ["\n", self._word]
            self._column = width
        else:
            out += [self._spaces, self._word]
            self._column = begin + width
        self._spaces = self._word = ""


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def joined_lines(parts: Sequence[str], separator: str, columns: int | None) -> list[str]:
    """Return parts joined by a separator, on as many lines as they need.

    Args:
        parts: what is joined; none is broken.
        columns: of a line; None: it may be as long as it gets.
    """
    if columns is None:
        return [separator.join(parts)] if parts else []
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{separator}{part}" if lines else part
        if lines and _width(longer) < columns:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines
