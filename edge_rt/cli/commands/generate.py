"""``edge-rt generate``: one prompt, one answer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edge_rt.cli.answering import answer
from edge_rt.cli.baseline_memory import own_bytes
from edge_rt.cli.chat.settings import options_to_settings
from edge_rt.cli.loading import load_model, obtain_package
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
from edge_rt.cli.prompt import read_prompt
from edge_rt.cli.render.console import Terminal, number
from edge_rt.cli.render.stats import tell_stats
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
    warn_of_limits,
    with_reference,
)
from edge_rt.errors import ConfigError

if TYPE_CHECKING:
    from edge_rt.runtime.config import GenerationConfig
    from edge_rt.runtime.engine import Model
    from edge_rt.runtime.prompt.encoding import Prompt
    from edge_rt.runtime.results import Event, Result
    from edge_rt.runtime.stream import Stream

EXIT_INTERRUPTED: Final = 130


def generate(
    model: ModelOption = None,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt; standard input follows it.")
    ] = None,
    system: SystemOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Take the prompt as it is, without the chat template.")] = False,
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
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Write the answer when it is complete.")] = False,
    json_lines: Annotated[bool, typer.Option("--json-lines", help="Write one JSON event per line.")] = False,
    json: JsonOption = False,
    stats: StatsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    offline: OfflineOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Answer one prompt, given with -p, on standard input, or both."""
    own = own_bytes()
    terminal = make_terminal(json=json or json_lines, quiet=quiet, verbose=verbose, no_color=no_color)
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
    if json and json_lines:
        raise ConfigError("--json and --json-lines exclude each other.", "Both were given.", "Choose one.")
    if raw and system is not None:
        raise ConfigError("--raw takes no system message.", "Both were given.", "Write it into the prompt.")
    check_flags(spec, draft_max=draft_max, reference=reference, corpus=corpus, trace=spec_trace, accept=options.accept)
    options = with_reference(options, reference)
    text = read_prompt(prompt, terminal)
    with open_trace(spec_trace, terminal) as trace:
        spec_flags = SpecFlags(spec, draft_max, corpus, trace, functools.partial(tell_calibration, terminal))
        flags = ModelFlags(model, ctx, threads, device, store, config, offline, kv_type, isa, spec_flags, memory, own)
        _, package = obtain_package(terminal, flags)
        with load_model(package, flags) as loaded:
            warn_of_limits(terminal, loaded, spec_flags, options)
            writer = _Writer(terminal, loaded, options, is_json=json, is_lines=json_lines, is_whole=no_stream)
            result = _run(loaded, _messages(loaded, text, system, raw=raw), options, terminal, writer)
            writer.finish(result)
            _warn_if_cut(terminal, loaded, result)
    if stats or (stats is None and verbose):
        tell_stats(terminal, result)
    return EXIT_INTERRUPTED if result.finish_reason == "cancelled" else 0


def _run(model: Model, prompt: Prompt, options: GenerationConfig, terminal: Terminal, writer: _Writer) -> Result:
    def make_stream(token: Any, on_prefill: Callable[[int, int], None]) -> Stream:
        return model.stream(prompt, options, cancel=token, on_prefill_progress=on_prefill)

    return answer(make_stream, terminal, writer.push)


def _warn_if_cut(terminal: Terminal, model: Model, result: Result) -> None:
    """Say that the repetition guard or the end of the context cut the answer."""
    if result.finish_reason == "repetition":
        terminal.warn("the answer went round in circles and was ended; --no-repetition-guard lets it go on.")
    if result.finish_reason != "context_full":
        return
    trained = model.package.manifest.model.context_length
    larger = f"--ctx N allows more (up to {trained})" if model.context_tokens < trained else "give a shorter prompt"
    used, room = number(result.usage.total_tokens), number(model.context_tokens)
    terminal.warn(f"the context is full ({used} of {room} tokens) and the answer is cut; {larger}.")


def _messages(model: Model, text: str, system: str | None, *, raw: bool) -> Prompt:
    """Return the prompt as messages, or as it is with ``--raw`` and for models without a template."""
    if raw or (model.template_source is None and system is None):
        return text
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]


class _Writer:
    """Writes the answer in the form that was asked for."""

    def __init__(
        self,
        terminal: Terminal,
        model: Model,
        options: GenerationConfig,
        *,
        is_json: bool,
        is_lines: bool,
        is_whole: bool,
    ) -> None:
        self._terminal = terminal
        sampling = options.sampling(model.package.manifest.sampling)
        self._options = {**options_to_settings(options), **dataclasses.asdict(sampling)}
        self._facts = model.describe()
        self._is_json = is_json
        self._is_lines = is_lines
        self._is_streaming = not (is_json or is_lines or is_whole)

    def push(self, event: Event) -> None:
        if self._is_lines:
            self._terminal.document({"text": event.text, "token_ids": event.token_ids}, indent=None)
        elif self._is_streaming and event.text:
            self._terminal.answer(event.text)

    def finish(self, result: Result) -> None:
        document = {**result.to_json(), "options": self._options, "model": self._facts}
        if self._is_lines:
            self._terminal.document({"result": document}, indent=None)
        elif self._is_json:
            self._terminal.document(document)
        else:
            rest = "" if self._is_streaming else result.text
            # A screen and a file both want the last line to end.
            self._terminal.answer(rest if result.text.endswith("\n") else rest + "\n")
