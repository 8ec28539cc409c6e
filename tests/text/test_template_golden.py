"""What templates in the style of well-known families write: golden strings, which transformers writes as well."""

from __future__ import annotations

from datetime import datetime

import pytest

from edge_rt.text.template import ChatTemplate, Inputs
from tests.helpers.template_oracle import control_texts
from tests.text.family_templates import FAMILIES

NOW = datetime(2026, 3, 4)
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What time is it?"}
ANSWER = {"role": "assistant", "content": "It is 7."}
THANKS = {"role": "user", "content": "Thanks!"}
THOUGHT = {"role": "assistant", "content": "It is 7.", "reasoning_content": "hm"}
TAGGED = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 7."}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "clock", "arguments": {"z": 1}}}]}
RESULT = {"role": "tool", "content": "7"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}


def template_of(name):
    source = FAMILIES[name]
    return ChatTemplate(
        source, special_tokens=control_texts(source), bos_token="<s>", eos_token="</s>", clock=lambda: NOW
    )


def text_of(name, messages, **options):
    tools, documents = options.pop("tools", None), options.pop("documents", None)
    begins = options.pop("add_generation_prompt", True)
    return template_of(name).render(messages, Inputs(tools, documents, options), add_generation_prompt=begins).text


GOLDEN = [
    (
        "QWEN3",
        [SYSTEM, USER, ANSWER, THANKS],
        {},
        (
            "<|im_start|>system\n"
            "Be brief.<|im_end|>\n"
            "<|im_start|>user\n"
            "What time is it?<|im_end|>\n"
            "<|im_start|>assistant\n"
            "It is 7.<|im_end|>\n"
            "<|im_start|>user\n"
            "Thanks!<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    (
        "QWEN3",
        [USER],
        {"tools": [TOOL]},
        (
            "<|im_start|>system\n"
            "\n"
            "<tools>\n"
            '{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}\n'
            "</tools><|im_end|>\n"
            "<|im_start|>user\n"
            "What time is it?<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    (
        "QWEN3",
        [USER],
        {"enable_thinking": False},
        ("<|im_start|>user\nWhat time is it?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ),
    (
        "QWEN3",
        [USER, TAGGED, THANKS],
        {},
        (
            "<|im_start|>user\n"
            "What time is it?<|im_end|>\n"
            "<|im_start|>assistant\n"
            "It is 7.<|im_end|>\n"
            "<|im_start|>user\n"
            "Thanks!<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    (
        "QWEN3",
        [USER, TAGGED],
        {"add_generation_prompt": False},
        (
            "<|im_start|>user\n"
            "What time is it?<|im_end|>\n"
            "<|im_start|>assistant\n"
            "<think>\n"
            "hm\n"
            "</think>\n"
            "\n"
            "It is 7.<|im_end|>\n"
        ),
    ),
    (
        "QWEN3",
        [USER, {**CALL, **THOUGHT}, RESULT, RESULT],
        {},
        (
            "<|im_start|>user\n"
            "What time is it?<|im_end|>\n"
            "<|im_start|>assistant\n"
            "<think>\n"
            "hm\n"
            "</think>\n"
            "\n"
            "It is 7.\n"
            "<tool_call>\n"
            '{"name": "clock", "arguments": {"z": 1}}\n'
            "</tool_call><|im_end|>\n"
            "<|im_start|>user\n"
            "<tool_response>\n"
            "7\n"
            "</tool_response>\n"
            "<tool_response>\n"
            "7\n"
            "</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    (
        "LLAMA3",
        [SYSTEM, USER, ANSWER, THANKS],
        {},
        (
            "<s><|start_header_id|>system<|end_header_id|>\n"
            "\n"
            "Today Date: 04 Mar 2026\n"
            "\n"
            "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
            "\n"
            "What time is it?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
            "\n"
            "It is 7.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
            "\n"
            "Thanks!<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
            "\n"
        ),
    ),
    (
        "LLAMA3",
        [USER, CALL, RESULT],
        {"date_string": "today"},
        (
            "<s><|start_header_id|>system<|end_header_id|>\n"
            "\n"
            "Today Date: today\n"
            "\n"
            "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
            "\n"
            "What time is it?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
            "\n"
            '{"name": "clock", "parameters": {"z": 1}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n'
            "\n"
            "7<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
            "\n"
        ),
    ),
    (
        "GEMMA",
        [USER, ANSWER, THANKS],
        {},
        (
            "<s><start_of_turn>user\n"
            "What time is it?<end_of_turn>\n"
            "<start_of_turn>model\n"
            "It is 7.<end_of_turn>\n"
            "<start_of_turn>user\n"
            "Thanks!<end_of_turn>\n"
            "<start_of_turn>model\n"
        ),
    ),
    (
        "GEMMA",
        [PARTS],
        {},
        ("<s><start_of_turn>user\nab<end_of_turn>\n<start_of_turn>model\n"),
    ),
    (
        "GRANITE",
        [SYSTEM, PARTS],
        {},
        (
            "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
            "<|start_of_role|>user<|end_of_role|>a\n"
            "b<|end_of_text|>\n"
            "<|start_of_role|>assistant<|end_of_role|>"
        ),
    ),
    (
        "DEEPSEEK",
        [SYSTEM, USER, TAGGED, THANKS],
        {},
        ("<s>Be brief.<|User|>What time is it?<|Assistant|>\n\nIt is 7.</s><|User|>Thanks!<|Assistant|><think>\n"),
    ),
    (
        "DEEPSEEK",
        [USER, CALL, RESULT],
        {},
        (
            "<s><|User|>What time is it?<|Assistant|><|call|>clock\n"
            "```json\n"
            '{"z": 1}\n'
            "```<|/call|></s><|output|>7<|/output|><|Assistant|><think>\n"
        ),
    ),
    (
        "HARMONY",
        [SYSTEM, USER, ANSWER, THANKS],
        {"reasoning_effort": "high"},
        (
            "<|start|>system<|message|>Current date: 2026-03-04\n"
            "\n"
            "Reasoning: high<|end|>"
            "<|start|>developer<|message|># Instructions\n"
            "\n"
            "Be brief.<|end|>"
            "<|start|>user<|message|>What time is it?<|end|>"
            "<|start|>assistant<|channel|>final<|message|>It is 7.<|end|>"
            "<|start|>user<|message|>Thanks!<|end|>"
            "<|start|>assistant"
        ),
    ),
    (
        "HARMONY",
        [USER, THOUGHT],
        {"add_generation_prompt": False},
        (
            "<|start|>system<|message|>Current date: 2026-03-04\n"
            "\n"
            "Reasoning: medium<|end|>"
            "<|start|>user<|message|>What time is it?<|end|>"
            "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>"
            "<|start|>assistant<|channel|>final<|message|>It is 7.<|end|>"
        ),
    ),
    (
        "GLM",
        [USER, ANSWER, {"role": "observation", "content": "7"}],
        {"documents": [{"title": "A", "text": "B"}]},
        ("[gMASK]<sop><|user|>\nWhat time is it?<|assistant|>\nIt is 7.<|observation|>\n7<doc>A: B</doc><|assistant|>"),
    ),
]


@pytest.mark.parametrize(("name", "messages", "options", "expected"), GOLDEN)
def test_golden(name, messages, options, expected):
    assert text_of(name, messages, **options) == expected
