"""Turns a prompt (text, messages or token ids) into token ids; ``prompt_templates`` makes texts of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Items
from functools import partial
from typing import Any, Final, TypeGuard

import numpy as np

from edge_rt.errors import (
    ConfigError,
    ContextOverflow,
    ReferenceBudgetExceeded,
)
from edge_rt.memory.budget import EncodingBudget
from edge_rt.package.reader import Package
from edge_rt.runtime.answer_forms import PLAIN_ANSWER, AnswerForm, AnswerGrammars
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.answer_grammar import AnswerGrammar
from edge_rt.runtime.prompt_templates import Message, PromptTemplates
from edge_rt.text.answer_format import AnswerFormat
from edge_rt.text.template import NO_INPUTS, Inputs
from edge_rt.text.template_text import RenderedPrompt
from edge_rt.text.token_bytes import IncrementalDecoder
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tokenizer_reading import KeptReadings

Prompt = str | Items[int] | Items[Message]
_COUNTED_CHARACTERS: Final = 1 << 16
"""Characters of a prompt that does not fit, up to which its tokens are counted: less than a tenth of a second."""


class PromptEncoder(PromptTemplates):
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
        shared = like.tokenizer if like is not None and like.has_tokenizer_of(package) else None
        tokenizer = shared or Tokenizer.from_file(
            package.file(manifest.tokenizer.file),
            info=manifest.tokenizer,
            embedding_rows=manifest.model.vocab_size,
            kept=kept,
        )
        super().__init__(package, tokenizer)
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


def _tokenizer_source(package: Package) -> tuple[object, ...]:
    """Return everything that determines a package's tokenizer."""
    manifest = package.manifest
    return manifest.files[manifest.tokenizer.file].sha256, manifest.tokenizer, manifest.model.vocab_size
