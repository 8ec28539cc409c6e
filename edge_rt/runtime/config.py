"""Options of one generation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from edge_rt.errors import ConfigError
from edge_rt.package.sampling import SAMPLING_NAMES, Sampling, SamplingAdvice, fault, is_int, is_number
from edge_rt.system.option_names import known_fields, known_options, unknown_option
from edge_rt.text.answer_format import AnswerFormat, answer_format
from edge_rt.text.tool_grammar import ToolChoice, read_choice

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ACCEPTANCE_RULES: Final = ("match", "ratio")

_NUMBERS: Final = {
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "top_n_sigma": (0.0, 100.0),
    "top_h": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "fsd": (0.0, 1.0),
}
_WHOLE_NUMBERS: Final = {"dry_allowed_length": (1, 64), "fsd_order": (1, 8)}


LogitsProcessor = Callable[[list[int], "npt.NDArray[np.float32]"], None]
"""Changes a row of logits in place; see ``GenerationConfig.logits_processor``."""


class GenerationOptions(TypedDict, total=False):
    """The fields of ``GenerationConfig`` as keyword arguments, for type checkers."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    banned: Sequence[int]
    top_n_sigma: float
    top_h: float
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_breakers: str | Sequence[str]
    fsd: float
    fsd_order: int
    logits_processor: LogitsProcessor | None
    logprobs: int | None
    seed: int | None
    stop: str | Sequence[str]
    spec: str | None
    reference: str | None
    repetition_guard: bool
    accept: str
    response_format: Any
    regex: str | None
    grammar: str | None
    json_spaces: bool
    tool_choice: Any
    parallel_tool_calls: bool


