"""What a name or a path means to `edge_rt.load`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import edge_rt


def test_a_package_folder_and_a_store_name_are_loaded(small_package, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "small").symlink_to(small_package, target_is_directory=True)
    for model in (small_package, str(small_package), "small"):
        with edge_rt.load(model, store=tmp_path) as loaded:
            assert loaded.package.manifest.model.family == "llama"


@pytest.mark.parametrize(
    ("name", "help_"),
    [("nothing-like-this", "Known names"), ("smollm2-135m-instruct", "edge_rt.pull"), ("org/name", "edge_rt.pull")],
)
def test_what_is_not_here_says_how_to_get_it(name, help_, tmp_path):
    with pytest.raises(edge_rt.ModelNotFound, match=help_):
        edge_rt.load(name, store=tmp_path)


@pytest.mark.parametrize(
    ("model", "options", "numbers"), [(3, {}, "Got 3"), ("x", {"threads": "two"}, "Got 'two'"), (None, {}, "Got None")]
)
def test_arguments_of_another_type(model, options, numbers, tmp_path):
    with pytest.raises(edge_rt.ConfigError, match=numbers):
        edge_rt.load(model, store=tmp_path, **options)


def test_a_checkpoint_says_how_to_make_a_package_of_it(small_gguf, tmp_path):
    wanted = r"is a GGUF file, not a package\..* pull=True .* edge_rt\.export_model\(source, out\)"
    for call in (edge_rt.load, edge_rt.plan):
        with pytest.raises(edge_rt.ModelNotFound, match=wanted):
            call(small_gguf, store=str(tmp_path))


def test_a_checkpoint_is_loaded_as_the_command_line_does(small_gguf, tmp_path):
    os.utime(small_gguf, ns=(10**18, 10**18))
    for model in (small_gguf, str(small_gguf)):
        with edge_rt.load(model, store=str(tmp_path), pull=True, ctx=64) as loaded:
            assert loaded.generate("Hello", max_tokens=1).usage.completion_tokens == 1
    # Exported once, under the name that a pull gives it.
    (entry,) = edge_rt.list_models(store=str(tmp_path))
    report = edge_rt.pull(str(small_gguf), store=tmp_path)
    assert (report.name, report.package, report.was_present) == (entry.name, entry.path, True)
    assert loaded.package.path == entry.path
    # Its package is known without reading it, so nothing has to be asked for.
    assert edge_rt.plan(small_gguf, store=tmp_path, ctx=64).fits


def test_models_are_named_listed_and_removed(small_gguf, tmp_path):
    assert edge_rt.list_models(store=tmp_path) == []
    edge_rt.pull(small_gguf, store=str(tmp_path), name="mine")
    assert [entry.name for entry in edge_rt.list_models(store=tmp_path)] == ["mine"]
    facts = edge_rt.inspect_model("mine", store=str(tmp_path), verify=True)
    assert (facts["kind"], facts["verified"], facts["path"]) == ("package", True, str(tmp_path / "packages" / "mine"))
    assert edge_rt.inspect_model(str(small_gguf), store=tmp_path)["kind"] == "gguf"
    assert edge_rt.plan("mine", store=str(tmp_path), ctx=64).choice.ctx == 64
    assert edge_rt.remove_model("mine", store=str(tmp_path)).bytes > 0
    assert edge_rt.list_models(store=tmp_path) == []
    with pytest.raises(edge_rt.ModelNotFound, match="no model 'mine'"):
        edge_rt.remove_model("mine", store=tmp_path)


def test_sizes_and_paths_are_texts_as_well(small_gguf, tmp_path):
    for make in (
        lambda size: edge_rt.export_model(str(small_gguf), str(tmp_path / "out"), size=size),
        lambda size: edge_rt.pull(str(small_gguf), store=str(tmp_path), size=size),
    ):
        with pytest.raises(edge_rt.ConfigError, match=r"The size cannot be read\. Got 'much'"):
            make("much")
        with pytest.raises(edge_rt.ConfigError, match="at least"):
            make("1KiB")
    assert edge_rt.LoadOptions(corpus="texts.corpus", drafter="head").corpus == Path("texts.corpus")
    with pytest.raises(edge_rt.ConfigError, match="cannot be resolved"):
        edge_rt.load("~nobody-of-that-name/x.gguf")


@pytest.mark.parametrize(
    ("call", "name", "value", "wanted"),
    [
        ("load", "ctx", "a", "a whole number or None"),
        ("load", "ctx", 512.5, "a whole number or None"),
        ("load", "ctx", True, "a whole number or None"),
        ("load", "ctx", np.int64(64), "a whole number or None"),
        ("load", "slots", np.int32(2), "a whole number or None"),
        ("plan", "ctx", "a", "a whole number or None"),
        ("load", "prefill_chunk", "a", "a whole number or None"),
        ("load", "threads", 1.5, "a whole number or None"),
        ("load", "memory", 1.5, "a whole number, a text, a Budget or None"),
        ("load", "spec", 5, "a text or None"),
        ("load", "isa", 5, "a text or None"),
        ("load", "corpus", 5, "a text, a path or None"),
        ("load", "store", 5, "a text, a path or None"),
        ("load", "share_tokenizer_with", 5, "a Model, a PromptEncoder or None"),
        ("load", "formats", "x", "True or False"),
        ("load", "pull", "x", "True or False"),
        ("load", "on_calibrate", 5, "a function or None"),
        ("load", "plan", {}, "a Plan or None"),
        ("pull", "ref", None, "a text or a path"),
        ("pull", "progress", 5, "a function"),
        ("remove_model", "name", 5, "a text"),
        ("open_package", "path", None, "a text or a path"),
        ("asgi_app", "models", 5, "a mapping"),
        ("LoadOptions", "ctx", "a", "a whole number or None"),
        ("LoadOptions", "on_plan", 5, "a function or None"),
    ],
)
def test_values_of_other_types_are_refused(call, name, value, wanted, small_package, tmp_path):
    given = {"load": [small_package], "plan": [small_package], "pull": [tmp_path]}.get(call, [])
    with pytest.raises(edge_rt.ConfigError, match=rf"the option '{name}' is of the wrong type\..*wanted {wanted}\."):
        getattr(edge_rt, call)(*(given if name != "ref" else []), **{name: value})


def test_none_as_device_leaves_the_choice(small_package):
    assert edge_rt.LoadOptions(device=None).device_name == edge_rt.LoadOptions().device_name
    assert edge_rt.plan(small_package, device=None, ctx=64).choice.ctx == 64
    with edge_rt.load(small_package, device=None, ctx=64) as model:
        assert str(model.device_choice.device) == "cpu"


def test_a_preset_is_loaded_like_a_model(native_package, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "edge-rt").mkdir()
    (tmp_path / "edge-rt" / "config.toml").write_text(
        f'[presets.poet]\nmodel = "{native_package}"\nsystem = "Rhyme."\nctx = 64\nmemory = "900MiB"\n'
        "max_tokens = 3\nsampling = { temperature = 0 }\n"
    )
    assert edge_rt.plan("poet").choice.ctx == 64
    with edge_rt.load("poet", spec="off") as model, edge_rt.load(native_package, ctx=64, spec="off") as plain:
        assert (model.context_tokens, model.plan.budget_bytes) == (64, 900 << 20)
        expected = plain.generate("Hello", max_tokens=3, temperature=0).token_ids
        assert model.generate("Hello").token_ids == expected
        assert [answer.token_ids for answer in model.generate_many(["Hello"])] == [expected]
        assert len(model.generate("Hello", max_tokens=5).token_ids) == 5
        chat = model.chat()
        assert chat.system == "Rhyme."
        assert chat.send("Hello").usage.completion_tokens == 3
        assert model.chat(system="Be brief.").system == "Be brief."
        assert model.describe()["sampling"]["temperature"] == 0
    with edge_rt.load("poet", ctx=48, memory="1GiB") as model:
        assert (model.context_tokens, model.plan.budget_bytes) == (48, 1 << 30)
