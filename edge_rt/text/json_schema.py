"""JSON schemas of answers: limits, what is enforced, what is only said, and what is refused with its place.

The grammar engine enforces draft 2020-12 or refuses a keyword by name. What it refuses although nothing has to be
enforced is taken out here; ``oneOf`` becomes ``anyOf`` where no value can fit two branches; an unknown ``format`` and a
keyword that does not exist are left out with a warning, as the standard takes them for annotations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_rt.errors import InvalidGrammar, kind_of
from edge_rt.system.byte_size import show_size
from edge_rt.text.one_of import Branches, is_resource, may_occur, target_of, texts_in
from edge_rt.text.schema_numbers import Numbers

MAX_BYTES: Final = 256 << 10
"""Of a schema, written as JSON, and of a regular expression or a grammar."""
MAX_DEPTH: Final = 64
MAX_PROPERTIES: Final = 1000
"""Of one object."""
MAX_ALL_PROPERTIES: Final = 3000
"""Of all objects together."""
MAX_REFERENCED: Final = 1000
"""Levels of all schemas that references name: the engine goes into each within another, with 4 KiB of stack a level."""
MAX_QUANTIFIERS: Final = 2000
"""In all regular expressions together: what they cost grows with their square, 0.1 s and 30 MB for so many."""
_OPERATIONS: Final = ("&&", "--", "~~")
_CLASS_MARK: Final = re.compile(
    r"\\[xu](?:\{\w*\}|\w{2,4})|\\[pP](?:\{[^}]*\}|.)|\\.|\[:\^?\w+:\]|\[\^?\]?|\]|&&|--|~~|\x00", re.DOTALL
)
_ODD: Final = re.compile(
    r"\x00|\\0|\\[xu]\{?0+\}?$|\\p\{?\^?(?:C|Other|Control|cntrl|Any|ASCII|Assigned)|\[:(?:\^|cntrl|ascii)",
    re.IGNORECASE,
)
_QUANTIFIER: Final = re.compile(r"[?*+]|\{[\d,]")
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
    "propertyNames": "Use 'enum', 'const' or 'pattern' alone in it, or 'patternProperties'.",
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
        resources: schemas with an ``$id`` that what is read now lies within, the root aside.
        quantifiers: of all regular expressions.
        references: all that are named by ``$ref``.
    """

    root: Any
    warnings: dict[str, None] = field(default_factory=dict)
    num_properties: int = 0
    resources: int = 0
    quantifiers: int = 0
    references: set[str] = field(default_factory=set)
    numbers: Numbers = field(default_factory=Numbers)
    branches: Branches = field(init=False)

    def __post_init__(self) -> None:
        self.branches = Branches(self.root)

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

    def check(self) -> None:
        """Refuse what would take the engine seconds, or more stack than there is, although each part of it is small.

        Raises:
            InvalidGrammar: it is too much.
        """
        self.numbers.check()
        check_quantifiers(self.quantifiers, "JSON schema")
        targets = (target_of(reference, self.root) for reference in self.references)
        # What is named in another way may lie anywhere.
        whole = _levels_of(self.root)
        levels = sum(whole if target is None else _levels_of(target) for target in targets)
        if levels > MAX_REFERENCED:
            raise InvalidGrammar(
                "The JSON schema is nested too deeply by its references.",
                f"They name {len(self.references)} schemas of {levels} levels together; the limit is {MAX_REFERENCED}.",
                "Use fewer of them, or ask for the answer in several parts.",
            )


def check_quantifiers(count: int, what: str) -> None:
    """Refuse regular expressions with too many quantifiers.

    Raises:
        InvalidGrammar: they are too many.
    """
    if count > MAX_QUANTIFIERS:
        raise InvalidGrammar(
            f"The {what} has too many quantifiers.",
            f"It has {count} of ?, *, + and {{n}} in regular expressions; the limit is {MAX_QUANTIFIERS}.",
            "Simplify it: (word)? and a? again and again are mostly a set of characters and one quantifier.",
        )


def quantifiers_in(expression: str) -> int:
    """Return how many quantifiers a regular expression may have."""
    return len(_QUANTIFIER.findall(expression))


def exact_pattern(pattern: str, place: str) -> str:
    r"""Return an expression whose classes of characters lack NUL, and whose digits are those of ASCII.

    Patterns of JSON schemas are those of ECMAScript, where ``\d`` is ``[0-9]``; the engine's has all digits there are.
    The engine writes characters as JSON does, and takes a class with all control characters for one with every escape:
    ``[^"]`` let ``\\"`` through.

    Raises:
        InvalidGrammar: it may have such a class in another way.
    """
    parts: list[str] = []
    open_classes: list[bool] = []  # whether each is negated
    end = 0
    for match in _CLASS_MARK.finditer(pattern):
        parts.append(pattern[end : match.start()])
        end = match.end()
        mark = match[0]
        if mark == "]":
            del open_classes[-1:]
        elif mark == r"\d":
            mark = "0-9" if open_classes else "[0-9]"
        elif mark.startswith("[") and not mark.startswith("[:"):
            open_classes.append("^" in mark)
            # A bracket right behind the beginning is a character.
            mark = mark[:-1] + "\\]" if mark.endswith("]") else mark
            mark = mark.replace("^", "^\\x00", 1)
        elif (mark in _OPERATIONS and open_classes) or (_ODD.match(mark) and not any(open_classes)):
            raise InvalidGrammar(
                "The pattern has a class of characters that cannot be enforced.",
                f"It has {mark!r:.20} at {place}: NUL, control characters, or an operation on classes.",
                "List the characters that are wanted, or those that are not, as in [^a-z].",
            )
        parts.append(mark)
    return "".join([*parts, pattern[end:]])


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
    reading.check()
    reading.numbers.limit_digits()
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


