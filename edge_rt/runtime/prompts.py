"""Turns a prompt (text, messages or token ids) into token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Items
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeGuard

import numpy as np

from edge_rt.errors import (
    ConfigError,
    ContextOverflow,
    InvalidTemplate,
    ReferenceBudgetExceeded,
    StorageError,
)
from edge_rt.memory.budget import EncodingBudget
from edge_rt.package.reader import Package
from edge_rt.runtime.answer_forms import PLAIN_ANSWER, AnswerForm, AnswerGrammars
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.answer_grammar import AnswerGrammar
from edge_rt.text.answer_format import AnswerFormat
from edge_rt.text.call_stream import CallStream
from edge_rt.text.call_syntaxes import find_syntax
from edge_rt.text.template import NO_INPUTS, ChatTemplate, Inputs
from edge_rt.text.template_messages import THOUGHT_FIELDS
from edge_rt.text.template_text import RenderedPrompt
from edge_rt.text.thoughts import ThoughtMarkers, answer_so_far, find_markers
from edge_rt.text.token_bytes import IncrementalDecoder
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tokenizer_reading import KeptReadings
from edge_rt.text.tool_calls import Tools

Message = Mapping[str, Any]
Prompt = str | Items[int] | Items[Message]
_COUNTED_CHARACTERS: Final = 1 << 16
"""Characters of a prompt that does not fit, up to which its tokens are counted: less than a tenth of a second."""


class PromptEncoder:
    """Tokenizer and chat template of a package.

    Args:
        like: the encoder of another model; its tokenizer is shared, and not read again, if the package has the same
            one.
        budget: memory for text that has to be encoded at once because it cannot be cut; None: no limit.
        kept: readings of tokenizers that were checked before; None: the file is parsed and checked.
    """

    def __init__(
        self,
        package: Package,
        context_tokens: int,
        like: PromptEncoder | None = None,
        *,
        budget: EncodingBudget | None = None,
        kept: KeptReadings | None = None,
    ) -> None:
        manifest = package.manifest
        self._source = _tokenizer_source(package)
        tokenizer = like.tokenizer if like is not None and like.has_tokenizer_of(package) else None
        self.tokenizer: Tokenizer = tokenizer or Tokenizer.from_file(
            package.file(manifest.tokenizer.file),
            info=manifest.tokenizer,
            embedding_rows=manifest.model.vocab_size,
            kept=kept,
        )
        self._template = _load_template(package, self.tokenizer, manifest.chat_template)
        self._tool_template: ChatTemplate | InvalidTemplate | None = None
        if manifest.tool_template is not None:
            self._tool_template = _load_template(package, self.tokenizer, manifest.tool_template)
        self._context_tokens = context_tokens
        self._model_tokens = manifest.model.context_length
        self._vocab_size = manifest.model.vocab_size
        self._budget = budget
        reserve = None if budget is None else partial(budget.reserve_tables, self._vocab_size)
        self.grammars = AnswerGrammars(self.tokenizer, self._vocab_size, reserve)

    def grammar(
        self, config: GenerationConfig, form: AnswerForm, *, ahead: bool = False
    ) -> tuple[AnswerFormat | None, AnswerGrammar] | None:
        """Return what an answer has to fit, and what lets only such answers through; see ``AnswerGrammars.of``."""
        return self.grammars.of(config, form, ahead=ahead)

    def has_tokenizer_of(self, package: Package) -> bool:
        """Return whether a package's tokenizer is this one."""
        return self._source == _tokenizer_source(package)

    @property
    def template_source(self) -> str | None:
        """Source of the chat template in use, or None."""
        return None if isinstance(self._template, InvalidTemplate) else self._template.source

    @property
    def template_variables(self) -> frozenset[str]:
        """Names of the arguments that the chat templates read, such as ``enable_thinking``."""
        both = (self._template, self._tool_template)
        return frozenset().union(*(one.variables for one in both if isinstance(one, ChatTemplate)))

    def render(
        self,
        messages: Items[Message],
        inputs: Inputs = NO_INPUTS,
        *,
        add_generation_prompt: bool = True,
    ) -> RenderedPrompt:
        """Return messages as the template writes them; the arguments are those of ``ChatTemplate.render``.

        Raises:
            InvalidTemplate: there is no template, or it refuses the messages.
        """
        template = self._template_with(inputs.tools)
        if isinstance(template, InvalidTemplate):
            raise _copy_of(template)
        return template.render(messages, inputs, add_generation_prompt=add_generation_prompt)

    def _template_with(self, tools: Items[Mapping[str, Any]] | None) -> ChatTemplate | InvalidTemplate:
        return self._template if not tools or self._tool_template is None else self._tool_template

    @property
    def has_fallback_template(self) -> bool:
        """Whether the package has no chat template and messages are written as ChatML."""
        return isinstance(self._template, ChatTemplate) and self._template.is_fallback

    def require_places(self, inputs: Inputs) -> None:
        """Refuse tools or documents that the template would leave out; see ``ChatTemplate.require_places``."""
        template = self._template_with(inputs.tools)
        if isinstance(template, ChatTemplate):
            template.require_places(inputs)

    def writes_calls(self, tools: Items[Mapping[str, Any]] | None) -> bool:
        """Return whether the template that is used with these tools writes the ``tool_calls`` of messages."""
        template = self._template_with(tools)
        return isinstance(template, ChatTemplate) and "tool_calls" in template.source

    def thoughts_after(self, prompt: RenderedPrompt) -> ThoughtMarkers | None:
        """Return how thoughts are marked in the answer to a prompt; None for a model that marks none."""
        if isinstance(self._template, InvalidTemplate):
            return None
        return find_markers(self._template.source, self.tokenizer.token_to_id, prompt.text)

    def check_prompt_fits(self, prompt: str | RenderedPrompt, config: GenerationConfig) -> None:
        """Refuse a prompt that is too long however it is cut into tokens, before seconds are spent on encoding it.

        Raises:
            ContextOverflow: with about the number of tokens that it has.
            EncodingBudgetExceeded: a part of it has to be encoded at once, and neither the memory plan nor the rest of
                its budget has room for that.
        """
        text = prompt if isinstance(prompt, str) else prompt.text
        least = self.tokenizer.min_tokens(text)
        if least + (config.max_tokens or 1) > self._context_tokens:
            raise self._overflow(prompt, config, least)
        self._require_encodable(text)

    def check_length(self, token_ids: Items[int], config: GenerationConfig) -> None:
        """Refuse token ids that do not fit the context."""
        requested = config.max_tokens or 1
        if len(token_ids) + requested > self._context_tokens:
            raise ContextOverflow(len(token_ids), requested, self._context_tokens, model_tokens=self._model_tokens)

    def _overflow(self, prompt: str | RenderedPrompt, config: GenerationConfig, least: int) -> ContextOverflow:
        """Return the error of a prompt that does not fit; its tokens are counted if that is quick, else estimated."""
        text = prompt if isinstance(prompt, str) else prompt.text
        is_counted = len(text) <= _COUNTED_CHARACTERS and self._is_planned(text)
        tokens = len(self._encoded(prompt)) if is_counted else max(self.tokenizer.estimate(text), least)
        return ContextOverflow(
            tokens,
            config.max_tokens or 1,
            self._context_tokens,
            is_estimate=not is_counted,
            model_tokens=self._model_tokens,
        )

    def count_tokens(
        self,
        prompt: Prompt,
        inputs: Inputs = NO_INPUTS,
        *,
        most: int | None = None,
    ) -> int:
        """Return the number of tokens of a prompt, however long it is; arguments and errors as in ``prepare``.

        ``ContextOverflow`` is raised only for more than ``most`` tokens, before time and memory are spent on them.
        """
        taken = self._taken(prompt, inputs)
        if isinstance(taken, list):
            return len(taken)
        if most is not None:
            return len(self.encoded_within(taken, most))
        self._require_encodable(taken if isinstance(taken, str) else taken.text)
        return len(self._encoded(taken))

    def encoded_within(self, prompt: str | RenderedPrompt, most: int) -> list[int]:
        """Return the token ids of a text or of rendered messages.

        Raises:
            ContextOverflow: they are more than ``most``; with about their number.
        """
        text = prompt if isinstance(prompt, str) else prompt.text
        least = self.tokenizer.min_tokens(text)
        if least <= most:
            self._require_encodable(text)
            ids = self._within(prompt, most)
            if isinstance(ids, list):
                return ids
            least = ids
        tokens = max(self.tokenizer.estimate(text), least)
        raise ContextOverflow(tokens, 0, most, is_estimate=True, model_tokens=self._model_tokens)

    def _within(self, prompt: str | RenderedPrompt, most: int) -> list[int] | int:
        """Return the token ids of a prompt; if they are more than ``most``, a number that they exceed as well."""
        if not isinstance(prompt, str):
            return self.tokenizer.encode_spans_within(prompt.spans(), most)
        bos = self.tokenizer.bos_token_id
        start = [bos] if self.tokenizer.add_bos and bos is not None else []
        ids = self.tokenizer.encode_within(prompt, most - len(start))
        return ids if isinstance(ids, int) else [*start, *ids]

    def whole_text(self, text: str | Items[int]) -> list[int]:
        """Return the token ids of a text of any length, or checked token ids; errors as in ``prepare``."""
        if is_messages(text):
            raise ConfigError("Messages have no score.", "Texts and token ids have one.", "Pass render(messages).text.")
        taken = self._taken(text)
        if isinstance(taken, list):
            return taken
        assert isinstance(taken, str), "no messages"
        self._require_encodable(taken)
        return self._encoded(taken)

    def estimate_tokens(self, text: str) -> tuple[int, bool]:
        """Return the number of tokens of a text; about that number if the text does not fit the context.

        Returns:
            The number, and whether it is exact.
        """
        found = self.tokenizer.min_tokens(text)
        if found <= self._context_tokens:
            self._require_encodable(text)
            ids = self.tokenizer.encode_within(text, self._context_tokens)
            if not isinstance(ids, int):
                return len(ids), True
            found = ids
        return max(self.tokenizer.estimate(text), found), False

    def _encoded(self, prompt: str | RenderedPrompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode_prompt(prompt)
        return self.tokenizer.encode_rendered(prompt)

    def _is_planned(self, text: str) -> bool:
        """Return whether the memory plan has room to encode a text."""
        return self._budget is None or self.tokenizer.longest_stretch(text) <= self._budget.planned_bytes

    def _require_encodable(self, text: str) -> None:
        # A character has four bytes at most.
        if self._budget is not None and 4 * len(text) > self._budget.planned_bytes:
            self._budget.require(self.tokenizer.longest_stretch(text))

    def decoder(self, form: AnswerForm) -> IncrementalDecoder:
        """Return a decoder that shows the special tokens among an answer's markers, and no others."""
        markers, tokenizer = form.markers, self.tokenizer
        shown = {tokenizer.token_to_id(token) for token in tokenizer.special_tokens if token in markers}
        return IncrementalDecoder(tokenizer.token_bytes, tokenizer.special_ids - shown)

    def prepare(
        self,
        prompt: Prompt,
        config: GenerationConfig,
        inputs: Inputs = NO_INPUTS,
    ) -> tuple[list[int], AnswerForm]:
        """Return the token ids of a prompt, and what the answer may have besides its text.

        Raises:
            ConfigError: it is neither a text, nor messages, nor ids; or tools, documents or arguments were given for a
                prompt without messages.
        """
        taken = self._taken(prompt, inputs)
        if isinstance(taken, list):
            self.check_length(taken, config)
            return taken, PLAIN_ANSWER
        self.check_prompt_fits(taken, config)
        room = self._context_tokens - (config.max_tokens or 1)
        form = PLAIN_ANSWER if isinstance(taken, str) else self.form_of(taken, inputs.tools)
        ids = self._within(taken, room)
        if isinstance(ids, int):
            raise self._overflow(taken, config, ids)
        return ids, form

    def _taken(
        self,
        prompt: Prompt,
        inputs: Inputs = NO_INPUTS,
    ) -> str | list[int] | RenderedPrompt:
        """Return a prompt as a text, as token ids or as rendered messages; errors as in ``prepare``."""
        if is_messages(prompt):
            return self.render_question(prompt, inputs)
        if names := inputs.names:
            raise ConfigError(
                "The prompt is no list of messages, and only these go through the chat template.",
                f"It came with {', '.join(names)}.",
                "Pass messages, or leave them out.",
            )
        if isinstance(prompt, str):
            return prompt
        items: Any = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
        return self._checked_ids(list(items) if isinstance(items, list | tuple) else [repr(prompt)])

    def render_question(self, messages: Items[Message], inputs: Inputs = NO_INPUTS) -> RenderedPrompt:
        """Return messages as the prompt of an answer; where they end with the assistant's turn, it is continued.

        Raises:
            ConfigError: the turn cannot be continued.
            InvalidTemplate: there is no template, or it refuses the messages.
        """
        *before, last = messages
        if not isinstance(last, Mapping) or last.get("role") != "assistant":
            return self.render(messages, inputs)
        content = last.get("content") or ""
        reasoning = next((text for name in THOUGHT_FIELDS if (text := last.get(name))), "")
        if not before or last.get("tool_calls") or not (isinstance(content, str) and isinstance(reasoning, str)):
            raise ConfigError(
                "The last message is an answer that cannot be continued.",
                "It follows nothing." if not before else "It calls tools, or is no text.",
                "Only texts and thoughts behind another message are continued; put a message behind others.",
            )
        prompt = self.render(before, inputs)
        markers = self.thoughts_after(prompt)
        if reasoning and markers is None:
            raise ConfigError(
                "The last message has thoughts, and this model marks none.",
                f"{len(reasoning)} characters of thoughts.",
                "Leave the thoughts out.",
            )
        for text, is_marker in answer_so_far(markers, reasoning, content):
            prompt = prompt.followed_by_own(text) if is_marker else prompt.followed_by(text)
        return replace(prompt, ends_in="answer" if content else "thought" if reasoning else "question", begun=content)

    def form_of(self, prompt: RenderedPrompt, tools: Items[Mapping[str, Any]] | None) -> AnswerForm:
        """Return what the answer to rendered messages, which came with tools or without, may have besides its text."""
        thoughts = None if prompt.ends_in == "answer" else self.thoughts_after(prompt)
        if prompt.ends_in == "thought" and thoughts is not None:
            thoughts = replace(thoughts, is_begun=True)
        return AnswerForm(thoughts, self.callable_tools(tools), prompt.begun) if tools else AnswerForm(thoughts)

    def callable_tools(self, tools: Items[Mapping[str, Any]]) -> Tools:
        """Return functions with how the template that is used with them writes calls."""
        template = self._template_with(tools)
        syntax = find_syntax(template.source) if isinstance(template, ChatTemplate) else None
        return Tools(tuple(tools), syntax)

    def call_stream(
        self, config: GenerationConfig, tools: Items[Mapping[str, Any]] | None, begun: str = ""
    ) -> CallStream:
        """Return what takes calls out of the text of an answer while it is written.

        Args:
            config: the answer's options.
            tools: functions that were given with the prompt.
            begun: the answer so far, if the messages end with the beginning of one.
        """
        shown = None if config.has_format else config.shown(tools)
        return CallStream(self.callable_tools(shown) if shown else None, begun)

    def encode_reference(self, text: str, most: int | None) -> list[int]:
        """Return the token ids of a text that an answer may copy.

        Args:
            most: most tokens that the drafters may hold; None: no limit.

        Raises:
            ReferenceBudgetExceeded: the text has more tokens; it is not encoded to its end then.
        """
        if most is None:
            return self.tokenizer.encode_text(text)
        least = self.tokenizer.min_tokens(text)
        if least <= most:
            self._require_encodable(text)
        found = least if least > most else self.tokenizer.encode_within(text, most)
        if isinstance(found, int):
            raise ReferenceBudgetExceeded(max(self.tokenizer.estimate(text), found), most, is_estimate=True)
        return found

    def _checked_ids(self, items: list[Any]) -> list[int]:
        size = self._vocab_size
        wrong = [item for item in items if type(item) is not int or not 0 <= item < size]
        if wrong:
            raise ConfigError(
                "The prompt is neither a text, nor messages, nor token ids.",
                f"It holds {wrong[0]!r:.40}; token ids are whole numbers from 0 to {size - 1}.",
                "Pass a text, messages, or token ids of this model.",
            )
        return items


def is_messages(prompt: object) -> TypeGuard[Items[Message]]:
    """Return whether a prompt is a list of messages, and not a text or token ids."""
    return isinstance(prompt, list | tuple) and bool(prompt) and isinstance(prompt[0], Mapping)


def _load_template(package: Package, tokenizer: Tokenizer, name: str | None) -> ChatTemplate | InvalidTemplate:
    """Return the template of a file, or the error that a chat will raise: plain prompts need no template."""
    try:
        source = package.file(name).read_text(encoding="utf-8") if name is not None else None
    except UnicodeDecodeError as error:
        return InvalidTemplate(
            f"{package.path}: the chat template is not text.", f"{error}.", "Export the model again."
        )
    except OSError as error:
        raise StorageError(f"{name} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error
    bos = tokenizer.bos_token_id
    eos = tokenizer.eos_token_ids
    try:
        return ChatTemplate(
            source,
            special_tokens=tokenizer.special_tokens,
            bos_token=(tokenizer.id_to_token(bos) or "") if bos is not None else "",
            eos_token=(tokenizer.id_to_token(eos[0]) or "") if eos else "",
        )
    except InvalidTemplate as error:
        return _copy_of(error)


def _copy_of(error: InvalidTemplate) -> InvalidTemplate:
    """Return a copy of the error: a raised one holds its stack frames, and with them the model, in a cycle."""
    return InvalidTemplate(error.what, error.numbers, error.action)


def _tokenizer_source(package: Package) -> tuple[object, ...]:
    """Return everything that determines a package's tokenizer."""
    manifest = package.manifest
    return manifest.files[manifest.tokenizer.file].sha256, manifest.tokenizer, manifest.model.vocab_size