@known_fields(checks_types=False)
@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How tokens are chosen and when to stop.

    The chain, in this order: banned tokens, repetition penalty, presence and frequency penalties, DRY, logit bias,
    temperature, top-n-sigma, top-k, top-p, min-p, Top-H, FSD, XTC, one draw. Temperature 0 takes the most likely token
    after penalties and bias. ``docs/decoding.md`` says what each is good for.

    Temperature, top-k, top-p, min-p and the repetition penalty may be None. The value that the model recommends is used
    then, or the default of ``Sampling`` if it recommends none. ``sampling`` returns the values in force.

    Attributes:
        max_tokens: most tokens to generate; None means until the model stops or the context is full.
        temperature: 0 is greedy, and uses no value that the model recommends; above 0, logits are divided by it, up to
            100.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities reach this sum, in (0, 1].
        min_p: keep tokens at least this fraction as likely as the most likely one, in [0, 1).
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or answer, except end
            tokens; 1 is off.
        presence_penalty: subtracted from logits of tokens that occur in the answer; 0 is off.
        frequency_penalty: subtracted once for every occurrence in the answer; 0 is off.
        logit_bias: token id -> value added to its logit.
        banned: ids of tokens that are never chosen.
        top_n_sigma: keep tokens whose logit is at most this many standard deviations of all logits below the largest;
            0 is off.
        top_h: keep the most likely tokens as long as their entropy is at most this part of the whole row's; 0 is off.
        xtc_probability: how often XTC drops all tokens of at least ``xtc_threshold`` but the least likely of them; 0 is
            off.
        xtc_threshold: a probability, among the tokens that are left.
        dry_multiplier: DRY takes ``dry_multiplier * dry_base ** (n - dry_allowed_length)`` from the logit of a token
            that would make a repetition of n tokens one longer; 0 is off.
        dry_base: at least 1.
        dry_allowed_length: repetitions shorter than this are free.
        dry_breakers: texts; a token that contains one ends a repetition. A single one need not be in a list.
        fsd: the share, below 1, of the n-grams of prompt and answer in FSD: ``(1 - fsd) * probability - fsd * theirs``;
            0 is off.
        fsd_order: length of its longest n-grams, 1 to 8.
        logits_processor: called as ``f(token_ids, logits)`` for every row that decides, with the tokens of prompt and
            answer before it (a list) and float32 ``[vocabulary]``, which it may change in place, before everything
            else. It must depend on these two alone: then the text is the same with and without speculation.
        logprobs: how many most likely tokens the result has beside the log probability of every token, 0 to 100; None:
            no log probabilities.
        seed: makes sampling repeatable on the same machine, package and version; None takes a new seed each time.
        stop: texts that end the answer; they are not part of it. A single one need not be in a list.
        spec: the drafter, one of ``edge_rt.package.spec_modes.SPEC_MODES``; None takes the model's setting.
        reference: a text that the answer may copy parts of, such as a file to be edited; it is used for drafting only.
        repetition_guard: end an answer that repeats itself or counts without end, with the finish reason
            ``"repetition"``; see ``RepetitionGuard``. False lets it go on to the end of the context.
        accept: which drafted tokens are accepted. ``"match"``: those that plain decoding would choose, so that a seed
            gives the same text with any drafter. ``"ratio"``, with ``spec="recycling"`` only: more of them, by the
            probabilities they were drawn with. The text then differs from that of plain decoding but has the same
            distribution, and a seed repeats it only while the drafters have learned the same. At temperature 0 both
            rules are the same.
        response_format: what the answer has to be, as JSON: a JSON schema; ``{"type": "json_object"}`` for any object,
            or another form of other servers, such as ``{"type": "json_schema", "json_schema": {...}}``; or, with
            pydantic, a model, a dataclass or a type such as ``list[str]``. ``result.parsed`` holds it then.
        regex: a regular expression that the whole answer has to match.
        grammar: a grammar in Lark's notation that the answer has to follow; docs/structured-output.md has examples.
        json_spaces: let JSON have spaces and line ends between its parts; without it, it is compact.
        tool_choice: whether the answer calls the tools that were given. ``"auto"`` or None: if the model begins a call,
            which then fits the parameters of its tool; ``"required"``: it is a call; the name of a tool, or
            ``{"type": "function", "function": {"name": ...}}``: a call of this one; ``"none"``: tools are not shown.
        parallel_tool_calls: let an answer have several calls where the model's syntax has room for them.

    Raises:
        ConfigError: a value is out of range, or an option of that name does not exist.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: tuple[int, ...] = ()
    top_n_sigma: float = 0.0
    top_h: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    fsd: float = 0.0
    fsd_order: int = 3
    logits_processor: LogitsProcessor | None = None
    logprobs: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    spec: str | None = None
    reference: str | None = None
    repetition_guard: bool = True
    accept: str = "match"
    response_format: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_spaces: bool = False
    tool_choice: Any = None
    parallel_tool_calls: bool = True

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[GenerationOptions]) -> None: ...

    def __post_init__(self) -> None:
        _require("stop", self.stop, isinstance(self.stop, str | list | tuple), "a text or a list of texts")
        _require("logit_bias", self.logit_bias, isinstance(self.logit_bias, Mapping), "a mapping")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        breakers = (self.dry_breakers,) if isinstance(self.dry_breakers, str) else self.dry_breakers
        _require("dry_breakers", breakers, isinstance(breakers, list | tuple), "a text or a list of texts")
        object.__setattr__(self, "dry_breakers", tuple(breakers))
        _require("banned", self.banned, isinstance(self.banned, Collection), "a list of token ids")
        object.__setattr__(self, "banned", tuple(self.banned))
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))
        if self.max_tokens is not None:
            _require(
                "max_tokens",
                self.max_tokens,
                is_int(self.max_tokens, 1),
                "a whole number of at least 1, or None for no limit",
            )
        for name in SAMPLING_NAMES:
            value = getattr(self, name)
            wanted = None if value is None else fault(name, value)
            _require(name, value, wanted is None, str(wanted))
        _require("repetition_guard", self.repetition_guard, isinstance(self.repetition_guard, bool), "True or False")
        for name, (least, most) in _NUMBERS.items():
            fits = is_number(getattr(self, name), least, most)
            _require(name, getattr(self, name), fits, f"a number from {least:g} to {most:g}")
        for name, (least, most) in _WHOLE_NUMBERS.items():
            fits = is_int(getattr(self, name), least, most)
            _require(name, getattr(self, name), fits, f"a whole number from {least} to {most}")
        _require("fsd", self.fsd, self.fsd < 1, "a number from 0 to below 1")
        is_function = self.logits_processor is None or callable(self.logits_processor)
        _require("logits_processor", self.logits_processor, is_function, "a function")
        fits = self.logprobs is None or is_int(self.logprobs, 0, 100)
        _require("logprobs", self.logprobs, fits, "a whole number from 0 to 100")
        for token in self.banned:
            _require("banned", token, is_int(token, 0), "token ids")
        for text in self.dry_breakers:
            _require("dry_breakers", text, isinstance(text, str) and text != "", "texts that are not empty")
        for token, bias in self.logit_bias.items():
            fits = is_int(token, 0) and is_number(bias, -1e4, 1e4)
            _require("logit_bias", {token: bias}, fits, "token ids with numbers from -10000 to 10000")
        if self.seed is not None:
            fits = is_int(self.seed, 0) and self.seed < 1 << 64
            _require("seed", self.seed, fits, "a whole number from 0 to 2^64 - 1")
        _require("spec", self.spec, self.spec is None or isinstance(self.spec, str), "a name")
        is_text = self.reference is None or (isinstance(self.reference, str) and self.reference != "")
        _require("reference", self.reference, is_text, "a text that is not empty")
        _require("accept", self.accept, self.accept in ACCEPTANCE_RULES, " or ".join(ACCEPTANCE_RULES))
        for text in self.stop:
            _require("stop", text, isinstance(text, str) and text != "", "texts that are not empty")
        _require("json_spaces", self.json_spaces, isinstance(self.json_spaces, bool), "True or False")
        _require(
            "parallel_tool_calls", self.parallel_tool_calls, isinstance(self.parallel_tool_calls, bool), "True or False"
        )
        self._check_format()

    def _check_format(self) -> None:
        names = [name for name in ("response_format", "regex", "grammar") if getattr(self, name) is not None]
        if len(names) > 1:
            raise ConfigError("An answer has one format.", f"Got {' and '.join(names)}.", "Leave out all but one.")
        if self.choice.kind == "required":
            if names:
                raise ConfigError(
                    f"The options '{names[0]}' and 'tool_choice' exclude each other.",
                    f"The answer cannot be a call ({self.tool_choice!r:.60}) and of another format.",
                    "Leave out one of them.",
                )
            names = ["tool_choice"]
        if self.json_spaces and names not in ([], ["response_format"]):
            raise ConfigError(
                f"The options '{names[0]}' and 'json_spaces' exclude each other.",
                "Spaces are for JSON of a response format; calls are written as the template writes them.",
                "Leave out 'json_spaces'.",
            )
        if names and self.stop:
            raise ConfigError(
                f"The options '{names[0]}' and 'stop' exclude each other.",
                "A stop text within the answer would end it before it is whole.",
                "Leave out the stop texts: the format says where the answer ends.",
            )
        if names and self.accept != "match":
            raise ConfigError(
                f"The options '{names[0]}' and accept={self.accept!r} exclude each other.",
                "Answers in a format are verified token by token.",
                "Leave out 'accept'.",
            )

    @property
    def choice(self) -> ToolChoice:
        """Whether the answer calls tools."""
        return read_choice(self.tool_choice)

    def shown(self, tools: Sequence[Mapping[str, Any]] | None) -> Sequence[Mapping[str, Any]] | None:
        """Return the tools that the model is shown: none where it may not call any."""
        return None if self.choice.kind == "none" else tools

    @property
    def has_format(self) -> bool:
        """Whether the answer has to fit something."""
        return any(value is not None for value in (self.response_format, self.regex, self.grammar))

    def answer_format(self) -> AnswerFormat | None:
        """Return what the answer has to fit; None: any text.

        Raises:
            InvalidGrammar, RuntimeUnavailable: as of ``edge_rt.text.answer_format.answer_format``.
        """
        return answer_format(self.response_format, self.regex, self.grammar, spaces=self.json_spaces)

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping that cannot be changed cannot be pickled either.
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return functools.partial(type(self), **{**values, "logit_bias": dict(self.logit_bias)}), ()

    def sampling(self, advice: SamplingAdvice | None = None) -> Sampling:
        """Return the values in force: those asked for, else those that the model recommends, else the defaults.

        With a temperature of 0 the recommended values are not used: a recommended penalty is meant for sampling.

        Args:
            advice: the values that the model recommends; None if it recommends none.
        """
        advised = {} if advice is None or self.temperature == 0 else advice.given
        asked = {name: value for name in SAMPLING_NAMES if (value := getattr(self, name)) is not None}
        return Sampling(**{**advised, **asked})

    @known_options(GenerationOptions, checks_types=False)
    def with_options(self, **options: Unpack[GenerationOptions]) -> GenerationConfig:
        """Return a copy with some options replaced.

        Raises:
            ConfigError: a value is out of range, or an option of that name does not exist.
        """
        changes: dict[str, Any] = {**options}
        return dataclasses.replace(self, **changes)


