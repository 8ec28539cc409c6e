"""Requests as programs send them that cannot be run here; written after what is known of them, not taken from them."""

from __future__ import annotations

import json

import httpx

from tests.server_clients.calls import CITY, MESSAGES, MOST, QUESTION, WEATHER, Client, expect

CODEX = Client("Codex", None)
CLAUDE_CODE = Client("Claude Code", None)
ZED = Client("Zed", None)

SHELL = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False, "parameters": CITY}
CODEX_TOOLS = [
    SHELL,
    {"type": "web_search", "external_web_access": False},
    {
        "type": "custom",
        "name": "apply_patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /./"},
    },
    {"type": "namespace", "name": "mcp", "description": "More.", "tools": [SHELL]},
    {"type": "local_shell"},
]
CODEX_HEADERS = {
    "originator": "codex_cli_rs",
    "session_id": "1",
    "accept": "text/event-stream",
    "authorization": "Bearer none",
}
CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
    "anthropic-dangerous-direct-browser-access": "true",
    "authorization": "Bearer none",
    "x-app": "cli",
    "x-stainless-retry-count": "0",
}
CACHED = {"cache_control": {"type": "ephemeral"}}


def post(served, path, body, **headers):
    """Send a request; return the response."""
    return httpx.post(f"{served.url}{path}", json=body, headers=headers, timeout=120)


def events_of(response):
    """Return the events of a stream: name and data."""
    expect((response.status_code, response.headers["content-type"].partition(";")[0]), (200, "text/event-stream"))
    events = []
    for part in response.text.split("\n\n"):
        lines = [line.partition(": ") for line in part.split("\n") if line and not line.startswith(":")]
        fields = {name: value for name, _, value in lines}
        if fields.get("data", "[DONE]") != "[DONE]":
            events.append((fields.get("event"), json.loads(fields["data"])))
    return events


def codex_request(served, **changes):
    """Return a turn as Codex asks for it."""
    said = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Work in the sandbox."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
    ]
    return {
        "model": served.tools, "instructions": "You are a coding agent.", "input": said, "tools": CODEX_TOOLS,
        "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False, "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "1",
        "text": {"verbosity": "low"}, "max_output_tokens": MOST, **changes,
    }  # fmt: skip


@CODEX.call
def codex_turn(served):
    events = events_of(post(served, "/v1/responses", codex_request(served), **CODEX_HEADERS))
    expect([name for name, _ in events], [data["type"] for _, data in events])
    expect([data["sequence_number"] for _, data in events], list(range(len(events))))
    expect([name for name, _ in events[:2]], ["response.created", "response.in_progress"])
    expect(events[-1][0] in ("response.completed", "response.incomplete"))
    usage = events[-1][1]["response"]["usage"]
    expect(usage["input_tokens"] + usage["output_tokens"], usage["total_tokens"])
    expect({"input_tokens_details", "output_tokens_details"} <= set(usage))


