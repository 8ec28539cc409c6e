"""Which answers are taken to loop."""

from __future__ import annotations

import json
from pathlib import Path

import first_answers
import pytest

OTHERS = " ".join(f"word{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(300))
"""Words, each of them another."""


@pytest.mark.parametrize(
    ("text", "is_circle"),
    [
        ("", False),
        ("A short answer. " * 3, False),
        (OTHERS, False),
        ("A rose is a rose is a rose. " * 30, True),
        ("".join(f"{n}. The same old song again\n" for n in range(40)), True),
        ("The sea is wide and the sea is deep. " * 30 + OTHERS, False),
    ],
)
def test_an_end_of_words_that_come_again_is_a_circle(text, is_circle):
    assert first_answers.repeats_itself(text) is is_circle


def test_a_full_context_is_a_loop():
    assert first_answers.loops({"finish_reason": "context_full", "text": "a"})
    assert not first_answers.loops({"finish_reason": "stop", "text": "a"})


@pytest.mark.parametrize(("name", "count"), [("first_prompts", 30), ("repetitive_prompts", 26)])
def test_prompts_can_be_read(name, count):
    lines = (Path(first_answers.__file__).parent / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    assert len(set(prompts)) == len(prompts) == count
