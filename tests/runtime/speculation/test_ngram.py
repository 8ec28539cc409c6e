from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from edge_rt.errors import ConfigError
from edge_rt.runtime.speculation.ngram import LEVELS, NgramSource


def tokens_of(source):
    return [guess.token_id for guess in source.children(source.root())]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_it_guesses_what_followed_the_longest_known_context(text):
    source = NgramSource()
    source.begin(text)
    for level in sorted(LEVELS, reverse=True):
        size = level - 1
        if size > len(text):
            continue
        context = text[-size:]
        followed = [text[at + size] for at in range(len(text) - size) if text[at : at + size] == context]
        if followed:
            guesses = source.children(source.root())
            assert guesses[0].token_id == followed[-1]
            assert {guess.token_id for guess in guesses} <= set(followed)
            assert len(guesses) == min(3, len(set(followed)))
            if len(set(followed)) <= 3:
                counts = Counter(followed)
                assert [guess.kind % 2 for guess in guesses] == [counts[guess.token_id] > 1 for guess in guesses]
                rest = [counts[guess.token_id] for guess in guesses[1:]]
                assert rest == sorted(rest, reverse=True)
            return
    assert tokens_of(source) == []


def test_token_zero_counts_as_a_token():
    source = NgramSource()
    source.begin([0, 0, 5, 0, 0])
    assert tokens_of(source) == [5]
    assert NgramSource((3,)).root() is None


def test_prompt_lookup_keeps_the_latest_occurrence_alone():
    source = NgramSource((3,), latest_only=True)
    source.begin([1, 2, 3, 1, 2, 3, 1, 2, 4, 9, 1, 2])
    assert tokens_of(source) == [4]
    source.extend([7])
    assert tokens_of(source) == []


def test_a_text_that_departs_keeps_its_context():
    source = NgramSource()
    source.begin([1, 2, 3, 4, 5])
    source.begin([1, 2, 3])
    assert tokens_of(source) == [4]
    source.begin([1, 2, 3, 6, 3])
    assert tokens_of(source) == [6, 4]


def test_four_tokens_after_one_context_leave_the_least_frequent_behind():
    source = NgramSource((2,))
    source.begin([0, 1, 0, 2, 0, 2, 0, 3, 0, 4, 0])
    assert tokens_of(source) == [4, 2, 3]


@given(st.lists(st.integers(0, 200), max_size=300))
def test_its_size_is_bounded_and_it_stays_usable(text):
    source = NgramSource(max_entries=16)
    source.begin([])
    for token in text:
        source.extend([token])
        assert len(source._table) <= 16
    source.extend([201, 202, 201])
    assert tokens_of(source) == [202]


@pytest.mark.parametrize("arguments", [{"levels": ()}, {"levels": (1, 2)}, {"levels": (6,)}, {"max_entries": 15}])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ConfigError):
        NgramSource(**arguments)
