"""``edge-rt generate``: one prompt, one answer."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from edge_rt.cli.answering import answering, open_trace, tell_end
from edge_rt.cli.loading import model_of_command, obtain_package
from edge_rt.cli.notices import (
    CalibrationNotices,
    note_unused_penalty,
    tell_drafters,
    warn_of_format,
    warn_of_limits,
    warn_of_prompt_cache,
    warn_of_template,
)
from edge_rt.cli.options import answer_flags, flags
from edge_rt.cli.options.generation import FormatFlags, GuardFlags, SamplingFlags, TemplateFlags, ToolFlags
from edge_rt.cli.options.groups import (
    AnswerFlags,
    LoadFlags,
    PlaceFlags,
    SpeculationFlags,
    one_of,
    preset_of,
)
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.stats import AnswerView, device_text, tell_stats
from edge_rt.errors import ConfigError, InputError
from edge_rt.system.byte_size import show_size
from edge_rt.text.call_syntaxes import SYNTAXES
from edge_rt.text.tool_calls import Tools, split_tool_calls, tool_names
from edge_rt.text.tool_grammar import chosen_tools

if TYPE_CHECKING:
    from edge_rt.runtime.config import GenerationConfig
    from edge_rt.runtime.forward.cancel import CancelToken
    from edge_rt.runtime.model import Model
    from edge_rt.runtime.prompts import Prompt
    from edge_rt.runtime.results import Event, Result
    from edge_rt.runtime.stream import Stream


MAX_STDIN_BYTES: Final = 64 << 20
PATIENCE_SECONDS: Final = 2.0


def read_prompt(prompt: str | None, terminal: Terminal) -> str:
    """Return the prompt from ``-p`` and standard input, with a blank line between them."""
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
    """Return all of stdin, or nothing if it is closed."""
    if sys.stdin is None or sys.stdin.closed:
        return b""
    data = sys.stdin.buffer.read(limit + 1)
    if len(data) > limit:
        raise ConfigError("Standard input is too long.", f"The limit is {show_size(limit)}.", "Send less.")
    return data


EXIT_INTERRUPTED: Final = 130


@dataclass(frozen=True)
class QuestionFlags:
    """The prompt and its form."""

    text: Annotated[str | None, flags.PROMPT_ARGUMENT] = None
    prompt: Annotated[str | None, flags.PROMPT] = None
    system: Annotated[str | None, flags.SYSTEM] = None
    prefill: Annotated[str | None, flags.PREFILL] = None
    raw: Annotated[bool, flags.RAW.but(help="Take the prompt as it is, without the chat template.")] = False

    def completed(self, groups: Iterable[object]) -> QuestionFlags:
        """Return the flags with the system message of the preset, if none was given."""
        preset = preset_of(groups)
        if preset is None or self.system is not None or self.raw:
            return self
        return replace(self, system=preset.system)


@dataclass(frozen=True)
class FormFlags:
    """The format of the answer."""

    no_stream: Annotated[bool, flags.NO_STREAM] = False
    json_lines: Annotated[bool, flags.JSON_LINES] = False
    logprobs: Annotated[int | None, answer_flags.LOGPROBS] = None


def generate(
    question: QuestionFlags,
    load: LoadFlags,
    sampling: SamplingFlags,
    guard: GuardFlags,
    answers: FormatFlags,
    template: TemplateFlags,
    tool_flags: ToolFlags,
    speculation: SpeculationFlags,
    form: FormFlags,
    output: AnswerFlags,
    places: PlaceFlags,
) -> int:
    """Answer one prompt, given in quotes, on standard input, or both."""
    terminal = output.terminal(is_json=form.json_lines)
    options = sampling.config().with_options(repetition_guard=not guard.no_repetition_guard)
    options = answers.applied_to(tool_flags.applied_to(options))
    warn_of_format(terminal, options)
    if output.json and form.json_lines:
        raise ConfigError("--json and --json-lines exclude each other.", "Both were given.", "Choose one.")
    if form.logprobs is not None:
        if not (output.json or form.json_lines):
            raise ConfigError("--logprobs has nowhere to go.", "The answer is text.", "Add --json or --json-lines.")
        options = options.with_options(logprobs=form.logprobs)
    if question.raw and question.system is not None:
        raise ConfigError("--raw takes no system message.", "Both were given.", "Write it into the prompt.")
    if question.raw and question.prefill is not None:
        raise ConfigError("--raw takes no --prefill.", "Both were given.", "Write it behind the prompt.")
    inputs = template.inputs()
    if question.raw and template.template_arg:
        raise ConfigError("--raw takes no --template-arg.", "Both were given.", "Leave one out.")
    tools = _tools(question, tool_flags, options, inputs)
    speculation.check()
    options = speculation.applied_to(options)
    text = read_prompt(one_of(question.text, question.prompt, "The prompt"), terminal)
    with ExitStack() as held:
        trace = held.enter_context(open_trace(speculation.spec_trace, terminal))
        notices = CalibrationNotices(terminal)
        asked = load.options(places, speculation, spec_trace=trace, calibration=notices, answers=True)
        asked = asked.but(formats=options.has_format or bool(options.shown(tools)))
        _, package = obtain_package(terminal, load.reference, places, budget=load.budget_bytes(places))
        model = held.enter_context(model_of_command(terminal, package, asked))
        warn_of_limits(terminal, model, asked, options)
        tell_drafters(terminal, model, asked)
        facts = model.describe()
        writer = _Writer(
            terminal, model, facts, options, is_json=output.json, form=form, tools=tools, begun=question.prefill or ""
        )
        prompt = _messages(model, text, question)
        if not isinstance(prompt, str):
            warn_of_template(terminal, model, inputs["template_args"])

        def make_stream(token: CancelToken, on_prefill: Callable[[int, int], None]) -> Stream:
            return model.stream(prompt, options, cancel=token, on_prefill_progress=on_prefill, **inputs)

        with answering(make_stream, terminal) as answer:
            try:
                for event in answer:
                    writer.push(event)
            finally:
                writer.end()
            result = answer.result()
        writer.finish(result)
        if tools:
            for warning in result.warnings:
                terminal.warn(warning)
        tell_end(terminal, model, result)
        if terminal.verbose or result.finish_reason == "repetition":
            note_unused_penalty(terminal, model, options)
        warn_of_prompt_cache(terminal, options, result)
    if output.stats or (output.stats is None and output.verbose):
        tell_stats(terminal, result, device_text(facts["device"]))
    return EXIT_INTERRUPTED if result.finish_reason == "cancelled" else 0


def _tools(
    question: QuestionFlags, tool_flags: ToolFlags, options: GenerationConfig, inputs: dict[str, Any]
) -> list[dict[str, Any]] | None:
    """Return the tools of the answer; those of a file become part of the template's inputs."""
    tools = tool_flags.read()
    if question.raw and tools is not None:
        raise ConfigError("--raw takes no --tools.", "Both were given.", "Leave one out.")
    if tools is not None and inputs["tools"] is not None:
        raise ConfigError("Tools were given twice.", "With --tools and with --template-arg.", "Leave one out.")
    inputs["tools"] = inputs["tools"] if tools is None else tools
    if options.choice.kind == "required":
        # Before a model is loaded.
        chosen_tools(Tools(tuple(inputs["tools"]), SYNTAXES[0]) if inputs["tools"] else None, options.choice)
    return cast("list[dict[str, Any]] | None", inputs["tools"])


