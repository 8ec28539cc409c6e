"""Which layers have a window and which are rotated how, where configurations and headers leave room for doubt."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.opening import open_checkpoint
from tests.helpers.configs import small
from tests.helpers.family_cases import load_case, write_gguf
from tests.helpers.graphs import Built

S, F = "sliding_attention", "full_attention"


def rotations(decoder):
    """Return the number of every layer's rotation."""
    return [layer.attention.rope for layer in decoder.layers]


@pytest.mark.parametrize("window", [511, 512, 4096])
class TestAWindowOfTheWholeContext:
    """It sees what no window sees; whether a layer is rotated, and how, goes by its kind all the same."""

    @pytest.mark.parametrize(
        ("model_type", "expected"),
        [
            ("gemma3_text", [1, 1, 1, 1, 1, 0, 1, 1]),
            ("olmo3", [1, 1, 1, 0, 1, 1, 1, 0]),
            ("exaone4", [0, 0, 0, None, 0, 0, 0, None]),
        ],
    )
    def test_folders(self, model_type, expected, window):
        decoder = small(model_type, sliding_window=window)
        assert rotations(decoder) == expected
        assert decoder.sliding_window == (window if window < 512 else 0)

    @pytest.mark.parametrize(
        ("name", "architecture", "expected"),
        [("gemma3_text", "gemma3", [1, 1, 1, 1, 1, 0]), ("olmo3", "olmo2", [1, 1, 1, 0])],
    )
    def test_files(self, name, architecture, expected, window, tmp_path):
        key = f"{architecture}.attention.sliding_window"
        write_gguf(tmp_path / "m.gguf", load_case(name), extra_metadata={key: window})
        _, decoder = open_checkpoint(tmp_path / "m.gguf")
        assert rotations(decoder) == expected
        assert decoder.sliding_window == (window if window < 512 else 0)


class TestExaone:
    def test_a_window_that_is_not_stated_is_the_familys(self):
        decoder = small("exaone4", max_position_embeddings=8192)
        assert decoder.layer_windows == (4096, 4096, 4096, 0) * 2
        assert rotations(decoder) == [0, 0, 0, None] * 2

    def test_null_is_none(self):
        decoder = small("exaone4", sliding_window=None)
        assert (decoder.sliding_window, rotations(decoder)) == (0, [0] * 8)

    def test_a_text_as_period_does_not_count_beside_a_list(self):
        decoder = small("exaone4", sliding_window=8, sliding_window_pattern="LLLG", layer_types=[S, F] * 4)
        assert decoder.layer_windows == (8, 0) * 4
        with pytest.raises(UnsupportedModel, match='sliding_window_pattern is "LLLG" without layer_types'):
            small("exaone4", sliding_window=8, sliding_window_pattern="LLLG")

    def test_layers_with_a_window_of_null(self):
        with pytest.raises(UnsupportedModel, match="sliding_window is null"):
            small("exaone4", sliding_window=None, layer_types=[S, F] * 4)


class TestGemma:
    @pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text"])
    def test_the_key_of_other_families_for_the_activation_does_not_count(self, model_type):
        assert small(model_type, hidden_act="silu").layers[0].feed_forward.activation == "gelu"

    @pytest.mark.parametrize(("keys", "is_refused"), [
        ({"sliding_window_pattern": 3}, False),
        ({"_sliding_window_pattern": 6}, False),
        ({"_sliding_window_pattern": 3, "sliding_window_pattern": 3}, False),
        ({"_sliding_window_pattern": 3, "layer_types": [S, F] * 4}, False),
        ({"_sliding_window_pattern": 3}, True),
        ({"_sliding_window_pattern": 6, "sliding_window_pattern": 3}, True),
    ])  # fmt: skip
    def test_two_keys_for_the_period(self, keys, is_refused):
        if not is_refused:
            small("gemma3_text", **keys)
            return
        with pytest.raises(UnsupportedModel, match="_sliding_window_pattern is"):
            small("gemma3_text", **keys)

    def test_rows_that_are_not_stated(self):
        assert small("gemma3_text", vocab_size=None).vocab_size == 262_208
        with pytest.raises(InvalidModelFile, match="'vocab_size'"):
            small("gemma2", vocab_size=None)


