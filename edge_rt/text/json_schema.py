"""JSON schemas of answers: limits, what is enforced, what is only said, and what is refused with its place.

The grammar engine enforces draft 2020-12 or refuses a keyword by name. What it refuses although nothing has to be
enforced is taken out here; ``oneOf`` becomes ``anyOf`` where no value can fit two branches; an unknown ``format`` and a
keyword that does not exist are left out with a warning, as the standard takes them for annotations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from edge_rt.errors import InvalidGrammar, kind_of
from edge_rt.system.byte_size import show_size

MAX_BYTES: Final = 256 << 10
"""Of a schema, written as JSON, and of a regular expression or a grammar."""
MAX_DEPTH: Final = 64
MAX_PROPERTIES: Final = 1000
"""Of one object."""
MAX_ALL_PROPERTIES: Final = 3000
"""Of all objects together."""
MAX_MULTIPLES: Final = 100_000
"""Of the digits of all ``multipleOf`` as whole numbers, their sum: the engine looks for remainders one by one."""
FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
"""Values of ``format`` that are enforced."""

_ONE: Final = frozenset(("additionalProperties", "items", "additionalItems", "contains", "propertyNames", "not", "if",
                         "then", "else", "unevaluatedItems", "unevaluatedProperties"))  # fmt: skip
_LISTS: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_MAPS: Final = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
_VALUES: Final = frozenset(
    ("type", "enum", "const", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
     "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "required",
     "minProperties", "maxProperties", "dependentRequired", "$ref", "$dynamicRef", "$recursiveRef")
)  # fmt: skip
_SILENT: Final = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment", "$id",
     "id", "$schema", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary")
)  # fmt: skip
_SAID: Final = frozenset(("contentEncoding", "contentMediaType", "contentSchema"))
REFUSED: Final[Mapping[str, str]] = {
    "not": "Say what is wanted instead, for example with 'enum' or 'pattern'.",
    "if": "Write the cases as branches of 'anyOf', each whole.",
    "contains": "Describe all items with 'items', or the first ones with 'prefixItems'.",
    "uniqueItems": "Leave it out and check the answer, or make an object with one property for each item.",
    "propertyNames": "Write the expression as a key of 'patternProperties', with 'additionalProperties': false.",
    "dependentRequired": "Write the cases as branches of 'anyOf', each with its 'required'.",
    "dependentSchemas": "Write the cases as branches of 'anyOf', each whole.",
    "dependencies": "Write the cases as branches of 'anyOf', each whole.",
    "unevaluatedItems": "Use 'items': false behind 'prefixItems'.",
    "unevaluatedProperties": "Use 'additionalProperties': false in an object that lists all properties.",
    "oneOf": "Use 'anyOf', or give every branch a required property with a 'const' of its own.",
    "minProperties": "Name the properties under 'required', or set 'additionalProperties': false.",
    "$dynamicRef": "Use '$ref'.",
    "$recursiveRef": "Use '$ref'.",
}
"""Keywords that cannot be enforced where they matter, and what to write instead."""
_COMBINING: Final = frozenset(("$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"))

_ASIDE: Final = frozenset(("$defs", "definitions", "$id", "id", "$schema", "$anchor"))


@dataclass
class _Reading:
    """What has been read of a schema.

    Attributes:
        root: the whole schema, for references.
        multiples: values of ``multipleOf``.
        joins: whether a value may have to fit several schemas at once.
    """

    root: Any
    warnings: dict[str, None] = field(default_factory=dict)
    num_properties: int = 0
    multiples: list[Fraction] = field(default_factory=list)
    joins: bool = False

    def count(self, properties: int, place: str) -> None:
        """Count the properties of an object.

        Raises:
            InvalidGrammar: they are too many.
        """
        self.num_properties += properties
        if properties > MAX_PROPERTIES or self.num_properties > MAX_ALL_PROPERTIES:
            raise InvalidGrammar(
                "The JSON schema has too many properties.",
                f"{properties} at {place}, {self.num_properties} so far; the limits are {MAX_PROPERTIES} of an object"
                f" and {MAX_ALL_PROPERTIES} in all.",
                "Describe them with 'additionalProperties', or ask for the answer in several parts.",
            )

    def check_multiples(self) -> None:
        """Refuse multiples whose remainders would take seconds and gigabytes.

        Raises:
            InvalidGrammar: they are too large.
        """
        numbers = sum(_digits_of(value) for value in self.multiples)
        if self.joins and self.multiples:
            # Of a value that has to fit several, the least common multiple counts.
            whole = math.lcm(*(value.numerator for value in self.multiples))
            numbers = max(numbers, _digits_of(Fraction(whole, math.gcd(*(one.denominator for one in self.multiples)))))
        if numbers > MAX_MULTIPLES:
            raise InvalidGrammar(
                "The JSON schema has 'multipleOf' with too many digits.",
                f"Without their points they, or their common multiples, come to {numbers:.6g}; the limit is"
                f" {MAX_MULTIPLES}.",
                "Use rounder multiples, or leave them out and check the answer.",
            )


def _digits_of(value: Fraction) -> int:
    """Return the digits of a decimal fraction as a whole number; without the zeros behind a single digit."""
    number, scale = value.numerator, value.denominator
    while scale > 1:
        shared = math.gcd(scale, 10)
        number, scale = number * (10 // shared), scale // shared
    digits = str(number).rstrip("0")
    return int(digits) if len(digits) == 1 else number


def read_schema(schema: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a schema as the grammar engine takes it, and a sentence for everything that is not enforced.

    Raises:
        InvalidGrammar: it is no schema, too large, too deep, or has a keyword that cannot be enforced.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise InvalidGrammar(
            "The JSON schema is not an object.", f"It is {kind_of(schema)}.", 'Write one, such as {"type": "object"}.'
        )
    _check_depth(schema)
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise InvalidGrammar(
            "The JSON schema is not plain data.", f"{error}.", "Use objects, arrays, texts and numbers."
        ) from error
    if size > MAX_BYTES:
        raise InvalidGrammar(
            "The JSON schema is too large.",
            f"It has {show_size(size)} as JSON, the limit is {show_size(MAX_BYTES)}.",
            "Shorten it, or ask for the answer in several parts.",
        )
    # As JSON has it: tuples are lists, and all names are texts.
    reading = _Reading(json.loads(text))
    result = _read(reading.root, "#", reading)
    reading.check_multiples()
    return result, tuple(reading.warnings)


def _check_depth(schema: Any) -> None:
    """Refuse what is nested too deeply; a loop in Python data ends here as well."""
    level = [schema]
    for _ in range(2 * MAX_DEPTH):
        level = [value for one in level for value in _inside(one)]
        if not level:
            return
        if len(level) > MAX_BYTES:
            break
    raise InvalidGrammar(
        "The JSON schema is nested too deeply.",
        f"The limit is {MAX_DEPTH} schemas within each other.",
        "Move parts of it to '$defs' and refer to them.",
    )


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()


def _read(schema: Any, place: str, reading: _Reading) -> Any:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise _malformed(place, schema, "a schema, which is an object, true or false")
    result: dict[str, Any] = {}
    for name, value in schema.items():
        at = f"{place}/{name}"
        if name in _MAPS:
            if not isinstance(value, dict):
                raise _malformed(at, value, "an object")
            if name == "properties":
                reading.count(len(value), at)
            result[name] = {
                key: one if name == "dependencies" and isinstance(one, list) else _read(one, f"{at}/{key}", reading)
                for key, one in value.items()
            }
        elif name in _LISTS or (name == "items" and isinstance(value, list)):
            if not isinstance(value, list) or not value:
                raise _malformed(at, value, "a list of schemas that is not empty")
            result[name] = [_read(one, f"{at}/{index}", reading) for index, one in enumerate(value)]
        elif name in _ONE:
            result[name] = _read(value, at, reading)
        elif name in _VALUES:
            result[name] = value
        elif name in _SILENT:
            # References may name them.
            if name in ("$id", "id", "$schema", "$anchor"):
                result[name] = value
        elif name in _SAID or not name.startswith("x-"):
            reason = "is not enforced" if name in _SAID else "is no keyword of JSON schema and is not enforced"
            reading.warnings[f"'{name[:40]}' at {place} {reason}."] = None
    multiple = result.get("multipleOf")
    if isinstance(multiple, int | float) and multiple > 0:
        reading.multiples.append(Fraction(repr(multiple)))
    reading.joins |= "allOf" in result or (len(result.keys() - _ASIDE) > 1 and bool(result.keys() & _COMBINING))
    _drop_idle(result, reading, place)
    for name in REFUSED:
        if name in result and name != "minProperties":
            raise _refusal(name, place)
    return result


def _malformed(place: str, value: object, wanted: str) -> InvalidGrammar:
    return InvalidGrammar(
        "The JSON schema is malformed.", f"At {place} is {kind_of(value)}, wanted {wanted}.", "Correct the schema."
    )


def _refusal(name: str, place: str, why: str = "") -> InvalidGrammar:
    return InvalidGrammar(
        f"The keyword '{name}' cannot be enforced while an answer is written.", f"It is at {place}{why}.", REFUSED[name]
    )


def _drop_idle(result: dict[str, Any], reading: _Reading, place: str) -> None:
    """Take out of one schema what does not constrain anything there, and turn what can be said in another way."""
    if "format" in result and result["format"] not in FORMATS:
        reading.warnings[f"The format {result.pop('format')!r:.40} at {place} is not known and is not enforced."] = None
    if "if" not in result or not ("then" in result or "else" in result):
        for name in ("if", "then", "else"):
            result.pop(name, None)
    if "contains" not in result or (result.get("minContains") == 0 and "maxContains" not in result):
        for name in ("contains", "minContains", "maxContains"):
            result.pop(name, None)
    most = result.get("maxItems")
    if result.get("uniqueItems") is False or (isinstance(most, int) and most < 2):
        result.pop("uniqueItems", None)
    if result.get("propertyNames") in (True, {}, {"type": "string"}):
        del result["propertyNames"]
    for name, plain, beside in (
        ("unevaluatedProperties", "additionalProperties", ()),
        ("unevaluatedItems", "items", ("contains",)),
    ):
        if name in result and (result[name] in (True, {}) or plain in result):
            del result[name]
        elif name in result and not any(other in result for other in (*_COMBINING, *beside)):
            result[plain] = result.pop(name)
    _drop_dependencies(result)
    _check_fewest_properties(result, place)
    if "oneOf" in result:
        _open_one_of(result, reading, place)


def _drop_dependencies(result: dict[str, Any]) -> None:
    """Leave out dependencies that hold anyway: their properties are required, or the first one cannot occur."""
    required = set(_texts(result.get("required")))
    may_occur = _may_occur(result)
    for name in ("dependentRequired", "dependentSchemas", "dependencies"):
        rules = result.get(name)
        if isinstance(rules, dict) and all(
            rule in (True, {}) or (isinstance(rule, list) and set(_texts(rule)) <= required) or not may_occur(key)
            for key, rule in rules.items()
        ):
            del result[name]


def _may_occur(schema: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return whether an object may have a property, as far as its own keywords say."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return lambda name: known[name] is not False if name in known else not is_closed


def _check_fewest_properties(result: dict[str, Any], place: str) -> None:
    """Refuse a number of properties that repeated keys could seem to reach: their names are not compared."""
    least = result.get("minProperties")
    if isinstance(least, int) and least > 1 + len(set(_texts(result.get("required")))):
        is_closed = result.get("additionalProperties") is False and not result.get("patternProperties")
        if not is_closed:
            raise _refusal("minProperties", place, f" and wants {least}, more than are named under 'required'")


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


# --- oneOf ---


def _open_one_of(result: dict[str, Any], reading: _Reading, place: str) -> None:
    """Replace ``oneOf`` by ``anyOf``, which is the same where no value can fit two branches."""
    branches = result["oneOf"]
    if not isinstance(branches, list):
        return
    # What stands beside it holds in every branch.
    outside = {name: value for name, value in result.items() if name != "oneOf"}
    views = [[outside, *_views(branch, reading.root)] for branch in branches]
    for second in range(len(views)):
        for first in range(second):
            if not _are_disjoint(views[first][1:], views[second][1:], outside):
                raise _refusal("oneOf", place, f": branches {first} and {second} may both fit the same value")
    del result["oneOf"]
    if "anyOf" in result:
        result["allOf"] = [*result.get("allOf", ()), {"anyOf": branches}]
    else:
        result["anyOf"] = branches


_MAX_REFERENCES: Final = 8


def _views(branch: Any, root: Any) -> Iterator[Mapping[str, Any]]:
    """Yield schemas that a value of a branch has to fit all of."""
    waiting, steps = [branch], 0
    while waiting and steps < 64:
        steps += 1
        one = waiting.pop()
        if one is False:
            yield {"enum": []}
        if not isinstance(one, dict):
            continue
        yield one
        if (target := _target(one.get("$ref"), root)) is not None:
            waiting.append(target)
        if isinstance(parts := one.get("allOf"), list):
            waiting.extend(parts)


def _target(reference: Any, root: Any) -> Any:
    """Return what a reference within the schema names; None for others."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    if reference != "#" and not reference.startswith("#/"):
        return None  # an anchor
    found = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


