"""Grammars of calls in a template's own syntax, whose arguments fit the parameters of their tools.

A control token of the syntax is one in the grammar as well, by its id; within the texts of arguments its characters are
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from edge_rt.errors import ConfigError, InvalidGrammar, kind_of
from edge_rt.text import gemma_arguments, python_calls, xml_calls
from edge_rt.text.answer_format import AnswerFormat, closed
from edge_rt.text.call_syntaxes import PYTHON_TAG, SYNTAXES, CallSyntax
from edge_rt.text.gemma_arguments import lark_expression
from edge_rt.text.json_schema import read_schema
from edge_rt.text.tool_calls import Tools, function_of

MOST_CALLS: Final = 16
"""Of one answer: small models find no end."""
MAX_TOOLS: Final = 512
_ANY_OBJECT: Final = {"type": "object"}
_NO_ARGUMENTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
# As templates write them, with ``tojson``.
_SEPARATORS: Final = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_COMBINING: Final = frozenset(
    ("anyOf", "oneOf", "allOf", "$ref", "if", "not", "dependentSchemas", "unevaluatedProperties")
)
_LONGEST_BEGIN: Final = 400
_BARE_BEGIN: Final = r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"'


@dataclass(frozen=True)
class ToolChoice:
    """Whether an answer calls tools.

    Attributes:
        name: of the one tool that may be called; None: any.
    """

    kind: Literal["auto", "none", "required"] = "auto"
    name: str | None = None


def read_choice(value: Any) -> ToolChoice:
    """Return a choice as clients write it: a word, a name, or ``{"type": "function", "function": {"name": ...}}``.

    Raises:
        ConfigError: it is none of these.
    """
    if value in (None, "auto"):
        return ToolChoice()
    if value in ("none", "required"):
        return ToolChoice(value)
    is_function = isinstance(value, Mapping) and value.get("type", "function") == "function"
    function = function_of(value) if is_function else None
    name = value if isinstance(value, str) else None if function is None else function["name"]
    if not name:
        raise ConfigError(
            "The option 'tool_choice' is out of range.",
            f"Got {value!r:.60}.",
            "Give auto, none, required, the name of a tool, or {'type': 'function', 'function': {'name': ...}}.",
        )
    return ToolChoice("required", name)


def chosen_tools(tools: Tools | None, choice: ToolChoice) -> Tools:
    """Return the tools that an answer has to call one of.

    Raises:
        ConfigError: there is none, it has no name, or the template writes calls in no known way.
    """
    wanted = f"tool_choice={choice.name or choice.kind!r}"
    if tools is None:
        raise ConfigError(
            "A call is wanted, and there is no tool to call.",
            f"{wanted} came without tools.",
            "Pass tools with messages, or leave out the choice.",
        )
    functions = [function_of(tool) for tool in tools.items]
    if None in functions:
        raise ConfigError(
            "A tool is no function with a name, so it cannot be called.",
            f"Tool {functions.index(None)} is {tools.items[functions.index(None)]!r:.80}.",
            'Describe it as {"type": "function", "function": {"name": ..., "parameters": {...}}}.',
        )
    if tools.syntax is None:
        known = ", ".join(dict.fromkeys(one.name for one in SYNTAXES))
        raise ConfigError(
            "The chat template writes calls in a way that edge-rt does not know, so none can be asked for.",
            f"{wanted}; known are the ways of {known}.",
            "Leave out tool_choice, or use a model of one of these families.",
        )
    if choice.name is None:
        return tools
    items = tuple(
        tool for tool, one in zip(tools.items, functions, strict=True) if one is not None and one["name"] == choice.name
    )
    if not items:
        names = ", ".join(str(one["name"]) for one in functions if one is not None)
        raise ConfigError(
            "There is no tool of the name that is to be called.",
            f"Got {choice.name!r:.60}; the tools are {names:.300}.",
            "Choose one of them, or 'required' for any.",
        )
    return Tools(items, tools.syntax)


def calls_format(
    tools: Tools, tokens: Mapping[str, int], *, several: bool, is_forced: bool, is_strict: bool
) -> AnswerFormat:
    """Return the format of calls.

    Args:
        tools: functions with names; their syntax is known.
        tokens: ids of those marks of the syntax that are control tokens.
        several: whether there may be several calls; the syntax has to allow it as well.
        is_forced: whether the answer begins with a call. Else the first tokens are those in which one begins.
        is_strict: refuse parameters that cannot be enforced; else their tool takes any arguments, with a warning.

    Raises:
        InvalidGrammar: parameters cannot be enforced, or a name cannot be written.
    """
    syntax = tools.syntax
    assert syntax is not None
    warnings: list[str] = []
    functions = [function for tool in tools.items if (function := function_of(tool)) is not None]
    if len(functions) > MAX_TOOLS:
        raise InvalidGrammar(
            "There are too many tools.", f"Got {len(functions)}, the limit is {MAX_TOOLS}.", "Give those that matter."
        )
    spelled = _Spelling(tokens)
    rules: list[str] = []
    for number, function in enumerate(functions):
        name = _name_in(syntax, function["name"])
        rules += _arguments(function, syntax, spelled, number, warnings, is_strict=is_strict)
        before = (syntax.call[0], name, syntax.call[1])
        tail = f"args{number} {spelled(syntax.call[2])}"
        rules.append(f"call{number}: {spelled(''.join(before))} {tail}")
        if not is_forced:
            rules += _first_call(syntax, name, spelled, number, tail)
    calls, firsts = (" | ".join(f"{kind}{number}" for number in range(len(functions))) for kind in ("call", "first"))
    rules.append(f"call: {calls}")
    begin, more = f"{spelled(syntax.begin)} call", ""
    if not is_forced:
        begin = "first"
        rules += [f"first: {firsts}"]
    if several and syntax.several:
        more = f"({spelled(syntax.between)} call){{0,{MOST_CALLS - 1}}}"
    rules.insert(0, f"start: {begin} {more} {spelled(syntax.end)}")
    return AnswerFormat("calls", "\n".join(rules), warnings=tuple(warnings))


class _Spelling:
    """Writes texts of a syntax in Lark's notation.

    Args:
        tokens: ids of texts that are control tokens.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.tokens = tokens
        self._cut = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")

    def __call__(self, text: str) -> str:
        parts: list[str] = []
        at = 0
        for mark in self._cut.finditer(text):
            parts += [_literal(text[at : mark.start()]), f"<[{self.tokens[mark[0]]}]>"]
            at = mark.end()
        return " ".join(part for part in (*parts, _literal(text[at:])) if part)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _first_call(syntax: CallSyntax, name: str, spelled: _Spelling, number: int, tail: str) -> Iterator[str]:
    """Yield the rules of a call whose beginning the model has written of its own accord."""
    mark = syntax.mark
    before = syntax.begin + syntax.call[0]
    if not mark:
        # Spaces are as the model has written them, up to the name.
        tag = f"(<[{spelled.tokens[PYTHON_TAG]}]>)?" if PYTHON_TAG in spelled.tokens else ""
        yield f'head{number}[lazy]: /(?:{lark_expression(PYTHON_TAG)})?{_BARE_BEGIN}{lark_expression(name)}"/'
        yield f"first{number}: {tag} head{number} {spelled(syntax.call[1][1:])} {tail}"
        return
    forms = [(mark, before.removeprefix(mark), syntax.call[1])]
    if syntax.other is not None:
        forms.append((syntax.other[0], "", syntax.other[1]))
    firsts: list[str] = []
    for place, (opening, rest, middle) in enumerate(forms):
        if any(opening.startswith(token) for token in spelled.tokens):
            firsts.append(f"{spelled(opening + rest + name + middle)} {tail}")
            continue
        if number == 0:
            # The second one is no end of the first.
            front = "[^<]*" if place else "(?s:.*)"
            yield f"opening{place}[lazy]: /{front}{lark_expression(opening)}/"
        firsts.append(f"opening{place} {spelled(rest + name + middle)} {tail}")
    yield f"first{number}: {' | '.join(firsts)}"


