"""Embeddings: what they are made of, that nothing else decides them, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

import edge_rt
from edge_rt.errors import ConfigError, ContextOverflow, InvalidPackage, ModelClosed
from edge_rt.export import export_model
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.model import Model
from edge_rt.store.sources_local import read_checkpoint
from tests.helpers.embedding_folder import END_ID, write_embedding_folder
from tests.helpers.family_cases import load_case, write_gguf
from tests.helpers.packages import copied, edit_manifest

TEXTS = (
    "The little boat left the harbour at dawn.", "x", "How are you today?",
    "Count from one to ten: 1, 2, 3, 4, 5. " * 6, "The sea was calm, and the water carried the boat.",
)  # fmt: skip


def exported(folder, out):
    return export_model(folder, out, weights="f32", accept_loss=True, profile="native")


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    root = tmp_path_factory.mktemp("embeddings")
    found = {}
    for mode in ("lasttoken", "mean_tokens"):
        folder = write_embedding_folder(
            root / mode, mode=mode, prefix=mode != "lasttoken", adds_end=mode == "lasttoken"
        )
        exported(folder, root / f"{mode}.package")
        found[mode] = root / f"{mode}.package"
    return found


def test_a_package_says_what_its_checkpoint_says(packages):
    last, mean = (open_package(packages[mode]).manifest.pooling for mode in ("lasttoken", "mean_tokens"))
    assert (last.mode, last.normalises, last.end_token_id) == ("last", True, END_ID)
    assert (mean.mode, mean.normalises, mean.end_token_id) == ("mean", True, None)
    assert last.prompts == {"query": "Find: ", "document": ""}


def states(package, text):
    """Return the stream behind the last layer of every token, as passes of the model's own graph return it."""
    opened = open_package(package)
    with Model(opened, LoadOptions(spec="off", ctx=256, hidden=True)) as model:
        ids = model.tokenizer.encode_prompt(text)
        if opened.manifest.pooling.end_token_id is not None:
            ids.append(opened.manifest.pooling.end_token_id)
        with model.passes() as (runner, cache), cache.reserve(len(ids)) as reserved:
            return runner.forward(ids, reserved.start, len(ids)).hidden.astype(np.float64)


@pytest.mark.parametrize("mode", ["lasttoken", "mean_tokens"])
def test_an_embedding_is_made_of_the_normed_states(packages, mode):
    opened = open_package(packages[mode])
    graph = opened.manifest.pooling.graph
    offset, length, _, _ = opened.tensors[graph]["final_norm"]
    weight = np.frombuffer((opened.path / "weights.bin").read_bytes()[offset : offset + length], np.float32)
    found = states(packages[mode], TEXTS[0])
    normed = found / np.sqrt(np.square(found).mean(-1, keepdims=True) + opened.manifest.decoder.norm_epsilon) * weight
    expected = normed[-1] if mode == "lasttoken" else normed.mean(0)
    with edge_rt.load(packages[mode], ctx=256) as model:
        (vector,) = model.embed(TEXTS[:1])
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)


@pytest.mark.parametrize("mode", ["lasttoken", "mean_tokens"])
def test_nothing_but_the_text_decides_an_embedding(packages, mode):
    with edge_rt.load(packages[mode], ctx=256) as model:
        alone = np.stack([model.embed([text])[0] for text in TEXTS])
        np.testing.assert_array_equal(model.embed(TEXTS), alone)
        # A chat before changes nothing, nor do embeddings change it.
        first = model.generate("Hello", max_tokens=4, temperature=0).token_ids
        np.testing.assert_array_equal(model.embed(TEXTS), alone)
        assert model.generate("Hello", max_tokens=4, temperature=0).token_ids == first
    for options in (
        {"slots": 3},
        {"slots": 3, "kv_rows": 256},
        {"slots": 3, "prefill_chunk": 16},
        {"threads": 1, "prefill_chunk": 7},
    ):
        with edge_rt.load(packages[mode], ctx=256, **options) as model:
            seen = []
            found = model.embed(reversed(TEXTS), on_progress=lambda done, total, seen=seen: seen.append((done, total)))
            np.testing.assert_array_equal(found[::-1], alone)
            assert seen == [(done, len(TEXTS)) for done in range(1, len(TEXTS) + 1)]


@pytest.mark.parametrize("case", ["lfm2", "qwen3_moe"])
def test_models_with_convolutions_and_with_experts_embed(case, tmp_path):
    exported(write_embedding_folder(tmp_path / "m", case), tmp_path / "p")
    with edge_rt.load(tmp_path / "p", ctx=256) as model:
        alone = np.stack([model.embed([text])[0] for text in TEXTS[:3]])
        np.testing.assert_array_equal(model.embed(TEXTS[:3]), alone)
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-6)


