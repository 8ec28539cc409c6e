"""The models of the store for the program ``llm`` and its Python API: one model ``edge-rt/NAME`` for every package.

``llm`` imports this module by its entry point each time it runs, so nothing that loads or computes is imported here.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import llm
from llm.parts import StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field

from edge_rt.errors import EdgeRTError

if TYPE_CHECKING:
    from edge_rt.memory.budget import Budget
    from edge_rt.runtime.model import Model
    from edge_rt.runtime.results import Event, Result

PREFIX: Final = "edge-rt/"
SLOTS: Final = 4
"""Answers that a model computes at once: tasks and threads that ask at the same time are not refused."""


class OpenModels:
    """Models that stay open, within one budget; those that nobody uses are closed where another needs their memory.

    Args:
        store: None: the configured one.
        budget: None: what the machine has available when the first is loaded.
    """

    def __init__(self, store: Path | None = None, budget: Budget | None = None) -> None:
        self.store, self._budget = store, budget
        self._lock = threading.Lock()
        self._models: dict[str, Model] = {}
        self._users: dict[str, int] = {}

    @contextmanager
    def using(self, name: str) -> Iterator[Model]:
        """Return a model that stays open while a block runs.

        Raises:
            EdgeRTError: it cannot be loaded.
        """
        with self._lock:
            # Put at the end: those at the beginning were not used for the longest time.
            model = self._models.pop(name, None) or self._load(name)
            self._models[name] = model
            self._users[name] = self._users.get(name, 0) + 1
        try:
            yield model
        finally:
            with self._lock:
                self._users[name] -= 1

    def close(self) -> None:
        """Close all."""
        with self._lock:
            while self._models:
                self._models.popitem()[1].close()

    def _load(self, name: str) -> Model:
        from edge_rt.api import load, plan
        from edge_rt.memory.budget import Budget
        from edge_rt.system.machine import available_memory_bytes
        from edge_rt.system.process_memory import own_bytes

        if self._budget is None:
            self._budget = Budget(available_memory_bytes() + own_bytes())
        while idle := [other for other in self._models if not self._users[other]]:
            asked = plan(name, memory=self._budget, store=self.store, slots=SLOTS)
            if asked.fits and not asked.reduced:
                break
            self._models.pop(idle[0]).close()
        return load(name, memory=self._budget, store=self.store, slots=SLOTS, formats=True)


class Options(llm.Options):
    """Options of a prompt; those that are not given are the model's own."""

    max_tokens: int | None = Field(default=None, description="Most tokens of the answer")
    temperature: float | None = Field(default=None, description="0 takes the most likely token")
    top_p: float | None = Field(default=None, description="Keep tokens until their probabilities reach this sum")
    top_k: int | None = Field(default=None, description="Keep so many most likely tokens; 0 keeps all")
    min_p: float | None = Field(default=None, description="Keep tokens at least this fraction as likely as the first")
    repetition_penalty: float | None = Field(default=None, description="Above 1: less of what was said")
    presence_penalty: float | None = Field(default=None, description="Taken from tokens that the answer has")
    frequency_penalty: float | None = Field(default=None, description="Taken for every time that the answer has them")
    seed: int | None = Field(default=None, description="Makes the answer repeatable")
    stop: str | None = Field(default=None, description="A text that ends the answer")
    reference: str | None = Field(default=None, description="A text that the answer may copy from, to be faster")
    tool_choice: str | None = Field(default=None, description="'required', 'none', or the name of a tool to be called")
    thinking: bool | None = Field(default=None, description="Whether a model that can think does")


