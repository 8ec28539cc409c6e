from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from edge_rt.errors import ConfigError
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.text_sources import NativeSuffixSource

OVERLAP = 16


def opened(**options):
    return NativeSuffixSource(draft_library(), **options)


def guessed(source, count):
    """Return the chain of best guesses."""
    cursor, chain = source.root(), []
    while cursor is not None and len(chain) < count and (guesses := source.children(cursor)):
        chain.append(guesses[0].token_id)
        cursor = guesses[0].cursor
    return chain


def test_it_copies_what_followed_the_longest_match():
    source = opened()
    source.begin([1, 2, 3, 9, 8, 2, 3, 7, 6, 5, 1, 2, 3])
    assert guessed(source, 4) == [9, 8, 2, 3]


def test_shorter_matches_add_what_the_longest_does_not_know():
    source = opened()
    source.begin([1, 2, 3, 9, 8, 2, 3, 7, 6, 5, 1, 2, 3])
    first, second = source.children(source.root())
    assert (first.token_id, second.token_id) == (9, 7)
    assert source.prior(first.kind) > source.prior(second.kind)


def test_longer_matches_are_trusted_more():
    source = opened()
    text = list(range(20))
    priors = []
    for length in (1, 2, 3, 5, 8, 12, 16):
        source.begin([*text, 99, *text[:length]])
        priors.append(source.prior(source.children(source.root())[0].kind))
    assert priors == sorted(priors)
    assert len(set(priors)) == 7


def test_another_text_serves_and_a_guess_never_leads_over_its_end():
    source = opened()
    source.begin([1, 2, 3])
    source.begin([7, 1, 2])
    assert guessed(source, 5) == [3]


@pytest.mark.parametrize("shared", [3, OVERLAP + 20])
def test_a_text_that_departs_goes_on_behind_what_is_shared(shared):
    source = opened()
    prompt = list(range(100, 100 + shared))
    source.begin(prompt)
    source.extend([1, 2, 3])
    before = source.num_tokens
    source.begin(prompt)
    assert guessed(source, 3) == [1, 2, 3]
    # The separator, the overlap, and nothing of what is older.
    assert source.num_tokens == before + 1 + min(shared, OVERLAP)


@given(st.lists(st.lists(st.integers(0, 9), max_size=200), max_size=8))
def test_its_size_is_bounded_and_it_stays_usable(texts):
    source = opened(max_tokens=64)
    for text in texts:
        source.begin([])
        for token in text:
            source.extend([token])
            assert source.num_tokens <= 64
        source.begin(text[: len(text) // 2])
        assert source.num_tokens <= 64
    source.begin([15, 16, 17, 18, 15, 16])
    assert guessed(source, 2) == [17, 18]


def test_the_later_half_survives_when_it_is_full():
    source = opened(max_tokens=64)
    source.begin([*range(100, 164)])
    source.extend([200])
    assert source.num_tokens == 32
    source.extend([133])
    assert guessed(source, 2) == [134, 135]
    source.extend([132])
    assert source.root() is None


def test_too_small_a_bound_is_refused():
    with pytest.raises(ConfigError, match="63 tokens"):
        opened(max_tokens=63)


def test_a_smaller_bound_drops_the_oldest_tokens():
    text = [*range(100, 300)]
    source = opened(max_tokens=256)
    source.begin(text)
    source.limit(80)
    assert source.num_tokens == 40
    # What is left is still known, what is gone is not.
    source.extend([299])
    assert source.root() is not None
    source.extend([101, 102])
    assert source.root() is None
    with pytest.raises(ConfigError):
        source.limit(63)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=90), min_size=1, max_size=12))
def test_the_bound_is_never_exceeded_and_the_newest_tokens_stay(pieces):
    source, emitted = opened(max_tokens=64), []
    for piece in pieces:
        source.extend(piece)
        emitted.extend(piece)
        assert min(len(emitted), 32) <= source.num_tokens <= 64
