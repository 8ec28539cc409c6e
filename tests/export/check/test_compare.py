from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import InvalidPackage, StorageError
from edge_rt.export.check.compare import (
    MAX_ERROR,
    CheckResult,
    check_token_ids,
    compare,
    compare_steps,
    require_close,
    run_steps,
)
from edge_rt.export.reference.reference import Step
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import Built
from tests.helpers.mistakes import (
    change_layer,
    epsilon_of_another_model,
    final_norm_of_a_layer,
    gate_and_up_swapped,
    k_and_v_swapped,
    norms_of_a_layer_swapped,
    norms_swapped,
    other_epsilon,
    other_rope_base,
    q_as_in_the_file,
    rope_base_a_tenth_off,
    v_rotated,
)
from tests.helpers.native_profile import require_native
from tests.helpers.packages import listing

IDS = check_token_ids(419)


def checked(built, activations="float"):
    ids = check_token_ids(built.decoder.vocab_size)
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
        {"change_decoder": other_rope_base},
        {"change_decoder": other_epsilon},
    ],
    ids=["q order", "v order", "k and v", "gate and up", "norms", "rope base", "epsilon"],
)
def test_a_wrong_graph_is_refused(small_gguf, tmp_path, mistake):
    built = Built(small_gguf, tmp_path, **mistake)
    with pytest.raises(InvalidPackage, match="does not compute what the checkpoint says"):
        checked(built)


class TestNativeSteps:
    """The native graph rounds activations; step by step it is nearer to the reference than a fault would leave it."""

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"weight_type": "Q4_0", "embedding_type": "Q4_0", "layers": 5},
            {"weight_type": "Q8_0", "tied": False, "kv_heads": 4},
            {"weight_type": "F16", "embedding_type": "F32"},
            {"types": {"blk.1.attn_q.weight": "Q8_0", "blk.0.ffn_up.weight": "Q8_0"}},
            {"layers": 1, "rope_freqs": True},
            {"layers": 8, "hidden": 128, "heads": 8, "head_dim": 32, "ffn": 384},
        ],
    )
    @pytest.mark.parametrize("seed", [0, 1])
    def test_a_right_graph_passes(self, tmp_path, options, seed):
        require_native()
        write_llama_gguf(tmp_path / "m.gguf", seed=seed, **options)
        result = Built(tmp_path / "m.gguf", tmp_path, "int8", profile="native").check_steps(IDS)
        require_close(result)
        # Far below the limits, which leave room for larger models.
        assert result.steps.largest < 0.5
        assert result.steps.typical < 1e-3

    def test_values_between_two_codes_may_fall_either_way(self, tmp_path):
        """The first layer of an untrained model: norms of 1, and embeddings with halves of their largest neighbour."""
        require_native()
        ones = {f"blk.{i}.{kind}_norm.weight": np.ones(64, np.float32) for i in range(2) for kind in ("attn", "ffn")}
        write_llama_gguf(tmp_path / "m.gguf", seed=1, weight_type="Q8_0", embedding_type="Q4_0", weights=ones)
        result = Built(tmp_path / "m.gguf", tmp_path, "int8", profile="native").check_steps(IDS)
        assert result.steps.largest > 0.5  # many did
        require_close(result)

    @pytest.mark.parametrize(
        ("mistake", "message"),
        [
            ({"change_weights": change_layer(q_as_in_the_file)}, ""),
            ({"change_weights": change_layer(v_rotated)}, ""),
            ({"change_weights": change_layer(k_and_v_swapped)}, ""),
            ({"change_weights": change_layer(gate_and_up_swapped)}, ""),
            ({"change_decoder": other_epsilon}, ""),
            ({"change_weights": norms_swapped}, "Error of layer 0:"),
            ({"change_weights": norms_of_a_layer_swapped}, "Error of layer 1:"),
            ({"change_weights": final_norm_of_a_layer}, "Error of head:"),
            ({"change_decoder": other_rope_base}, "Error of layer 0:"),
            ({"change_decoder": rope_base_a_tenth_off}, "Typical error of a layer:"),
            ({"change_decoder": epsilon_of_another_model}, "Typical error of a layer:"),
        ],
        ids=["q", "v", "k and v", "gate and up", "epsilon", "norms", "norms of a layer", "final norm", "rope base",
             "rope base a tenth off", "epsilon of another model"],
    )  # fmt: skip
    def test_a_wrong_graph_is_refused(self, small_gguf, tmp_path, mistake, message):
        require_native()
        result = Built(small_gguf, tmp_path, "int8", profile="native", **mistake).check_steps(IDS)
        with pytest.raises(InvalidPackage, match="does not compute what the checkpoint says") as caught:
            require_close(result)
        assert message in caught.value.numbers
        # The logits alone show the coarse ones only.
        assert (result.relative_error <= MAX_ERROR["int8"]) == bool(message)

    def test_the_step_is_named(self, small_gguf, tmp_path):
        require_native()
        built = Built(small_gguf, tmp_path, "int8", profile="native", change_weights=norms_of_a_layer_swapped)
        steps = built.check_steps(IDS).steps
        assert steps.step == "layer 1"
        assert steps.largest > 4

    def test_no_room_for_the_copy_with_more_outputs(self, small_gguf, tmp_path):
        require_native()
        built = Built(small_gguf, tmp_path, "int8", profile="native")
        (tmp_path / "steps-model.onnx").mkdir()
        with pytest.raises(StorageError, match="The graph could not be written"):
            run_steps(built.graph, built.decoder, IDS, built.profile)

    def test_the_copy_with_more_outputs_is_removed(self, small_gguf, tmp_path):
        require_native()
        built = Built(small_gguf, tmp_path, "int8", profile="native")
        before = listing(tmp_path)
        streams = run_steps(built.graph, built.decoder, IDS, built.profile)
        assert [stream.shape for stream in streams] == [(24, 64)] * 3
        assert listing(tmp_path) == before


