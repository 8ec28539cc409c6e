"""Sources that compute are asked where that pays."""

from __future__ import annotations

from edge_rt.runtime.speculation.arms import Asking


def test_at_first_it_asks_where_texts_are_unsure():
    asking = Asking()
    assert [asking.wants(value) for value in (0.0, 0.3, 0.6)] == [True] * 3
    assert not asking.wants(0.95)


def test_it_learns_where_it_pays():
    asking = Asking()
    for _ in range(60):
        asking.learn(0.25, without=1.0, with_it=0.9)
        asking.learn(0.95, without=1.0, with_it=1.1)
    assert not asking.wants(0.25)
    assert asking.wants(0.95)
    assert asking.wants(0.5)


def test_what_does_not_pay_is_tried_now_and_then():
    asking = Asking()
    asked = [asking.wants(0.99) for _ in range(240)]
    assert sum(asked) == 10


def test_a_generation_lets_it_fade():
    asking = Asking()
    for _ in range(60):
        asking.learn(0.25, without=1.0, with_it=0.95)
    assert not asking.wants(0.25)
    for _ in range(12):
        asking.begin()
    assert asking.wants(0.25)


def test_a_value_of_one_has_a_level():
    asking = Asking()
    asking.learn(1.0, without=1.0, with_it=2.0)
    asking.wants(1.0)
