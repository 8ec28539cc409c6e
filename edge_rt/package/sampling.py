"""Recommended sampling values of a model, and the defaults for models without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, kw_only=True)
class SamplingAdvice:
    """The sampling values that a model's makers recommend; None: no recommendation.

    Values may come from an untrusted file: ``fault`` checks them.

    Attributes:
        temperature: 0 is greedy; above, logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities reach this sum.
        min_p: keep tokens at least this fraction as likely as the most likely one.
        repetition_penalty: divides positive and multiplies negative logits of tokens that occurred; 1 is off.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The recommended values by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling values in force, named as in ``SamplingAdvice``; the defaults hold where nothing is recommended."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0


SAMPLING_NAMES: Final = tuple(entry.name for entry in dataclasses.fields(Sampling))


def is_int(value: object, minimum: int, maximum: int | None = None) -> bool:
    """Return whether a value is a whole number (not a bool) within bounds (inclusive)."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return value >= minimum and (maximum is None or value <= maximum)


def is_number(value: object, minimum: float, maximum: float) -> bool:
    """Return whether a value is a finite number (not a bool) within bounds (inclusive)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # Comparing is exact for whole numbers that no float can hold, and false for NaN.
    return minimum <= value <= maximum


_MAX_TOP_K: Final = (1 << 31) - 1

_RANGES: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "temperature": (lambda value: is_number(value, 0, 100), "a number from 0 to 100"),
    "top_k": (lambda value: is_int(value, 0, _MAX_TOP_K), "a whole number from 0 to 2147483647"),
    "top_p": (lambda value: is_number(value, 0, 1) and value != 0, "a number above 0 and up to 1"),
    "min_p": (lambda value: is_number(value, 0, 1) and value != 1, "a number from 0 to below 1"),
    "repetition_penalty": (lambda value: is_number(value, 0.01, 100), "a number from 0.01 to 100"),
}


def fault(name: str, value: object) -> str | None:
    """Return the wanted range in words if a value is out of range, else None."""
    fits, wanted = _RANGES[name]
    return None if fits(value) else wanted
