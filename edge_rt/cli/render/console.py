"""Output of the command line: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TextIO

from edge_rt.errors import StorageError

if TYPE_CHECKING:
    from rich.console import Console


def _visible(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"<U+{code:04X}>"


_CONTROLS: Final = [*range(0x20), *range(0x7F, 0xA0)]
_BIDI: Final = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_TABLE: Final = {
    **{code: _visible(code) for code in (*_CONTROLS, *_BIDI) if chr(code) not in "\n\t\r"},
    ord("\r"): "",
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}


def harmless(text: str) -> str:
    """Return the text with every control character replaced by a visible one.

    Control characters (C0 except newline and tab, DEL, C1) and characters that change the writing direction become
    visible symbols; carriage returns are removed; lone surrogates become U+FFFD. Each character is replaced
    independently, so an escape sequence that arrives in pieces is as harmless as a whole one.
    """
    return text.translate(_TABLE)


Paint = Callable[[str, str], str]
"""Gives a text a style: numbers of ANSI's, separated by semicolons."""
_STYLES: Final = {"dim": "2", "red": "31", "yellow": "33"}
_DUMB: Final = ("dumb", "unknown")
_ASCII_BOXES: Final = str.maketrans({"─": "-", "│": "|", "╭": "+", "╮": "+", "╰": "+", "╯": "+"})
SEPARATOR: Final = " · "
LEAST_COLUMNS: Final = 20
"""Of a text whose lines are broken between words."""


class OutputClosed(Exception):
    """The reader of stdout has closed it."""


class OutputFailed(StorageError):
    """Stdout cannot be written: the disk is full, or stdout is closed."""


class _ClosedOutput(io.StringIO):
    """Replaces stdout in a process that was started without it."""

    def write(self, text: str) -> int:
        del text
        raise OSError(errno.EBADF, "It is closed")


