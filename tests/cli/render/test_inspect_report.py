"""What ``inspect`` says of a decoder."""

from __future__ import annotations

import pytest

from edge_rt.cli.render.inspect_report import decoder_rows, ranges
from edge_rt.export.opening import open_checkpoint
from tests.helpers.family_cases import load_case, write_folder


@pytest.mark.parametrize(
    ("numbers", "text"), [([3], "3"), ([0, 1, 2], "0-2"), ([0, 1, 3, 5, 6], "0-1, 3, 5-6"), ([], "")]
)
def test_ranges(numbers, text):
    assert ranges(numbers) == text


def rows_of(name, tmp_path):
    return dict(decoder_rows(open_checkpoint(write_folder(tmp_path / "m", load_case(name)))[1]))


def test_layers_of_two_kinds(tmp_path):
    rows = rows_of("gemma3_text", tmp_path)
    assert rows["family"] == "gemma3"
    assert rows["layers 0-4"].startswith(
        "4 heads of 32 over 2, window 8, rope default 10000, norms of heads; gelu with"
    )
    assert "all tokens, rope linear 1e+06" in rows["layers 5"]
    assert "norms before and behind" in rows["layers 5"]
    assert (rows["embedding scale"], rows["tables of rotations"]) == ("9.79796", "weights.bin")


def test_longrope(tmp_path):
    rows = rows_of("phi3_partial", tmp_path)
    assert "rope longrope 10000 of 24 (others in loads with a context beyond 16)" in rows["every layer"]
    assert rows["tables of rotations"] == "when the package is loaded"


def test_the_rest(tmp_path):
    assert "no rotation" in rows_of("smollm3", tmp_path)["layers 3"]
    (tmp_path / "b").mkdir()
    rows = rows_of("gemma2", tmp_path / "b")
    assert "soft-cap 2" in rows["layers 0, 2"]
    assert rows["soft-cap of logits"] == "5"
