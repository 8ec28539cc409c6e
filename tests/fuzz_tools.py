"""Drawn tools against the real model, in every syntax of calls: forced, and begun in free text.

::

    python -m tests.fuzz_tools --count 100 --seed 1

The templates of the families are put onto the small model. Every answer is made plain and with drafts, half of them
greedy and half with a seed. Arguments are validated by ``jsonschema`` (draft 2020-12) against the parameters of their
tools. It prints a line for each syntax and exits with 1 if anything is wrong.

``forced``: ``tool_choice`` is ``"required"``, a name, or a name as OpenAI's clients write it. ``begun``: the choice is
``"auto"``, and a processor of logits writes what begins a call, behind some words of free text. ``free``: the model
begins a call or not; earlier turns show it how.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import jsonschema

import edge_rt
from edge_rt.text.call_syntaxes import PYTHON_TAG, find_syntax
from edge_rt.text.template import ChatTemplate
from edge_rt.text.tool_calls import split_tool_calls
from tests.helpers.tool_templates import TOOL_TEMPLATES

MODES = ("forced", "begun", "free")
WORDS = (
    "city",
    "unit",
    "days",
    "to",
    "text",
    "urgent",
    "query",
    "limit",
    "lat",
    "lon",
    "file_path",
    "isOpen",
    "Ort",
    "x1",
)
NAMES = ("get_weather", "send", "search-web", "now", "book.table", "add")
QUESTIONS = (
    "What is the weather in Paris?",
    "Tell Anna that I am late.",
    "Find me a recipe for soup.",
    "How much is 12 + 30?",
    "Book a table for four tonight.",
    "Was ist die Hauptstadt von Österreich?",
)
TEXTS = ("red", "dark blue", "", "ä", "<tool_call>", "</tool_call>", '"quoted"', "a/b", "line\nend", "<|im_end|>")


def draw_tool(random_: random.Random, name: str) -> dict[str, Any]:
    """Return a random tool."""
    if random_.random() < 0.05:
        return {"type": "function", "function": {"name": name, "description": "d"}}
    function = {"name": name, "description": "Does something.", "parameters": _object(random_, 0)}
    return {"type": "function", "function": function} if random_.random() < 0.8 else function


def _object(random_: random.Random, depth: int) -> dict[str, Any]:
    names = random_.sample(WORDS, random_.randint(0 if depth else 1, 4 - depth))
    schema: dict[str, Any] = {"type": "object", "properties": {name: _value(random_, depth) for name in names}}
    schema["required"] = [name for name in names if random_.random() < 0.7]
    if random_.random() < 0.3:
        schema["additionalProperties"] = False
    return schema


def _value(random_: random.Random, depth: int) -> Any:
    kinds = ("text", "text", "text", "enum", "integer", "number", "boolean", "list", "object", "any of", "null")
    kind = random_.choice(kinds[: 7 if depth > 1 else None])
    schema: dict[str, Any]
    if kind == "text":
        schema = {"type": "string", "maxLength": random_.randint(1, 20)}
        if random_.random() < 0.2:
            schema = {
                "type": "string",
                "pattern": random_.choice(("^[A-Z][a-z]{1,8}$", "^\\d{3}-\\d{4}$", "^(yes|no)$")),
            }
    elif kind == "enum":
        schema = {"type": "string", "enum": random_.sample(TEXTS, random_.randint(1, 4))}
        if random_.random() < 0.3:
            schema = {"enum": random_.sample([*TEXTS, 1, 2.5, None, True], 3)}
    elif kind == "integer":
        schema = {"type": "integer", "minimum": random_.randint(-5, 5), "maximum": random_.randint(6, 5000)}
    elif kind == "number":
        schema = {"type": "number", "minimum": 0, "maximum": random_.choice((1, 2.5, 1000))}
    elif kind == "list":
        schema = {"type": "array", "items": _value(random_, depth + 1), "maxItems": random_.randint(1, 3)}
        if random_.random() < 0.5:
            schema["minItems"] = 1
    elif kind == "object":
        schema = _object(random_, depth + 1)
    elif kind == "any of":
        schema = {"anyOf": [{"type": "null"}, _value(random_, depth + 1)]}
    else:
        schema = {"type": random_.choice(("boolean", ["boolean", "null"]))}
    return {**schema, "description": "A value."} if random_.random() < 0.3 else schema


def parameters_of(tool: dict[str, Any]) -> Any:
    """Return the schema of a tool's arguments."""
    return tool.get("function", tool).get("parameters", {"type": "object", "maxProperties": 0})


class Writing:
    """Writes given tokens into an answer: a processor of logits that depends on the tokens before a row alone."""

    def __init__(self, prompt: int, first: int, tokens: Sequence[int], ends: Sequence[int]) -> None:
        self._first, self._tokens, self._ends = prompt + first, tokens, list(ends)

    def __call__(self, token_ids: list[int], logits: Any) -> None:
        """Let nothing but the token that is to be written through."""
        number = len(token_ids) - self._first
        if number < 0:
            logits[self._ends] = -1e4
        if 0 <= number < len(self._tokens) and token_ids[self._first :] == list(self._tokens[:number]):
            logits[self._tokens[number]] = logits.max() + 100