def test_hunyuan_without_norms_of_heads():
    small("hunyuan_v1_dense", use_qk_norm=True)
    with pytest.raises(UnsupportedModel, match="use_qk_norm is false"):
        small("hunyuan_v1_dense", use_qk_norm=False)


@pytest.mark.parametrize(("stated", "rope"), [(None, 0), (True, 0), (False, None)])
def test_a_granite_file_says_whether_there_are_rotations(stated, rope, tmp_path):
    """With false llama.cpp's logits differ from those with rotations by 14 % of the largest."""
    case, more = load_case("granite"), {} if stated is None else {"granite.rope.scaling.finetuned": stated}
    write_gguf(tmp_path / "m.gguf", case, extra_metadata=more)
    built = Built(tmp_path / "m.gguf", tmp_path)
    assert rotations(built.used) == [rope] * 4
    difference = abs(built.run(case.tokens) - case.logits).max() / abs(case.logits).max()
    assert difference < 1e-4 if rope == 0 else 0.13 < difference < 0.15


class TestSmolLM:
    def test_without_a_list_layers_that_are_not_rotated_have_the_window(self):
        decoder = small("smollm3", use_sliding_window=True, sliding_window=8, max_window_layers=2)
        assert decoder.layer_windows == (0, 0, 0, 8) * 2
        assert rotations(decoder) == [0, 0, 0, None] * 2

    def test_a_list_has_the_last_word(self):
        decoder = small("smollm3", use_sliding_window=True, sliding_window=8, layer_types=[S, F] * 4)
        assert decoder.layer_windows == (8, 0) * 4

    def test_a_window_that_is_not_used(self):
        for keys in ({"sliding_window": 8}, {"use_sliding_window": True}):
            assert small("smollm3", **keys).sliding_window == 0
        with pytest.raises(UnsupportedModel, match="without use_sliding_window"):
            small("smollm3", sliding_window=8, layer_types=[S, F] * 4)


class TestLlama:
    def test_a_window_is_mistrals(self):
        keys = {"max_position_embeddings": 8192}
        assert small("mistral", **keys).sliding_window == 4096
        assert small("mistral", sliding_window=None, **keys).sliding_window == 0
        assert small("mistral", sliding_window=8, **keys).sliding_window == 8

    @pytest.mark.parametrize("window", [None, 0, 512])
    def test_a_window_that_changes_nothing(self, window):
        assert small("llama", sliding_window=window) == small("llama")

    def test_any_other_is_refused(self):
        with pytest.raises(UnsupportedModel, match="sliding_window is 8, which a llama does not have"):
            small("llama", sliding_window=8)


def test_the_half_of_a_gemma_file_that_sees_is_skipped(tmp_path):
    case = load_case("gemma3_text")
    seeing = {"gemma3.vision.block_count": 2, "gemma3.mm.tokens_per_image": 256}
    tensors = {"v.blk.0.attn_q.weight": np.ones((8, 8)), "mm.mm_soft_emb_norm.weight": np.ones(8)}
    tensors = {name: values.astype(np.float32) for name, values in tensors.items()}
    write_gguf(tmp_path / "both.gguf", case, extra_metadata=seeing, extra_tensors=tensors)
    write_gguf(tmp_path / "text.gguf", case)
    found, expected = (open_checkpoint(tmp_path / f"{name}.gguf") for name in ("both", "text"))
    assert dataclasses.replace(found[1], name=expected[1].name) == expected[1]
    assert found[0].tensors.keys() == expected[0].tensors.keys()
    write_gguf(tmp_path / "llama.gguf", load_case("llama"), extra_metadata={"llama.vision.block_count": 2})
    with pytest.raises(UnsupportedModel, match=r"llama\.vision\.block_count"):
        open_checkpoint(tmp_path / "llama.gguf")


def test_a_key_that_is_missing_is_no_reason_to_fetch_again():
    with pytest.raises(InvalidModelFile, match=r"'max_position_embeddings' in config\.json is missing") as caught:
        small("llama", max_position_embeddings=None)
    assert "Fetch" not in str(caught.value)
