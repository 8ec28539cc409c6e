"""Prompts of a file that the model answers, in place of user turns that it writes itself."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from edge_rt.ort.session import pool_size
from edge_rt.package.reader import open_package
from edge_rt.runtime.prompts import PromptEncoder
from edge_rt.system.machine import usable_cpus
from edge_rt.train.batch import BatchRunner
from edge_rt.train.dialogues.writer import DialogueWriter, Prompts, find_markers

TEXTS = ["Hello there", "a b c", "Why?"]


def test_every_prompt_comes_once_before_any_comes_again():
    prompts = Prompts(TEXTS, random.Random(1))
    rounds = [[prompts.first() for _ in TEXTS] for _ in range(3)]
    assert [sorted(one.text for one in openings) for openings in rounds] == [sorted(TEXTS)] * 3
    assert [{one.is_repeated for one in openings} for openings in rounds] == [{False}, {True}, {True}]
    assert prompts.next() is None


@pytest.fixture(scope="module")
def package(native_package):
    return open_package(native_package)


def test_answers_follow_the_prompts_and_repeated_ones_are_sampled(package):
    texts = PromptEncoder(package, 512)
    markers = find_markers(texts)
    threads = pool_size() or usable_cpus()
    with BatchRunner(package, sequences=2, capacity=120, kv_format="f16", threads=threads, most_rows=32) as runner:
        writer = DialogueWriter(runner, texts.tokenizer, markers, 5, TEXTS)
        answers = list(islice(writer.answers(), 8))
    begins = {
        (*markers.first_user, *texts.tokenizer.encode_text(text), *markers.answer): number
        for number, text in enumerate(TEXTS)
    }
    order = [begins[tuple(answer.token_ids[: answer.begin].tolist())] for answer in answers]
    assert set(order) == {0, 1, 2}
    seen = [order[:place].count(number) for place, number in enumerate(order)]
    assert all(answer.temperature > 0 for answer, before in zip(answers, seen, strict=True) if before)


def test_openings_that_do_not_fit_are_drawn_again(package):
    """Passages of 2,000 characters do not fit into a short context; dialogues are written all the same."""
    texts = PromptEncoder(package, 512)
    threads = pool_size() or usable_cpus()
    with BatchRunner(package, sequences=2, capacity=96, kv_format="f16", threads=threads, most_rows=32) as runner:
        writer = DialogueWriter(runner, texts.tokenizer, find_markers(texts), 1)
        assert all(len(answer.token_ids) <= 96 for answer in islice(writer.answers(), 30))
