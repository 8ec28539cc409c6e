from __future__ import annotations

import numpy as np

from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.tensor_reader import TensorReader
from edge_rt.export.weights.linear import Linear, Part
from edge_rt.export.weights.portable import fill, place
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