class Case:
    """One set of tools and a question, for one syntax."""

    def __init__(self, model: edge_rt.Model, template: str, random_: random.Random) -> None:
        self.model, self.syntax = model, find_syntax(template)
        assert self.syntax is not None
        self.tools = [draw_tool(random_, name) for name in random_.sample(NAMES, random_.randint(1, 3))]
        self.names = [tool.get("function", tool)["name"] for tool in self.tools]
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": random_.choice(QUESTIONS)}]
        self._random = random_

    def options(self, mode: str) -> dict[str, Any]:
        """Return the options of a mode."""
        random_ = self._random
        parallel = random_.random() < 0.5
        if mode == "forced":
            name = random_.choice(self.names)
            named = {"type": "function", "function": {"name": name}}
            choice = random_.choice(("required", "required", name, named))
            self.once, self.only = not parallel or choice != "required", None if choice == "required" else name
            return {"tool_choice": choice, "parallel_tool_calls": parallel}
        self.once, self.only = not parallel, None
        if mode == "free":
            call = {"name": self.names[0], "arguments": {}}
            shown = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
            self.messages = [
                *self.messages,
                shown,
                {"role": "tool", "content": "ok"},
                *self.messages,
            ] * 2 + self.messages
            return {"parallel_tool_calls": parallel}
        mark = self.syntax.mark or f'{{"name": "{random_.choice(self.names)}"'
        if not self.syntax.mark and random_.random() < 0.3:
            mark = PYTHON_TAG + mark
        tokens = self.model.tokenizer.encode_spans([(mark, True)], continues=True)
        first = random_.randint(0, 5) if self.syntax.mark else 0
        prompt = self.model.count_tokens(self.messages, tools=self.tools)
        return {
            "parallel_tool_calls": parallel,
            "logits_processor": Writing(prompt, first, tokens, self.model.tokenizer.eos_token_ids),
        }

    def faults(self, result: edge_rt.Result, mode: str) -> list[str]:
        """Return what is wrong with an answer."""
        faults = []
        calls, whole = result.tool_calls, result.finish_reason == "stop"
        if whole and mode != "free" and not calls:
            faults.append("no call")
        if mode == "forced" and whole and split_tool_calls(result.text, set(self.names))[0]:
            faults.append("text beside the calls")
        if self.once and len(calls) > 1:
            faults.append("several calls")
        if self.only is not None and any(call.name != self.only for call in calls):
            faults.append("another tool")
        for call in calls:
            tool = self.tools[self.names.index(call.name)]
            try:
                jsonschema.Draft202012Validator(parameters_of(tool)).validate(call.arguments)
            except jsonschema.ValidationError as error:
                faults.append(f"invalid: {call}: {str(error)[:200]}")
        return faults


def main() -> int:
    """Draw tools, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--syntax", action="append", choices=tuple(TOOL_TEMPLATES))
    given = parser.parse_args()
    wrong = 0
    started = time.monotonic()
    with edge_rt.load(given.model, memory="900MiB", formats=True) as model:
        for name in given.syntax or TOOL_TEMPLATES:
            template = TOOL_TEMPLATES[name]
            assert model.texts is not None
            model.texts._template = ChatTemplate(template, special_tokens=model.tokenizer.special_tokens)
            for mode in given.mode or MODES:
                report: collections.Counter[str] = collections.Counter()
                for number in range(given.count):
                    case = Case(model, template, random.Random(f"{given.seed} {name} {mode} {number}"))
                    wrong += answer(case, mode, given.seed + number, report)
                print(
                    f"{name:12s} {mode:7s}",
                    ", ".join(f"{what} {count}" for what, count in sorted(report.items())),
                    flush=True,
                )
    print(f"{wrong} faults, {time.monotonic() - started:.0f} s")
    return int(wrong > 0)


def answer(case: Case, mode: str, seed: int, report: collections.Counter[str]) -> int:
    """Answer one case, greedy or sampled, and count; return the number of faults."""
    try:
        asked = case.options(mode)
    except edge_rt.InvalidGrammar as error:
        report[f"refused: {error.numbers}"] += 1
        return 0
    options: dict[str, Any] = {"temperature": 1.0, "seed": seed} if seed % 2 else {"temperature": 0.0}
    most = 60 if mode == "free" else 600
    given = {**asked, **options, "tools": case.tools, "max_tokens": most}
    try:
        plain = case.model.generate(case.messages, spec="off", **given)
        drafted = case.model.generate(case.messages, spec="auto", **given)
    except edge_rt.InvalidGrammar as error:
        report[f"refused: {error.what} {error.numbers}"[:110]] += 1
        return 0
    faults = case.faults(plain, mode)
    if (plain.token_ids, plain.finish_reason) != (drafted.token_ids, drafted.finish_reason):
        faults.append(f"drafts change the answer: {drafted.text!r:.300}")
    report["answers"] += 1
    report[f"ended {plain.finish_reason}"] += 1
    report["with calls"] += bool(plain.tool_calls)
    report["calls"] += len(plain.tool_calls)
    for warning in plain.warnings:
        report[f"warned: {warning[:60]}"] += 1
    if mode != "free" and not plain.tool_calls and not faults:
        print(f"{mode} {options} {plain.finish_reason}: cut before a call was whole: {plain.text[-200:]!r}")
    for fault in faults:
        print(f"{mode} {options} {plain.finish_reason} {plain.text!r:.400}\n    {fault}\n    {case.tools}"[:1500])
    return len(faults)


if __name__ == "__main__":
    sys.exit(main())
