"""What an answer has to be: a JSON schema, a Python type, a regular expression or a grammar; and what is made of it.

``parsed`` objects come from the text of a whole answer, and partial ones from the text so far.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from edge_rt.errors import ConfigError, InvalidGrammar, RuntimeUnavailable
from edge_rt.system.byte_size import show_size
from edge_rt.text.json_schema import MAX_BYTES, check_quantifiers, quantifiers_in, read_schema

JSON_OBJECT: Final = "json_object"
MAX_LEVELS: Final = 2000
"""Rules, terminals and brackets of a grammar, by their marks."""
MAX_NAMES: Final = 10_000
"""Words of a grammar, in its texts as well: what they cost grows with their square."""
_ATTRIBUTE: Final = re.compile(
    r"^[ \t]*[?!]?(\w+)[ \t]*\[[^\]\n]*?\b(max_tokens|stop|temperature)[ \t]*=", re.MULTILINE
)
"""Of a rule. The engine ignores the last one; behind the others it takes nothing back, which drafts need."""
_ENVELOPES: Final = ("text", JSON_OBJECT, "json_schema")


@dataclass(frozen=True)
class AnswerFormat:
    """What an answer has to fit.

    Attributes:
        source: the schema as JSON, the regular expression, or the grammar (of calls, too) in Lark's notation.
        convert: makes an object of the text of a whole answer; None: there is none.
        spaces: whether JSON may have white space between its parts.
        warnings: what is not enforced, one sentence each.
    """

    kind: Literal["json", "regex", "grammar", "calls"]
    source: str
    convert: Callable[[str], Any] | None = None
    spaces: bool = False
    warnings: tuple[str, ...] = ()


def answer_format(
    response_format: Any = None, regex: str | None = None, grammar: str | None = None, *, spaces: bool = False
) -> AnswerFormat | None:
    """Return what an answer has to fit; None if nothing is asked for. Arguments as in ``GenerationConfig``.

    Raises:
        InvalidGrammar: it cannot be used.
        RuntimeUnavailable: a Python type is given, and pydantic is not installed.
    """
    given = [name for name, value in (("response_format", response_format), ("regex", regex), ("grammar", grammar))
             if value is not None]  # fmt: skip
    if len(given) > 1:
        raise ConfigError("An answer has one format.", f"Got {' and '.join(given)}.", "Leave out all but one.")
    for kind, source in (("regex", regex), ("grammar", grammar)):
        if source is not None:
            text = _checked_text(kind, source)
            if kind == "regex":
                check_quantifiers(quantifiers_in(text), "regular expression")
                return AnswerFormat("regex", text)
            grammar, warnings = _with_schemas_read(text)
            return AnswerFormat("grammar", grammar, warnings=warnings)
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping | bool):
        return _of_type(response_format, spaces)
    schema = _schema_in(response_format)
    if schema is None:
        return None
    read, warnings = read_schema(schema)
    return AnswerFormat("json", json.dumps(read), _parsed, spaces, warnings)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # A whole number of more digits than Python reads, for example.
        raise InvalidGrammar(
            "The answer fits the schema, but Python cannot read it.",
            f"{error}: {text!r:.120}.",
            "Give the schema limits, such as 'maximum' or 'maxLength'.",
        ) from error


def _checked_text(kind: str, source: object) -> str:
    # What cannot be written as UTF-8 has lone surrogates, which no answer has.
    if not isinstance(source, str) or not source or source.encode("utf-8", "ignore").decode() != source:
        raise ConfigError(
            f"The option '{kind}' is out of range.",
            f"Got {source!r:.60}, wanted a text that is not empty and has no lone surrogates.",
            "Give such a value, or leave it out.",
        )
    if (size := len(source.encode("utf-8", "surrogatepass"))) > MAX_BYTES:
        raise InvalidGrammar(
            f"The {'regular expression' if kind == 'regex' else 'grammar'} is too large.",
            f"It has {show_size(size)}, the limit is {show_size(MAX_BYTES)}.",
            "Shorten it.",
        )
    return source


def _with_schemas_read(grammar: str) -> tuple[str, tuple[str, ...]]:
    """Return a grammar whose JSON schemas (``%json {...}``) are read as they are alone, and what is not enforced.

    Raises:
        InvalidGrammar: one of them cannot be used.
    """
    parts: list[str] = []
    warnings: dict[str, None] = {}
    end = 0
    for match in re.finditer(r"%json\s*(?={)", grammar):
        if match.start() < end:
            continue  # a text within a schema
        try:
            schema, behind = json.JSONDecoder().raw_decode(grammar, match.end())
        except (ValueError, RecursionError):
            continue  # the engine says where
        read, not_enforced = read_schema(schema)
        if "x-guidance" in schema:
            read["x-guidance"] = schema["x-guidance"]  # how the engine spaces it
        parts += [grammar[end : match.end()], json.dumps(read)]
        end = behind
        warnings |= dict.fromkeys(not_enforced)
    parts.append(grammar[end:])
    _check_rules("".join(parts[::2]))
    return "".join(parts), tuple(warnings)


def _check_rules(grammar: str) -> None:
    """Refuse a grammar that would take the engine seconds, or more stack than there is; its schemas are left out.

    Raises:
        InvalidGrammar: it is too large.
    """
    if (match := _ATTRIBUTE.search(grammar)) is not None:
        raise InvalidGrammar(
            f"A rule of the grammar has the attribute '{match[2]}'.",
            f"It is rule {match[1]!r:.60}; that attribute cannot be followed token by token.",
            "Write an expression with an end, such as /.{0,40}/, or 'suffix'; temperature is an option of the answer.",
        )
    check_quantifiers(quantifiers_in(grammar), "grammar")
    # Each may be within all others. The engine needs 2 KiB of stack for one.
    levels = sum(map(grammar.count, ":(["))
    names = len(re.findall(r"\w+", grammar))
    if levels > MAX_LEVELS or names > MAX_NAMES:
        raise InvalidGrammar(
            "The grammar is too large.",
            f"It has {levels} rules and brackets, and {names} words; the limits are {MAX_LEVELS} and {MAX_NAMES}.",
            "Simplify it; long lists of words are faster as 'enum' in a schema, or as one regular expression.",
        )


def _schema_in(response_format: Mapping[str, Any] | bool) -> Any:
    """Return the schema of a request as other libraries write them, or of a plain schema; None: any text."""
    if isinstance(response_format, bool) or response_format.get("type") not in _ENVELOPES:
        return dict(response_format) if isinstance(response_format, Mapping) else response_format
    kind = response_format["type"]
    if kind == "text":
        return None
    # llama.cpp's server takes the schema right beside the type.
    inner = response_format.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, Mapping) else response_format.get("schema")
    if schema is None and kind == JSON_OBJECT:
        return {"type": "object"}
    if schema is None:
        raise InvalidGrammar(
            "The response format has no schema.",
            "Its type is 'json_schema'.",
            'Write {"type": "json_schema", "json_schema": {"schema": {...}}}, or the schema alone.',
        )
    return dict(schema) if isinstance(schema, Mapping) else schema


def _of_type(wanted: Any, spaces: bool) -> AnswerFormat:
    """Return the format of a pydantic model, a dataclass, or a type."""
    if isinstance(wanted, str | bytes | int | float):
        raise ConfigError(
            "The option 'response_format' is out of range.",
            f"Got {wanted!r:.60}, wanted a JSON schema (a dict) or a type.",
            'Give such a value; for any JSON object {"type": "json_object"}.',
        )
    try:
        import pydantic
    except ImportError as error:
        raise RuntimeUnavailable(
            "Answers as Python types need pydantic.", f"{error}.", "Install it: pip install 'edge-rt[pydantic]'."
        ) from error
    try:
        adapter: Any = pydantic.TypeAdapter(wanted)
        schema = adapter.json_schema()
    except (pydantic.PydanticUserError, pydantic.PydanticSchemaGenerationError, TypeError) as error:
        raise ConfigError(
            "The response format is no type that has a JSON schema.",
            f"{wanted!r:.60}: {str(error).splitlines()[0]:.200}.",
            "Give a pydantic model, a dataclass, or a type such as list[str].",
        ) from error
    # A set takes a value that comes twice.
    read, warnings = read_schema(closed(schema, ("uniqueItems",)))

    def convert(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            # The type checks more than its schema can say, for example in validators.
            raise InvalidGrammar(
                "The answer fits the schema, but the type refuses it.",
                f"{str(error).splitlines()[0]}: {text!r:.120}.",
                "Relax the type's own checks, or ask again.",
            ) from error

    return AnswerFormat("json", json.dumps(read), convert, spaces, warnings)


def closed(schema: Any, dropped: Container[str] = ()) -> Any:
    """Return a schema whose objects have no other properties than are named, unless it says so.

    Args:
        dropped: keywords that are left out.
    """
    if isinstance(schema, list):
        return [closed(one, dropped) for one in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: closed(one, dropped) for name, one in schema.items() if name not in dropped}
    if result.get("type") == "object" and "properties" in result:
        result.setdefault("additionalProperties", False)
    return result


def partial_json(text: str) -> Any:
    """Return what the beginning of a JSON text holds so far; None before there is anything.

    A text that is not yet closed is there as far as it goes, and so is a number, which may still grow.
    """
    import jiter

    try:
        return jiter.from_json(text.encode("utf-8", "replace"), partial_mode="trailing-strings")
    except ValueError:
        return None
