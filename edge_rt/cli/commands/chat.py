"""``edge-rt chat``: a conversation, at a terminal or with lines from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from edge_rt.cli.answering import open_trace
from edge_rt.cli.loading import telling_load
from edge_rt.cli.notices import CalibrationNotices, warn_of_format
from edge_rt.cli.options import flags
from edge_rt.cli.options.generation import FormatFlags, GuardFlags, SamplingFlags, TemplateFlags
from edge_rt.cli.options.groups import (
    AnswerFlags,
    ModelFlags,
    PlaceFlags,
    SpeculationFlags,
    preset_of,
)
from edge_rt.errors import ConfigError, ContextOverflow, InputError
from edge_rt.system.machine import collector_paused, use_one_heap

if TYPE_CHECKING:
    from edge_rt.cli.chat.conversation import Conversation

EXIT_INTERRUPTED: Final = 130
_OF_THE_DEFAULT: Final = (
    "This is a very small model, for trying things out. For better answers name a",
    "larger one, such as: edge-rt chat Qwen/Qwen3-4B-GGUF (a download of 2.5 GB).",
)


@dataclass(frozen=True)
class ChatFlags:
    """The system message of a chat."""

    system: Annotated[str | None, flags.SYSTEM] = None

    def completed(self, groups: Iterable[object]) -> ChatFlags:
        """Return the flags with the system message of the preset, if none was given."""
        preset = preset_of(groups)
        return self if preset is None or self.system is not None else replace(self, system=preset.system)


@dataclass(frozen=True)
class HistoryFlags:
    """Whether typed lines are saved."""

    no_history: Annotated[bool, flags.NO_HISTORY] = False


def chat(
    load: ModelFlags,
    begin: ChatFlags,
    sampling: SamplingFlags,
    guard: GuardFlags,
    answers: FormatFlags,
    template: TemplateFlags,
    speculation: SpeculationFlags,
    kept: HistoryFlags,
    output: AnswerFlags,
    places: PlaceFlags,
) -> int:
    """Chat with a model; it is fetched first if it is not on this machine. Piped lines are answered one by one."""
    from edge_rt.cli.chat.conversation import Conversation

    terminal = output.terminal()
    options = answers.applied_to(sampling.config().with_options(repetition_guard=not guard.no_repetition_guard))
    warn_of_format(terminal, options)
    is_interactive = sys.stdin is not None and sys.stdin.isatty() and terminal.err_is_tty
    if is_interactive and output.json:
        raise ConfigError("--json needs piped input.", "Standard input is a terminal.", "Leave --json out.")
    inputs = template.inputs()
    speculation.check()
    options = speculation.applied_to(options)
    with open_trace(speculation.spec_trace, terminal) as trace:
        use_one_heap()
        if is_interactive:
            # Imported first, so that the line editor counts as memory of the process before a model is loaded.
            with collector_paused():
                import edge_rt.cli.chat.repl  # noqa: F401
        notices = CalibrationNotices(terminal)
        asked = load.options(places, speculation, spec_trace=trace, calibration=notices, answers=True)
        conversation = Conversation(
            terminal,
            load.reference,
            places,
            telling_load(terminal, asked.but(formats=options.has_format or bool(inputs["tools"]))),
            options,
            system=begin.system,
            show_stats=output.stats or (output.stats is None and output.verbose),
            inputs=inputs,
        )
        try:
            if is_interactive:
                is_default = load.named is None and load.model is None and load.reference == flags.DEFAULT_MODEL
                return _at_terminal(conversation, keep_history=not kept.no_history, is_default=is_default)
            return _from_pipe(conversation)
        finally:
            conversation.close()


def _at_terminal(conversation: Conversation, *, keep_history: bool, is_default: bool) -> int:
    from prompt_toolkit.history import InMemoryHistory

    from edge_rt.cli.chat.repl import PROMPT, Repl, default_history_path, make_session, open_history
    from edge_rt.cli.chat.slash_commands import Commands
    from edge_rt.cli.chat.type_ahead import prompt_after, type_ahead_of

    terminal = conversation.terminal
    history = open_history(default_history_path(), terminal.warn) if keep_history else InMemoryHistory()
    commands = Commands(conversation, terminal.ask)
    places = conversation.places
    names = lambda: [*places.open_store().names(), *places.configured.presets]  # noqa: E731 - said once
    session = make_session(terminal, commands, history, names)
    for line in (*conversation.banner(), *(_OF_THE_DEFAULT if is_default else ())):
        terminal.note(line, "dim")
    terminal.note()
    keys = conversation.type_ahead = type_ahead_of(session, terminal)
    return Repl(conversation, commands, lambda: prompt_after(session, keys, PROMPT)).run()


def _from_pipe(conversation: Conversation) -> int:
    """Answer every line; the first error ends the chat, so that a script notices it."""
    from edge_rt.cli.chat.repl import parse_entry
    from edge_rt.cli.chat.slash_commands import Commands, LeaveChat

    commands = Commands(conversation)
    turns: list[dict[str, Any]] = []
    for text in _entries():
        entry = parse_entry(text)
        try:
            if entry.kind == "command":
                commands.run(entry.text)
            elif entry.kind == "message":
                result = conversation.say(entry.text)
                turns.append(result.to_json())
                if result.finish_reason == "cancelled":
                    return _finish(conversation, turns, EXIT_INTERRUPTED)
        except LeaveChat:
            break
        except ContextOverflow as error:
            raise conversation.explain(error) from error
    return _finish(conversation, turns, 0)


def _finish(conversation: Conversation, turns: list[dict[str, Any]], code: int) -> int:
    if conversation.terminal.is_json:
        document = {"turns": turns, "messages": conversation.chat.messages, "model": conversation.model.describe()}
        conversation.terminal.document(document)
    return code


def _entries() -> Iterator[str]:
    """Yield each input: one line, or several that belong together."""
    from edge_rt.cli.chat.repl import needs_more

    pending = ""
    for number, line in enumerate(sys.stdin.buffer if sys.stdin is not None else (), 1):
        try:
            pending += line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                "Standard input is not UTF-8 text.",
                f"Line {number}, byte {error.start}: {error.reason}.",
                "Convert it first, for example with iconv.",
            ) from error
        if needs_more(pending):
            pending += "\n"
            continue
        yield pending
        pending = ""
    if pending:
        yield pending
