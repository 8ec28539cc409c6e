"""Arguments of calls in Gemma's notation: grammars of JSON schemas.

``{city:<|"|>Paris<|"|>,days:3}``: keys stand without quotes and in the order of the alphabet, as the template writes
them; texts stand between marks; numbers, true, false and null are those of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from typing import Any, Final

from edge_rt.errors import InvalidGrammar
from edge_rt.text.answer_format import MAX_LEVELS

_ASIDE: Final = frozenset(("$defs", "definitions", "$id", "id", "$schema", "$anchor"))
_OF_TYPE: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset(("items", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties")),
}
_KNOWN: Final = frozenset(("type", "enum", "const", "anyOf", "$ref")).union(_ASIDE, *_OF_TYPE.values())
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems")
_KEY: Final = re.compile(r"[^\s:{}\[\],\"<]+")
_ANY: Final = """
{p}any: {p}text | {p}plain | {p}list | {p}map
{p}plain: %json {{"type": ["number", "boolean", "null"]}}
{p}list: "[" ({p}any ("," {p}any)*)? "]"
{p}map: "{{" ({p}pair ("," {p}pair)*)? "}}"
{p}pair: /[A-Za-z_][A-Za-z0-9_]*/ ":" {p}any"""


def arguments_rules(schema: dict[str, Any], name: str, quote: str, quote_text: str) -> tuple[list[str], list[str]]:
    """Return rules in Lark's notation for what fits a schema, the first one of the given name, and warnings.

    Args:
        schema: as ``read_schema`` returns it.
        quote: what stands around texts, in Lark's notation.
        quote_text: the same as text, which no text contains.

    Raises:
        InvalidGrammar: a keyword cannot be enforced in this notation.
    """
    writer = _Writer(schema, f"{name}_", quote, quote_text)
    first = f"{name}: {writer.item(schema, '#')}"
    if len(writer.rules) > MAX_LEVELS:
        raise InvalidGrammar(
            "The JSON schema is too large for Gemma's notation of arguments.",
            f"It becomes {len(writer.rules)} rules, the limit is {MAX_LEVELS}.",
            "Give the tool fewer parameters.",
        )
    return [first, *writer.rules, *_ANY.format(p=f"{name}_").strip().splitlines()], writer.warnings


class _Writer:
    def __init__(self, root: Any, prefix: str, quote: str, quote_text: str) -> None:
        self._root = root
        self._prefix = prefix
        self._quote = quote
        self._no_quote = f"~/(?s:.*){lark_expression(quote_text)}(?s:.*)/"
        self._references: dict[str, str] = {}
        self._count = 0
        self.rules: list[str] = []
        self.warnings: list[str] = []
        self._text({}, "#", "text")

    def _rule(self, body: str, name: str = "") -> str:
        self._count += 1
        name = f"{self._prefix}{name or self._count}"
        self.rules.append(f"{name}: {body}")
        return name

    def item(self, schema: Any, place: str) -> str:
        """Return what fits a schema."""
        if schema is True or not isinstance(schema, dict):
            return f"{self._prefix}any"
        check_keywords(schema, place)
        given = schema.keys() - _ASIDE
        for name in sorted(given - _KNOWN):
            raise keyword_refusal(name, place)
        if "$ref" in given:
            self._alone("$ref", given, place)
            return self._reference(schema["$ref"], place)
        if "anyOf" in given:
            self._alone("anyOf", given, place)
            branches = [one for one in schema["anyOf"] if one is not False]
            return self._rule(" | ".join(self.item(one, f"{place}/anyOf/{n}") for n, one in enumerate(branches)))
        types = schema.get("type")
        if "enum" in given or "const" in given:
            self._alone("enum" if "enum" in given else "const", given - {"type"}, place)
            values = [schema["const"]] if "const" in given else schema["enum"]
            if isinstance(types, str | list):
                values = [one for one in values if has_type(one, [types] if isinstance(types, str) else types)]
            return self._rule(" | ".join(map(self._written, values)) or _nothing(place))
        if types is None:
            types = [kind for kind, words in _OF_TYPE.items() if not words.isdisjoint(given)]
        kinds = [types] if isinstance(types, str) else list(types)
        if not kinds:
            return f"{self._prefix}any"
        return self._rule(" | ".join(self._of_type(kind, schema, place) for kind in dict.fromkeys(kinds)))

    def _alone(self, name: str, given: frozenset[str] | set[str], place: str) -> None:
        if others := sorted(given - {name}):
            raise keyword_refusal(others[0], place, f" beside '{name}'")

    def _reference(self, reference: Any, place: str) -> str:
        known = self._references.get(str(reference))
        if known is None:
            self._count += 1
            known = self._references[str(reference)] = f"{self._prefix}{self._count}"
            target = self._root
            try:
                for part in str(reference).removeprefix("#").split("/")[1:]:
                    part = part.replace("~1", "/").replace("~0", "~")
                    target = target[int(part)] if isinstance(target, list) else target[part]
            except (KeyError, IndexError, ValueError, TypeError):
                raise keyword_refusal("$ref", place, f" and leads to {reference!r:.40}, which is not there") from None
            if not str(reference).startswith("#"):
                raise keyword_refusal("$ref", place)
            self.rules.append(f"{known}: {self.item(target, str(reference))}")
        return known

    def _of_type(self, kind: str, schema: dict[str, Any], place: str) -> str:
        if kind == "string":
            return self._text(schema, place)
        if kind == "array":
            return self._list(schema, place)
        if kind == "object":
            return self._object(schema, place)
        words = {name: schema[name] for name in _OF_TYPE.get(kind, ()) if name in schema}
        return self._rule(f"%json {json.dumps({'type': kind, **words})}")

    def _text(self, schema: dict[str, Any], place: str, name: str = "") -> str:
        if "format" in schema:
            self.warnings.append(f"The format {schema['format']!r:.40} at {place} is not enforced in this notation.")
        self._count += 1
        terminal = f"T{self._prefix.upper()}{self._count}"
        expression = f"{text_expression(schema, place)} & {self._no_quote}"
        if self._quote.startswith("<"):
            self.rules.append(f"{terminal}: {expression}")
            return self._rule(f"{self._quote} {terminal} {self._quote}", name)
        # A quote that is text ends at its first place; otherwise the text would take in as much of it as it can.
        self.rules += [f"{terminal}: ({expression}) {self._quote}", f"{terminal.lower()}[lazy]: {terminal}"]
        return self._rule(f"{self._quote} {terminal.lower()}", name)

    def _list(self, schema: dict[str, Any], place: str) -> str:
        item = self.item(schema.get("items", True), f"{place}/items")
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0 or schema.get("items") is False:
            return self._rule('"[" "]"' if not least else _nothing(place))
        more = "" if most == 1 else f'("," {item}){{{max(0, least - 1)},{"" if most is None else most - 1}}}'
        return self._rule(f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"')

    def _object(self, schema: dict[str, Any], place: str) -> str:
        properties = {key: one for key, one in schema.get("properties", {}).items() if one is not False}
        required = set(schema.get("required", ()))
        more = schema.get("additionalProperties", True)
        for key in required - properties.keys():
            if more is False:
                return self._rule(_nothing(place))
            properties[key] = more
        for key in properties:
            if not _KEY.fullmatch(key):
                raise InvalidGrammar(
                    "The name of a parameter cannot be written in this model's calls.",
                    f"{key!r:.60} at {place}.",
                    "Use letters, digits and underscores.",
                )
        pairs = [
            (f"{_key(key)} {self.item(one, f'{place}/properties/{key}')}", key in required)
            for key, one in sorted(properties.items(), key=_in_order)
        ]
        rest = first = ""
        if more is not False:
            other = self._rule(f'/[A-Za-z_][A-Za-z0-9_]*/ ":" {self.item(more, f"{place}/additionalProperties")}')
            rest, first = f'("," {other})*', f'({other} ("," {other})*)?'
        for pair, is_required in reversed(pairs):
            behind = self._rule(rest) if rest else ""
            if is_required:
                first = f"{pair} {behind}"
            else:
                first = f"({pair} {behind} | {self._rule(first)})" if first else f"({pair})?"
            rest = f'"," {pair} {behind}' if is_required else f'("," {pair})? {behind}'
        return self._rule(f'"{{" {first} "}}"')

    def _written(self, value: Any) -> str:
        """Return a value in Lark's notation."""
        comma = ' "," '
        if isinstance(value, str):
            return f"{self._quote} {_literal(value) if value else ''} {self._quote}"
        if isinstance(value, list):
            return f'"[" {comma.join(map(self._written, value))} "]"'
        if isinstance(value, dict):
            entries = sorted(value.items(), key=_in_order)
            return f'"{{" {comma.join(f"{_key(key)} {self._written(one)}" for key, one in entries)} "}}"'
        return _literal(json.dumps(value))