_TYPES: Final = frozenset(("null", "boolean", "number", "string", "array", "object"))


def _are_disjoint(
    first: Iterable[Mapping[str, Any]], second: Iterable[Mapping[str, Any]], outside: Mapping[str, Any]
) -> bool:
    """Return whether no value can fit both; False where that is not certain."""
    one, other = [outside, *first], [outside, *second]
    types = _types_of(one) & _types_of(other)
    if not types:
        return True
    values, others = _values_of(one), _values_of(other)
    if values is not None and others is not None and not values & others:
        return True
    if types != {"object"}:
        return False
    shared = _required_of(one) & _required_of(other)
    if any(_differ(_property(one, name), _property(other, name)) for name in shared):
        return True
    return any(_is_missing(one, name) for name in _required_of(other)) or any(
        _is_missing(other, name) for name in _required_of(one)
    )


def _differ(first: list[Mapping[str, Any]], second: list[Mapping[str, Any]]) -> bool:
    if not (_types_of(first) & _types_of(second)):
        return True
    values, others = _values_of(first), _values_of(second)
    return values is not None and others is not None and not values & others


def _property(views: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    found = (view.get("properties") for view in views)
    return [one[name] for one in found if isinstance(one, dict) and isinstance(one.get(name), dict)]


def _is_missing(views: Iterable[Mapping[str, Any]], name: str) -> bool:
    """Return whether an object that fits cannot have a property."""
    return any(not _may_occur(view)(name) for view in views)


def _required_of(views: Iterable[Mapping[str, Any]]) -> set[str]:
    return {name for view in views for name in _texts(view.get("required"))}


def _types_of(views: Iterable[Mapping[str, Any]]) -> set[str]:
    result = set(_TYPES)
    for view in views:
        if (named := view.get("type")) is not None:
            names = {named} if isinstance(named, str) else set(_texts(named))
            result &= {"number" if name == "integer" else name for name in names}
        if (values := _values_of([view])) is not None:
            result &= {_type_of(json.loads(value)) for value in values}
    return result


def _type_of(value: Any) -> str:
    names = {bool: "boolean", type(None): "null", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "number")


def _values_of(views: Iterable[Mapping[str, Any]]) -> set[str] | None:
    """Return the only values that fit, as JSON; None where that is not said. Numbers that are equal are one."""
    result: set[str] | None = None
    for view in views:
        listed = [view["const"]] if "const" in view else view.get("enum")
        if isinstance(listed, list):
            values = {_spelled(value) for value in listed}
            result = values if result is None else result & values
    return result


def _spelled(value: Any) -> str:
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_whole_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