@CODEX.call
def codex_tool_loop(served):
    request = codex_request(served, tool_choice="required", max_output_tokens=300)
    events = events_of(post(served, "/v1/responses", request, **CODEX_HEADERS))
    items = [data["item"] for name, data in events if name == "response.output_item.done"]
    call = next(item for item in items if item["type"] == "function_call")
    pieces = [data["delta"] for name, data in events if name == "response.function_call_arguments.delta"]
    expect((call["name"], "".join(pieces)), ("shell", call["arguments"]))
    thoughts = {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "AAAA"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    again = {"input": [*request["input"], thoughts, call, result]}
    expect(post(served, "/v1/responses", codex_request(served, **again), **CODEX_HEADERS).status_code, 200)


@CODEX.call
def codex_probe(served):
    for empty in ([], ""):
        probe = {"model": served.tools, "input": empty, "max_output_tokens": 1, "stream": False, "store": False}
        answer = post(served, "/v1/responses", probe, **CODEX_HEADERS)
        expect((answer.status_code, answer.json()["usage"]["output_tokens"] <= 1), (200, True))


@CODEX.call
def codex_previous_response(served):
    refused = post(served, "/v1/responses", codex_request(served, previous_response_id="resp_1"), **CODEX_HEADERS)
    expect((refused.status_code, refused.json()["error"]["param"]), (400, "previous_response_id"))


def claude_request(served, **changes):
    """Return a turn as Claude Code asks for it."""
    text = {"type": "text", "text": QUESTION, **CACHED}
    system = [{"type": "text", "text": "You are a coding assistant."}, {"type": "text", "text": "Be brief.", **CACHED}]
    tool = {
        "name": "Bash",
        "description": "Runs a command.",
        "input_schema": {**CITY, "$schema": "http://json-schema.org/draft-07/schema#"},
    }
    return {
        "model": served.tools, "max_tokens": MOST, "system": system, "messages": [{"role": "user", "content": [text]}],
        "tools": [tool], "metadata": {"user_id": "user_1"}, "temperature": 1, "stream": True,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, **changes,
    }  # fmt: skip


def expect_blocks(events):
    """See whether the events of a message come in their order; return its blocks."""
    expect([name for name, _ in events], [data["type"] for _, data in events])
    events = [data for name, data in events if name != "ping"]
    expect(
        (events[0]["type"], events[-2]["type"], events[-1]["type"]), ("message_start", "message_delta", "message_stop")
    )
    expect(events[0]["message"]["usage"]["input_tokens"] > 0)
    blocks, is_open = [], False
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            expect((is_open, event["index"]), (False, len(blocks)))
            blocks.append(event["content_block"])
        expect((event["type"] == "content_block_start") != is_open)
        expect(event["index"], len(blocks) - 1)
        is_open = event["type"] != "content_block_stop"
    expect(is_open, wanted=False)
    return blocks


@CLAUDE_CODE.call
def claude_turn(served):
    events = events_of(post(served, "/v1/messages?beta=true", claude_request(served), **CLAUDE_HEADERS))
    expect(bool(expect_blocks(events)))
    expect(events[-2][1]["delta"]["stop_reason"] in ("end_turn", "max_tokens", "tool_use"))


@CLAUDE_CODE.call
def claude_thinking(served):
    request = claude_request(served, model=served.thinking, tools=[])
    blocks = expect_blocks(events_of(post(served, "/v1/messages?beta=true", request, **CLAUDE_HEADERS)))
    expect([block["type"] for block in blocks], ["thinking"])


@CLAUDE_CODE.call
def claude_tool_loop(served):
    request = claude_request(served, tool_choice={"type": "any"}, max_tokens=300)
    events = events_of(post(served, "/v1/messages?beta=true", request, **CLAUDE_HEADERS))
    call = expect_blocks(events)[-1]
    expect((call["type"], call["name"], events[-2][1]["delta"]["stop_reason"]), ("tool_use", "Bash", "tool_use"))
    pieces = [data["delta"]["partial_json"] for name, data in events if name == "content_block_delta"
              and data["delta"]["type"] == "input_json_delta"]  # fmt: skip
    thought = {"type": "thinking", "thinking": "A command.", "signature": ""}
    said = {"role": "assistant", "content": [thought, {**call, "input": json.loads("".join(pieces))}]}
    result = {
        "type": "tool_result",
        "tool_use_id": call["id"],
        "content": [{"type": "text", "text": "x"}],
        "is_error": True,
    }
    messages = [
        *request["messages"],
        said,
        {"role": "user", "content": [result, {"type": "text", "text": "Go on.", **CACHED}]},
    ]
    again = post(served, "/v1/messages?beta=true", claude_request(served, messages=messages), **CLAUDE_HEADERS)
    expect_blocks(events_of(again))


@CLAUDE_CODE.call
def claude_probe_and_count(served):
    quota = {"model": served.tools, "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
    expect(post(served, "/v1/messages?beta=true", quota, **CLAUDE_HEADERS).json()["usage"]["output_tokens"] <= 1)
    counted = {name: value for name, value in claude_request(served).items() if name not in ("max_tokens", "stream")}
    count = post(served, "/v1/messages/count_tokens?beta=true", counted, **CLAUDE_HEADERS).json()["input_tokens"]
    whole = post(served, "/v1/messages?beta=true", claude_request(served, stream=False), **CLAUDE_HEADERS)
    usage = whole.json()["usage"]
    expect(usage["input_tokens"] + usage["cache_read_input_tokens"], count)


@ZED.call
def zed_edit_prediction(served):
    body = {"model": served.plain, "prompt": QUESTION, "max_tokens": MOST, "temperature": 0, "stop": ["<|end|>"]}
    answer = post(served, "/v1/completions", body).json()
    expect((isinstance(answer["id"], str) and answer["id"] != "", answer["choices"][0]["text"]), (True, served.rest))


@ZED.call
def zed_chat(served):
    body = {
        "model": served.plain, "messages": MESSAGES, "stream": True, "max_completion_tokens": MOST, "temperature": 0,
        "stop": [], "parallel_tool_calls": False, "prompt_cache_key": "1", "stream_options": {"include_usage": True},
    }  # fmt: skip
    *chunks, last = [data for _, data in events_of(post(served, "/v1/chat/completions", body))]
    expect(all("finish_reason" in chunk["choices"][0] for chunk in chunks))
    expect([chunk["choices"][0]["finish_reason"] for chunk in chunks], [None] * (len(chunks) - 1) + ["length"])
    expect("".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks), served.answer)
    expect(last["usage"]["completion_tokens"], MOST)


@ZED.call
def zed_tools(served):
    body = {
        "model": served.tools, "messages": MESSAGES, "stream": True, "tools": [WEATHER], "tool_choice": "required",
        "max_completion_tokens": 300, "temperature": 0,
    }  # fmt: skip
    deltas = [data["choices"][0]["delta"] for _, data in events_of(post(served, "/v1/chat/completions", body))]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    expect(all(isinstance(call["index"], int) for call in calls))
    for index in range(max(call["index"] for call in calls) + 1):
        first, *rest = [call for call in calls if call["index"] == index]
        expect((first["type"], first["function"]["name"], first["function"]["arguments"]), ("function", "weather", ""))
        expect(all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in rest))
        json.loads("".join(call["function"]["arguments"] for call in rest))
