"""Whatever ends an export, the destination is absent or complete."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys

import pytest

from edge_rt.errors import Cancelled, ConfigError, InputError, StorageError
from edge_rt.export import export_model
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.hf_factory import write_hf_folder
from tests.helpers.models import load_package
from tests.helpers.packages import listing
from tests.helpers.small import GREEDY

export = functools.partial(export_model, profile="portable")


@pytest.fixture(params=["gguf", "folder"])
def checkpoint(request, small_gguf, hf_model, tmp_path_factory):
    """A file, whose weights stay as they are, and a folder, whose weights are calibrated and quantised."""
    if request.param == "gguf":
        return small_gguf
    return write_hf_folder(tmp_path_factory.mktemp("hf") / "model", hf_model, files=2)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class TestDestination:
    def test_a_failed_replacement_keeps_the_old_package(self, small_gguf, tmp_path):
        export(small_gguf, tmp_path / "p")
        before = contents(tmp_path / "p")

        def progress(event):
            if event.stage == "publish":
                raise Cancelled("stopped")

        with pytest.raises(Cancelled):
            export(small_gguf, tmp_path / "p", activations="float", force=True, progress=progress)
        assert contents(tmp_path / "p") == before
        assert listing(tmp_path) == ["p"]

    def test_unknown_activations(self, small_gguf, tmp_path):
        with pytest.raises(ConfigError, match="int8, float"):
            export(small_gguf, tmp_path / "p", activations="int4")

    @pytest.mark.parametrize("kind", ["missing", "folder", "empty", "truncated"])
    def test_a_source_that_is_none(self, small_gguf, tmp_path, kind):
        source, out = tmp_path / "in" / "m.gguf", tmp_path / "out"
        source.parent.mkdir()
        out.mkdir()
        if kind == "folder":
            source.mkdir()
        elif kind != "missing":
            source.write_bytes(b"" if kind == "empty" else small_gguf.read_bytes()[:-100])
        with pytest.raises(InputError):
            export(source, out / "p")
        assert listing(out) == []

    def test_a_package_that_somebody_has_loaded(self, small_gguf, tmp_path):
        """The old files stay readable for whoever maps them."""
        export(small_gguf, tmp_path / "p")
        program = (
            "import sys, json\n"
            "import edge_rt\n"
            "model = edge_rt.load(sys.argv[1])\n"
            "options = json.loads(sys.argv[2])\n"
            "options['logit_bias'] = {int(k): v for k, v in options['logit_bias'].items()}\n"
            "for line in sys.stdin:\n"
            "    model.reset()\n"
            "    print(json.dumps(model.generate('Hello', max_tokens=8, **options).token_ids), flush=True)\n"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "p"), json.dumps(GREEDY)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:

            def ask():
                other.stdin.write("go\n")
                other.stdin.flush()
                return json.loads(other.stdout.readline())

            before = ask()
            write_llama_gguf(tmp_path / "other.gguf", seed=9, context=512)
            export(tmp_path / "other.gguf", tmp_path / "p", force=True)
            assert ask() == before
            other.stdin.close()
        with load_package(tmp_path / "p") as model:
            assert list(model.generate("Hello", max_tokens=8, **GREEDY).token_ids) != before


KILLING = """
import os, random, signal, sys, time
from pathlib import Path
import edge_rt.export.exporter  # once, not in every child
from edge_rt.export import export_model
from edge_rt.package.reader import open_package

source, out = Path(sys.argv[1]), Path(sys.argv[2])

def export_in_child(stop_at):
    # The child tells its stage at every event, and at number stop_at waits for a word to go on.
    told, tell = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        os.close(go)
        seen = 0
        def progress(event):
            nonlocal seen
            os.write(tell, event.stage.encode() + bytes([10]))
            if seen == stop_at:
                os.read(wait, 1)
            seen += 1
        try:
            export_model(source, out, profile="portable", force=True, progress=progress)
        finally:
            os._exit(0)
    os.close(tell)
    os.close(wait)
    return pid, open(told), go

