"""The prompt of ``edge-rt generate``: an option, standard input, or both."""

from __future__ import annotations

import os
import stat
import sys
import threading
from typing import Final

from edge_rt.byte_size import show_size
from edge_rt.cli.render.console import Terminal
from edge_rt.errors import ConfigError, InputError

MAX_STDIN_BYTES: Final = 64 << 20
PATIENCE_SECONDS: Final = 2.0


def read_prompt(prompt: str | None, terminal: Terminal) -> str:
    """Return the prompt from ``-p`` and standard input, with a blank line between them.

    Raises:
        ConfigError: there is no prompt.
        InputError: standard input is not UTF-8.
    """
    piped = "" if _is_keyboard() else _decode(_read_patiently(prompt, terminal))
    parts = [part for part in (prompt, piped.rstrip("\n") if prompt else piped) if part]
    if not "".join(parts).strip():
        raise ConfigError(
            "There is no prompt.",
            "Neither an argument nor standard input has one.",
            "Give one: edge-rt generate 'Tell me a story'.",
        )
    return "\n\n".join(parts)


def _is_keyboard() -> bool:
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def _read_patiently(prompt: str | None, terminal: Terminal) -> bytes:
    """Read standard input; if it stays open although ``-p`` gives a prompt, show that it is being waited for."""
    text = "waiting for the end of standard input, which is part of the prompt (none? add: < /dev/null)"
    timer = threading.Timer(PATIENCE_SECONDS, terminal.note, [text])
    timer.daemon = True
    if prompt is not None and _is_pipe():
        timer.start()
    try:
        return _read_stdin(MAX_STDIN_BYTES)
    finally:
        timer.cancel()


def _is_pipe() -> bool:
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            "Standard input is not UTF-8 text.",
            f"Byte {error.start} is 0x{data[error.start]:02x}: {error.reason}.",
            "Convert it first, for example with iconv.",
        ) from error


def _read_stdin(limit: int) -> bytes:
    """Return all of stdin, or nothing if it is closed.

    Raises:
        ConfigError: it is longer than ``limit`` bytes.
    """
    if sys.stdin is None or sys.stdin.closed:
        return b""
    data = sys.stdin.buffer.read(limit + 1)
    if len(data) > limit:
        raise ConfigError("Standard input is too long.", f"The limit is {show_size(limit)}.", "Send less.")
    return data