def text_expression(schema: Mapping[str, Any], place: str) -> str:
    """Return, in Lark's notation, which texts fit the limits and the pattern of a schema.

    Raises:
        InvalidGrammar: the pattern cannot be enforced.
    """
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    expression = f"/(?s:.{{{least},{most}}})/" if least or most != "" else "/(?s:.*)/"
    if "pattern" in schema:
        expression += f" & /{_searched(schema['pattern'], place)}/"
    return expression


def check_keywords(schema: Mapping[str, Any], place: str) -> None:
    """Refuse keywords whose values the standard does not allow, as the grammar engine does in JSON."""
    types = schema.get("type", [])
    kinds = [types] if isinstance(types, str) else types
    wrong = [name for name in _COUNTS if not (type(schema.get(name, 0)) is int and schema.get(name, 0) >= 0)]
    wrong += [name for name in ("required", "enum") if not isinstance(schema.get(name, []), list)]
    wrong += ["pattern"] if not isinstance(schema.get("pattern", ""), str) else []
    wrong += ["type"] if not isinstance(kinds, list) or any(kind not in _OF_TYPE for kind in kinds) else []
    if wrong:
        value = repr(schema[wrong[0]])
        raise InvalidGrammar(
            "The JSON schema is malformed.", f"At {place} '{wrong[0]}' is {value:.40}.", "Correct the schema."
        )


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(name: str) -> str:
    return _literal(f"{name}:")


