"""What ``inspect`` says of a decoder, and of its activations."""

from __future__ import annotations

import pytest

from edge_rt.cli.render.inspect_report import decoder_rows, ranges, rounding_rows
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


def test_activations_of_16_bits_are_named_by_their_layers():
    fine = {"head": (0,), "layer10.down": (1, 2), "layer9.down": (1,), "layer2.qkv": (3,), "layer8.down": (4,)}
    rows = dict(rounding_rows({"kl": 0.0013, "int8_kl": 0.00333, "tokens": 256, "fine_blocks": fine}))
    assert rows["16 bits"] == "6 blocks of 32 in 5 inputs"
    assert rows["of layers"] == "head; down 8-10; qkv 2"
    assert rows["KL from float activations"] == "0.0013 nats a token, 0.00333 with 8 bits alone"
    assert dict(rounding_rows({"kl": 0.1, "int8_kl": 0.1, "tokens": 1, "fine_blocks": {}}))["of layers"] == "-"
