"""A conversation: its messages, and the tokens by which the model knows them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence as Items
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Unpack

from edge_rt.errors import ConfigError
from edge_rt.package.documents import is_text
from edge_rt.runtime.aio import AsyncStream, Pump, read_whole
from edge_rt.runtime.answer_forms import PLAIN_ANSWER, AnswerForm
from edge_rt.runtime.chat_messages import (
    CHAT_FORMAT,
    CHAT_VERSION,
    ChatMessage,
    SavedChat,
    answer_message,
    read_chat,
    result_messages,
    rows_path,
)
from edge_rt.runtime.config import GenerationConfig, GenerationOptions
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.runner import closed
from edge_rt.runtime.generation import usable_ids
from edge_rt.runtime.results import Result
from edge_rt.runtime.stream import Stream, StreamOptions
from edge_rt.system.byte_size import counted
from edge_rt.system.files import remove, write_atomically
from edge_rt.system.option_names import known_options
from edge_rt.text.template import Inputs
from edge_rt.version import VERSION

if TYPE_CHECKING:
    from edge_rt.package.reader import Package
    from edge_rt.runtime.prompt_templates import Message
    from edge_rt.runtime.prompts import PromptEncoder
    from edge_rt.text.template_text import RenderedPrompt
    from edge_rt.text.tokenizer import Tokenizer


class ChatModel(Protocol):
    """What a conversation needs of a model; ``edge_rt.Model`` implements it."""

    package: Package
    pump: Pump | None
    usual_config: GenerationConfig

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def texts(self) -> PromptEncoder | None:
        """Tokenizer and chat template; None once the model is closed."""

    def render(
        self,
        messages: Items[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Return messages as the template writes them."""

    def check_prompt_fits(self, prompt: str | RenderedPrompt, config: GenerationConfig) -> None:
        """Refuse a prompt that cannot fit however it is cut into tokens."""

    def stream_ids(
        self,
        token_ids: Items[int],
        config: GenerationConfig,
        *,
        cancel: CancelToken | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        on_result: Callable[[Result], None] | None = None,
        called: float | None = None,
        form: AnswerForm = PLAIN_ANSWER,
    ) -> Stream:
        """Generate the continuation of token ids."""

    def save_rows(self, path: Path, token_ids: Items[int]) -> int:
        """Write what was computed of a prompt into a file; return of how many tokens."""

    def load_rows(self, path: Path) -> None:
        """Read what was computed of a prompt when it comes."""


@dataclass(frozen=True)
class _Context:
    """What the model has seen: the rendered prompt up to the end of the last answer, and its tokens."""

    prompt: RenderedPrompt
    token_ids: tuple[int, ...]


