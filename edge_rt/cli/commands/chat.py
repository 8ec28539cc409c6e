"""``edge-rt chat``: a conversation, at a terminal or with lines from a pipe."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_rt.cli.baseline_memory import own_bytes
from edge_rt.cli.chat.chat_input import needs_more, parse_entry
from edge_rt.cli.options import (
    AcceptOption,
    BiasOption,
    ConfigOption,
    CtxOption,
    DeviceOption,
    FrequencyOption,
    IsaOption,
    JsonOption,
    KvOption,
    MaxTokensOption,
    MemoryOption,
    MinPOption,
    ModelFlags,
    ModelOption,
    NoColorOption,
    NoGuardOption,
    OfflineOption,
    PresenceOption,
    QuietOption,
    RepeatOption,
    SeedOption,
    StatsOption,
    StopOption,
    StoreOption,
    SystemOption,
    TempOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
    VerboseOption,
    generation_config,
    make_terminal,
)
from edge_rt.cli.speculation import (
    CorpusOption,
    DraftMaxOption,
    ReferenceOption,
    SpecFlags,
    SpecOption,
    SpecTraceOption,
    check_flags,
    open_trace,
    tell_calibration,
    with_reference,
)
from edge_rt.errors import ConfigError, ContextOverflow, InputError
from edge_rt.system.machine import use_one_heap

if TYPE_CHECKING:
    from edge_rt.cli.chat.conversation import Conversation

EXIT_INTERRUPTED = 130


def chat(
    model: ModelOption = None,
    system: SystemOption = None,
    memory: MemoryOption = None,
    ctx: CtxOption = None,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    kv_type: KvOption = None,
    isa: IsaOption = None,
    max_tokens: MaxTokensOption = None,
    temp: TempOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    min_p: MinPOption = None,
    repeat_penalty: RepeatOption = None,
    presence_penalty: PresenceOption = None,
    frequency_penalty: FrequencyOption = None,
    logit_bias: BiasOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    no_repetition_guard: NoGuardOption = False,
    spec: SpecOption = None,
    draft_max: DraftMaxOption = None,
    reference: ReferenceOption = None,
    corpus: CorpusOption = None,
    spec_trace: SpecTraceOption = None,
    accept: AcceptOption = None,
    no_history: Annotated[bool, typer.Option("--no-history", help="Keep no file of typed lines.")] = False,
    json: JsonOption = False,
    stats: StatsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    offline: OfflineOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Chat with a model; it is fetched first if it is not here. Lines of a pipe are answered one by one."""
    from edge_rt.cli.chat.conversation import Conversation

    own = own_bytes()
    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    options = generation_config(
        max_tokens=max_tokens,
        temp=temp,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
        seed=seed,
        stop=stop,
        accept=accept,
    ).with_options(repetition_guard=not no_repetition_guard)
    is_interactive = sys.stdin is not None and sys.stdin.isatty() and terminal.err_is_tty
    if is_interactive and json:
        raise ConfigError("--json needs lines from a pipe.", "Standard input is a terminal.", "Leave --json out.")
    check_flags(spec, draft_max=draft_max, reference=reference, corpus=corpus, trace=spec_trace, accept=options.accept)
    options = with_reference(options, reference)
    show_stats = is_interactive if stats is None else stats
    with open_trace(spec_trace, terminal) as trace:
        spec_flags = SpecFlags(spec, draft_max, corpus, trace, functools.partial(tell_calibration, terminal))
        flags = ModelFlags(model, ctx, threads, device, store, config, offline, kv_type, isa, spec_flags, memory, own)
        use_one_heap()
        if is_interactive:
            # The line editor belongs to what the process holds before a model is loaded.
            import edge_rt.cli.chat.repl  # noqa: F401
        conversation = Conversation(terminal, flags, options, system=system, show_stats=show_stats)
        try:
            if is_interactive:
                return _at_terminal(conversation, keep_history=not no_history)
            return _from_pipe(conversation)
        finally:
            conversation.close()


def _at_terminal(conversation: Conversation, *, keep_history: bool) -> int:
    from prompt_toolkit.history import InMemoryHistory

    from edge_rt.cli.chat.repl import PROMPT, Repl, default_history_path, make_session, open_history
    from edge_rt.cli.chat.slash_commands import Commands
    from edge_rt.cli.chat.type_ahead import prompt_after, type_ahead_of

    terminal = conversation.terminal
    history = open_history(default_history_path(), terminal.warn) if keep_history else InMemoryHistory()
    commands = Commands(conversation)
    session = make_session(terminal, commands, history, conversation.flags.open_store().names)
    for line in conversation.banner():
        terminal.note(line, "dim")
    terminal.note()
    keys = conversation.type_ahead = type_ahead_of(session, terminal)
    return Repl(conversation, commands, lambda: prompt_after(session, keys, PROMPT)).run()


def _from_pipe(conversation: Conversation) -> int:
    """Answer every line; the first error ends the chat, so that a script can rely on what follows."""
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
    """Yield what was typed: a line, or several that belong together."""
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
