"""What a token takes in each format of the cache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from edge_rt.package.kv_formats import KV_FORMAT
from tests.helpers.kv_layout import marked_rows


@pytest.mark.parametrize(("head_dim", "width"), [(32, 34), (64, 68), (48, 52), (16, 18), (128, 136)])
def test_an_int8_row_has_a_scale_for_every_32_elements(head_dim, width):
    assert KV_FORMAT["int8"].row_bytes(head_dim) == width


@pytest.mark.parametrize(
    ("name", "key", "value", "width"),
    [
        ("f32", 256, 256, 256),
        ("f16", 128, 128, 128),
        ("k8v4", 68, 40, 54),
        ("int4", 40, 40, 40),
        ("int4x2", 72, 72, 72),
    ],
)
def test_bytes_of_keys_and_values_of_64_elements(name, key, value, width):
    entry = KV_FORMAT[name]
    assert (entry.key.bytes(64), entry.value.bytes(64), entry.row_bytes(64)) == (key, value, width)


def test_four_bit_groups_are_stored_whole():
    assert KV_FORMAT["int4"].row_bytes(48) == KV_FORMAT["int4"].row_bytes(64)


def test_a_token_takes_keys_and_values_of_every_head():
    assert KV_FORMAT["int4"].token_bytes(3, 64) == 2 * 3 * 40


@given(st.sampled_from(sorted(KV_FORMAT)), st.integers(1, 90), st.integers(1, 3), st.integers(1, 9), st.data())
def test_places_are_the_rows_and_fit_the_cache(name, half_dim, heads, capacity, data):
    entry, head_dim = KV_FORMAT[name], 2 * half_dim
    rows = data.draw(st.integers(0, capacity))
    shape = (2, heads, capacity, entry.row_bytes(head_dim))
    marks = np.zeros(capacity * entry.token_bytes(heads, head_dim), int)
    for begin, end in entry.places(heads, head_dim, capacity, rows):
        assert 0 <= begin <= end <= len(marks)
        marks[begin:end] += 1
    np.testing.assert_array_equal(marks.reshape(shape), marked_rows(name, shape, head_dim, range(rows)))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("f16", (96,), (96,)), ("k8v4", (48, 4), (32, 8)), ("int4x2", (32, 32, 8), (32, 32, 8))],
)
def test_parts_of_a_row_of_48_elements(name, key, value):
    assert (KV_FORMAT[name].key.parts(48), KV_FORMAT[name].value.parts(48)) == (key, value)


def test_names_and_numbers_are_distinct():
    assert [entry.name for entry in KV_FORMAT.values()] == list(KV_FORMAT)
    assert len({entry.id for entry in KV_FORMAT.values()}) == len(KV_FORMAT)
