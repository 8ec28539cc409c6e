"""Turns a prompt (text, messages or token ids) into token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Items
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import numpy as np

from edge_rt.errors import ConfigError, ContextOverflow, InvalidTemplate, ReferenceBudgetExceeded, StorageError
from edge_rt.package.reader import Package
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.prompt.encoding_budget import EncodingBudget
from edge_rt.text.rendered import RenderedPrompt
from edge_rt.text.template import ChatTemplate
from edge_rt.text.thoughts import ThoughtMarkers, find_markers
from edge_rt.text.token_bytes import IncrementalDecoder
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tool_calls import tool_names

Message = Mapping[str, Any]
Prompt = str | Items[int] | Items[Message]
_TOOL_MARKERS: Final = ("<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class AnswerForm:
    """What an answer may have besides its text.

    Attributes:
        thoughts: how thoughts are marked; None without thoughts.
        has_tools: whether it may call tools.
        tool_names: their names; None if they are not known.
    """

    thoughts: ThoughtMarkers | None = None
    has_tools: bool = False
    tool_names: frozenset[str] | None = None

    @property
    def markers(self) -> str:
        """The markers that have to be seen in the answer's text, in one text."""
        marks = () if self.thoughts is None else self.thoughts.texts
        return " ".join((*marks, *(_TOOL_MARKERS if self.has_tools else ())))


PLAIN_ANSWER: Final = AnswerForm()
"""An answer that is text and nothing else: to a prompt that is no list of messages."""


