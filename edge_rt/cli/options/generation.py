"""Groups of flags of generations: how tokens are sampled, when an answer ends, and what the template gets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from edge_rt.cli.options import answer_flags, flags
from edge_rt.cli.options.groups import configured, preset_of
from edge_rt.errors import ConfigError, InvalidGrammar
from edge_rt.runtime.config import GenerationConfig
from edge_rt.system.files import read_text
from edge_rt.system.json_files import parse_json, read_bytes, read_object
from edge_rt.text.answer_format import JSON_OBJECT
from edge_rt.text.json_schema import MAX_BYTES

NO_LIMIT: Final = -1
"""A number of tokens that means no limit, as in other programs."""

_FLAG_OF: Final = {"temperature": "temp", "repetition_penalty": "repeat_penalty"}
_SAME_NAMES: Final = (
    "top_n_sigma", "top_h", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base", "dry_allowed_length",
    "fsd", "fsd_order",
)  # fmt: skip


@dataclass(frozen=True)
class SamplingFlags:
    """How tokens are sampled and when an answer ends; a missing flag leaves the default."""

    max_tokens: Annotated[
        int | None, answer_flags.MAX_TOKENS.but(help="Maximum number of tokens in the answer; -1: no limit.")
    ] = None
    temp: Annotated[float | None, answer_flags.TEMP] = None
    seed: Annotated[int | None, answer_flags.SEED] = None
    stop: Annotated[list[str] | None, answer_flags.STOP] = None
    top_p: Annotated[float | None, answer_flags.TOP_P] = None
    top_k: Annotated[int | None, answer_flags.TOP_K] = None
    min_p: Annotated[float | None, answer_flags.MIN_P] = None
    repeat_penalty: Annotated[float | None, answer_flags.REPEAT_PENALTY] = None
    presence_penalty: Annotated[float | None, answer_flags.PRESENCE_PENALTY] = None
    frequency_penalty: Annotated[float | None, answer_flags.FREQUENCY_PENALTY] = None
    logit_bias: Annotated[list[str] | None, answer_flags.LOGIT_BIAS] = None
    banned: Annotated[list[int] | None, answer_flags.BANNED] = None
    top_n_sigma: Annotated[float | None, answer_flags.TOP_N_SIGMA] = None
    top_h: Annotated[float | None, answer_flags.TOP_H] = None
    xtc_probability: Annotated[float | None, answer_flags.XTC_PROBABILITY] = None
    xtc_threshold: Annotated[float | None, answer_flags.XTC_THRESHOLD] = None
    dry_multiplier: Annotated[float | None, answer_flags.DRY_MULTIPLIER] = None
    dry_base: Annotated[float | None, answer_flags.DRY_BASE] = None
    dry_allowed_length: Annotated[int | None, answer_flags.DRY_ALLOWED_LENGTH] = None
    dry_breaker: Annotated[list[str] | None, answer_flags.DRY_BREAKER] = None
    fsd: Annotated[float | None, answer_flags.FSD] = None
    fsd_order: Annotated[int | None, answer_flags.FSD_ORDER] = None

    def completed(self, groups: Iterable[object]) -> SamplingFlags:
        """Return the flags with the values of the configuration file; errors as in ``LoadFlags.completed``."""
        groups = tuple(groups)
        config, preset = configured(groups), preset_of(groups)
        values = {} if config is None else dict(config.sampling)
        if preset is not None:
            values |= preset.options
        usual = {_FLAG_OF.get(name, name): value for name, value in values.items()}
        return replace(self, **{name: value for name, value in usual.items() if getattr(self, name) is None})

    def config(self) -> GenerationConfig:
        """Return the options of a generation."""
        if self.max_tokens is not None and self.max_tokens != NO_LIMIT and self.max_tokens < 1:
            wanted = f"a whole number of at least 1, or {NO_LIMIT} for no limit"
            raise ConfigError(
                "The option -n is out of range.",
                f"Got {self.max_tokens}, wanted {wanted}.",
                "Give such a value, or leave it out.",
            )
        given: dict[str, Any] = {
            "max_tokens": None if self.max_tokens == NO_LIMIT else self.max_tokens,
            "temperature": self.temp,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": parse_logit_bias(self.logit_bias or ()) or None,
            "banned": tuple(self.banned or ()) or None,
            "dry_breakers": tuple(self.dry_breaker or ()) or None,
            **{name: getattr(self, name) for name in _SAME_NAMES},
            "seed": self.seed,
            "stop": tuple(self.stop or ()) or None,
        }
        return GenerationConfig(**{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class TemplateFlags:
    """What the chat template gets besides messages."""

    template_arg: Annotated[list[str] | None, flags.TEMPLATE_ARG] = None

    def inputs(self) -> dict[str, Any]:
        """Return ``tools``, ``documents`` and ``template_args``, as generations and chats take them."""
        from edge_rt.text.template_messages import checked_arguments

        arguments = parse_template_args(self.template_arg or ())
        lists = {name: arguments.pop(name, None) for name in ("tools", "documents")}
        for name, value in lists.items():
            is_list = isinstance(value, list) and all(isinstance(one, dict) for one in value)
            if value is not None and not is_list:
                raise ConfigError(
                    f"The template's {name} are not a list of objects.",
                    f"Got {value!r:.60}.",
                    f"Write them as JSON: --template-arg '{name}=[{{...}}]'.",
                )
        # Refused here, before the model is loaded and a warning says that the template does not read them.
        return {**lists, "template_args": checked_arguments(arguments)}


@dataclass(frozen=True)
class ToolFlags:
    """The functions that an answer may call, and whether it does."""

    tools: Annotated[Path | None, flags.TOOLS] = None
    tool_choice: Annotated[str | None, flags.TOOL_CHOICE] = None
    no_parallel_tool_calls: Annotated[bool, flags.NO_PARALLEL_TOOL_CALLS] = False

    def read(self) -> list[dict[str, Any]] | None:
        """Return the tools of the file; None without one.

        Raises:
            ConfigError: it has no tools.
        """
        if self.tools is None:
            return None
        path = self.tools.expanduser()

        def refuse(numbers: str) -> ConfigError:
            wanted = '[{"type": "function", "function": {"name": ..., "parameters": {...}}}]'
            return ConfigError(f"{path} is no list of tools.", numbers, f"Write {wanted}.")

        tools = parse_json(read_bytes(path, MAX_BYTES, refuse), refuse)
        if not tools or not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise refuse("It holds no list of objects, or an empty one.")
        return tools

    def applied_to(self, options: GenerationConfig) -> GenerationConfig:
        """Return the options with the choice among the tools."""
        if self.tool_choice is not None:
            options = options.with_options(tool_choice=self.tool_choice)
        return options.with_options(parallel_tool_calls=not self.no_parallel_tool_calls)


@dataclass(frozen=True)
class GuardFlags:
    """Whether an answer that repeats itself or counts without end is stopped."""

    no_repetition_guard: Annotated[bool, answer_flags.NO_REPETITION_GUARD] = False


@dataclass(frozen=True)
class FormatFlags:
    """What the answer has to fit."""

    json_schema: Annotated[Path | None, answer_flags.JSON_SCHEMA] = None
    json_object: Annotated[bool, answer_flags.JSON_OBJECT] = False
    regex: Annotated[str | None, answer_flags.REGEX] = None
    grammar: Annotated[Path | None, answer_flags.GRAMMAR] = None
    json_spaces: Annotated[bool, answer_flags.JSON_SPACES] = False

    def applied_to(self, options: GenerationConfig) -> GenerationConfig:
        """Return the options with what the answer has to fit, which is read and checked, so before a model is loaded.

        Raises:
            InvalidGrammar: a schema or grammar cannot be used.
        """
        given = {
            "--json-schema": self.json_schema, "--json-object": self.json_object, "--regex": self.regex,
            "--grammar": self.grammar,
        }  # fmt: skip
        names = [name for name, value in given.items() if value not in (None, False)]
        if len(names) > 1:
            raise ConfigError("An answer has one format.", f"Got {' and '.join(names)}.", "Leave out all but one.")
        if self.json_spaces and names not in (["--json-schema"], ["--json-object"]):
            raise ConfigError(
                "--json-spaces is for answers in JSON.",
                f"Got {names[0] if names else 'no format'}.",
                "Add --json-schema or --json-object, or leave it out.",
            )
        if not names:
            return options
        wanted: Any = {"type": JSON_OBJECT} if self.json_object else None
        if self.json_schema is not None:
            wanted = read_schema_file(self.json_schema.expanduser())
        return options.with_options(
            response_format=wanted,
            regex=self.regex,
            grammar=None if self.grammar is None else read_text(self.grammar.expanduser(), MAX_BYTES),
            json_spaces=self.json_spaces,
        )


def read_schema_file(path: Path) -> dict[str, Any]:
    """Return the JSON schema of a file.

    Raises:
        InvalidGrammar: it is no JSON object, or larger than a schema may be.
    """

    def refuse(numbers: str) -> InvalidGrammar:
        return InvalidGrammar(f"{path} is no JSON schema.", numbers, 'Write an object such as {"type": "object"}.')

    return read_object(path, MAX_BYTES, refuse)


def parse_logit_bias(texts: Sequence[str]) -> dict[int, float]:
    """Read ``ID=VALUE`` pairs."""
    result = {}
    for text in texts:
        token, equals, value = text.partition("=")
        try:
            if not equals:
                raise ValueError("no '='")
            result[int(token)] = float(value)
        except ValueError as error:
            raise ConfigError(
                "A logit bias is malformed.", f"Got {text!r:.60}: {error}.", "Write it as ID=VALUE, for example 42=-5."
            ) from error
    return result


def parse_template_args(texts: Sequence[str]) -> dict[str, Any]:
    """Read ``KEY=VALUE`` pairs; a value that is JSON is read as such, any other is a text."""
    result: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(
                "A template argument is malformed.",
                f"Got {text!r:.60}.",
                "Write it as KEY=VALUE, for example enable_thinking=false.",
            )
        try:
            result[name] = json.loads(value)
        except (ValueError, RecursionError):
            result[name] = value
    return result
