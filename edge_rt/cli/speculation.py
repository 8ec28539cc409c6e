"""The flags of speculative decoding, what they mean together, and the file that its decisions go to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from edge_rt.errors import ConfigError, StorageError
from edge_rt.runtime.config import GenerationConfig
from edge_rt.text.text_file import read_text

if TYPE_CHECKING:
    from edge_rt.cli.render.console import Terminal
    from edge_rt.runtime.engine import Model

MODES: Final = ("off", "auto", "ngram", "suffix", "recycling", "reference")
"""The same as the runtime's, which is not imported for the sake of ``--help``."""

AUTO: Final = "auto"
_PANEL: Final = "Speculation"
USED_BY: Final = {
    "--reference": ("auto", "reference"),
    "--corpus": ("auto", "suffix"),
    "--draft-max": MODES[1:],
    "--spec-trace": MODES[1:],
}
"""Flag -> the modes that use it."""


def _modes(incomplete: str) -> list[str]:
    return [mode for mode in MODES if mode.startswith(incomplete)]


SpecOption = Annotated[
    str | None,
    typer.Option(
        "--spec",
        metavar="MODE",
        rich_help_panel=_PANEL,
        autocompletion=_modes,
        help="Who drafts tokens ahead: off, auto, ngram, suffix, recycling or reference.",
        show_default="auto, if it fits the memory",
    ),
]
DraftMaxOption = Annotated[
    int | None,
    typer.Option(
        "--draft-max", metavar="N", rich_help_panel=_PANEL, help="Most drafted tokens of a pass.", show_default=False
    ),
]
ReferenceOption = Annotated[
    Path | None,
    typer.Option(
        "--reference",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="Text that the answer may copy, such as a file to be edited.",
    ),
]
CorpusOption = Annotated[
    Path | None,
    typer.Option("--corpus", metavar="FILE", rich_help_panel=_PANEL, help="File of 'edge-rt corpus build'."),
]
SpecTraceOption = Annotated[
    Path | None,
    typer.Option(
        "--spec-trace", metavar="FILE", rich_help_panel=_PANEL, help="Write every step's decision there, as JSON lines."
    ),
]

Trace = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class SpecFlags:
    """How a model that is loaded speculates; arguments of ``edge_rt.load``."""

    mode: str | None = None
    draft_max: int | None = None
    corpus: Path | None = None
    trace: Trace | None = None
    on_calibrate: Callable[[], None] | None = None

    @property
    def asked(self) -> str:
        """The mode that was asked for; auto where none was."""
        return self.mode or "auto"


def tell_calibration(terminal: Terminal) -> None:
    """Say why the first answer waits."""
    terminal.note("measuring what passes cost here (kept for later)", "dim")


def check_flags(
    given_mode: str | None,
    *,
    draft_max: int | None,
    reference: Path | None,
    corpus: Path | None,
    trace: Path | None,
    accept: str = "match",
) -> None:
    """Refuse flags that are wrong, or that say nothing together, before a model is fetched or loaded for them.

    Raises:
        ConfigError: a value is out of range, ``--spec reference`` has no text, the mode does not use a flag,
            or it cannot draft for the acceptance rule.
    """
    from edge_rt.runtime.speculation.speculation import SpecOptions, require_rule

    SpecOptions(given_mode, draft_max)
    mode = given_mode or AUTO
    if mode == "reference" and reference is None:
        raise ConfigError("--spec reference has nothing to copy from.", "There is no --reference.", "Give a file.")
    require_rule(accept, mode)
    _refuse_unused(
        mode, {"--draft-max": draft_max, "--reference": reference, "--corpus": corpus, "--spec-trace": trace}
    )


def check_planned(given_mode: str | None, draft_max: int | None, corpus: Path | None) -> None:
    """Refuse flags of a plan that are wrong, or that say nothing together; nothing of the runtime is imported for it.

    Raises:
        ConfigError: the mode is unknown, or does not use a flag.
    """
    if given_mode not in (None, *MODES):
        raise ConfigError(
            "The mode of speculation is unknown.", f"Got {given_mode!r:.40}.", f"Choose one of {', '.join(MODES)}."
        )
    _refuse_unused(given_mode or AUTO, {"--draft-max": draft_max, "--corpus": corpus})


def _refuse_unused(mode: str, given: dict[str, object]) -> None:
    for flag, modes in USED_BY.items():
        if given.get(flag) is not None and mode not in modes:
            raise ConfigError(
                f"{flag} is not used with --spec {mode}.", f"It is used with {', '.join(modes)}.", "Leave one out."
            )


def with_reference(options: GenerationConfig, path: Path | None) -> GenerationConfig:
    """Return the options with the text of ``--reference``.

    Raises:
        StorageError: the file cannot be read.
        InputError: it is no UTF-8 text, or too long.
    """
    return options if path is None else options.with_options(reference=read_text(path.expanduser()))