def test_prompts_and_ends_of_long_texts(packages):
    with edge_rt.load(packages["lasttoken"], ctx=64) as model:
        np.testing.assert_array_equal(model.embed(["x"], prompt="query"), model.embed(["Find: x"]))
        with pytest.raises(ConfigError, match=r"no prompt 'code'\. It has 'query', 'document'"):
            model.embed(["x"], prompt="code")
        with pytest.raises(ContextOverflow, match="Text 1 is too long") as caught:
            model.embed(["x", "harbour " * 200])
        assert caught.value.context_tokens == 64
        cut = model.tokenizer.decode(model.tokenizer.encode_prompt("harbour " * 200)[:63])
        np.testing.assert_array_equal(model.embed(["harbour " * 200], truncate=True), model.embed([cut]))
        # The end token alone is a text.
        assert model.embed([""]).shape == model.embed(["x"]).shape
        assert model.embed([]).shape == (0, model.package.manifest.model.hidden_size)
    with pytest.raises(ModelClosed):
        model.embed(["x"])
    with edge_rt.load(packages["mean_tokens"], ctx=64) as model, pytest.raises(ConfigError, match="Text 0 is empty"):
        model.embed([""])


def test_other_models_give_none(native_package):
    with edge_rt.load(native_package) as model, pytest.raises(ConfigError, match="gives no embeddings"):
        model.embed(["x"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"modules": ("Transformer", "Pooling", "Dense", "Normalize")}, "its steps are Transformer, Pooling, Dense"),
        ({"mode": "cls_token"}, "its pooling is pooling_mode_cls_token"),
    ],
)
def test_checkpoints_with_other_steps_are_exported_without(tmp_path, given, why):
    report = exported(write_embedding_folder(tmp_path / "m", **given), tmp_path / "p")
    assert open_package(tmp_path / "p").manifest.pooling is None
    assert any(why in warning for warning in report.warnings)


def test_a_checkpoint_with_another_pooling_is_another_source(tmp_path):
    folder = write_embedding_folder(tmp_path / "m")
    last = read_checkpoint(folder, lambda *_: None)
    path = folder / "1_Pooling" / "config.json"
    path.write_text(path.read_text().replace("true", "null"))
    other = read_checkpoint(folder, lambda *_: None)
    assert last.sha256 != other.sha256
    assert last.states != other.states
    # As the store has it, where folders are not kept.
    path.rename(folder / "1_Pooling.config.json")
    assert read_checkpoint(folder, lambda *_: None).sha256 != last.sha256


@pytest.mark.parametrize(("kind", "mode"), [(1, "mean"), (3, "last"), (0, None)])
def test_gguf_files_say_it_by_a_key(tmp_path, kind, mode):
    more = {"qwen3.pooling_type": kind, "tokenizer.ggml.add_eos_token": True}
    path = write_gguf(tmp_path / "m.gguf", load_case("qwen3"), extra_metadata=more)
    export_model(path, tmp_path / "p", accept_loss=True, profile="native")
    pooling = open_package(tmp_path / "p").manifest.pooling
    assert (None if pooling is None else (pooling.mode, pooling.normalises, pooling.end_token_id)) == (
        None if mode is None else (mode, True, 2)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "cls"}, "'manifest.pooling.mode' is out of range"),
        ({"end_token_id": 1 << 20}, "'manifest.pooling.end_token_id' is out of range"),
        ({"prompts": {"a": "b" * 5000}}, "'manifest.pooling.prompts' is out of range"),
        ({"graph": "other.onnx"}, "names files it does not list"),
    ],
)
def test_wrong_packages_are_refused(packages, tmp_path, changes, message):
    package = copied(packages["lasttoken"], tmp_path / "p")
    edit_manifest(package, lambda document: document["pooling"].update(changes))
    with pytest.raises(InvalidPackage, match=message):
        open_package(package)


def test_a_graph_without_its_states_is_refused(packages, tmp_path):
    package = copied(packages["lasttoken"], tmp_path / "p")
    edit_manifest(package, lambda document: document["pooling"].update(graph="model.onnx"))
    with pytest.raises(InvalidPackage, match="does not fit its manifest"):
        edge_rt.load(package)


def test_the_command_writes_a_line_for_each_text(packages, tmp_path, capsys):
    from edge_rt.cli.main import main

    path = tmp_path / "texts.txt"
    path.write_text("one\ntwo\n")
    arguments = ["-m", str(packages["lasttoken"]), "--ctx", "64", "-q"]
    assert main(["embed", "--lines", str(path), *arguments]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["index"] for line in lines] == [0, 1]
    assert main(["embed", "two", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["embeddings"] == [lines[1]["embedding"]]
    with edge_rt.load(packages["lasttoken"], ctx=64) as model:
        np.testing.assert_array_equal(np.array(lines[0]["embedding"], np.float32), model.embed(["one"])[0])
