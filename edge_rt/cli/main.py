"""The entry point: errors and exit codes."""

from __future__ import annotations

import atexit
import errno
import os
import re
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FunctionType
from typing import Any, Final

from edge_rt.cli.interrupt import SignalReceived, has_unfinished_work, signals_as_exceptions
from edge_rt.cli.options.plain_reading import read_plainly
from edge_rt.cli.options.spread import Spread
from edge_rt.cli.overview import COMMANDS, overview
from edge_rt.cli.render.console import OutputClosed, OutputFailed, Terminal
from edge_rt.errors import Cancelled, EdgeRTError, ErrorJSON, StorageError, is_out_of_memory, out_of_memory

COMPLETION: Final = "_EDGE_RT_COMPLETE"
"""Environment variable by which a shell asks for completions."""
EXIT_UNEXPECTED: Final = 1
EXIT_USAGE: Final = 2
_NO_COMMAND: Final = re.compile(r"No such command '([a-z-]+)'\.$")
_NAMES_ELSEWHERE: Final = {
    "help": "'edge-rt --help'",
    "run": "'edge-rt chat MODEL', or 'edge-rt generate -m MODEL PROMPT'",
    "server": "'edge-rt serve'",
    "show": "'edge-rt inspect MODEL'",
    "ls": "'edge-rt list'",
    "delete": "'edge-rt rm NAME'",
    "download": "'edge-rt pull MODEL'",
    "convert": "'edge-rt export MODEL --out DIR'",
    "quantize": "'edge-rt export MODEL --out DIR'",
}
"""What users of other programs may type, and what it is called here."""
EXIT_OUTPUT_CLOSED: Final = 141
"""Exit code that a shell reports for a program ended by SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, report any error, and return its exit code.

    Args:
        arguments: arguments after the program's name; None: those of this process, which then ends with the command.
    """
    own = list(sys.argv[1:] if arguments is None else arguments)
    flags = own[: own.index("--")] if "--" in own else own
    is_json = "--json" in flags or "--json-lines" in flags
    terminal = Terminal(verbose=False, is_json=is_json, no_color="--no-color" in flags)
    verbose = "-v" in flags or "--verbose" in flags
    lines = "--json-lines" in flags
    try:
        with signals_as_exceptions():
            try:
                code = _run(own, terminal)
            except Exception as error:
                code = _report(terminal, error, verbose=verbose, lines=lines)
    except SignalReceived as stop:
        _report_signal(terminal, stop, lines=lines)
        code = stop.exit_code
    if arguments is None:
        _leave(code)
    return code


def _run(own: list[str], terminal: Terminal) -> int:
    """Run what one command line asks for, through typer if there is anything unusual about it."""
    if own in (["--help"], ["-h"]):
        terminal.page(overview)
        return 0
    if own and own[0] in COMMANDS and COMPLETION not in os.environ:
        function = COMMANDS[own[0]].load()
        if isinstance(function, FunctionType):
            command = Spread(function)
            if (values := read_plainly(command, own[1:])) is not None:
                return command(**values)
    from edge_rt.cli.command_line import run

    return run(own)


def _leave(code: int) -> None:
    """End the process without freeing what it holds piece by piece, which takes longer than the system does.

    A thread that may still be inside ONNX Runtime is left there. The interpreter ends the process itself where another
    thread is to be waited for, or output cannot be written.
    """
    others = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    if others and not has_unfinished_work():
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    atexit._run_exitfuncs()
    os._exit(code)


def _report(terminal: Terminal, error: Exception, *, verbose: bool, lines: bool) -> int:
    """Report an error and return its exit code."""
    if isinstance(error, OutputClosed):
        _drop_stdout()
        return EXIT_OUTPUT_CLOSED
    if hasattr(error, "format_message"):
        # A usage error; the module of its class differs between versions of typer.
        return _report_usage(terminal, error, lines=lines)
    if isinstance(error, OutputFailed):
        terminal.error(str(error))
        _drop_stdout()
        return error.exit_code
    known = _as_known(error)
    if known is None:
        if verbose:
            terminal.error("".join(traceback.format_exception(error)).rstrip())
        described = f"{type(error).__name__}: {error}"
        terminal.error(f"unexpected {described} Run again with -v for the traceback." if not verbose else described)
        _document(terminal, _plain("InternalError", described, "Run again with -v.", EXIT_UNEXPECTED), lines=lines)
        return EXIT_UNEXPECTED
    terminal.error(str(known))
    _document(terminal, known.to_json(), lines=lines)
    return known.exit_code


def _as_known(error: Exception) -> EdgeRTError | None:
    """Return the error as an ``EdgeRTError``; None for an unexpected one."""
    if isinstance(error, EdgeRTError):
        return error
    if is_out_of_memory(error):
        return out_of_memory(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO):
        return StorageError(f"{error.filename or 'A file'} could not be used.", f"{error.strerror}.", "Check the disk.")
    return None


def _report_usage(terminal: Terminal, error: Any, *, lines: bool) -> int:
    message = error.format_message().rstrip()
    if type(error).__name__ == "NoArgsIsHelpError":
        if message.strip():
            terminal.note(message)
        return EXIT_USAGE
    hint = _hint(error, message)
    if not message.endswith((".", "?", "!")):
        message += "."
    terminal.error(f"{message} {hint}")
    _document(terminal, _plain("UsageError", message, hint, EXIT_USAGE), lines=lines)
    return EXIT_USAGE


def _hint(error: Any, message: str) -> str:
    """Return what may have been meant, and where to read on."""
    if error.ctx is None:
        return "See 'edge-rt --help'."
    see = f"See '{error.ctx.command_path} --help'."
    if "unexpected extra argument" in message:
        names = {parameter.name for parameter in error.ctx.command.params}
        if "prompt" in names:
            return f"The prompt is one argument, in quotes; the model is given with -m. {see}"
        if "named" in names:
            return f"One model is given; a prompt goes to 'edge-rt generate -m MODEL PROMPT'. {see}"
    command = _NO_COMMAND.match(message)
    if command is not None and command[1] in _NAMES_ELSEWHERE:
        return f"Did you mean {_NAMES_ELSEWHERE[command[1]]}? {see}"
    return see


def _report_signal(terminal: Terminal, stop: SignalReceived, *, lines: bool) -> None:
    error = Cancelled("Stopped on request.", f"Signal {stop.signum}.")
    terminal.control("\r\x1b[K")
    terminal.note("stopped")
    _document(terminal, {**error.to_json(), "exit_code": stop.exit_code}, lines=lines)


def _plain(kind: str, what: str, action: str, code: int) -> ErrorJSON:
    return {"type": kind, "what": what, "numbers": "", "action": action, "exit_code": code}


def _document(terminal: Terminal, error: ErrorJSON, *, lines: bool) -> None:
    if not terminal.is_json:
        return
    try:
        terminal.document({"error": error}, indent=None if lines else 2)
    except (OutputClosed, OutputFailed):
        _drop_stdout()


def _drop_stdout() -> None:
    """Redirect stdout to nowhere, so that the interpreter's last flush does not fail."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
