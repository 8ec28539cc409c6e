"""Calls in XML, as Qwen 3.5 and Nemotron 3 write them: reading, and grammars.

Behind ``<function=name>`` every argument stands on lines of its own, between ``<parameter=key>`` and ``</parameter>``.
Texts are written as they are, everything else as JSON; which of both it is, the tool's parameters tell. A text ends at
the first line that begins with the end tag; no JSON has such a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from edge_rt.errors import InvalidGrammar
from edge_rt.text.gemma_arguments import check_keywords, has_type, keyword_refusal, lark_expression, text_expression
from edge_rt.text.one_of import target_of
from edge_rt.text.python_calls import named_values

_BEGIN: Final = "<parameter={}>\n"
_END: Final = "</parameter>"
HEAD: Final = re.compile(r"\s*<function=([^\s<>]+)>")
"""What is in front of the arguments of a call."""
_NEXT: Final = ("<parameter=", "</function>")
_KEY: Final = re.compile(r"\s*<parameter=([^\s<>]+)>")
_CLOSE: Final = re.compile(r"\s*</function>")
_MAX_DEPTH: Final = 16
_ALL: Final = frozenset(("null", "boolean", "string", "number", "integer", "array", "object"))
_TEXT: Final = frozenset(("string",))
_TEXT_OR_NULL: Final = frozenset(("string", "null"))
_WORDS: Final[Mapping[str, Any]] = {"True": True, "False": False, "None": None}
"""As templates write them in earlier calls."""
_NULLS: Final = ("null", "None")


class WrittenArguments(dict[str, str]):
    """Arguments as they are written, before anything is known of their types."""


# --- reading ---


def read_call(text: str, at: int) -> tuple[list[Any], int]:
    """Read one call.

    Returns:
        An object with ``name`` and ``arguments``, and where the text behind it begins.

    Raises:
        ValueError: there is no whole call.
    """
    named = HEAD.match(text, at)
    if named is None:
        raise ValueError("no name")
    arguments = WrittenArguments()
    at = named.end()
    while (key := _KEY.match(text, at)) is not None:
        begin = key.end()
        is_own_line = text.startswith("\n", begin)
        end = text.find("\n" * is_own_line + _END, begin)
        if end < 0:
            raise ValueError("no end")
        # Between two line ends that are one, there is nothing.
        arguments[key[1]] = text[begin + is_own_line : end]
        at = end + is_own_line + len(_END)
    close = _CLOSE.match(text, at)
    if close is None:
        raise ValueError("no end")
    return [{"name": named[1], "arguments": arguments}], close.end()


def read_arguments(written: WrittenArguments, schema: Any) -> dict[str, Any]:
    """Return the values of arguments.

    Args:
        schema: of the function's parameters; anything but an object: nothing is known of them.
    """
    root = schema if isinstance(schema, Mapping) else {}
    known = root.get("properties")
    known = known if isinstance(known, Mapping) else {}
    more = root.get("additionalProperties", True)
    return {key: _value(text, _kinds(known.get(key, more), root)) for key, text in written.items()}


def _value(text: str, kinds: frozenset[str]) -> Any:
    if kinds == _TEXT:
        return text
    if kinds == _TEXT_OR_NULL:
        return None if text in _NULLS else text
    try:
        value = _WORDS[text] if text in _WORDS else json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text
    return value if "string" not in kinds or has_type(value, kinds) else text


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _kinds(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """Return which types a value that fits a schema may have."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset() if schema is False else _ALL
    kinds = _ALL
    given = schema.get("type")
    types = [given] if isinstance(given, str) else given
    if isinstance(types, list):
        kinds &= {one for one in types if isinstance(one, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        kinds &= {kind for kind in _ALL for value in values if has_type(value, (kind,))}
    for word in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(word), list):
            kinds &= frozenset().union(*(_kinds(one, root, depth + 1) for one in branches))
    parts = schema.get("allOf")
    for part in parts if isinstance(parts, list) else ():
        kinds &= _kinds(part, root, depth + 1)
    if isinstance(reference := schema.get("$ref"), str):
        target = target_of(reference, root)
        kinds &= _ALL if target is None else _kinds(target, root, depth + 1)
    return kinds


def next_argument(text: str, schema: Any) -> tuple[tuple[str, Any] | None, int] | None:
    """Read the next argument of a call whose text is still being written, from where the one before ended.

    Returns:
        Its name and value, or None where the call ends, and where the text behind it begins; None: it is not whole.

    Raises:
        ValueError: this is no call.
    """
    if (close := _CLOSE.match(text)) is not None:
        return None, close.end()
    key = _KEY.match(text)
    if key is None:
        begun = text.lstrip()
        if not any(one.startswith(begun) or begun.startswith(one) for one in _NEXT):
            raise ValueError("no argument")
        return None
    is_own_line = text.startswith("\n", key.end())
    end = text.find("\n" * is_own_line + _END, key.end())
    if end < 0 or key.end() == len(text):
        return None
    written = WrittenArguments({key[1]: text[key.end() + is_own_line : end]})
    return (key[1], read_arguments(written, schema)[key[1]]), end + is_own_line + len(_END)


# --- grammars ---


def arguments_rules(schema: Mapping[str, Any], name: str, separators: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return rules in Lark's notation for all parameters, the first one of the given name, and warnings.

    Args:
        schema: of an object, as ``read_schema`` returns it.
        separators: how JSON is written.

    Raises:
        InvalidGrammar: a keyword cannot be enforced in this notation.
    """
    parameters = named_values(schema, r"[^\s<>]+", "the XML notation")
    rules: list[str] = []
    warnings: list[str] = []
    parts: list[str] = []
    for number, (key, part) in enumerate(parameters.schemas.items()):
        value = f"{name}_{number}"
        rules += _value_rules(part, value, schema, parameters.json_rule(part, separators), warnings)
        pair = f"{_literal(_BEGIN.format(key))} {value}"
        parts.append(pair if key in parameters.required else f"({pair})?")
    if parameters.more is not False:
        more, value = parameters.more, f"{name}_more"
        rules += _value_rules(more, value, schema, parameters.json_rule(more, separators), warnings)
        # A tag is one terminal: the engine decides for one of several by their whole texts.
        known = "|".join(map(lark_expression, parameters.schemas)) or "(?:)"
        rules.append(f'K{name.upper()}: "<parameter=" (/[A-Za-z_][A-Za-z0-9_]*/ & ~/{known}/) ">\\n"')
        parts.append(f"(K{name.upper()} {value})*")
    return [f"{name}: {' '.join(parts) or _literal('')}", *rules], warnings


def _value_rules(part: Any, name: str, root: Mapping[str, Any], json_rule: str, warnings: list[str]) -> Iterator[str]:
    """Yield the rules of a value and its end tag."""
    schema = part if isinstance(part, dict) else {}
    kinds = _kinds(schema, root)
    end = _literal(f"\n{_END}\n")
    if not schema or kinds in (_TEXT, _TEXT_OR_NULL):
        # The text is one terminal with its end, lest it takes in as much of the end as it can.
        terminal = f"T{name.upper()}"
        tag = lark_expression(_END)
        texts = _texts(schema, root, f"#/{name}", warnings) if schema else "/(?s:.*)/"
        within = rf"~/(?s:.*)\n{tag}(?s:.*)/ & ~/{tag}(?s:.*)/"
        yield f"{terminal}: (({texts}) & {within}) {end}"
        yield f"{name}[lazy]: {terminal}"
        return
    words = {"boolean": ("true", "false", "True", "False"), "null": _NULLS}.get(str(schema.get("type")), ())
    if words and schema.keys() == {"type"}:
        yield f"{name}: ({' | '.join(map(_literal, words))}) {end}"
        return
    yield f"{name}json: {json_rule}"
    yield f"{name}: {name}json {end}"


def _texts(schema: Any, root: Mapping[str, Any], place: str, warnings: list[str]) -> str:
    """Return which texts fit a schema of texts and null, in the notation of Lark's terminals.

    Raises:
        InvalidGrammar: a keyword cannot be enforced, or nothing fits.
    """
    check_keywords(schema, place)
    given = schema.keys()
    for word in ("$ref", "anyOf"):
        if word in given and len(given) > 1:
            raise keyword_refusal(min(given - {word}), place, f" beside '{word}'")
    if "$ref" in given:
        return _texts(target_of(schema["$ref"], root), root, schema["$ref"], warnings)
    if "anyOf" in given:
        branches = [one for one in schema["anyOf"] if one is not False]
        return " | ".join(f"({_texts(one, root, f'{place}/anyOf', warnings)})" for one in branches)
    types = schema.get("type", ["string", "null"])
    kinds = [types] if isinstance(types, str) else types
    if "enum" in given or "const" in given:
        if others := sorted(given - {"type", "enum"} if "enum" in given else given - {"type", "const"}):
            raise keyword_refusal(others[0], place, " beside 'enum' or 'const'")
        values = [one for one in ([schema["const"]] if "const" in given else schema["enum"]) if has_type(one, kinds)]
        written = [one if isinstance(one, str) else "null" for one in values]
        if not (writable := [one for one in written if f"\n{_END}" not in f"\n{one}"]):
            raise InvalidGrammar(
                "No value of a parameter can be written in this model's calls.",
                f"At {place} there is {written!r:.60}.",
                f"Leave out {_END} in it.",
            )
        return " | ".join(map(_literal, writable))
    for word in sorted(given - {"type", "minLength", "maxLength", "pattern", "format"}):
        raise keyword_refusal(word, place)
    if "format" in given:
        warnings.append(f"The format {schema['format']!r:.40} at {place} is not enforced in this notation.")
    texts = f"({text_expression(schema, place)})"
    return " | ".join(texts if kind == "string" else _literal("null") for kind in kinds)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
