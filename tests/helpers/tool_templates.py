"""Chat templates that teach tools, one for each syntax of calls, in ChatML, and tokenizers with their marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.helpers.packages import replace_file

_FRAME: Final = r"""
{%- macro value_of(value) %}
    {%- if value is string %}{{- '@QUOTE@' + value + '@QUOTE@' }}
    {%- elif value is mapping %}
        {{- '{' }}{% for key, one in value | dictsort %}{{- ',' if not loop.first }}{{- key ~ ':' }}{{- value_of(one) }}{% endfor %}{{- '}' }}
    {%- elif value is iterable %}
        {{- '[' }}{% for one in value %}{{- ',' if not loop.first }}{{- value_of(one) }}{% endfor %}{{- ']' }}
    {%- else %}{{- value | tojson }}{% endif %}
{%- endmacro %}
{%- macro named(arguments) %}
    {%- for key, one in arguments.items() %}
        {{- ', ' if not loop.first }}{{- key ~ '=' }}
        {%- if one is string %}{{- "'" ~ one ~ "'" }}{% elif one is mapping %}{{- one | tojson }}{% else %}{{- one | string }}{% endif %}
    {%- endfor %}
{%- endmacro %}
{%- macro lines(arguments) %}
    {%- for key, one in arguments.items() %}
        {{- '<parameter=' ~ key ~ '>\n' }}
        {{- one | tojson if one is mapping or (one is sequence and one is not string) else one | string }}
        {{- '\n</parameter>\n' }}
    {%- endfor %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\nYou can call these functions:' }}
    {%- for tool in tools %}{{- '\n' ~ tool | tojson }}{% endfor %}
    {{- '\nCall them like this: @EXAMPLE@<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
    {%- if message.tool_calls %}@CALLS@{% endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""  # noqa: E501


def _template(example: str, calls: str, quote: str = "") -> str:
    escaped = example.replace("'", "\\'")
    return _FRAME.replace("@EXAMPLE@", escaped).replace("@CALLS@", calls).replace("@QUOTE@", quote)


def _each(before: str, middle: str, behind: str, arguments: str = "call.arguments | tojson", between: str = "") -> str:
    comma = f"{{{{- '{between}' if not loop.first }}}}" if between else ""
    return (
        "{%- for call in message.tool_calls %}{%- if call.function %}{% set call = call.function %}{% endif %}"
        f"{comma}{{{{- '{before}' ~ call.name ~ '{middle}' }}}}{{{{- {arguments} }}}}{{{{- '{behind}' }}}}"
        "{%- endfor %}"
    )


_JSON: Final = ('{"name": "', '", "arguments": ', "}")
_ITEMS: Final = _each(*_JSON, between=", ")
TOOL_TEMPLATES: Final = {
    "Qwen": _template(
        '<tool_call>\\n{"name": <name>, "arguments": <arguments>}\\n</tool_call>',
        _each('<tool_call>\\n{"name": "', '", "arguments": ', "}\\n</tool_call>", between="\\n"),
    ),
    "Qwen 3.5": _template(
        "<tool_call>\\n<function=<name>>\\n<parameter=<key>>\\n<value>\\n</parameter>\\n</function>\\n</tool_call>",
        _each("<tool_call>\\n<function=", ">\\n", "</function>\\n</tool_call>", "lines(call.arguments)", between="\\n"),
    ),
    "Llama": _template(
        '{"name": <name>, "parameters": <arguments>}',
        "{%- if message.tool_calls | length > 1 %}{{- raise_exception('one call at a time') }}{% endif %}"
        + _each('{"name": "', '", "parameters": ', "}"),
    ),
    "Mistral": _template('[TOOL_CALLS][{"name": <name>, "arguments": <arguments>}]', f"[TOOL_CALLS][{_ITEMS}]"),
    "Mistral 11": _template("[TOOL_CALLS]<name>[ARGS]<arguments>", _each("[TOOL_CALLS]", "[ARGS]", "")),
    "Gemma": _template(
        "<|tool_call>call:<name>{<key>:<value>}<tool_call|>",
        _each("<|tool_call>call:", "", "<tool_call|>", "value_of(call.arguments)"),
        '<|"|>',
    ),
    "LFM2": _template(
        "<|tool_call_start|>[<name>(<key>=<value>)]<|tool_call_end|>",
        "<|tool_call_start|>["
        + _each("", "(", ")", between=", ", arguments="named(call.arguments)")
        + "]<|tool_call_end|>",
        "'",
    ),
    "gpt-oss": _template(
        "<|channel|>commentary to=functions.<name> <|constrain|>json<|message|><arguments><|call|>",
        "{%- if message.tool_calls | length > 1 %}{{- raise_exception('one call at a time') }}{% endif %}"
        + _each("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "<|call|>"),
    ),
    "Granite": _template('<|tool_call|>[{"name": <name>, "arguments": <arguments>}]', f"<|tool_call|>[{_ITEMS}]"),
}

MARKS: Final = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|tool_call>", '<|"|>', "<tool_call|>"),
    *("<|tool_call|>", "<|python_tag|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *("<|channel|>", "<|constrain|>", "<|message|>"),
)
"""Control tokens of all syntaxes."""


def with_marks(package: Path) -> None:
    """Make the unused tokens of a package's tokenizer the control tokens of all syntaxes."""
    document = json.loads((package / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for number, mark in enumerate(MARKS):
        token = vocabulary[mark] = vocabulary.pop(f"[unused{number}]")
        # Qwen's are not special, the others are.
        special = "tool_call>" not in mark or "|" in mark
        document["added_tokens"].append({"id": token, "content": mark, "special": special, **plain})
    replace_file(package, "tokenizer.json", json.dumps(document).encode())
