"""The options of a chat: parsing what users type, displaying values, and saving them."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import Any, Final

from edge_rt.cli.options.generation import NO_LIMIT, parse_logit_bias, read_schema_file
from edge_rt.cli.options.spread import path_of
from edge_rt.cli.render.console import number
from edge_rt.errors import ConfigError, InputError
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.package.spec_modes import REFERENCE_MODES, mode_of, require_mode
from edge_rt.runtime.config import GenerationConfig
from edge_rt.system.files import read_text
from edge_rt.text.answer_format import JSON_OBJECT

_NOT_FOR_CHATS: Final = ("logits_processor", "logprobs")
OPTION_NAMES: Final = tuple(
    field.name for field in dataclasses.fields(GenerationConfig) if field.name not in _NOT_FOR_CHATS
)
SPEC_OPTIONS: Final = ("spec", "reference", "accept")
_LISTS: Final = ("stop", "banned", "dry_breakers")
DEFAULTS: Final = GenerationConfig()
"""Of a chat."""
_SWITCH: Final = {"on": True, "off": False}
_ALIASES: Final = {
    "temp": "temperature",
    "n": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "repeat-penalty": "repetition_penalty",
}


def option_name(given: str) -> str:
    """Return the canonical name of an option that may be written in other ways."""
    name = _ALIASES.get(given, given.replace("-", "_"))
    if name not in OPTION_NAMES:
        close = difflib.get_close_matches(name, (*OPTION_NAMES, *_ALIASES), n=1)
        raise ConfigError(
            f"There is no option {given!r:.60}.",
            f"Did you mean {close[0]}?" if close else f"Options: {', '.join(OPTION_NAMES)}.",
            "Write /set OPTION VALUE; /set lists all.",
        )
    return name


def parse_option(name: str, text: str) -> Any:
    """Return the value of ``/set NAME TEXT``; ``GenerationConfig`` checks its range."""
    if text in ("default", "none", "None"):
        return getattr(DEFAULTS, name)
    if name in ("repetition_guard", "json_spaces", "parallel_tool_calls") and text in _SWITCH:
        return _SWITCH[text]
    if name in ("stop", "dry_breakers"):
        return _parse_texts(name, text)
    if name == "banned":
        return _parse_ids(text)
    if name == "logit_bias":
        return parse_logit_bias(text.split())
    if name in ("reference", "grammar"):
        return read_text(path_of(text))
    if name == "response_format":
        return {"type": JSON_OBJECT} if text == JSON_OBJECT else read_schema_file(path_of(text))
    if name == "regex":
        return text
    if name == "spec":
        require_mode(text)
        return text
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return None if name == "max_tokens" and value == NO_LIMIT else value
    return text


def _parse_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split())
    except ValueError as error:
        raise ConfigError("The token ids are malformed.", f"{error}.", "Write them with spaces between.") from error


def _parse_texts(name: str, text: str) -> tuple[str, ...]:
    """Return a plain text, a JSON string, or a JSON array of strings as a tuple of texts."""
    if not text.startswith(('"', "[")):
        return (text,)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"The texts for {name} are malformed.", f"{error}.", 'Write a text, or ["a", "b"].'
        ) from error
    return tuple(value) if isinstance(value, list) else (value,)


def shown(name: str, value: Any) -> str:
    """Return an option's value as displayed text."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if name in ("reference", "grammar") and value is not None:
        return f"a text of {number(len(value))} characters"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False) if value else "none"
    return "none" if value is None else str(value)


def sampling_shown(options: GenerationConfig, advice: SamplingAdvice | None) -> dict[str, str]:
    """Return the sampling values in force as displayed text, marked if they come from the model or are defaults."""
    given = SamplingAdvice() if advice is None or options.temperature == 0 else advice
    texts = {}
    for name, value in dataclasses.asdict(options.sampling(advice)).items():
        origin = " (the model's)" if getattr(given, name) is not None else " (default)"
        texts[name] = f"{value:g}" + (origin if getattr(options, name) is None else "")
    return texts


def check_options(options: GenerationConfig, mode: str) -> None:
    """Refuse options of speculation that contradict each other, before the next answer needs them."""
    mode = mode if options.spec is None else options.spec
    if mode == "reference" and options.reference is None:
        raise ConfigError(
            "The reference drafter has nothing to copy from.",
            "There is no reference text.",
            "Give one with /set reference FILE, or choose another drafter with /set spec.",
        )
    if options.reference is not None and mode_of(mode) not in ("off", *REFERENCE_MODES):
        raise ConfigError(
            f"The drafter {mode} does not use a reference text.",
            f"A reference text of {number(len(options.reference))} characters is set.",
            "Use /set spec auto or /set spec reference, or drop it with /set reference none.",
        )
    if options.accept == "ratio" and mode != "recycling":
        raise ConfigError(
            "The acceptance rule ratio needs a drafter with known draft probabilities.",
            f"The mode of speculation is {mode}; recycling has them.",
            "Use /set spec recycling before /set accept ratio, and /set accept match before another drafter.",
        )


def options_to_settings(options: GenerationConfig) -> dict[str, Any]:
    """Return the options that answers depend on as a JSON object, without the options of speculation."""
    values = {name: getattr(options, name) for name in OPTION_NAMES if name not in SPEC_OPTIONS}
    lists = {name: list(values[name]) for name in _LISTS}
    return {**values, "logit_bias": dict(options.logit_bias), **lists}


def settings_to_options(settings: Mapping[str, Any]) -> GenerationConfig:
    """Return the options that ``options_to_settings`` wrote."""
    values = dict(settings)
    try:
        values["logit_bias"] = {int(token): bias for token, bias in dict(values.get("logit_bias") or {}).items()}
        values |= {name: tuple(values[name]) for name in _LISTS if name in values}
        # A chat of an older version does not say all of them.
        return DEFAULTS.with_options(**values)
    except (TypeError, ValueError) as error:
        raise InputError(
            "The settings of the saved chat are not usable.", f"{error}", "Choose another file."
        ) from error
