"""What a loaded model does with texts: the chat template, tokens, and whether a prompt fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence as Items
from typing import Any

from edge_rt.package.spec_modes import REFERENCE_MODES
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.forward.runner import closed
from edge_rt.runtime.prompt_templates import Message
from edge_rt.runtime.prompts import Prompt, PromptEncoder
from edge_rt.runtime.speculation.speculation import Speculation
from edge_rt.system.option_names import known_options
from edge_rt.text.template import Inputs
from edge_rt.text.template_text import RenderedPrompt
from edge_rt.text.tokenizer import Tokenizer


class ModelTexts:
    """Tokenizer and chat template of a model; they go with it when it is closed."""

    _texts: PromptEncoder | None
    _speculation: Speculation

    @known_options()
    def render(
        self,
        messages: Items[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Return messages as the template writes them; the arguments are those of ``generate``.

        Raises:
            InvalidTemplate: there is no template, or it refuses the messages.
        """
        inputs = Inputs(tools, documents, template_args)
        return self._require_texts().render(messages, inputs, add_generation_prompt=add_generation_prompt)

    @property
    def template_source(self) -> str | None:
        """Source of the chat template in use, or None."""
        return self._require_texts().template_source

    @property
    def has_fallback_template(self) -> bool:
        """Whether the model has no chat template: messages are written as ChatML then, which it may not know."""
        return self._require_texts().has_fallback_template

    @property
    def template_variables(self) -> frozenset[str]:
        """Names of the arguments that the chat template reads, such as ``enable_thinking``."""
        return self._require_texts().template_variables

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._require_texts().tokenizer

    @property
    def texts(self) -> PromptEncoder | None:
        """Tokenizer and chat template, for another model to share; None once the model is closed."""
        return self._texts

    def _require_texts(self) -> PromptEncoder:
        if self._texts is None:
            raise closed()
        return self._texts

    def check_prompt_fits(self, prompt: str | RenderedPrompt, config: GenerationConfig) -> None:
        """Refuse a prompt that cannot fit however it is cut into tokens, before seconds are spent on cutting it.

        Raises:
            ContextOverflow: with about the number of tokens that the prompt has.
        """
        self._require_texts().check_prompt_fits(prompt, config)

    @known_options()
    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, as ``logit_bias`` takes them.

        The text is text: what looks like a special token becomes ordinary tokens, and there is no token in front that
        starts a prompt.

        Raises:
            InputError: the text has lone surrogates, which are no characters.
        """
        return self.tokenizer.encode_text(text)

    @known_options()
    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of token ids; bytes that are not UTF-8 become U+FFFD.

        Args:
            token_ids: ids from 0 to ``tokenizer.vocab_size - 1``.
            skip_special: leave out tokens that are not text, such as turn markers.
        """
        return self.tokenizer.decode(token_ids, skip_special=skip_special)

    def check_reference(self, config: GenerationConfig) -> None:
        """Refuse a reference text that the memory plan has no room for, before an answer needs it.

        Raises:
            MemoryBudgetExceeded: there is no room for the drafter, or for the text.
        """
        if config.reference is None:
            return
        mode = self._speculation.resolve(config.spec, has_reference=True, accept=config.accept)
        if self._speculation.most_reference_tokens(mode) is not None:
            self._encode_reference(config.reference, mode)

    def _encode_reference(self, text: str | None, mode: str) -> list[int] | None:
        """Return the tokens of a reference text; None without one, or where the mode copies from none."""
        if text is None or mode not in REFERENCE_MODES:
            return None
        return self._require_texts().encode_reference(text, self._speculation.most_reference_tokens(mode))

    @known_options()
    def count_tokens(
        self,
        prompt: Prompt,
        *,
        tools: Items[Mapping[str, Any]] | None = None,
        documents: Items[Mapping[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> int:
        """Return the tokens of a prompt, however many: those that ``generate`` reports as ``usage.prompt_tokens``.

        A prompt fits if they and the tokens of the answer are at most ``context_tokens``. The arguments are those of
        ``generate``.

        Raises:
            EncodingBudgetExceeded: a part of it has to be encoded at once, and does not fit the memory plan.
        """
        return self._require_texts().count_tokens(prompt, Inputs(tools, documents, template_args))
