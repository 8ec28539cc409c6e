from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import InvalidPackage
from edge_rt.export.check import CheckResult, check_token_ids, compare, require_close
from tests.helpers.graphs import Built
from tests.helpers.mistakes import (
    change_layer,
    gate_and_up_swapped,
    k_and_v_swapped,
    norms_swapped,
    other_epsilon,
    other_rope_base,
    q_as_in_the_file,
    v_rotated,
)
from tests.helpers.native_profile import require_native


def checked(built, activations="float"):
    ids = check_token_ids(built.config.vocab_size)
    found = built.run(ids)
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


@pytest.mark.parametrize(
    "mistake",
    [
        {"change_weights": change_layer(q_as_in_the_file)},
        {"change_weights": change_layer(v_rotated)},
        {"change_weights": change_layer(k_and_v_swapped)},
        {"change_weights": change_layer(gate_and_up_swapped)},
        {"change_config": other_epsilon},
    ],
    ids=["q order", "v order", "k and v", "gate and up", "epsilon"],
)
def test_a_wrong_native_graph_is_refused(small_gguf, tmp_path, mistake):
    require_native()
    built = Built(small_gguf, tmp_path, "int8", profile="native", **mistake)
    with pytest.raises(InvalidPackage, match="does not compute what the checkpoint says"):
        checked(built, "int8")


def test_a_right_native_graph_passes(small_gguf, tmp_path):
    require_native()
    checked(Built(small_gguf, tmp_path, "int8", profile="native"), "int8")


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
