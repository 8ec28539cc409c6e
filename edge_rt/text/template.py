"""Chat messages -> prompt text, through the model's own chat template.

A template is a program from an untrusted file that works on untrusted text. :mod:`edge_rt.text.template_guard` bounds
what the program can do. Template and messages are kept apart: special tokens that the *template* writes are real,
special tokens in a *message* are plain text. The template sees the messages as they are; every text that it builds
remembers which of its characters come from the template's source (:mod:`edge_rt.text.template_text`), up to the
finished prompt (:class:`edge_rt.text.template_text.RenderedPrompt`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

import jinja2

from edge_rt.errors import ConfigError, InvalidTemplate, as_json
from edge_rt.text.template_budget import NotLookedInto, RenderBudget, TemplateTooSlow, refused, text_bytes
from edge_rt.text.template_guard import GuardedEnvironment
from edge_rt.text.template_messages import (
    THOUGHT_FIELDS,
    Form,
    Messages,
    checked_arguments,
    checked_messages,
    checked_value,
    fold_system,
    formed,
    has_arguments,
    has_parts,
    has_thoughts_and_calls,
    part_texts,
    texts_of,
    whole_values,
)
from edge_rt.text.template_text import RenderedPrompt, concat, own_text, ranges_of

DEFAULT_TEMPLATE_NAME: Final = "chatml"
FALLBACK_WARNING: Final = (
    "The model has no chat template: messages are written as ChatML, and a model that was not trained on it answers "
    "nonsense."
)
_DEFAULT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_DEFAULT_NEEDS: Final = ("<|im_start|>", "<|im_end|>")
_PROBE: Final = "edge-rt probe"
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Inputs:
    """What a chat template gets besides messages.

    Attributes:
        template_args: further variables of the template by name, such as ``enable_thinking``.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    template_args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, value in (("tools", self.tools), ("documents", self.documents)):
            is_list = isinstance(value, Sequence) and all(isinstance(one, Mapping) for one in value)
            if value is not None and not is_list:
                raise ConfigError(f"'{name}' is not a list of objects.", f"Got {as_json(value)}.", "Correct it.")
        if self.template_args is not None and not isinstance(self.template_args, Mapping):
            value = as_json(self.template_args)
            raise ConfigError("'template_args' is not an object.", f"Got {value}.", "Correct it.")

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are not empty."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name))


NO_INPUTS: Final = Inputs()


