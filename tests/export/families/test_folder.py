"""Llama models as folders of transformers: what is read, what is computed, and what is refused."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from edge_rt.errors import InvalidModelFile, InvalidTokenizer, ModelNotFound, UnsupportedModel
from edge_rt.export import export_model
from edge_rt.export.families.rope import Yarn, linear_rope, yarn_rope, yarn_temperature
from edge_rt.export.opening import open_checkpoint
from edge_rt.package.reader import open_package
from tests.helpers.gguf_factory import CHATML, write_llama_gguf
from tests.helpers.hf_factory import hf_tensors, write_hf_folder
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native


@pytest.fixture
def model(tmp_path):
    return write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32", tied=False, output_type="F32")


def config_of(folder):
    return open_checkpoint(folder)[1]


@pytest.mark.parametrize("profile", ["native", "portable"])
@pytest.mark.parametrize("files", [1, 3])
def test_a_folder_becomes_the_package_of_the_gguf_file_with_its_weights(model, files, profile, tmp_path):
    if profile == "native":
        require_native()
    folder = write_hf_folder(tmp_path / "m", model, files=files)
    one = export_model(model.path, tmp_path / "one", profile=profile, calibration=None)
    other = export_model(folder, tmp_path / "other", profile=profile, weights="keep", calibration=None)
    assert (other.path / "weights.bin").read_bytes() == (one.path / "weights.bin").read_bytes()
    assert (other.path / "tokenizer.json").read_bytes() == (one.path / "tokenizer.json").read_bytes()
    assert (other.path / "chat_template.jinja").read_text() == CHATML
    manifest = open_package(other.path).manifest
    assert (manifest.tokenizer.bos_token_id, manifest.tokenizer.eos_token_ids) == (1, (2, 0))
    paths = sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.json"))
    lines = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    assert (manifest.source.kind, manifest.source.name, manifest.source.sha256) == ("safetensors", "m", digest)
    assert manifest.source.size == sum(path.stat().st_size for path in paths)


def test_the_licence_is_that_of_the_model_card(model, tmp_path):
    folder = write_hf_folder(tmp_path / "m", model)
    assert open_checkpoint(folder)[0].license is None
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    assert open_checkpoint(folder)[0].license == "mit"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_text_that_is_a_link_is_refused(model, name, tmp_path):
    folder = write_hf_folder(tmp_path / "m", model)
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidModelFile, match=f"{name} is a link"):
        open_checkpoint(folder)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_halves_keep_their_values(model, dtype, tmp_path):
    require_native()
    folder = write_hf_folder(tmp_path / "m", model, dtype=dtype)
    export_model(folder, tmp_path / "package", profile="native", weights="keep")
    assert set(open_package(tmp_path / "package").manifest.quantisation.values()) == {dtype}
    with load_package(tmp_path / "package") as loaded:
        assert len(loaded.generate("the sea", max_tokens=5, temperature=0.0).token_ids) > 0


def test_a_tied_head_that_is_stored_twice_is_read_once(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32")
    head = model.weights["token_embd.weight"]
    folder = write_hf_folder(tmp_path / "m", model, tensors={"lm_head.weight": head})
    source, config = open_checkpoint(folder)
    assert config.is_tied
    assert "output.weight" not in source.tensors


def test_a_stored_head_that_is_not_the_embedding_counts_whatever_the_configuration_says(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32")
    head = model.weights["token_embd.weight"].copy()
    head[-1, -1] += 1
    folder = write_hf_folder(tmp_path / "m", model, tensors={"lm_head.weight": head})
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True
    source, config = open_checkpoint(folder)
    assert not config.is_tied
    assert "output.weight" in source.tensors


@pytest.mark.parametrize("inner", [{}, {"tie_word_embeddings": False}])
def test_a_model_that_sees_and_does_not_say_whether_its_head_is_tied(inner, tmp_path):
    """transformers takes it for tied then, and uses a stored head all the same."""
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32")
    head = model.weights["token_embd.weight"] * 2
    folder = write_hf_folder(tmp_path / "m", model, tensors={"lm_head.weight": head})
    text = json.loads((folder / "config.json").read_text())
    del text["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps({"model_type": "mistral3", "text_config": text | inner}))
    source, config = open_checkpoint(folder)
    assert not config.is_tied
    assert "output.weight" in source.tensors


class TestRope:
    def test_llama3(self, model, tmp_path):
        scaling = {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        }  # fmt: skip
        config = config_of(write_hf_folder(tmp_path / "m", model, config={"rope_scaling": scaling}))
        plain = 10000.0 ** (-np.arange(8) / 8)
        found = plain / np.array(config.ropes[0].frequencies)
        waves = 2 * np.pi * 10000.0 ** (np.arange(8) / 8)
        expected = np.where(waves > 128, 8.0, np.where(waves < 32, 1.0, 0.0))
        middle = expected == 0
        share = (128 / waves - 1) / 3
        expected[middle] = 1 / ((1 - share[middle]) / 8 + share[middle])
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert middle.any()

    def test_new_configurations_have_one_object_for_all(self, model, tmp_path):
        parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
        folder = write_hf_folder(tmp_path / "m", model, config={"rope_parameters": parameters, "rope_theta": None})
        config = config_of(folder)
        assert config.ropes == (linear_rope(5000.0, 16, 2.0),)

    def test_yarn(self, model, tmp_path):
        scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        config = config_of(write_hf_folder(tmp_path / "m", model, config={"rope_scaling": scaling}))
        assert config.ropes == (yarn_rope(10000.0, 16, Yarn(4.0, 64, yarn_temperature(4.0))),)

    @pytest.mark.parametrize(
        ("scaling", "error"),
        [
            ({"rope_type": "dynamic", "factor": 2.0}, UnsupportedModel),
            ({"rope_type": "linear"}, InvalidModelFile),
            ({"rope_type": "linear", "factor": "2"}, InvalidModelFile),
            ({"rope_type": "llama3", "factor": 8.0}, InvalidModelFile),
        ],
    )
    def test_refused(self, model, scaling, error, tmp_path):
        with pytest.raises(error):
            config_of(write_hf_folder(tmp_path / "m", model, config={"rope_scaling": scaling}))


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"model_type": "gpt2"}, UnsupportedModel, "architecture 'gpt2'"),
        ({"model_type": 3}, InvalidModelFile, "'model_type'"),
        ({"hidden_act": "gelu"}, UnsupportedModel, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, InvalidModelFile, "8 tensors are missing"),
        ({"mlp_bias": True}, InvalidModelFile, "6 tensors are missing"),
        ({"final_logit_softcapping": 30.0}, UnsupportedModel, "final_logit_softcapping is 30"),
        ({"embedding_multiplier": 12.0}, UnsupportedModel, "embedding_multiplier is 12"),
        ({"quantization_config": {"quant_method": "hqq"}}, UnsupportedModel, "'quant_method' is hqq"),
        ({"hidden_size": None}, InvalidModelFile, "'hidden_size'"),
        ({"hidden_size": "64"}, InvalidModelFile, "'hidden_size'"),
        ({"num_hidden_layers": 0}, InvalidModelFile, "'num_hidden_layers'"),
        ({"num_hidden_layers": 3}, InvalidModelFile, r"9 tensors are missing.*model\.layers\.2\..*Check config\.json"),
        ({"num_hidden_layers": 1}, UnsupportedModel, r"has 9 tensors.*model\.layers\.1\..*Check config\.json"),
        ({"num_key_value_heads": 3}, InvalidModelFile, "numbers of heads"),
        ({"head_dim": 25}, UnsupportedModel, "It is 25, it must be even and at most 1024. .* --via transformers"),
        ({"head_dim": 2048}, UnsupportedModel, "It is 2048, it must be even and at most 1024. .* --via transformers"),
        ({"intermediate_size": 96}, InvalidModelFile, r"wrong shape.*model\.layers\.0\.mlp"),
        ({"vocab_size": 400}, InvalidModelFile, "wrong shape"),
        ({"rope_theta": 0}, InvalidModelFile, "'rope_theta' is 0"),
        ({"rms_norm_eps": -1e-5}, InvalidModelFile, "'rms_norm_eps'"),
        ({"rms_norm_eps": float("nan")}, InvalidModelFile, "'rms_norm_eps'"),
        ({"rms_norm_eps": 10**400}, InvalidModelFile, "'rms_norm_eps'"),
    ],
)
def test_configurations_that_are_refused(model, config, error, message, tmp_path):
    with pytest.raises(error, match=message):
        open_checkpoint(write_hf_folder(tmp_path / "m", model, config=config))


def test_a_bias_is_refused(model, tmp_path):
    bias = {"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)}
    with pytest.raises(UnsupportedModel, match=r"q_proj\.bias"):
        open_checkpoint(write_hf_folder(tmp_path / "m", model, tensors=bias))


def test_a_folder_without_a_configuration(tmp_path):
    with pytest.raises(ModelNotFound, match=r"holds no config\.json"):
        open_checkpoint(tmp_path)


class TestTokenizer:
    def build(self, model, tmp_path, **files):
        folder = write_hf_folder(tmp_path / "m", model)
        for name, document in files.items():
            path = folder / (name + ("" if name.endswith("jinja") else ".json"))
            path.write_text(document if isinstance(document, str) else json.dumps(document))
        return open_checkpoint(folder)[0].build_tokenizer(419)

    def test_end_tokens_are_the_stated_ones_and_those_known_by_their_texts(self, model, tmp_path):
        build = self.build(
            model, tmp_path, generation_config={"eos_token_id": [7, 2]}, tokenizer_config={"eos_token": "<think>"}
        )
        assert build.eos_token_ids == (7, 2, 0)
        assert self.build(model, tmp_path / "b", generation_config={}).eos_token_ids == (2, 0)

    def test_ids_that_are_no_tokens_are_ignored_with_a_warning(self, model, tmp_path):
        build = self.build(model, tmp_path, generation_config={"eos_token_id": [2**32 - 1, 2]})
        assert build.eos_token_ids == (2, 0)
        assert "4294967295" in build.warnings[0]

    def test_the_template_of_the_tokenizer_decides_about_bos(self, model, tmp_path):
        folder = write_hf_folder(tmp_path / "m", model)
        document = json.loads((folder / "tokenizer.json").read_text())
        text = document["added_tokens"][1]["content"]
        step = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {text: {"id": text, "ids": [1], "tokens": [text]}},
        }
        (folder / "tokenizer.json").write_text(json.dumps(document | {"post_processor": step}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
        assert open_checkpoint(folder)[0].build_tokenizer(419).add_bos is True

    def test_a_template_in_a_file_of_its_own_comes_first(self, model, tmp_path):
        folder = write_hf_folder(tmp_path / "m", model)
        (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
        assert open_checkpoint(folder)[0].build_tokenizer(419).chat_template == "{{ messages[0]['content'] }}"

    def test_of_several_templates_the_default_one(self, model, tmp_path):
        templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
        build = self.build(model, tmp_path, tokenizer_config={"chat_template": templates})
        assert (build.chat_template, build.tool_template) == ("d", "t")

    def test_one_for_tools_in_a_file_of_its_own(self, model, tmp_path):
        folder = write_hf_folder(tmp_path / "m", model)
        # Where templates have files of their own, those of the settings are not read.
        templates = [{"name": "tool_use", "template": "other"}, {"name": "default", "template": "d"}]
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/tool_use.jinja").write_text("t")
        (folder / "chat_template.jinja").write_text("f")
        source, _ = open_checkpoint(folder)
        build = source.build_tokenizer(419)
        assert (build.chat_template, build.tool_template) == ("f", "t")

    def test_a_template_in_the_file_of_older_models(self, model, tmp_path):
        folder = write_hf_folder(tmp_path / "m", model)
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": "old"}))
        (folder / "tokenizer_config.json").write_text("{}")
        assert open_checkpoint(folder)[0].build_tokenizer(419).chat_template == "old"

    def test_a_single_template_is_none_for_tools(self, model, tmp_path):
        build = self.build(model, tmp_path, tokenizer_config={"chat_template": "d"})
        assert (build.chat_template, build.tool_template) == ("d", None)

    @pytest.mark.parametrize(("stated", "expected"), [(True, True), (False, False), (None, False)])
    def test_whether_a_text_begins_with_bos(self, model, stated, expected, tmp_path):
        settings = {} if stated is None else {"add_bos_token": stated}
        assert self.build(model, tmp_path, tokenizer_config=settings).add_bos is expected

    @pytest.mark.parametrize(
        "step",
        [
            {"single": [{"SpecialToken": "x"}]},
            {"single": [{"SpecialToken": {"id": ["x"]}}], "special_tokens": {}},
            {"single": [{"SpecialToken": {"id": "x"}}], "special_tokens": []},
            {"single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {"x": {"ids": 1}}},
        ],
    )
    def test_keys_of_a_step_that_has_no_use_for_them(self, model, step, tmp_path):
        folder = write_hf_folder(tmp_path / "m", model)
        document = json.loads((folder / "tokenizer.json").read_text())
        use = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
        (folder / "tokenizer.json").write_text(json.dumps(document | {"post_processor": use | step}))
        assert open_checkpoint(folder)[0].build_tokenizer(419).add_bos is False

    def test_a_template_whose_name_is_no_text(self, model, tmp_path):
        templates = [{"name": ["default"], "template": "t"}, 3]
        assert self.build(model, tmp_path, tokenizer_config={"chat_template": templates}).chat_template is None

    def test_no_tokenizer(self, model, tmp_path):
        folder = write_hf_folder(tmp_path / "m", model)
        (folder / "tokenizer.json").unlink()
        with pytest.raises(UnsupportedModel, match=r"has no tokenizer\.json"):
            open_checkpoint(folder)[0].build_tokenizer(419)


def test_a_chat_template_with_a_lone_surrogate(model, tmp_path):
    folder = write_hf_folder(tmp_path / "m", model)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{# \ud800 #}x"}))
    with pytest.raises(InvalidTokenizer, match=r"'default' in tokenizer_config\.json has a lone surrogate"):
        export_model(folder, tmp_path / "out", profile="portable", calibration=None)


def test_a_folder_whose_name_is_not_text(model, tmp_path):
    folder = write_hf_folder(tmp_path / "m\udcff", model)
    export_model(folder, tmp_path / "out", profile="portable", weights="keep", calibration=None)
    assert open_package(tmp_path / "out").manifest.model.name == "m\ufffd"


def test_a_value_that_is_not_finite_is_named_as_in_the_folder(model, tmp_path):
    name = "model.layers.1.mlp.up_proj.weight"
    values = hf_tensors(model)[name].copy()
    values[3, 4] = np.nan
    folder = write_hf_folder(tmp_path / "m", model, tensors={name: values})
    with pytest.raises(InvalidModelFile, match=f"'{name}' holds a value that is not finite.*look at its training"):
        export_model(folder, tmp_path / "out", profile="portable", weights="keep", calibration=None)
