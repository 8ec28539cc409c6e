"""What may be a call of a tool in an answer that is streamed: a call or text, never both, in each API's events."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.results import Event
from edge_rt.runtime.stream import Stream
from edge_rt.text.call_stream import CallStream
from edge_rt.text.call_syntaxes import SYNTAXES
from edge_rt.text.tool_calls import Tools, split_tool_calls
from tests.helpers.fake_answers import result

pytest.importorskip("starlette")

from edge_rt.server.answers import Answers, WholeAnswer
from edge_rt.server.anthropic_messages import MESSAGES
from edge_rt.server.anthropic_writer import MessageWriter
from edge_rt.server.fields import Fields
from edge_rt.server.ollama import OLLAMA_CHAT, OllamaWriter
from edge_rt.server.openai_chat import CHAT_COMPLETION, ChatWriter
from edge_rt.server.openai_responses import RESPONSE
from edge_rt.server.response_writer import ResponseWriter

TOOLS = Tools(({"name": "f"},), next(one for one in SYNTAXES if one.name.startswith("Qwen")))
MODEL = SimpleNamespace(tokenizer=SimpleNamespace(eos_token_ids=()))
CALL = '{"name": "f", "arguments": {"a": "}"}}'


def written(pieces):
    """Return the text of an event stream, joined."""
    return b"".join(pieces).decode()


async def streamed(text, writer):
    """Return what is sent of an answer, and how much of it before the answer's end."""

    def events(outcome):
        for index in range(0, len(text), 4):
            yield Event(text[index : index + 4], (1,))
        whole = replace(result([1] * 8, finish_reason="stop"), text=text)
        outcome.tell(replace(whole, tool_calls=split_tool_calls(text, TOOLS.names)[1]))

    entry = SimpleNamespace(name="m", model=SimpleNamespace(pump=None), turn=None)
    stream = Stream(events, CancelToken())
    answers = Answers(entry, [stream], [CallStream(TOOLS)], 1, lambda _: None, 1, [WholeAnswer()])
    reading = asyncio.create_task(answers.read(0))
    sent = [*writer.begin(answers)]
    early = ""
    while (piece := await answers.next()) is not None:
        if piece.result is not None:
            early = written(sent)
        sent += writer.piece(piece)
    await reading
    return early, written([*sent, *writer.end(answers)])


def chat(sent):
    chunks = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    return "".join(delta.get("content") or "" for delta in deltas), "".join(
        call.get("name", "") + call["arguments"] for call in calls
    )


def messages(sent):
    events = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: ")]
    names = [one["content_block"].get("name", "") for one in events if one["type"] == "content_block_start"]
    deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
    return "".join(one.get("text", "") for one in deltas), "".join(
        [*names, *(one.get("partial_json", "") for one in deltas)]
    )


def responses(sent):
    events = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: ")]
    items = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    return "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta"), "".join(
        item["name"] + item["arguments"] for item in items if item["type"] == "function_call"
    )


def ollama(sent):
    told = [json.loads(line)["message"] for line in sent.splitlines()]
    calls = [call["function"] for one in told for call in one.get("tool_calls", ())]
    return "".join(one["content"] for one in told), "".join(
        call["name"] + json.dumps(call["arguments"]) for call in calls
    )


APIS = {
    "chat": (ChatWriter, CHAT_COMPLETION, chat),
    "messages": (MessageWriter, MESSAGES, messages),
    "responses": (ResponseWriter, RESPONSE, responses),
    "ollama": (OllamaWriter, OLLAMA_CHAT, ollama),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        (CALL, True),
        (f"{CALL}\n", True),
        (f"{CALL} is what I would call.", False),
        ('{"name": "g", "arguments": {}}', False),
        ('{"a": 1} and so on', False),
        ('{"name": "f", "arg', False),
        ("Well, { is a brace.", False),
    ],
    ids=["call", "call and blanks", "call in text", "no tool", "object", "cut", "text"],
)
def test_an_answer_that_begins_with_an_object_is_a_call_or_text(api, text, is_call):
    make, table, read = APIS[api]
    writer = make(Fields({}, table), SimpleNamespace(model=MODEL), "m")
    early, sent = asyncio.run(streamed(text, writer))
    assert read(sent) == (("", 'f{"a": "}"}') if is_call else (text, ""))
    if is_call:
        assert '"a"' not in early
    elif " " in text[len(CALL) :] or text.startswith("Well"):
        # Text that is seen to be text does not wait for the end.
        assert len(read(early)[0]) > len(text) - 8
