from __future__ import annotations

import pytest

from edge_rt.errors import ModelNotFound, UnsupportedModel
from edge_rt.store.hub_files import HubListing, choose_files, file_type_of
from edge_rt.store.naming import HubReference
from edge_rt.store.recipes import FileSpec


def choose(*names, file=None):
    listing = HubListing("o/n", "a" * 40, None, tuple(FileSpec(name, 10) for name in names))
    return [spec.name for spec in choose_files(listing, HubReference("o/n", file))]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["m.Q8_0.gguf", "m.Q4_1.gguf", "m.Q4_K_M.gguf"], ["m.Q4_K_M.gguf"]),
        (["m.Q8_0.gguf", "m.IQ3_M.gguf", "m.Q6_K.gguf"], ["m.Q6_K.gguf"]),
        (["m-f16.gguf", "m-f32.gguf"], ["m-f16.gguf"]),
        (["model.gguf", "LICENSE", "LICENSE.py", "LICENSE.bin", "README.md"], ["model.gguf", "LICENSE"]),
        (["m.Q4_0.gguf", "mmproj-F16.gguf"], ["m.Q4_0.gguf"]),
        (["gguf/m.Q4_0.gguf", "model.safetensors", "pytorch_model.bin"], ["gguf/m.Q4_0.gguf"]),
    ],
)
def test_one_gguf_file_is_preferred(names, chosen):
    assert choose(*names) == chosen


def test_of_a_checkpoint_only_data_is_taken():
    texts = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json", "README.md"]
    more = ["chat_template.jinja", "generation_config.json", "LICENSE.txt"]
    refused = ["pytorch_model.bin", "x.pt", "x.pth", "x.pkl", "modeling.py", "onnx/model.safetensors", "training.json"]
    assert choose("model.safetensors", *texts, *refused, *more) == [*texts, *more, "model.safetensors"]


TEXTS = ["config.json", "tokenizer.json"]
ADAPTER = ["adapter_config.json", "adapter_model.safetensors"]
INDEX = "model.safetensors.index.json"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ([*SHARDS, INDEX], SHARDS),
        ([*SHARDS, INDEX, "consolidated.safetensors", "model.safetensors"], SHARDS),
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        (["model.safetensors", INDEX], ["model.safetensors"]),
        (["a.safetensors", "b.safetensors", INDEX], ["a.safetensors", "b.safetensors"]),
        (["weights.safetensors"], ["weights.safetensors"]),
        (["model.safetensors", "mmproj-F16.gguf"], ["model.safetensors"]),
    ],
)
def test_the_weights_of_a_checkpoint_come_last(names, chosen):
    found = choose(*names, *TEXTS)
    assert [name for name in found if name.endswith(".safetensors")] == chosen
    assert found[-len(chosen) :] == chosen


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ([*TEXTS, INDEX, SHARDS[1]], ModelNotFound, "1 of the 2 files like model-00002-of-00002"),
        ([*TEXTS, "a.safetensors", "b.safetensors"], UnsupportedModel, "several safetensors files without"),
        (["config.json", "model.safetensors"], UnsupportedModel, "no tokenizer.json"),
        (["model.safetensors", "tokenizer.json"], UnsupportedModel, "no config.json"),
        ([*ADAPTER, "tokenizer.json"], UnsupportedModel, "o/n is an adapter, not a model.*hf download o/n"),
        ([*ADAPTER, *TEXTS], UnsupportedModel, "o/n is an adapter, not a model"),
    ],
)
def test_an_incomplete_checkpoint_is_refused(names, error, message):
    with pytest.raises(error, match=message):
        choose(*names)


def test_the_named_file_is_taken_whatever_its_format():
    assert choose("m.Q4_0.gguf", "m.Q6_K.gguf", file="m.Q6_K.gguf") == ["m.Q6_K.gguf"]


def test_a_missing_named_file_lists_the_others():
    with pytest.raises(ModelNotFound, match=r"m\.Q4_0\.gguf"):
        choose("m.Q4_0.gguf", file="x.gguf")


@pytest.mark.parametrize(
    "names",
    [
        ["a.Q4_0.gguf", "b.Q4_0.gguf"],
        ["a.Q4_K_M.gguf", "b.Q4_K_M.gguf"],
        ["m.IQ3_M.gguf", "m.IQ2_XS.gguf"],
        ["a.gguf", "b.gguf"],
    ],
)
def test_an_open_choice_is_an_error_with_the_names(names):
    with pytest.raises(UnsupportedModel, match="can be chosen") as caught:
        choose(*names)
    assert all(name in str(caught.value) for name in names)


PARTS = [f"q/m.Q4_0-{number:05}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.mark.parametrize("file", [None, *PARTS])
def test_a_split_file_is_all_its_parts(file):
    assert choose(PARTS[2], "m.Q8_0.gguf", "LICENSE", PARTS[0], PARTS[1], file=file) == [*PARTS, "LICENSE"]


def test_a_split_file_without_a_format_in_its_name_is_one_file():
    parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    assert choose(*parts) == parts


@pytest.mark.parametrize("file", [None, PARTS[0]])
def test_a_split_file_that_lacks_a_part_is_refused(file):
    with pytest.raises(ModelNotFound, match=r"1 of 3 are missing, the first is q/m\.Q4_0-00002"):
        choose(PARTS[0], PARTS[2], file=file)


def test_pickles_alone_are_refused_with_a_way_out():
    with pytest.raises(UnsupportedModel, match="safe_serialization=True"):
        choose("pytorch_model.bin", "config.json", "tokenizer.json")


@pytest.mark.parametrize("name", ["../m.Q4_0.gguf", "/m.gguf", "a\\m.gguf", "a/../../m.gguf"])
def test_names_that_leave_the_folder_are_as_good_as_absent(name):
    with pytest.raises(UnsupportedModel, match="no weights"):
        choose(name)


def test_licences_are_small_files_of_the_top_folder():
    big = FileSpec("LICENSE", 10**9)
    listing = HubListing("o/n", "a" * 40, None, (FileSpec("m.gguf", 1), big, FileSpec("LICENSES/m.gguf.txt", 1)))
    assert [spec.name for spec in choose_files(listing, HubReference("o/n"))] == ["m.gguf"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m.Q4_0.gguf", "Q4_0"),
        ("m-q4_k_m.gguf", "Q4_K_M"),
        ("m-fp16.gguf", "F16"),
        ("m-mxfp4.gguf", "MXFP4"),
        ("m.gguf", None),
        ("Q8_0.gguf", "Q8_0"),
    ],
)
def test_format_in_the_name(name, expected):
    assert file_type_of(name) == expected