def never_drafts(mode: str, op_profile: str) -> bool:
    """Return whether a drafter that was asked for has nothing to learn from in an op profile."""
    return mode == "recycling" and op_profile != "native"


def warn_of_profile(terminal: Terminal, model: Model, mode: str, *, given: str) -> None:
    """Say what a drafter that was asked for does not promise, or does not do, in the op profile of this model.

    Args:
        terminal: where to.
        model: the model.
        mode: the mode of speculation that was asked for.
        given: how it was asked for, such as ``--spec ngram``.
    """
    if mode in ("off", "auto") or model.speculation.exact:
        return
    profile = model.package.manifest.op_profile
    if never_drafts(mode, profile):
        terminal.warn(
            f"{given} never drafts with this model: it learns from the likely tokens of every row, and graphs of the "
            f"op profile {profile} do not return them."
        )
        return
    terminal.warn(
        f"the op profile of this model is {profile}: what its attention computes for a token depends on the tokens "
        f"beside it, so with {given} the text may differ from plain decoding. Only chains are drafted."
    )


def why_not_auto(model: Model) -> str:
    """Return why a model does something else than ``auto``."""
    if model.speculation.exact:
        return "auto, to fit the memory"
    return f"auto, op profile {model.package.manifest.op_profile}"


def warn_of_limits(
    terminal: Terminal, model: Model, flags: SpecFlags, options: GenerationConfig, *, in_chat: bool = False
) -> None:
    """Say what speculation does not promise, or does not do, with this model and these options; often nothing.

    Args:
        terminal: where to.
        model: the model.
        flags: how it was loaded.
        options: of the generations to come; ``spec`` is None unless ``/set spec`` chose it.
        in_chat: name the command of a chat for what can be changed there, not the flag.
    """
    wanted = flags.mode if options.spec is None else options.spec
    asked = wanted or "auto"
    warn_of_profile(terminal, model, asked, given=f"--spec {asked}" if options.spec is None else f"/set spec {asked}")
    # Without a mode it is the plan's: where memory is short, speculation may be off.
    mode = model.speculation.resolve(wanted, has_reference=options.reference is not None)
    given = {
        "--reference": options.reference,
        "--corpus": flags.corpus,
        "--draft-max": flags.draft_max,
        "--spec-trace": flags.trace,
    }
    unused = [flag for flag, modes in USED_BY.items() if given[flag] is not None and mode not in modes]
    if in_chat:
        unused = ["/set reference" if flag == "--reference" else flag for flag in unused]
    if unused:
        why = "speculation is off" if mode == "off" else f"{mode} drafts alone"
        where = f" ({why_not_auto(model)})" if mode != asked else ""
        terminal.warn(f"{why}{where}: not used: {', '.join(unused)}.")


class TraceFile:
    """Decisions as JSON lines, one a line and each written at once; a full disk does not end an answer.

    Args:
        stream: where they go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream
        # Whoever was stopped by a second Ctrl-C leaves while its thread still computes.
        self._lock = threading.Lock()
        self.error: OSError | None = None

    def write(self, decision: dict[str, Any]) -> None:
        """Write one decision; nothing once the file is closed or could not be written."""
        with self._lock:
            if self._stream is None or self.error is not None:
                return
            try:
                self._stream.write(json.dumps(decision, allow_nan=False) + "\n")
                self._stream.flush()
            except OSError as error:
                self.error = error

    def close(self) -> None:
        """Close the file; does nothing the second time."""
        with self._lock:
            stream, self._stream = self._stream, None
            if stream is None:
                return
            try:
                stream.close()
            except OSError as error:
                self.error = self.error or error


@contextmanager
def open_trace(path: Path | None, terminal: Terminal) -> Generator[Trace | None]:
    """Open the file of ``--spec-trace`` and close it on every way out; None without one.

    A file of an earlier run is replaced.

    Raises:
        ConfigError: the file exists and holds something else.
        StorageError: it cannot be written.
    """
    if path is None:
        yield None
        return
    path = path.expanduser()
    try:
        if path.is_file() and not _is_trace(path):
            raise ConfigError(f"{path} exists and is no trace.", "It would be lost.", "Choose another file.")
        trace = TraceFile(path.open("w", encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{path} cannot be written.", f"{error.strerror}.", "Check the path.") from error
    try:
        yield trace.write
    finally:
        trace.close()
        if trace.error is not None:
            terminal.warn(f"the trace is not complete: {path}: {trace.error.strerror}")


def _is_trace(path: Path) -> bool:
    """Return whether a file is empty, or begins with a decision."""
    with path.open("rb") as stream:
        line = stream.readline(1 << 16)
    try:
        return not line or "position" in dict(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return False
