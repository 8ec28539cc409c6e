"""Options of one generation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from edge_rt.errors import ConfigError

ACCEPTANCE_RULES: Final = ("match", "ratio")


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How tokens are chosen and when to stop.

    The chain, in this order: repetition penalty, presence and frequency penalties, logit bias, temperature, top-k,
    top-p, min-p, one draw. Temperature 0 takes the most likely token after penalties and bias.

    Attributes:
        max_tokens: most tokens to generate; None means until the model stops or the context is full.
        temperature: 0 is greedy; above, logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities reach this sum, in (0, 1].
        min_p: keep tokens at least this fraction as likely as the most likely one, in [0, 1).
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or answer; 1 is off.
        presence_penalty: subtracted from logits of tokens in the answer; 0 is off.
        frequency_penalty: subtracted once for every occurrence in the answer; 0 is off.
        logit_bias: token id -> value added to its logit.
        seed: makes sampling repeat on the same machine, package and version; None takes a new one each time.
        stop: texts that end the answer; they are not part of it.
        spec: who drafts, one of ``edge_rt.spec_modes.SPEC_MODES``; None takes the model's setting.
        reference: a text that the answer may copy parts of, such as a file to be edited; only drafts are made of it.

        accept: which drafted tokens stay. ``"match"``: those that plain decoding would choose, so a seed gives the same
            text with any drafter. ``"ratio"``, with ``spec="recycling"`` only: more of them, by the probabilities they
            were drawn with; the text is another, distributed the same, and a seed repeats it only while the drafters
            know the same. At temperature 0 both are one.

    Raises:
        ConfigError: a value is out of range.
        TypeError: an option of that name does not exist.
    """

    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    spec: str | None = None
    reference: str | None = None
    accept: str = "match"

    def __post_init__(self) -> None:
        _require("stop", self.stop, isinstance(self.stop, str | list | tuple), "a text or a list of texts")
        _require("logit_bias", self.logit_bias, isinstance(self.logit_bias, Mapping), "a mapping")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))
        if self.max_tokens is not None:
            _require(
                "max_tokens", self.max_tokens, _is_int(self.max_tokens, 1), "a whole number of at least 1, or None"
            )
        _require("temperature", self.temperature, _is_number(self.temperature, 0, 100), "a number from 0 to 100")
        _require("top_k", self.top_k, _is_int(self.top_k, 0), "a whole number of at least 0")
        _require("top_p", self.top_p, _is_number(self.top_p, 0, 1) and self.top_p > 0, "a number above 0 and up to 1")
        _require("min_p", self.min_p, _is_number(self.min_p, 0, 1) and self.min_p < 1, "a number from 0 to below 1")
        _require(
            "repetition_penalty",
            self.repetition_penalty,
            _is_number(self.repetition_penalty, 0.01, 100),
            "a number from 0.01 to 100",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _require(name, getattr(self, name), _is_number(getattr(self, name), -100, 100), "a number from -100 to 100")
        for token, bias in self.logit_bias.items():
            fits = _is_int(token, 0) and _is_number(bias, -1e4, 1e4)
            _require("logit_bias", {token: bias}, fits, "token ids with numbers from -10000 to 10000")
        if self.seed is not None:
            fits = _is_int(self.seed, 0) and self.seed < 1 << 64
            _require("seed", self.seed, fits, "a whole number from 0 to 2^64 - 1, or None")
        _require("spec", self.spec, self.spec is None or isinstance(self.spec, str), "a name, or None")
        is_text = self.reference is None or (isinstance(self.reference, str) and self.reference != "")
        _require("reference", self.reference, is_text, "a text that is not empty, or None")
        _require("accept", self.accept, self.accept in ACCEPTANCE_RULES, " or ".join(ACCEPTANCE_RULES))
        for text in self.stop:
            _require("stop", text, isinstance(text, str) and text != "", "texts that are not empty")

    def with_options(self, **options: Any) -> GenerationConfig:
        """Return a copy with some options replaced.

        Raises:
            TypeError: an option of that name does not exist.
            ConfigError: a value is out of range.
        """
        return dataclasses.replace(self, **options)


def _is_int(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _is_number(value: object, minimum: float, maximum: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and minimum <= value <= maximum


def _require(name: str, value: object, fits: bool, wanted: str) -> None:
    if not fits:
        raise ConfigError(
            f"The option '{name}' is out of range.", f"Got {value!r:.60}, wanted {wanted}.", "Correct it."
        )