class TestCompareSteps:
    ROWS = np.random.default_rng(1).standard_normal((4, 6, 8))

    def steps(self, noise):
        """Three layers and a head of the same width, each of which adds 1; rounding moves every value by 0.1."""
        streams = [self.ROWS[0] + layer for layer in range(4)]
        results = [Step(streams[0], streams[0])]
        results += [Step(stream + 1, stream + 1.1) for stream in streams[:3]]
        results.append(Step(self.ROWS[1], self.ROWS[1] + 0.1))
        found = [streams[0], *(result.rounded + extra for result, extra in zip(results[1:4], noise, strict=True))]
        # What a layer is given is what the one before it really gave.
        return found, results

    def test_equal(self):
        streams, results = self.steps([0, 0, 0])
        found = compare_steps(streams, results[-1].rounded, results)
        assert (found.largest, found.typical) == (0, 0)

    def test_the_largest_and_the_typical(self):
        streams, results = self.steps([0.3, 0.05, 0.02])
        found = compare_steps(streams, results[-1].rounded, results)
        assert found.step == "layer 0"
        assert found.largest == pytest.approx(3, rel=0.05)
        assert found.typical == pytest.approx(0.2, rel=0.05)

    @pytest.mark.parametrize(("noise", "typical"), [([0, 0.05], 0), ([0.02, 0.05], 0.2), ([0.05, 0.02], 0.2)])
    def test_of_two_layers_the_smaller_error(self, noise, typical):
        """A value that is rounded the other way in an early row changes all later rows of one layer."""
        streams, results = self.steps([*noise, 0])
        found = compare_steps(streams[:3], results[-1].rounded, [*results[:3], results[-1]])
        assert found.typical == pytest.approx(typical, rel=0.05)

    def test_the_head(self):
        streams, results = self.steps([0, 0, 0])
        found = compare_steps(streams, results[-1].rounded + 0.4, results)
        assert found.step == "head"
        assert found.largest == pytest.approx(4, rel=0.05)

    def test_an_embedding_of_another_token(self):
        streams, results = self.steps([0, 0, 0])
        streams[0] = streams[0][::-1]
        found = compare_steps(streams, results[-1].rounded, results)
        assert found.step == "embedding"
        assert found.largest > 100

    def test_what_is_no_number_is_refused(self):
        streams, results = self.steps([0, float("nan"), 0])
        steps = compare_steps(streams, results[-1].rounded, results)
        assert steps.step == "layer 1"
        with pytest.raises(InvalidPackage, match="Error of layer 1: nan"):
            require_close(CheckResult("int8", 0.01, 1.0, 0.0, steps))


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
