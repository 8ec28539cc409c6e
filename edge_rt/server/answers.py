"""Answers to one request: what every API's request becomes, and the pieces in which its answers come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from edge_rt.errors import ContextOverflow, EdgeRTError
from edge_rt.runtime.aio import AsyncStream
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.model import Model
from edge_rt.runtime.prompts import Prompt
from edge_rt.runtime.results import Event, Result, TokenLogProb
from edge_rt.runtime.stream import Stream
from edge_rt.server.failures import HTTPFailure, failure_of, stopped
from edge_rt.server.models import LoadedModel
from edge_rt.server.request_fields import with_system
from edge_rt.server.shared import Server
from edge_rt.text.call_stream import CallPiece, CallStream
from edge_rt.text.template import Inputs

if TYPE_CHECKING:
    from edge_rt.store.config import Preset

_QUEUE_PIECES: Final = 64


@dataclass(frozen=True)
class AnswerRequest:
    """What is asked for, whatever API has asked.

    Attributes:
        model: a name; None: the usual model.
        prompt: messages, a text or token ids.
        options: fields of ``GenerationConfig``.
        usual: the same, where neither the request nor its preset says anything.
        limit: the request's field that ``max_tokens`` was in, as failures name it; None: it had none.
        more: further prompts.
        count: answers to each.
        infill: what comes before and behind the answer; the prompt is made of both.
        needs_count: whether the prompt's tokens are to be known before the answer, and the most tokens of the answer
            are those that fit.
    """

    model: str | None
    prompt: Prompt
    options: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]] | None = None
    template_args: Mapping[str, Any] | None = None
    more: tuple[Prompt, ...] = ()
    count: int = 1
    infill: tuple[str, str] | None = None
    needs_count: bool = False
    usual: Mapping[str, Any] = field(default_factory=dict)
    limit: str | None = "max_tokens"

    def with_preset(self, preset: Preset | None) -> AnswerRequest:
        """Return the request with a preset's options and system message where it has none of its own."""
        if preset is None:
            return self
        prompt = self.prompt
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            prompt = with_system([dict(one) for one in prompt if isinstance(one, Mapping)], preset)
        limit = self.limit if "max_tokens" in self.options else None
        return replace(self, prompt=prompt, options={**preset.options, **self.options}, limit=limit)

    @property
    def needs_grammar(self) -> bool:
        """Whether its answers are held to a schema of its own from their beginning."""
        return "response_format" in self.options or self.options.get("tool_choice") not in (None, "none", "auto")

    @property
    def begun(self) -> str:
        """The answer so far, if the messages end with the beginning of one."""
        last = self.prompt[-1] if self.prompt and not isinstance(self.prompt, str) else None
        is_begun = isinstance(last, Mapping) and last.get("role") == "assistant"
        content = last.get("content") if is_begun and isinstance(last, Mapping) else None
        return content if isinstance(content, str) else ""


@dataclass(frozen=True)
class Piece:
    """A piece of an answer.

    Attributes:
        index: of the answer.
        calls: pieces of calls of tools.
        step: what it was made of; None: what was held back.
        result: with the last piece of an answer; its text is the whole answer.
    """

    index: int
    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()
    logprobs: tuple[TokenLogProb, ...] = ()
    result: Result | None = None
    step: Event | None = None


@dataclass
class WholeAnswer:
    """An answer at its end.

    Attributes:
        text: without calls.
        reasoning_tokens: tokens of its thoughts.
    """

    text: str = ""
    reasoning: str = ""
    reasoning_tokens: int = 0
    result: Result | None = None

    def call_pieces(self) -> tuple[CallPiece, ...]:
        """Return its calls, each whole."""
        return tuple(
            CallPiece(index, call.name, json.dumps(call.arguments, ensure_ascii=False))
            for index, call in enumerate(self.ended.tool_calls)
        )

    @property
    def ended(self) -> Result:
        """The result, which is there."""
        assert self.result is not None, "the answer has not ended"
        return self.result


