"""Models whose layers are not all attention and one feed-forward: what their files may say, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.decoder.weights import collect_weights
from edge_rt.export.op_profile import PROFILES
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.package.layers import GatedDelta, ShortConv
from tests.helpers.ahead_models import BLOCK, write_ahead_folder, write_ahead_gguf
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.family_gguf import ARCHITECTURES
from tests.helpers.hf_factory import write_safetensors
from tests.helpers.opened_cases import opened, opened_file, read_all

KINDS = ["conv", "conv", "full_attention", "conv", "full_attention"]


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


class TestExperts:
    @pytest.mark.parametrize("name", ["qwen3_moe", "olmoe", "granitemoe", "lfm2_moe", "gpt_oss_plain"])
    def test_a_file_says_what_a_folder_says(self, tmp_path, name):
        folder, file = opened(tmp_path, name), opened_file(tmp_path, name)
        assert [layer.experts for layer in file.layers] == [layer.experts for layer in folder.layers]
        assert file.layers[-1].feed_forward is None
        assert [layer.attention is None for layer in file.layers] == [
            layer.attention is None for layer in folder.layers
        ]

    def test_layers_may_keep_a_plain_feed_forward(self, tmp_path):
        kinds = [layer.experts is not None for layer in opened(tmp_path, "qwen3_moe_mixed").layers]
        assert kinds == [False, True, False, False, False, True]

    @pytest.mark.parametrize(
        ("name", "changes", "error", "message"),
        [
            ("qwen3_moe", {"num_local_experts": 0}, InvalidModelFile, "'num_experts' in config.json is out of range"),
            ("qwen3_moe", {"num_local_experts": 1 << 13}, InvalidModelFile, "'num_experts' .* out of range"),
            ("qwen3_moe", {"num_local_experts": True}, InvalidModelFile, "'num_experts' .* wrong type"),
            ("qwen3_moe", {"num_local_experts": 9}, InvalidModelFile, "tensors are missing"),
            ("qwen3_moe", {"num_local_experts": 7}, UnsupportedModel, "this architecture does not use"),
            ("qwen3_moe", {"num_experts_per_tok": 9}, InvalidModelFile, "'num_experts_per_tok' .* out of range"),
            ("qwen3_moe", {"num_experts_per_tok": 0}, InvalidModelFile, "'num_experts_per_tok' .* out of range"),
            ("qwen3_moe", {"moe_intermediate_size": 0}, InvalidModelFile, "'moe_intermediate_size' .* out of range"),
            ("qwen3_moe", {"moe_intermediate_size": 65}, InvalidModelFile, "have a wrong shape"),
            ("qwen3_moe", {"norm_topk_prob": "no"}, InvalidModelFile, "'norm_topk_prob' .* wrong type"),
            ("qwen3_moe", {"decoder_sparse_step": 0}, InvalidModelFile, "'decoder_sparse_step' .* out of range"),
            ("qwen3_moe", {"mlp_only_layers": [4]}, InvalidModelFile, "'mlp_only_layers' .* cannot be used"),
            ("qwen3_moe", {"mlp_only_layers": [0]}, UnsupportedModel, "this architecture does not use"),
            ("qwen3_moe", {"hidden_act": "gelu"}, UnsupportedModel, "hidden_act is 'gelu'"),
            ("qwen3_moe", {"shared_expert_intermediate_size": 64}, UnsupportedModel, "shared_expert_intermediate_size"),
            ("qwen3_moe", {"num_hidden_layers": 1000, "num_local_experts": 4096}, InvalidModelFile, "at most 65536"),
            ("olmoe", {"clip_qkv": 0.0}, InvalidModelFile, "'clip_qkv' .* out of range"),
            ("olmoe", {"clip_qkv": [1]}, InvalidModelFile, "'clip_qkv' .* wrong type"),
            ("granitemoe", {"num_experts_per_tok": 7}, InvalidModelFile, "'num_experts_per_tok' .* out of range"),
            ("granitemoe", {"shared_intermediate_size": 64}, UnsupportedModel, "shared_intermediate_size"),
            ("lfm2_moe", {"layer_types": None}, UnsupportedModel, "no layer_types"),
            ("lfm2_moe", {"routed_scaling_factor": 0}, InvalidModelFile, "'routed_scaling_factor' .* out of range"),
            ("lfm2_moe", {"num_dense_layers": -1}, InvalidModelFile, "'num_dense_layers' .* out of range"),
            ("lfm2_moe", {"use_expert_bias": False}, UnsupportedModel, "expert_bias"),
            ("gpt_oss", {"swiglu_limit": 0.0}, InvalidModelFile, "'swiglu_limit' .* out of range"),
            ("gpt_oss", {"swiglu_alpha": "1"}, InvalidModelFile, "'swiglu_alpha' .* wrong type"),
            ("gpt_oss", {"rope_parameters": None}, UnsupportedModel, "no rope_parameters"),
            ("gpt_oss", {"attention_bias": False}, UnsupportedModel, "this architecture does not use"),
            ("gpt_oss", {"num_local_experts": 9}, InvalidModelFile, "does not fit the quantisation"),
            ("llama", {"swiglu_limit": 7.0}, UnsupportedModel, "swiglu_limit is 7.0"),
            ("llama", {"num_local_experts": 8}, UnsupportedModel, "num_local_experts is 8"),
            ("qwen3", {"mlp_only_layers": [1]}, UnsupportedModel, "mlp_only_layers"),
        ],
    )  # fmt: skip
    def test_configurations_are_refused(self, tmp_path, name, changes, error, message):
        with pytest.raises(error, match=message):
            opened(tmp_path, name, **changes)

    @pytest.mark.parametrize(
        ("name", "metadata", "error", "message"),
        [
            ("qwen3_moe", {"expert_count": 0}, InvalidModelFile, "expert_count"),
            ("qwen3_moe", {"expert_count": 1 << 31}, InvalidModelFile, "expert_count"),
            ("qwen3_moe", {"expert_count": 7}, InvalidModelFile, "tensors are missing"),
            ("qwen3_moe", {"expert_used_count": 9}, InvalidModelFile, "expert_used_count"),
            ("qwen3_moe", {"expert_feed_forward_length": 63}, InvalidModelFile, "wrong shape"),
            ("qwen3_moe", {"expert_shared_count": 1}, UnsupportedModel, "expert_shared_count' is 1"),
            ("olmoe", {"attention.clamp_kqv": 0.5}, UnsupportedModel, "clamp_kqv' is 0.5"),
            ("lfm2_moe", {"expert_gating_func": 1}, UnsupportedModel, "expert_gating_func' is 1"),
            ("lfm2_moe", {"leading_dense_block_count": 1}, InvalidModelFile, "tensors are missing"),
            ("qwen3_next", {"attention.recurrent_layers": 1}, InvalidModelFile, "recurrent_layers.*has 1 values"),
            ("granite_h", {"rope.scaling.finetuned": "no"}, InvalidModelFile, "finetuned.*no truth value"),
            ("llama", {"expert_count": 8}, UnsupportedModel, "experts are not supported"),
        ],
    )  # fmt: skip
    def test_headers_are_refused(self, tmp_path, name, metadata, error, message):
        prefix = ARCHITECTURES[load_case(name).text_config["model_type"]]
        with pytest.raises(error, match=message):
            opened_file(tmp_path, name, extra_metadata={f"{prefix}.{key}": one for key, one in metadata.items()})

    def test_a_router_is_not_quantised(self, tmp_path):
        case = load_case("olmoe")
        with pytest.raises(UnsupportedModel, match=r"quantisation of 1 tensor.*\n?.*ffn_gate_inp\.weight"):
            open_checkpoint(write_gguf(tmp_path / "m.gguf", case, types={"blk.1.ffn_gate_inp.weight": "Q8_0"}))

    def test_experts_may_be_quantised(self, tmp_path):
        decoder = opened_file(tmp_path, "olmoe", weight_type="Q8_0")
        assert decoder.layers[0].experts.count == 8


class TestDeltaRules:
    def test_a_file_says_what_a_folder_says(self, tmp_path):
        folder, file = opened(tmp_path, "qwen3_5_epsilon"), opened_file(tmp_path, "qwen3_5_epsilon")
        assert folder.attention_layers == file.attention_layers == (2, 5)
        assert folder.attention_of(2).has_gate
        assert folder.layers[0].gated_delta == GatedDelta(3, 6, 32, 48, 3)
        found = file.layers[0].gated_delta
        assert (found.is_tiled, found.epsilon) == (True, pytest.approx(1e-6))
        assert replace(found, is_tiled=False, epsilon=1e-6) == folder.layers[0].gated_delta

    def test_files_say_in_several_ways_which_layers_attend(self, tmp_path):
        kinds = [True, True, False] * 2
        for metadata in (
            {"attention.recurrent_layers": kinds, "full_attention_interval": 4},
            {"attention.head_count_kv": [0 if kind else 2 for kind in kinds], "full_attention_interval": 4},
            {},
        ):
            changes = {f"qwen35.{key}": value for key, value in metadata.items()}
            dropped = () if metadata else ("qwen35.full_attention_interval",)
            decoder = opened_file(tmp_path, "qwen3_5_epsilon", extra_metadata=changes, drop_metadata=dropped)
            assert decoder.attention_layers == (2, 5)

    def test_the_text_half_of_a_model_that_sees(self, tmp_path):
        case = load_case("qwen3_5")
        text = write_folder(tmp_path / "text", case)
        path = write_folder(tmp_path / "whole", case)
        whole = {"model_type": "qwen3_5", "text_config": case.config, "vision_config": {}, "tie_word_embeddings": True}
        (path / "config.json").write_text(json.dumps(whole))
        named = {f"model.language_model.{name.removeprefix('model.')}": one for name, one in case.tensors().items()}
        named |= {"model.visual.proj.weight": np.ones((4, 4), np.float32), "mtp.norm.weight": np.ones(96, np.float32)}
        write_safetensors(path / "model.safetensors", named)
        (found, described), (expected, plain) = open_checkpoint(path), open_checkpoint(text)
        assert replace(described, name=plain.name) == plain
        assert found.tensors.keys() == expected.tensors.keys()

    def test_heads_that_predict_ahead_are_left_out(self, tmp_path):
        ahead = {"blk.6.nextn.eh_proj.weight": np.ones((96, 192), np.float32)}
        metadata = {"qwen35.nextn_predict_layers": 1, "qwen35.block_count": 7}
        assert opened_file(tmp_path, "qwen3_5_epsilon", extra_metadata=metadata, extra_tensors=ahead).num_layers == 6
        case = load_case("qwen3_5")
        path = write_folder(tmp_path / "m", case)
        tensors = case.tensors() | {"mtp.fc.weight": np.ones((96, 192), np.float32)}
        write_safetensors(path / "model.safetensors", tensors)
        assert open_checkpoint(path)[1].num_layers == 5

    @pytest.mark.parametrize("name", ["qwen3_5_attention", "qwen3_5_moe", "qwen3_next"])
    def test_a_whole_head_that_predicts_ahead_is_read(self, tmp_path, name):
        """Of a folder and of a GGUF file the same."""
        found = []
        folder, file = write_ahead_folder(tmp_path / "folder", name)[0], write_ahead_gguf(tmp_path / "m.gguf", name)
        for path in (folder, file):
            source, decoder = open_checkpoint(path)
            assert source.ahead == decoder.layers[decoder.attention_layers[0]]
            assert (source.ahead.experts is None) == (name == "qwen3_5_attention")
            assert decoder.num_layers == 3
            weights = collect_weights(source, decoder, PROFILES["native"])
            with TensorReader(source.files) as stream:
                vectors = {name: one for name, one in weights.vectors.items() if name.startswith(("ahead", "layer3"))}
                found.append({name: vector.read(stream) for name, vector in vectors.items()})
                found[-1] |= {
                    part.tensor.name: np.concatenate(
                        list(CheckpointMatrices(stream, source.tensors).pieces(part.tensor.name))
                    )
                    for linear in weights.ahead.linears()
                    for part in linear.parts
                }
        assert found[0].keys() == found[1].keys()
        assert {"ahead.token_norm", "ahead.state_norm", "ahead.output_norm", "layer3.q_norm"} <= found[0].keys()
        for name, values in found[0].items():
            np.testing.assert_array_equal(values, found[1][name], err_msg=name)

    @pytest.mark.parametrize(
        "path",
        [
            lambda path: write_ahead_folder(path / "m", left_out=("mtp.fc.weight",))[0],
            lambda path: write_ahead_folder(
                path / "m", "qwen3_next", left_out=("mtp.layers.0.mlp.experts.7.up_proj.weight",)
            )[0],
            lambda path: write_ahead_gguf(path / "m.gguf", "qwen3_5_moe", left_out=("blk.3.ffn_up_exps.weight",)),
            lambda path: write_ahead_gguf(
                path / "m.gguf", "qwen3_5_moe", **{"ffn_gate_up_exps.weight": np.ones((8, 128, 96), np.float32)}
            ),
            lambda path: write_ahead_folder(
                path / "m", "qwen3_next", changed={f"{BLOCK}mlp.experts.down_proj": np.ones((8, 96, 64), np.float32)}
            )[0],
            lambda path: write_ahead_folder(path / "m", changed={"mtp.layers.1.x": np.ones(1, np.float32)})[0],
            lambda path: write_ahead_gguf(
                path / "m.gguf", **{"nextn.embed_tokens.weight": np.ones((8, 96), np.float32)}
            ),
        ],
        ids=[
            "without its matrix",
            "without a matrix of an expert",
            "without one of all experts",
            "with matrices of all experts twice",
            "with experts apart and together",
            "of two blocks",
            "with an embedding of its own",
        ],
    )
    def test_other_heads_are_left_out(self, tmp_path, path):
        source, decoder = open_checkpoint(path(tmp_path))
        assert (source.ahead, decoder.num_layers) == (None, 3)
        assert not any("nextn" in name or name.startswith("blk.3") for name in source.tensors)

    def test_a_head_of_another_shape_is_refused(self, tmp_path):
        changed = {"mtp.fc.weight": np.ones((96, 96), np.float32)}
        with pytest.raises(InvalidModelFile, match=r"mtp\.fc\.weight.*instead of"):
            open_checkpoint(write_ahead_folder(tmp_path / "m", changed=changed)[0])

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"linear_num_key_heads": 0}, InvalidModelFile, "'linear_num_key_heads' .* out of range"),
            ({"linear_num_key_heads": 4}, InvalidModelFile, "6 heads of values are no multiple of 4"),
            ({"linear_num_value_heads": "6"}, InvalidModelFile, "'linear_num_value_heads' .* wrong type"),
            ({"linear_key_head_dim": 1 << 20}, InvalidModelFile, "'linear_key_head_dim' .* out of range"),
            ({"linear_value_head_dim": 32}, InvalidModelFile, "have a wrong shape"),
            ({"linear_conv_kernel_dim": 0}, InvalidModelFile, "'linear_conv_kernel_dim' .* out of range"),
            ({"attn_output_gate": False}, UnsupportedModel, "attn_output_gate is false"),
            ({"attention_bias": True}, UnsupportedModel, "attention_bias is true"),
            ({"layer_types": ["linear_attention"] * 5}, InvalidModelFile, "no layer has attention"),
            ({"layer_types": ["sliding_attention"] * 5}, UnsupportedModel, "layer_types has 'sliding_attention'"),
            ({"layer_types": None, "full_attention_interval": 0}, InvalidModelFile, "'full_attention_interval'"),
            ({"layer_types": None, "full_attention_interval": 2}, UnsupportedModel, "does not use"),
            ({"hidden_act": "gelu"}, UnsupportedModel, "hidden_act is 'gelu'"),
        ],
    )  # fmt: skip
    def test_configurations_are_refused(self, tmp_path, changes, error, message):
        with pytest.raises(error, match=message):
            opened(tmp_path, "qwen3_5", **changes)

    @pytest.mark.parametrize(
        ("metadata", "error", "message"),
        [
            ({"ssm.group_count": 0}, InvalidModelFile, "ssm.group_count"),
            ({"ssm.group_count": 4}, InvalidModelFile, "no multiple of 4 heads of keys"),
            ({"ssm.time_step_rank": 5}, InvalidModelFile, "no multiple of 5 heads"),
            ({"ssm.state_size": 1 << 31}, InvalidModelFile, "ssm.state_size"),
            ({"ssm.inner_size": 96}, InvalidModelFile, "wrong shape"),
            ({"ssm.conv_kernel": 4}, InvalidModelFile, "wrong shape"),
            ({"full_attention_interval": 0}, InvalidModelFile, "full_attention_interval"),
            ({"nextn_predict_layers": 6}, InvalidModelFile, "there are 6 blocks in all"),
            ({"attention.recurrent_layers": [1, 1, 0]}, InvalidModelFile, "3 values for 6 layers"),
        ],
    )  # fmt: skip
    def test_headers_are_refused(self, tmp_path, metadata, error, message):
        with pytest.raises(error, match=message):
            opened_file(tmp_path, "qwen3_5_epsilon", extra_metadata={f"qwen35.{k}": one for k, one in metadata.items()})

    @pytest.mark.parametrize("key", ["linear_num_key_heads", "linear_num_value_heads", "attn_output_gate"])
    def test_other_families_refuse_their_keys(self, tmp_path, key):
        with pytest.raises(UnsupportedModel, match=key):
            opened(tmp_path, "qwen3", **{key: True})


class TestStateSpaces:
    @pytest.mark.parametrize("name", ["granite_h", "granite_h_dense"])
    def test_a_file_says_what_a_folder_says(self, tmp_path, name):
        folder, file = opened(tmp_path, name), opened_file(tmp_path, name)
        assert file.pattern == folder.pattern
        for ours, theirs in zip(file.kinds, folder.kinds, strict=True):
            assert (ours.state_space, ours.experts) == (theirs.state_space, theirs.experts)
            assert ours.feed_forward == theirs.feed_forward
        found = folder.layers[folder.attention_layers[0]].attention.rope
        assert found == file.layers[file.attention_layers[0]].attention.rope == (None if name == "granite_h" else 0)

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"mamba_n_heads": 0}, InvalidModelFile, "'mamba_n_heads' .* out of range"),
            ({"mamba_n_heads": 11}, InvalidModelFile, "'mamba_n_heads' .* cannot be used"),
            ({"mamba_d_head": 8}, InvalidModelFile, "'mamba_n_heads' .* cannot be used"),
            ({"mamba_d_head": "large"}, InvalidModelFile, "'mamba_d_head' .* wrong type"),
            ({"mamba_n_groups": 5}, InvalidModelFile, "12 heads of a state space are no multiple of 5"),
            ({"mamba_n_groups": 13}, InvalidModelFile, "'mamba_n_groups' .* out of range"),
            ({"mamba_d_state": 1 << 20}, InvalidModelFile, "'mamba_d_state' .* out of range"),
            ({"mamba_d_conv": 3}, InvalidModelFile, "wrong shape"),
            ({"mamba_conv_bias": False}, UnsupportedModel, "conv1d.bias"),
            ({"mamba_proj_bias": True}, InvalidModelFile, "tensors are missing"),
            ({"time_step_limit": [0.001, 0.1]}, UnsupportedModel, "time_step_limit is"),
            ({"position_embedding_type": "alibi"}, UnsupportedModel, "position_embedding_type is \"alibi\""),
            ({"position_embedding_type": ["rope"]}, UnsupportedModel, "position_embedding_type is"),
            ({"layer_types": None}, InvalidModelFile, "no layer has attention"),
            ({"layer_types": ["conv"] * 5}, UnsupportedModel, "layer_types has 'conv'"),
            ({"num_local_experts": -1}, InvalidModelFile, "'num_local_experts' .* out of range"),
            ({"num_local_experts": 0}, UnsupportedModel, "block_sparse_moe"),
            ({"shared_intermediate_size": 0}, InvalidModelFile, "'shared_intermediate_size' .* out of range"),
        ],
    )  # fmt: skip
    def test_configurations_are_refused(self, tmp_path, changes, error, message):
        with pytest.raises(error, match=message):
            opened(tmp_path, "granite_h", **changes)

    @pytest.mark.parametrize(
        ("metadata", "error", "message"),
        [
            ({"ssm.time_step_rank": 11}, InvalidModelFile, "no multiple of 11 heads"),
            ({"ssm.group_count": 13}, InvalidModelFile, "ssm.group_count"),
            ({"ssm.group_count": 5}, InvalidModelFile, "no multiple of 5 groups"),
            ({"ssm.state_size": 0}, InvalidModelFile, "ssm.state_size"),
            ({"ssm.inner_size": 384}, InvalidModelFile, "wrong shape"),
            ({"attention.head_count_kv": [2] * 5}, InvalidModelFile, "tensors are missing"),
            ({"attention.head_count_kv": [0] * 5}, UnsupportedModel, "0 values above 0"),
            ({"ssm.dt_b_c_rms": True}, UnsupportedModel, "dt_b_c_rms"),
            ({"expert_count": 0}, UnsupportedModel, "expert_used_count' is 2"),
        ],
    )  # fmt: skip
    def test_headers_are_refused(self, tmp_path, metadata, error, message):
        changes = {f"granitehybrid.{key}": one for key, one in metadata.items()}
        with pytest.raises(error, match=message):
            opened_file(tmp_path, "granite_h", extra_metadata=changes)

    def test_other_families_refuse_their_keys(self, tmp_path):
        with pytest.raises(UnsupportedModel, match="mamba_n_heads is 12"):
            opened(tmp_path, "granite", mamba_n_heads=12)


class TestSharedExpertsWithGates:
    @pytest.mark.parametrize("name", ["qwen3_5_moe", "qwen3_next"])
    def test_a_file_says_what_a_folder_says(self, tmp_path, name):
        folder, file = opened(tmp_path, name), opened_file(tmp_path, name)
        assert file.pattern == folder.pattern
        for ours, theirs in zip(file.kinds, folder.kinds, strict=True):
            assert (ours.feed_forward, ours.experts) == (theirs.feed_forward, theirs.experts)
        assert folder.layers[0].experts.has_shared_gate
        assert folder.layers[0].experts.is_normalised
        assert folder.layers[0].feed_forward.size == 96
        assert {layer.gated_delta.is_tiled for layer in file.layers if layer.gated_delta} == {name == "qwen3_5_moe"}

    def test_layers_may_keep_a_plain_feed_forward(self, tmp_path):
        for decoder in (opened(tmp_path, "qwen3_next"), opened_file(tmp_path, "qwen3_next")):
            assert [layer.experts is None for layer in decoder.layers] == [False, True, False]
            assert [layer.feed_forward.size for layer in decoder.layers] == [96, 160, 96]

    def test_experts_of_a_layer_may_be_one_tensor(self, tmp_path):
        case = load_case("qwen3_5_moe")
        apart, path = write_folder(tmp_path / "apart", case), write_folder(tmp_path / "m", case)
        tensors, module = case.tensors(), "model.layers.{}.mlp.experts."
        for layer in range(3):
            name = module.format(layer)
            each = [{part: tensors.pop(f"{name}{number}.{part}_proj.weight") for part in ("gate", "up", "down")}
                    for number in range(8)]  # fmt: skip
            tensors[f"{name}gate_up_proj"] = np.stack([np.concatenate([one["gate"], one["up"]]) for one in each])
            tensors[f"{name}down_proj"] = np.stack([one["down"] for one in each])
        write_safetensors(path / "model.safetensors", tensors)
        (_, found), (_, expected) = read_all(path), read_all(apart)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)

    @pytest.mark.parametrize(
        ("name", "changes", "error", "message"),
        [
            ("qwen3_5_moe", {"shared_expert_intermediate_size": 0}, InvalidModelFile, "'shared_expert_.* out of range"),
            ("qwen3_5_moe", {"num_local_experts": 0}, InvalidModelFile, "'num_experts' .* out of range"),
            ("qwen3_5_moe", {"num_experts_per_tok": 9}, InvalidModelFile, "'num_experts_per_tok' .* out of range"),
            ("qwen3_5_moe", {"attn_output_gate": False}, UnsupportedModel, "attn_output_gate is false"),
            ("qwen3_5_moe", {"linear_num_key_heads": 4}, InvalidModelFile, "no multiple of 4"),
            ("qwen3_next", {"linear_num_key_heads": 3}, InvalidModelFile, "tensors are missing"),
            ("qwen3_next", {"mlp_only_layers": [3]}, InvalidModelFile, "'mlp_only_layers' .* cannot be used"),
            ("qwen3_next", {"mlp_only_layers": []}, InvalidModelFile, "tensors are missing"),
            ("qwen3_next", {"decoder_sparse_step": 0}, InvalidModelFile, "'decoder_sparse_step' .* out of range"),
            ("qwen3_next", {"norm_topk_prob": None, "moe_intermediate_size": 0}, InvalidModelFile, "out of range"),
            ("qwen3_next", {"attention_bias": True}, UnsupportedModel, "attention_bias is true"),
        ],
    )  # fmt: skip
    def test_configurations_are_refused(self, tmp_path, name, changes, error, message):
        with pytest.raises(error, match=message):
            opened(tmp_path, name, **changes)

    @pytest.mark.parametrize(
        ("metadata", "error", "message"),
        [
            ({"expert_feed_forward_length": 0}, InvalidModelFile, "expert_feed_forward_length"),
            ({"expert_shared_feed_forward_length": 80}, InvalidModelFile, "wrong shape"),
            ({"expert_count": 7}, InvalidModelFile, "tensors are missing"),
            ({"ssm.group_count": 3}, InvalidModelFile, "tensors are missing|wrong shape"),
            ({"expert_group_count": 2}, UnsupportedModel, "expert_group_count' is 2"),
        ],
    )  # fmt: skip
    def test_headers_are_refused(self, tmp_path, metadata, error, message):
        changes = {f"qwen3next.{key}": one for key, one in metadata.items()}
        with pytest.raises(error, match=message):
            opened_file(tmp_path, "qwen3_next", extra_metadata=changes)

    def test_files_of_older_converters_are_refused(self, tmp_path):
        fused = {"blk.0.ssm_in.weight": np.ones((704, 96), np.float32)}
        with pytest.raises(UnsupportedModel, match="older converter"):
            opened_file(tmp_path, "qwen3_next", extra_tensors=fused)
