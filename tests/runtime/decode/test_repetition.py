"""When an answer is taken to go round in circles."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from edge_rt.runtime.decode.draft import Draft
from edge_rt.runtime.decode.repetition import (
    LEAST_COPIES,
    LEAST_COUNTING_COPIES,
    LEAST_COUNTING_TOKENS,
    LEAST_SHORT_COPIES,
    LEAST_SHORT_TOKENS,
    LEAST_TOKENS,
    LONGEST_COUNTING_CYCLE,
    LONGEST_CYCLE,
    SLIP,
    RepetitionGuard,
)
from tests.helpers.examples import share_of
from tests.helpers.fake_model import VOCABULARY, FakeTarget, Run, ScriptedDrafter, fake_cache

DIGITS = 100_000
"""Tokens from here on are three digits each; those from twice as many on have a space in front."""


def text_of(token):
    if token < DIGITS:
        return b"word"
    return b"%s%03d" % (b" " if token >= 2 * DIGITS else b"", token % 1000)


def most(cycle):
    """Return the count of a cycle that ends an answer."""
    return min(LEAST_TOKENS + LEAST_COPIES * cycle, LEAST_SHORT_TOKENS + LEAST_SHORT_COPIES * cycle)


def end_of(token_ids):
    """Return how many tokens the guard lets pass, the one it ends at included; None if it lets all of them pass."""
    guard = RepetitionGuard(text_of)
    return next((count for count, token in enumerate(token_ids, 1) if guard.push(token)), None)


def expected_end(token_ids):
    """Do what the guard says it does, cycle by cycle."""
    counts = dict.fromkeys(range(1, LONGEST_CYCLE + 1), 0)
    for index, token in enumerate(token_ids):
        for cycle in counts:
            is_equal = index >= cycle and token_ids[index - cycle] == token
            counts[cycle] = counts[cycle] + 1 if is_equal else max(0, counts[cycle] - SLIP)
        if any(count >= most(cycle) for cycle, count in counts.items()):
            return index + 1
    return None


def noise(count, seed=0):
    return random.Random(seed).sample(range(1000, 50_000), count)


@pytest.mark.parametrize("cycle", [1, 2, 7, 40, 120, LONGEST_CYCLE])
def test_a_cycle_ends_when_it_has_lasted_as_long_as_is_said(cycle):
    answer = noise(30, 1) + noise(cycle) * (2 + LEAST_COPIES + LEAST_TOKENS // cycle)
    assert end_of(answer) == 30 + cycle + most(cycle)


@pytest.mark.parametrize(("cycle", "copies"), [(1, 216), (2, 116), (10, 36)])
def test_copies_of_short_cycles_end_sooner(cycle, copies):
    assert end_of(noise(cycle) * (copies + 1)) == cycle * (copies + 1)
    assert end_of(noise(cycle) * copies) is None


def test_a_longer_cycle_is_not_seen():
    assert end_of(noise(LONGEST_CYCLE + 1) * 12) is None


def rows(number_of_rows, *row):
    """Return rows with a running number of two tokens behind each."""
    return [token for number in range(number_of_rows) for token in (*row, 2 * DIGITS + number % 7, DIGITS + number)]


def test_a_running_number_does_not_save_long_copies():
    assert end_of(rows(40, *noise(300))) is not None


@pytest.mark.parametrize("cycle", [1, 2, 7, 8, 9, 30, LONGEST_COUNTING_CYCLE])
def test_counting_ends_when_it_has_lasted_as_long_as_is_said(cycle):
    needed = max(LEAST_COUNTING_TOKENS, LEAST_COUNTING_COPIES * cycle)
    answer = noise(30, 1) + rows(needed // cycle + 3, *noise(cycle - 1))
    # The number that ends a cycle counts as one token; its second half is not looked at.
    copies, rest = divmod(cycle + needed, cycle)
    assert end_of(answer) == 30 + copies * (cycle + 1) + rest - (rest == 0)


def test_a_longer_cycle_with_a_running_number_is_not_seen():
    assert end_of(rows(400, *noise(LONGEST_COUNTING_CYCLE))) is None


def test_a_number_behind_a_space_is_another_one():
    spaced = [2 * DIGITS + number % 1000 for number in range(2 * LEAST_COUNTING_TOKENS)]
    assert end_of(spaced) == LEAST_COUNTING_TOKENS + 1
    assert end_of([token - DIGITS for token in spaced]) is None


def test_a_slip_costs_as_much_as_is_said():
    answer = noise(10) * 60
    answer[200] = 7
    # The slip differs from what was a cycle before it, and the token a cycle behind it from the slip.
    assert end_of(answer) == 10 + most(10) + 2 * (SLIP + 1)


def test_noise_is_no_circle():
    assert end_of(noise(20_000)) is None


@settings(max_examples=share_of(25))
@given(strategies.integers(1, 12), strategies.integers(0, 40), strategies.integers(0, 1 << 16))
def test_it_does_what_it_says(cycle, slips, seed):
    draw = random.Random(seed)
    answer = [draw.randrange(4) for _ in range(cycle)] * (520 // cycle)
    for _ in range(slips):
        answer[draw.randrange(len(answer))] = draw.randrange(4)
    assert end_of(answer) == expected_end(answer)


class CirclingTarget(FakeTarget):
    """Says a few tokens, and then the same ones again and again."""

    CYCLE = (5, 6, 7, 5, 8)

    @classmethod
    def logits(cls, history):
        logits = np.zeros(VOCABULARY, np.float32)
        logits[cls.CYCLE[len(history) % len(cls.CYCLE)] if len(history) > 20 else len(history)] = 1
        return logits


def circle(drafter=None, **options):
    options = {"repetition_guard": False} | options
    run = Run([1, 2, 3], target=CirclingTarget(), cache=fake_cache(2048), drafter=drafter, **options)
    result = run.result()
    assert run.cache.length == len(run.sequence.token_ids) - 1
    return result


def test_an_answer_that_circles_ends_with_the_reason_repetition():
    result = circle(repetition_guard=True)
    assert result.finish_reason == "repetition"
    assert result.usage.completion_tokens == end_of(circle().token_ids) == len(result.text)


def test_without_being_asked_for_it_lets_circles_go_on():
    assert circle().finish_reason == "context_full"


def test_an_end_token_in_a_circle_is_a_stop():
    result = circle(repetition_guard=True, end_ids=(8,))
    assert result.finish_reason == "stop"


def test_a_limit_that_comes_sooner_keeps_its_reason():
    assert circle(repetition_guard=True, max_tokens=40).finish_reason == "length"


def test_at_the_last_token_that_is_allowed_it_is_a_repetition():
    most = circle(repetition_guard=True).usage.completion_tokens
    assert circle(repetition_guard=True, max_tokens=most).finish_reason == "repetition"


@settings(max_examples=share_of(25))
@given(strategies.lists(strategies.integers(0, 30), min_size=1, max_size=12))
def test_the_end_does_not_depend_on_the_steps(sizes):
    plain = circle(repetition_guard=True)
    truth = circle(max_tokens=600).token_ids
    turn = iter(range(10_000))

    def script(answer, limit):
        size = min(sizes[next(turn) % len(sizes)], limit)
        return Draft.chain(truth[len(answer) : len(answer) + size])

    drafted = circle(ScriptedDrafter(script), repetition_guard=True)
    assert (drafted.token_ids, drafted.text, drafted.finish_reason) == (
        plain.token_ids,
        plain.text,
        plain.finish_reason,
    )