def _in_order(pair: tuple[str, Any]) -> str:
    # As Jinja's ``dictsort`` has it.
    return pair[0].lower()


def has_type(value: Any, types: Container[str]) -> bool:
    """Return whether a value has one of the types of a JSON schema."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number" in types or ("integer" in types and value == int(value))
    return _TYPE_OF[type(value)] in types


_TYPE_OF: Final = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}


def _searched(pattern: str, place: str) -> str:
    """Return an expression for whole texts in which a pattern occurs."""
    inner = pattern.removeprefix("^").removesuffix("$")
    # Escapes and classes have no meaning here.
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", inner, flags=re.DOTALL)
    while (outer := re.sub(r"\([^()]*\)", "", bare)) != bare and not {"^", "$"} & set(bare):
        bare = outer
    if {"^", "$", "\\"} & set(bare) or ("|" in bare and inner != pattern):
        raise keyword_refusal("pattern", place)
    before, behind = ("" if pattern.startswith("^") else "(?s:.*)", "" if pattern.endswith("$") else "(?s:.*)")
    return f"{before}(?:{_slashed(inner)}){behind}"


def _slashed(expression: str) -> str:
    return re.sub(r"\\?/", r"\\/", expression)


def _nothing(place: str) -> str:
    raise InvalidGrammar("No arguments fit the JSON schema.", f"Nothing fits {place}.", "Correct the schema.")


def lark_expression(text: str) -> str:
    """Return an expression for a text, to stand between slashes."""
    return re.escape(text).replace("/", r"\/")


def keyword_refusal(name: str, place: str, why: str = "") -> InvalidGrammar:
    """Return the error of a keyword that a notation other than JSON has no words for."""
    return InvalidGrammar(
        f"The keyword '{name}' cannot be enforced in this model's notation of arguments.",
        f"It is at {place}{why}.",
        "Leave it out, and check the arguments.",
    )
