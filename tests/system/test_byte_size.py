from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from edge_rt.errors import ConfigError
from edge_rt.system.byte_size import (
    counted,
    exact_size,
    human_bytes,
    in_mib,
    parse_size,
    round_up,
    show_at_least,
    show_share,
    show_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("600MiB", 600 << 20), ("2GiB", 2 << 30), ("1.5G", 1_500_000_000), ("1.5 GiB", 3 << 29), ("123456", 123456),
        ("64kib", 64 << 10), ("1kb", 1000), (77, 77), (" 3 MB ", 3_000_000), ("1TiB", 1 << 40),
    ],
)  # fmt: skip
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0", "above 0"), ("-1", "above 0"), (-5, "above 0"), ("-2GiB", "above 0"), ("0.1", "above 0"),
        ("10EiB", "limit is 1024 TiB"), ("1025TiB", "limit is 1024 TiB"),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_told_as_such(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_size(text)


def test_sizes_of_memory_have_one_form_and_small_ones_can_be_seen():
    assert [show_size(size) for size in (0, 10 << 10, 300 << 20, 1341 << 20, -3 << 30)] == [
        "0.0 MiB", "10.0 KiB", "300.0 MiB", "1.31 GiB", "-3.00 GiB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "MiB", "1.5.2G", "1e9", "5 parsecs", "nan", "9" * 30, "1 2", "--1", 1.5, True, None]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="600MiB"):
        parse_size(text)


@given(st.integers(1, 1 << 50))
def test_an_exact_size_is_read_back(count):
    assert parse_size(exact_size(count)) == count
    assert count <= round_up(count) < count + (1 << 20)
    assert show_size(count)


@given(st.integers(1, 1 << 50))
@example(228_710_609)
def test_what_is_enough_is_shown_rounded_up(least):
    assert parse_size(show_at_least(least)) >= least
    assert least != 228_710_609 or show_at_least(least) == "218.2 MiB"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (92_871_040, "92.9 MB"), (10**13, "10.0 TB")],
)
def test_disks_and_downloads_count_in_thousands(size, text):
    assert human_bytes(size) == text


@pytest.mark.parametrize(
    ("count", "whole", "text"),
    [
        (301 << 20, 400 << 20, "301.0 of 400.0 MiB"),
        (301 << 20, None, "301.0 MiB"),
        (1341 << 20, None, "1.31 GiB"),
        (1341 << 20, 2 << 30, "1.31 of 2.00 GiB"),
        (100 << 20, 2 << 30, "0.10 of 2.00 GiB"),
    ],
)
def test_a_share_has_the_unit_of_the_whole(count, whole, text):
    assert show_share(count, whole) == text


def test_a_column_of_mib_has_its_thousands_apart():
    assert in_mib(int(1240.25 * (1 << 20))) == "1 240.2"


@pytest.mark.parametrize(
    ("count", "noun", "shown", "text"),
    [
        (0, "row", None, "0 rows"), (1, "row", None, "1 row"), (2, "entry", None, "2 entries"),
        (1, "entry", None, "1 entry"), (2, "guess", None, "2 guesses"), (2, "key", None, "2 keys"),
        (1240, "more line", "1 240", "1 240 more lines"),
    ],
)  # fmt: skip
def test_counts_have_their_nouns(count, noun, shown, text):
    assert counted(count, noun, shown) == text
