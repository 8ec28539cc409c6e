"""Conversations in which tools are called: with a model of noise whose answers are replaced."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from edge_rt.errors import ConfigError
from edge_rt.runtime.chat import Chat
from edge_rt.text.tool_calls import parse_tool_calls
from tests.helpers.gguf_factory import CHATML
from tests.helpers.models import load_package
from tests.helpers.packages import copied, replace_file
from tests.helpers.small import GREEDY
from tests.text.family_templates import QWEN3

SHORT = GREEDY | {"max_tokens": 2}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("clock", "search")]
ANSWER = (
    'Let me see.\n<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
)


class Answering:
    """A model that gives the answers that it is told to give."""

    def __init__(self, model, answers):
        self._model = model
        self._answers = list(answers)

    def __getattr__(self, name):
        return getattr(self._model, name)

    def stream_ids(self, token_ids, config, *, on_result, form, **options):
        text = self._answers.pop(0)
        calls = () if form.tools is None else parse_tool_calls(text, form.tools.names)
        return self._model.stream_ids(
            *(token_ids, config),
            on_result=lambda result: on_result(dataclasses.replace(result, text=text, tool_calls=calls)),
            form=form,
            **options,
        )


@pytest.fixture(scope="module")
def models(small_package, tmp_path_factory):
    made = copied(small_package, tmp_path_factory.mktemp("tools"))
    replace_file(made, "chat_template.jinja", QWEN3.encode())
    simple = copied(small_package, tmp_path_factory.mktemp("no-calls"))
    replace_file(
        simple, "chat_template.jinja", f"{{% for tool in tools %}}{{{{ tool.type }}}}{{% endfor %}}{CHATML}".encode()
    )
    with load_package(simple) as plain, load_package(made) as qwen:
        yield {"plain": plain, "qwen": qwen}


@pytest.fixture
def chat(models):
    return Chat(Answering(models["qwen"], [ANSWER, "It is noon.", "Twice."]), tools=TOOLS)


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_the_history_is_what_the_template_writes_for_structured_calls(chat, models):
    chat.send("What time is it?", **SHORT)
    chat.send_tool_results(["12:00", {"found": ["é"]}], **SHORT)
    written = [
        {"role": "user", "content": "What time is it?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [call("clock", {"zone": "UTC"}), call("search", {})],
        },
        {"role": "tool", "content": "12:00"},
        {"role": "tool", "content": '{"found": ["é"]}'},
        {"role": "assistant", "content": "It is noon."},
    ]
    expected = models["qwen"].render(written, tools=TOOLS)
    found = models["qwen"].render(chat.messages, tools=TOOLS)
    assert (found.text, found.own) == (expected.text, expected.own)
    assert ANSWER in found.text
    # The markers are the template's, so they may be tokens.
    assert any(own and "<tool_call>" in text for text, own in found.spans())


def test_calls_and_results_belong_together(chat):
    chat.send("What time is it?", **SHORT)
    ids = [one["id"] for one in chat.messages[-1]["tool_calls"]]
    assert ids == ["call00000", "call00001"]
    with pytest.raises(ConfigError, match="Got 1 result for 2 calls: clock, search"):
        chat.send_tool_results(["12:00"], **SHORT)
    with pytest.raises(ConfigError, match="a str for 2 calls"):
        chat.send_tool_results("12:00", **SHORT)
    with pytest.raises(ConfigError, match="neither text nor plain data"):
        chat.send_tool_results(["12:00", object()], **SHORT)
    assert len(chat.messages) == 2
    chat.send_tool_results(["12:00", ""], **SHORT)
    pairs = [(one["tool_call_id"], one["name"]) for one in chat.messages[2:4]]
    assert pairs == [(ids[0], "clock"), (ids[1], "search")]
    with pytest.raises(ConfigError, match="no 'tool_calls'"):
        chat.send_tool_results([], **SHORT)
    chat.regenerate(**SHORT).result()
    assert [one["role"] for one in chat.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    chat.undo()
    assert chat.messages == []


def test_results_of_calls_that_the_caller_wrote_in_a_task(chat):
    chat.messages = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "", "tool_calls": [call("clock", {})]},
    ]
    result = asyncio.run(chat.asend_tool_results(["12:00"], **SHORT))
    assert result.token_ids
    assert chat.messages[2:] == [
        {"role": "tool", "content": "12:00", "name": "clock"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": chat.messages[3]["tool_calls"]},
    ]
    assert [one["id"] for one in chat.messages[3]["tool_calls"]] == ["call00001", "call00002"]


def test_a_saved_conversation_keeps_its_calls(chat, models, tmp_path):
    chat.send("What time is it?", **SHORT)
    chat.send_tool_results(["12:00", "13:00"], **SHORT)
    chat.save(tmp_path / "chat.json")
    other = Chat(models["qwen"], tools=TOOLS)
    other.load(tmp_path / "chat.json")
    assert other.messages == chat.messages


def test_a_template_without_calls_keeps_their_text(models):
    chat = Chat(Answering(models["plain"], [ANSWER]), tools=TOOLS)
    chat.send("What time is it?", **SHORT)
    assert chat.messages[-1]["content"] == ANSWER
    assert len(chat.messages[-1]["tool_calls"]) == 2


def test_without_tools_nothing_is_a_call(models):
    chat = Chat(Answering(models["qwen"], [ANSWER]))
    chat.send("What time is it?", **SHORT)
    assert chat.messages[-1] == {"role": "assistant", "content": ANSWER}