class ChatTemplate:
    """A chat template, checked and compiled once; usable from several threads.

    Args:
        source: the Jinja source, or None for a model that has none: then ChatML, where its special tokens exist.
        bos_token: text of the token that starts a text, for templates that write it themselves.

    Attributes:
        is_fallback: True if the model had no template and :data:`DEFAULT_TEMPLATE_NAME` is in use.
        variables: names of the arguments that it reads, such as ``enable_thinking``.
    """

    def __init__(
        self,
        source: str | None,
        *,
        special_tokens: Sequence[str],
        bos_token: str = "",
        eos_token: str = "",
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        if source is None and not all(token in special_tokens for token in _DEFAULT_NEEDS):
            raise InvalidTemplate(
                "The model has no chat template.",
                f"The fallback {DEFAULT_TEMPLATE_NAME!r} needs the special tokens {' and '.join(_DEFAULT_NEEDS)}.",
                "Use generate with a plain prompt, or an instruction-tuned model.",
            )
        self.is_fallback = source is None
        self.source = _DEFAULT_TEMPLATE if source is None else source
        self.special_tokens = tuple(token for token in special_tokens if token)
        self._named = {"bos_token": own_text(bos_token), "eos_token": own_text(eos_token)}
        self._environment = GuardedEnvironment(clock)
        self._template = self._environment.compile_guarded(self.source)
        self.variables = self._environment.variables
        self._thought_fields = frozenset(_WORD.findall(self.source)) & set(THOUGHT_FIELDS)
        self._keeps: dict[str, bool] = {}
        self._lock = threading.Lock()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        inputs: Inputs = NO_INPUTS,
        *,
        add_generation_prompt: bool = True,
    ) -> RenderedPrompt:
        """Write the messages as the prompt that the model was trained on.

        A content that is a list is given to the template as a list, and joined if the template does not look into it.
        Arguments of tool calls may be objects or JSON texts. Of the fields ``reasoning_content``, ``thinking`` and
        ``reasoning`` the template gets the one that it knows. A system message for which the template has no place
        goes in front of the first user message.

        Args:
            messages: each with a ``role`` (those of :data:`~edge_rt.text.template_messages.ROLES`, or one that the
                template names) and a ``content``: text, or a list of ``{"type": "text", "text": ...}``. Further keys
                (``tool_calls``, ``name``, ...) are passed to the template, without those that are None.
        """
        self.require_places(inputs)
        plain = checked_messages(messages, self._environment.literals)
        variables = {
            **checked_arguments(inputs.template_args or {}),
            "tools": None if inputs.tools is None else checked_value(list(inputs.tools), "tools"),
            "documents": None if inputs.documents is None else checked_value(list(inputs.documents), "documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        role = plain[0]["role"]
        folds = False
        if role in {"system", "developer"} and len(plain) > 1 and not self.keeps(role):
            if role == "developer" and self.keeps("system"):
                plain[0]["role"] = "system"
            else:
                plain, before = fold_system(plain), plain
                folds = plain is not before
        text = self._render_any_form(plain, variables)
        return RenderedPrompt(str.__str__(text), ranges_of(text), self.special_tokens, folds)

    def require_places(self, inputs: Inputs) -> None:
        """Refuse tools or documents that the template would leave out."""
        for name, given in (("tools", inputs.tools), ("documents", inputs.documents)):
            if given and name not in self._environment.lists:
                other = "the fallback for models without one" if self.is_fallback else "the model's own"
                raise ConfigError(
                    f"The chat template of this model has no place for {name}: it would never see them.",
                    f"{len(given)} given; the template is {other}.",
                    f"Write what they say into a message, or use a model that is trained with {name}.",
                )

    def keeps(self, role: str) -> bool:
        """Return whether the template writes the text of a first message of this role.

        A template that fails on every conversation counts as one that does.
        """
        if role not in self._keeps:
            user = {"role": "user", "content": "x"}
            variables: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True}
            try:
                asked = self._probe([{"role": role, "content": _PROBE}, user], variables)
                folded = self._probe([{"role": "user", "content": f"{_PROBE}\n\nx"}], variables)
            except TemplateTooSlow:
                asked = folded = False
            self._keeps[role] = asked or not folded
        return self._keeps[role]

    def _probe(self, messages: Messages, variables: Mapping[str, Any]) -> bool:
        try:
            return _PROBE in self._render(messages, Form(), variables)
        except TemplateTooSlow:
            raise
        except (InvalidTemplate, NotLookedInto):
            return False

    def _render_any_form(self, messages: Messages, variables: Mapping[str, Any]) -> str:
        """Render in the first form that the template understands."""
        first: InvalidTemplate | None = None
        forms = list(_forms(messages))
        for form in forms:
            try:
                text = self._render(messages, form, variables)
            except TemplateTooSlow:
                raise
            except InvalidTemplate as error:
                first = first or error
                continue
            except NotLookedInto:
                continue
            if form.joins_parts or form is forms[-1] or all(part.strip() in text for part in part_texts(messages)):
                return text
        raise first or refused("prints lists or objects whole", "It has to write their parts.")

    def _render(self, messages: Messages, form: Form, variables: Mapping[str, Any]) -> str:
        given = formed(messages, form, self._thought_fields)
        texts = list(texts_of([given, *variables.values()]))
        budget = RenderBudget(sum(map(len, texts)), sum(map(text_bytes, texts)), len(messages))
        budget.unprintable = frozenset(map(id, whole_values(given)))
        with self._lock:
            self._environment.begin(budget)
            try:
                context = self._template.new_context({**variables, **self._named, "messages": given})
                return concat(self._template.root_render_func(context))
            except (InvalidTemplate, NotLookedInto):
                raise
            except Exception as error:  # a template can fail in as many ways as a program
                raise _render_error(error) from error
            finally:
                self._environment.begin(RenderBudget(0, 0))


def lint(template: ChatTemplate) -> list[str]:
    """Return warnings about a template, one sentence each, for the user who exports the model."""
    question = "edge-rt lint question"
    chat = [{"role": "user", "content": question}]
    try:
        with_prompt = template.render(chat)
        without_prompt = template.render(chat, add_generation_prompt=False)
    except InvalidTemplate as error:
        return [f"The chat template fails on a single user message: {error}"]
    warnings: list[str] = []
    if template.is_fallback:
        warnings.append(FALLBACK_WARNING)
    if question not in with_prompt.text:
        warnings.append("The chat template ignores the user's message.")
    if with_prompt.text == without_prompt.text:
        warnings.append("The chat template writes no generation prompt: the model may answer for the user.")
    elif not with_prompt.text.startswith(without_prompt.text):
        warnings.append("The chat template does not only append: every turn of a chat is computed from the start.")
    if not template.keeps("system"):
        warnings.append(
            "The chat template has no place for a system message: it goes in front of the first user message."
        )
    return warnings


def _forms(messages: Messages) -> Iterator[Form]:
    """Yield the forms to try, the most structured one first."""
    for joins_thoughts in (False, True) if has_thoughts_and_calls(messages) else (False,):
        for writes_arguments in (False, True) if has_arguments(messages) else (False,):
            for joins_parts in (False, True) if has_parts(messages) else (False,):
                yield Form(joins_parts, writes_arguments, joins_thoughts)


def _render_error(error: Exception) -> InvalidTemplate:
    if isinstance(error, jinja2.UndefinedError):
        return refused("uses a value that does not exist", f"{str(error)[:300]!r}.")
    if isinstance(error, RecursionError):
        return refused("nests calls too deeply", "Python's recursion limit was reached.")
    return refused("fails on these messages", f"{type(error).__name__}: {str(error)[:300]!r}.")
