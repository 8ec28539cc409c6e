"""Token recycling: likely tokens come back with the context that they were likely behind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.text_sources import LEAST_PROBABILITY, NativeRecyclingSource
from tests.helpers.examples import share_of
from tests.helpers.fake_sources import outputs_of

SIZE = 20
NOTHING = Draft()


def opened(**options):
    return NativeRecyclingSource(draft_library(), **options)


def row(**shares):
    """Return probabilities of the tokens that are named t3=0.5; the rest is spread thinly over the others."""
    named = {int(name[1:]): share for name, share in shares.items()}
    rest = (1 - sum(named.values())) / (SIZE - len(named))
    assert rest < LEAST_PROBABILITY
    return [named.get(token, rest) for token in range(SIZE)]


def learn(source, context, *rows, draft=NOTHING):
    source.observe(draft, Accepted((0,), (), len(draft)), outputs_of(rows), tuple(context))


def guessed(source, cursor):
    return [guess.token_id for guess in source.children(cursor)]


def test_nothing_is_known_at_first():
    source = opened()
    assert source.root() is None
    source.begin([])
    assert source.root() is None
    source.begin([1, 2])
    assert guessed(source, source.root()) == []
    assert source.memory_bytes == 0


def test_likely_tokens_come_back_with_their_context():
    source = opened()
    learn(source, [1, 2, 3], row(t7=0.6, t8=0.25, t9=0.05))
    source.begin([9, 9, 1, 2, 3])
    assert guessed(source, source.root()) == [7, 8, 9]
    source.extend([3])
    assert guessed(source, source.root()) == [7, 8, 9]
    source.extend([4])
    assert guessed(source, source.root()) == []


def test_unlikely_tokens_are_not_kept():
    source = opened()
    learn(source, [1], row(t7=0.9, t8=LEAST_PROBABILITY * 0.9))
    source.begin([1])
    assert guessed(source, source.root()) == [7]


def test_the_longest_context_that_is_known_decides():
    source = opened()
    learn(source, [1, 2, 3], row(t7=0.9))
    learn(source, [4, 2, 3], row(t8=0.9))
    learn(source, [4, 5, 3], row(t9=0.9))
    for context, token in (((1, 2, 3), 7), ((4, 2, 3), 8), ((6, 2, 3), 8), ((6, 6, 3), 9), ((6, 5, 3), 9)):
        source.begin([11, *context])
        assert guessed(source, source.root()) == [token]


def test_longer_contexts_and_likelier_tokens_are_trusted_more():
    source = opened()
    learn(source, [1, 2, 3], row(t7=0.6, t8=0.3, t9=0.04))
    priors = {}
    for context in ((1, 2, 3), (5, 2, 3), (5, 5, 3)):
        source.begin(context)
        priors[context] = [source.prior(guess.kind) for guess in source.children(source.root())]
        assert priors[context] == sorted(priors[context], reverse=True)
        assert len(set(priors[context])) == 3
    columns = zip(*priors.values(), strict=True)
    assert all(long > middle > short for long, middle, short in columns)


def test_priors_are_probabilities():
    source = opened()
    priors = [source.prior(kind) for kind in range(source.num_kinds)]
    assert all(0 < prior < 1 for prior in priors)
    assert len(set(priors)) > 20


@pytest.mark.parametrize("share", [0.031, 0.1, 0.3, 0.45, 0.65, 0.8, 0.95])
def test_a_prior_is_near_the_probability_that_the_model_gave(share):
    source = opened()
    learn(source, [1, 2, 3], row(t7=share, t8=0.97 - share) if share < 0.9 else row(t7=share))
    source.begin([1, 2, 3])
    (kind,) = [guess.kind for guess in source.children(source.root()) if guess.token_id == 7]
    assert 0.7 * share < source.prior(kind) < 1.5 * share


def test_rejected_guesses_teach_too():
    #  0 -> 1 and 0 -> 2 behind the text 5 6, none of them accepted
    draft = Draft((7, 8, 9), (ROOT, 0, 0))
    source = opened()
    learn(source, [5, 6], row(t1=0.9), row(t2=0.9), row(t3=0.9), row(t4=0.9), draft=draft)
    # The last token alone does not tell any more.
    learn(source, [0, 9], row(t15=0.9))
    for text, token in (((5, 6), 1), ((5, 6, 7), 2), ((6, 7, 8), 3), ((6, 7, 9), 4)):
        source.begin(text)
        assert guessed(source, source.root()) == [token]
    source.begin([0, 8])
    assert guessed(source, source.root()) == [3]


def test_cursors_go_on_behind_a_guess():
    source = opened()
    for context, token in (((1, 2, 3), 4), ((2, 3, 4), 5), ((3, 4, 5), 6)):
        learn(source, context, row(**{f"t{token}": 0.9}))
    source.begin([1, 2, 3])
    cursor, path = source.root(), []
    for _ in range(3):
        (guess,) = source.children(cursor)
        path.append(guess.token_id)
        cursor = guess.cursor
    assert path == [4, 5, 6]
    assert source.children(cursor) == []
    # As if the tokens had been emitted.
    source.extend([4, 5])
    assert guessed(source, source.root()) == [6]


def test_a_context_that_comes_again_replaces_what_was_kept():
    source = opened()
    learn(source, [1], row(t7=0.9))
    size = source.memory_bytes
    learn(source, [1], row(t8=0.5, t9=0.4))
    source.begin([1])
    assert guessed(source, source.root()) == [8, 9]
    assert source.memory_bytes == size > 0


def test_without_likely_tokens_nothing_is_learned():
    source = opened()
    draft = Draft((2,), (ROOT,))
    source.observe(draft, Accepted((1,), (), 1), Outputs(np.zeros((2, SIZE), np.float32)), (1,))
    flat = [1 / 50] * 50
    learn(source, [1], flat)
    source.begin([1])
    assert guessed(source, source.root()) == []
    assert source.memory_bytes == 0


def test_the_first_contexts_go_first():
    source = opened(max_order=2, max_contexts=4)
    sizes = []
    for token in range(6):
        learn(source, [token, token], row(t7=0.9))
        sizes.append(source.memory_bytes)
    assert sizes[3] == sizes[4] == sizes[5]
    source.begin([1, 1])
    assert guessed(source, source.root()) == []
    source.begin([2, 2])
    assert guessed(source, source.root()) == [7]


def test_another_text_leaves_what_was_learned():
    source = opened()
    learn(source, [1, 2, 3], row(t7=0.9))
    source.begin([9, 9, 9, 9])
    source.extend([9])
    source.begin([1, 2, 3])
    assert guessed(source, source.root()) == [7]


@settings(max_examples=share_of(60))
@given(data=st.data(), max_order=st.integers(1, 3), seed=st.integers(0, 999))
def test_guesses_are_of_kinds_that_exist(data, max_order, seed):
    source = opened(max_order=max_order, max_contexts=8)
    draws = np.random.default_rng(seed)
    for _ in range(6):
        nodes = data.draw(st.integers(0, 4))
        draft = Draft.chain(draws.integers(0, 5, nodes).tolist())
        context = draws.integers(0, 5, data.draw(st.integers(0, 4))).tolist()
        shares = draws.dirichlet([0.2] * SIZE, nodes + 1)
        learn(source, context, *shares, draft=draft)
        source.begin(context)
        front = [source.root()] if context else []
        assert context or source.root() is None
        for _ in range(3):
            guesses = [guess for cursor in front for guess in source.children(cursor)]
            for cursor in front:
                ids = guessed(source, cursor)
                assert len(set(ids)) == len(ids) <= 8
            assert all(0 <= guess.kind < source.num_kinds for guess in guesses)
            front = [guess.cursor for guess in guesses][:20]


def test_a_source_beside_another_knows_its_contexts_with_a_text_of_its_own():
    first = opened(max_order=2)
    second = NativeRecyclingSource(draft_library(), max_order=2, beside=first)
    first.begin([3, 4])
    second.begin([9, 5])
    learn(first, [3, 4], row(t7=0.9))
    assert guessed(first, first.root()) == [7]
    assert guessed(second, second.root()) == []
    second.begin([3, 4])
    assert guessed(second, second.root()) == [7]
    del first
    learn(second, [3, 4], row(t8=0.9))
    assert guessed(second, second.root()) == [8]