def _levels_of(schema: Any) -> int:
    """Return how many schemas are within each other."""
    if not isinstance(schema, dict):
        return 0
    parts: list[Any] = []
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, dict):
            parts += value.values()
        elif isinstance(value, list):
            parts += value
        elif name in _ONE:
            parts.append(value)
    return 1 + max(map(_levels_of, parts), default=0)


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()


def _read(schema: Any, place: str, reading: _Reading) -> Any:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise _malformed(place, schema, "a schema, which is an object, true or false")
    starts_resource = schema is not reading.root and is_resource(schema)
    reading.resources += starts_resource
    result: dict[str, Any] = {}
    for name, value in schema.items():
        at = f"{place}/{name}"
        if name in _MAPS:
            if not isinstance(value, dict):
                raise _malformed(at, value, "an object")
            if name == "properties":
                reading.count(len(value), at)
            elif name == "patternProperties":
                reading.quantifiers += sum(map(quantifiers_in, value))
            result[name] = {
                exact_pattern(key, at) if name == "patternProperties" else key: (
                    one if name == "dependencies" and isinstance(one, list) else _read(one, f"{at}/{key}", reading)
                )
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
            if name == "pattern" and isinstance(value, str):
                reading.quantifiers += quantifiers_in(value)
                result[name] = exact_pattern(value, place)
            elif name == "$ref" and isinstance(value, str):
                reading.references.add(value)
        elif name in _SILENT:
            # References may name them.
            if name in ("$id", "id", "$schema", "$anchor"):
                result[name] = value
        elif name in _SAID or not name.startswith("x-"):
            reason = "is not enforced" if name in _SAID else "is no keyword of JSON schema and is not enforced"
            reading.warnings[f"'{name[:40]}' at {place} {reason}."] = None
    reading.numbers.joins |= "allOf" in result or (len(result.keys() - _ASIDE) > 1 and bool(result.keys() & _COMBINING))
    result = reading.numbers.read(result, place)
    _drop_idle(result, reading, place)
    for name in REFUSED:
        if name in result and name != "minProperties":
            raise _refusal(name, place)
    reading.resources -= starts_resource
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
    _open_property_names(result, reading, place)
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


def _open_property_names(result: dict[str, Any], reading: _Reading, place: str) -> None:
    """Say in another way which names properties have: none but listed ones, or those of an expression."""
    names = result.get("propertyNames")
    if names in (True, {}, {"type": "string"}):
        del result["propertyNames"]
        return
    if not isinstance(names, dict) or "patternProperties" in result:
        return
    names = {name: value for name, value in names.items() if (name, value) != ("type", "string")}
    listed = [names["const"]] if names.keys() == {"const"} else names.get("enum")
    others, known = result.get("additionalProperties", True), result.get("properties", {})
    if names.keys() <= {"const", "enum"} and isinstance(listed, list) and isinstance(known, dict):
        reading.count(len(listed), f"{place}/propertyNames")
        more = {name: others for name in texts_in(listed) if name not in known}
        result["properties"] = {**{name: value if name in listed else False for name, value in known.items()}, **more}
    elif names.keys() == {"pattern"} and not known:
        result["patternProperties"] = {names["pattern"]: others}
    else:
        return
    result["additionalProperties"] = False
    del result["propertyNames"]


def _drop_dependencies(result: dict[str, Any]) -> None:
    """Leave out dependencies that hold anyway: their properties are required, or the first one cannot occur."""
    required = set(texts_in(result.get("required")))
    occurs = may_occur(result)
    for name in ("dependentRequired", "dependentSchemas", "dependencies"):
        rules = result.get(name)
        if isinstance(rules, dict) and all(
            rule in (True, {}) or (isinstance(rule, list) and set(texts_in(rule)) <= required) or not occurs(key)
            for key, rule in rules.items()
        ):
            del result[name]


def _check_fewest_properties(result: dict[str, Any], place: str) -> None:
    """Refuse a number of properties that repeated keys could seem to reach: their names are not compared."""
    least = result.get("minProperties")
    if isinstance(least, int) and least > 1 + len(set(texts_in(result.get("required")))):
        is_closed = result.get("additionalProperties") is False and not result.get("patternProperties")
        if not is_closed:
            raise _refusal("minProperties", place, f" and wants {least}, more than are named under 'required'")


def _open_one_of(result: dict[str, Any], reading: _Reading, place: str) -> None:
    """Replace ``oneOf`` by ``anyOf``, which is the same where no value can fit two branches."""
    branches = result["oneOf"]
    if not isinstance(branches, list):
        return
    outside = {name: value for name, value in result.items() if name != "oneOf"}
    if (overlap := reading.branches.overlap_of(branches, outside, follows=not reading.resources)) is not None:
        raise _refusal("oneOf", place, f": {overlap}")
    del result["oneOf"]
    if "anyOf" in result:
        result["allOf"] = [*result.get("allOf", ()), {"anyOf": branches}]
    else:
        result["anyOf"] = branches
