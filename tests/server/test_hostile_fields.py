"""Every field of every route with values of every wrong kind: an answer or a refusal, never a failure of the server."""

from __future__ import annotations

import copy
import json

import pytest

from edge_rt.server.app import ENDPOINTS

MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    {"role": "assistant", "content": "a", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "r"},
]  # fmt: skip
SAMPLING = {"temperature": 1, "top_p": 0.9, "top_k": 5, "seed": 1, "stop": ["x"], "logit_bias": {"5": 1}}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
BODIES = {
    "/v1/chat/completions": {
        "model": "small", "messages": MESSAGES, "max_tokens": 1, "n": 1, "stream": False, "logprobs": True,
        "top_logprobs": 1, "response_format": {"type": "text"}, "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low", "parallel_tool_calls": True, **SAMPLING,
    },
    "/v1/completions": {"model": "small", "prompt": ["a", [3]], "max_tokens": 1, "n": 1, "logprobs": 1, **SAMPLING},
    "/v1/responses": {
        "model": "small", "instructions": "i", "max_output_tokens": 1, "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"}, "include": ["x"], "metadata": {"a": "b"}, "tool_choice": "none",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "r"},
        ],
    },
    "/v1/messages": {
        "model": "small", "max_tokens": 1, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"],
        "thinking": {"type": "disabled"}, "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "none"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
        ],
    },
    "/v1/messages/count_tokens": {"model": "small", "messages": [{"role": "user", "content": "x"}], "system": "s"},
    "/v1/embeddings": {
        "model": "small", "input": ["x", [3]], "encoding_format": "float", "dimensions": 8, "prompt_name": "query",
        "truncate": True,
    },
    "/api/embed": {"model": "small", "input": ["x"], "truncate": True, "dimensions": 8},
    "/api/embeddings": {"model": "small", "prompt": "x"},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": [{"text": "d"}]},
    "/api/chat": {
        "model": "small", "messages": [{"role": "user", "content": "x"}], "stream": False, "think": False,
        "format": "", "options": {"num_predict": 1, **SAMPLING},
    },
    "/api/generate": {"model": "small", "prompt": "x", "system": "s", "stream": False, "options": {"num_predict": 1}},
    "/api/show": {"model": "small"},
    "/tokenize": {"content": "x", "add_special": True, "with_pieces": True},
    "/detokenize": {"tokens": [5, 6]},
    "/apply-template": {"messages": MESSAGES[:2], "tools": TOOLS, "add_generation_prompt": True},
}  # fmt: skip
VALUES = (None, True, -1, 1.5, 10**30, "", "\ud800", [], [None], [[]], {}, {"type": 7}, {"": {"": []}}, "x" * 3000)


def places(value, path=()):
    """Yield the path of every value within a body."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


def test_every_route_that_takes_a_body_is_here():
    assert {one.path for one in ENDPOINTS if one.method == "POST"} == set(BODIES)


@pytest.mark.parametrize("path", BODIES)
def test_wrong_kinds_of_values_are_answered_or_refused(client, server, path):
    lines = []
    server.log, before = lines.append, server.log
    for place in places(BODIES[path]):
        for value in VALUES:
            body = copy.deepcopy(BODIES[path])
            inner = body
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            response = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
            assert response.status_code < 500, (place, value, response.text, lines[-2:])
            assert response.content
    server.log = before


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"max_tokens": 0}, "max_tokens"),
        ("/v1/responses", {"max_output_tokens": 0}, "max_output_tokens"),
        ("/v1/responses", {"input": "word " * 600}, "input"),
        ("/v1/responses", {"truncation": "auto"}, "truncation"),
        ("/v1/responses", {"top_logprobs": 2}, "top_logprobs"),
        ("/infill", {"input_suffix": "b"}, "input_suffix"),
    ],
)
def test_the_field_that_is_wrong_is_named(client, path, fields, param):
    needed = {"/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}
    response = client.post(path, json={**needed.get(path, {}), **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
