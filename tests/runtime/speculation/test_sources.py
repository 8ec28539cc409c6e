"""What every source promises, whatever it guesses from."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from edge_rt.runtime.speculation.corpus import Corpus, CorpusSource
from edge_rt.runtime.speculation.corpus_build import build_corpus
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.ngram import NgramSource
from edge_rt.runtime.speculation.text_sources import NativeReferenceSource, NativeSuffixSource

CORPUS_TEXTS = ([1, 2, 3, 1, 2, 4, 5, 1, 2], [3, 3, 2, 1], [4])
tokens = st.lists(st.integers(0, 5), max_size=40)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "texts"
    build_corpus(CORPUS_TEXTS, path, vocab_size=6, tokenizer_sha256="0" * 64)
    with Corpus.open(path) as opened:
        yield opened


MAKERS = {
    "ngram": lambda corpus: NgramSource(),
    "prompt lookup": lambda corpus: NgramSource((3,), latest_only=True),
    "small ngram": lambda corpus: NgramSource(max_entries=16),
    "corpus": CorpusSource,
    "suffix": lambda corpus: NativeSuffixSource(draft_library()),
    "small suffix": lambda corpus: NativeSuffixSource(draft_library(), max_tokens=64),
    "reference": lambda corpus: NativeReferenceSource(draft_library(), [1, 2, 3, 4, 1, 2, 5, 3]),
}


@pytest.fixture(params=MAKERS, scope="module")
def make(request, corpus):
    return lambda: MAKERS[request.param](corpus)


def reachable(source, depth=4):
    """Return every path of guesses of at most ``depth`` tokens: [(token, kind), ...]."""
    paths, front = [], [((), source.root())]
    for _ in range(depth):
        front = [
            ((*path, (guess.token_id, guess.kind)), guess.cursor)
            for path, cursor in front
            if cursor is not None
            for guess in source.children(cursor)
        ]
        paths += [path for path, _ in front]
    return paths


@given(data=st.data())
def test_guesses_are_tokens_that_differ_of_kinds_that_exist(make, data):
    source = make()
    for begun in data.draw(st.lists(tokens, min_size=1, max_size=4)):
        source.begin(begun)
        source.extend(data.draw(tokens))
        front = [source.root()]
        for _ in range(4):
            behind = []
            for cursor in front:
                guesses = source.children(cursor) if cursor is not None else ()
                assert len({guess.token_id for guess in guesses}) == len(guesses) <= 4
                for guess in guesses:
                    assert 0 <= guess.token_id <= 5
                    assert 0 <= guess.kind < source.num_kinds
                    behind.append(guess.cursor)
            front = behind
    assert source.memory_bytes > 0 or source.name == "corpus"


@given(data=st.data())
def test_a_text_in_pieces_is_the_same_text(make, data):
    text, cuts = data.draw(tokens), sorted(data.draw(st.lists(st.integers(0, 40), max_size=4)))
    whole, pieces = make(), make()
    whole.begin([])
    pieces.begin([])
    for token in text:
        whole.extend([token])
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces.extend(text[start:stop])
    assert reachable(pieces) == reachable(whole)


@given(data=st.data())
def test_what_is_known_is_not_taken_in_twice(data):
    text, more = data.draw(tokens), data.draw(tokens)
    for make in (NgramSource, lambda: NativeSuffixSource(draft_library())):
        once, twice = make(), make()
        once.begin([*text, *more])
        twice.begin(text)
        twice.begin([*text, *more])
        assert reachable(twice) == reachable(once)


def test_priors_are_probabilities(make):
    source = make()
    priors = [source.prior(kind) for kind in range(source.num_kinds)]
    assert all(0 < prior < 1 for prior in priors)
    assert len(set(priors)) > 5


def test_nothing_is_known_at_first(make):
    source = make()
    source.begin([])
    if source.name != "reference":
        assert source.root() is None