def _messages(model: Model, text: str, question: QuestionFlags) -> Prompt:
    """Return the prompt as messages, or unchanged with ``--raw`` and for models without a template."""
    if question.raw or (model.template_source is None and question.system is None and question.prefill is None):
        return text
    messages = [] if question.system is None else [{"role": "system", "content": question.system}]
    begun = [] if question.prefill is None else [{"role": "assistant", "content": question.prefill}]
    return [*messages, {"role": "user", "content": text}, *begun]


class _Writer:
    """Writes the answer in the requested format."""

    def __init__(
        self,
        terminal: Terminal,
        model: Model,
        facts: Mapping[str, Any],
        options: GenerationConfig,
        *,
        is_json: bool,
        form: FormFlags,
        tools: list[dict[str, Any]] | None,
        begun: str,
    ) -> None:
        self._terminal = terminal
        self._options = options
        self._advice = model.package.manifest.sampling
        self._facts = facts
        self._is_json = is_json
        self._is_lines = form.json_lines
        self._tools = tools
        self._begun = begun
        # Calls are shown as JSON, once they are whole.
        self._is_streaming = not (is_json or form.json_lines or form.no_stream or tools)
        self._view = AnswerView(terminal)

    def push(self, event: Event) -> None:
        if self._is_lines:
            thoughts = {"reasoning": event.reasoning} if event.reasoning else {}
            logprobs = {"logprobs": [dataclasses.asdict(one) for one in event.logprobs]} if event.logprobs else {}
            document = {"text": event.text, "token_ids": event.token_ids, **thoughts, **logprobs}
            self._terminal.document(document, indent=None)
        elif self._is_streaming:
            self._view.show(event)

    def end(self) -> None:
        """Write what is held back, also of an answer that failed."""
        self._view.finish()

    def finish(self, result: Result) -> None:
        if self._is_lines:
            self._terminal.document({"result": self._document(result)}, indent=None)
        elif self._is_json:
            self._terminal.document(self._document(result))
        else:
            rest = "" if self._is_streaming else result.text
            if result.tool_calls:
                rest = split_tool_calls(result.text, tool_names(self._tools), self._begun)[0]
                calls = [json.dumps(dataclasses.asdict(call), ensure_ascii=False) for call in result.tool_calls]
                self._terminal.answer("\n".join([rest, *calls] if rest else calls) + "\n")
                return
            # The last line needs a newline, on a screen and in a file.
            self._terminal.answer(rest if result.text.endswith("\n") else rest + "\n")

    def _document(self, result: Result) -> dict[str, Any]:
        from edge_rt.cli.chat.settings import options_to_settings

        options = {**options_to_settings(self._options), **dataclasses.asdict(self._options.sampling(self._advice))}
        return {**result.to_json(), "options": options, "model": self._facts}
