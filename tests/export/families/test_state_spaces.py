"""Falcon-H1 and Nemotron: what their files may say, that folders and GGUF files say the same, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_rt.errors import InvalidModelFile, UnsupportedModel
from edge_rt.export.opening import open_checkpoint
from edge_rt.package.layers import FeedForward, StateSpace
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.family_gguf import gguf_tensors
from tests.helpers.lora_factory import peft_tensors, write_peft
from tests.helpers.opened_cases import opened, opened_file, read_all


@pytest.mark.parametrize("name", ["falcon_h1", "falcon_h1_norm", "nemotron_h", "nemotron_h_latent", "qwen3_next"])
def test_a_folder_and_a_file_have_the_same_bits(name, tmp_path):
    case = load_case(name)
    source, folder = read_all(write_folder(tmp_path / "folder", case))
    _, file = read_all(write_gguf(tmp_path / "m.gguf", case))
    assert folder.keys() == file.keys()
    for tensor, values in folder.items():
        found = values
        if tensor.endswith("ssm_a.weight"):
            found = (-np.exp(values.astype(np.float64))).astype(np.float32)
        elif tensor.endswith("_norm.weight") and "ssm_norm" not in tensor:
            found = values + np.float32(source.norm_offset)
        assert np.array_equal(found, file[tensor]), tensor


class TestFalcon:
    @pytest.mark.parametrize("name", ["falcon_h1", "falcon_h1_norm", "falcon_h1_before"])
    def test_layers_have_attention_and_a_state_space(self, tmp_path, name):
        decoder = opened(tmp_path, name)
        norm = {"falcon_h1": "none", "falcon_h1_norm": "behind", "falcon_h1_before": "before"}[name]
        assert decoder.attention_layers == (0, 1, 2)
        space = StateSpace(8, 16, 2, 32, 4, has_conv_bias=name != "falcon_h1_before", norm=norm)
        assert all(layer.state_space == space for layer in decoder.layers)
        scales = (2.5, 0.3) if name == "falcon_h1_before" else (1.0, 1.0)
        assert (decoder.embedding_scale, decoder.logit_scale) == scales

    @pytest.mark.parametrize("name", ["falcon_h1", "falcon_h1_norm"])
    def test_a_file_says_what_a_folder_says(self, tmp_path, name):
        folder, file = opened(tmp_path, name), opened_file(tmp_path, name)
        assert replace(file, name=folder.name, norm_epsilon=folder.norm_epsilon) == folder

    def test_a_norm_may_have_the_end_of_its_name(self, tmp_path):
        case = load_case("falcon_h1")
        assert "blk.1.ffn_norm" in gguf_tensors(case)
        norm = {"blk.1.ffn_norm.weight": gguf_tensors(case)["blk.1.ffn_norm"]}
        opened_file(tmp_path, "falcon_h1", extra_tensors=norm, drop_tensors=("blk.1.ffn_norm",))
        with pytest.raises(UnsupportedModel, match=r"1 tensor.*\n?.*blk\.1\.ffn_norm"):
            opened_file(tmp_path, "falcon_h1", extra_tensors=norm)

    def test_multipliers_of_1_leave_matrices_as_they_are_stored(self, tmp_path):
        ones = {"mlp_multipliers": [1.0, 1], "ssm_multipliers": None, "ssm_in_multiplier": 1.0}
        path = write_folder(tmp_path / "m", load_case("falcon_h1"), dtype="BF16", config=ones)
        source, _ = open_checkpoint(path)
        types = {name.split(".", 2)[2]: one.type_name for name, one in source.tensors.items() if "blk.0" in name}
        assert types["ssm_in.weight"] == types["ffn_down.weight"] == "BF16"
        assert types["ssm_out.weight"] == types["attn_k.weight"] == "F32"
        assert source.remarks == ("The checkpoint's multipliers are folded into its matrices.",)

    def test_adapters_are_refused(self, tmp_path):
        folder = write_folder(tmp_path / "m", load_case("falcon_h1"))
        products = {"model.layers.0.self_attn.q_proj": (np.ones((4, 96), np.float32), np.ones((128, 4), np.float32))}
        adapter = write_peft(tmp_path / "lora", peft_tensors(products))
        with pytest.raises(UnsupportedModel, match="adapters of this architecture are not merged"):
            open_checkpoint(folder, {adapter: 1.0})

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"mamba_d_ssm": 0}, InvalidModelFile, "'mamba_d_ssm' .* out of range"),
            ({"mamba_d_ssm": 96}, InvalidModelFile, "'mamba_n_heads' .* cannot be used"),
            ({"mamba_n_groups": 3}, InvalidModelFile, "no multiple of 3 groups"),
            ({"mamba_norm_before_gate": 1}, InvalidModelFile, "'mamba_norm_before_gate' .* wrong type"),
            ({"mamba_rms_norm": True}, InvalidModelFile, "tensors are missing"),
            ({"time_step_limit": [0.0, 1.0]}, UnsupportedModel, "time_step_limit is"),
            ({"key_multiplier": 0}, InvalidModelFile, "'key_multiplier' .* out of range"),
            ({"key_multiplier": "1"}, InvalidModelFile, "'key_multiplier' .* wrong type"),
            ({"ssm_multipliers": [1, 1, 1, 1]}, InvalidModelFile, "'ssm_multipliers' .* cannot be used"),
            ({"ssm_multipliers": [1, 1, 1, 1, float("nan")]}, InvalidModelFile, "'ssm_multipliers' .* cannot be used"),
            ({"mlp_multipliers": [1.0, True]}, InvalidModelFile, "'mlp_multipliers' .* cannot be used"),
            ({"attention_bias": True}, UnsupportedModel, "attention_bias is true"),
            ({"projectors_bias": True}, UnsupportedModel, "projectors_bias is true"),
            ({"hidden_act": "relu2"}, UnsupportedModel, "hidden_act is 'relu2'"),
        ],
    )  # fmt: skip
    def test_configurations_are_refused(self, tmp_path, changes, error, message):
        with pytest.raises(error, match=message):
            opened(tmp_path, "falcon_h1", **changes)

    @pytest.mark.parametrize(
        ("metadata", "error", "message"),
        [
            ({"ssm.time_step_rank": 7}, InvalidModelFile, "no multiple of 7 heads"),
            ({"ssm.group_count": 0}, InvalidModelFile, "ssm.group_count"),
            ({"ssm.inner_size": 256}, InvalidModelFile, "wrong shape"),
            ({"ssm.state_size": 1 << 31}, InvalidModelFile, "ssm.state_size"),
            ({"key_multiplier": 0.5}, UnsupportedModel, "key_multiplier' is 0.5"),
        ],
    )  # fmt: skip
    def test_headers_are_refused(self, tmp_path, metadata, error, message):
        changes = {f"falcon-h1.{key}": one for key, one in metadata.items()}
        with pytest.raises(error, match=message):
            opened_file(tmp_path, "falcon_h1_norm", extra_metadata=changes)

    @pytest.mark.parametrize(
        ("key", "value"), [("key_multiplier", 0.5), ("mlp_multipliers", [1, 2]), ("mamba_d_ssm", 8)]
    )
    def test_other_families_refuse_their_keys(self, tmp_path, key, value):
        opened(tmp_path, "llama", mlp_multipliers=[1.0, 1.0], key_multiplier=1.0)
        with pytest.raises(UnsupportedModel, match=key):
            open_checkpoint(write_folder(tmp_path / "other", load_case("llama"), config={key: value}))


class TestNemotron:
    @pytest.mark.parametrize("name", ["nemotron_h", "nemotron_h_dense", "nemotron_h_latent"])
    def test_a_file_says_what_a_folder_says(self, tmp_path, name):
        folder, file = opened(tmp_path, name), opened_file(tmp_path, name)
        assert replace(file, name=folder.name, norm_epsilon=folder.norm_epsilon) == folder
        assert folder.ropes == ()
        assert all(layer.has_mixer != bool(layer.feed_forwards) for layer in folder.layers)

    def test_experts_are_in_groups_and_may_have_latent_rows(self, tmp_path):
        experts = opened(tmp_path, "nemotron_h_latent").layers[1].experts
        assert (experts.groups, experts.chosen_groups, experts.latent) == (4, 2, 64)
        assert experts.each == FeedForward(64, "relu2", is_gated=False)

    def test_words_of_releases_mean_the_same(self, tmp_path):
        words = ["mamba", "moe", "attention", "mamba", "mlp"]
        assert opened(tmp_path, "nemotron_h", layers_block_type=words).pattern == (0, 1, 2, 0, 3)

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"layers_block_type": None, "hybrid_override_pattern": "M-?*"}, UnsupportedModel, 'has "\\?"'),
            ({"layers_block_type": None, "hybrid_override_pattern": ["M"]}, InvalidModelFile, "wrong type"),
            ({"layers_block_type": None, "hybrid_override_pattern": ""}, InvalidModelFile, "num_hidden_layers"),
            ({"layers_block_type": []}, InvalidModelFile, "num_hidden_layers"),
            ({"layers_block_type": ["conv"]}, UnsupportedModel, "layers_block_type has 'conv'"),
            ({"layers_block_type": ["mlp", "moe"]}, InvalidModelFile, "no layer has attention"),
            ({"layers_block_type": ["full_attention"]}, InvalidModelFile, "no layer has a feed-forward"),
            ({"n_group": 3}, InvalidModelFile, "8 experts are not in 3 groups"),
            ({"n_group": 8}, InvalidModelFile, "8 experts are not in 8 groups"),
            ({"topk_group": 5}, InvalidModelFile, "'topk_group' .* out of range"),
            ({"topk_group": 1}, InvalidModelFile, "more experts are chosen than chosen groups have"),
            ({"n_shared_experts": 2}, UnsupportedModel, "n_shared_experts is 2"),
            ({"moe_latent_size": 32}, InvalidModelFile, "tensors are missing"),
            ({"moe_latent_size": -1}, InvalidModelFile, "'moe_latent_size' .* out of range"),
            ({"mlp_hidden_act": "silu"}, UnsupportedModel, "mlp_hidden_act is 'silu'"),
            ({"mamba_hidden_act": "gelu"}, UnsupportedModel, "mamba_hidden_act is 'gelu'"),
            ({"attention_bias": True}, UnsupportedModel, "attention_bias is true"),
            ({"mamba_proj_bias": True}, UnsupportedModel, "mamba_proj_bias is true"),
            ({"use_bias": True}, InvalidModelFile, "tensors are missing"),
            ({"time_step_limit": [0.01, 0.5]}, UnsupportedModel, "time_step_limit is"),
            ({"ssm_state_size": 0}, InvalidModelFile, "'ssm_state_size' .* out of range"),
            ({"n_groups": 3}, InvalidModelFile, "no multiple of 3 groups"),
            ({"routed_scaling_factor": 0}, InvalidModelFile, "'routed_scaling_factor' .* out of range"),
        ],
    )  # fmt: skip
    def test_configurations_are_refused(self, tmp_path, changes, error, message):
        with pytest.raises(error, match=message):
            opened(tmp_path, "nemotron_h", **changes)

    @pytest.mark.parametrize(
        ("metadata", "error", "message"),
        [
            ({"feed_forward_length": [64, 64, 0, 64]}, InvalidModelFile, "4 values for 5 layers"),
            ({"feed_forward_length": [64, 64, 0, 0, 160]}, InvalidModelFile, "tensors are missing"),
            ({"attention.head_count_kv": [0] * 5}, UnsupportedModel, "0 values above 0"),
            ({"expert_group_count": 3}, InvalidModelFile, "8 experts are not in 3 groups"),
            ({"expert_group_used_count": 0}, InvalidModelFile, "expert_group_used_count"),
            ({"expert_gating_func": 1}, UnsupportedModel, "expert_gating_func' is 1"),
            ({"expert_shared_count": 2}, UnsupportedModel, "expert_shared_count' is not 1"),
            ({"expert_weights_norm": 1}, InvalidModelFile, "expert_weights_norm"),
            ({"moe_latent_size": 32}, InvalidModelFile, "tensors are missing"),
            ({"nextn_predict_layers": 5}, InvalidModelFile, "there are 5 blocks in all"),
            ({"expert_shared_feed_forward_length": 0}, InvalidModelFile, "expert_shared_feed_forward_length"),
        ],
    )  # fmt: skip
    def test_headers_are_refused(self, tmp_path, metadata, error, message):
        changes = {f"nemotron_h_moe.{key}": one for key, one in metadata.items()}
        with pytest.raises(error, match=message):
            opened_file(tmp_path, "nemotron_h", extra_metadata=changes)

    def test_files_of_several_groups_say_how_many_are_chosen(self, tmp_path):
        with pytest.raises(InvalidModelFile, match="expert_group_used_count"):
            opened_file(tmp_path, "nemotron_h", drop_metadata=("nemotron_h_moe.expert_group_used_count",))

    @pytest.mark.parametrize("key", ["hybrid_override_pattern", "mamba_num_heads", "moe_latent_size", "n_group"])
    def test_other_families_refuse_their_keys(self, tmp_path, key):
        with pytest.raises(UnsupportedModel, match=key):
            opened(tmp_path, "llama", **{key: 64})
