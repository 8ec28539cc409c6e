from __future__ import annotations

import numpy as np
import pytest

from edge_rt.export.gguf_header import read_header
from edge_rt.export.gguf_source import open_model_file
from edge_rt.export.linear import Linear, Part, stack
from edge_rt.export.weights import WeightsFile, WeightsLayout
from tests.helpers.gguf_factory import write_llama_gguf

NAMES = [f"blk.0.attn_{kind}.weight" for kind in ("q", "k", "v")]


def parts_of(path):
    tensors = read_header(path).tensors
    return [Part(tensors[name]) for name in NAMES]


def test_neighbours_of_one_type_become_one_matrix(tmp_path):
    write_llama_gguf(tmp_path / "m.gguf")
    (linear,) = stack("qkv", parts_of(tmp_path / "m.gguf"))
    assert (linear.name, linear.in_features, linear.out_features) == ("qkv", 64, 64 + 32 + 32)
    assert (linear.is_quantised, linear.has_minimum, linear.type_name) == (True, True, "Q4_1")


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ({NAMES[2]: "Q8_0"}, [("qkv.0", "Q4_1", 96), ("qkv.1", "Q8_0", 32)]),
        ({NAMES[1]: "F16"}, [("qkv.0", "Q4_1", 64), ("qkv.1", "F16", 32), ("qkv.2", "Q4_1", 32)]),
    ],
)
def test_other_types_stay_apart_in_order(tmp_path, types, expected):
    write_llama_gguf(tmp_path / "m.gguf", types=types)
    linears = stack("qkv", parts_of(tmp_path / "m.gguf"))
    assert [(linear.name, linear.type_name, linear.out_features) for linear in linears] == expected


def test_parts_lie_behind_each_other_in_their_row_order(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32")
    q, k, v = parts_of(model.path)
    order = np.arange(64)[::-1]
    linear = Linear("qkv", (Part(q.tensor, order), k, v))
    layout = WeightsLayout()
    linear.place(layout)
    read = []
    with open_model_file(model.path) as source, WeightsFile(tmp_path / "w", layout) as out:
        linear.fill(source, layout, out, read.append)
    written = np.fromfile(tmp_path / "w", np.float32).reshape(128, 64)
    expected = [model.weights[NAMES[0]][order], model.weights[NAMES[1]], model.weights[NAMES[2]]]
    np.testing.assert_array_equal(written, np.concatenate(expected))
    assert read == [64 * 64 * 4, 32 * 64 * 4, 32 * 64 * 4]
