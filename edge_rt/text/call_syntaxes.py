"""How calls of functions are written: the syntaxes that chat templates teach, one entry each.

:mod:`edge_rt.text.tool_calls` reads answers by them, and :mod:`edge_rt.text.tool_grammar` makes grammars of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from edge_rt.text import gemma_calls, xml_calls
from edge_rt.text.python_calls import read_calls, skip_blanks

PYTHON_TAG: Final = "<|python_tag|>"
Values = tuple[list[Any], int]
"""Calls as objects with ``name`` and ``arguments``, not yet checked, and where the text behind them begins."""


@dataclass(frozen=True)
class CallSyntax:
    """How calls are written.

    Attributes:
        signs: texts of a chat template that teaches it.
        call: texts in front of a name, in front of the arguments, and behind them.
        marks: texts in it that may be control tokens; the first one begins a call, wherever it comes. Without any, a
            call begins where the answer does.
        other: texts in front of a name and of the arguments in a second form, which begins a message in a channel and
            is nothing elsewhere; or none.
        begin, between, end: texts in front of all calls, between two, and behind all.
        close: the mark behind a call, or behind all of them.
        notation: of arguments: JSON, Gemma's, Python's, or XML.
        quote: what stands around texts in Gemma's.
        several: whether an answer may have several calls.
        unlike: texts of templates that have the signs and teach something else.
        read: reads what follows the first mark, of one call or all.
    """

    name: str
    signs: tuple[str, ...]
    call: tuple[str, str, str]
    marks: tuple[str, ...] = ()
    other: tuple[str, str] | None = None
    begin: str = ""
    between: str = ""
    end: str = ""
    close: str = ""
    notation: Literal["json", "gemma", "python", "xml"] = "json"
    quote: str = ""
    several: bool = True
    unlike: tuple[str, ...] = ()
    read: Callable[[str, int], Values] | None = None

    @property
    def mark(self) -> str:
        """The text that begins a call; empty if nothing but the beginning of the answer does."""
        return self.marks[0] if self.read is not None else ""

    @property
    def has_plain_names(self) -> bool:
        """Whether names stand without quotes."""
        return not self.call[0].endswith('"')

    def end_of(self, text: str, at: int) -> int | None:
        """Return where the text goes on behind a call whose arguments end at ``at``; None: it is not closed."""
        at = skip_blanks(text, at)
        if text.startswith(self.close, at):
            return at + len(self.close)
        return at if at == len(text) or self.close not in self.call[2] else None


# --- how they are read ---

_DECODER: Final = json.JSONDecoder()


def _read_json(text: str, at: int) -> Values:
    """Read one call, or a list of calls; of a list that is cut, those that are whole."""
    at = skip_blanks(text, at)
    if not text.startswith("[", at):
        value, at = _DECODER.raw_decode(text, at)
        return [value], at
    values: list[Any] = []
    at = skip_blanks(text, at + 1)
    while not text.startswith("]", at):
        try:
            value, at = _DECODER.raw_decode(text, at)
        except ValueError:
            if not values:
                raise
            return values, at
        values.append(value)
        at = skip_blanks(text, at)
        if text.startswith(",", at):
            at = skip_blanks(text, at + 1)
        elif at == len(text):
            return values, at
        elif not text.startswith("]", at):
            raise ValueError("no list")
    return values, at + 1


_NAME: Final = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\][^\s\[\]{}]*)?\s*(?:\[ARGS\])?")


def _read_mistral(text: str, at: int) -> Values:
    """Read a list of calls, or a name, an id that may be missing, and arguments."""
    named = _NAME.match(text, at)
    if named is None:
        return _read_json(text, at)
    arguments, at = _DECODER.raw_decode(text, skip_blanks(text, named.end()))
    return [{"name": named[1], "arguments": arguments}], at


def _read_lfm2(text: str, at: int) -> Values:
    """Read calls in Python's notation; some templates ask for JSON in its place."""
    begin = skip_blanks(text, at)
    first = skip_blanks(text, begin + 1) if text.startswith("[", begin) else begin
    return _read_json(text, at) if text.startswith("{", first) else read_calls(text, at)


def _read_qwen(text: str, at: int) -> Values:
    """Read a call in JSON, or in XML between the same marks."""
    at = skip_blanks(text, at)
    return xml_calls.read_call(text, at) if text.startswith("<function=", at) else _read_json(text, at)


HARMONY_HEAD: Final = re.compile(
    r"([^\s<>{}]+)\s*(?:<\|channel\|>\s*commentary)?\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>\s*(?=\{)"
)


def _read_harmony(text: str, at: int) -> Values:
    """Read a name, a channel that may stand in front of it, and arguments."""
    named = HARMONY_HEAD.match(text, at)
    if named is None:
        raise ValueError("no name")
    arguments, at = _DECODER.raw_decode(text, named.end())
    return [{"name": named[1], "arguments": arguments}], at


# --- the syntaxes ---

