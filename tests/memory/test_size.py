from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from edge_rt.errors import ConfigError
from edge_rt.memory.size import exact_size, parse_size, round_up, show_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("600MiB", 600 << 20), ("2GiB", 2 << 30), ("1.5G", 1_500_000_000), ("1.5 GiB", 3 << 29), ("123456", 123456),
        ("64kib", 64 << 10), ("1kb", 1000), (77, 77), (" 3 MB ", 3_000_000), ("1TiB", 1 << 40),
    ],
)  # fmt: skip
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "0", "1.5.2G", "1e9", "5 parsecs", "nan", "9" * 30, -5, 0, "1 2"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="600MiB"):
        parse_size(text)


@given(st.integers(1, 1 << 50))
def test_an_exact_size_is_read_back(count):
    assert parse_size(exact_size(count)) == count
    assert count <= round_up(count) < count + (1 << 20)
    assert show_size(count)
