"""Calls in Python's notation, as LFM2 writes them: ``[name(city='Paris', days=3), other()]``; reading, and grammars.

Texts stand in quotes of either kind. Objects are those of JSON or of Python, and both spellings of true, false and null
are read. A grammar gives texts in either kind of quotes, and lists and objects in JSON, which is Python but for these
three words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.errors import InvalidGrammar

MAX_DEPTH: Final = 64
HEAD: Final = re.compile(r"\s*\[?\s*([^\s()\[\]{},=:'\"]+)\s*\(")
"""What is in front of the arguments of a call, the first one of a list or another."""
_NAME: Final = re.compile(r"\s*([^\s()\[\]{},=:'\"]+)\s*\(")
_KEY: Final = re.compile(r"\s*([^\W\d]\w*)\s*=")
_BEGUN_KEY: Final = re.compile(r"[^\W\d]\w*\s*")
_NUMBER: Final = re.compile(r"[-+]?(?:\d[\d_]*(\.\d*)?|(\.\d+))([eE][-+]?\d+)?")
_WORD: Final = re.compile(r"[A-Za-z]+")
_WORDS: Final[Mapping[str, Any]] = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
_PLAIN: Final = frozenset("\\'\"/")


# --- reading ---


def read_calls(text: str, at: int) -> tuple[list[Any], int]:
    """Read one call, or a list of calls; of a list that is cut, those that are whole.

    Returns:
        Objects with ``name`` and ``arguments``, and where the text behind them begins.

    Raises:
        ValueError: there is no whole call.
    """
    at = skip_blanks(text, at)
    if not text.startswith("[", at):
        call, at = _read_call(text, at)
        return [call], at
    calls: list[Any] = []
    at = skip_blanks(text, at + 1)
    while not text.startswith("]", at):
        try:
            call, at = _read_call(text, at)
        except ValueError:
            if not calls:
                raise
            return calls, at
        calls.append(call)
        if (at := skip_blanks(text, at)) == len(text):
            return calls, at
        at = skip_comma(text, at, "]")
    return calls, at + 1


def next_argument(text: str, _schema: Any) -> tuple[tuple[str, Any] | None, int] | None:
    """Read the next argument of a call whose text is still being written; as in ``xml_calls``."""
    at = skip_blanks(text, 0)
    if text.startswith(")", at):
        return None, at + 1
    key = _KEY.match(text, at)
    if key is None:
        if at < len(text) and _BEGUN_KEY.fullmatch(text, at) is None:
            raise ValueError("no key")
        return None
    try:
        value, at = _read_value(text, key.end(), 0)
    except ValueError:
        return None
    at = skip_blanks(text, at)
    # A number may go on.
    if at == len(text):
        return None
    return (key[1], value), at + 1 if text.startswith(",", at) else at


def _read_call(text: str, at: int) -> tuple[dict[str, Any], int]:
    named = _NAME.match(text, at)
    if named is None:
        raise ValueError("no name")
    arguments: dict[str, Any] = {}
    at = skip_blanks(text, named.end())
    while not text.startswith(")", at):
        # Arguments without a name are nobody's: the order of parameters is not Python's.
        key = _KEY.match(text, at)
        if key is None or key[1] in arguments:
            raise ValueError("no key")
        arguments[key[1]], at = _read_value(text, key.end(), 0)
        at = skip_comma(text, at, ")")
    return {"name": named[1], "arguments": arguments}, at + 1


def _read_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    at = skip_blanks(text, at)
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    first = text[at : at + 1]
    if first in ("'", '"'):
        return _read_text(text, at)
    if first == "{":
        return _read_object(text, at, depth)
    if first in ("[", "("):
        items: list[Any] = []
        end, at = "]" if first == "[" else ")", skip_blanks(text, at + 1)
        while not text.startswith(end, at):
            item, at = _read_value(text, at, depth + 1)
            items.append(item)
            at = skip_comma(text, at, end)
        return items, at + 1
    word = _WORD.match(text, at)
    if word is not None and word[0] in _WORDS:
        return _WORDS[word[0]], word.end()
    number = _NUMBER.match(text, at)
    if number is None:
        raise ValueError("no value")
    return (float if any(number.groups()) else int)(number[0]), number.end()


def _read_object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    entries: dict[str, Any] = {}
    at = skip_blanks(text, at + 1)
    while not text.startswith("}", at):
        key, at = _read_value(text, at, depth + 1)
        at = skip_blanks(text, at)
        if not isinstance(key, str) or not text.startswith(":", at):
            raise ValueError("no key")
        entries[key], at = _read_value(text, at + 1, depth + 1)
        at = skip_comma(text, at, "}")
    return entries, at + 1


def _read_text(text: str, at: int) -> tuple[str, int]:
    quote, parts = text[at], []
    begin = at = at + 1
    while (end := _first_of(text, at, quote)) >= 0 and text[end] == "\\":
        escape = _ESCAPE.match(text, end)
        if escape is None:
            raise ValueError("no end")
        parts += [text[begin:end], _escaped(escape)]
        begin = at = escape.end()
    if end < 0:
        raise ValueError("no end")
    # Characters beyond 16 bits are two escapes in JSON.
    whole = "".join([*parts, text[begin:end]]).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole, end + 1


def _first_of(text: str, at: int, quote: str) -> int:
    found = re.compile(rf"[\\{quote}]").search(text, at)
    return -1 if found is None else found.start()


def _escaped(escape: re.Match[str]) -> str:
    if code := escape[1] or escape[2]:
        return chr(int(code, 16))
    character = escape[3]
    return _ESCAPES.get(character, character if character in _PLAIN else f"\\{character}")


def skip_comma(text: str, at: int, end: str) -> int:
    """Return where the text goes on behind a comma, or where a list ends."""
    at = skip_blanks(text, at)
    if text.startswith(",", at):
        return skip_blanks(text, at + 1)
    if not text.startswith(end, at):
        raise ValueError("no end")
    return at


def skip_blanks(text: str, at: int) -> int:
    """Return where the text goes on behind white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


