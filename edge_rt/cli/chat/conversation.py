"""A chat on the command line: model, messages and options, for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from edge_rt.cli.answering import MakeStream, answering, tell_end, ways_out
from edge_rt.cli.chat.advice import (
    LEAVE,
    flags_of_a_chat,
    in_words_of_a_chat,
    planned_text,
    setting_in_chat,
    shared_text,
    used_text,
)
from edge_rt.cli.chat.settings import check_options, options_to_settings
from edge_rt.cli.chat.type_ahead import TypeAhead, no_echo
from edge_rt.cli.interrupt import interrupt_as_cancelled, wait_for_unfinished_work
from edge_rt.cli.loading import load_model, obtain_package, plan_model, tell_device
from edge_rt.cli.notices import (
    note_unused_penalty,
    tell_drafters,
    warn_of_driver,
    warn_of_format,
    warn_of_limits,
    warn_of_prompt_cache,
    warn_of_template,
    why_not_auto,
)
from edge_rt.cli.options.groups import PlaceFlags
from edge_rt.cli.render.console import SEPARATOR, Terminal, number
from edge_rt.cli.render.stats import AnswerView, device_text, tell_stats
from edge_rt.errors import Cancelled, ConfigError, ContextOverflow, EdgeRTError, MemoryBudgetExceeded
from edge_rt.package.spec_modes import AUTO
from edge_rt.runtime.config import GenerationConfig
from edge_rt.system.byte_size import counted, show_size

if TYPE_CHECKING:
    from edge_rt.memory.plan import Plan
    from edge_rt.package.reader import Package
    from edge_rt.runtime.chat import Chat
    from edge_rt.runtime.forward.cancel import CancelToken
    from edge_rt.runtime.load.options import LoadOptions
    from edge_rt.runtime.model import Model
    from edge_rt.runtime.prompts import PromptEncoder
    from edge_rt.runtime.results import Result
    from edge_rt.runtime.speculation.cost_model import Costs
    from edge_rt.runtime.stream import Stream


LoadModel = Callable[["Package", "LoadOptions", "Plan | None"], "Model"]
"""Type of a function that loads a package."""


@dataclass(frozen=True)
class Attachment:
    """A text that goes in front of the next message."""

    name: str
    text: str


class Conversation:
    """Answers messages, and keeps the model, the messages and the options.

    Args:
        inputs: tools, documents and arguments of the chat template, as ``Model.chat`` takes them.

    Attributes:
        load, options, show_stats: as above; may be changed between answers, the first by ``switch``, the options by
            ``set_options``.
        attached: texts that go in front of the next message.
        last: the last answer; None before the first.
        type_ahead: reads keys during answers; None leaves them to the terminal.
    """

    def __init__(
        self,
        terminal: Terminal,
        reference: str,
        places: PlaceFlags,
        load: LoadOptions,
        options: GenerationConfig,
        *,
        system: str | None = None,
        show_stats: bool = False,
        inputs: Mapping[str, Any] | None = None,
        load_model: LoadModel = load_model,
    ) -> None:
        self.terminal = terminal
        self.places = places
        self.load = load
        self.options = options
        self.show_stats = show_stats
        self.attached: list[Attachment] = []
        self.last: Result | None = None
        self.type_ahead: TypeAhead | None = None
        self._has_warned = False  # that the process has taken more than its budget
        self._load_model = load_model
        self.reference = reference
        self.name, self._package = obtain_package(terminal, reference, places, budget=_budget_of(load))
        self.model: Model = load_model(self._package, load, None)
        # Memory of the process before its first model; a later model reuses the heap of the previous one.
        self._base_bytes = self.model.plan.base_bytes
        self._has_pieces = False  # whether that includes heap fragments left by models with other tokenizers
        self.chat: Chat = self.model.chat(system=system, **(inputs or {}))
        tell_device(terminal, self.model.device_choice)
        warn_of_template(terminal, self.model, self.chat.template_args)
        warn_of_limits(terminal, self.model, load, options)
        tell_drafters(terminal, self.model, load)
        note_unused_penalty(terminal, self.model, options, in_chat=True)
        self.model.check_reference(options)

    def say(self, text: str) -> Result:
        """Answer a message, with the attached texts in front of it."""
        whole = "\n\n".join([*(item.text for item in self.attached), text])

        def make_stream(token: CancelToken, on_prefill: Callable[[int, int], None]) -> Stream:
            return self.chat.stream(whole, self.options, cancel=token, on_prefill_progress=on_prefill)

        with in_words_of_a_chat():
            result = self._answer(make_stream)
        if result.finish_reason != "cancelled" or result.token_ids:
            self.attached.clear()
        return result

    def resume(self) -> Result:
        """Continue the last answer."""
        with in_words_of_a_chat():
            return self._answer(lambda token, _: self.chat.resume(self.options, cancel=token))

    def regenerate(self) -> Result:
        """Generate a new answer to the last message."""
        with in_words_of_a_chat():
            return self._answer(lambda token, _: self.chat.regenerate(self.options, cancel=token))

    def _answer(self, make_stream: MakeStream) -> Result:
        terminal = self.terminal
        view = AnswerView(terminal)
        keys = self.type_ahead
        tend = None if keys is None else keys.poll
        with no_echo() if keys is None else keys.listening(), answering(make_stream, terminal, tend) as answer:
            try:
                for event in answer:
                    if not terminal.is_json:
                        view.show(event)
            finally:
                view.finish()
            result = answer.result()
        if view.wrote and not result.text.endswith("\n"):
            terminal.line()
        self._tell_end(result)
        return result

    def _tell_end(self, result: Result) -> None:
        tell_end(self.terminal, self.model, result, in_chat=True)
        warn_of_prompt_cache(self.terminal, self.options, result)
        self._has_warned = self._has_warned or warn_of_driver(self.terminal, self.model)
        if result.finish_reason == "cancelled" and not result.token_ids:
            return
        self.last = result
        if self.show_stats:
            tell_stats(self.terminal, result, self.device)

    def explain(self, error: EdgeRTError) -> EdgeRTError:
        """Return an error with advice that can be followed in a chat."""
        if not isinstance(error, ContextOverflow):
            return error
        return ContextOverflow(
            error.prompt_tokens,
            error.requested_tokens,
            error.context_tokens,
            is_estimate=error.is_estimate,
            way=f"{ways_out(self.model, self.attached_names())}.",
        )

    def attached_names(self) -> str:
        """Return the names of the attached texts, for people; empty if there are none."""
        return ", ".join(item.name for item in self.attached)

    def switch(self, reference: str, load: LoadOptions, *, called: str | None = None) -> None:
        """Load another model, or the same model with other options, and keep the conversation.

        A model that does not fit the memory is refused before the current one is closed.

        Args:
            called: the model argument that advice names; None: ``reference``.
        """
        called = reference if called is None else called
        with interrupt_as_cancelled():
            budget = _budget_of(load)
            name, package = obtain_package(self.terminal, reference, self.places, budget=budget, lead=LEAVE)
            kept = _Kept.of(self.model, package)
            base, has_pieces = self._base_after(kept)
            # For the same model the request comes from /ctx.
            is_same = load.ctx is not None and name == self.name
            spell = partial(setting_in_chat, reference=called, load=load, is_same_model=is_same)
            with flags_of_a_chat(called):
                asked = load.but(spell=spell, freed_device_bytes=self.model.plan.held_device_bytes)
                plan = plan_model(package, asked, base)
        before = self.chat
        try:
            with interrupt_as_cancelled():
                # Closed before the next one is loaded: two models at once may not fit the memory.
                self.model.close()
                model, chat = self._open(package, load, plan, before, kept)
        except EdgeRTError as error:
            self._reopen(before, kept, error)
            raise
        self.load, self.name, self.model, self.chat = load, name, model, chat
        self.reference = called
        self._package = package
        self._base_bytes, self._has_pieces = base, has_pieces
        tell_device(self.terminal, model.device_choice)
        try:
            warn_of_limits(self.terminal, model, load, self.options, in_chat=True)
        except (ConfigError, MemoryBudgetExceeded) as error:
            # The model is loaded: options that do not work with it are reset, and the model is kept.
            self.options = self.options.with_options(spec=None, accept="match")
            self.terminal.warn(f"{error.what} spec and accept are reset to their defaults.")
        try:
            with in_words_of_a_chat():
                model.check_reference(self.options)
        except MemoryBudgetExceeded as error:
            # The option is kept: with another /ctx it may fit.
            self.terminal.warn(str(error))

    def _base_after(self, kept: _Kept) -> tuple[int, bool]:
        """Return the assumed bytes of the process before the next model, and whether they include heap fragments."""
        from edge_rt.runtime.load.planning import PIECES_BYTES

        if self._has_pieces or kept.texts is not None:
            return self._base_bytes, self._has_pieces
        return self._base_bytes + PIECES_BYTES, True

    def _open(self, package: Package, load: LoadOptions, plan: Plan, before: Chat, kept: _Kept) -> tuple[Model, Chat]:
        """Load a package and continue a conversation with it; if that fails, the model is closed again."""
        model = self._load_model(package, load.but(share_tokenizer_with=kept.texts), plan)
        kept.give_costs(model)
        try:
            chat = model.chat()
            chat.continue_from(before)
            chat.token_count()
        except BaseException:
            model.close()
            raise
        return model, chat

    def _reopen(self, before: Chat, kept: _Kept, reason: EdgeRTError) -> None:
        """Load the previous model again, with its plan, after another model could not be loaded."""
        if isinstance(reason, Cancelled):
            self.terminal.note(f"stopping: loading {self.name} again", "dim")
            # The cancelled load frees its memory first.
            wait_for_unfinished_work()
        try:
            again = self.load.but(share_tokenizer_with=kept.texts)
            model = self._load_model(self._package, again, self.model.plan)
        except EdgeRTError as error:
            self.terminal.warn(f"{self.name} cannot be loaded again: {error} Choose a model with /model.")
            return
        kept.give_costs(model)
        self.model, self.chat = model, model.chat()
        self.chat.continue_from(before)

    def settings(self) -> dict[str, Any]:
        """Return the options as a JSON object."""
        return options_to_settings(self.options)

    @property
    def spec(self) -> str:
        """The drafter in use, and the reason if it is not the requested one."""
        wanted = self.load.spec if self.options.spec is None else self.options.spec
        mode = self.model.speculation.resolve(wanted, has_reference=self.options.reference is not None)
        return mode if mode == (wanted or "auto") else f"{mode} ({why_not_auto(self.model)})"

    def set_options(self, options: GenerationConfig) -> None:
        """Change the options; warn about limits of speculation with them."""
        check_options(options, self.load.spec or AUTO)
        if options.answer_format() != self.options.answer_format():
            warn_of_format(self.terminal, options)
        if (options.spec, options.reference) != (self.options.spec, self.options.reference):
            with in_words_of_a_chat():
                warn_of_limits(self.terminal, self.model, self.load, options, in_chat=True)
                if self.model.texts is not None:
                    self.model.check_reference(options)
        before, self.options = self.options, options
        if before.temperature != options.temperature:
            note_unused_penalty(self.terminal, self.model, options, in_chat=True)

    @property
    def device(self) -> str:
        """What computes, for people."""
        return device_text(self.model.describe()["device"])

    def banner(self) -> list[str]:
        """Return the lines shown at the start of a chat."""
        facts = self.model.describe()
        types = "+".join(dict.fromkeys(facts["quantisation"].values()))
        cache = show_size(facts["kv_bytes_per_token"] * facts["context_tokens"])
        return [
            SEPARATOR.join([self.name, facts["architecture"], f"{facts['parameters'] / 1e6:.0f} M parameters", types]),
            f"context  {number(facts['context_tokens'])} tokens ({cache} when full)",
            f"memory   {used_text()}, at most {planned_text(facts['memory'])} planned{shared_text(facts['memory'])}",
            SEPARATOR.join(
                [
                    f"device   {self.device}, {counted(facts['threads'], 'thread')}",
                    f"ONNX Runtime {facts['onnxruntime']}",
                ]
            ),
            *self._reduced(),
            "type /help for commands, Ctrl-D to leave",
        ]

    def _reduced(self) -> list[str]:
        """Return a line that lists what the memory plan reduced; no line if it reduced nothing."""
        names = [step.partition(":")[0] for step in self.model.plan.given_up]
        return [f"reduced to fit the memory: {', '.join(names)} (/show memory)"] if names else []

    def close(self) -> None:
        """Free the model."""
        self.model.close()


@dataclass(frozen=True)
class _Kept:
    """What the next model reuses of a closed one.

    Attributes:
        texts: its tokenizer, if the next model has the same one: reading it again would fragment the heap.
        costs: latency of its passes; None if nothing was drafted.
    """

    texts: PromptEncoder | None
    key: dict[str, Any]
    costs: Costs | None

    @classmethod
    def of(cls, model: Model, package: Package) -> _Kept:
        """Return what the model of another package can reuse of this model."""
        texts = model.texts
        if texts is not None and not texts.has_tokenizer_of(package):
            texts = None
        return cls(texts, model.measured_costs.key, model.speculation.known_costs)

    def give_costs(self, model: Model) -> None:
        """Give a model the costs that were learned, if its passes are the same."""
        if self.costs is not None and model.measured_costs.key == self.key:
            model.speculation.costs = self.costs


def _budget_of(load: LoadOptions) -> int | None:
    """Return the memory budget of an export that runs before the load, in bytes."""
    return load.memory if isinstance(load.memory, int) else None