def _require(name: str, value: object, fits: bool, wanted: str) -> None:
    if not fits:
        raise ConfigError(
            f"The option '{name}' is out of range.",
            f"Got {value!r:.60}, wanted {wanted}.",
            "Give such a value, or leave it out.",
        )


ROW_OPTIONS: Final = GenerationOptions.__annotations__.keys() - {"logits_processor"}
"""Options that are data, so that a row of a file or of a table may have them."""
ROW_INPUTS: Final = frozenset({"tools", "documents", "template_args"})
_ROW_PROMPTS: Final = ("prompt", "messages")
_FORMATS: Final = ("response_format", "regex", "grammar", "tools")


def asked_of(fields: Mapping[str, Any], where: str, *, raw: bool) -> tuple[Any, dict[str, Any]]:
    """Return the prompt and the options of a row, as ``generate`` takes them; fields that are None are not given.

    Args:
        where: what the row is called in errors: ``"A line"``.
        raw: take a text as it is; else it is the message of a user.

    Raises:
        ConfigError: it has no prompt or two, or an option that does not exist.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    prompts = [given.pop(name) for name in _ROW_PROMPTS if name in given]
    if len(prompts) != 1:
        raise ConfigError(f"{where} has one prompt.", f"Got {len(prompts)}.", "Give 'messages' or 'prompt'.")
    for name in given:
        if name not in ROW_OPTIONS and name not in ROW_INPUTS:
            raise unknown_option(where, name, ROW_OPTIONS | ROW_INPUTS)
    if isinstance(given.get("logit_bias"), dict):
        given["logit_bias"] = {_token_id(name): value for name, value in given["logit_bias"].items()}
    [prompt] = prompts
    is_message = isinstance(prompt, str) and not raw
    return [{"role": "user", "content": prompt}] if is_message else prompt, given


def has_format(fields: Mapping[str, Any]) -> bool:
    """Return whether the answer to a row may have to fit something."""
    return any(fields.get(name) is not None for name in _FORMATS)


def _token_id(name: str) -> int | str:
    return int(name) if name.isdecimal() and len(name) < 10 else name
