"""Texts that remember what the template wrote: every operation, compared with the same one on labelled characters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.text import template_text as texts
from edge_rt.text.template_text import Text, own_text, ranges_of
from tests.helpers.examples import share_of

PARTS = st.lists(st.tuples(st.text("ab \nAß", max_size=4), st.booleans()), max_size=6)


def labelled(text):
    """Return (character, whether it is own) pairs."""
    own = [False] * len(text)
    ranges = ranges_of(text)
    for begin, end in zip(ranges[::2], ranges[1::2], strict=True):
        own[begin:end] = [True] * (end - begin)
    assert list(ranges) == sorted(set(ranges)), "ranges are in order, not empty, and do not touch"
    return list(zip(str.__str__(text), own, strict=True))


def made(parts):
    """Return a text of (text, whether it is own) parts, made by concatenation."""
    return texts.concat([own_text(part) if own else part for part, own in parts])


def is_part(part, whole):
    """Return whether labelled characters stand somewhere in others."""
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


@given(PARTS)
def test_concat(parts):
    assert labelled(made(parts)) == [(character, own) for part, own in parts for character in part]


@given(PARTS, *[st.none() | st.integers(-9, 9)] * 2, st.none() | st.sampled_from([1, 2, -1]))
def test_slices(parts, start, stop, step):
    text = made(parts)
    found, expected = labelled(texts.slice_of(text, start, stop, step)), labelled(text)[start:stop:step]
    if step in (None, 1):
        assert found == expected
    else:
        assert [pair[0] for pair in found] == [pair[0] for pair in expected]
        assert all(right or not left for (_, left), (_, right) in zip(found, expected, strict=True))


@given(PARTS)
def test_characters(parts):
    text = made(parts)
    found = texts.characters(Text(text, ranges_of(text)))
    assert [labelled(character)[0] for character in found] == labelled(text)
    assert [labelled(texts.item(text, at))[0] for at in range(len(text))] == labelled(text)
    with pytest.raises(IndexError):
        texts.item(text, len(text))


@given(PARTS, st.text("ab \n", max_size=2), PARTS, st.integers(-1, 3))
def test_replace(parts, old, new, count):
    text, new = made(parts), made(new)
    found = texts.replace(text, old, new, count)
    assert str.__str__(found) == str.__str__(text).replace(old, str.__str__(new), count)
    if old and old not in text:
        assert labelled(found) == labelled(text)
    if len(old) == 1 and count < 0:
        expected = [one for pair in labelled(text) for one in (labelled(new) if pair[0] == old else [pair])]
        assert labelled(found) == expected


@given(PARTS, st.lists(PARTS, max_size=4))
def test_join(separator, items):
    separator, items = made(separator), [made(parts) for parts in items]
    expected = [
        pair for number, text in enumerate(items) for pair in labelled(separator) * (number > 0) + labelled(text)
    ]
    assert labelled(texts.join(separator, items)) == expected


CUTS = [
    ("split", ()),
    ("split", ("a",)),
    ("split", ("ab", 1)),
    ("split", (None, 1)),
    ("rsplit", ()),
    ("rsplit", (None, 1)),
    ("rsplit", ("a", 1)),
    ("splitlines", ()),
    ("splitlines", (True,)),
    ("partition", ("a",)),
    ("rpartition", ("b ",)),
    ("strip", ()),
    ("strip", ("a ",)),
    ("lstrip", ()),
    ("rstrip", ("b\n",)),
    ("removeprefix", ("a",)),
    ("removesuffix", ("a",)),
]


@pytest.mark.parametrize(("name", "args"), CUTS)
@given(parts=PARTS)
@settings(max_examples=share_of(60))
def test_methods_that_cut(name, args, parts):
    text = made(parts)
    found = texts.call_method(text, name, args, {})
    expected = getattr(str.__str__(text), name)(*args)
    assert found == expected
    assert type(found) is type(expected) or isinstance(expected, str)
    pieces = [found] if isinstance(found, str) else found
    rest = labelled(text)
    for piece in pieces:
        if not (name in {"partition", "rpartition"} and not piece):
            assert is_part(labelled(piece), rest)


@given(parts=PARTS)
def test_pieces_of_a_split_stand_where_they_stood(parts):
    text = made(parts)
    whole = labelled(text)
    at = 0
    for piece in texts.call_method(text, "split", ("a",), {}):
        assert labelled(piece) == whole[at : at + len(piece)]
        at += len(piece) + 1


@pytest.mark.parametrize("name", sorted(texts.CASE_METHODS))
@given(parts=PARTS)
def test_a_change_of_case_never_makes_a_text_more_its_own(name, parts):
    text = made(parts)
    found = texts.call_method(text, name, (), {})
    assert found == getattr(str.__str__(text), name)()
    if "ß" not in text:
        assert [own for _, own in labelled(found)] == [own for _, own in labelled(text)]
    elif not texts.is_own(text):
        assert len(found) == len(text) or not ranges_of(found)


def test_other_methods_give_nobodys_text():
    assert not ranges_of(texts.call_method(Text("abc", (0, 1)), "center", (9,), {}))


def test_printing_keeps_the_ranges():
    assert ranges_of(str(Text("abc", (0, 1)))) == (0, 1)
