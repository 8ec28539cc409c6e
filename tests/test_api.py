"""What a name or a path means to `edge_rt.load`."""

from __future__ import annotations

import pytest

import edge_rt


def test_a_package_folder_and_a_store_name_are_loaded(small_package, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "small").symlink_to(small_package, target_is_directory=True)
    for model in (small_package, str(small_package), "small"):
        with edge_rt.load(model, store=tmp_path) as loaded:
            assert loaded.package.manifest.model.architecture == "llama"


@pytest.mark.parametrize(
    ("name", "help_"),
    [("nothing-like-this", "Known names"), ("smollm2-135m-instruct", "edge_rt.pull"), ("org/name", "edge_rt.pull")],
)
def test_what_is_not_here_says_how_to_get_it(name, help_, tmp_path):
    with pytest.raises(edge_rt.ModelNotFound, match=help_):
        edge_rt.load(name, store=tmp_path)


def test_a_checkpoint_says_how_to_make_a_package_of_it(small_gguf, tmp_path):
    with pytest.raises(edge_rt.ModelNotFound, match="export_model"):
        edge_rt.load(small_gguf, store=tmp_path)


def test_a_checkpoint_is_pulled_under_a_name_and_loaded_by_it(small_gguf, tmp_path):
    report = edge_rt.pull(small_gguf, store=tmp_path, name="mine")
    assert report.name == "mine"
    with edge_rt.load("mine", store=tmp_path) as model:
        assert model.generate("Hello", max_tokens=1).usage.completion_tokens == 1
