"""What is typed while an answer runs: shown in the last line of the screen, and kept for the next prompt."""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from edge_rt.cli.interrupt import SignalReceived, signals_held
from edge_rt.cli.render.console import Terminal

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

LEAST_ROWS: Final = 4
"""Of a screen on which a line can be spared."""
READ_BYTES: Final = 4096
SUSPEND: Final = "\x1a"
ENTER: Final = " ⏎ "
_ESCAPE: Final = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O.|.)?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class TypeAhead:
    """Reads keys during answers, as far as ``poll`` is called.

    Keys are kept as they came: editing, completion and history are the next prompt's. The screen shows a likeness.
    Windows has no use for it: its console keeps keys that nobody reads, and shows them when the next prompt does.

    Args:
        kept: returns keys that a prompt has read and not used, and forgets them.
    """

    def __init__(self, terminal: Terminal, descriptor: int, kept: Callable[[], str] = lambda: "") -> None:
        self._terminal = terminal
        self._descriptor = descriptor
        self._kept = kept
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._keys = ""
        self._saved: list[Any] | None = None
        self._size: os.terminal_size | None = None
        self._can_draw = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")

    @contextmanager
    def listening(self) -> Generator[None]:
        """Take the keyboard for the time of an answer; Ctrl-C stays a signal."""
        self._keys += self._kept()
        try:
            self._take_keyboard()
            self._show()
            yield
            self.poll()
        finally:
            try:
                self._hide()
            finally:
                # Twice: a signal may end the first call before the keyboard is given back, and the second does nothing
                # where it was.
                try:
                    self._give_keyboard_back()
                finally:
                    self._give_keyboard_back()

    def poll(self) -> None:
        """Read what was typed since the last call; does not wait."""
        typed = self._read()
        if SUSPEND in typed:
            typed = typed.replace(SUSPEND, "")
            self._suspend()
        if typed:
            self._keys += typed
        if typed or (self._size is not None and self._size != self._screen()):
            self._show()

    def _read(self) -> str:
        typed = ""
        # A terminal that was lost has nothing more to say; that it was lost is told by a signal.
        with suppress(OSError):
            while select.select([self._descriptor], [], [], 0)[0] and (data := os.read(self._descriptor, READ_BYTES)):
                typed += self._decoder.decode(data)
        return typed

    def take(self) -> str:
        """Return the keys, as a terminal sends them, and forget them."""
        keys, self._keys = self._keys, ""
        return keys

    # --- the keyboard ---

    def _take_keyboard(self) -> None:
        if sys.platform == "win32":
            return
        import termios

        self._saved = termios.tcgetattr(self._descriptor)
        mode = termios.tcgetattr(self._descriptor)
        mode[0] &= ~termios.ICRNL
        mode[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        # Ctrl-Z is a key, so that the screen is put in order before the process stops.
        mode[6][termios.VSUSP] = b"\0"
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, mode)

    def _give_keyboard_back(self) -> None:
        if sys.platform == "win32":
            return
        import termios

        if self._saved is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._saved)
            self._saved = None

    def _suspend(self) -> None:
        if sys.platform == "win32":
            return
        self._hide()
        self._give_keyboard_back()
        os.kill(0, signal.SIGTSTP)
        self._take_keyboard()
        self._show()

    # --- the screen ---

    def _screen(self) -> os.terminal_size:
        try:
            return os.get_terminal_size(self._descriptor)
        except OSError:
            return os.terminal_size((0, 0))

    def _show(self) -> None:
        size = self._screen()
        if not self._can_draw or not self._keys or size.lines < LEAST_ROWS:
            return
        draw = ""
        if self._size != size:
            # The last line is taken out of what scrolls; before that the cursor must not stand in it.
            draw = f"\x1bD\x1b[A\x1b7\x1b[1;{size.lines - 1}r\x1b8"
            self._size = size
        text = _last_columns(f">>> {likeness(self._keys)}", size.columns - 1)
        shade, plain = ("", "") if self._terminal.no_color else ("\x1b[2m", "\x1b[0m")
        self._terminal.control(f"{draw}\x1b7\x1b[{size.lines};1H\x1b[2K{shade}{text}{plain}\x1b8")

    def _hide(self) -> None:
        if self._size is not None:
            self._terminal.control(f"\x1b7\x1b[r\x1b[{self._size.lines};1H\x1b[2K\x1b8")
            self._size = None


@contextmanager
def no_echo() -> Generator[None]:
    """Do not echo keys that are typed during an answer; they are read afterwards."""
    # Windows echoes keys when they are read, not when they are typed.
    if sys.platform == "win32" or sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    silent = termios.tcgetattr(descriptor)
    silent[3] &= ~termios.ECHO
    try:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def type_ahead_of(session: PromptSession[str], terminal: Terminal) -> TypeAhead | None:
    """Return what reads keys between the prompts of a session; None where a console keeps them for the next one."""
    if sys.platform == "win32":
        return None
    from prompt_toolkit.input.typeahead import get_typeahead

    return TypeAhead(
        terminal, sys.stdin.fileno(), lambda: "".join(press.data for press in get_typeahead(session.app.input))
    )


def prompt_after(session: PromptSession[str], type_ahead: TypeAhead | None, prompt: str) -> str:
    """Read an entry; what was typed ahead comes first, as if it were typed now."""
    if type_ahead is None:
        return read_entry(session, prompt)
    from prompt_toolkit.input.typeahead import store_typeahead
    from prompt_toolkit.input.vt100_parser import Vt100Parser
    from prompt_toolkit.key_binding.key_processor import KeyPress

    presses: list[KeyPress] = []
    parser = Vt100Parser(presses.append)
    parser.feed(type_ahead.take())
    parser.flush()
    store_typeahead(session.app.input, presses)
    return read_entry(session, prompt)


def read_entry(session: PromptSession[str], prompt: str) -> str:
    """Read an entry; a signal ends the reading through the event loop, between two of its steps."""
    app = session.app
    stops: list[SignalReceived] = []

    def leave() -> None:
        if stops and app.is_running and not app.is_done:
            app.exit(exception=stops[0])

    def note(stop: SignalReceived) -> None:
        stops.append(stop)
        # Without a loop the application does not run yet, or no more.
        if app.loop is not None:
            app.loop.call_soon_threadsafe(leave)

    with signals_held(note):
        return session.prompt(prompt, pre_run=leave)


def likeness(keys: str) -> str:
    """Return about the text that keys will give: lines with what ended them, the usual ways to delete carried out."""
    lines = [""]
    for key in _ESCAPE.sub("", keys):
        if key in "\r\n":
            lines.append("")
        elif key in "\x7f\x08":
            lines[-1] = lines[-1][:-1]
        elif key == "\x15":
            lines[-1] = ""
        elif key == "\x17":
            lines[-1] = re.sub(r"\S+\s*$", "", lines[-1])
        else:
            lines[-1] += _CONTROL.sub("", key)
    return ENTER.join(lines)


def _last_columns(text: str, columns: int) -> str:
    """Return the end of a text that fits a number of columns."""
    from prompt_toolkit.utils import get_cwidth

    width, at = 0, len(text)
    while at and (width := width + get_cwidth(text[at - 1])) <= columns:
        at -= 1
    return text[at:]
