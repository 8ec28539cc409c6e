"""Numbers in JSON schemas: what ``multipleOf`` costs the grammar engine, and how many digits are written.

The engine follows the remainder of a number, digit by digit. Any remainder leads to a multiple; whether it does so
within two bounds as well, or behind a minus sign, the engine finds out by trying remainders one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from edge_rt.errors import InvalidGrammar

MAX_REMAINDERS: Final = 100_000
"""Of all multiples of a schema together; as many are tried in 0.3 s."""
MAX_BETWEEN_BOUNDS: Final = 5000
"""Of a multiple between a smallest and a largest value; with more, the engine gives up in the middle of a number."""
MAX_LISTED: Final = 1000
"""Values between two bounds that are listed one by one."""
LARGEST: Final = 9 * 10**18
"""Of numbers that are written, where their schema allows larger ones; the engine follows no more than 64 bits."""
DECIMALS: Final = 10
"""Most digits behind the point of a number that has a bound; the engine follows multiples of no smaller one."""
_NARROWEST: Final = Fraction(1, 1000)
"""Between two bounds; closer ones may need more decimals."""

_BOUNDS: Final = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_OTHERS: Final = frozenset(("enum", "const", "$ref", "allOf", "anyOf", "oneOf"))


@dataclass
class Numbers:
    """The numbers of one schema, and what they cost.

    Attributes:
        joins: whether a value may have to fit several schemas at once.
    """

    joins: bool = False
    _alone: list[dict[str, Any]] = field(default_factory=list)
    _remainders: int = 0
    _values: list[Fraction] = field(default_factory=list)

    def read(self, schema: dict[str, Any], place: str) -> dict[str, Any]:
        """Return a schema with its own ``multipleOf`` as the engine takes it best, and count that.

        Raises:
            InvalidGrammar: there are too many remainders between two bounds.
        """
        multiple = _number(schema.get("multipleOf"))
        if multiple is None or multiple <= 0:
            if not schema.keys() & (_OTHERS | {"multipleOf"}):
                self._alone.append(schema)
            return schema
        low, high = _bounds_of(schema)
        is_alone = schema.get("type") == "integer" and not schema.keys() & _OTHERS
        rest = {name: value for name, value in schema.items() if name not in _BOUNDS | {"type", "multipleOf"}}
        whole = multiple.numerator  # the whole numbers among its multiples are those of this one
        if is_alone and low is not None and high is not None:
            first, last = math.ceil(low / whole), math.floor(high / whole)
            if last - first < MAX_LISTED:
                return {**rest, "enum": [whole * count for count in range(first, last + 1)]}
        self._values.append(multiple)
        digits = _digits_of(multiple)
        if low is not None and high is not None:
            if digits > MAX_BETWEEN_BOUNDS:
                raise InvalidGrammar(
                    "The JSON schema has 'multipleOf' with too many digits between two bounds.",
                    f"At {place} it comes to {digits} without its point. The limit is {MAX_BETWEEN_BOUNDS}, or"
                    f" {MAX_LISTED} whole numbers between the bounds.",
                    "Leave one bound out, bring them closer together, or use a smaller multiple.",
                )
            self._remainders += digits
        elif low is not None or high is not None:
            self._remainders += _without_tens(digits)
        elif is_alone:
            self._remainders += _without_tens(digits)
            halves = ({"minimum": 0}, {"maximum": -1})
            return {
                **rest,
                "anyOf": [{"type": "integer", "multipleOf": schema["multipleOf"], **half} for half in halves],
            }
        else:
            self._remainders += digits
        return schema

    def check(self) -> None:
        """Refuse multiples whose remainders would take seconds and gigabytes.

        Raises:
            InvalidGrammar: they are too many.
        """
        remainders = self._remainders
        if self.joins and self._values:
            # Of a value that has to fit several, the least common multiple counts.
            common = math.lcm(*(value.numerator for value in self._values))
            divisor = math.gcd(*(value.denominator for value in self._values))
            remainders = max(remainders, _digits_of(Fraction(common, divisor)))
        if remainders > MAX_REMAINDERS:
            raise InvalidGrammar(
                "The JSON schema has 'multipleOf' with too many digits.",
                f"Without their points they, or their common multiples, come to {Decimal(remainders):.6g}; the limit is"
                f" {MAX_REMAINDERS}.",
                'Give whole numbers one bound, such as "minimum": 0, use rounder multiples, or check the answer.',
            )

    def limit_digits(self) -> None:
        """Bound the digits of numbers, in which a small model may loop; in place, once all of the schema is read.

        Numbers without a bound keep theirs: they may have an exponent, which the engine allows no others.
        """
        # What a value has to fit besides could leave nothing of it.
        for schema in () if self.joins else self._alone:
            kinds = schema.get("type")
            kinds = kinds if isinstance(kinds, list) else [kinds]
            given = {name: number for name in _BOUNDS if (number := _number(schema.get(name))) is not None}
            is_whole = "number" not in kinds
            if given.keys() != schema.keys() & _BOUNDS:
                continue  # the engine says which bound is no number
            if (is_whole and "integer" not in kinds) or not (is_whole or given):
                continue
            low, high = (
                max((given[name] for name in names if name in given), key=lambda one: sign * one, default=None)
                for sign, names in ((1, ("minimum", "exclusiveMinimum")), (-1, ("maximum", "exclusiveMaximum")))
            )
            if (low is not None and low > LARGEST // 2) or (high is not None and high < -LARGEST // 2):
                continue
            if low is None or low < -LARGEST:
                _bound(schema, "minimum", -LARGEST)
            if high is None or high > LARGEST:
                _bound(schema, "maximum", LARGEST)
            if not is_whole and (low is None or high is None or high - low >= _NARROWEST):
                schema["multipleOf"] = float(f"1e-{DECIMALS}")


def _bound(schema: dict[str, Any], name: str, value: int) -> None:
    schema.pop(f"exclusive{name.capitalize()}", None)
    schema[name] = value


def _number(value: Any) -> Fraction | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Fraction(value)
    return Fraction(repr(value)) if isinstance(value, float) and math.isfinite(value) else None


def _bounds_of(schema: dict[str, Any]) -> tuple[Fraction | None, Fraction | None]:
    """Return the smallest and the largest value that a number may have; of whole numbers, if it excludes its bounds."""
    low, high = _number(schema.get("minimum")), _number(schema.get("maximum"))
    if (above := _number(schema.get("exclusiveMinimum"))) is not None:
        least = Fraction(math.floor(above) + 1)
        low = least if low is None else max(low, least)
    if (below := _number(schema.get("exclusiveMaximum"))) is not None:
        most = Fraction(math.ceil(below) - 1)
        high = most if high is None else min(high, most)
    return low, high


def _digits_of(value: Fraction) -> int:
    """Return the digits of a decimal fraction as a whole number; without the zeros behind a single digit."""
    number, scale = value.numerator, value.denominator
    while scale > 1:
        shared = math.gcd(scale, 10)
        number, scale = number * (10 // shared), scale // shared
    digits = str(number).rstrip("0")
    return int(digits) if len(digits) == 1 else number


def _without_tens(number: int) -> int:
    """Return a number without the factors 2 and 5: whether these divide a number, its last digits say."""
    while (shared := math.gcd(number, 10)) > 1:
        number //= shared
    return number
