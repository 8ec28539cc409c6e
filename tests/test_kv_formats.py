"""What a token takes in each format of the cache."""

from __future__ import annotations

import pytest

from edge_rt.kv_formats import KV_FORMAT


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


def test_names_and_numbers_are_distinct():
    assert [entry.name for entry in KV_FORMAT.values()] == list(KV_FORMAT)
    assert len({entry.id for entry in KV_FORMAT.values()}) == len(KV_FORMAT)