class Question:
    """A prompt of ``llm`` as a model takes it, and its answer as ``llm`` takes it."""

    def __init__(self, prompt: llm.Prompt, response: Any) -> None:
        given = prompt.options.model_dump(exclude_none=True)
        thinking = given.pop("thinking", None)
        if prompt.schema:
            given["response_format"] = prompt.schema
        self._response, self._hides_thoughts = response, prompt.hide_reasoning
        self.messages = [one for message in prompt.messages for one in chat_messages(message)]
        self.arguments: dict[str, Any] = given
        if prompt.tools:
            self.arguments["tools"] = [function_of(tool) for tool in prompt.tools]
        if thinking is not None:
            self.arguments["template_args"] = {"enable_thinking": thinking}
        self._ids: list[str] = []

    def reader(
        self, model: Model
    ) -> tuple[Callable[[Event], list[StreamEvent]], Callable[[Result], list[StreamEvent]]]:
        """Return what reads the events of an answer, and its end."""
        from edge_rt.runtime.config import GenerationConfig

        options = {name: value for name, value in self.arguments.items() if name not in ("tools", "template_args")}
        last = self.messages[-1] if self.messages else {}
        begun = last.get("content") or "" if last.get("role") == "assistant" else ""
        texts = model.texts
        assert texts is not None, "the model was closed while it is in use"
        calls = texts.call_stream(GenerationConfig(**options), self.arguments.get("tools"), begun)

        def read(event: Event) -> list[StreamEvent]:
            text, pieces = calls.push(event.text)
            return self._events(event.reasoning, text, pieces)

        def end(result: Result) -> list[StreamEvent]:
            text, pieces = calls.finish(result.tool_calls)
            events = self._events("", text, pieces)
            for index, call in enumerate(result.tool_calls):
                self._response.add_tool_call(llm.ToolCall(call.name, call.arguments, self._ids[index]))
            usage = result.usage
            details = {"cached_tokens": usage.cached_tokens} if usage.cached_tokens else None
            self._response.set_usage(input=usage.prompt_tokens, output=usage.completion_tokens, details=details)
            self._response.response_json = {"finish_reason": result.finish_reason}
            return events

        return read, end

    def _events(self, thoughts: str, text: str, pieces: Any) -> list[StreamEvent]:
        events = []
        if thoughts and not self._hides_thoughts:
            events.append(StreamEvent(type="reasoning", chunk=thoughts))
        if text:
            events.append(StreamEvent(type="text", chunk=text))
        for piece in pieces:
            if piece.name is not None:
                self._ids.append(f"call_{uuid.uuid4().hex[:16]}")
                events.append(StreamEvent("tool_call_name", piece.name, tool_call_id=self._ids[piece.index]))
            if piece.arguments:
                events.append(StreamEvent("tool_call_args", piece.arguments, tool_call_id=self._ids[piece.index]))
        return events


def function_of(tool: llm.Tool) -> dict[str, Any]:
    """Return a tool as chat templates describe it."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema or {}}
    return {"type": "function", "function": function}


def chat_messages(message: Any) -> list[dict[str, Any]]:
    """Return a message of ``llm`` as those of a chat; every result of a tool is one."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    calls = [
        {"type": "function", "id": part.tool_call_id, "function": {"name": part.name, "arguments": part.arguments}}
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    results: list[dict[str, Any]] = [
        {"role": "tool", "name": part.name, "tool_call_id": part.tool_call_id, "content": part.output}
        for part in message.parts
        if isinstance(part, ToolResultPart)
    ]
    if message.role == "tool":
        return results
    if not texts and not calls:
        return results
    return [{"role": message.role, "content": "".join(texts), **({"tool_calls": calls} if calls else {})}, *results]


class _Common:
    """What a model says of itself."""

    can_stream = True
    supports_schema = True
    supports_tools = True
    Options = Options

    def __init__(self, name: str, models: OpenModels) -> None:
        self.name, self._models = name, models
        self.model_id = PREFIX + name

    def __str__(self) -> str:
        return f"edge-rt: {self.model_id}"


class EdgeModel(_Common, llm.Model):
    """A package of the store."""

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002 -- an answer that is wanted whole comes in pieces as well, which llm joins
        response: llm.Response,
        conversation: Any = None,  # noqa: ARG002 -- the prompt has its messages
    ) -> Iterator[StreamEvent]:
        """Answer."""
        question = Question(prompt, response)
        with self._models.using(self.name) as model:
            read, end = question.reader(model)
            with model.stream(question.messages, **question.arguments) as answer:
                for event in answer:
                    yield from read(event)
            yield from end(answer.result())


class AsyncEdgeModel(_Common, llm.AsyncModel):
    """A package of the store, for tasks of an event loop."""

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002 -- as above
        response: llm.AsyncResponse,
        conversation: Any = None,  # noqa: ARG002
    ) -> AsyncIterator[StreamEvent]:
        """Answer, while the model computes in a thread."""
        question = Question(prompt, response)
        using = self._models.using(self.name)
        opening = asyncio.ensure_future(asyncio.to_thread(using.__enter__))
        try:
            model = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on; what it opens has no user.
            opening.add_done_callback(lambda done: done.exception() or using.__exit__(None, None, None))
            raise
        try:
            read, end = question.reader(model)
            async with model.astream(question.messages, **question.arguments) as answer:
                async for event in answer:
                    for one in read(event):
                        yield one
            for one in end(answer.result()):
                yield one
        finally:
            using.__exit__(None, None, None)


def packages_of(models: OpenModels) -> list[tuple[EdgeModel, AsyncEdgeModel]]:
    """Return every package of the store, for callers that wait and for tasks; both use the same open model."""
    from edge_rt.store.layout import open_store

    store = open_store(models.store)
    names = [name for name in store.names() if store.has_package(name)]
    return [(EdgeModel(name, models), AsyncEdgeModel(name, models)) for name in names]


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register every package of the configured store; one that cannot be read has none."""
    try:
        both = packages_of(OpenModels())
    except EdgeRTError:
        # ``llm`` with other models goes on; `edge-rt list` says what is wrong.
        return
    for one in both:
        register(*one)
