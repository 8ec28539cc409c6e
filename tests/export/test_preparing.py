"""What an export would do, without doing it."""

from __future__ import annotations

import json
import re

import pytest

from edge_rt.errors import ConfigError, StorageError
from edge_rt.export import export_model, plan_export
from edge_rt.system.byte_size import parse_size
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.hf_factory import write_hf_folder
from tests.helpers.native_profile import require_native
from tests.helpers.packages import listing


@pytest.fixture
def folder(tmp_path):
    model = write_llama_gguf(tmp_path / "m.gguf", weight_type="F32", embedding_type="F32", hidden=256, ffn=512)
    return write_hf_folder(tmp_path / "m", model)


@pytest.mark.parametrize("options", [{}, {"weights": "int8"}, {"weights": "f16"}, {"calibration": None}])
def test_it_is_what_an_export_then_does(folder, tmp_path, options):
    found = plan_export(folder, tmp_path / "p", profile="portable", **options)
    assert sorted(listing(tmp_path)) == ["m", "m.gguf"]
    report = export_model(folder, tmp_path / "p", profile="portable", **options)
    assert found.choice == report.weights.choice
    ahead = {name: (one.types, one.bits) for name, one in found.classes.items()}
    assert ahead == {name: (one.types, one.bits) for name, one in report.weights.classes.items()}
    assert found.disk_bytes == report.predicted_disk_bytes
    # What the process holds is part of it, and a little different each time.
    assert found.peak_memory_bytes == pytest.approx(report.predicted_peak_bytes, abs=48 << 20)
    assert found.refusal is None
    assert json.loads(json.dumps(found.to_json()))["disk_bytes"] == found.disk_bytes
    assert report.seconds == pytest.approx(sum(report.stages.values()))
    assert list(report.stages) == ["read", "plan", "weights", "graph", "check", "publish"]


def test_with_a_size_types_lie_between_two_ends(folder, tmp_path):
    require_native()
    found = plan_export(folder, tmp_path / "p", profile="native", size=1_200_000)
    assert found.disk_bytes == 1_200_000 + (8 << 20)
    assert found.classes["attention"].types.keys() == {"IQ4_XS"}
    assert found.most["attention"].types.keys() == {"Q8_0"}
    report = export_model(folder, tmp_path / "p", profile="native", size=1_200_000)
    assert (tmp_path / "p" / "weights.bin").stat().st_size <= 1_200_000
    assert found.classes["head"].bits <= report.weights.classes["head"].bits <= found.most["head"].bits
    assert (report.weights.choice, report.weights.size) == ("size", 1_200_000)


def test_a_size_beyond_what_the_model_can_take(folder, tmp_path):
    require_native()
    wide, most = (plan_export(folder, tmp_path / "p", profile="native", size=size) for size in (1 << 40, 1 << 33))
    assert wide.disk_bytes == most.disk_bytes
    assert wide.peak_memory_bytes == pytest.approx(most.peak_memory_bytes, abs=48 << 20)
    assert wide.disk_bytes < 32 << 20
    assert wide.refusal is None


def test_a_destination_that_exists_is_refused_like_by_an_export(folder, tmp_path):
    export_model(folder, tmp_path / "p", profile="portable", calibration=None)
    found = plan_export(folder, tmp_path / "p", profile="portable", calibration=None)
    with pytest.raises(StorageError, match="exists already") as caught:
        export_model(folder, tmp_path / "p", profile="portable", calibration=None)
    assert found.refusal == caught.value.to_json()
    assert plan_export(folder, tmp_path / "p", profile="portable", calibration=None, force=True).refusal is None


def test_a_size_that_is_too_small_is_refused_before_anything_is_measured(folder, tmp_path):
    require_native()
    with pytest.raises(ConfigError, match="does not fit the size") as caught:
        plan_export(folder, tmp_path / "p", profile="native", size=1000)
    least, unit = re.search(r"a size of ([\d.]+) ([KMG]iB)", caught.value.action).groups()
    plan_export(folder, tmp_path / "p", profile="native", size=parse_size(least + unit))
    with pytest.raises(ConfigError, match="does not fit the size"):
        plan_export(folder, tmp_path / "p", profile="native", size=parse_size(f"{float(least) - 0.1:.1f}{unit}"))
    events = []
    with pytest.raises(ConfigError, match="does not fit the size"):
        export_model(folder, tmp_path / "p", profile="native", size=1000, progress=events.append)
    assert {event.stage for event in events} == {"read"}


def test_a_size_needs_the_native_profile(folder, tmp_path):
    with pytest.raises(ConfigError, match="needs the native op profile"):
        plan_export(folder, tmp_path / "p", profile="portable", size=1 << 20)


def test_measuring_goes_forward_and_says_what_it_does(folder, tmp_path):
    require_native()
    events = []
    export_model(folder, tmp_path / "p", profile="native", progress=events.append)
    plan = [event for event in events if event.stage == "plan" and event.total]
    assert plan[0].message == "measuring which matrices need more bits"
    # Two layers there and back, then two matrices of each.
    assert {event.total for event in plan} == {8}
    assert [event.done for event in plan] == sorted(event.done for event in plan)
    assert (plan[0].done, plan[-1].done) == (0, 8)
    weights = [event for event in events if event.stage == "weights"]
    assert weights[0].message == "quantising to int4, with a calibration text"
