"""A traced graph, before and behind what an export makes of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from edge_rt.errors import UnsupportedModel, VersionMismatch
from edge_rt.export.traced import store
from edge_rt.export.traced.interface import find_interface
from edge_rt.export.traced.pass_memory import packed_and_mapped, pass_points
from edge_rt.export.traced.passes import TracedPasses
from edge_rt.export.traced.rewrite import adapt
from edge_rt.export.traced.store import simplify, write_out
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.graph_check import check_graph
from tests.helpers.tiny_package import DIMENSIONS
from tests.helpers.traced_factory import (
    CONTEXT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    SCHEMES,
    VOCAB,
    TracedModel,
    traced_graph,
)

MODEL = TracedModel()
IDS = [(5 + 41 * i) % len(VOCAB) for i in range(40)]
CONFIG = dataclasses.replace(
    DIMENSIONS, num_layers=LAYERS, num_kv_heads=HEADS, head_dim=HEAD_DIM, vocab_size=len(VOCAB)
)
VARIANTS = {
    "as transformers": {},
    "as optimum": {"scheme": "optimum", "takes_mask": True},
    "cache computed": {"appends": False},
    "head not found": {"has_plain_head": False},
}


@dataclasses.dataclass
class Written:
    path: object
    model: object
    narrows: bool
    points: tuple


def write(folder, **options):
    model = write_out(traced_graph(MODEL, **options))
    interface = find_interface(model.graph, "a model", "a tracer 1.0")
    narrows = adapt(model, interface, len(VOCAB), "a model")
    simplify(model, "edge-rt")
    symbols = {"s0": "past", "s1": "rows"}
    store.write_weights(model, store.place(model), folder, lambda done, total: None)
    points = pass_points(model, symbols)
    store.write_graph(model, folder / "model.onnx")
    return Written(folder / "model.onnx", model, narrows, points)


@pytest.fixture(scope="module", params=VARIANTS)
def written(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp("traced"), **VARIANTS[request.param])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("sizes", [(40,), (13, 1, 5, 1, 1, 8, 11), (1,) * 12])
def test_passes_give_the_logits_of_the_whole(written, sizes):
    passes = TracedPasses(written.path, CONFIG, CONTEXT)
    ends = np.cumsum(sizes).tolist()
    found = np.concatenate([passes.run(IDS[end - size : end]) for end, size in zip(ends, sizes, strict=True)])
    expected = MODEL.logits(IDS)[: ends[-1]]
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_rolling_back_is_a_length(plain):
    passes = TracedPasses(plain.path, CONFIG, CONTEXT)
    passes.run(IDS[:20])
    passes.length = 12
    passes.run([3, 3, 3])
    passes.length = 12
    expected = MODEL.logits(IDS)[12:20]
    assert np.abs(passes.run(IDS[12:20]) - expected).max() < 1e-5 * np.abs(expected).max()


def test_the_head_computes_only_the_rows_that_are_asked_for(plain, tmp_path):
    assert plain.narrows
    assert not write(tmp_path, has_plain_head=False).narrows
    heads = [node for node in plain.model.graph if node.op_type == "FusedMatMul"]
    assert heads[-1].inputs[0].producer().op_type == "Gather"


@pytest.mark.parametrize("rows", [[0], [6, 2], [7, 7, 0]])
def test_any_rows_may_want_logits(written, rows):
    session = Session(written.path, threads=pool_size() or 2, profile="traced")
    binding, logits = session.binding(), np.empty((len(rows), len(VOCAB)), np.float32)
    binding.bind_input("input_ids", np.asarray(IDS[:8]))
    binding.bind_input("logit_rows", np.asarray(rows))
    binding.bind_output("logits", logits)
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            binding.bind_input(f"past.{layer}.{kind}", np.empty((0, HEADS, HEAD_DIM), np.float32))
            binding.bind_output(f"new.{layer}.{kind}", np.empty((8, HEADS, HEAD_DIM), np.float32))
    binding.run(StopSwitch())
    expected = MODEL.logits(IDS[:8])[rows]
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()


def test_the_file_tells_nothing_of_the_machine_and_reads_weights_bin_alone(written):
    data = written.path.read_bytes()
    assert b"someone" not in data
    assert b"traced" not in data
    check_graph(written.path, "weights.bin", (written.path.parent / "weights.bin").stat().st_size)


def test_turned_weights_are_stored_once_and_packed_without_a_copy(plain):
    weights = sum(values.nbytes for values in MODEL.weights.values() if values.nbytes >= store.SMALLEST_STORED)
    size = (plain.path.parent / "weights.bin").stat().st_size
    assert weights <= size < weights + 4096 * len(MODEL.weights)
    assert not [node for node in plain.model.graph if node.op_type == "Transpose" and node.inputs[0].is_initializer()]
    packed, mapped = packed_and_mapped(plain.model.graph)
    columns = -(-len(VOCAB) // 16) * 16
    assert packed == 4 * HIDDEN * (columns + 4 * LAYERS * HIDDEN)
    # The embedding is the head as well; the positions are looked up in.
    assert mapped == MODEL.weights["embedding"].nbytes + MODEL.weights["positions"].nbytes


def test_the_most_memory_of_a_pass_covers_scores_and_a_layers_cache(plain):
    rows, tokens = 16, 64
    most = max(point.total(rows, tokens, 1) for point in plain.points)
    scores = 4 * HEADS * rows * tokens
    cache = 4 * HEADS * HEAD_DIM * tokens
    assert scores + cache <= most <= 4 * scores + 6 * cache + 4 * 8 * HIDDEN * rows


def test_a_cache_that_is_computed_stays_alive(plain, tmp_path):
    """A result that needs the whole of a layer's cache keeps all layers' in memory until the end."""
    most = max(point.total(1, 4096, 1) for point in plain.points)
    other = max(point.total(1, 4096, 1) for point in write(tmp_path, appends=False).points)
    assert other > most + 4 * HEADS * HEAD_DIM * 4096 * (LAYERS - 1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_keys_and_values_are_known_by_the_names_of_every_exporter(scheme):
    found = find_interface(traced_graph(MODEL, scheme).graph, "a model", "a tracer 1.0")
    assert [*found.caches] == [(layer, kind) for layer in range(LAYERS) for kind in ("key", "value")]
    assert found.dimensions["s0"] == "past"


class TestRefused:
    def test_keys_and_values_of_unknown_names(self):
        """Not the model is at fault, but the version of the exporter."""
        model = traced_graph(MODEL)
        for value in (*model.graph.inputs, *model.graph.outputs):
            value.name = value.name.replace("cache.layers", "memory.blocks")
        with pytest.raises(VersionMismatch, match=r"tracer 1\.0 wrote input\.memory.* or 5\.24"):
            find_interface(model.graph, "a model", "a tracer 1.0")

    def test_another_state(self):
        model = traced_graph(MODEL)
        state = ir.Value(
            name="cache_params.conv_states.0", shape=ir.Shape([1, 4]), type=ir.TensorType(ir.DataType.FLOAT)
        )
        model.graph.inputs.append(state)
        model.graph.append(ir.node("Tanh", [state]))
        with pytest.raises(UnsupportedModel, match=r"a state other than keys and values.*conv_states"):
            find_interface(model.graph, "a model", "a tracer 1.0")

    def test_a_state_that_is_handed_through_is_none(self):
        model = traced_graph(MODEL)
        state = ir.Value(name="counter", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
        copy = ir.node("Identity", [state])
        copy.outputs[0].name = "counter.after"
        model.graph.inputs.append(state)
        model.graph.append(copy)
        model.graph.outputs.append(copy.outputs[0])
        assert find_interface(model.graph, "a model", "a tracer 1.0").num_layers == LAYERS

    def test_a_layer_without_values(self):
        model = traced_graph(MODEL)
        del model.graph.outputs[-1]
        with pytest.raises(UnsupportedModel, match="keys and values in every layer"):
            find_interface(model.graph, "a model", "a tracer 1.0")

    def test_caches_of_different_shapes(self):
        model = traced_graph(MODEL)
        model.graph.inputs[-1].shape = ir.Shape([1, HEADS, "s0", 2 * HEAD_DIM])
        with pytest.raises(UnsupportedModel, match=r"different shapes.*2 x 16, 2 x 8"):
            find_interface(model.graph, "a model", "a tracer 1.0")

    def test_old_operators(self):
        model = traced_graph(MODEL)
        model.graph.opset_imports[""] = 13
        with pytest.raises(UnsupportedModel, match="of version 13, at least 15"):
            adapt(model, find_interface(model.graph, "a model", "a tracer 1.0"), len(VOCAB), "a model")
