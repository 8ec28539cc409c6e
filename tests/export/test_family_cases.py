"""The stored cases of model families: they are whole, and a plain numpy pass over them gives transformers' logits."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest

from edge_rt.text.tokenizer import Tokenizer
from tests.helpers.family_cases import CASES, load_case, write_folder, write_gguf
from tests.helpers.family_data import DATA, checksum, text_tensors
from tests.helpers.family_gguf import head_dim, lfm2_size
from tests.helpers.family_reference import family_logits


def read_header(path):
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def relative_error(expected, found):
    return np.abs(expected - found).max() / np.abs(expected).max()


@pytest.fixture(params=CASES)
def case(request):
    return load_case(request.param)


def test_a_case_is_whole(case):
    config = case.text_config
    shapes = {name: values.shape for name, values in text_tensors(case.tensors()).items()}
    size, hidden = head_dim(config), config["hidden_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    embedding = next(name for name in shapes if "embed" in name)
    assert shapes[embedding] == (config["vocab_size"], hidden)
    assert ("lm_head.weight" in shapes) == (not config["tie_word_embeddings"])
    if config["model_type"] == "nemotron_h":
        blocks = [f"backbone.layers.{number}.norm.weight" for number in range(len(config["layers_block_type"]))]
        assert [name for name in shapes if name.endswith("norm.weight") and ".mixer." not in name] == blocks
        return
    layers = {int(name.split(".")[2]) for name in shapes if name.startswith("model.layers.")}
    assert layers == set(range(config["num_hidden_layers"]))
    for layer in layers:
        prefix = f"model.layers.{layer}."
        if config["model_type"] in ("lfm2", "lfm2_moe"):
            if prefix + "feed_forward.gate.weight" not in shapes:
                assert shapes[prefix + "feed_forward.w2.weight"] == (hidden, lfm2_size(config))
            if config["layer_types"][layer] == "conv":
                assert shapes[prefix + "conv.conv.weight"] == (hidden, 1, config["conv_L_cache"])
                continue
        elif prefix + "mamba.D" in shapes:
            assert shapes[prefix + "mamba.D"] == (config["mamba_n_heads"],)
            continue
        elif prefix + "linear_attn.conv1d.weight" in shapes:
            values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
            assert shapes[prefix + "linear_attn.out_proj.weight"] == (hidden, values)
            continue
        elif config["model_type"] == "gemma4_text":
            own = config["num_hidden_layers"] - config["num_kv_shared_layers"]
            assert (prefix + "self_attn.k_proj.weight" in shapes) == (layer < own)
            continue
        else:
            assert shapes[prefix + "self_attn.o_proj.weight"] == (hidden, heads * size)
            if "num_experts_per_tok" not in config and "mamba_d_ssm" not in config:
                assert shapes[prefix + "mlp.down_proj.weight"] == (hidden, config["intermediate_size"])
        if prefix + "self_attn.qkv_proj.weight" in shapes:
            assert shapes[prefix + "self_attn.qkv_proj.weight"] == ((heads + 2 * kv_heads) * size, hidden)
        else:
            gated = 2 if config["model_type"].startswith(("qwen3_5", "qwen3_next")) else 1
            assert shapes[prefix + "self_attn.q_proj.weight"] == (gated * heads * size, hidden)
            assert shapes[prefix + "self_attn.k_proj.weight"] == (kv_heads * size, hidden)
    assert case.tokens.max() < config["vocab_size"]
    assert case.logits.shape == (len(case.tokens), config["vocab_size"])
    assert case.logits.dtype == np.float32


def test_the_weights_are_those_of_the_logits(case):
    stored = json.loads((DATA / f"{case.name}.json").read_text())["checksum"]
    assert checksum(case.tensors()) == stored


def test_float16_and_bfloat16_hold_the_weights_exactly(case):
    for name, values in case.tensors().items():
        assert np.array_equal(values.astype(np.float16).astype(np.float32), values), name
        assert not (values.view(np.uint32) & 0xFFFF).any(), name


def test_the_reference_computes_what_transformers_does(case):
    found = family_logits(case.text_config, text_tensors(case.tensors()), case.tokens)
    assert relative_error(case.logits, found) < 1e-5


def test_a_folder_holds_the_case(case, tmp_path):
    folder = write_folder(tmp_path / "model", case, dtype="BF16", old_keys=True)
    config = json.loads((folder / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"
    # Some families assume others than a plain rotation without them.
    assert "rope_parameters" not in config or case.name.startswith(("gpt_oss_plain", "qwen3_5", "gemma4"))
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    assert tokenizer.decode(tokenizer.encode_text("The boat left at 9.")) == "The boat left at 9."


def test_a_folder_can_leave_out_what_transformers_assumes(case, tmp_path):
    folder = write_folder(tmp_path / "model", case, drop_defaults=True, config={"added": 1, "architectures": None})
    config = json.loads((folder / "config.json").read_text())
    assert case.default_keys
    assert not set(case.default_keys) & set(config.get("text_config", config))
    assert config["added"] == 1
    assert "architectures" not in config


@pytest.mark.parametrize("name", ["gemma3", "mistral3"])
def test_a_folder_of_text_and_images_has_either_order_of_names(name, tmp_path):
    case = load_case(name)
    folder = write_folder(tmp_path / "model", case, model_first=True)
    stored = read_header(folder / "model.safetensors")
    assert set(stored) == {
        f"model.{name}"
        if "vision" in name or "projector" in name
        else name.replace("language_model.model.", "model.language_model.")
        for name in case.shapes
    }
    assert text_tensors(stored).keys() == text_tensors(case.shapes).keys()


def test_a_gguf_file_holds_the_case(case, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", case, weight_type="Q8_0")
    reader = gguf.GGUFReader(path)
    stored = sum(int(tensor.n_elements) for tensor in reader.tensors if not tensor.name.startswith("rope"))
    assert stored == sum(values.size for values in text_tensors(case.tensors()).values())
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F32", "Q8_0"}
