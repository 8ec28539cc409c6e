"""Matrices of a native package in weights.bin: order of rows, alternating tiles, and what guards them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edge_rt.errors import InvalidPackage
from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.linear import Linear, Part
from edge_rt.export.weights.native import fill, gate_up, place, stack, tiles_of, verify, verify_values
from edge_rt.export.weights.rows import CheckpointRows
from edge_rt.export.weights.tiles import unpack_rows
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout
from tests.helpers.gguf_factory import write_llama_gguf

Q, K, V, GATE, UP, DOWN = (
    f"blk.0.{kind}.weight" for kind in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down")
)
TYPES = ("Q4_0", "Q4_1", "Q8_0", "F16", "F32")


@pytest.fixture(params=TYPES)
def model(request, tmp_path):
    return write_llama_gguf(tmp_path / "m.gguf", weight_type=request.param, embedding_type=request.param)


def part_of(model, name, row_order=None):
    return Part(read_header(model.path).tensors[name], row_order)


def written(model, linear):
    """Return layout and file of one matrix, and the bytes read for it."""
    layout, read = WeightsLayout(), []
    layout.add("before", np.uint8, (100,))
    place(linear, layout)
    path = model.path.with_suffix(".bin")
    with TensorReader([model.path]) as source, WeightsFile(path, layout) as out:
        fill(linear, CheckpointRows(source), layout, out, read.append)
    return layout, path, read


def values_of(linear, layout, path):
    slot = layout.slots[tiles_of(linear)]
    tiles = np.fromfile(path, np.uint8, slot.nbytes, offset=slot.offset).reshape(slot.shape)
    return unpack_rows(tiles, linear.form)


def verified(model, linear, layout, path):
    with TensorReader([model.path]) as source:
        verify(linear, source, layout, path)


def test_parts_lie_behind_each_other_in_their_row_order(model):
    order = np.random.default_rng(0).permutation(64)
    linear = Linear("qkv", (part_of(model, Q, order), part_of(model, K), part_of(model, V)))
    layout, path, read = written(model, linear)
    expected = np.concatenate([model.weights[Q][order], model.weights[K], model.weights[V]])
    np.testing.assert_array_equal(values_of(linear, layout, path), expected)
    assert read == [part.tensor.nbytes for part in linear.parts]
    verified(model, linear, layout, path)


def test_tiles_of_gate_and_up_take_turns(model):
    (linear,) = gate_up("gate_up", part_of(model, GATE), part_of(model, UP))
    layout, path, read = written(model, linear)
    gate, up = (model.weights[name].reshape(-1, 16, 64) for name in (GATE, UP))
    expected = np.stack([gate, up], axis=1).reshape(256, 64)
    np.testing.assert_array_equal(values_of(linear, layout, path), expected)
    assert sum(read) == 2 * linear.parts[0].tensor.nbytes
    verified(model, linear, layout, path)


def test_a_last_tile_is_filled_up_with_zeros(model):
    linear = Linear("embedding", (part_of(model, "token_embd.weight"),))
    layout, path, _ = written(model, linear)
    found = values_of(linear, layout, path)
    assert found.shape == (432, 64)
    np.testing.assert_array_equal(found[:419], model.weights["token_embd.weight"])
    assert not found[419:].any()
    verified(model, linear, layout, path)


def test_pieces_of_a_large_matrix_meet_at_tiles(tmp_path):
    """More than one piece is read of each; the number of rows per piece is no multiple of 16 by itself."""
    model = write_llama_gguf(
        tmp_path / "m.gguf", weight_type="F32", layers=1, hidden=544, heads=17, kv_heads=1, ffn=8208
    )
    (linear,) = gate_up("gate_up", part_of(model, GATE), part_of(model, UP))
    layout, path, read = written(model, linear)
    assert len(read) == 2
    gate, up = (model.weights[name].reshape(-1, 16, 544) for name in (GATE, UP))
    np.testing.assert_array_equal(values_of(linear, layout, path), np.stack([gate, up], axis=1).reshape(-1, 544))


@pytest.mark.parametrize("change", [{"types": {UP: "F16"}}, {"ffn": 24, "weight_type": "F32"}], ids=["types", "rows"])
def test_gate_and_up_that_cannot_take_turns_are_two_matrices(tmp_path, change):
    model = write_llama_gguf(tmp_path / "m.gguf", **change)
    linears = gate_up("gate_up", part_of(model, GATE), part_of(model, UP))
    assert [linear.name for linear in linears] == ["gate_up.gate", "gate_up.up"]
    for linear, name in zip(linears, (GATE, UP), strict=True):
        layout, path, _ = written(model, linear)
        rows = model.weights[name].shape[0]
        np.testing.assert_array_equal(values_of(linear, layout, path)[:rows], model.weights[name])
        verified(model, linear, layout, path)
        path.unlink()


def test_a_part_that_ends_within_a_tile_ends_a_matrix(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf", head_dim=24, heads=4, kv_heads=1)
    linears = stack("qkv", [part_of(model, name) for name in (Q, K, V)])
    assert [(linear.name, linear.out_features) for linear in linears] == [("qkv.0", 96 + 24), ("qkv.1", 24)]
    layout, path, _ = written(model, linears[0])
    expected = np.concatenate([model.weights[Q], model.weights[K]])
    np.testing.assert_array_equal(values_of(linears[0], layout, path)[:120], expected)
    verified(model, linears[0], layout, path)


class TestVerify:
    """What is read back is compared with the checkpoint; a fault in a tile that is looked at is never let through."""

    @pytest.fixture
    def case(self, tmp_path):
        model = write_llama_gguf(tmp_path / "m.gguf")
        linear = Linear("qkv", (part_of(model, Q, np.arange(64)[::-1]), part_of(model, K)))
        return model, linear, *written(model, linear)[:2]

    @pytest.mark.parametrize("at", [0, 255, 256, 287, 288, 319, 320, 639])
    @pytest.mark.parametrize("tile", range(6))
    def test_a_changed_byte(self, case, tile, at):
        """A changed byte is a changed value, too; this matrix is so small that every tile's values are compared."""
        model, linear, layout, path = case
        slot = layout.slots[tiles_of(linear)]
        data = bytearray(path.read_bytes())
        data[slot.offset + tile * slot.row_bytes + at] ^= 1
        path.write_bytes(data)
        with (
            TensorReader([model.path]) as source,
            pytest.raises(InvalidPackage, match=rf"'qkv', tile {tile}: [0-9]+ of 1024 values differ"),
        ):
            verify_values(linear, source, layout, path, range(6))

    def test_ends_of_pieces_are_compared(self, tmp_path):
        """Tiles 0 to 481 are packed at once, and then the rest."""
        model = write_llama_gguf(
            tmp_path / "m.gguf", weight_type="F32", layers=1, hidden=544, heads=17, kv_heads=1, ffn=8208
        )
        linear = Linear("up", (part_of(model, UP),))
        layout, path, _ = written(model, linear)
        for tile in (0, 480, 481, 512):
            data = bytearray(path.read_bytes())
            slot = layout.slots[tiles_of(linear)]
            data[slot.offset + tile * slot.row_bytes + 7] ^= 1
            path.write_bytes(data)
            with pytest.raises(InvalidPackage, match=rf"'up', tile {tile}: 1 of"):
                verified(model, linear, layout, path)
            data[slot.offset + tile * slot.row_bytes + 7] ^= 1
            path.write_bytes(data)

    def test_values_in_another_order_of_rows(self, case):
        """What packing would do wrong in the same way when the bytes are compared."""
        model, linear, layout, path = case
        for parts in ((dataclasses.replace(linear.parts[0], row_order=None), linear.parts[1]), linear.parts[::-1]):
            with (
                TensorReader([model.path]) as source,
                pytest.raises(InvalidPackage, match="values differ"),
            ):
                verify_values(dataclasses.replace(linear, parts=parts), source, layout, path, [0])

    def test_another_order_of_rows(self, case):
        model, linear, layout, path = case
        for parts in ((dataclasses.replace(linear.parts[0], row_order=None), linear.parts[1]), linear.parts[::-1]):
            with pytest.raises(InvalidPackage, match="are not the checkpoint's"):
                verified(model, dataclasses.replace(linear, parts=parts), layout, path)

    def test_tiles_that_do_not_take_turns(self, tmp_path):
        model = write_llama_gguf(tmp_path / "m.gguf")
        (linear,) = gate_up("gate_up", part_of(model, GATE), part_of(model, UP))
        layout, path, _ = written(model, dataclasses.replace(linear, interleaved=False))
        with pytest.raises(InvalidPackage, match="are not the checkpoint's"):
            verified(model, linear, layout, path)
