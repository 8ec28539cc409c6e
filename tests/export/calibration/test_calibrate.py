"""The stage that computes constants of 4-bit keys, on small models."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from edge_rt.errors import Cancelled
from edge_rt.export.calibration.calibrate import PASS_ROWS, STRIDE, calibrate
from edge_rt.export.calibration.key_constants import KeyConstants, better_constants, key_constants, key_statistics
from edge_rt.export.reference.expert_hits import Routing
from edge_rt.export.reference.forward import DecoderForward
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.blocks import unpermuted_rows
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.native import key_constant_names
from edge_rt.export.weights.weights_file import WeightsFile
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.system.machine import usable_cpus
from tests.helpers.family_cases import load_case, write_folder
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import Built
from tests.helpers.native_profile import require_native
from tests.helpers.packages import listing

IDS = [(3 + 37 * i + i * i // 5) % 419 for i in range(PASS_ROWS + 54)]


@pytest.fixture(autouse=True)
def _native():
    require_native()


def built(folder, **options):
    file = write_llama_gguf(folder / "m.gguf", **{"layers": 2, "context": 256} | options)
    (folder / "package").mkdir()
    model = Built(folder / "m.gguf", folder / "package", "int8", profile="native", is_calibrated=True)
    model.checkpoint = file.weights
    return model


def run(model, ids=IDS, on_progress=lambda done, total: None):
    """Calibrate and return every layer's constants as the package has them."""
    constants, warnings = run_and_hear(model, ids, on_progress)
    assert warnings == ()
    return constants


def run_and_hear(model, ids=IDS, on_progress=lambda done, total: None):
    """Calibrate and return every layer's constants as the package has them, and what is said about them."""
    folder = model.graph.parent
    _, warnings = calibrate(folder, model.weights, model.layout, model.decoder, ids, on_progress)
    return [stored(model, layer) for layer in range(model.used.num_layers)], warnings


def head_of(constants, head):
    return KeyConstants(*(array[head : head + 1] for array in constants.arrays))


def stored(model, layer):
    graph = ir.load(model.graph).graph
    return KeyConstants(*(graph.initializers[name].const_value.numpy() for name in key_constant_names(layer)))


def same(first, second, tolerance=0.0):
    return all(
        np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(first.arrays, second.arrays, strict=True)
    )


class TestConstants:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"heads": 2, "kv_heads": 1, "head_dim": 48},
            {"kv_heads": 4, "rope_freqs": True},
            {"types": {"blk.0.attn_q.weight": "Q8_0", "blk.1.ffn_up.weight": "Q8_0"}},
            {"extra_metadata": {"llama.attention.sliding_window": 40}},
        ],
        ids=["plain", "head size 48", "no groups", "mixed types", "window"],
    )
    def test_the_first_layer_has_those_of_its_keys_and_queries(self, tmp_path, options):
        """Its input are the embeddings, so that numpy has the same keys and queries but for activations' rounding."""
        model = built(tmp_path, **options)
        found = run(model)[0]
        keys, queries = first_layer(model, IDS)
        config = model.used
        group = config.num_heads // config.num_kv_heads
        positions = np.arange(0, len(IDS), STRIDE)
        for head in range(config.num_kv_heads):
            of_head = queries[::STRIDE, head * group : (head + 1) * group]
            statistics = key_statistics(
                keys[:, head], of_head, positions, scale=config.head_dim**-0.5, window=config.sliding_window
            )
            wanted = better_constants(keys[:, head], statistics, key_constants(statistics))
            for ours, theirs in zip(found.arrays, wanted.arrays, strict=True):
                np.testing.assert_allclose(ours[head], theirs[0], atol=0.03 * np.abs(theirs).max())

    def test_they_are_the_same_every_time(self, tmp_path):
        model = built(tmp_path)
        first = run(model)
        for before, after in zip(first, run(model), strict=True):
            assert same(before, after)

    def test_layers_differ(self, tmp_path):
        first, second = run(built(tmp_path))
        assert not same(first, second, tolerance=0.1)
        assert first.feedback.any()

    @pytest.mark.parametrize("count", [1, 2, STRIDE + 1, PASS_ROWS, PASS_ROWS + 1])
    def test_texts_of_any_length(self, tmp_path, count):
        for constants in run(built(tmp_path), IDS[:count]):
            assert all(np.isfinite(array).all() for array in constants.arrays)
            assert (constants.balance > 0).all()

    def test_nothing_else_of_the_weights_changes(self, tmp_path):
        model = built(tmp_path)
        path = model.graph.parent / WEIGHTS_FILE
        before = path.read_bytes()
        begin = min(model.layout.slots[key_constant_names(layer)[0]].offset for layer in range(2))
        run(model)
        after = path.read_bytes()
        assert after[:begin] == before[:begin]
        assert after[begin:] != before[begin:]
        assert len(after) == len(before)


