from __future__ import annotations

import pytest

from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.weights.linear import Part, stack
from tests.helpers.gguf_factory import write_llama_gguf

NAMES = [f"blk.0.attn_{kind}.weight" for kind in ("q", "k", "v")]


def parts_of(path):
    tensors = read_header(path).tensors
    return [Part(tensors[name]) for name in NAMES]


def test_neighbours_of_one_type_become_one_matrix(tmp_path):
    write_llama_gguf(tmp_path / "m.gguf")
    (linear,) = stack("qkv", parts_of(tmp_path / "m.gguf"))
    assert (linear.name, linear.in_features, linear.out_features) == ("qkv", 64, 64 + 32 + 32)
    assert (linear.is_quantised, linear.type_name) == (True, "Q4_1")


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
