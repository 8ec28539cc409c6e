"""The chat templates of a package: messages as texts, and what an answer to them may have besides its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Items
from dataclasses import replace
from typing import Any

from edge_rt.errors import ConfigError, InvalidTemplate, StorageError
from edge_rt.package.reader import Package
from edge_rt.runtime.answer_forms import AnswerForm
from edge_rt.runtime.config import GenerationConfig
from edge_rt.text.call_stream import CallStream
from edge_rt.text.call_syntaxes import find_syntax
from edge_rt.text.template import NO_INPUTS, ChatTemplate, Inputs
from edge_rt.text.template_messages import THOUGHT_FIELDS
from edge_rt.text.template_text import RenderedPrompt
from edge_rt.text.thoughts import ThoughtMarkers, answer_so_far, find_markers
from edge_rt.text.tokenizer import Tokenizer
from edge_rt.text.tool_calls import Tools

Message = Mapping[str, Any]


class PromptTemplates:
    """Chat templates, and the tokenizer whose control tokens they write."""

    def __init__(self, package: Package, tokenizer: Tokenizer) -> None:
        manifest = package.manifest
        self.tokenizer = tokenizer
        self._template = _load_template(package, tokenizer, manifest.chat_template)
        self._tool_template: ChatTemplate | InvalidTemplate | None = None
        if manifest.tool_template is not None:
            self._tool_template = _load_template(package, tokenizer, manifest.tool_template)

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
