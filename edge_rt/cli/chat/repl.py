"""The chat at a terminal: reading lines, and handling Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth, create_output

from edge_rt.cli.chat.settings import OPTION_NAMES
from edge_rt.cli.chat.slash_commands import SHOW_TOPICS, Commands, LeaveChat
from edge_rt.cli.render.console import Terminal
from edge_rt.errors import Cancelled, EdgeRTError

if TYPE_CHECKING:
    from edge_rt.cli.chat.conversation import Conversation


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


PROMPT: Final = ">>> "
CONTINUATION: Final = "... "
PLACEHOLDER: Final = "Send a message (/help for commands)"
LEAVE_SECONDS: Final = 1.0
"""Two Ctrl-C at an empty prompt within this many seconds leave the chat."""
EXIT_INTERRUPTED: Final = 130
MOST_EDITS: Final = 64
"""Most edits that can be undone. Each is a copy of the whole text: for a line of 6,000 keys they would take 18 MB."""


class PrivateHistory(FileHistory):
    """History of typed lines, in a file that only its owner can read; a full disk does not end a chat."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        super().__init__(str(path))
        self._warn = warn
        self._is_broken = False

    def store_string(self, string: str) -> None:
        """Add a line to the file."""
        if self._is_broken:
            return
        try:
            super().store_string(string)
        except OSError as error:
            self._is_broken = True
            self._warn(f"the history is not kept: {error.strerror}")


def open_history(path: Path, warn: Callable[[str], None]) -> History:
    """Return the history in a private file, or one in memory if the file cannot be used."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError as error:
        warn(f"the history is not kept: {path}: {error.strerror}")
        return InMemoryHistory()
    return PrivateHistory(path, warn)


def default_history_path() -> Path:
    """Return the default path of the chat history."""
    import platformdirs

    return platformdirs.user_state_path("edge-rt") / "history"


class CommandCompleter(Completer):
    """Completes commands, their arguments and file names, when Tab is pressed."""

    def __init__(self, commands: Commands, models: Callable[[], list[str]]) -> None:
        paths = PathCompleter(expanduser=True)
        self._names = WordCompleter(list(commands.table), sentence=True)
        self._arguments: dict[str, Completer] = {
            "/save": paths,
            "/load": paths,
            "/read": paths,
            "/model": WordCompleter(models, sentence=True),
            "/show": WordCompleter(list(SHOW_TOPICS)),
            "/set": WordCompleter(list(OPTION_NAMES)),
            "/stats": WordCompleter(["on", "off"]),
            "/think": WordCompleter(["on", "off"]),
        }

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield the completions at the cursor."""
        before = document.text_before_cursor
        if not before.startswith("/"):
            return
        name, space, rest = before.partition(" ")
        completer = self._names if not space else self._arguments.get(name)
        if completer is not None:
            inner = document if not space else Document(rest.lstrip())
            yield from completer.get_completions(inner, complete_event)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if needs_more(buffer.text):
            buffer.cursor_position = len(buffer.text)
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _alt_enter(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-g")
    def _edit(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    @bindings.add("c-c")
    @bindings.add("<sigint>")
    def _interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return bindings


def _placeholder() -> AnyFormattedText:
    # It is erased from the screen when an empty prompt is left.
    return [] if get_app().is_done else [("ansibrightblack", PLACEHOLDER)]


def make_session(
    terminal: Terminal, commands: Commands, history: History, models: Callable[[], list[str]]
) -> PromptSession[str]:
    """Return the session that reads lines; it writes to stderr, because stdout is for answers."""
    is_dumb = os.environ.get("TERM") in ("dumb", "unknown")
    session: PromptSession[str] = PromptSession(
        history=history,
        completer=CommandCompleter(commands, models),
        complete_while_typing=False,
        key_bindings=_bindings(),
        multiline=True,
        prompt_continuation=CONTINUATION,
        placeholder=_placeholder,
        output=None if is_dumb else create_output(stdout=sys.stderr),
        color_depth=ColorDepth.DEPTH_1_BIT if terminal.no_color else None,
        tempfile_suffix=".txt",
    )
    session.default_buffer.on_text_changed += _forget_old_edits
    return session


def _forget_old_edits(buffer: Buffer) -> None:
    del buffer._undo_stack[:-MOST_EDITS]


class Repl:
    """Reads and answers until the user leaves.

    Args:
        read: returns the next text; raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C at an empty prompt.
    """

    def __init__(
        self,
        conversation: Conversation,
        commands: Commands,
        read: Callable[[], str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conversation = conversation
        self._terminal = conversation.terminal
        self._commands = commands
        self._read = read
        self._clock = clock

    def run(self) -> int:
        """Return the exit code: 0, or 130 after two Ctrl-C."""
        interrupted_at = float("-inf")
        while True:
            try:
                text = self._read()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                if self._clock() - interrupted_at < LEAVE_SECONDS:
                    return EXIT_INTERRUPTED
                interrupted_at = self._clock()
                self._terminal.reply("Use Ctrl-D or /exit to leave.", "dim")
                continue
            try:
                self._handle(text)
            except LeaveChat:
                return 0
            except Cancelled:
                self._terminal.control("\r\x1b[K")
                self._terminal.reply("stopped", "dim")
            except EdgeRTError as error:
                self._terminal.error(str(self._conversation.explain(error)))

    def _handle(self, text: str) -> None:
        entry = parse_entry(text)
        if entry.kind == "command":
            self._commands.run(entry.text)
        elif entry.kind == "message":
            self._conversation.say(entry.text)
            self._terminal.note()
