"""``edge-rt profile``: planned beside measured, as table, chart, JSON and picture."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from itertools import pairwise

import psutil
import pytest
from hypothesis import given, strategies as st

from edge_rt.cli.commands.profile import chart
from edge_rt.cli.render.plots import draw_memory as draw, largest_context, spread
from edge_rt.errors import StorageError
from edge_rt.measure.memory_report import MemoryReport, MemoryRun, Moment
from edge_rt.memory.device import preset
from edge_rt.memory.plan import make_plan
from tests.measure.test_memory_report import STAGES, plan_of

MIB = 1 << 20


@pytest.fixture
def profile(native_package):
    plan = plan_of(native_package, ctx=64, budget_bytes=260 * MIB)
    moments = tuple(Moment(float(place), stage.memory) for place, stage in enumerate(STAGES))
    return MemoryReport(plan, MemoryRun(STAGES, moments))


@pytest.mark.parametrize("is_unified", [False, True])
def test_a_plan_for_a_gpu_is_plotted(native_package, profile, tmp_path, is_unified):
    pytest.importorskip("matplotlib")
    gpu = replace(preset("rtx4060-laptop-8gb").gpu, is_unified=is_unified)
    device = replace(profile.plan.device, gpu=gpu)
    plan = make_plan(profile.plan.shape, device, replace(profile.plan.request, budget_bytes=1024 * MIB))
    draw(replace(profile, plan=plan), tmp_path / "gpu.png", title="a GPU")
    assert (tmp_path / "gpu.png").stat().st_size > 10_000


def test_the_document_has_the_figures_that_scripts_read(cli, native_package):
    done = cli("profile", "-m", native_package, "--ctx", 128, "--spec", "off", "-t", 1, "--json", "-q")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["planned_peak_bytes"] > 0
    assert document["measured_peak_bytes"] > 0
    assert set(document["terms"]) >= {"runtime", "tokenizer", "weights", "session", "kv_cache", "activations", "logits"}
    assert all(set(term) == {"planned", "measured"} for term in document["terms"].values())
    assert document["choice"]["ctx"] == 128
    assert {"seconds", "private_bytes", "file_bytes"} <= set(document["timeline"][0])
    assert document["private_bytes"] + document["file_bytes"] <= document["measured_peak_bytes"] + MIB
    assert done.stderr == b""


def test_a_person_gets_a_table_and_bars(cli, native_package):
    done = cli("profile", "-m", native_package, "--ctx", 64, "--spec", "off", "-t", 1)
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "planned" in text
    assert "unaccounted" in text
    assert "█" in text
    assert "Measuring: the context is full" in done.stderr.decode()


def test_what_does_not_fit_is_refused_before_a_process_is_started(cli, native_package):
    done = cli("profile", "-m", native_package, "--ctx", 64, "--memory", "20MiB", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["error"]["type"] == "MemoryBudgetExceeded"
    assert b"Measuring" not in done.stderr


def test_ctrl_c_ends_the_process_that_is_measured(start, native_package):
    process = start("profile", "-m", native_package, "--ctx", 512, "-t", 1)
    while b"passes are measured" not in process.stderr.readline():
        assert process.poll() is None
    children = psutil.Process(process.pid).children()
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_a_size_or_a_picture_that_makes_no_sense_is_refused(cli, native_package, tmp_path):
    assert cli("profile", "-m", native_package, "--memory", "much").returncode == 2
    assert cli("profile", "-m", native_package, "--plot", tmp_path / "picture.txt").returncode == 2
    assert cli("profile", "-m", native_package, "--plot", tmp_path / "missing" / "p.png").returncode == 6


def test_bars_are_as_long_as_their_sizes():
    lines = chart({"a": {"planned": 40 * MIB, "measured": 20 * MIB}, "b": {"planned": 1, "measured": 0}}, width=20)
    assert lines[0].count("░") == 20
    assert lines[1].count("█") == 10
    (_, unknown) = chart({"a": {"planned": 1, "measured": None}}, width=20)
    assert unknown.split() == ["-", "measured"]
    # What is there is shown, however small; what is not there is not.
    assert lines[2].count("░") == 1
    assert lines[3].count("█") == 0
    assert lines[0].endswith("40.0 planned")


@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_the_picture_is_drawn(profile, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"picture{suffix}"
    draw(profile, path, title="a $ignored formula")
    assert path.stat().st_size > 10_000


def test_the_picture_names_the_longest_context_and_the_budget(profile, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.svg"
    draw(profile, path, title="a $ignored formula")
    # Text of an .svg is drawn as outlines, each with what it says in a comment.
    text = path.read_text()
    assert "<!-- budget 260.0 MiB" in text
    assert "<!-- KV cache -->" in text
    assert "<!-- measured -->" in text


def test_a_picture_that_cannot_be_written_is_an_error(profile, tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(StorageError, match="cannot be written"):
        draw(profile, tmp_path / "missing" / "p.png", title="title")


@given(
    base=st.integers(0, 10**6), row=st.integers(1, 10**4), budget=st.integers(0, 10**8), trained=st.integers(2, 10**5)
)
def test_the_largest_context_fits_and_one_more_does_not(base, row, budget, trained):
    def total(ctx):
        return base + row * ctx

    most = largest_context(total, budget, trained)
    if most is None:
        assert total(2) > budget
    else:
        assert 2 <= most <= trained
        assert total(most) <= budget
        assert most == trained or total(most + 1) > budget


@given(st.dictionaries(st.text(max_size=2), st.floats(0, 1e4), min_size=1), st.floats(0.01, 100))
def test_labels_keep_their_order_and_a_distance(wanted, gap):
    placed = spread(wanted, gap)
    assert placed.keys() == wanted.keys()
    values = list(placed.values())
    assert all(b - a >= 0.999 * gap for a, b in pairwise(values))
    assert all(placed[name] >= wanted[name] for name in wanted)
    assert sorted(wanted, key=wanted.__getitem__) == list(placed)
