"""What Gemma 4's files say beyond what the family's cases cover."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edge_rt.errors import EdgeRTError, InvalidModelFile, UnsupportedModel
from edge_rt.export.opening import open_checkpoint
from tests.helpers.family_cases import load_case, write_folder, write_gguf
from tests.helpers.hf_factory import write_safetensors

SHARED, KEYS = load_case("gemma4_text"), load_case("gemma4_text_keys")
EXPERTS = load_case("gemma4_text_experts")


def decoder_of(path):
    return open_checkpoint(path)[1]


def test_layers_read_the_last_one_of_their_kind(tmp_path):
    decoder = decoder_of(write_folder(tmp_path / "m", SHARED))
    assert [decoder.attention_of(layer).kv_from for layer in range(6)] == [None] * 4 + [2, 3]
    assert [decoder.attention_of(layer).head_dim for layer in range(6)] == [32, 64] * 3
    assert [decoder.feed_forward_of(layer).size for layer in range(6)] == [160] * 4 + [320] * 2
    assert decoder.kv_layers == (0, 1, 2, 3)
    rope = decoder.ropes[0]
    assert (rope.dimensions, sum(one > 0 for one in rope.frequencies)) == (64, 8)


def test_the_unified_model_is_the_same_without_further_embeddings(tmp_path):
    config = {"model_type": "gemma4_unified_text", "hidden_size_per_layer_input": None}
    found = decoder_of(write_folder(tmp_path / "unified", KEYS, config=config))
    assert found == dataclasses.replace(decoder_of(write_folder(tmp_path / "text", KEYS)), name=found.name)


def test_keys_that_nobody_reads_are_left_out(tmp_path):
    """The hub's folders, and files made of them, have keys and values of layers that read those of others."""
    more = {
        f"model.layers.{layer}.self_attn.{name}": np.zeros(shape, np.float32)
        for layer, size in ((4, 32), (5, 64))
        for name, shape in (
            ("k_proj.weight", (2 * size, 96)), ("v_proj.weight", (2 * size, 96)), ("k_norm.weight", (size,)),
        )
    }  # fmt: skip
    folder = write_folder(tmp_path / "folder", SHARED)
    write_safetensors(folder / "model.safetensors", SHARED.tensors() | more, "F32")
    names = {"k_proj": "attn_k", "v_proj": "attn_v", "k_norm": "attn_k_norm"}
    extra = {
        f"blk.{name.split('.')[2]}.{names[name.split('.')[4]]}.weight": values for name, values in more.items()
    }  # fmt: skip
    for path in (folder, write_gguf(tmp_path / "m.gguf", SHARED, extra_tensors=extra)):
        source, decoder = open_checkpoint(path)
        assert not [name for name in source.tensors if name.startswith(("blk.4.attn_k", "blk.5.attn_v"))]
        assert decoder.kv_layers == (0, 1, 2, 3)


def test_experts_stand_beside_the_feed_forward(tmp_path):
    folder = decoder_of(write_folder(tmp_path / "m", EXPERTS))
    file = decoder_of(write_gguf(tmp_path / "m.gguf", EXPERTS))
    experts = folder.layers[1].experts
    assert (experts.count, experts.chosen, experts.each.size, experts.each.activation) == (8, 3, 48, "gelu")
    assert (experts.is_normalised, experts.has_scales, experts.has_own_norms) == (True, True, True)
    assert file.layers == folder.layers


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_experts": None}, "num_experts"),
        ({"num_experts": 1 << 20}, "num_experts"),
        ({"num_experts": 7}, "wrong shape|missing|does not use"),
        ({"top_k_experts": 9}, "top_k_experts"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ({"enable_moe_block": False}, "does not use"),
    ],
)
def test_hostile_experts(tmp_path, config, words):
    with pytest.raises(EdgeRTError, match=words):
        open_checkpoint(write_folder(tmp_path / "m", EXPERTS, config=config))


def test_a_file_without_scales_of_experts_is_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", EXPERTS, drop_tensors=("blk.1.ffn_down_exps.scale",))
    with pytest.raises(EdgeRTError, match=r"ffn_down_exps\.scale"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ({"rope_parameters": {}}, "nothing for sliding_attention and full_attention"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}, "nothing for full_attention"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {}}}, "for full_attention"),
        ({"attention_bias": True}, "attention_bias"),
        ({"vocab_size_per_layer_input": 100}, "vocab_size_per_layer_input is 100"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers"),
        ({"per_layer_config": {"1": {"head_dim": 64}}}, "per_layer_config"),
        ({"per_layer_config": {str(layer): {"scale": 64} for layer in (1, 3, 5)}}, "per_layer_config"),
        ({"per_layer_config": [64]}, "per_layer_config"),
        ({"per_layer_config": {str(layer): {"head_dim": 1 << 20} for layer in (1, 3, 5)}}, "head_dim|head size"),
        ({"hidden_size_per_layer_input": 1 << 18}, "per_layer_embedding is out of range"),
        ({"hidden_size_per_layer_input": -1}, "hidden_size_per_layer_input"),
    ],
)
def test_hostile_configurations(tmp_path, config, words):
    with pytest.raises(EdgeRTError, match=words):
        open_checkpoint(write_folder(tmp_path / "m", SHARED, config=config))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"gemma4.attention.shared_kv_layers": 5}, "layers read keys"),
        ({"gemma4.attention.shared_kv_layers": 99}, "shared_kv_layers"),
        ({"gemma4.attention.value_length_swa": 16}, "heads of two sizes"),
        ({"gemma4.rope.dimension_count_swa": 16}, "is rotated"),
        ({"gemma4.attention.key_length_swa": 31, "gemma4.attention.value_length_swa": 31}, "head size"),
        ({"gemma4.embedding_length_per_layer_input": 1 << 18}, "per_layer_embedding is out of range"),
        ({"gemma4.feed_forward_length": [1, 2]}, "feed_forward_length"),
        ({"gemma4.feed_forward_length": [160, 0, 160, 160, 320, 320]}, "feed_forward_length"),
        ({"gemma4.attention.head_count_kv": [2, 1, 2, 1, 2, 2]}, "head_count_kv"),
        ({"gemma4.attention.head_count_kv": [2, 1, 0, 1, 2, 1]}, "head_count_kv.*6 values.*must be 1 to"),
        ({"gemma4.attention.head_count_kv": [0] * 6}, "head_count_kv.*must be 1 to"),
        ({"gemma4.attention.head_count_kv": 0}, "head_count_kv"),
    ],
)
def test_hostile_headers(tmp_path, metadata, words):
    with pytest.raises(EdgeRTError, match=words):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", SHARED, extra_metadata=metadata))


def test_a_file_without_the_size_of_its_windows_is_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", SHARED, drop_metadata=("gemma4.attention.sliding_window",))
    with pytest.raises(InvalidModelFile, match=r"'gemma4\.attention\.sliding_window' is missing"):
        open_checkpoint(path)


def test_a_file_without_divisors_is_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", SHARED, drop_tensors=("rope_freqs.weight",))
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        open_checkpoint(path)
