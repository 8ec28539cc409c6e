"""Models of several files on the hub: checkpoints of transformers, and split GGUF files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edge_rt.errors import DownloadError, InvalidModelFile, StorageError, UnsupportedModel
from edge_rt.export.entry import export_with, open_checkpoint
from edge_rt.package.reader import open_package
from edge_rt.store.fetch import fetch_source
from edge_rt.store.pull import ensure_package, pull
from edge_rt.store.sources_hub import HubOptions
from edge_rt.system.files import sha256_files
from tests.helpers.fake_hub import FakeHub, serve_fake_hub
from tests.helpers.gguf_split import split
from tests.helpers.hf_factory import write_hf_folder
from tests.store.builders import FakeExporter, leftovers, options_with

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
CARD = b"---\nlicense: mit\n---\n# Tiny\n"


@pytest.fixture(scope="session")
def checkpoint(hf_model, tmp_path_factory):
    """Files of a checkpoint in two shards, by name."""
    folder = write_hf_folder(tmp_path_factory.mktemp("hub") / "m", hf_model, files=2)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {**files, "README.md": CARD, "special_tokens_map.json": b"{}", "modeling.py": b"code"}


@pytest.fixture
def hub(checkpoint):
    with serve_fake_hub(repos={"Org/Safe": dict(checkpoint)}) as server:
        yield server


@pytest.fixture
def options(hub, tmp_path):
    return options_with(hub=HubOptions(hub.endpoint, tmp_path / "cache", "token"))


def names_of(hub: FakeHub):
    return [line.rpartition("/")[2] for line in hub.downloads()]


def test_a_checkpoint_is_a_folder(store, hub, options, checkpoint):
    events = []
    fetched = fetch_source("Org/Safe", store=store, options=options, progress=events.append)
    assert sorted(path.name for path in fetched.path.iterdir()) == sorted(
        {*checkpoint, "source.json"} - {"modeling.py"}
    )
    assert all((fetched.path / name).read_bytes() == data for name, data in checkpoint.items() if name != "modeling.py")
    assert names_of(hub)[-2:] == SHARDS
    size = sum(len(data) for name, data in checkpoint.items() if name != "modeling.py")
    assert (fetched.size, fetched.license, fetched.kind) == (size, "apache-2.0", "hub")
    assert fetched.sha256 == sha256_files(open_checkpoint(fetched.path)[0].paths)
    done = [event.done for event in events if event.stage == "download" and event.done]
    assert done == sorted(done)
    assert (done[-1], {event.total for event in events if event.done}) == (size, {size})
    hub.requests.clear()
    assert fetch_source("Org/Safe", store=store, options=options, offline=True).was_present
    assert hub.requests == []
    assert leftovers(store) == []


def test_what_the_library_cache_holds_is_a_checkpoint_and_offline_is_taken_from_there(store, hub, options, checkpoint):
    from huggingface_hub import hf_hub_download

    place = {"endpoint": hub.endpoint, "cache_dir": options.hub.cache_dir, "token": False}
    paths = [Path(hf_hub_download("Org/Safe", name, **place)) for name in checkpoint if name != SHARDS[1]]
    hub.requests.clear()
    with pytest.raises(DownloadError, match=r"does not hold all of Org/Safe.*lacks parts"):
        fetch_source("Org/Safe", store=store, options=options, offline=True)
    assert hub.requests == []
    hf_hub_download("Org/Safe", SHARDS[1], **place)
    snapshot = paths[0].parent
    exporter = FakeExporter()
    local = pull(snapshot, store=store, exporter=exporter, options=options)
    assert local.name == f"safe-{local.source.sha256[:12]}"
    hub.requests.clear()
    fetched = fetch_source("Org/Safe", store=store, options=options, offline=True)
    assert (fetched.sha256, fetched.license, hub.requests) == (local.source.sha256, "mit", [])


def test_the_licence_is_that_of_the_card_if_the_listing_has_none(store, hub, options):
    hub.tags = []
    assert fetch_source("Org/Safe", store=store, options=options).license == "mit"
    assert store.list()[0].license == "mit"


def test_a_fetch_that_fails_is_continued(store, hub, options, checkpoint):
    hub.truncate.add(SHARDS[1])
    with pytest.raises(DownloadError):
        fetch_source("Org/Safe", store=store, options=options)
    (entry,) = store.list()
    assert (entry.name, entry.path) == ("org--safe", None)
    assert "pull it again to continue" in entry.problem
    assert entry.source_bytes > len(checkpoint[SHARDS[0]])
    assert store.find_record("org--safe") is None
    hub.truncate.clear()
    hub.requests.clear()
    events = []
    fetched = fetch_source("Org/Safe", store=store, options=options, progress=events.append)
    assert SHARDS[0] not in names_of(hub)
    assert any("1 of" in event.message and "fetched before" in event.message for event in events)
    assert (fetched.path / SHARDS[0]).read_bytes() == checkpoint[SHARDS[0]]
    assert leftovers(store) == []
    assert store.list()[0].problem is None


def test_an_interrupt_keeps_what_is_complete(store, hub, options, checkpoint):
    before = sum(len(data) for name, data in checkpoint.items() if name not in ("modeling.py", SHARDS[1]))

    def interrupt(event):
        if event.done > before:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_source("Org/Safe", store=store, options=options, progress=interrupt)
    assert [path.name for path in leftovers(store)] == [".part-org--safe"]
    assert store.remove("Org/Safe").bytes > len(checkpoint[SHARDS[0]])
    assert leftovers(store) == []
    assert store.names() == []


def test_what_was_kept_is_not_believed(store, hub, options, checkpoint):
    hub.truncate.add(SHARDS[1])
    with pytest.raises(DownloadError):
        fetch_source("Org/Safe", store=store, options=options)
    kept = store.partial_path("org--safe")
    (kept / SHARDS[0]).write_bytes(checkpoint[SHARDS[0]][::-1])
    (kept / "old.safetensors").write_bytes(b"of an earlier revision")
    hub.truncate.clear()
    fetched = fetch_source("Org/Safe", store=store, options=options)
    assert (fetched.path / SHARDS[0]).read_bytes() == checkpoint[SHARDS[0]]
    assert not (fetched.path / "old.safetensors").exists()


@pytest.mark.parametrize("name", ["../../outside.safetensors", "/tmp/x.safetensors", "a/b.safetensors", "x.bin"])
def test_an_index_that_names_other_files_is_refused_before_the_weights(store, hub, options, name):
    hub.repos["Org/Safe"][INDEX] = json.dumps({"weight_map": {"a": name}}).encode()
    with pytest.raises(InvalidModelFile, match="names the file"):
        fetch_source("Org/Safe", store=store, options=options)
    assert not any(file.endswith(".safetensors") for file in names_of(hub))
    assert (store.names(), leftovers(store)) == ([], [])


def test_an_index_that_names_files_that_are_not_there(store, hub, options):
    hub.repos["Org/Safe"][INDEX] = json.dumps({"weight_map": {"a": SHARDS[0], "b": "more.safetensors"}}).encode()
    with pytest.raises(InvalidModelFile, match=r"1 of 2 are missing, the first is more\.safetensors"):
        fetch_source("Org/Safe", store=store, options=options)


def test_files_that_the_index_does_not_name_are_left(store, hub, options):
    files = hub.repos["Org/Safe"]
    files["extra-00001-of-00001.safetensors"] = b"not of the model"
    fetched = fetch_source("Org/Safe", store=store, options=options)
    assert sorted(path.name for path in fetched.path.glob("*.safetensors")) == SHARDS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "novel"}, "'novel' is not supported"),
        ({"quantization_config": {"quant_method": "hqq"}}, "'quant_method' is hqq"),
    ],
)
def test_what_edge_rt_cannot_run_is_refused_before_the_weights(store, hub, options, change, message):
    files = hub.repos["Org/Safe"]
    files["config.json"] = json.dumps({**json.loads(files["config.json"]), **change}).encode()
    with pytest.raises(UnsupportedModel, match=message):
        pull("Org/Safe", store=store, options=options)
    assert not any(name.endswith(".safetensors") for name in names_of(hub))
    assert (store.names(), leftovers(store)) == ([], [])


def test_weights_larger_than_the_disk_are_refused_before_the_download(store, hub, options):
    hub.sizes[SHARDS[0]] = 10**15
    with pytest.raises(StorageError, match="not enough space"):
        fetch_source("Org/Safe", store=store, options=options)
    assert hub.downloads() == []


def test_a_checkpoint_is_pulled_once_and_becomes_a_package(store, hub, options):
    def portable(source, out, options):
        return export_with(source, out, replace(options, profile="portable"))

    report = pull("Org/Safe", store=store, options=options, exporter=portable)
    source = open_package(report.package).manifest.source
    assert (source.kind, source.name, source.sha256) == ("safetensors", "org--safe", report.source.sha256)
    hub.requests.clear()
    assert pull("Org/Safe", store=store, options=options).was_present
    assert ensure_package("org--safe", store=store, options=options) == report.package
    assert hub.requests == []
    (entry,) = store.list()
    assert (entry.license, entry.origin, entry.problem) == ("apache-2.0", "hub Org/Safe", None)
    assert store.remove("org--safe").bytes == entry.size_bytes + entry.source_bytes


def test_fetched_files_are_exported_by_name(store, hub, options):
    exporter = FakeExporter()
    path = fetch_source("Org/Safe", store=store, name="mine", options=options).path
    assert ensure_package("mine", store=store, exporter=exporter, options=options) == store.package_path("mine")
    assert exporter.calls[0][0] == path


@pytest.fixture
def split_hub(small_gguf, tmp_path):
    parts = split(small_gguf, tmp_path, 3)
    files = {f"Q4_0/{path.name}": path.read_bytes() for path in parts}
    with serve_fake_hub(repos={"Org/Split": {"LICENSE": b"text", **files}}) as server:
        yield server


# Short names: old hub libraries cannot write to paths of more than 255 characters.
@pytest.mark.parametrize("ref", ["Org/Split", "Org/Split:Q4_0/m-00002-of-00003.gguf"], ids=["all", "part"])
def test_split_file(store, split_hub, tmp_path, ref):
    options = options_with(hub=HubOptions(split_hub.endpoint, tmp_path / "cache", "token"))
    exporter = FakeExporter()
    report = pull(ref, store=store, exporter=exporter, options=options)
    assert report.source.path == store.source_path(report.name) / "m-00001-of-00003.gguf"
    assert report.source.sha256 == sha256_files(open_checkpoint(report.source.path)[0].paths)
    split_hub.requests.clear()
    assert pull(ref, store=store, exporter=exporter, options=options).was_present
    assert split_hub.requests == []
    assert len(exporter.calls) == 1


def test_a_local_folder_is_exported_again_when_a_file_changes(store, hf_model, tmp_path):
    exporter = FakeExporter()
    folder = write_hf_folder(tmp_path / "My-Model", hf_model, files=2)
    arguments = {"store": store, "exporter": exporter, "options": options_with()}
    first = ensure_package(folder, **arguments)
    assert first.name.startswith("my-model-")
    assert ensure_package(f"{folder}/", **arguments) == first
    assert len(exporter.calls) == 1
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    assert ensure_package(folder, **arguments) != first


def test_pooling_files(store, checkpoint, tmp_path):
    # A short name: the oldest library of the hub fails on paths of more than 255 characters, which have this one.
    more = {"modules.json": b"[]", "1_Pooling/config.json": b"{}", "config_sentence_transformers.json": b"{}"}
    with serve_fake_hub(repos={"Org/Embeds": {**checkpoint, **more, "2_Dense/config.json": b"{}"}}) as server:
        options = options_with(hub=HubOptions(server.endpoint, tmp_path / "cache", "token"))
        folder = fetch_source("Org/Embeds", store=store, options=options).path
    assert {"modules.json", "1_Pooling.config.json", "config_sentence_transformers.json"} <= {
        path.name for path in folder.iterdir()
    }
    assert (folder / "config.json").read_bytes() == checkpoint["config.json"]
    assert not (folder / "2_Dense.config.json").exists()
