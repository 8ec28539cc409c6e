from __future__ import annotations

import json
import signal
import time

import pytest

from edge_rt.package import open_package


def test_the_estimate_comes_first_and_the_check_last(inline, small_gguf, tmp_path):
    result = inline("export", "-m", small_gguf, "--out", tmp_path / "out")
    assert result.returncode == 0
    told = result.stderr.decode()
    assert told.index("export needs at most") < told.index("3/6 weights") < told.index("5/6 check")
    assert "check int8" in result.stdout.decode()
    open_package(tmp_path / "out").verify()


def test_json_is_the_report(inline, small_gguf, tmp_path):
    result = inline("export", "-m", small_gguf, "--out", tmp_path / "out", "--activations", "float", "--json")
    report = json.loads(result.stdout)
    package = open_package(tmp_path / "out")
    assert report["package_id"] == package.id
    assert [check["activations"] for check in report["check"]] == ["float"]
    assert package.manifest.activations == "float"


def test_force_replaces_a_package(inline, small_gguf, tmp_path):
    arguments = ("export", "-m", small_gguf, "--out", tmp_path / "out")
    assert [inline(*arguments).returncode, inline(*arguments).returncode, inline(*arguments, "--force").returncode] == [
        0,
        6,
        0,
    ]


@pytest.mark.parametrize("stage", ["1/6 read", "3/6 weights", "4/6 graph", "5/6 check"])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(signum, code, stage, start, slow_gguf, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    process = start("export", "-m", slow_gguf, "--out", folder / "out", "--json")
    for line in process.stderr:
        if line.startswith(stage.encode()):
            break
    sent = time.monotonic()
    process.send_signal(signum)
    stdout, stderr = process.communicate(timeout=10)
    assert time.monotonic() - sent < 1
    assert process.returncode == code
    assert json.loads(stdout)["error"]["exit_code"] == code
    assert b"Traceback" not in stderr
    assert list(folder.iterdir()) == []
