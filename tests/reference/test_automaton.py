from __future__ import annotations

import random

from hypothesis import given, strategies as st

from tests.reference.automaton import SCANNED, SuffixAutomaton

texts = st.lists(st.integers(-1, 3), max_size=60)


def longest_earlier(text):
    """Return the longest suffix that also occurs ending before the last position, by trying all."""
    for length in range(len(text) - 1, 0, -1):
        suffix = text[-length:]
        if any(text[at : at + length] == suffix for at in range(len(text) - length)):
            return suffix
    return []


def occurrences(text, part):
    """Return the positions of the last token of every occurrence."""
    return [at + len(part) - 1 for at in range(len(text) - len(part) + 1) if text[at : at + len(part)] == part]


@given(texts)
def test_the_match_is_the_longest_suffix_that_occurs_earlier(text):
    automaton = SuffixAutomaton()
    for count, token in enumerate(text, 1):
        automaton.extend([token])
        known = text[:count]
        suffix = longest_earlier(known)
        assert automaton.match_length == len(suffix)
        assert (automaton.match == 0) == (not suffix)
        if suffix:
            assert automaton.match_end in occurrences(known, suffix)
            assert automaton.match_end < count - 1
            behind = {known[at + 1] for at in occurrences(known, suffix)[:-1]}
            assert {next_token for next_token, _ in automaton.following(automaton.match)} == behind


@given(texts, st.integers(0, 3))
def test_ends_are_true_occurrences_and_counts_never_too_high(text, updated_links):
    automaton = SuffixAutomaton(text, updated_links=updated_links)
    for start in range(len(text)):
        state = 0
        for stop in range(start, len(text)):
            state, length = automaton.advance(state, stop - start, text[stop])
            part = text[start : stop + 1]
            assert length == len(part)
            where = occurrences(text, part)
            assert automaton.end(state) in where
            assert 1 <= automaton.count(state) <= len(where)


@given(texts)
def test_ends_and_counts_are_exact_if_all_links_are_updated(text):
    automaton = SuffixAutomaton(text, updated_links=len(text))
    for start in range(len(text)):
        state = 0
        for stop in range(start, len(text)):
            state, _ = automaton.advance(state, 0, text[stop])
            where = occurrences(text, text[start : stop + 1])
            assert (automaton.end(state), automaton.count(state)) == (where[-1], len(where))


@given(texts, st.lists(st.integers(0, 4), max_size=20))
def test_advancing_keeps_the_longest_suffix_of_another_text(text, other):
    automaton = SuffixAutomaton(text)
    state = length = 0
    for count, token in enumerate(other, 1):
        state, length = automaton.advance(state, length, token)
        read = other[:count]
        suffix = next(read[at:] for at in range(count + 1) if read[at:] == [] or occurrences(text, read[at:]))
        assert length == len(suffix)


@given(texts)
def test_states_are_at_most_two_per_token(text):
    automaton = SuffixAutomaton(text)
    assert automaton.num_states <= max(1, 2 * len(text))
    assert list(automaton.text) == text


def test_the_latest_continuation_comes_first_then_the_most_frequent():
    automaton = SuffixAutomaton([7, 1, 7, 2, 7, 2, 7, 2, 7, 3, 7, 3, 7, 1, 7])
    assert (automaton.match_length, automaton.following(automaton.match)[0][0]) == (3, 2)
    shorter, _ = automaton.advance(0, 0, 7)
    assert [token for token, _ in automaton.following(shorter)] == [1, 2, 3]


def test_of_many_continuations_the_first_and_the_newest_are_looked_at():
    many = 10 * SCANNED
    text = [part for token in range(1, many + 1) for part in (0, token)]
    automaton = SuffixAutomaton([*text, 0])
    tokens = {token for token, _ in automaton.following(automaton.match)}
    assert tokens == {*range(1, SCANNED + 2), *range(many - SCANNED + 1, many + 1)}


def test_memory_stays_within_what_is_documented():
    random.seed(5)
    words = [[random.randrange(500) for _ in range(random.randrange(1, 6))] for _ in range(300)]
    text = [token for _ in range(5000) for token in random.choice(words)]
    automaton = SuffixAutomaton(text)
    assert 40 < automaton.memory_bytes / len(automaton) < 250