class TestWork:
    def test_only_the_package_is_left_and_steps_are_told(self, tmp_path):
        model = built(tmp_path)
        steps = []
        run(model, on_progress=lambda done, total: steps.append((done, total)))
        assert listing(model.graph.parent) == ["model.onnx", WEIGHTS_FILE]
        assert steps == [(0, 4), (1, 4), (3, 4), (4, 4)]

    @pytest.mark.parametrize("stop_at", [0, 1, 3])
    def test_stopped_anywhere_it_leaves_no_graph(self, tmp_path, stop_at):
        model = built(tmp_path)

        def stop(done, total):
            if done == stop_at:
                raise Cancelled("stopped")

        with pytest.raises(Cancelled):
            run(model, on_progress=stop)
        assert listing(model.graph.parent) == ["model.onnx", WEIGHTS_FILE]

    def test_heads_that_half_precision_cannot_hold_have_neutral_constants(self, tmp_path):
        """Of two kv heads, the queries of the second are too large in the second layer."""
        query = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32) * 0.08
        query[32:] *= 1e6
        model = built(tmp_path, weights={"blk.1.attn_q.weight": query}, weight_type="F32")
        (first, second), (warning,) = run_and_hear(model)
        neutral = KeyConstants.neutral(1, model.used.head_dim)
        assert [same(head_of(second, head), neutral) for head in range(2)] == [False, True]
        assert not any(same(head_of(first, head), neutral) for head in range(2))
        assert warning.startswith("1 of 4 kv heads, the first in layer 1, have keys or queries that do not fit half")
        assert listing(model.graph.parent) == ["model.onnx", WEIGHTS_FILE]

    def test_keys_that_half_precision_cannot_hold(self, tmp_path):
        large = {"blk.1.attn_k.weight": np.full((32, 64), 3e4, np.float32)}
        model = built(tmp_path, weights=large, weight_type="F32")
        (first, second), warnings = run_and_hear(model)
        assert first.feedback.any()
        assert same(second, KeyConstants.neutral(2, model.used.head_dim))
        assert [warning.split(",")[0] for warning in warnings] == ["2 of 4 kv heads"]


class TestGraph:
    def test_attention_gets_the_constants_where_its_operators_take_them(self, tmp_path):
        graph = ir.load(built(tmp_path).graph).graph
        names = {node.op_type: [value and value.name for value in node.inputs] for node in graph}
        # All layers but the last are one operator.
        assert names["DecoderLayer"][17:20] == list(key_constant_names(0))
        assert names["SpecAttention"][11:14] == list(key_constant_names(1))

    def test_without_them_it_has_none(self, tmp_path):
        write_llama_gguf(tmp_path / "m.gguf")
        (tmp_path / "package").mkdir()
        plain = Built(tmp_path / "m.gguf", tmp_path / "package", "int8", profile="native")
        assert not any("key_" in name for name in ir.load(plain.graph).graph.initializers)