pid, events, go = export_in_child(None)
stages, times = [], []
for line in events:
    stages.append(line.strip())
    times.append(time.perf_counter())
os.waitpid(pid, 0)
times.append(time.perf_counter())
open_package(out).verify()

random.seed(7)
anywhere = [random.randrange(len(stages)) for _ in range(40)]
starts = [stages.index(stage) for stage in dict.fromkeys(stages)]
stopped = [(at, None) for at in starts]
running = [(at, random.random()) for at in [stages.index("publish")] * 2 + anywhere]
killed = left = 0
for at, share in stopped + running:
    if killed == 12:
        break
    pid, events, go = export_in_child(at)
    for _ in range(at + 1):
        events.readline()
    if share is not None:
        os.write(go, b"x")
        time.sleep(share * (times[at + 1] - times[at]))
    os.kill(pid, signal.SIGKILL)
    was_killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert was_killed or share is not None, at
    killed += was_killed
    events.close()
    os.close(go)
    left = max(left, len(os.listdir(out.parent)))
    if out.exists():
        open_package(out).verify()
export_model(source, out, profile="portable", force=True)
open_package(out).verify()
print(killed, left, os.listdir(out.parent))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_the_destination_is_absent_or_complete(checkpoint, tmp_path):
    """At the start of every stage, where the export is stopped, and anywhere between, where it is running."""
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", KILLING, str(checkpoint), str(tmp_path / "out" / "p")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    killed, left, listing = done.stdout.strip().split(" ", 2)
    assert int(killed) == 12
    assert int(left) >= 2
    assert listing == "['p']"


class TestFullDisk:
    @pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
    def test_a_limit_on_file_sizes(self, checkpoint, tmp_path):
        program = (
            "import resource, signal, sys\n"
            "from edge_rt.errors import StorageError\n"
            "from edge_rt.export import export_model\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
            "try:\n export_model(sys.argv[1], sys.argv[2], profile='portable')\n"
            "except StorageError as error: print(error)"
        )
        command = [sys.executable, "-c", program, str(checkpoint), str(tmp_path / "p")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "The weights could not be written." in done.stdout
        assert listing(tmp_path) == []

    @pytest.fixture
    def small_disk(self, tmp_path):
        """A file system of 12 MiB in memory."""
        disk = tmp_path / "disk"
        disk.mkdir()
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], capture_output=True)
        if mount.returncode != 0:
            pytest.skip("needs the right to mount a file system")
        yield disk
        subprocess.run(["umount", str(disk)], check=True)

    def test_it_does_not_begin_where_there_is_no_room(self, checkpoint, small_disk):
        (small_disk / "filler").write_bytes(bytes(8 << 20))
        with pytest.raises(StorageError, match="does not fit the disk"):
            export(checkpoint, small_disk / "p")
        assert listing(small_disk) == ["filler"]

    @pytest.mark.parametrize("stage", ["plan", "weights", "graph", "check", "publish"])
    def test_filled_by_others_meanwhile(self, checkpoint, small_disk, stage):
        def fill():
            with (small_disk / "filler").open("ab", buffering=0) as filler:
                for size in (1 << 16, 1):
                    try:
                        while True:
                            filler.write(bytes(size))
                    except OSError:
                        continue

        begun = []

        def progress(event):
            if event.stage == stage and not begun:
                begun.append(stage)
                if stage != "plan":
                    fill()

        with pytest.raises(StorageError) as caught:
            export(
                checkpoint,
                small_disk / "p",
                progress=progress,
                on_estimate=lambda estimate: fill() if stage == "plan" else None,
            )
        assert begun == [stage]
        assert "No space left" in str(caught.value) or "does not fit" in str(caught.value)
        assert listing(small_disk) == ["filler"]


def test_an_interrupted_export_leaves_nothing(small_gguf, tmp_path):
    def progress(event):
        if event.stage == "weights":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        export(small_gguf, tmp_path / "p", progress=progress)
    assert listing(tmp_path) == []