class Chat:
    """A conversation with a model; ``Model.chat`` makes one.

    Answers keep exactly the tokens that the model generated, so that a turn computes only new tokens. Several chats may
    share a model; each reuses the part of the cache that its prompt has in common with the last prompt.

    Args:
        model: the loaded model.
        system: the system message, or None for the template's own.
        tools: descriptions of functions that the model may call.
        documents: texts for templates that take such.
        template_args: further variables of the chat template, such as ``enable_thinking``.

    Attributes:
        messages: the conversation, the system message first if there is one. It may be changed freely between turns,
            as may the other attributes. An answer that calls tools has ``tool_calls``, and its content is the rest.
        tools, documents, template_args: as above.

    Raises:
        InvalidTemplate: the model has no chat template.
        ConfigError: the arguments are malformed.
    """

    def __init__(
        self,
        model: ChatModel,
        system: str | None = None,
        *,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        self.tools = tools
        self.documents = documents
        self.template_args: dict[str, Any] = dict(template_args or {})
        self._context: _Context | None = None
        self.messages: list[ChatMessage] = []
        self.system = system
        self._render([{"role": "user", "content": "x"}], tools)

    @property
    def system(self) -> str | None:
        """The system message; setting it changes the first message."""
        first = self.messages[0] if self.messages else None
        return first["content"] if first is not None and first["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        rest = self.messages[1:] if self.system is not None else self.messages
        first: list[ChatMessage] = [{"role": "system", "content": text}] if text is not None else []
        self.messages = first + rest

    @known_options(GenerationOptions)
    def send(
        self,
        text: str,
        config: GenerationConfig | None = None,
        *,
        cancel: CancelToken | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Result:
        """Send a message and return the whole answer; see ``stream`` for arguments and errors."""
        return self.stream(text, config, cancel=cancel, on_prefill_progress=on_prefill_progress, **options).result()

    @known_options(GenerationOptions)
    def stream(
        self,
        text: str,
        config: GenerationConfig | None = None,
        *,
        cancel: CancelToken | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Stream:
        """Send a message and read the answer piece by piece.

        When the generation ends, the message and its answer are added to ``messages``. A generation that failed, or was
        cancelled before its first token, adds neither; an answer that was stopped later is kept, marked
        ``interrupted``.

        Args:
            text: the user's message.
            config: the options.
            cancel: stops the generation, from any thread.
            on_prefill_progress: called with the tokens computed so far and the tokens of the prompt.
            **options: fields of ``GenerationConfig`` that replace those of ``config``.

        Raises:
            ContextOverflow, ConfigError, InvalidTemplate, ModelClosed; on iteration also Busy and InferenceError.
        """
        asked: list[ChatMessage] = [*self.messages, {"role": "user", "content": text}]
        return self._answer(asked, config, cancel, on_prefill_progress, options)

    @known_options(GenerationOptions)
    def send_tool_results(
        self,
        results: Items[Any],
        config: GenerationConfig | None = None,
        *,
        cancel: CancelToken | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Result:
        """Send the results of calls and return the whole answer; see ``stream_tool_results``."""
        return self.stream_tool_results(
            results, config, cancel=cancel, on_prefill_progress=on_prefill_progress, **options
        ).result()

    @known_options(GenerationOptions)
    def stream_tool_results(
        self,
        results: Items[Any],
        config: GenerationConfig | None = None,
        *,
        cancel: CancelToken | None = None,
        on_prefill_progress: Callable[[int, int], None] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Stream:
        """Send the results of the calls in the last answer, and read the next answer as with ``stream``.

        Args:
            results: a list, one item for each call, in their order: texts, or plain data, which is written as JSON.
            config: the options.
            cancel: stops the generation, from any thread.
            on_prefill_progress: called with the tokens computed so far and the tokens of the prompt.
            **options: fields of ``GenerationConfig`` that replace those of ``config``.

        Raises:
            ConfigError: the last answer calls nothing, or has another number of calls.
            ContextOverflow, InvalidTemplate, ModelClosed; on iteration also Busy and InferenceError.
        """
        asked = [*self.messages, *result_messages(self.messages, results)]
        return self._answer(asked, config, cancel, on_prefill_progress, options)

    @known_options(StreamOptions)
    async def asend(
        self, text: str, config: GenerationConfig | None = None, **options: Unpack[StreamOptions]
    ) -> Result:
        """Run ``send`` in a worker thread; cancelling the task stops the generation."""
        return await read_whole(self.astream(text, config, **options))

    @known_options(StreamOptions)
    async def asend_tool_results(
        self, results: Items[Any], config: GenerationConfig | None = None, **options: Unpack[StreamOptions]
    ) -> Result:
        """Run ``send_tool_results`` in a worker thread; cancelling the task stops the generation."""
        return await read_whole(
            AsyncStream(partial(self.stream_tool_results, results, config, **options), self._model.pump)
        )

    @known_options(StreamOptions)
    def astream(
        self, text: str, config: GenerationConfig | None = None, **options: Unpack[StreamOptions]
    ) -> AsyncStream:
        """Run ``stream`` in a worker thread."""
        return AsyncStream(partial(self.stream, text, config, **options), self._model.pump)

    @known_options(GenerationOptions)
    def regenerate(
        self,
        config: GenerationConfig | None = None,
        *,
        cancel: CancelToken | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Stream:
        """Answer the last message, of the user or a result of a call, again; the new answer then replaces the old one.

        Raises:
            ConfigError: there is no user message.
        """
        asked = list(self.messages)
        while asked and asked[-1]["role"] == "assistant":
            asked.pop()
        if not asked or asked[-1]["role"] not in ("user", "tool"):
            raise ConfigError("There is nothing to answer.", "The chat has no user message.", "Say something first.")
        return self._answer(asked, config, cancel, None, options)

    @known_options(GenerationOptions)
    def resume(
        self,
        config: GenerationConfig | None = None,
        *,
        cancel: CancelToken | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Stream:
        """Continue the last answer, or its thoughts, where it ends; what is new is added to its message.

        Raises:
            ConfigError: the last message is no answer, or one that calls tools.
        """
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise ConfigError("There is no answer to continue.", "The last message is none.", "Say something first.")
        return self._answer(self.messages[:-1], config, cancel, None, options, begun=self.messages[-1])

    def _answer(
        self,
        asked: list[ChatMessage],
        config: GenerationConfig | None,
        cancel: CancelToken | None,
        on_prefill: Callable[[int, int], None] | None,
        options: GenerationOptions,
        begun: ChatMessage | None = None,
    ) -> Stream:
        called = time.perf_counter()
        config = (config or self._model.usual_config).with_options(**options)
        tools = config.shown(self.tools)
        prompt = self._render(asked, tools) if begun is None else self._render_begun([*asked, begun], tools)
        self._model.check_prompt_fits(prompt, config)
        token_ids = self._encode(prompt)

        texts = self._model.texts
        form = PLAIN_ANSWER if texts is None else texts.form_of(prompt, tools)

        def on_result(result: Result) -> None:
            if result.finish_reason == "cancelled" and not result.token_ids:
                return
            writes_calls = texts is not None and texts.writes_calls(tools)
            names = None if form.tools is None else form.tools.names
            self.messages = [*asked, answer_message(result, asked, names, writes_calls=writes_calls, begun=begun)]
            self._remember(prompt, token_ids, result)

        return self._model.stream_ids(
            token_ids,
            config,
            cancel=cancel,
            on_prefill_progress=on_prefill,
            on_result=on_result,
            called=called,
            form=form,
        )

    def _render(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool = True,
    ) -> RenderedPrompt:
        return self._model.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            documents=self.documents,
            template_args=self.template_args,
        )

    def _render_begun(self, messages: Items[Message], tools: Items[Mapping[str, Any]] | None) -> RenderedPrompt:
        texts = self._model.texts
        if texts is None:
            raise closed()
        return texts.render_question(messages, Inputs(tools, self.documents, self.template_args))

    def _encode(self, prompt: RenderedPrompt) -> list[int]:
        """Return the token ids of a prompt; only the text after the part whose tokens are known is encoded."""
        context = self._context
        if context is None or not prompt.starts_with(context.prompt):
            return self._model.tokenizer.encode_rendered(prompt)
        rest = prompt.suffix(len(context.prompt.text))
        return [*context.token_ids, *self._model.tokenizer.encode_rendered(rest, continues=True)]

    def _remember(self, prompt: RenderedPrompt, prompt_ids: list[int], result: Result) -> None:
        tokenizer = self._model.tokenizer
        answer_ids = usable_ids(result.token_ids, frozenset(tokenizer.eos_token_ids))
        # Tokens that the text does not show would not match the next prompt.
        has_more = result.reasoning or result.tool_calls or not tokenizer.special_ids.isdisjoint(answer_ids)
        if result.stop_string is not None or has_more:
            self._context = None
            return
        self._context = _Context(prompt.followed_by(result.text), (*prompt_ids, *answer_ids))

    def undo(self) -> bool:
        """Drop the last user message and its answer; return whether there was one."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index]["role"] == "user":
                del self.messages[index:]
                return True
        return False

    def clear(self) -> None:
        """Drop everything but the system message."""
        self.messages = self.messages[:1] if self.system is not None else []

    def fork(self) -> Chat:
        """Return an independent copy of the conversation on the same model."""
        other = Chat(self._model)
        other.continue_from(self)
        other._context = self._context
        return other

    @known_options()
    def continue_from(self, other: Chat) -> None:
        """Take over the messages of another conversation, with its tools, documents and arguments."""
        self.messages = [message.copy() for message in other.messages]
        self.tools, self.documents, self.template_args = other.tools, other.documents, dict(other.template_args)

    def token_count(self) -> int:
        """Return how many tokens the conversation takes, without the tokens that begin an answer."""
        if not self.messages:
            return 0
        return len(self._encode(self._render(self.messages, self.tools, add_generation_prompt=False)))

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            "A chat cannot be pickled or copied.",
            "It belongs to a model, which holds memory of this process.",
            "Use fork() for a second one with the same model, save() and load() for another process.",
        )

    def __repr__(self) -> str:
        name, count = self._model.package.path.name, counted(len(self.messages), "message")
        return f"<edge_rt.Chat with {name!r}, {count}>"

    @known_options()
    def save(self, path: str | Path, *, settings: Mapping[str, Any] | None = None, with_cache: bool = False) -> None:
        """Write the conversation as JSON, readable by its owner only.

        Args:
            path: file to write; replaced whole or not at all.
            settings: options to save with it, as a JSON object.
            with_cache: write what the model has computed of it as well, into a file beside it that is called like it,
                with ``.rows`` behind. Of a conversation that is not the last one that the model answered, that may be
                its beginning alone.

        Raises:
            StorageError: a file cannot be written.
            ConfigError: ``with_cache``, and rows of this model's cache cannot be stored.
            Busy: ``with_cache``, and the model is generating.
        """
        path = Path(path).expanduser()
        document: dict[str, Any] = {
            "format": CHAT_FORMAT,
            "version": CHAT_VERSION,
            "producer": f"edge-rt {VERSION}",
            "model": self._model.package.manifest.model.name,
            "package_id": self._model.package.id,
            "settings": dict(settings or {}),
            "messages": self.messages,
        }
        if with_cache:
            token_ids = (
                self._encode(self._render(self.messages, self.tools, add_generation_prompt=False))
                if self.messages
                else []
            )
            document["cached_tokens"] = self._model.save_rows(rows_path(path), token_ids)
            if not document["cached_tokens"]:
                # Those of another conversation that was saved there.
                remove(rows_path(path))
            document["token_ids"] = [] if self._context is None else self._context.token_ids
        text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
        if not is_text(text):
            text = json.dumps(document, indent=2) + "\n"
        write_atomically(path, [text.encode()], private=True)

    @known_options()
    def load(self, path: str | Path, *, with_cache: bool = True) -> SavedChat:
        """Replace the conversation by a saved one; nothing changes if it cannot be read.

        Args:
            path: the file.
            with_cache: read what was saved ``with_cache`` of it when the next answer begins; False: compute it.

        Returns:
            The other contents of the file; compare ``package_id`` to see whether it was a conversation with another
            model.

        Raises:
            StorageError: the file cannot be read.
            InputError: it is not a saved chat, or the model's template refuses it.
            InvalidPromptCache: what was saved with it is damaged, or of another package or format of the cache.
            ConfigError: the same, where this model's cache cannot have it.
        """
        path = Path(path).expanduser()
        saved = read_chat(path)
        if any(message["role"] == "user" for message in saved.messages):
            self._render(saved.messages, self.tools)
        if with_cache and saved.cached_tokens:
            self._model.load_rows(rows_path(path))
        self.messages = [message.copy() for message in saved.messages]
        self._context = self._saved_context(saved.token_ids)
        return saved

    def _saved_context(self, token_ids: tuple[int, ...]) -> _Context | None:
        """Return what the model saw, as it was saved; None if these tokens are not the conversation up to now.

        A model may cut an answer into other tokens than its tokenizer does.
        """
        if not token_ids or not self.messages or self.messages[-1]["role"] != "assistant":
            return None
        prompt = self._render(self.messages[:-1], self.tools).followed_by(self.messages[-1]["content"])
        tokenizer = self._model.tokenizer
        if any(not 0 <= token < tokenizer.vocab_size for token in token_ids):
            return None
        usual = tokenizer.encode_rendered(prompt)
        spelt, expected = (tokenizer.decode(ids, skip_special=False) for ids in (token_ids, usual))
        return _Context(prompt, token_ids) if spelt == expected else None
