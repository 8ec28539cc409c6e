"""What a model does with texts alone: messages -> prompt, and whether a prompt fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Items
from typing import Any

from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.graph.exclusive import closed
from edge_rt.runtime.prompt.encoding import Message, PromptEncoder
from edge_rt.text.rendered import RenderedPrompt
from edge_rt.text.tokenizer import Tokenizer


class ModelTexts:
    """Tokenizer and chat template of a model; they go with it when it is closed."""

    _texts: PromptEncoder | None

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
            ConfigError: the messages or the arguments are malformed.
        """
        return self._require_texts().render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            documents=documents,
            template_args=template_args,
        )

    @property
    def template_source(self) -> str | None:
        """Source of the chat template in use, or None."""
        return self._require_texts().template_source

    @property
    def template_variables(self) -> frozenset[str]:
        """Names of the arguments that the chat template reads, such as ``enable_thinking``."""
        return self._require_texts().template_variables

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            ModelClosed: it went with the model.
        """
        return self._require_texts().tokenizer

    @property
    def texts(self) -> PromptEncoder | None:
        """Tokenizer and chat template, for another model to share; None once the model is closed."""
        return self._texts

    def _require_texts(self) -> PromptEncoder:
        if self._texts is None:
            raise closed()
        return self._texts

    def check_prompt_fits(self, text: str, config: GenerationConfig) -> None:
        """Refuse a text that cannot fit however it is cut into tokens, before seconds are spent on cutting it.

        Raises:
            ContextOverflow: with the least number of tokens that the text can have.
        """
        self._require_texts().check_prompt_fits(text, config)

    refuse_hopeless = check_prompt_fits
    """The older name of ``check_prompt_fits``."""
