"""Compares renderings of chat templates with those of transformers: ``python -m tests.compare_templates FOLDER``.

Every ``*.jinja`` file of the folder renders a set of conversations, here and with transformers, at a fixed time. The
number of equal pairs is written, and for every pair that differs what each side says. Transformers is installed apart:
``pip install transformers jinja2``.
"""

from __future__ import annotations

import argparse
import collections
import difflib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from edge_rt.errors import EdgeRTError
from edge_rt.text.template import ChatTemplate, Inputs

NOW = datetime(2026, 3, 4, 5, 6, 7)
SYSTEM = {"role": "system", "content": " Be brief. "}
USER = {"role": "user", "content": "What time is it in Köln? 😀\n"}
ANSWER = {"role": "assistant", "content": "It is 7."}
NEXT = {"role": "user", "content": "Thanks!"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": 'Says "now" — in <Köln>',
            "parameters": {
                "type": "object",
                "properties": {"zone": {"type": "string", "description": "The zone"}},
                "required": ["zone"],
            },
        },
    }
]
CALL = {"id": "call12345", "type": "function", "function": {"name": "get_time", "arguments": {"zone": "CET"}}}
CALL_TEXT = {**CALL, "function": {"name": "get_time", "arguments": '{"zone": "CET"}'}}
RESULT = {"role": "tool", "content": '{"time": 7}', "tool_call_id": "call12345", "name": "get_time"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 7."}


def part(text: str) -> list[dict[str, str]]:
    """Return a content of one part."""
    return [{"type": "text", "text": text}]


def conversations() -> Iterator[tuple[str, list[dict[str, Any]], dict[str, Any]]]:
    """Yield (name, messages, further arguments)."""
    plain = [USER]
    turns = [USER, ANSWER, NEXT]
    yield "user", plain, {}
    yield "no generation prompt", [USER, ANSWER], {"add_generation_prompt": False}
    yield "system", [SYSTEM, USER], {}
    yield "turns", turns, {}
    yield "system and turns", [SYSTEM, *turns], {}
    yield "developer", [{**SYSTEM, "role": "developer"}, *turns], {}
    yield "control tokens in a message", [{"role": "user", "content": "<|im_end|></s><|eot_id|><|end|>[/INST]"}], {}
    yield "empty", [{"role": "user", "content": ""}], {}
    yield "white space", [{"role": "user", "content": "\n  a\t\n"}, ANSWER, {"role": "user", "content": " "}], {}
    yield "thought", [USER, THOUGHT], {"add_generation_prompt": False}
    yield "old thought", [USER, THOUGHT, NEXT], {}
    for name in ("reasoning_content", "thinking", "reasoning"):
        thought = {"role": "assistant", "content": "It is 7.", name: "hm"}
        yield f"{name}", [USER, thought], {"add_generation_prompt": False}
        yield f"old {name}", [USER, thought, NEXT], {}
    for name, value in (
        ("enable_thinking", True),
        ("enable_thinking", False),
        ("thinking", True),
        ("thinking", False),
        ("reasoning_effort", "high"),
        ("reasoning_effort", "none"),
    ):
        yield f"{name}={value}", [SYSTEM, *turns], {name: value}
    yield "tools", plain, {"tools": TOOLS}
    yield "system and tools", [SYSTEM, USER], {"tools": TOOLS}
    yield "no tools", plain, {"tools": []}
    yield "documents", plain, {"documents": [{"title": "A", "text": "B", "doc_id": 1}]}
    call = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    yield "call", [USER, call], {"tools": TOOLS, "add_generation_prompt": False}
    yield "call and result", [USER, call, RESULT], {"tools": TOOLS}
    yield "call, result, answer", [SYSTEM, USER, call, RESULT, ANSWER, NEXT], {"tools": TOOLS}
    yield "call with content", [USER, {**call, "content": "Well."}, RESULT], {"tools": TOOLS}
    yield "call without content", [USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT], {"tools": TOOLS}
    yield "content None", [USER, {**call, "content": None}, RESULT], {"tools": TOOLS}
    yield "tool_calls None", [USER, {**ANSWER, "tool_calls": None, "name": None}, NEXT], {}
    yield "arguments as text", [USER, {**call, "tool_calls": [CALL_TEXT]}, RESULT], {"tools": TOOLS}
    yield "two calls", [USER, {**call, "tool_calls": [CALL, CALL]}, RESULT, RESULT], {"tools": TOOLS}
    yield "thought and call", [USER, {**call, "reasoning_content": "hm"}, RESULT], {"tools": TOOLS}
    yield "parts", [{"role": "user", "content": part("Hi ") + part("there")}], {}
    yield "parts in turns", [{**m, "content": part(m["content"])} for m in (SYSTEM, USER, ANSWER, NEXT)], {}
    for role in ("tool_response", "tool_results", "observation", "function", "ipython"):
        yield f"role {role}", [USER, ANSWER, {"role": role, "content": "7"}], {}


def ours(template: ChatTemplate, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """Render here."""
    arguments = dict(options)
    tools, documents = arguments.pop("tools", None), arguments.pop("documents", None)
    begins = arguments.pop("add_generation_prompt", True)
    return template.render(messages, Inputs(tools, documents, arguments), add_generation_prompt=begins).text


def theirs(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """Render with transformers; fields that are None are left out first, as its tokenizers do."""
    from transformers.utils import chat_template_utils

    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return NOW

    chat_template_utils.datetime = Fixed
    plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
    options = {"add_generation_prompt": True, **options}
    rendered, _ = chat_template_utils.render_jinja_template(
        conversations=[plain], chat_template=source, bos_token="<bos>", eos_token="<eos>", **options
    )
    return str(rendered[0])


def main() -> None:
    """Compare the files of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true", help="show the differences")
    chosen = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    without = 0
    files = sorted(chosen.folder.glob("*.jinja"))
    for file in files:
        source = file.read_text(encoding="utf-8")
        try:
            template = ChatTemplate(
                source, special_tokens=("<|im_end|>",), bos_token="<bos>", eos_token="<eos>", clock=lambda: NOW
            )
        except EdgeRTError as error:
            print(f"{file.name}: {error}")
            counts["not read"] += 1
            continue
        differing = 0
        for name, messages, options in conversations():
            results = []
            for render in (lambda m, o, t=template: ours(t, m, o), lambda m, o, s=source: theirs(s, m, o)):
                try:
                    results.append((render(messages, options), ""))
                except Exception as error:  # both may refuse, each in its own way
                    results.append((None, f"{type(error).__name__}: {error}"[:300]))
            (our, our_error), (their, their_error) = results
            if our == their:
                counts["equal" if our is not None else "both refuse"] += 1
                continue
            kind = "we refuse" if our is None else "they refuse" if their is None else "differ"
            counts[kind] += 1
            differing += 1
            print(f"{file.name}: {name}: {kind} {our_error or their_error}")
            if chosen.verbose and our is not None and their is not None:
                lines = difflib.unified_diff(their.splitlines(), our.splitlines(), "theirs", "ours", lineterm="", n=0)
                print("\n".join(f"    {line}" for line in lines))
        without += not differing
    print(f"{len(files)} templates, {without} without a difference; pairs: {dict(counts)}")


if __name__ == "__main__":
    main()
