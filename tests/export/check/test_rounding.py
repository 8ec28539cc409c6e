"""Which activations get 16 bits: those whose rounding changes the predictions most for what they take."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import onnx
import pytest

from edge_rt.export import export_model
from edge_rt.export.check.rounding import FINE_SHARE, _Input, choose_blocks, measured_tokens
from edge_rt.package.op_list import MAX_FINE_RUNS
from edge_rt.package.reader import open_package
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.native_profile import require_native

TOTAL = 1_000_000


def multiply_adds(chosen, inputs):
    return sum(32 * inputs[name].outputs * len(blocks) for name, blocks in chosen.items())


class TestChoice:
    def test_takes_what_costs_most_for_its_multiply_adds(self):
        inputs = {"layer0.down": _Input(100, 1), "head": _Input(1000, 1)}
        # The head's block costs twice as much as those of the layer, and takes ten times as long.
        costs = {"layer0.down": np.array([1.0, 1.0, 1.0, 0.9]), "head": np.array([2.0, 0.1])}
        assert choose_blocks(costs, inputs, TOTAL) == {"layer0.down": (0, 1, 2, 3), "head": (0,)}
        assert choose_blocks(costs, inputs, TOTAL // 5) == {"layer0.down": (0, 1, 2)}

    def test_stays_within_the_budget_whatever_costs(self):
        draws = np.random.default_rng(0)
        inputs = {f"layer{i}.qkv": _Input(int(draws.integers(50, 900)), 1) for i in range(30)}
        costs = {name: draws.exponential(size=18) for name in inputs}
        chosen = choose_blocks(costs, inputs, TOTAL * 10)
        assert 0.9 * FINE_SHARE * TOTAL * 10 < multiply_adds(chosen, inputs) <= FINE_SHARE * TOTAL * 10

    def test_units_are_whole(self):
        inputs = {"layer0.down": _Input(10, 8)}
        assert choose_blocks({"layer0.down": np.array([0.0, 3.0, 1.0])}, inputs, TOTAL)["layer0.down"] == (
            *range(8, 24),
        )

    def test_an_input_has_few_stretches(self):
        inputs = {"layer0.down": _Input(1, 1)}
        costs = {"layer0.down": np.array([1.0, 1e-9] * 40)}
        blocks = choose_blocks(costs, inputs, TOTAL * 100)["layer0.down"]
        assert len(blocks) == MAX_FINE_RUNS
        assert all(after - before == 2 for before, after in itertools.pairwise(blocks))

    def test_leaves_out_what_costs_next_to_nothing(self):
        costs = {"layer0.down": np.array([1.0, 1e-4])}
        assert choose_blocks(costs, {"layer0.down": _Input(1, 1)}, TOTAL) == {"layer0.down": (0,)}


def test_a_large_model_is_run_on_fewer_tokens():
    assert measured_tokens(135_000_000, 2048) == 256
    assert measured_tokens(135_000_000, 100) == 100
    assert 64 <= measured_tokens(7_000_000_000, 2048) < 128
    assert measured_tokens(70_000_000_000, 2048) == 64


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model one of whose embedding's dimensions is far larger than the others, as in trained ones."""
    require_native()
    folder = tmp_path_factory.mktemp("rounding")
    draws = np.random.default_rng(3)
    embedding = (draws.standard_normal((419, 256)) * 0.08).astype(np.float32)
    embedding[:, 37] = 6 * np.sign(draws.standard_normal(419))
    weights = {"token_embd.weight": embedding}
    return write_llama_gguf(folder / "m.gguf", hidden=256, heads=8, ffn=512, layers=4, weights=weights).path


def fine_attributes(package):
    nodes = onnx.load(package / "model.onnx", load_external_data=False).graph.node
    return {
        attribute.name: attribute.s.decode()
        for node in nodes
        for attribute in node.attribute
        if attribute.name.endswith("fine_blocks")
    }


def test_fine_blocks_bring_the_predictions_nearer_to_those_of_floats(model, tmp_path):
    auto = export_model(model, tmp_path / "auto", profile="native")
    plain = export_model(model, tmp_path / "int8", profile="native", activations="int8")
    assert plain.rounding is None
    rounding = auto.rounding
    # The large dimension lies in block 1 of what is normed.
    assert (1,) in {blocks for name, blocks in rounding.fine_blocks.items() if "qkv" in name}
    assert rounding.kl < 0.7 * rounding.int8_kl
    assert rounding.tokens > 60
    assert fine_attributes(tmp_path / "auto")["qkv_fine_blocks"] == "1"
    assert fine_attributes(tmp_path / "int8") == {}
    manifests = [open_package(tmp_path / name).manifest for name in ("auto", "int8")]
    assert [manifest.activations_choice for manifest in manifests] == ["auto", "int8"]
    assert manifests[0].rounding == dataclasses.replace(rounding)


def test_the_same_file_gives_the_same_blocks(model, tmp_path):
    for name in ("one", "other"):
        export_model(model, tmp_path / name, profile="native")
    one, other = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "other"))
    assert one == other


@pytest.mark.parametrize("options", [{"profile": "portable"}, {"profile": "native", "calibration": None}])
def test_without_a_measure_all_activations_have_8_bits(model, tmp_path, options):
    report = export_model(model, tmp_path / "p", activations="auto", **options)
    assert report.rounding is None
    assert open_package(tmp_path / "p").manifest.activations == "int8"
