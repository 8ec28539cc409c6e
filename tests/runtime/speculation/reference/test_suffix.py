from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import ConfigError
from edge_rt.runtime.speculation.corpus import Corpus
from edge_rt.runtime.speculation.corpus_build import build_corpus
from edge_rt.runtime.speculation.reference.suffix import OVERLAP, SuffixSource


def guessed(source, count):
    """Return the chain of best guesses."""
    cursor, chain = source.root(), []
    while cursor is not None and len(chain) < count and (guesses := source.children(cursor)):
        chain.append(guesses[0].token_id)
        cursor = guesses[0].cursor
    return chain


def test_it_copies_what_followed_the_longest_match():
    source = SuffixSource()
    source.begin([1, 2, 3, 9, 8, 2, 3, 7, 6, 5, 1, 2, 3])
    assert guessed(source, 4) == [9, 8, 2, 3]


def test_shorter_matches_add_what_the_longest_does_not_know():
    source = SuffixSource()
    source.begin([1, 2, 3, 9, 8, 2, 3, 7, 6, 5, 1, 2, 3])
    first, second = source.children(source.root())
    assert (first.token_id, second.token_id) == (9, 7)
    assert source.prior(first.kind) > source.prior(second.kind)


def test_longer_matches_are_trusted_more():
    source = SuffixSource()
    text = list(range(20))
    priors = []
    for length in (1, 2, 3, 5, 8, 12, 16):
        source.begin([*text, 99, *text[:length]])
        priors.append(source.prior(source.children(source.root())[0].kind))
    assert priors == sorted(priors)
    assert len(set(priors)) == 7


def test_another_text_serves_and_a_guess_never_leads_over_its_end():
    source = SuffixSource()
    source.begin([1, 2, 3])
    source.begin([7, 1, 2])
    assert guessed(source, 5) == [3]


@pytest.mark.parametrize("shared", [3, OVERLAP + 20])
def test_a_text_that_departs_goes_on_behind_what_is_shared(shared):
    source = SuffixSource()
    prompt = list(range(100, 100 + shared))
    source.begin(prompt)
    source.extend([1, 2, 3])
    before = source.memory_bytes
    source.begin(prompt)
    assert guessed(source, 3) == [1, 2, 3]
    # The separator, the overlap, and nothing of what is older.
    assert source._automaton.text[-min(shared, OVERLAP) - 1] == -1
    assert source.memory_bytes < before + 250 * (OVERLAP + 1)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=200), max_size=8))
def test_its_size_is_bounded_and_it_stays_usable(texts):
    source = SuffixSource(max_tokens=64)
    for text in texts:
        source.begin([])
        for token in text:
            source.extend([token])
            assert len(source._automaton) <= 64
        source.begin(text[: len(text) // 2])
        assert len(source._automaton) <= 64
    source.begin([15, 16, 17, 18, 15, 16])
    assert guessed(source, 2) == [17, 18]


def test_the_later_half_survives_when_it_is_full():
    source = SuffixSource(max_tokens=64)
    source.begin([*range(100, 164)])
    source.extend([200])
    assert list(source._automaton.text) == [*range(133, 164), 200]


def test_too_small_a_bound_is_refused():
    with pytest.raises(ConfigError, match="63 tokens"):
        SuffixSource(max_tokens=63)


@pytest.fixture
def corpus(tmp_path):
    texts = [[10, 11, 12, 13, 14], [10, 11, 12, 15], [20, 21, 12, 13]]
    build_corpus(texts, tmp_path / "corpus", vocab_size=100, tokenizer_sha256="0" * 64)
    with Corpus.open(tmp_path / "corpus") as opened:
        yield opened


def test_a_corpus_serves_where_the_text_is_new(corpus):
    source = SuffixSource(corpus)
    source.begin([1, 10, 11])
    assert guessed(source, 3) == [12, 13, 14]
    alone = SuffixSource()
    alone.begin([1, 10, 11])
    assert alone.root() is None


def test_guesses_of_text_and_corpus_have_kinds_of_their_own(corpus):
    source = SuffixSource(corpus)
    source.begin([11, 12, 40, 11, 12])
    kinds = {guess.token_id: guess.kind for guess in source.children(source.root())}
    assert set(kinds) == {40, 13, 15}
    half = source.num_kinds // 2
    assert kinds[40] < half <= min(kinds[13], kinds[15])


def test_both_go_on_behind_a_guess_of_either(corpus):
    source = SuffixSource(corpus)
    source.begin([12, 13, 50, 11, 12, 13, 51, 10, 11, 12])
    behind = {guess.token_id: guess.cursor for guess in source.children(source.root())}
    assert {guess.token_id for guess in source.children(behind[13])} >= {51, 14}


def test_a_smaller_bound_drops_the_oldest_tokens():
    text = [*range(100, 300)]
    source = SuffixSource(max_tokens=256)
    source.begin(text)
    source.limit(80)
    assert len(source._automaton) == 40
    assert list(source._automaton.text) == text[-40:]
    # What is left is still known, what is gone is not.
    source.extend([299])
    assert source.root() is not None
    source.extend([101, 102])
    assert source.root() is None
    with pytest.raises(ConfigError):
        source.limit(63)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=90), min_size=1, max_size=12))
def test_the_bound_is_never_exceeded_and_the_newest_tokens_stay(pieces):
    source, emitted = SuffixSource(max_tokens=64), []
    for piece in pieces:
        source.extend(piece)
        emitted.extend(piece)
        held = list(source._automaton.text)
        assert len(held) <= 64
        assert held == emitted[len(emitted) - len(held) :]
        assert len(held) >= min(len(emitted), 32)
