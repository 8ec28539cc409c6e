from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edge_rt.errors import InvalidPackage
from edge_rt.export.check import CheckResult, check_token_ids, compare, require_close, run_graph
from edge_rt.export.linear import Linear
from tests.helpers.graphs import Built


def change_layer(change):
    """Return a change of the weights that replaces a matrix of the first layer."""

    def apply(weights):
        return dataclasses.replace(weights, layers=(change(weights.layers[0]), *weights.layers[1:]))

    return apply


def parts_of(linears, name, order):
    parts = [part for linear in linears for part in linear.parts]
    return (Linear(name, tuple(parts[i] for i in order)),)


def q_as_in_the_file(layer):
    parts = list(layer.qkv[0].parts)
    parts[0] = dataclasses.replace(parts[0], row_order=None)
    return dataclasses.replace(layer, qkv=(Linear("layer0.qkv", tuple(parts)),))


def v_rotated(layer):
    parts = list(layer.qkv[0].parts)
    parts[2] = dataclasses.replace(parts[2], row_order=parts[1].row_order)
    return dataclasses.replace(layer, qkv=(Linear("layer0.qkv", tuple(parts)),))


def k_and_v_swapped(layer):
    return dataclasses.replace(layer, qkv=parts_of(layer.qkv, "layer0.qkv", (0, 2, 1)))


def gate_and_up_swapped(layer):
    return dataclasses.replace(layer, gate_up=parts_of(layer.gate_up, "layer0.gate_up", (1, 0)))


def norms_swapped(weights):
    vectors = weights.vectors
    return dataclasses.replace(weights, vectors=vectors | {"layer0.mlp_norm": vectors["layer1.attention_norm"]})


def other_rope_base(config):
    return dataclasses.replace(config, rope_theta=5000.0)


def other_epsilon(config):
    return dataclasses.replace(config, rms_norm_eps=0.01)


def checked(built, activations="float"):
    ids = check_token_ids(built.config.vocab_size)
    found = run_graph(built.graph, built.model, ids)
    require_close(compare(built.reference(ids), found, activations))


@pytest.mark.parametrize("activations", ["float", "int8"])
def test_a_right_graph_passes(small_gguf, tmp_path, activations):
    checked(Built(small_gguf, tmp_path, activations), activations)


@pytest.mark.parametrize(
    "mistake",
    [
        {"change_weights": change_layer(q_as_in_the_file)},
        {"change_weights": change_layer(v_rotated)},
        {"change_weights": change_layer(k_and_v_swapped)},
        {"change_weights": change_layer(gate_and_up_swapped)},
        {"change_weights": norms_swapped},
        {"change_config": other_rope_base},
        {"change_config": other_epsilon},
    ],
    ids=["q order", "v order", "k and v", "gate and up", "norms", "rope base", "epsilon"],
)
def test_a_wrong_graph_is_refused(small_gguf, tmp_path, mistake):
    built = Built(small_gguf, tmp_path, **mistake)
    with pytest.raises(InvalidPackage, match="does not compute what the checkpoint says"):
        checked(built)


def test_a_flipped_byte_of_the_weights_is_refused(small_gguf, tmp_path):
    built = Built(small_gguf, tmp_path)
    weights = tmp_path / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[built.layout.slots["layer0.qkv.scale"].offset + 3] ^= 0x08
    weights.write_bytes(data)
    with pytest.raises(InvalidPackage, match="does not compute"):
        checked(built)


class TestCompare:
    REFERENCE = np.random.default_rng(0).standard_normal((6, 50))

    def test_equal(self):
        result = compare(self.REFERENCE, self.REFERENCE, "float")
        assert (result.relative_error, result.top1_agreement) == (0.0, 1.0)
        assert result.mean_kl == pytest.approx(0, abs=1e-12)

    def test_noise_is_measured_in_standard_deviations(self):
        found = self.REFERENCE + 0.1 * self.REFERENCE.std()
        result = compare(self.REFERENCE, found, "float")
        assert result.relative_error == pytest.approx(0.1)
        assert result.mean_kl == pytest.approx(0, abs=1e-12)

    def test_unrelated(self):
        result = compare(self.REFERENCE, self.REFERENCE[::-1], "float")
        assert result.relative_error > 1
        assert result.mean_kl > 0.5

    @pytest.mark.parametrize(("activations", "error"), [("float", 3e-3), ("int8", 0.3), ("float", float("nan"))])
    def test_what_is_refused(self, activations, error):
        with pytest.raises(InvalidPackage, match=f"with {activations} activations"):
            require_close(CheckResult(activations, error, 1.0, 0.0))


def test_token_ids_spread_over_the_vocabulary():
    ids = check_token_ids(49152)
    assert len(set(ids)) == 24
    assert all(0 <= token < 49152 for token in ids)
    assert set(check_token_ids(1)) == {0}
