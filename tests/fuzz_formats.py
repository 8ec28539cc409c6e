"""Drawn JSON schemas against the real model: valid answers, the same plain and speculative, legal where cut.

::

    python -m tests.fuzz_formats --count 100 --seed 1

Answers are validated by ``jsonschema`` (draft 2020-12) and parsed by ``json``. It prints what was refused and what was
warned of, by keyword, and exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import time
from typing import Any

import jsonschema

import edge_rt
from edge_rt.text.answer_format import answer_format
from tests.helpers.json_schemas import KEYWORDS

WORDS = ("name", "age", "city", "tags", "x", "first_name", "isOpen", "zip-code", "Größe", "a b", 'n"q', "price", "id")
TEXTS = ("red", "green", "dark blue", "", "ä", "<|im_end|>", '"quoted"', "line\nend", "1")


def draw(random_: random.Random, depth: int = 0) -> Any:
    """Return a random schema of keywords that are enforced, and some that are not."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    kinds += ["object"] * 4 + ["array"] * 2 + ["anyOf", "oneOf", "allOf"] if depth < 3 else []
    kind = random_.choice(kinds) if depth else random_.choice(("object", "object", "array", "anyOf", "oneOf", "enum"))
    return globals()[f"_{kind}"](random_, depth)


def _string(random_: random.Random, depth: int) -> Any:
    schema: dict[str, Any] = {"type": "string"}
    choice = random_.random()
    if choice < 0.3:
        least = random_.randint(0, 3)
        schema |= {"minLength": least, "maxLength": least + random_.randint(0, 12)}
    elif choice < 0.5:
        schema["pattern"] = random_.choice(("^[A-Z][a-z]{2,8}$", "^\\d{3}-\\d{4}$", "ab", "^(yes|no)$", '^[^"]{1,5}$'))
    elif choice < 0.7:
        formats = (
            "date",
            "date-time",
            "time",
            "email",
            "uuid",
            "ipv4",
            "ipv6",
            "hostname",
            "duration",
            "uri",
            "colour",
        )
        schema["format"] = random_.choice(formats)
    else:
        schema["maxLength"] = random_.randint(1, 30)
    return schema


def _integer(random_: random.Random, depth: int) -> Any:
    schema: dict[str, Any] = {"type": "integer"}
    if random_.random() < 0.7:
        low = random_.randint(-200, 200)
        schema |= {"minimum": low, random_.choice(("maximum", "exclusiveMaximum")): low + random_.randint(5, 10000)}
    if random_.random() < 0.2:
        schema["multipleOf"] = random_.choice((2, 3, 5))
    return schema


def _number(random_: random.Random, depth: int) -> Any:
    low = random_.choice((-10, 0, 0.5, 1.25, 99))
    schema: dict[str, Any] = {"type": "number"}
    if random_.random() < 0.6:
        schema |= {
            random_.choice(("minimum", "exclusiveMinimum")): low,
            "maximum": low + random_.choice((1, 2.5, 1000)),
        }
    return schema


def _boolean(random_: random.Random, depth: int) -> Any:
    return {"type": random_.choice(("boolean", ["boolean", "null"], ["integer", "boolean"]))}


def _null(random_: random.Random, depth: int) -> Any:
    return {"type": "null"}


def _enum(random_: random.Random, depth: int) -> Any:
    return {"enum": random_.sample([*TEXTS, 1, 2.5, None, True, [1, "a"], {"k": []}], random_.randint(1, 5))}


def _const(random_: random.Random, depth: int) -> Any:
    return {"const": random_.choice((*TEXTS, 0, -1.5, {"a": [True, None]}, []))}


def _object(random_: random.Random, depth: int) -> Any:
    names = random_.sample(WORDS, random_.randint(0, 5))
    properties = {name: draw(random_, depth + 1) for name in names}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = [name for name in names if random_.random() < 0.6]
    choice = random_.random()
    if choice < 0.6:
        schema["additionalProperties"] = False
    elif choice < 0.75:
        schema["additionalProperties"] = draw(random_, depth + 2)
        schema["maxProperties"] = len(names) + 2
    elif choice < 0.9:
        schema |= {"patternProperties": {"^x_[a-z]{1,4}$": draw(random_, depth + 2)}, "additionalProperties": False}
    if random_.random() < 0.2:
        schema["minProperties"] = random_.randint(0, 2)
    if random_.random() < 0.2:
        schema |= {"title": "T", "description": "d", "$comment": "c", "default": {}}
    return schema