class PromptEncoder:
    """Tokenizer and chat template of a package.

    Args:
        package: the opened package.
        context_tokens: capacity of the context; longer prompts are refused.
        like: the encoder of another model; its tokenizer is shared, and not read again, if the package has the same
            one.
        budget: memory for text that has to be encoded at once because it cannot be cut; None: no limit.

    Attributes:
        tokenizer: the package's tokenizer.

    Raises:
        InvalidTokenizer, StorageError: the package's files cannot be used.
    """

    def __init__(
        self,
        package: Package,
        context_tokens: int,
        like: PromptEncoder | None = None,
        *,
        budget: EncodingBudget | None = None,
    ) -> None:
        manifest = package.manifest
        self._source = _tokenizer_source(package)
        tokenizer = like.tokenizer if like is not None and like.has_tokenizer_of(package) else None
        self.tokenizer: Tokenizer = tokenizer or Tokenizer.from_file(
            package.file(manifest.tokenizer.file), info=manifest.tokenizer, embedding_rows=manifest.model.vocab_size
        )
        self._template = _load_template(package, self.tokenizer, manifest.chat_template)
        self._tool_template: ChatTemplate | InvalidTemplate | None = None
        if manifest.tool_template is not None:
            self._tool_template = _load_template(package, self.tokenizer, manifest.tool_template)
        self._context_tokens = context_tokens
        self._vocab_size = manifest.model.vocab_size
        self._budget = budget

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
        *,
        add_generation_prompt: bool = True,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Return messages as the template writes them; the arguments are those of ``ChatTemplate.render``.

        Raises:
            InvalidTemplate: there is no template, or it refuses the messages.
            ConfigError: the messages or the arguments are malformed.
        """
        template = self._template_with(tools)
        if isinstance(template, InvalidTemplate):
            raise _copy_of(template)
        return template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            documents=documents,
            arguments=template_args,
        )

    def _template_with(self, tools: Items[Mapping[str, Any]] | None) -> ChatTemplate | InvalidTemplate:
        return self._template if not tools or self._tool_template is None else self._tool_template

    def writes_calls(self, tools: Items[Mapping[str, Any]] | None) -> bool:
        """Return whether the template that is used with these tools writes the ``tool_calls`` of messages."""
        template = self._template_with(tools)
        return isinstance(template, ChatTemplate) and "tool_calls" in template.source

    def thoughts_after(self, prompt: RenderedPrompt) -> ThoughtMarkers | None:
        """Return how thoughts are marked in the answer to a prompt; None for a model that marks none."""
        if isinstance(self._template, InvalidTemplate):
            return None
        return find_markers(self._template.source, self.tokenizer.token_to_id, prompt.text)

    def check_prompt_fits(self, text: str, config: GenerationConfig) -> None:
        """Refuse a text that is too long however it is cut into tokens, before seconds are spent on encoding it.

        Raises:
            ContextOverflow: the error states the least number of tokens that the text can have.
            EncodingBudgetExceeded: a part of it has to be encoded at once, and neither the memory plan nor the rest of
                its budget has room for that.
        """
        least, reserved = self.tokenizer.min_tokens(text), config.max_tokens or 1
        if least + reserved > self._context_tokens:
            raise ContextOverflow(least, reserved, self._context_tokens, is_least=True)
        self._require_encodable(text)

    def count_tokens(self, text: str) -> tuple[int, bool]:
        """Return the number of tokens of a text, or a lower bound if the text does not fit the context.

        Returns:
            The number, and whether it is exact.

        Raises:
            EncodingBudgetExceeded: as in ``check_prompt_fits``.
        """
        least = self.tokenizer.min_tokens(text)
        if least > self._context_tokens:
            return least, False
        self._require_encodable(text)
        found = self.tokenizer.encode_within(text, self._context_tokens)
        return (found, False) if isinstance(found, int) else (len(found), True)

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
        *,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> tuple[list[int], AnswerForm]:
        """Return the token ids of a prompt, and what the answer may have besides its text.

        Raises:
            ConfigError: as in ``encode``; or tools, documents or arguments were given for a prompt without messages.
            ContextOverflow, InvalidTemplate, EncodingBudgetExceeded: as in ``encode``.
        """
        if is_messages(prompt):
            rendered = self.render(prompt, tools=tools, documents=documents, template_args=template_args)
            return self.encode_rendered(rendered, config), self.form_of(rendered, tools)
        given = {"tools": tools, "documents": documents, "template_args": template_args}
        if names := [name for name, value in given.items() if value]:
            raise ConfigError(
                "The prompt is no list of messages, and only these go through the chat template.",
                f"It came with {', '.join(names)}.",
                "Pass messages, or leave them out.",
            )
        return self.encode(prompt, config), PLAIN_ANSWER

    def form_of(self, prompt: RenderedPrompt, tools: Items[Mapping[str, Any]] | None) -> AnswerForm:
        """Return what the answer to rendered messages, which came with tools or without, may have besides its text."""
        return AnswerForm(self.thoughts_after(prompt), bool(tools), tool_names(tools))

    def encode(self, prompt: Prompt, config: GenerationConfig) -> list[int]:
        """Return the token ids of a text, taken as it is, of messages, or of ids.

        Raises:
            ConfigError: it is not one of these.
            ContextOverflow: a text cannot fit the context.
            InvalidTemplate: messages cannot be rendered.
            EncodingBudgetExceeded: as in ``check_prompt_fits``.
        """
        if isinstance(prompt, str):
            self.check_prompt_fits(prompt, config)
            bos = self.tokenizer.bos_token_id
            start = [bos] if self.tokenizer.add_bos and bos is not None else []
            return [*start, *self._encode_within(prompt, len(start), config)]
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        items: list[Any] = list(prompt) if isinstance(prompt, list | tuple) else [repr(prompt)]
        if is_messages(items):
            return self.encode_rendered(self.render(items), config)
        return self._checked_ids(items)

    def encode_rendered(self, prompt: RenderedPrompt, config: GenerationConfig) -> list[int]:
        """Return the token ids of rendered messages; errors as in ``encode``."""
        self.check_prompt_fits(prompt.text, config)
        reserved = config.max_tokens or 1
        found = self.tokenizer.encode_spans_within(prompt.spans(), max(self._context_tokens - reserved, 0))
        return self._require_all(found, 0, reserved)

    def encode_reference(self, text: str, most: int | None) -> list[int]:
        """Return the token ids of a text that an answer may copy.

        Args:
            text: the text.
            most: most tokens that the drafters may hold; None: no limit.

        Raises:
            ReferenceBudgetExceeded: the text has more tokens; it is not encoded to its end then.
            EncodingBudgetExceeded: as in ``check_prompt_fits``.
        """
        if most is None:
            return self.tokenizer.encode_text(text)
        least = self.tokenizer.min_tokens(text)
        if least <= most:
            self._require_encodable(text)
        found = least if least > most else self.tokenizer.encode_within(text, most)
        if isinstance(found, int):
            raise ReferenceBudgetExceeded(found, most, is_least=True)
        return found

    def _encode_within(self, text: str, before: int, config: GenerationConfig) -> list[int]:
        """Encode a text that follows ``before`` tokens; one that does not fit is refused as soon as that is known."""
        reserved = config.max_tokens or 1
        found = self.tokenizer.encode_within(text, max(self._context_tokens - reserved - before, 0))
        return self._require_all(found, before, reserved)

    def _require_all(self, found: list[int] | int, before: int, reserved: int) -> list[int]:
        """Return token ids; raise ``ContextOverflow`` for a lower bound of their number."""
        if isinstance(found, int):
            raise ContextOverflow(before + found, reserved, self._context_tokens, is_least=True)
        return found

    def _checked_ids(self, items: list[Any]) -> list[int]:
        size = self._vocab_size
        wrong = [item for item in items if type(item) is not int or not 0 <= item < size]
        if wrong:
            raise ConfigError(
                "The prompt is neither a text, nor messages, nor token ids.",
                f"It holds {wrong[0]!r:.40}; token ids are whole numbers from 0 to {size - 1}.",
                "Correct it.",
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
