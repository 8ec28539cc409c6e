"""The native graph as it is written; what it computes is compared in test_llama_graph.py."""

from __future__ import annotations

import collections
import itertools

import onnx_ir as ir
import pytest

from edge_rt.export.graph.builder import IR_VERSION
from edge_rt.export.graph.native import NativeBuilder
from edge_rt.export.graph.native_products import OPSETS
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.op_list import OPS
from tests.helpers.fake_model import tiny_model
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import Built

EVERY_TYPE = {
    "embedding_type": "Q4_1", "output_type": "F16", "tied": False,
    "types": {"blk.0.attn_v.weight": "Q8_0", "blk.0.ffn_up.weight": "Q4_0", "blk.1.attn_output.weight": "F32"},
}  # fmt: skip
FLOATS = {"types": {"blk.0.attn_v.weight": "F16", "blk.0.ffn_up.weight": "F16"}}
PLAIN = {"layers": 3}


@pytest.fixture
def load(tmp_path):
    def build(**options):
        write_llama_gguf(tmp_path / "m.gguf", **options)
        return ir.load(Built(tmp_path / "m.gguf", tmp_path, "int8", profile="native").graph)

    return build


@pytest.fixture(params=[PLAIN, EVERY_TYPE], ids=["plain", "every type"])
def model(request, load):
    return load(**request.param)


def input_names(node):
    return [value.name if value is not None else None for value in node.inputs]


def described(values):
    return [
        (v.name, v.dtype.name, [str(d.value if isinstance(d, ir.SymbolicDim) else d) for d in v.shape]) for v in values
    ]


def test_operators_and_versions(model):
    domains = {node.domain for node in model.graph}
    assert {node.op_type for node in model.graph if node.domain == ""} <= {"Gather", "Concat"}
    assert domains == {"", "edge_rt"}
    assert (model.ir_version, dict(model.opset_imports)) == (IR_VERSION, OPSETS)


def test_every_operator_is_used_as_it_is_declared(model):
    declared = {op.name: op for op in OPS}
    for node in model.graph:
        if node.domain != "edge_rt":
            continue
        op = declared[node.op_type]
        assert len(node.outputs) == len(op.outputs)
        assert len(node.inputs) <= len(op.inputs)
        assert node.inputs[-1] is not None
        given = itertools.chain(node.inputs, itertools.repeat(None))
        assert all(value is not None or port.is_optional for port, value in zip(op.inputs, given, strict=False))
        assert set(node.attributes) <= set(op.attributes)
        needed = {name for name, kind in op.attributes.items() if not kind.endswith("?")}
        assert needed <= set(node.attributes)
        for name, attribute in node.attributes.items():
            assert attribute.type.name.lower() == op.attributes[name].rstrip("?")


def test_the_interface(model):
    layers = len([n for n in model.graph if n.op_type in ("SpecAttention", "DecoderLayer")])
    cache = [(f"cache.{i}", "UINT8", ["2", "2", "capacity", "row_bytes"]) for i in range(layers)]
    assert described(model.graph.inputs) == [
        ("input_ids", "INT64", ["rows"]),
        ("logit_rows", "INT64", ["logit_rows"]),
        ("past_length", "INT32", ["sequences"]),
        ("row_map", "INT32", ["sequences", "positions"]),
        ("parents", "INT32", ["rows"]),
        ("sequence_rows", "INT32", ["sequences"]),
        ("kv_formats", "INT32", [str(layers)]),
        *cache,
    ]
    assert described(model.graph.outputs) == [
        ("logits", "FLOAT", ["logit_rows", "419"]),
        ("top_ids", "INT32", ["logit_rows", "8"]),
        ("top_logits", "FLOAT", ["logit_rows", "8"]),
        ("log_sum_exp", "FLOAT", ["logit_rows"]),
    ]


