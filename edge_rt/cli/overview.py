"""What ``edge-rt --help`` shows: every command in a sentence, without importing one."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.cli.render.console import Paint
from edge_rt.system.machine import collector_paused


@dataclass(frozen=True)
class Command:
    """One command of ``edge-rt``.

    Attributes:
        summary: what it does, as at the beginning of its own ``--help``.
    """

    module: str
    attribute: str
    panel: str
    summary: str

    def load(self) -> Any:
        """Import it, and return the function or the group."""
        with collector_paused():
            return getattr(importlib.import_module(f"edge_rt.cli.commands.{self.module}"), self.attribute)


_ANSWERS, _MODELS, _SPEED, _FASTER = "Answers", "Models", "Memory and speed", "Faster answers"
COMMANDS: Final = {
    "chat": Command(
        "chat",
        "chat",
        _ANSWERS,
        "Chat with a model; it is fetched first if it is not on this machine. Piped lines are answered one by one.",
    ),
    "generate": Command(
        "generate", "generate", _ANSWERS, "Answer one prompt, given in quotes, on standard input, or both."
    ),
    "batch": Command(
        "batch",
        "batch",
        _ANSWERS,
        "Answer every prompt of a file of JSON lines, several at once; what was answered before is not answered again.",
    ),
    "serve": Command(
        "serve",
        "serve",
        _ANSWERS,
        "Answer apps that speak OpenAI's, Anthropic's or Ollama's API, with the models of this machine.",
    ),
    "score": Command("score", "score", _ANSWERS, "Say how likely a model finds a text, or every text of a file."),
    "embed": Command(
        "embed",
        "embed",
        _ANSWERS,
        "Make embeddings of texts, one a line, with a model that is made for them; one JSON line for each.",
    ),
    "models": Command(
        "catalogue",
        "models",
        _MODELS,
        "List small open models by name: whether they fit this machine, and how fast they would be; or a repository.",
    ),
    "pull": Command("models", "pull", _MODELS, "Fetch a model, and export it into the store."),
    "list": Command("models", "list_models", _MODELS, "List the models in the store."),
    "rm": Command("models", "rm", _MODELS, "Remove a model from the store: its package and its source files."),
    "inspect": Command(
        "inspect",
        "inspect",
        _MODELS,
        "Show the facts of a package, a checkpoint or a trained drafter: sizes, quantisation, licence, template.",
    ),
    "export": Command(
        "export",
        "export",
        _MODELS,
        "Export a checkpoint as a package; nothing is left behind if it fails or is stopped.",
    ),
    "plan": Command(
        "plan", "plan", _SPEED, "Show how much memory a model needs, and the fastest settings within a budget."
    ),
    "profile": Command(
        "profile", "profile", _SPEED, "Measure how much memory a model takes, and compare it with its plan."
    ),
    "bench": Command(
        "bench",
        "bench",
        _SPEED,
        "Measure the speed of a model on this machine: reading prompts, generating, time to the first token.",
    ),
    "verify": Command("verify", "verify", _SPEED, "Check that speculation changes no answer; exit code 1 if it does."),
    "doctor": Command(
        "doctor",
        "doctor",
        _SPEED,
        "Report what this machine offers; exit code 5 if something required is missing.",
    ),
    "cache": Command(
        "cache",
        "cache_app",
        _FASTER,
        "Show or clear what --prompt-cache keeps of prompts; or give a package its system message, computed.",
    ),
    "corpus": Command(
        "corpus",
        "corpus_app",
        _FASTER,
        "Index your texts, so that answers may copy from them; or show an index.",
    ),
    "train": Command(
        "train", "train_app", _FASTER, "Train a drafter, which makes answers faster; needs torch (the extra [train])."
    ),
}
ABOUT: Final = "Run language models on your own device."
EXIT_CODES: Final = (
    "Exit codes: 0 success, 1 unexpected, 2 usage, 3 input, 4 memory, 5 runtime, 6 storage, "
    "129 lost terminal, 130 Ctrl-C, 141 output pipe closed, 143 SIGTERM."
)
_OPTIONS: Final = (
    ("--version", "", "Show the version and exit."),
    ("--install-completion", "", "Install completion for the current shell."),
    ("--show-completion", "", "Show completion for the current shell, to copy it or customize the installation."),
    ("--help", "-h", "Show this message and exit."),
)
_LEAST_COLUMNS: Final = 60
"""In less, lines are longer than the screen."""

_BOLD, _DIM, _COMMAND, _SHORT, _USAGE = "1", "2", "1;36", "1;32", "1;33"


def overview(columns: int, paint: Paint) -> Iterator[str]:
    """Yield the lines of ``edge-rt --help``, as typer draws those of commands."""
    width = max(columns, _LEAST_COLUMNS)
    yield ""
    yield f" {paint('Usage: ', _USAGE)}{paint('edge-rt [OPTIONS] COMMAND [ARGS]...', _BOLD)}"
    yield ""
    yield f" {ABOUT}"
    yield ""
    # Wide columns, as if every option had a placeholder behind its name.
    yield from _box(
        "Options", [((name, 22, _COMMAND), (short, 10, _SHORT), text) for name, short, text in _OPTIONS], width, paint
    )
    column = max(map(len, COMMANDS)) + 2
    for panel in dict.fromkeys(command.panel for command in COMMANDS.values()):
        named = [(name, command.summary) for name, command in COMMANDS.items() if command.panel == panel]
        yield from _box(panel, [((name, column, _COMMAND), summary) for name, summary in named], width, paint)
    yield ""
    yield from (f" {line}" for line in textwrap.wrap(EXIT_CODES, width - 2))
    yield ""


Row = tuple[Any, ...]
"""Cells, each with its text, its columns and its style; and behind them a text that is broken between words."""


def _box(title: str, rows: Iterable[Row], width: int, paint: Paint) -> Iterator[str]:
    yield paint(f"╭─ {title} {'─' * (width - len(title) - 5)}╮", _DIM)
    for *cells, text in rows:
        begin = sum(columns for _, columns, _ in cells)
        room = width - begin - 4
        lead = "".join(paint(cell.ljust(columns), style) for cell, columns, style in cells)
        for line in textwrap.wrap(text, room):
            yield f"{paint('│', _DIM)} {lead}{line.ljust(room)} {paint('│', _DIM)}"
            lead = " " * begin
    yield paint(f"╰{'─' * (width - 2)}╯", _DIM)