@dataclass(eq=False)
class Answers:
    """The answers to a request, under way.

    Attributes:
        count: answers to each prompt.
        prompt_tokens: of the prompt, if they were asked for.
        whole: the answers so far.
    """

    entry: LoadedModel
    streams: list[Stream]
    calls: list[CallStream]
    count: int
    on_result: Callable[[Result], None]
    prompt_tokens: int | None = None
    whole: list[WholeAnswer] = field(default_factory=list)
    _opened: list[AsyncStream] = field(default_factory=list)
    _is_stopped: bool = False
    _pieces: asyncio.Queue[Piece | HTTPFailure] = field(default_factory=lambda: asyncio.Queue(_QUEUE_PIECES))
    _num_ended: int = 0

    async def next(self, seconds: float | None = None) -> Piece | None:
        """Return the next piece; None: there is none yet, after so many seconds, or all answers have ended.

        Raises:
            HTTPFailure: an answer has failed.
        """
        if self.have_ended:
            return None
        if self._is_stopped and self._pieces.empty():
            raise stopped()
        try:
            # Not ``wait_for``, which loses a cancellation that comes together with the piece (Python 3.11).
            async with asyncio.timeout(seconds):
                piece = await self._pieces.get()
        except TimeoutError:
            return None
        if isinstance(piece, HTTPFailure):
            raise piece
        self._num_ended += piece.result is not None
        return piece

    @property
    def have_ended(self) -> bool:
        """Whether no further piece comes."""
        return self._num_ended == len(self.streams)

    def stop(self) -> None:
        """End all answers, which then have failed: at once, whatever is computed."""
        self._is_stopped = True
        if self._pieces.empty():
            self._pieces.put_nowait(stopped())  # for who waits for a piece
        for stream in self._opened:
            stream.cancel()

    async def all(self) -> list[WholeAnswer]:
        """Wait for the end of all answers, and return them."""
        while not self.have_ended:
            await self.next()
        return self.whole

    async def read(self, index: int) -> None:
        """Read one answer into the pieces."""
        async with AsyncExitStack() as stack:
            try:
                if self.entry.turn is not None:
                    await stack.enter_async_context(self.entry.turn)
                if self._is_stopped:
                    raise stopped()
                opened = AsyncStream(lambda: self.streams[index], self.entry.model.pump)
                self._opened.append(opened)
                stream = await stack.enter_async_context(opened)
                async for event in stream:
                    await self._pieces.put(self._piece(index, event))
                await self._pieces.put(self._last(index, stream.result()))
            except EdgeRTError as error:
                await self._pieces.put(_caused(failure_of(error), error))
            except HTTPFailure as failure:
                await self._pieces.put(failure)
            except Exception as error:
                # Whoever waits for a piece has to hear of it; its text may hold what was asked.
                what = f"The server failed: {type(error).__name__}."
                await self._pieces.put(_caused(HTTPFailure(500, what, code="server_error"), error))

    def _piece(self, index: int, event: Event) -> Piece:
        text, calls = self.calls[index].push(event.text)
        whole = self.whole[index]
        whole.text += text
        whole.reasoning += event.reasoning
        if event.reasoning and not event.text:
            whole.reasoning_tokens += len(event.token_ids)
        return Piece(index, text, event.reasoning, calls, event.logprobs, step=event)

    def _last(self, index: int, result: Result) -> Piece:
        if result.finish_reason == "cancelled":
            raise stopped()
        text, calls = self.calls[index].finish(result.tool_calls)
        whole = self.whole[index]
        whole.text, whole.result = whole.text + text, result
        self.on_result(result)
        return Piece(index, text, "", calls, (), result)


def _caused(failure: HTTPFailure, error: Exception) -> HTTPFailure:
    """Return a failure that knows its cause, which is for the log alone."""
    failure.__cause__ = error
    return failure


