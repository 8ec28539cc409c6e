"""Models whose layers are not all attention and one feed-forward: what their files may say, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.opening import open_checkpoint
from edge_rt.package.decoder import ShortConv
from tests.helpers.family_cases import load_case, write_folder, write_gguf

KINDS = ["conv", "conv", "full_attention", "conv", "full_attention"]


def opened(tmp_path, case, **config):
    return open_checkpoint(write_folder(tmp_path / "folder", load_case(case), config=config))[1]


def opened_file(tmp_path, case, **options):
    return open_checkpoint(write_gguf(tmp_path / "m.gguf", load_case(case), **options))[1]


class TestConvolutions:
    def test_layers_have_either_mixer(self, tmp_path):
        for decoder in (opened(tmp_path, "lfm2"), opened_file(tmp_path, "lfm2")):
            assert decoder.attention_layers == (2, 4)
            assert [layer.short_conv for layer in decoder.layers] == [
                ShortConv(3) if kind == "conv" else None for kind in KINDS
            ]
            assert decoder.intermediate_size == 224

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"layer_types": KINDS[:4]}, InvalidModelFile, "4 entries for 5 layers"),
            ({"layer_types": "conv"}, InvalidModelFile, "'layer_types' in config.json has the wrong type"),
            ({"layer_types": [*KINDS[:4], "mamba"]}, UnsupportedModel, "layer_types has 'mamba'"),
            ({"layer_types": [*KINDS[:4], ["conv"]]}, UnsupportedModel, "layer_types has"),
            ({"layer_types": ["conv"] * 5}, InvalidModelFile, "no layer has attention"),
            ({"layer_types": None, "full_attn_idxs": [5]}, InvalidModelFile, "for 5 layers"),
            ({"layer_types": None, "full_attn_idxs": [-1]}, InvalidModelFile, "for 5 layers"),
            ({"layer_types": None, "full_attn_idxs": [True]}, InvalidModelFile, "for 5 layers"),
            ({"layer_types": None, "full_attn_idxs": []}, InvalidModelFile, "no layer has attention"),
            ({"conv_L_cache": 0}, InvalidModelFile, "'conv_L_cache' in config.json is out of range"),
            ({"conv_L_cache": 65}, InvalidModelFile, "'conv_L_cache' in config.json is out of range"),
            ({"conv_L_cache": 4}, InvalidModelFile, "has a wrong shape|have a wrong shape"),
            ({"conv_bias": "yes"}, InvalidModelFile, "'conv_bias' in config.json has the wrong type"),
            ({"conv_bias": True}, InvalidModelFile, "tensors are missing"),
            ({"block_multiple_of": 0}, InvalidModelFile, "'block_multiple_of' in config.json is out of range"),
            ({"block_ffn_dim_multiplier": -1.0}, InvalidModelFile, "'block_ffn_dim_multiplier' .* out of range"),
            ({"block_ffn_dim_multiplier": 1000.0}, InvalidModelFile, "have a wrong shape"),
            ({"block_auto_adjust_ff_dim": 1}, InvalidModelFile, "'block_auto_adjust_ff_dim' .* has the wrong type"),
            ({"intermediate_size": 1, "block_ffn_dim_multiplier": 1e-3}, InvalidModelFile, "intermediate_size is 0"),
        ],
    )  # fmt: skip
    def test_configurations_are_refused(self, tmp_path, changes, error, message):
        with pytest.raises(error, match=message):
            opened(tmp_path, "lfm2", **changes)

    @pytest.mark.parametrize(
        ("metadata", "error", "message"),
        [
            ({"attention.head_count_kv": [0, 0, 2, 0]}, InvalidModelFile, "4 values for 5 layers"),
            ({"attention.head_count_kv": [0, 0, 2, 0, -2]}, InvalidModelFile, "each must be 0 to"),
            ({"attention.head_count_kv": [0, 0, 2, 0, 3]}, UnsupportedModel, "2 values above 0"),
            ({"attention.head_count_kv": [0] * 5}, UnsupportedModel, "0 values above 0"),
            ({"attention.head_count_kv": 2}, InvalidModelFile, "tensors are missing"),
            ({"attention.head_count_kv": [0, 2, 2, 0, 2]}, InvalidModelFile, "tensors are missing"),
            ({"shortconv.l_cache": 0}, InvalidModelFile, "l_cache"),
            ({"shortconv.l_cache": 1 << 31}, InvalidModelFile, "l_cache"),
            ({"shortconv.l_cache": 4}, InvalidModelFile, "wrong shape"),
        ],
    )  # fmt: skip
    def test_headers_are_refused(self, tmp_path, metadata, error, message):
        with pytest.raises(error, match=message):
            opened_file(tmp_path, "lfm2", extra_metadata={f"lfm2.{key}": value for key, value in metadata.items()})

    def test_a_header_states_the_rows_of_a_convolution(self, tmp_path):
        with pytest.raises(InvalidModelFile, match=r"lfm2\.shortconv\.l_cache"):
            opened_file(tmp_path, "lfm2", drop_metadata=("lfm2.shortconv.l_cache",))

    def test_a_second_final_norm_is_refused(self, tmp_path):
        norm = {"output_norm.weight": np.ones(96, np.float32)}
        with pytest.raises(UnsupportedModel, match=r"token_embd_norm\.weight"):
            opened_file(tmp_path, "lfm2", extra_tensors=norm)

    @pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text"])
    def test_other_families_refuse_their_keys(self, tmp_path, name):
        with pytest.raises(UnsupportedModel, match="conv_bias is true"):
            opened(tmp_path, name, conv_bias=True)
