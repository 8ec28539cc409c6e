from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from edge_rt.cli.commands.export import parse_adapter
from edge_rt.errors import ConfigError
from edge_rt.package.reader import open_package
from tests.helpers.clock import Told
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.lora_factory import low_rank, write_gguf_adapter
from tests.helpers.native_profile import require_native


def test_the_estimate_comes_first_and_the_check_last(inline, small_gguf, tmp_path):
    result = inline("export", "-m", small_gguf, "--out", tmp_path / "out", "--calibration", "none")
    assert result.returncode == 0
    told = result.stderr.decode()
    assert told.index("the export needs up to") < told.index("3/6 weights") < told.index("5/6 check")
    assert "check int8" in result.stdout.decode()
    open_package(tmp_path / "out").verify()


def test_json_is_the_report(inline, small_gguf, tmp_path):
    result = inline("export", "-m", small_gguf, "--out", tmp_path / "out", "--activations", "float", "--json")
    report = json.loads(result.stdout)
    package = open_package(tmp_path / "out")
    assert report["package_id"] == package.id
    assert [check["activations"] for check in report["check"]] == ["float"]
    assert package.manifest.activations == "float"


def test_the_profile_that_was_asked_for(inline, small_gguf, tmp_path):
    result = inline("export", "-m", small_gguf, "--out", tmp_path / "out", "--profile", "portable")
    assert ["op", "profile", "portable"] in [line.split() for line in result.stdout.decode().splitlines()]
    assert open_package(tmp_path / "out").manifest.op_profile == "portable"
    facts = json.loads(inline("inspect", tmp_path / "out", "--json").stdout)
    assert (facts["op_profile"], facts["weight_layout"], facts["kv_formats"]) == ("portable", "matmulnbits", ["f32"])


@pytest.mark.parametrize("flags", [("--profile", "neural"), ("--profile", "native", "--activations", "float")])
def test_profiles_that_there_are_not(inline, small_gguf, tmp_path, flags):
    result = inline("export", "-m", small_gguf, "--out", tmp_path / "out", *flags)
    assert result.returncode == 2
    assert not (tmp_path / "out").exists()


def test_a_native_package_says_so(inline, native_package):
    shown = inline("inspect", native_package).stdout.decode()
    assert ["weight_layout", "tile16"] in [line.split() for line in shown.splitlines()]
    facts = json.loads(inline("inspect", native_package, "--json").stdout)
    assert (facts["op_profile"], facts["kv_formats"]) == ("native", ["int8", "f16", "f32", "k8v4", "int4", "int4x2"])


def test_the_default_cache_is_shown_with_what_it_was_chosen_by(inline, native_package):
    losses = json.loads(inline("inspect", native_package, "--json").stdout)["kv_losses"]
    assert losses["formats"].keys() == {"f16", "int8"}
    for command in ("inspect", "plan"):
        (line,) = [one for one in inline(command, native_package).stdout.decode().splitlines() if "KV cache " in one]
        assert "int8 by default, measured at the export on 512 tokens (built-in)." in line
        assert f"int8 {losses['formats']['int8']['kl']:.2g} nats, " in line


def test_the_default_cache_can_be_stated(inline, small_gguf, tmp_path):
    require_native()
    result = inline("export", "-m", small_gguf, "--out", tmp_path / "out", "--kv-type", "f16")
    assert b"f16 by default, not measured" in result.stdout
    assert json.loads(inline("inspect", tmp_path / "out", "--json").stdout)["kv_losses"] is None
    planned = inline("plan", "-m", tmp_path / "out").stdout.decode()
    assert "f16 by default, not measured" in planned
    assert planned.count("slightly less exact than f16") == 1
    assert "not measured" not in inline("plan", "-m", tmp_path / "out", "--kv-type", "f32").stdout.decode()


def test_what_4_bit_keys_are_calibrated_with(inline, small_gguf, native_package, tmp_path):
    shown = inline("inspect", native_package).stdout.decode()
    assert ["key_calibration", "tokens", "512,", "source", "built-in"] in [line.split() for line in shown.splitlines()]
    facts = json.loads(inline("inspect", native_package, "--json").stdout)
    assert facts["key_calibration"] == {"tokens": 512, "source": "built-in"}
    (tmp_path / "own.txt").write_text("To be, or not to be, that is the question. " * 100)
    arguments = ("export", "-m", small_gguf, "--out", tmp_path / "out", "--force", "--calibration")
    for option, expected in ((tmp_path / "own.txt", {"tokens": 512, "source": "own.txt"}), ("none", None)):
        result = inline(*arguments, option)
        assert result.returncode == 0
        assert (b" calibrate" in result.stderr) == (expected is not None)
        assert json.loads(inline("inspect", tmp_path / "out", "--json").stdout)["key_calibration"] == expected
    assert inline(*arguments, tmp_path / "missing.txt").returncode == 6
    refused = inline(*arguments, tmp_path / "own.txt", "--profile", "portable")
    assert (refused.returncode, b"has no 4-bit cache" in refused.stderr) == (2, True)


