"""A value inside a graph that becomes an output: what protobuf's own reader sees."""

from __future__ import annotations

import onnx
import pytest

from edge_rt.ort.session import with_float_output
from edge_rt.package.graph_check import check_graph


@pytest.fixture(scope="module")
def model(native_package):
    return (native_package / "model.onnx").read_bytes()


@pytest.mark.parametrize(("name", "size"), [("layer1.down", 64), ("x" * 200, 1 << 40)])
def test_the_output_is_added_and_nothing_else_changes(model, name, size):
    before, after = (
        onnx.load_from_string(data) for data in (model, with_float_output(model, name, ["logit_rows", size]))
    )
    *outputs, added = after.graph.output
    assert outputs == list(before.graph.output)
    del after.graph.output[-1]
    assert after == before
    assert added.name == name
    assert added.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    symbol, number = added.type.tensor_type.shape.dim
    assert (symbol.dim_param, number.dim_value) == ("logit_rows", size)


def test_the_check_of_graphs_reads_it(model, native_package, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(with_float_output(model, "layer1.down", ["logit_rows", 64]))
    check_graph(path, "weights.bin", (native_package / "weights.bin").stat().st_size)
