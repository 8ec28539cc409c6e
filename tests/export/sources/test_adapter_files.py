"""Files of adapters that cannot be merged: each cause has its error, and errors name the adapter."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from edge_rt.errors import ConfigError, InvalidModelFile, ModelNotFound, UnsupportedModel
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.sources.adapters import read_gguf_adapter
from edge_rt.export.sources.peft_adapter import read_peft_adapter
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.hf_factory import write_hf_folder
from tests.helpers.lora_factory import RANK, low_rank, peft_tensors, write_gguf_adapter, write_peft

Q = "model.layers.0.self_attn.q_proj"
NAME = f"base_model.model.{Q}"


def pair(rows=8, inputs=8):
    return low_rank(np.random.default_rng(0), (rows, inputs))


def tensors(**changed):
    """Return the tensors of an adapter, some by their ends added, replaced, or left out where they are None."""
    found = peft_tensors({Q: pair()}) | {f"{NAME}.{end.replace('__', '.')}": value for end, value in changed.items()}
    return {name: values for name, values in found.items() if values is not None}


def read(folder):
    return read_peft_adapter(folder, 1.0, 3)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"peft_type": "IA3"}, r"'peft_type' is 'IA3', must be 'LORA'"),
        ({"peft_type": None}, r"'peft_type' is 'None'"),
        ({"use_dora": True}, r"'use_dora' is 'True'"),
        ({"use_something_new": {"n": 1}}, r"'use_something_new' is"),
        ({"alora_invocation_tokens": [3, 4]}, r"'alora_invocation_tokens' is '\[3, 4\]'"),
        ({"layer_replication": [[0, 2]]}, r"'layer_replication' is"),
        ({"lora_bias": True}, r"'lora_bias' is 'True'"),
        ({"init_lora_weights": "pissa_niter_16"}, r"'init_lora_weights' is 'pissa_niter_16', which changes the model"),
        ({"alpha_pattern": {"(a+)+": 3}}, r"The pattern '\(a\+\)\+' is too complicated"),
        ({"alpha_pattern": {".*.*.*.*z": 3}}, r"The pattern '\.\*\.\*\.\*\.\*z' is too complicated"),
        ({"alpha_pattern": {"(q_proj": 3}}, r"The pattern '\(q_proj' is too complicated"),
        ({"alpha_pattern": {"a{99999999999}": 3}}, r"The pattern 'a\{99999999999\}' is too complicated"),
        ({"alpha_pattern": {"(((){,999}){9}){9}": 3}}, r"The pattern '\(\(\(\)\{,999.* is too complicated"),
        ({"rank_pattern": {"(a|a)" * 9: 3}}, r"The pattern '\(a\|a\)\(a.* is too complicated"),
        ({"rank_pattern": dict.fromkeys(map(str, range(4097)), 3)}, r"'rank_pattern' has 4097 patterns, at most"),
        (
            {"rank_pattern": {f".*.*.*{n}": 3 for n in range(200)}},
            r"The patterns in 'rank_pattern' are too complicated for 1 module",
        ),
    ],
)
def test_other_methods_are_refused_by_name(config, found, tmp_path):
    folder = write_peft(tmp_path / "lora", tensors(), **config)
    with pytest.raises(UnsupportedModel, match=rf"lora: edge-rt does not merge adapters of this kind\. {found}.*PEFT"):
        read(folder)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"lora_magnitude_vector": np.ones(8)}, "lora_magnitude_vector"),
        ({"lora_E": np.ones((4, 1))}, "lora_E"),
        ({"lora_A__other__weight": np.ones((4, 8))}, r"lora_A\.other\.weight"),
        ({"lora_B__bias": np.ones(8)}, r"lora_B\.bias"),
    ],
)
def test_tensors_that_are_not_known_are_refused_by_name(changed, name, tmp_path):
    with pytest.raises(UnsupportedModel, match=rf"lora: the adapter has a tensor .* know\. It is '{NAME}\.{name}'"):
        read(write_peft(tmp_path / "lora", tensors(**changed)))


def test_a_name_that_is_too_long_to_match_is_refused(tmp_path):
    found = peft_tensors({"a" * 201: pair()})
    with pytest.raises(UnsupportedModel, match=r"the adapter has a tensor that edge-rt does not know\. It is '.*aaaa"):
        read(write_peft(tmp_path / "lora", found, alpha_pattern={".*.*.*x": 3}))


@pytest.mark.parametrize(("end", "other"), [("lora_embedding_B", "lora_A"), ("lora_embedding_A", "lora_B")])
def test_two_kinds_of_matrices_for_one_module_are_refused(end, other, tmp_path):
    values = np.ones((8, RANK) if end.endswith("B") else (RANK, 8))
    names = rf"'{NAME}\.({end}|{other}\.weight)'"
    with pytest.raises(UnsupportedModel, match=rf"adapters of this kind\. It has {names} and {names}"):
        read(write_peft(tmp_path / "lora", tensors(**{end: values})))


def test_a_tensor_without_pefts_prefix_is_refused(tmp_path):
    found = {name.removeprefix("base_model.model."): values for name, values in tensors().items()}
    with pytest.raises(UnsupportedModel, match=rf"It is '{Q}\.lora_A\.weight'"):
        read(write_peft(tmp_path / "lora", found))


@pytest.mark.parametrize(
    ("changed", "config", "why"),
    [
        ({"lora_B__weight": None}, {}, rf"one of the two matrices for '{Q}\.weight' is missing\. There is no B"),
        ({"lora_A__weight": None}, {}, r"There is no A"),
        (
            {"lora_B__weight": np.ones((8, 3))},
            {},
            r"do not fit each other\. They have the shapes \[8, 3\] and \[4, 8\]",
        ),
        ({"lora_B__weight": np.ones(8)}, {}, r"They have the shapes \[8\] and"),
        ({"lora_A__weight": np.ones((0, 8)), "lora_B__weight": np.ones((8, 0))}, {}, r"shapes \[8, 0\] and \[0, 8\]"),
        ({}, {"r": 8}, rf"contradict adapter_config\.json\. They have the rank {RANK}, stated is 8"),
        ({}, {"lora_alpha": "16"}, r"'lora_alpha' in adapter_config\.json is missing or wrong\. Found '16'"),
        ({}, {"lora_alpha": True}, r"'lora_alpha' .* Found True"),
        ({}, {"alpha_pattern": {"q_proj": float("inf")}}, r"'lora_alpha' .* Found inf"),
        ({}, {"lora_alpha": 10**400}, r"'lora_alpha' .* Found 1000"),
        ({}, {"rank_pattern": [3]}, r"'rank_pattern' .* Found \[3\]"),
        ({"token_adapter__trainable_tokens_delta": np.ones((2, 8))}, {}, r"'trainable_token_indices' .* Found None"),
        (
            {"token_adapter__trainable_tokens_delta": np.ones((2, 8))},
            {"trainable_token_indices": [1, 1]},
            r"has the shape \[2, 8\]; 1 tokens are stated",
        ),
    ],
)
def test_tensors_and_settings_that_contradict_each_other(changed, config, why, tmp_path):
    with pytest.raises(InvalidModelFile, match=rf"lora: .*{why}"):
        read(write_peft(tmp_path / "lora", tensors(**changed), **config))


def test_every_module_may_have_a_pattern_of_its_own(tmp_path):
    modules = [f"model.layers.{layer}.{name}_proj" for layer in range(80) for name in "qkvo"]
    found = peft_tensors(dict.fromkeys(modules, low_rank(np.random.default_rng(0), (1, 1), 1)))
    alphas = {module: number for number, module in enumerate(modules, 1)}
    adapter = read(write_peft(tmp_path / "lora", found, r=1, alpha_pattern=alphas))
    assert {f"{module}.weight": alpha for module, alpha in alphas.items()} == {
        name: product.scale for name, product in adapter.products.items()
    }


def test_weights_that_are_a_pickle(tmp_path):
    folder = write_peft(tmp_path / "lora", tensors())
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(UnsupportedModel, match=r"only as a pickle.*save_pretrained"):
        read(folder)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(ModelNotFound, match=r"adapter_model\.safetensors is missing"):
        read(folder)


def test_what_is_no_adapter(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf", layers=1)
    with pytest.raises(ModelNotFound, match=r"is not an adapter\. It holds no adapter_config\.json"):
        open_checkpoint(model.path, {tmp_path: 1.0})
    with pytest.raises(ModelNotFound, match=r"There is no adapter .*missing"):
        open_checkpoint(model.path, {tmp_path / "missing": 1.0})
    with pytest.raises(InvalidModelFile, match=r"m\.gguf is not an adapter\. 'general\.type' is 'None'"):
        open_checkpoint(model.path, {model.path: 1.0})
    with pytest.raises(ConfigError, match="scale of an adapter is out of range"):
        open_checkpoint(model.path, {tmp_path: float("nan")})


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"kind": "cvec"}, r"'adapter\.type' is 'cvec'"),
        ({"extra": {"adapter.alora.invocation_tokens": [3, 4]}}, "activated LoRA"),
        ({"vectors": {"blk.0.attn_q.weight": np.ones((8, 8), np.float32)}}, r"the tensor 'blk\.0\.attn_q\.weight'"),
    ],
)
def test_gguf_files_of_other_kinds_are_refused(options, found, tmp_path):
    path = write_gguf_adapter(tmp_path / "l.gguf", {"blk.0.attn_k.weight": pair()}, **options)
    with pytest.raises(UnsupportedModel, match=rf"l\.gguf: edge-rt does not merge adapters of this kind\. .*{found}"):
        read_gguf_adapter(path, 1.0, 0)


def test_an_adapter_in_parts_is_refused(tmp_path):
    pairs = [{f"blk.0.attn_{name}.weight": pair()} for name in "qk"]
    paths = [
        write_gguf_adapter(
            tmp_path / f"a-0000{n + 1}-of-00002.gguf", pairs[n], numbers={"split.no": n, "split.count": 2}
        )
        for n in range(2)
    ]
    for path in paths:
        with pytest.raises(UnsupportedModel, match=r"of-00002\.gguf: the adapter is split .* 2 parts\. .*--merge"):
            read_gguf_adapter(path, 1.0, 0)


def test_scales_of_gguf_files(tmp_path):
    pairs = {"blk.0.attn_q.weight": pair(), "token_embd.weight": (pair(8, 8)[0], pair(6, 8)[1])}
    for alpha, scale in ((16.0, 2.0 * 16 / RANK), (0.0, 2.0)):
        found = read_gguf_adapter(write_gguf_adapter(tmp_path / f"{alpha}.gguf", pairs, alpha=alpha), 2.0, 0)
        assert {product.scale for product in found.products.values()} == {scale}


def test_an_adapter_is_no_model(tmp_path):
    """Neither alone, nor after the model's config.json was copied beside it."""
    model = write_llama_gguf(tmp_path / "m.gguf", layers=1, weight_type="F32", embedding_type="F32")
    folder = write_peft(tmp_path / "lora", tensors())
    config = write_hf_folder(tmp_path / "base", model) / "config.json"
    command = rf"edge-rt export -m someone/model --adapter {folder} --out DIR"
    for _ in range(2):
        with pytest.raises(ModelNotFound, match=rf"lora is an adapter of someone/model, not a model\. .*{command}"):
            open_checkpoint(folder)
        (folder / "config.json").write_text(config.read_text())
    path = write_gguf_adapter(tmp_path / "l.gguf", {"blk.0.attn_k.weight": pair()})
    with pytest.raises(ModelNotFound, match=r"l\.gguf is an adapter, not a model\. .*--adapter"):
        open_checkpoint(path)