# --- grammars ---

_KNOWN: Final = frozenset(("type", "properties", "required", "additionalProperties", "title", "description"))
_DEFINITIONS: Final = ("$defs", "definitions")
_REFERENCE: Final = re.compile(r'"\$ref": "(?!#/(?:\$defs|definitions)/)')


@dataclass(frozen=True)
class NamedValues:
    """The parameters of a function whose arguments are named values, each with a schema of its own.

    Attributes:
        required: names of those that have to be there.
        more: the schema of others; False: there are none.
    """

    schemas: Mapping[str, Any]
    required: frozenset[str]
    more: Any
    definitions: Mapping[str, Any]

    def json_rule(self, part: Any, separators: Mapping[str, Any]) -> str:
        """Return what fits a schema as JSON, in Lark's notation."""
        schema = part if isinstance(part, dict) else {}
        return f"%json {json.dumps({**schema, **self.definitions, 'x-guidance': separators})}"


def named_values(schema: Mapping[str, Any], key: str, notation: str) -> NamedValues:
    """Return the parameters in the schema of an object, as ``read_schema`` returns it.

    Args:
        key: a regular expression of names.

    Raises:
        InvalidGrammar: a keyword cannot be enforced, or a name cannot be written.
    """
    definitions = {one: schema[one] for one in _DEFINITIONS if one in schema}
    for keyword in sorted(schema.keys() - _KNOWN - definitions.keys()):
        raise _refusal(f"The keyword '{keyword}' of an object of arguments", notation)
    if _REFERENCE.search(json.dumps(schema)):
        raise _refusal("A reference to anything but a definition", notation)
    schemas = {name: one for name, one in schema.get("properties", {}).items() if one is not False}
    required, more = frozenset(schema.get("required", ())), schema.get("additionalProperties", True)
    for name in sorted(required - schemas.keys()):
        schemas[name] = more
    for name, part in schemas.items():
        if re.fullmatch(key, name) is None or part is False:
            raise InvalidGrammar(
                "The name of a parameter cannot be written in this model's calls.",
                f"{name!r:.60}.",
                "Use letters, digits and underscores.",
            )
    return NamedValues(schemas, required, more, definitions)


def arguments_rules(schema: Mapping[str, Any], name: str, separators: Mapping[str, Any]) -> list[str]:
    """Return rules in Lark's notation for what stands between the parentheses, the first one of the given name.

    Args:
        schema: of an object, as ``read_schema`` returns it.
        separators: how JSON is written.

    Raises:
        InvalidGrammar: a keyword cannot be enforced in this notation.
    """
    parameters = named_values(schema, r"[^\W\d]\w*", "Python's notation")
    more = parameters.more
    rules: list[str] = []
    pairs: list[tuple[str, bool]] = []
    for number, (key, part) in enumerate(parameters.schemas.items()):
        value = f"{name}_{number}"
        rules += _value_rules(part, value, parameters.json_rule(part, separators))
        pairs.append((f"{json.dumps(f'{key}=', ensure_ascii=False)} {value}", key in parameters.required))
    if more is not False:
        rules += _value_rules(more, f"{name}_more", parameters.json_rule(more, separators))
        pairs.append((f"/[A-Za-z_][A-Za-z0-9_]*=/ {name}_more", False))
    return [*_sequence(name, pairs, has_more=more is not False), *rules]


def _value_rules(part: Any, name: str, json_rule: str) -> Iterator[str]:
    """Yield the rules of a value: texts may have quotes of either kind, and words are Python's."""
    schema = part if isinstance(part, dict) else {}
    words = {"boolean": '"True" | "False"', "null": '"None"'}
    kinds = schema.get("type")
    given = schema.keys() - {"title", "description", "default", "examples"}
    if isinstance(kinds, str) and kinds in words and given == {"type"}:
        yield f"{name}: {words[kinds]}"
        return
    yield f"{name}json: {json_rule}"
    if (kinds == "string" and given == {"type"}) or not given:
        terminal = f"T{name.upper()}"
        yield rf"{terminal}: /'(?s:[^'\\]|\\.)*'/"
        yield f"{name}: {name}json | {terminal}{'' if given else ' | ' + ' | '.join(words.values())}"
    else:
        yield f"{name}: {name}json"


def _sequence(name: str, pairs: list[tuple[str, bool]], *, has_more: bool) -> Iterator[str]:
    """Yield rules for pairs in their order, without some of those that are not required; the last may come often."""
    behind = first = '""'
    for number, (pair, is_required) in reversed(list(enumerate(pairs))):
        if has_more and number == len(pairs) - 1:
            later, now = f'(", " {pair})*', f'({pair} (", " {pair})*)?'
        elif is_required:
            later, now = f'", " {pair} {behind}', f"{pair} {behind}"
        else:
            later, now = f'(", " {pair})? {behind}', f"{pair} {behind} | {first}"
        behind, first = f"{name}_b{number}", f"{name}_f{number}"
        yield f"{behind}: {later}"
        yield f"{first}: {now}"
    yield f"{name}: {first}"


def _refusal(what: str, notation: str) -> InvalidGrammar:
    return InvalidGrammar(
        f"{what} cannot be enforced in {notation} of arguments.",
        "Arguments are named values, each with a schema of its own.",
        "Leave it out, and check the arguments.",
    )
