from __future__ import annotations

import onnx_ir as ir
import pytest

from edge_rt.export.graph.builder import IR_VERSION
from edge_rt.export.graph.portable import OPSETS
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import Built

MICROSOFT = {
    "MatMulNBits", "GatherBlockQuantized", "GroupQueryAttention", "SkipSimplifiedLayerNormalization", "QuickGelu",
}  # fmt: skip
EVERY_TYPE = {
    "embedding_type": "Q4_1", "output_type": "F16", "tied": False,
    "types": {"blk.0.attn_v.weight": "Q8_0", "blk.0.ffn_up.weight": "Q4_0", "blk.1.attn_output.weight": "F32"},
}  # fmt: skip


@pytest.fixture(params=["float", "int8"])
def model(request, tmp_path):
    write_llama_gguf(tmp_path / "m.gguf", **EVERY_TYPE)
    return request.param, ir.load(Built(tmp_path / "m.gguf", tmp_path, request.param).graph)


def test_only_operators_of_onnx_runtime(model):
    operators = {(node.domain, node.op_type) for node in model[1].graph}
    assert {op for domain, op in operators if domain} == MICROSOFT
    assert {domain for domain, _ in operators} == {"", "com.microsoft"}
    assert (model[1].ir_version, dict(model[1].opset_imports)) == (IR_VERSION, OPSETS)


def test_activations_choose_the_accuracy_level(model):
    levels = {n.attributes["accuracy_level"].as_int() for n in model[1].graph if n.op_type == "MatMulNBits"}
    assert levels == {{"float": 1, "int8": 4}[model[0]]}


def test_every_name_is_defined_once(model):
    graph = model[1].graph
    names = [value.name for value in graph.inputs] + list(graph.initializers)
    names += [value.name for node in graph for value in node.outputs if value.name]
    assert len(names) == len(set(names))
    assert len({node.name for node in graph}) == len(list(graph))


def test_weights_lie_outside(model):
    for value in model[1].graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            assert str(tensor.location) == "weights.bin"
        else:
            assert tensor.nbytes <= 64


@pytest.mark.parametrize(("window", "found"), [(0, None), (16, 16)])
def test_a_sliding_window_is_the_operators(tmp_path, window, found):
    write_llama_gguf(tmp_path / "m.gguf", extra_metadata={"llama.attention.sliding_window": window})
    graph = ir.load(Built(tmp_path / "m.gguf", tmp_path).graph).graph
    attributes = [node.attributes.get("local_window_size") for node in graph if node.op_type == "GroupQueryAttention"]
    assert [attribute and attribute.as_int() for attribute in attributes] == [found] * 2
