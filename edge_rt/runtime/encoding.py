"""From a prompt in any of its forms to token ids: texts, messages, ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Items
from typing import Any

import numpy as np

from edge_rt.errors import ConfigError, ContextOverflow, InvalidTemplate, StorageError
from edge_rt.package import Package
from edge_rt.runtime.config import GenerationConfig
from edge_rt.template import ChatTemplate, RenderedPrompt
from edge_rt.tokenizer import Tokenizer

Message = Mapping[str, Any]
Prompt = str | Items[int] | Items[Message]


class PromptEncoder:
    """Tokenizer and chat template of a package.

    Args:
        package: the opened package.
        context_tokens: capacity of the context, for prompts that cannot fit it.

    Attributes:
        tokenizer: of the package.

    Raises:
        InvalidTokenizer, StorageError: the package's files cannot be used.
    """

    def __init__(self, package: Package, context_tokens: int) -> None:
        manifest = package.manifest
        self.tokenizer = Tokenizer.from_file(
            package.file(manifest.tokenizer.file), info=manifest.tokenizer, embedding_rows=manifest.model.vocab_size
        )
        self._template = _load_template(package, self.tokenizer)
        self._context_tokens = context_tokens
        self._vocab_size = manifest.model.vocab_size

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
            raise self._template
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def refuse_hopeless(self, text: str, config: GenerationConfig) -> None:
        """Refuse a text that cannot fit however it is cut into tokens, before seconds are spent on cutting it.

        Raises:
            ContextOverflow: with the least number of tokens that the text can have.
        """
        least, reserved = self.tokenizer.min_tokens(text), config.max_tokens or 1
        if least + reserved > self._context_tokens:
            raise ContextOverflow(least, reserved, self._context_tokens)

    def encode(self, prompt: Prompt, config: GenerationConfig) -> list[int]:
        """Return the token ids of a text, taken as it is, of messages, or of ids.

        Raises:
            ConfigError: it is none of these.
            ContextOverflow: a text cannot fit the context.
            InvalidTemplate: messages cannot be rendered.
        """
        if isinstance(prompt, str):
            self.refuse_hopeless(prompt, config)
            return self.tokenizer.encode_prompt(prompt)
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        items: list[Any] = list(prompt) if isinstance(prompt, list | tuple) else [repr(prompt)]
        if items and isinstance(items[0], Mapping):
            rendered = self.render(items)
            self.refuse_hopeless(rendered.plain_text, config)
            return self.tokenizer.encode_rendered(rendered)
        return self._checked_ids(items)

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
    """Return the template, or the error that a chat will raise: plain prompts need none."""
    name = package.manifest.chat_template
    try:
        source = package.file(name).read_text(encoding="utf-8") if name is not None else None
    except UnicodeDecodeError as error:
        return InvalidTemplate(f"{package.path}: the chat template is no text.", f"{error}.", "Export the model again.")
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
        return error