def _array(random_: random.Random, depth: int) -> Any:
    schema: dict[str, Any] = {"type": "array", "items": draw(random_, depth + 1)}
    least = random_.randint(0, 2)
    schema |= {"minItems": least, "maxItems": least + random_.randint(0, 3)}
    if random_.random() < 0.3:
        schema["prefixItems"] = [draw(random_, depth + 2) for _ in range(random_.randint(1, 2))]
        schema["items"] = random_.choice((False, schema["items"]))
        schema["minItems"], schema["maxItems"] = 0, len(schema["prefixItems"]) + 1
    return schema


def _anyOf(random_: random.Random, depth: int) -> Any:  # noqa: N802
    return {"anyOf": [draw(random_, depth + 1) for _ in range(random_.randint(2, 3))]}


def _oneOf(random_: random.Random, depth: int) -> Any:  # noqa: N802
    branches = [_object(random_, depth + 1) for _ in range(2)]
    for value, branch in zip(("one", "two"), branches, strict=True):
        branch["properties"] = {"kind": {"const": value}, **branch["properties"]}
        branch["required"] = ["kind", *branch["required"]]
    return {"oneOf": branches}


def _allOf(random_: random.Random, depth: int) -> Any:  # noqa: N802
    return {"allOf": [_object(random_, depth + 1), {"required": ["more"], "properties": {"more": {"type": "integer"}}}]}


def faults_of(model: edge_rt.Model, schema: Any, seed: int, report: collections.Counter[str]) -> list[str]:
    """Return what is wrong with the answers to a schema."""
    try:
        wanted = answer_format(schema)
        assert wanted is not None
        model.check("x", response_format=schema)
    except edge_rt.InvalidGrammar as error:
        report["refused: " + (error.what if "keyword" in error.what else error.numbers)[:90]] += 1
        return []
    report["compiled"] += 1
    for warning in wanted.warnings:
        report["warned: " + warning.split(" at ")[0]] += 1
    faults = []
    prompt = [{"role": "user", "content": f"Write an example as JSON: {json.dumps(schema)[:400]}"}]
    for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": seed}, {"temperature": 1.3, "seed": seed + 1}):
        budget = 12 if options.get("seed") == seed + 1 else 160
        plain = model.generate(prompt, response_format=schema, max_tokens=budget, spec="off", **options)
        drafted = model.generate(prompt, response_format=schema, max_tokens=budget, spec="auto", **options)
        where = f"{options} {plain.text!r:.300}"
        if (plain.token_ids, plain.finish_reason) != (drafted.token_ids, drafted.finish_reason):
            faults.append(f"drafts change the answer: {where} {drafted.text!r:.300}")
        report[f"ended: {plain.finish_reason}"] += 1
        report["tokens"] += plain.usage.completion_tokens
        report["forced"] += plain.usage.forced_tokens
        if plain.finish_reason == "stop":
            try:
                value = json.loads(plain.text)
                assert value == plain.parsed
                jsonschema.Draft202012Validator(schema).validate(value)
            except (ValueError, AssertionError, jsonschema.ValidationError) as error:
                faults.append(f"invalid: {where}: {str(error)[:200]}")
        elif not _is_prefix(model, schema, plain.token_ids):
            faults.append(f"no legal prefix: {where}")
    return faults


def _is_prefix(model: edge_rt.Model, schema: Any, token_ids: tuple[int, ...]) -> bool:
    assert model.texts is not None
    wanted = answer_format(schema)
    assert wanted is not None
    matcher = model.texts.grammars.table.matcher(wanted)
    return matcher._matcher.try_consume_tokens(list(token_ids)) == len(token_ids)


def main() -> int:
    """Draw schemas, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    given = parser.parse_args()
    report: collections.Counter[str] = collections.Counter()
    random_ = random.Random(given.seed)
    schemas = [*KEYWORDS.values(), *(draw(random_) for _ in range(given.count))]
    wrong = 0
    started = time.monotonic()
    with edge_rt.load(given.model, memory="900MiB") as model:
        for number, schema in enumerate(schemas):
            for fault in faults_of(model, schema, given.seed + number, report):
                wrong += 1
                print(f"{fault}\n    {json.dumps(schema)[:600]}")
    for what, count in sorted(report.items()):
        print(f"{count:7d}  {what}")
    print(f"{wrong} faults, {len(schemas)} schemas, {time.monotonic() - started:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