class Terminal:
    """The two output streams of one command."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        quiet: bool = False,
        verbose: bool = False,
        no_color: bool = False,
        is_json: bool = False,
    ) -> None:
        # A process may be started with closed streams; Python then sets them to None.
        self._out: TextIO = out or sys.stdout or _ClosedOutput()
        self._err: TextIO = err or sys.stderr or io.StringIO()
        self.quiet = quiet
        self.verbose = verbose
        self.is_json = is_json
        self.no_color = no_color
        self._live: Console | None = None
        self._is_mid_line = False
        self.out_is_tty = self._out.isatty()
        self.err_is_tty = self._err.isatty()
        for stream in (self._out, self._err):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace" if _is_narrow(stream) else "backslashreplace")
        if verbose:
            logging.basicConfig(level=logging.INFO, stream=self._err, format="%(name)s: %(message)s")

    # --- stdout ---

    def answer(self, text: str) -> None:
        """Write a piece of the answer at once; on a screen its control characters are replaced."""
        self._write(harmless(text) if self.out_is_tty else text)

    def columns(self) -> int:
        """Return the columns of the screen, at present; 80 if they are not known."""
        for stream in (self._out, self._err):
            with suppress(OSError, ValueError):
                return os.get_terminal_size(stream.fileno()).columns or 80
        return 80

    def line(self, text: str = "") -> None:
        """Write one line of the answer."""
        self.answer(text + "\n")

    def page(self, lines: Callable[[int, Paint], Iterable[str]]) -> None:
        """Write a page that is drawn for the screen's columns and painted there; ``NO_COLOR`` leaves bold and dim."""
        paint = _painter(is_screen=self.out_is_tty, no_color=self.no_color)
        page = "".join(f"{line}\n" for line in lines(_page_columns(), paint))
        self._write(page.translate(_ASCII_BOXES) if _is_narrow(self._out) else page)

    def document(self, value: Any, *, indent: int | None = 2) -> None:
        """Write the answer as JSON: one document, or with ``indent=None`` one line."""
        # ASCII escapes are safe on a screen and valid in every encoding.
        escaped = self.out_is_tty or _is_narrow(self._out)
        self._write(json.dumps(value, indent=indent, ensure_ascii=escaped, allow_nan=False) + "\n")

    def table(self, rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> None:
        """Write aligned columns; on a screen the last one is broken between words."""
        cells = [[harmless(cell).replace("\n", " ") for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        begin = sum(widths[:-1]) + 2 * (len(widths) - 1)
        room = self._room(begin) if len(widths) - 1 not in right else None
        for row in cells:
            padded = [
                cell.rjust(width) if index in right else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            last, *more = joined_lines(padded[-1].rstrip().split(" "), " ", room)
            self.line("  ".join([*padded[:-1], last]).rstrip())
            for line in more:
                self.line(" " * begin + line)

    def indented(self, text: str, indent: int = 0) -> None:
        """Write a paragraph behind spaces; on a screen it is broken between words."""
        for line in joined_lines(text.split(" "), " ", self._room(indent)):
            self.line(" " * indent + line)

    def _room(self, begin: int) -> int | None:
        """Return the columns behind a place of the screen; None where lines are not broken."""
        room = self.columns() - begin
        return room if self.out_is_tty and room >= LEAST_COLUMNS else None

    def fresh_line(self) -> None:
        """End an unfinished line of the answer on a screen, if the screen still exists."""
        if self._is_mid_line and self.out_is_tty:
            with suppress(OutputClosed, OutputFailed):
                self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._is_mid_line = not text.endswith("\n")
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError as error:
            raise OutputClosed from error
        except OSError as error:
            raise OutputFailed(
                "Standard output could not be written.",
                f"{error.strerror}.",
                "Check that its target is open and that its disk has free space.",
            ) from error

    # --- stderr ---

    def note(self, text: str = "", style: str = "", *, end: str = "\n") -> None:
        """Write a note that is not part of the answer; nothing with ``-q``."""
        if not self.quiet:
            self._tell(text, style, end)

    def reply(self, text: str = "", style: str = "", *, end: str = "\n") -> None:
        """Write what the user asked for besides answers, such as what a slash command says; with ``-q``, too."""
        self._tell(text, style, end)

    def warn(self, text: str) -> None:
        """Write a warning."""
        self._tell(f"warning: {text}", "yellow")

    def error(self, text: str) -> None:
        """Write an error."""
        self._tell(f"error: {text}", "red")

    def control(self, sequence: str) -> None:
        """Write a terminal control sequence, on a screen only."""
        if self.err_is_tty and not self.quiet:
            self._err.write(sequence)
            self._err.flush()

    def _tell(self, text: str, style: str, end: str = "\n") -> None:
        # A closed stderr must not make the command fail.
        with suppress(BrokenPipeError):
            console = self._live
            if console is None and sys.platform == "win32" and self.err_is_tty and style:
                console = self.rich_console()  # knows consoles that take no sequences
            if console is not None:
                console.print(harmless(text), style=style, end=end, soft_wrap=True)
            elif self.err_is_tty and style:
                paint = _painter(is_screen=True, no_color=self.no_color)
                self._err.write("\n".join(paint(line, _STYLES[style]) for line in harmless(text).split("\n")) + end)
            else:
                self._err.write(harmless(text) + end)
            self._err.flush()

    def rich_console(self) -> Console:
        """Return a rich console on ``err``; it honours ``NO_COLOR`` and ``TERM``."""
        from rich.console import Console

        return Console(
            file=self._err, no_color=True if self.no_color else None, markup=False, emoji=False, highlight=False
        )

    @contextmanager
    def through(self, console: Console) -> Generator[None]:
        """Write to ``err`` through a console that redraws a bar below what it writes."""
        self._live = console
        try:
            yield
        finally:
            self._live = None

    def ask(self, question: str) -> bool:
        """Ask the user a yes-or-no question; anything but yes is no."""
        self._tell(f"{question} [y/N] ", "", end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def _painter(*, is_screen: bool, no_color: bool) -> Paint:
    """Return what paints texts, as far as the environment allows: ``NO_COLOR`` leaves bold and dim."""
    is_painted = (is_screen or bool(os.environ.get("FORCE_COLOR"))) and os.environ.get("TERM") not in _DUMB
    kept = ("1", "2") if no_color or os.environ.get("NO_COLOR") else None

    def paint(text: str, style: str) -> str:
        numbers = [number for number in style.split(";") if kept is None or number in kept]
        return f"\x1b[{';'.join(numbers)}m{text}\x1b[0m" if is_painted and numbers and text.strip() else text

    return paint


def _page_columns() -> int:
    """Return the columns of the screen, also of one that only another stream shows; 80 if there is none."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return int(given)
    for stream in range(3):
        with suppress(OSError):
            return os.get_terminal_size(stream).columns or 80
    return 80


def _is_narrow(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-") not in ("utf-8", "utf8")


def number(value: float) -> str:
    """Return a whole number with spaces between thousands: ``1 240``."""
    return f"{value:,.0f}".replace(",", " ")


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
    """Return parts joined by a separator, on as many lines as they need."""
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