@dataclass(frozen=True)
class CallStart:
    """What shows that a call begins, in the text of an answer whose bytes are read as Latin-1.

    Attributes:
        token: the control token; None: a text.
        marks: this text, and another one of messages in channels; none: a call begins where the answer does, or
            nowhere.
        pattern: occurs where one begins.
    """

    token: int | None
    marks: tuple[str, ...]
    pattern: re.Pattern[str]

    def may_end_with(self, token_id: int, text: str) -> bool:
        """Return whether a call can begin with a token."""
        if self.token is not None:
            return token_id == self.token
        return any(mark[-1] in text for mark in self.marks) if self.marks else '"' in text

    def may_follow(self, text: str) -> bool:
        """Return whether a bare call can begin with a text and what comes behind it."""
        text = text.lstrip()
        return len(text) < _LONGEST_BEGIN and (PYTHON_TAG.startswith(text) or text.startswith(("{", PYTHON_TAG)))


def call_start(tools: Tools, tokens: Mapping[str, int], *, has_channels: bool = False) -> CallStart:
    """Return what shows that a call of tools begins; arguments as of ``calls_format``.

    Args:
        has_channels: whether answers are messages in channels, and only those to tools are looked at.
    """
    syntax, names = tools.syntax, tools.names
    assert syntax is not None
    assert names is not None
    if syntax.mark:
        marks = (syntax.mark, *((syntax.other[0],) if syntax.other is not None and has_channels else ()))
        return CallStart(tokens.get(syntax.mark), marks, re.compile("|".join(map(re.escape, marks))))
    spelled = sorted(re.escape(_name_in(syntax, name).encode().decode("latin-1")) for name in names)
    pattern = re.compile(rf'\A\s*(?:{re.escape(PYTHON_TAG)})?{_BARE_BEGIN}(?:{"|".join(spelled)})"')
    return CallStart(None, (), pattern)