def test_the_cache_and_the_instruction_set_can_be_chosen(inline, native_package):
    flags = ("generate", "-m", native_package, "-p", "Hello", "--raw", "-n", "4", "--temp", "0", "--json")
    least = require_native()[-1]
    answers = [
        json.loads(inline(*flags, *more).stdout)
        for more in (("--kv-type", "f16"), ("--isa", least), ("--kv-type", "f32"), ())
    ]
    assert answers[1]["token_ids"] == answers[3]["token_ids"]
    half, whole, narrow = (answers[i]["memory"]["kv_bytes"] / answers[i]["usage"]["total_tokens"] for i in (0, 2, 3))
    assert whole > half > narrow
    for more in (("--isa", "mmx"), ("--kv-type", "int3")):
        assert inline(*flags, *more).returncode == 2


def test_force_replaces_a_package(inline, small_gguf, tmp_path):
    arguments = ("export", "-m", small_gguf, "--out", tmp_path / "out")
    assert [inline(*arguments).returncode, inline(*arguments).returncode, inline(*arguments, "--force").returncode] == [
        0,
        6,
        0,
    ]


@pytest.fixture(scope="session")
def stages_gguf(made_once):
    """A checkpoint each stage of whose export takes long enough for a signal, and none longer."""
    sizes = {"context": 8192, "layers": 3, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1536}
    return made_once("stages.gguf", lambda path: write_llama_gguf(path, **sizes))


# What a signal is called does not matter to a stage, nor the stage to the exit code: each of both is met.
@pytest.mark.parametrize(
    ("signum", "code", "stage"),
    [
        (signal.SIGINT, 130, "read"),
        (signal.SIGTERM, 143, "weights"),
        (signal.SIGINT, 130, "graph"),
        (signal.SIGTERM, 143, "calibrate"),
        (signal.SIGINT, 130, "check"),
    ],
)
def test_a_signal_leaves_nothing_behind(signum, code, stage, start, stages_gguf, tmp_path):
    if stage == "calibrate":
        require_native()
    folder = tmp_path / "here"
    folder.mkdir()
    process = start("export", "-m", stages_gguf, "--out", folder / "out", "--json")
    for line in process.stderr:
        if line.split()[1:2] == [stage.encode()]:
            break
    told = Told(process.pid)
    process.send_signal(signum)
    stdout, stderr = process.communicate()
    told.must_be_done()
    assert process.returncode == code
    assert json.loads(stdout)["error"]["exit_code"] == code
    assert b"Traceback" not in stderr
    assert list(folder.iterdir()) == []


def test_adapters_stand_in_the_report_and_in_the_package(inline, tmp_path):
    model = write_llama_gguf(tmp_path / "base.gguf", layers=1, weight_type="F32", embedding_type="F32")
    pair = low_rank(np.random.default_rng(0), (64, 64))
    lora = write_gguf_adapter(tmp_path / "lora.gguf", {"blk.0.attn_q.weight": pair})
    adapter = ("--adapter", f"{lora}:0.5")
    flags = ("export", "-m", model.path, "--out", tmp_path / "my out", "--weights", "f32", "--calibration", "none")
    result = inline(*flags, *adapter)
    rows = [line.split() for line in result.stdout.decode().splitlines()]
    assert ["adapter", "lora.gguf,", "scale", "0.5"] in rows
    assert f"try: edge-rt chat -m '{tmp_path / 'my out'}'" in result.stderr.decode()
    shown = inline("inspect", tmp_path / "my out").stdout.decode()
    assert "adapter 1" in shown
    assert "kind gguf, name lora.gguf, scale 0.5, sha256" in shown
    twice = " ".join(inline(*flags, *adapter, "--adapter", lora).stderr.decode().split())
    assert "is named twice. Its scales are 0.5 and 1. Name it once" in twice


@pytest.mark.parametrize(
    ("option", "path", "scale"),
    [
        ("lora", "lora", 1.0),
        ("lora:0.5", "lora", 0.5),
        ("lora:-1e-1", "lora", -0.1),
        ("there:2", "there:2", 1.0),
        ("there:2:3", "there:2", 3.0),
        (r"C:\lora", r"C:\lora", 1.0),
        (r"C:\lora:0.5", r"C:\lora", 0.5),
        ("C:7", "C:7", 1.0),
    ],
)
def test_what_follows_a_colon_is_a_scale_unless_it_is_part_of_a_path(option, path, scale, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there:2").touch()
    assert parse_adapter(option) == (Path(path), scale)


def test_an_empty_adapter_is_not_the_folder_one_stands_in():
    with pytest.raises(ConfigError, match="--adapter is empty"):
        parse_adapter("")
