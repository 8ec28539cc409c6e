"""Folders with packed matrices: which tensors make a matrix, what stays a float, and inputs in another order."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edge_rt.errors import EdgeRTError, InvalidModelFile, UnsupportedModel
from edge_rt.export.entry import open_checkpoint
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.packed import PackedTensor
from edge_rt.export.weights.matrices import CheckpointMatrices
from tests.helpers.examples import share_of
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.graphs import matrices_and_logits
from tests.helpers.packed_factory import (
    SETTINGS,
    WRITERS,
    gptq,
    random_matrix,
    write_float_folder,
    write_packed_folder,
)

SIZES = {"layers": 1, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256}
FLOATS = {"weight_type": "F32", "embedding_type": "F32", "output_type": "F32", "tied": False}
DOWN, GATE, UP = (f"model.layers.0.mlp.{kind}_proj" for kind in ("down", "gate", "up"))
QUERY = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_llama_gguf(tmp_path_factory.mktemp("m") / "m.gguf", **SIZES, **FLOATS)


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_are_those_of_the_folder_with_floats(name, model, tmp_path):
    packed = write_packed_folder(tmp_path / "packed", model, name)
    assert len(packed) == 7
    ours, logits = matrices_and_logits(tmp_path / "packed")
    expected, wanted = matrices_and_logits(write_float_folder(tmp_path / "floats", model, packed))
    assert ours.keys() == expected.keys()
    for tensor, values in expected.items():
        np.testing.assert_array_equal(ours[tensor], values, err_msg=tensor)
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:auto_awq"])
def test_zero_points_of_auto_round(form, model, tmp_path):
    """Less 1, as they are, and as they are in the order of AWQ."""
    name = {"auto_round:auto_gptq": "gptq", "auto_round:gptqmodel": "gptq_v2", "auto_round:auto_awq": "awq"}[form]
    packed = write_packed_folder(
        tmp_path / "m", model, name, settings=SETTINGS["auto-round"] | {"packing_format": form}
    )
    found, _ = matrices_and_logits(tmp_path / "m")
    np.testing.assert_array_equal(found["blk.0.ffn_down.weight"], packed[DOWN].values)


def test_matrices_that_are_left_out_stay_floats(model, tmp_path):
    packed = write_packed_folder(tmp_path / "m", model, "awq", floats=(QUERY, DOWN))
    tensors = open_checkpoint(tmp_path / "m")[0].tensors
    assert len(packed) == 5
    assert {name: tensor.type_name for name, tensor in tensors.items() if name.startswith("blk")} == {
        "blk.0.attn_norm.weight": "F32", "blk.0.ffn_norm.weight": "F32", "blk.0.attn_q.weight": "F32",
        "blk.0.attn_k.weight": "W4Z128", "blk.0.attn_v.weight": "W4Z128", "blk.0.attn_output.weight": "W4Z128",
        "blk.0.ffn_gate.weight": "W4Z128", "blk.0.ffn_up.weight": "W4Z128", "blk.0.ffn_down.weight": "F32",
    }  # fmt: skip


def test_a_packed_embedding_and_head(model, tmp_path):
    rng, vocabulary = np.random.default_rng(0), model.config["vocab"]
    tables = {name: random_matrix(rng, vocabulary, 128, 128, zeros=(0, 15)) for name in ("embed_tokens", "lm_head")}
    tensors = {}
    for name, matrix in tables.items():
        prefix = "model.embed_tokens." if name == "embed_tokens" else "lm_head."
        written = WRITERS["compressed-tensors"](matrix)
        tensors |= {prefix + "weight": None, **{prefix + suffix: part for suffix, part in written.items()}}
    write_packed_folder(tmp_path / "m", model, "compressed-tensors", tensors=tensors)
    found, _ = matrices_and_logits(tmp_path / "m")
    np.testing.assert_array_equal(found["token_embd.weight"], tables["embed_tokens"].values)
    np.testing.assert_array_equal(found["output.weight"], tables["lm_head"].values)
    source, _ = open_checkpoint(tmp_path / "m")
    with TensorReader(source.paths) as reader:
        rows = CheckpointMatrices(reader, source.tensors).rows("token_embd.weight", [3, 0, 7])
    np.testing.assert_array_equal(rows, tables["embed_tokens"].values[[3, 0, 7]])


class TestBias:
    def test_zeros_are_nothing(self, model, tmp_path):
        write_packed_folder(tmp_path / "m", model, "gptq", tensors={f"{QUERY}.bias": ("F16", np.zeros(128))})
        assert isinstance(open_checkpoint(tmp_path / "m")[0].tensors["blk.0.attn_q.weight"], PackedTensor)

    def test_others_are_refused(self, model, tmp_path):
        bias = np.zeros(128)
        bias[77] = -0.5
        write_packed_folder(tmp_path / "m", model, "gptq", tensors={f"{QUERY}.bias": ("F16", bias)})
        with pytest.raises(UnsupportedModel, match=r"q_proj\.bias"):
            open_checkpoint(tmp_path / "m")

    def test_those_that_a_model_wants_are_read(self, model, tmp_path):
        """Qwen 2 has some, whatever their values; tools write zeros where it has none."""
        sizes = {"q": 128, "k": 64, "v": 64, "o": 128}
        rng, biases = np.random.default_rng(3), {}
        for layer in range(model.config["layers"]):
            for kind, size in sizes.items():
                values = rng.standard_normal(size).astype(np.float16) if kind == "q" else np.zeros(size)
                biases[f"model.layers.{layer}.self_attn.{kind}_proj.bias"] = ("F16", values)
        write_packed_folder(tmp_path / "m", model, "gptq", tensors=biases, config={"model_type": "qwen2"})
        source, decoder = open_checkpoint(tmp_path / "m")
        assert decoder.family == "qwen2"
        assert {name for name in source.tensors if name.endswith("bias")} == {
            f"blk.{layer}.attn_{kind}.bias" for layer in range(model.config["layers"]) for kind in "qkv"
        }
        found, _ = matrices_and_logits(tmp_path / "m")
        (_, expected) = biases["model.layers.0.self_attn.q_proj.bias"]
        np.testing.assert_array_equal(found["blk.0.attn_q.bias"][0], expected)

    def test_zeros_of_another_size_are_refused(self, model, tmp_path):
        write_packed_folder(tmp_path / "m", model, "gptq", tensors={f"{QUERY}.bias": ("F16", np.zeros(256))})
        with pytest.raises(UnsupportedModel, match=r"q_proj\.bias"):
            open_checkpoint(tmp_path / "m")


class TestOrder:
    """Groups in the order of importance."""

    ACT_ORDER = SETTINGS["gptq"] | {"desc_act": True, "group_size": 32}

    def matrices(self, *modules):
        rng = np.random.default_rng(1)
        shapes = {DOWN: (128, 256), QUERY: (128, 128), GATE: (256, 128)}
        return {
            module: random_matrix(rng, *shapes[module], 32, zeros=(1, 15), order=rng.permutation(shapes[module][1]))
            for module in modules
        }

    def test_rows_of_gate_and_up_follow_the_inputs_of_down(self, model, tmp_path):
        packed = write_packed_folder(
            tmp_path / "m", model, "gptq", matrices=self.matrices(DOWN), settings=self.ACT_ORDER, group=32
        )
        found, logits = matrices_and_logits(tmp_path / "m")
        expected, wanted = matrices_and_logits(write_float_folder(tmp_path / "floats", model, packed))
        order = open_checkpoint(tmp_path / "m")[0].tensors["blk.0.ffn_down.weight"].input_order
        assert sorted(order) == list(range(256))
        np.testing.assert_array_equal(found["blk.0.ffn_down.weight"], expected["blk.0.ffn_down.weight"][:, order])
        for kind in ("gate", "up"):
            name = f"blk.0.ffn_{kind}.weight"
            np.testing.assert_array_equal(found[name], expected[name][order])
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("module", [QUERY, GATE])
    def test_inputs_that_cannot_be_moved(self, model, module, tmp_path):
        write_packed_folder(
            tmp_path / "m", model, "gptq", matrices=self.matrices(module), settings=self.ACT_ORDER, group=32
        )
        with pytest.raises(UnsupportedModel, match="only those of the down projection can be moved"):
            open_checkpoint(tmp_path / "m")

    def test_rows_that_are_no_part_of_a_packed_matrix(self, model, tmp_path):
        write_packed_folder(
            tmp_path / "m", model, "gptq", matrices=self.matrices(DOWN), floats=(UP,), settings=self.ACT_ORDER, group=32
        )
        with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_up\.weight, which computes them, is not packed"):
            open_checkpoint(tmp_path / "m")


PARTS = [f"{QUERY}.{suffix}" for suffix in ("qweight", "qzeros", "scales")]
BOTH = {f"{QUERY}.weight": ("F32", np.zeros((128, 128), np.float32))}
OTHER_SIZE = {QUERY: random_matrix(np.random.default_rng(2), 64, 128, 128, zeros=(0, 15))}


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("gptq", {"tensors": BOTH}, InvalidModelFile, "as floats and packed"),
        *(("awq", {"tensors": {part: None}}, InvalidModelFile, f"{part} is missing") for part in PARTS),
        ("awq", {"tensors": dict.fromkeys(PARTS)}, InvalidModelFile, f"1 tensor is missing. {QUERY}.weight"),
        ("awq", {"matrices": OTHER_SIZE}, InvalidModelFile, r"attn_q\.weight \(128, 64\) instead of \(128, 128\)"),
        ("gptq", {"settings": SETTINGS["compressed-tensors"]}, UnsupportedModel, "28 tensors that this architecture"),
        ("gptq", {"settings": {"quant_method": "hqq"}}, UnsupportedModel, "is hqq; .* Get the model in BF16 or F16"),
        ("gptq", {"settings": {"quant_method": "mxfp4"}}, UnsupportedModel, "28 tensors that this architecture"),
    ],
)
def test_what_does_not_fit(name, options, error, words, model, tmp_path):
    write_packed_folder(tmp_path / "m", model, name, **options)
    with pytest.raises(error, match=words):
        open_checkpoint(tmp_path / "m")


@settings(max_examples=share_of(60))
@given(st.sampled_from(sorted(WRITERS)), st.data(), st.integers(0, 2**32 - 1))
def test_whatever_a_header_says_nothing_else_is_raised(model, tmp_path_factory, name, data, seed):
    """Parts of a matrix get other types, shapes and names."""
    rng = np.random.default_rng(seed)
    parts = WRITERS[name](random_matrix(rng, 128, 128, 128, zeros=(1, 15)))
    tensors = {}
    for suffix in data.draw(st.lists(st.sampled_from(sorted(parts)), min_size=1, max_size=3)):
        dtype = data.draw(st.sampled_from(["I32", "I64", "F16", "F32", "U8", "BF16"]))
        shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 15, 16, 127, 128, 129]), max_size=3))
        other = data.draw(st.sampled_from([suffix, suffix, "weight", "bias", "g_idx", "weight_g_idx", "qzeros"]))
        tensors[f"{QUERY}.{other}"] = (dtype, rng.integers(-3, 200, shape))
    folder = tmp_path_factory.mktemp("f") / "m"
    write_packed_folder(folder, model, name, tensors=tensors)
    with contextlib.suppress(EdgeRTError):
        matrices_and_logits(folder)


def test_the_group_of_every_input_may_be_left_out(model, tmp_path):
    matrix = random_matrix(np.random.default_rng(3), 128, 128, 128, zeros=(1, 15))
    parts = gptq(matrix, with_order=False)
    tensors = {f"{QUERY}.g_idx": None, **{f"{QUERY}.{suffix}": part for suffix, part in parts.items()}}
    write_packed_folder(tmp_path / "m", model, "gptq", tensors=tensors)
    np.testing.assert_array_equal(matrices_and_logits(tmp_path / "m")[0]["blk.0.attn_q.weight"], matrix.values)