@pytest.mark.parametrize("stated", ["a/b; reboot", "$(reboot)", "../base", "a/b\nc", 3, "-x/y"])
def test_a_command_to_copy_has_no_foreign_text(stated, tmp_path):
    """A shell reads it as the words it is made of, whatever the folder is called and the adapter says."""
    folder = write_peft(tmp_path / "it's; $(reboot)", tensors(), base_model_name_or_path=stated)
    file = write_gguf_adapter(tmp_path / "a; b.gguf", {"blk.0.attn_k.weight": pair()})
    for path in (folder, file):
        with pytest.raises(ModelNotFound) as caught:
            open_checkpoint(path)
        command = caught.value.action.partition(": ")[2]
        expected = ["edge-rt", "export", "-m", "BASE", "--adapter", str(path), "--out", "DIR"]
        assert shlex.split(command, comments=True) == expected
        assert "reboot" not in str(caught.value).replace(str(path), "").replace(shlex.quote(str(path)), "")


def test_an_adapter_beside_a_model_is_mentioned(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf", layers=1, weight_type="F32", embedding_type="F32")
    folder = write_hf_folder(tmp_path / "base", model)
    assert open_checkpoint(folder)[0].remarks == ()
    for name in ("model.safetensors", "weights.safetensors"):
        next(folder.glob("*.safetensors")).rename(folder / name)
        write_peft(folder, peft_tensors({Q: pair(64, 64)}))
        (remark,) = open_checkpoint(folder)[0].remarks
        assert remark.endswith(f"edge-rt export -m {folder} --adapter {folder} --out DIR")
        (folder / "adapter_model.safetensors").unlink()
    write_peft(folder, peft_tensors({Q: pair(64, 64)}))
    config = (folder / "adapter_config.json").read_bytes()
    (folder / "adapter_config.json").unlink()
    (remark,) = open_checkpoint(folder)[0].remarks
    assert "With its adapter_config.json" in remark
    (folder / "adapter_config.json").write_bytes(config)
    assert [one.kind for one in open_checkpoint(folder, {folder: 1.0})[0].adapters] == ["peft"]


def test_settings_that_are_no_object(tmp_path):
    folder = write_peft(tmp_path / "lora", tensors())
    (folder / "adapter_config.json").write_text(json.dumps([1]))
    with pytest.raises(InvalidModelFile, match=r"adapter_config\.json is malformed"):
        read(folder)


def test_a_snapshot_in_the_hub_librarys_cache_has_the_name_of_its_repository(tmp_path):
    written = write_peft(tmp_path / "lora", tensors())
    repository = tmp_path / "models--someone--tuned"
    snapshot = repository / "snapshots" / "0123456789abcdef"
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(written.iterdir()):
        path.rename(repository / "blobs" / f"{number}")
        (snapshot / path.name).symlink_to(repository / "blobs" / f"{number}")
    assert read(snapshot).name == "tuned"
    (snapshot / "adapter_config.json").unlink()
    (tmp_path / "elsewhere").write_text("{}")
    (snapshot / "adapter_config.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidModelFile, match=r"adapter_config\.json is a link"):
        read(snapshot)