def _name_in(syntax: CallSyntax, name: str) -> str:
    """Return a name as it is written in a call."""
    if not syntax.has_plain_names:
        return json.dumps(name, ensure_ascii=False)[1:-1]
    if not re.fullmatch(r"[\w.-]+", name):
        raise InvalidGrammar(
            "The name of a tool cannot be written in this model's calls.",
            f"It is {name!r:.60}.",
            "Use letters, digits, points, dashes and underscores.",
        )
    return name


def _arguments(
    function: Mapping[str, Any],
    syntax: CallSyntax,
    spelled: _Spelling,
    number: int,
    warnings: list[str],
    *,
    is_strict: bool,
) -> list[str]:
    """Return the rules of the arguments of a function."""
    name = str(function["name"])
    try:
        schema, said = read_schema(_parameters(function))
        rules, more = _rules(schema, syntax, spelled, number)
    except InvalidGrammar as error:
        why = f"{error.what} {error.numbers}"
        if is_strict:
            what = f"The parameters of the tool {name!r:.60} cannot be enforced."
            raise InvalidGrammar(what, why, error.action) from error
        rules, more = _rules(_ANY_OBJECT, syntax, spelled, number)
        said = (f"Its arguments are any object: {why}",)
    warnings += [f"Tool {name!r:.60}: {one}" for one in (*said, *more)]
    return rules


def faulty_tool(tools: Tools, refuses: Callable[[AnswerFormat], str | None]) -> str | None:
    """Return the first of several tools whose parameters the grammar engine refuses, and why, as a sentence.

    Args:
        refuses: what the engine says of a format; None: it takes it.
    """
    for tool in tools.items:
        function = function_of(tool)
        if function is None:
            continue
        try:
            schema, _ = read_schema(_parameters(function))
        except InvalidGrammar:
            continue
        if (why := refuses(AnswerFormat("json", json.dumps(schema)))) is not None:
            return f"Tool {function['name']!r:.60}: {why}"
    return None


def _rules(schema: dict[str, Any], syntax: CallSyntax, spelled: _Spelling, number: int) -> tuple[list[str], list[str]]:
    if syntax.notation == "gemma":
        return gemma_arguments.arguments_rules(schema, f"args{number}", spelled(syntax.quote), syntax.quote)
    if syntax.notation == "python":
        return python_calls.arguments_rules(schema, f"args{number}", _SEPARATORS), []
    if syntax.notation == "xml":
        return xml_calls.arguments_rules(schema, f"args{number}", _SEPARATORS)
    return [f"args{number}: %json {json.dumps({**schema, 'x-guidance': _SEPARATORS})}"], []


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments, an object without properties that are not named."""
    schema = function.get("parameters")
    if schema is None:
        return _NO_ARGUMENTS
    if not isinstance(schema, Mapping):
        raise InvalidGrammar("The parameters are no JSON schema.", f"They are {kind_of(schema)}.", "Write an object.")
    if schema.get("type", "object") != "object":
        raise InvalidGrammar(
            "The parameters are no object.",
            f"Their type is {schema['type']!r:.40}.",
            'Write {"type": "object", "properties": {...}}.',
        )
    plain = {**schema, "type": "object"}
    return plain if _joins(plain) else closed(plain)


def _joins(schema: Any, depth: int = 0) -> bool:
    """Return whether an object somewhere has to fit several schemas, so that none of them can be closed alone."""
    if depth > 200 or isinstance(schema, list):
        return depth > 200 or any(_joins(one, depth + 1) for one in schema)
    if not isinstance(schema, Mapping):
        return False
    is_joined = "allOf" in schema or ("properties" in schema and not _COMBINING.isdisjoint(schema))
    return is_joined or any(_joins(one, depth + 1) for one in schema.values())