def test_layers_with_a_sliding_window(load):
    graph = load(**PLAIN, extra_metadata={"llama.attention.sliding_window": 16}).graph
    inputs = {name: shape for name, _, shape in described(graph.inputs)}
    assert inputs["window_row_map"] == ["sequences", "positions"]
    assert "row_map" not in inputs
    assert inputs["cache.2"] == ["2", "2", "window_rows", "row_bytes"]
    layers = [node for node in graph if node.op_type in ("SpecAttention", "DecoderLayer")]
    assert [(node.attributes["window"].as_int(), input_names(node)[3]) for node in layers] == [
        (16, "window_row_map")
    ] * 3


def test_without_a_sliding_window_nothing_is_said_of_one(model):
    for node in model.graph:
        assert "window" not in node.attributes


def test_a_vocabulary_of_fewer_tokens_than_are_looked_for():
    builder = NativeBuilder(WeightsLayout(), tiny_model(vocab_size=5))
    graph = builder.model(ir.Value(name="logits"), "test").graph
    (node,) = graph
    assert (node.op_type, node.attributes["k"].as_int()) == ("RowTopK", 5)
    assert described(graph.outputs)[1] == ("top_ids", "INT32", ["logit_rows", "5"])


def test_a_layer_is_one_operator_and_the_last_one_five(load):
    """Norms, residual sums and the gate are parts of the products; the last layer drops rows in its middle."""
    kinds = collections.Counter(node.op_type for node in load(**PLAIN).graph)
    assert kinds == {
        "QuantEmbed": 1, "DecoderLayer": 2, "QuantLinear": 4 + 1, "SpecAttention": 1, "Gather": 2, "RowTopK": 1,
    }  # fmt: skip


def test_only_wanted_rows_pass_the_last_attention(load):
    nodes = {node.outputs[0].name: node for node in load(**PLAIN).graph}
    assert input_names(nodes["attention.wanted"]) == ["layer2.attention", "logit_rows"]
    assert input_names(nodes["residual.wanted"]) == ["layer1", "logit_rows"]
    output = input_names(nodes["layer2.output"])
    assert output == ["attention.wanted", "layer2.output.tiles", None, None, "residual.wanted"]
    assert input_names(nodes["logits"]) == ["layer2.down", "embedding.tiles", "final_norm"]


def test_floats_beside_codes_are_products_of_their_own(load):
    nodes = {node.outputs[0].name: node for node in load(**FLOATS).graph}
    assert input_names(nodes["layer0.qkv"]) == ["layer0.qkv.0", "layer0.qkv.1"]
    assert nodes["layer0.qkv"].op_type == "Concat"
    gate, hidden = nodes["layer0.hidden.gate"], nodes["layer0.hidden"]
    assert gate.attributes["activation"].as_string() == "none"
    assert hidden.attributes["activation"].as_string() == "swiglu"
    assert input_names(hidden)[1:] == ["layer0.gate_up.up.tiles", "layer0.mlp_norm", None, None, "layer0.hidden.gate"]
    assert hidden.attributes["out_features"].as_int() == 128
    paired = nodes["layer1.hidden"]
    assert (len(paired.inputs), paired.attributes["out_features"].as_int()) == (3, 256)


def test_a_tied_embedding_is_one_tensor(load):
    graph = load(**PLAIN).graph
    users = [node.op_type for node in graph if "embedding.tiles" in input_names(node)]
    assert users == ["QuantEmbed", "QuantLinear"]
    assert "head.tiles" not in graph.initializers


def test_an_untied_head_is_its_own(load):
    graph = load(**PLAIN, tied=False).graph
    users = {name: [n.op_type for n in graph if name in input_names(n)] for name in ("embedding.tiles", "head.tiles")}
    assert users == {"embedding.tiles": ["QuantEmbed"], "head.tiles": ["QuantLinear"]}


def test_every_name_is_defined_once(model):
    names = [value.name for value in model.graph.inputs] + list(model.graph.initializers)
    names += [value.name for node in model.graph for value in node.outputs if value.name]
    assert len(names) == len(set(names))
    assert len({node.name for node in model.graph}) == len(list(model.graph))


def test_weights_lie_outside(model):
    for value in model.graph.initializers.values():
        assert isinstance(value.const_value, ir.ExternalTensor)
        assert str(value.const_value.location) == "weights.bin"