def first_layer(model, ids):
    """Return keys ``[tokens, kv_heads, head_dim]`` and queries of the first layer, in halves, by numpy."""
    weights, config = model.checkpoint, model.used
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    rows = weights["token_embd.weight"][ids].astype(np.float64)
    normed = rows / np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + config.norm_epsilon)
    normed *= weights["blk.0.attn_norm.weight"]
    query = weights["blk.0.attn_q.weight"][unpermuted_rows(heads, dim)]
    key = weights["blk.0.attn_k.weight"][unpermuted_rows(kv_heads, dim)]
    rates = config.ropes[0].base ** (-np.arange(0, dim, 2) / dim) / weights.get("rope_freqs.weight", 1.0)
    angles = np.arange(len(ids))[:, None, None] * rates

    def rotated(values):
        first, second = np.split(values, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(np.float16)

    keys = rotated((normed @ key.T).reshape(-1, kv_heads, dim))
    return keys, rotated((normed @ query.T).reshape(-1, heads, dim))


def logits(model, ids, kv_format):
    """Return the logits of a pass over all tokens, with a cache of a format."""
    inputs, outputs = model.profile.feeds(model.decoder, ids)
    form = KV_FORMAT[kv_format]
    inputs["kv_formats"][:] = form.id
    shape = (2, model.used.num_kv_heads, len(ids), form.row_bytes(model.used.head_dim))
    inputs |= {name: np.zeros(shape, np.uint8) for name in inputs if name.startswith("cache.")}
    binding = Session(model.graph, threads=pool_size() or usable_cpus(), profile="native").binding()
    for name, array in inputs.items():
        binding.bind_input(name, array)
    for name, array in outputs.items():
        binding.bind_output(name, array)
    binding.run(StopSwitch())
    return outputs["logits"]


def test_a_4_bit_cache_comes_nearer_to_a_float_one(tmp_path):
    """Of embeddings that have much in common the keys do, too."""
    draws = np.random.default_rng(5)
    common = draws.standard_normal(64) * 0.3
    weights = {"token_embd.weight": (draws.standard_normal((419, 64)) * 0.08 + common).astype(np.float32)}
    options = {"weights": weights, "weight_scale": 0.6, "rope_theta": 1e7, "kv_heads": 4}
    model = built(tmp_path, **options)
    run(model)
    (tmp_path / "plain").mkdir()
    plain = built(tmp_path / "plain", **options)
    folder = plain.graph.parent
    with WeightsFile(folder / WEIGHTS_FILE, plain.layout, is_new=False) as out:
        for layer in range(plain.used.num_layers):
            neutral = KeyConstants.neutral(plain.used.num_kv_heads, plain.used.head_dim)
            for name, array in zip(key_constant_names(layer), neutral.arrays, strict=True):
                out.write(plain.layout.slots[name], 0, array)
    others = [(11 + 53 * i + i * i // 3) % 419 for i in range(150)]
    exact = logits(plain, others, "f32")
    assert np.array_equal(logits(model, others, "f32"), exact)
    errors = [float(np.square(logits(one, others, "int4") - exact).mean()) for one in (model, plain)]
    assert errors[0] < 0.5 * errors[1]


def test_experts_of_written_weights_are_those_of_a_float_model(tmp_path):
    """The last layer computes few rows, and is not counted."""
    (tmp_path / "package").mkdir()
    path = write_folder(tmp_path / "folder", load_case("qwen3_moe"))
    model = Built(path, tmp_path / "package", "int8", profile="native", is_calibrated=True)
    ids, routing = [token % model.used.vocab_size for token in IDS], Routing()

    def add(layer, has):
        if layer < model.used.num_layers - 1:
            routing.add(layer, has)

    with TensorReader(model.source.paths) as stream:
        matrices = CheckpointMatrices(stream, model.source.tensors)
        forward = DecoderForward(
            matrices,
            model.source,
            model.decoder,
            product=lambda x, name: x @ np.concatenate(list(matrices.pieces(name))).T,
            on_routing=add,
        )
        x, tables = forward.embed(ids)[None], forward.rope(len(ids))
        for layer in range(model.used.num_layers):
            x = forward.layer(x, layer, tables, None)
    found, _ = calibrate(tmp_path / "package", model.weights, model.layout, model.decoder, ids, lambda *_: None)
    expected = routing.hits()
    assert found.tokens == expected.tokens == len(ids)
    np.testing.assert_allclose(found.hits, expected.hits, atol=0.03)
