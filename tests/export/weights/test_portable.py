from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import InvalidPackage
from edge_rt.export.quantise.rows import QuantisedRows
from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.linear import Linear, Part
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.portable import fill, place, verify
from edge_rt.export.weights.rows import CheckpointRows
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout
from tests.helpers.gguf_factory import write_llama_gguf

NAMES = [f"blk.0.attn_{kind}.weight" for kind in ("q", "k", "v")]


def test_parts_lie_behind_each_other_in_their_row_order(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32")
    tensors = read_header(model.path).tensors
    q, k, v = (Part(tensors[name]) for name in NAMES)
    order = np.arange(64)[::-1]
    linear = Linear("qkv", (Part(q.tensor, order), k, v))
    layout = WeightsLayout()
    place(linear, layout)
    read = []
    with TensorReader([model.path]) as source, WeightsFile(tmp_path / "w", layout) as out:
        fill(linear, CheckpointRows(source), layout, out, read.append)
    written = np.fromfile(tmp_path / "w", np.float32).reshape(128, 64)
    expected = [model.weights[NAMES[0]][order], model.weights[NAMES[1]], model.weights[NAMES[2]]]
    np.testing.assert_array_equal(written, np.concatenate(expected))
    assert read == [64 * 64 * 4, 32 * 64 * 4, 32 * 64 * 4]


def test_quantised_rows_of_another_matrix_are_refused(tmp_path):
    """The graph alone would not show it: what it is compared with is read out of the package."""
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32")
    tensors = read_header(model.path).tensors
    parts = tuple(Part(tensors[name], None, "Q8_0") for name in NAMES[1:])
    linear, layout = Linear("kv", parts), WeightsLayout()
    place(linear, layout)
    with TensorReader([model.path]) as source:
        rows = QuantisedRows(CheckpointRows(source), CheckpointMatrices(source, tensors), {})
        with WeightsFile(tmp_path / "w", layout) as out:
            fill(linear, rows, layout, out, lambda _: None)
        verify(linear, source, layout, tmp_path / "w")
        with pytest.raises(InvalidPackage, match=r"'kv': rows of 'blk\.0\.attn_v\.weight'"):
            verify(Linear("kv", parts[::-1]), source, layout, tmp_path / "w")
