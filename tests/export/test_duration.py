"""The predicted time of an export: what is counted, at speeds that are given; and the speeds themselves."""

from __future__ import annotations

import dataclasses

import pytest

from edge_rt.export import plan_export
from edge_rt.export.duration import Speed, measure_speed
from edge_rt.export.entry import open_checkpoint
from edge_rt.export.preparing import decide, forecast
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.hf_factory import write_hf_folder

NOTHING = Speed(0.0, 0.0, 0.0, 0.0, 2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of floats, the second with layers of four times the weights, by the width of their feed-forward."""
    root = tmp_path_factory.mktemp("floats")
    found = {}
    for hidden in (64, 128):
        model = write_llama_gguf(
            root / f"{hidden}.gguf", weight_type="F32", embedding_type="F32", hidden=hidden, ffn=2 * hidden
        )
        found[hidden] = write_hf_folder(root / str(hidden), model)
    return found


def seconds(folder, out, speed, *, weights="int4", calibration="built-in"):
    source, config = open_checkpoint(folder)
    decided = decide(source, config, "portable", "int8", weights, 0, calibration)
    return forecast(source, config, decided, out, speed=speed).seconds


def test_nothing_but_a_start_and_the_disk(folders, tmp_path):
    assert 1 < seconds(folders[64], tmp_path / "p", NOTHING) < 3


@pytest.mark.parametrize("name", ["weight_seconds", "feedback_seconds", "convert_seconds", "flop_seconds"])
def test_every_speed_counts(folders, tmp_path, name):
    """What a speed adds grows with the speed, and with the model."""

    def added(hidden, speed):
        base = seconds(folders[hidden], tmp_path / "p", NOTHING)
        return seconds(folders[hidden], tmp_path / "p", dataclasses.replace(NOTHING, **{name: speed})) - base

    one = added(64, 1e-6)
    assert one > 0
    assert added(64, 2e-6) == pytest.approx(2 * one)
    assert added(128, 1e-6) > 1.2 * one


def test_work_that_is_not_done_takes_no_time(folders, tmp_path):
    rounding = dataclasses.replace(NOTHING, weight_seconds=1e-6, feedback_seconds=1e-6)
    plain = seconds(folders[64], tmp_path / "p", NOTHING, weights="f32")
    assert seconds(folders[64], tmp_path / "p", rounding, weights="f32") == plain
    products = dataclasses.replace(NOTHING, flop_seconds=1e-9)
    without = seconds(folders[64], tmp_path / "p", products, calibration=None)
    assert without == seconds(folders[64], tmp_path / "p", NOTHING, calibration=None)
    # Without a text no sample is tried, and no error is made up for.
    assert seconds(folders[64], tmp_path / "p", rounding, calibration=None) > without
    assert seconds(folders[64], tmp_path / "p", rounding) > seconds(
        folders[64], tmp_path / "p", rounding, calibration=None
    )


def test_more_cpus_take_less(folders, tmp_path):
    speed = dataclasses.replace(NOTHING, weight_seconds=1e-4)
    assert seconds(folders[64], tmp_path / "p", dataclasses.replace(speed, cpus=8)) < seconds(
        folders[64], tmp_path / "p", speed
    )


def test_this_machine(folders, tmp_path):
    speed = measure_speed()
    assert all(value > 0 for value in dataclasses.astuple(speed))
    assert speed.weight_seconds < 1e-4
    assert 1 < plan_export(folders[64], tmp_path / "p").seconds < 600