_JSON: Final = ('{"name": "', '", "arguments": ', "}")
_QWEN: Final = CallSyntax(
    "Qwen, Hermes, Granite 4",
    signs=("<tool_call>",),
    unlike=("<function=", "<arg_key>"),
    call=("<tool_call>\n" + _JSON[0], _JSON[1], "}\n</tool_call>"),
    marks=("<tool_call>", "</tool_call>"),
    close="</tool_call>",
    between="\n",
    read=_read_qwen,
)
_XML: Final = replace(
    _QWEN,
    name="Qwen 3.5",
    signs=("<tool_call>", "<function=", "<parameter="),
    unlike=(),
    call=("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"),
    notation="xml",
)
_MISTRAL: Final = CallSyntax(
    "Mistral",
    signs=("[TOOL_CALLS]", "[ARGS]"),
    call=("[TOOL_CALLS]", "[ARGS]", ""),
    marks=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    read=_read_mistral,
)
_MISTRAL_LIST: Final = replace(
    _MISTRAL, signs=("[TOOL_CALLS]",), begin="[TOOL_CALLS][", call=_JSON, between=", ", end="]", marks=("[TOOL_CALLS]",)
)
_GRANITE: Final = replace(
    _MISTRAL_LIST,
    name="Granite 3",
    signs=("<|tool_call|>",),
    begin="<|tool_call|>[",
    marks=("<|tool_call|>",),
    close="<|/tool_call|>",
    read=_read_json,
)
_GEMMA: Final = CallSyntax(
    "Gemma 4",
    signs=("<|tool_call>",),
    call=("<|tool_call>call:", "", "<tool_call|>"),
    marks=("<|tool_call>", '<|"|>', "<tool_call|>"),
    close="<tool_call|>",
    notation="gemma",
    quote='<|"|>',
    read=gemma_calls.read_call,
)
_LLAMA: Final = CallSyntax(
    "Llama 3",
    signs=('"name":', '"parameters":'),
    call=('{"name": "', '", "parameters": ', "}"),
    marks=(PYTHON_TAG,),
    several=False,
)
_LFM2: Final = CallSyntax(
    "LFM2",
    signs=("<|tool_list_start|>",),
    call=("", "(", ")"),
    marks=("<|tool_call_start|>", "<|tool_call_end|>"),
    begin="<|tool_call_start|>[",
    between=", ",
    end="]<|tool_call_end|>",
    close="<|tool_call_end|>",
    notation="python",
    read=_read_lfm2,
)
_HARMONY: Final = CallSyntax(
    "gpt-oss",
    signs=("<|channel|>", "commentary", "functions.", "<|call|>"),
    call=("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""),
    marks=("<|channel|>commentary to=functions.", "<|channel|>", "<|constrain|>", "<|message|>"),
    # The name in front of the channel, as its template writes earlier calls.
    other=(" to=functions.", "<|channel|>commentary json<|message|>"),
    close="<|call|>",
    several=False,
    read=_read_harmony,
)
USUAL_MARKS: Final = _QWEN.marks
"""Of calls whose syntax is not known."""
SYNTAXES: Final = (
    _HARMONY,
    # The same form alone, where the texts of the first one are missing.
    replace(
        _HARMONY,
        other=None,
        call=(" to=functions.", "<|channel|>commentary <|constrain|>json<|message|>", ""),
        marks=(" to=functions.", *_HARMONY.marks[1:]),
    ),
    replace(
        _GEMMA,
        name="FunctionGemma",
        signs=("<start_function_call>",),
        call=("<start_function_call>call:", "", "<end_function_call>"),
        marks=("<start_function_call>", "<escape>", "<end_function_call>"),
        close="<end_function_call>",
        quote="<escape>",
    ),
    _GEMMA,
    replace(_LFM2, signs=("<|tool_call_start|>", '"arguments": '), call=_JSON, notation="json"),
    replace(_LFM2, signs=("<|tool_call_start|>",)),
    _LFM2,
    # LFM2.5's templates may name no mark at all.
    replace(_LFM2, signs=('"List of tools: ["',)),
    _MISTRAL,
    replace(_MISTRAL_LIST, signs=("[TOOL_CALLS] [",), begin="[TOOL_CALLS] ["),
    _MISTRAL_LIST,
    replace(
        _GRANITE,
        name="Phi 4 mini",
        signs=("<|/tool_call|>",),
        end="]<|/tool_call|>",
        marks=("<|tool_call|>", "<|/tool_call|>"),
        close="<|/tool_call|>",
    ),
    replace(
        _GRANITE,
        name="Nemotron Nano 2",
        signs=("<TOOLCALL>",),
        begin="<TOOLCALL>[",
        end="]</TOOLCALL>",
        marks=("<TOOLCALL>", "</TOOLCALL>"),
        close="</TOOLCALL>",
    ),
    _GRANITE,
    _XML,
    _QWEN,
    _LLAMA,
    replace(_LLAMA, name="JSON", signs=('"name":', '"arguments":'), call=_JSON),
)
"""The known syntaxes; of those whose signs a template has, the first one is meant."""


def find_syntax(source: str) -> CallSyntax | None:
    """Return how a chat template writes calls; None: in no known way."""
    source = source.replace('\\"', '"')
    for syntax in SYNTAXES:
        if all(sign in source for sign in syntax.signs):
            return None if any(text in source for text in syntax.unlike) else syntax
    return None
