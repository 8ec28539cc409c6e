"""Calls that a choice of tools asks for, from a small model whose answers are noise: only grammars can make them."""

from __future__ import annotations

import asyncio
import sys

import jsonschema
import pytest

from edge_rt.errors import ConfigError, InvalidGrammar, RuntimeUnavailable
from edge_rt.export import export_model
from tests.fuzz_tools import Writing
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.packages import copied, replace_file
from tests.helpers.tool_templates import MARKS, TOOL_TEMPLATES, with_marks
from tests.text.family_templates import QWEN3

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "marks": {"type": "array", "items": {"enum": ["<tool_call>", '<|"|>', True, "ä"]}, "maxItems": 2},
        "at": {"type": "object", "properties": {"lat": {"type": "number", "minimum": 0, "maximum": 1}}},
    },
    "required": ["city", "at"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": CITY}},
    {"name": "clock", "parameters": {"type": "object", "properties": {}}},
]
HELLO = [{"role": "user", "content": "Hello"}]
SAMPLED = {"temperature": 1.0, "seed": 3}
FREE = [{"name": "free", "parameters": {"type": "object", "properties": {"x": {"not": {}}}}}]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A package, and one whose tokenizer has the marks of all syntaxes as control tokens."""
    require_native()
    folder = tmp_path_factory.mktemp("tools")
    write_llama_gguf(folder / "model.gguf", context=6144, vocab=419 + len(MARKS))
    export_model(folder / "model.gguf", folder / "plain", profile="native")
    marked = copied(folder / "plain", folder)
    with_marks(marked)
    return {"plain": folder / "plain", "marked": marked}


@pytest.fixture(scope="module")
def package(packages):
    return packages["marked"]


def loaded(package, folder, template, **options):
    made = copied(package, folder)
    replace_file(made, "chat_template.jinja", template.encode())
    return load_package(made, **options)


@pytest.fixture(scope="module")
def qwen(package, tmp_path_factory):
    with loaded(package, tmp_path_factory.mktemp("qwen"), TOOL_TEMPLATES["Qwen"]) as model:
        yield model


def writing(model, text, first=3, messages=HELLO, tools=TOOLS):
    """Return options with which a text is written into the answer, behind some tokens of noise."""
    tokens = model.tokenizer.encode_spans([(text, True)], continues=True)
    prompt = model.count_tokens(messages, tools=tools)
    return {"logits_processor": Writing(prompt, first, tokens, model.tokenizer.eos_token_ids)}


def check(result, once=False):
    assert result.finish_reason == "stop"
    calls = result.tool_calls
    assert len(calls) == 1 if once else 1 <= len(calls) <= 16
    for call in calls:
        if call.name == "weather":
            jsonschema.Draft202012Validator(CITY).validate(call.arguments)
        else:
            assert (call.name, call.arguments) == ("clock", {})


@pytest.mark.parametrize("name", TOOL_TEMPLATES)
@pytest.mark.parametrize("has_marks", [True, False])
def test_calls_fit_their_tools_in_every_syntax_and_are_the_same_with_drafts(name, has_marks, packages, tmp_path):
    with loaded(packages["marked" if has_marks else "plain"], tmp_path, TOOL_TEMPLATES[name]) as model:
        begin = {"Llama": '{"name": "weather"', "Gemma": "<|tool_call>"}.get(name, "[TOOL_CALLS]")
        begin = {
            "Qwen": "<tool_call>",
            "Qwen 3.5": "<tool_call>",
            "gpt-oss": "<|channel|>commentary to=functions.",
            "Granite": "<|tool_call|>",
            "LFM2": "<|tool_call_start|>",
        }.get(name, begin)
        asked = (
            {"tool_choice": "required", "temperature": 0.0},
            {"tool_choice": "required", **SAMPLED},
            {"tool_choice": "weather", **SAMPLED},
            {"parallel_tool_calls": False, **SAMPLED, **writing(model, begin, 0 if name == "Llama" else 3)},
        )
        for options in asked:
            plain, drafted = (
                model.generate(HELLO, tools=TOOLS, max_tokens=4200, spec=spec, **options) for spec in ("off", "suffix")
            )
            assert (plain.text, plain.token_ids) == (drafted.text, drafted.token_ids)
            check(plain, once=options.get("tool_choice") == "weather" or "parallel_tool_calls" in options)
            ids = set(plain.token_ids) & {model.tokenizer.token_to_id(mark) for mark in MARKS}
            assert bool(ids) == (has_marks and name != "Llama")


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("choice", ["weather", "auto"])
def test_thoughts_in_one_channel_and_a_call_in_another(choice, has_marks, packages, tmp_path):
    template = TOOL_TEMPLATES["gpt-oss"] + "{# <|channel|>analysis<|message|> <|end|> #}"
    with loaded(packages["marked" if has_marks else "plain"], tmp_path, template) as model:
        channel = "<|channel|>commentary to=functions."
        text = f"<|channel|>analysis<|message|>hm {channel}<|end|><|start|>assistant"
        written = writing(model, text + channel * (choice == "auto"), 0)
        result = model.generate(HELLO, tools=TOOLS, tool_choice=choice, max_tokens=1200, **SAMPLED, **written)
        assert result.reasoning == f"hm {channel}"
        assert result.text.startswith(channel)
        check(result, once=True)


HARMONY = TOOL_TEMPLATES["gpt-oss"] + "{# <|channel|>analysis<|message|> <|end|> #}"


@pytest.mark.parametrize("has_marks", [True, False])
def test_calls_in_channels_need_no_thoughts_and_are_held_in_both_forms(has_marks, packages, tmp_path):
    """A call that is asked for has the first form; what is said before another one has no marks."""
    channel, said = "<|channel|>commentary", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    cases = (
        ({"tool_choice": "weather"}, f"{channel} to=functions.", ""),
        ({}, f"{said}{channel} to=functions.", "I look."),
        ({}, f"{said} to=functions.", "I look."),
    )
    with loaded(packages["marked" if has_marks else "plain"], tmp_path, HARMONY) as model:
        for options, begin, before in cases:
            written = writing(model, begin, 0)
            result = model.generate(HELLO, tools=TOOLS, max_tokens=1200, **SAMPLED, **options, **written)
            assert (result.reasoning, result.finish_reason) == ("", "stop")
            assert result.text.startswith(before + begin.removeprefix(said))
            check(result, once=True)


def test_named_tools_are_called_once_however_they_are_named(qwen):
    for choice in ("clock", {"type": "function", "function": {"name": "clock"}}, {"type": "function", "name": "clock"}):
        result = asyncio.run(qwen.agenerate(HELLO, tools=TOOLS, tool_choice=choice))
        assert result.text == '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
        assert result.usage.forced_tokens == result.usage.completion_tokens


def test_nothing_is_spent_on_calls_that_do_not_begin(package, tmp_path):
    with loaded(package, tmp_path, TOOL_TEMPLATES["Qwen"], memory=2 << 30, spec="off") as model:
        free = model.generate(HELLO, tools=TOOLS, max_tokens=5, temperature=0.0)
        assert free.memory.planned_bytes == model.plan.total_bytes
        begun = model.generate(HELLO, tools=TOOLS, max_tokens=1200, **SAMPLED, **writing(model, "<tool_call>"))
        assert begun.memory.planned_bytes > model.plan.total_bytes
        check(begun)


def test_without_a_choice_the_text_is_that_of_an_answer_that_may_call_nothing(qwen):
    options = {"tools": TOOLS, "max_tokens": 60, **SAMPLED}
    # The other rule of acceptance follows no grammar.
    expected = qwen.generate(HELLO, spec="recycling", accept="ratio", **options | {"temperature": 0.0})
    for spec in ("off", "suffix"):
        assert qwen.generate(HELLO, spec=spec, **options | {"temperature": 0.0}).token_ids == expected.token_ids


def test_what_cannot_be_enforced_is_refused_where_a_call_is_asked_for_and_said_otherwise(qwen):
    with pytest.raises(InvalidGrammar, match=r"tool 'free' cannot be enforced. The keyword 'not'.*#/properties/x"):
        qwen.check(HELLO, tools=FREE, tool_choice="required")
    result = qwen.generate(HELLO, tools=FREE, max_tokens=40, **SAMPLED, **writing(qwen, "<tool_call>", tools=FREE))
    assert result.text.partition("<tool_call>")[2].startswith('\n{"name": "free", "arguments": {')
    (warning,) = result.warnings
    assert warning.startswith("Tool 'free': Its arguments are any object: The keyword 'not' cannot be enforced")


def test_without_the_library_calls_are_text(package, tmp_path):
    with loaded(package, tmp_path, TOOL_TEMPLATES["Qwen"]) as model, pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "llguidance", None)
        with pytest.raises(RuntimeUnavailable, match="llguidance"):
            model.generate(HELLO, tools=TOOLS, tool_choice="required")
        text = '<tool_call>{"name": "clock"}</tool_call>'
        result = model.generate(HELLO, tools=TOOLS, max_tokens=50, **SAMPLED, **writing(model, text))
        assert [call.name for call in result.tool_calls] == ["clock"]
        assert "not held to the parameters" in result.warnings[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": None, "tool_choice": "required"}, "there is no tool to call"),
        ({"tool_choice": "wether"}, "Got 'wether'; the tools are weather, clock"),
        ({"tools": [{"type": "search"}], "tool_choice": "required"}, "no function with a name"),
        ({"tool_choice": {"type": "function"}}, "'tool_choice' is out of range"),
        ({"tool_choice": 7}, "'tool_choice' is out of range"),
        ({"tool_choice": "required", "regex": "a"}, "'regex' and 'tool_choice' exclude"),
        ({"tool_choice": "clock", "stop": "a"}, "'tool_choice' and 'stop' exclude"),
        ({"parallel_tool_calls": None}, "'parallel_tool_calls' is of the wrong type"),
    ],
)
def test_choices_that_there_cannot_be(qwen, options, message):
    with pytest.raises(ConfigError, match=message):
        qwen.check(HELLO, **{"tools": TOOLS, **options})


def test_a_template_whose_calls_are_not_known_cannot_be_asked_for_one(package, tmp_path):
    template = "{% for tool in tools %}<function={{ tool.name }}>{% endfor %}{{ messages[0].content }}"
    with loaded(package, tmp_path, template) as model:
        with pytest.raises(
            ConfigError, match=r"does not know.*known are the ways of gpt-oss, FunctionGemma, Gemma 4, LFM2, Mistral"
        ):
            model.check(HELLO, tools=TOOLS, tool_choice="required")
        assert model.generate(HELLO, tools=TOOLS, max_tokens=3).tool_calls == ()


def test_none_shows_no_tools_and_a_format_calls_nothing(qwen):
    with_none = qwen.generate(HELLO, tools=TOOLS, tool_choice="none", max_tokens=3)
    assert with_none.usage.prompt_tokens == qwen.count_tokens(HELLO)
    schema = {"const": {"name": "clock", "arguments": {}}}
    result = qwen.generate(HELLO, tools=TOOLS, tool_choice="auto", response_format=schema)
    assert (result.parsed, result.tool_calls) == (schema["const"], ())


def test_calls_come_behind_thoughts_and_none_begins_within(package, tmp_path):
    with loaded(package, tmp_path, QWEN3) as model:
        options = {"tools": TOOLS, "max_tokens": 300, **SAMPLED}
        text = "<think>\n<tool_call> hm</think>\n"
        forced = model.generate(HELLO, tool_choice="clock", **options, **writing(model, text, 0))
        assert forced.reasoning == "<tool_call> hm"
        assert forced.text == '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
        free = model.generate(HELLO, **options, **writing(model, text + "<tool_call>", 0))
        assert free.reasoning == "<tool_call> hm"
        check(free)


@pytest.mark.parametrize("choice", [None, "required"])
def test_a_call_that_a_message_has_begun_is_continued(qwen, choice):
    begun = [*HELLO, {"role": "assistant", "content": '<tool_call>\n{"name": "clock", "argu'}]
    result = qwen.generate(begun, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert result.text == 'ments": {}}\n</tool_call>'
    assert [call.name for call in result.tool_calls] == ["clock"]
    chat = qwen.chat(tools=TOOLS)
    chat.messages = begun
    chat.resume(tool_choice=choice, parallel_tool_calls=False).result()
    assert chat.messages[-1]["content"] == ""
    assert chat.messages[-1]["tool_calls"][0]["function"] == {"name": "clock", "arguments": {}}


@pytest.mark.parametrize("begun", ["Well. ", '{"name": "unknown', "<tool_call>no call"])
def test_a_call_that_is_asked_for_is_read_behind_what_a_message_has_begun(package, tmp_path, begun):
    with loaded(package, tmp_path, TOOL_TEMPLATES["Llama"]) as model:
        chat = model.chat(tools=TOOLS)
        chat.messages = [*HELLO, {"role": "assistant", "content": begun}]
        result = chat.resume(tool_choice="clock").result()
        assert (result.finish_reason, [call.name for call in result.tool_calls]) == ("stop", ["clock"])
        assert chat.messages[-1]["content"] == begun.strip()


def test_a_chat_asks_for_calls_and_goes_on(qwen):
    chat = qwen.chat(tools=TOOLS)
    assert [call.name for call in chat.send("Hello", tool_choice="clock").tool_calls] == ["clock"]
    chat.send_tool_results(["12:00"], tool_choice="none", max_tokens=3)
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]


def test_where_answers_share_passes_the_grammar_of_calls_that_may_come_is_made_ahead(qwen, package, tmp_path):
    with loaded(package, tmp_path, TOOL_TEMPLATES["Qwen"], slots=2, formats=True, ctx=1024) as model:
        model.stream(HELLO, tools=TOOLS)
        assert model.texts.grammars._table is not None
        for tools in (TOOLS, FREE):
            for text in ("<tool_call>", "no"):
                given = {"tools": tools, "max_tokens": 60, **SAMPLED}
                expected = qwen.generate(HELLO, **given, **writing(qwen, text, tools=tools))
                result = model.generate(HELLO, **given, **writing(model, text, tools=tools))
                assert (result.token_ids, result.warnings) == (expected.token_ids, expected.warnings)
                assert bool(result.warnings) == (tools is FREE and text == "<tool_call>")
