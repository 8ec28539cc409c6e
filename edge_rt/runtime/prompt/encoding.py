"""Turns a prompt (text, messages or token ids) into token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Items
from typing import Any

import numpy as np

from edge_rt.errors import ConfigError, ContextOverflow, InvalidTemplate, ReferenceBudgetExceeded, StorageError
from edge_rt.package.reader import Package
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.prompt.encoding_budget import EncodingBudget
from edge_rt.text.template import ChatTemplate, RenderedPrompt
from edge_rt.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
Prompt = str | Items[int] | Items[Message]


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
        self._template = _load_template(package, self.tokenizer)
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

    def render(self, messages: Items[Message], *, add_generation_prompt: bool = True) -> RenderedPrompt:
        """Return messages as the template writes them.

        Raises:
            InvalidTemplate: there is no template, or it refuses the messages.
            ConfigError: the messages are malformed.
        """
        if isinstance(self._template, InvalidTemplate):
            raise _copy_of(self._template)
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

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
        found = self.tokenizer.encode_within([(text, False)], self._context_tokens)
        return (found, False) if isinstance(found, int) else (len(found), True)

    def _require_encodable(self, text: str) -> None:
        # A character has four bytes at most.
        if self._budget is not None and 4 * len(text) > self._budget.planned_bytes:
            self._budget.require(self.tokenizer.longest_stretch(text))

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
            return [*start, *self._encode_within([(prompt, False)], len(start), config)]
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        items: list[Any] = list(prompt) if isinstance(prompt, list | tuple) else [repr(prompt)]
        if items and isinstance(items[0], Mapping):
            rendered = self.render(items)
            self.check_prompt_fits(rendered.plain_text, config)
            return self._encode_within(rendered.pieces(), 0, config)
        return self._checked_ids(items)

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
        found = least if least > most else self.tokenizer.encode_within([(text, False)], most)
        if isinstance(found, int):
            raise ReferenceBudgetExceeded(found, most, is_least=True)
        return found

    def _encode_within(self, parts: Items[tuple[str, bool]], before: int, config: GenerationConfig) -> list[int]:
        """Encode parts that follow ``before`` tokens; a text that does not fit is refused as soon as that is known."""
        reserved = config.max_tokens or 1
        found = self.tokenizer.encode_within(parts, max(self._context_tokens - reserved - before, 0))
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


def _load_template(package: Package, tokenizer: Tokenizer) -> ChatTemplate | InvalidTemplate:
    """Return the template, or the error that a chat will raise: plain prompts need no template."""
    name = package.manifest.chat_template
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