@asynccontextmanager
async def answering(server: Server, entry: LoadedModel, asked: AnswerRequest) -> AsyncGenerator[Answers]:
    """Begin the answers to a request; what has not ended with the block is stopped.

    Raises:
        EdgeRTError: the request cannot be answered; nothing was computed.
    """
    model, run = entry.model, server.encoded
    prompts, most = 1 + len(asked.more), model.most_under_way
    if most is not None and prompts * asked.count > most:
        what = f"Prompts times 'n' are {prompts} x {asked.count} answers; this server takes {most} at once."
        raise HTTPFailure(400, f"{what} Ask for fewer.", param="n" if asked.count > 1 else "prompt")
    # With room for them grammars of calls that may never come are made as well: in a step they would hold up others.
    if asked.needs_grammar or (asked.tools is not None and model.plan.request.formats):
        run = server.compiled
        with suppress(EdgeRTError):  # Whoever comes to need them says why there are none.
            if model.texts is not None:
                # Made once for each model, which may take longer than a request's schema.
                await server.encoded(model.texts.grammars.prepare)
    try:
        answers = await run(partial(_opened, entry, asked, server.counters.add))
    except ContextOverflow as error:
        raise failure_of(error, asked.limit) from error
    tasks = [asyncio.create_task(answers.read(index)) for index in range(len(answers.streams))]
    server.stops.add(answers.stop)
    try:
        yield answers
    finally:
        server.stops.discard(answers.stop)
        for task in tasks:
            task.cancel()
        await server.settle(*tasks)


def _opened(entry: LoadedModel, asked: AnswerRequest, on_result: Callable[[Result], None]) -> Answers:
    model, config = entry.model, GenerationConfig(**{**asked.usual, **asked.options})
    given: dict[str, Any] = {"tools": asked.tools, "template_args": asked.template_args}
    count = None
    if asked.needs_count:
        texts, inputs = model.texts, Inputs(config.shown(asked.tools), None, asked.template_args)
        assert texts is not None, "the model is open"
        count = texts.count_tokens(asked.prompt, inputs, most=model.context_tokens)
        if count < model.context_tokens < count + (config.max_tokens or 0):
            # These clients have to say a limit, and say a large one: the answer ends where the context does.
            config = config.with_options(max_tokens=None)
    streams: list[Stream] = []
    prompts = (asked.prompt, *asked.more) if asked.infill is None else (infill_prompt(model, *asked.infill),)
    for prompt in prompts:
        for index in range(asked.count):
            # One seed, and answers that differ.
            one = config if config.seed is None else config.with_options(seed=(config.seed + index) % (1 << 64))
            streams.append(model.stream(prompt, one, **given))
    texts = model.texts
    calls = [
        CallStream(None) if texts is None else texts.call_stream(config, asked.tools, asked.begun) for _ in streams
    ]
    return Answers(entry, streams, calls, asked.count, on_result, count, [WholeAnswer() for _ in streams])


INFILL_TOKENS: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 -- so they are written
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
)
"""Tokens in front of what comes before the text that is wanted, of what comes behind it, and of that text."""


def infill_prompt(model: Model, before: str, behind: str) -> list[int]:
    """Return the prompt for a text between two others.

    Raises:
        HTTPFailure: the model has no tokens for that.
    """
    tokenizer = model.tokenizer
    for names in INFILL_TOKENS:
        ids = [tokenizer.token_to_id(name) for name in names]
        prefix, suffix, middle = ids
        if prefix is None or suffix is None or middle is None:
            continue
        start = [tokenizer.bos_token_id] if tokenizer.add_bos and tokenizer.bos_token_id is not None else []
        inner = (prefix, *tokenizer.encode_text(before), suffix, *tokenizer.encode_text(behind), middle)
        return [*start, *inner]
    what = "This model has no tokens for texts between two others. Use one for code, or continue one text."
    raise HTTPFailure(400, what, param="suffix", code="unsupported")
