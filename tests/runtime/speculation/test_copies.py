from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from edge_rt.errors import ConfigError
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.text_sources import NativeReferenceSource

ASTRAY = 4
TEXT = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]


def guessed(source, count=20):
    cursor, chain = source.root(), []
    while cursor is not None and len(chain) < count and (guesses := source.children(cursor)):
        chain.append(guesses[0].token_id)
        cursor = guesses[0].cursor
    return chain


def begun(text=TEXT, answer=()):
    source = NativeReferenceSource(draft_library(), text)
    source.begin([1, 2, 3])
    source.extend(answer)
    return source


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_it_is_right_while_the_answer_repeats_the_text(text, data):
    source = NativeReferenceSource(draft_library(), text)
    source.begin([9])
    count = data.draw(st.integers(0, len(text)))
    source.extend(text[:count])
    assert guessed(source, 40) == text[count:]
    assert (source.root() is None) == (count == len(text))


@pytest.mark.parametrize(
    ("answer", "rest"),
    [
        ([10, 11, 99, 13, 14], TEXT[5:]),  # replaced
        ([10, 11, 99, 12, 13], TEXT[4:]),  # inserted
        ([10, 11, 15, 16], TEXT[7:]),  # left out
        ([50, 51, 52, 53, 54, 55, 10, 11], TEXT[2:]),  # a preface
    ],
)
def test_it_goes_on_where_two_tokens_occur_again(answer, rest):
    assert guessed(begun(answer=answer)) == rest


@pytest.mark.parametrize(("edit", "after"), [(0, 12), (1, 13), (2, 14)])
def test_behind_a_mismatch_it_guesses_small_edits(edit, after):
    source = begun(answer=[10, 11, 99])
    guess = source.children(source.root())[edit]
    assert guess.token_id == after
    assert source.children(guess.cursor)[0].token_id == after + 1


def test_far_from_the_text_it_guesses_nothing():
    source = begun(answer=[10, *[99] * ASTRAY])
    assert source.root() is not None
    source.extend([99])
    assert source.root() is None


def test_the_longest_agreement_wins_then_the_nearest_behind():
    text = [5, 1, 2, 30, 6, 1, 2, 31, 7, 1, 2, 32, 8, 1, 2, 33]
    assert guessed(begun(text, [6, 1, 2]), 1) == [31]
    assert guessed(begun(text, [5, 99, 1, 2]), 1) == [30]
    assert guessed(begun(text, [5, 1, 2, 30, 6, 77, 1, 2]), 1) == [31]


def test_before_the_pointer_it_goes_on_only_if_nothing_lies_behind():
    text = [1, 2, 30, 40, 50, 60]
    assert guessed(begun(text, [1, 2, 30, 40, 1, 2]), 1) == [30]


def test_a_new_generation_starts_at_the_beginning_and_the_same_tokens_do_not():
    source = begun(answer=[10, 11])
    source.begin([1, 2, 3, 10, 11])
    assert guessed(source) == TEXT[2:]
    source.begin([1, 2, 3, 10, 11, 4])
    assert guessed(source) == TEXT


def test_the_longer_it_copies_the_more_it_is_trusted():
    source = begun(list(range(40)))
    priors = []
    for token in range(20):
        priors.append(source.prior(source.children(source.root())[0].kind))
        source.extend([token])
    assert priors[-1] > priors[4] > priors[2]
    assert priors[-1] == max(priors)


def test_an_empty_text_is_refused():
    with pytest.raises(ConfigError, match="empty"):
        NativeReferenceSource(draft_library(), [])
