from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from edge_rt.device.vulkan import VulkanProvider
from edge_rt.errors import ConfigError, StorageError
from edge_rt.memory.device import (
    GENERIC,
    PRESETS_FILE,
    check_new_name,
    device_path,
    load_device,
    local_device,
    preset,
    presets,
    read_presets,
    save_device,
    saved_names,
    this_device,
)
from tests.memory.preset_table import DOCS, table
from tests.memory.shapes import DEVICE


def test_every_figure_of_every_preset_has_a_tag_and_a_source():
    document = json.loads(PRESETS_FILE.read_text())
    figures = {"total_gb", "available_gb", "bandwidth_gb_s", "efficiency", "step_overhead_ms", "row_cost"}
    assert set(presets()) == {entry["name"] for entry in document["devices"]}
    for entry in presets().values():
        own = {f"gpu.{name}" for name in figures}
        gpu = entry.device.gpu
        of_gpu = set() if gpu is None else own - {"gpu.total_gb", "gpu.available_gb"} if gpu.is_unified else own
        assert set(entry.evidence) == figures | of_gpu
        assert all(tag in document["evidence"] and source for tag, source in entry.evidence.values())
        assert entry.device.problem() is None
        assert entry.device.available_bytes <= entry.device.total_bytes


def test_the_bandwidth_of_a_preset_is_its_share_of_the_peak():
    assert preset("rpi5-8gb").bandwidth == pytest.approx(17e9 * 0.67)
    assert preset("rpi5-8gb").is_measured is False


@pytest.mark.parametrize("name", ["no-such-device", "CUDA", "cuda 1", "../x", ""])
@pytest.mark.parametrize("read", [preset, local_device])
def test_an_unknown_device_is_refused_and_what_may_be_named_is_said(name, read):
    with pytest.raises(ConfigError, match="Unknown device") as refused:
        read(name)
    assert refused.value.numbers
    assert "Devices: auto, cpu, cuda, vulkan, webgpu; a number chooses one of several" in refused.value.action
    assert "'edge-rt doctor' shows which are here. Machines to plan for: edge-rt plan --device list." in (
        refused.value.action
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cud", "cuda or cpu"),
        ("rpi9", "rpi5-8gb"),
        ("jetson-orin-nx", "jetson-orin-nx-16gb"),
        ("vulcan", "vulkan"),
        ("Vulkan:1", "vulkan:1"),
        ("vulcan:2", "vulkan:2"),
        ("gpu", "cuda or vulkan"),
        ("rtx3050-laptop-4g", "rtx3050-laptop-4gb or rtx"),
        ("generic:vulcan", r"generic:vulkan\?"),
        ("Steamdeck-16gb:Vulkan", r"steamdeck-16gb:vulkan\?"),
        ("steamdeck-16g:vulkan", "steamdeck-16gb:vulkan"),
        ("rpi5-8gb:vulcan", "rpi5-8gb"),
    ],
)
def test_a_device_that_is_nearly_named_is_suggested(name, meant):
    """Whether something is planned or to run."""
    for read in (preset, local_device):
        with pytest.raises(ConfigError, match=rf"Unknown device '{name}'\. Did you mean {meant}"):
            read(name)


@pytest.mark.parametrize(
    ("name", "meant"), [("vulkan:", "vulkan"), ("cuda:99999", "cuda"), ("cpu:0", "cpu"), ("auto:1", "auto")]
)
def test_the_kind_is_suggested_where_the_number_is_none(name, meant):
    """Also in plans, which read such a name as one of this machine."""
    with pytest.raises(ConfigError, match=rf"Did you mean {meant}\?"):
        local_device(name)


def test_a_saved_profile_is_read_back(tmp_path):
    path = device_path("mine", tmp_path / "new")
    save_device(replace(DEVICE, name="mine", is_measured=True, base_bytes=70 << 20), path)
    assert load_device(path) == replace(DEVICE, name="mine", is_measured=True, base_bytes=70 << 20)
    assert saved_names(tmp_path / "new") == ["mine"]
    assert [entry.name for entry in path.parent.iterdir()] == ["mine.json"]


@pytest.mark.parametrize("name", ["", "../up", "A", "a/b", "x" * 65, ".hidden"])
def test_a_name_cannot_lead_elsewhere(name, tmp_path):
    with pytest.raises(ConfigError):
        device_path(name, tmp_path)


@pytest.mark.parametrize("name", ["list", "auto", "cpu", GENERIC, "rpi5-8gb", "../up"])
def test_a_name_that_means_something_else_is_no_new_one(name):
    with pytest.raises(ConfigError):
        check_new_name(name)


def test_other_names_are():
    check_new_name("default")
    check_new_name("bench-1")


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        save_device(DEVICE, tmp_path / "file" / "mine.json")


GOOD = json.loads(json.dumps({"version": 1, **asdict(DEVICE)}))


@pytest.mark.parametrize(
    "document",
    [
        "no JSON", [], {}, {**GOOD, "version": 2}, {**GOOD, "bandwidth": 0}, {**GOOD, "bandwidth": "fast"},
        {**GOOD, "row_cost": [[1, 1.0]]}, {**GOOD, "row_cost": [[1, 1.0], [8, 0.5]]}, {**GOOD, "row_cost": [[2, 1.0]]},
        {**GOOD, "threads": 0}, {**GOOD, "more": 1}, {**GOOD, "base_bytes": -1},
    ],
)  # fmt: skip
def test_a_malformed_profile_is_refused(document, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(ConfigError, match=r"mine\.json"):
        load_device(path)


def test_malformed_presets_are_refused(tmp_path):
    path = tmp_path / "devices.json"
    path.write_text('{"devices": [{"name": "x"}]}')
    with pytest.raises(ConfigError):
        read_presets(path)


def test_this_machine_is_measured_memory_and_saved_speed(tmp_path):
    path = device_path("default", tmp_path)
    before = this_device(path, available=lambda: 123, threads=3)
    assert (before.bandwidth, before.is_measured) == (preset(GENERIC).bandwidth, False)
    save_device(replace(DEVICE, bandwidth=7e9, is_measured=True), path)
    after = this_device(path, available=lambda: 123, threads=3)
    assert (after.bandwidth, after.is_measured, after.available_bytes, after.threads) == (7e9, True, 123, 3)


def test_a_damaged_saved_profile_keeps_no_model_from_loading(tmp_path):
    path = device_path("default", tmp_path)
    path.write_text("{")
    assert this_device(path).is_measured is False


def test_the_table_of_the_documentation_is_that_of_the_file():
    """To change it on purpose: python -m tests.memory.preset_table."""
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    begin = lines.index(next(table()))
    wanted = list(table())
    assert lines[begin : begin + len(wanted)] == wanted
    assert not lines[begin + len(wanted)].startswith("|")


def test_a_gpu_that_shares_memory_has_the_machines():
    device = preset("jetson-agx-orin-64gb")
    assert device.gpu.is_unified
    assert (device.gpu.total_bytes, device.gpu.available_bytes) == (device.total_bytes, device.available_bytes)
    assert not device.has_own_gpu_memory
    assert preset("rtx3050-laptop-4gb").has_own_gpu_memory


def test_a_saved_device_with_a_gpu_is_refused(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**GOOD, "gpu": {"name": "x"}}))
    with pytest.raises(ConfigError, match="only presets have a GPU"):
        load_device(path)


def test_plans_are_made_for_gpus_with_vulkan():
    for name in ("generic", "steamdeck-16gb", "lunar-lake-258v-32gb", "ryzen-ai-hx370-32gb", "ryzen-ai-max-395"):
        plain, device = preset(name), preset(f"{name}:vulkan")
        gpu = device.gpu
        assert replace(device, name=plain.name, gpu=None) == plain
        # It reads the machine's memory, of which its driver lends a part.
        assert (gpu.is_unified, gpu.bandwidth, gpu.available_bytes) == (True, plain.bandwidth, plain.available_bytes)
        assert gpu.total_bytes == plain.total_bytes // 3
        assert device.problem() is None
    cuda, own = preset("generic-gpu").gpu, preset("generic-gpu:vulkan").gpu
    assert (own.total_bytes, own.available_bytes, own.is_unified) == (cuda.total_bytes, cuda.available_bytes, False)
    for one in (gpu, own):
        terms = (one.context_bytes, one.host_bytes, one.chunk_bytes, one.page_bytes)
        assert terms == (VulkanProvider.context_bytes, VulkanProvider.host_bytes, VulkanProvider.chunk_bytes, 0)


def test_other_machines_have_no_plan_with_vulkan():
    with pytest.raises(ConfigError, match="No plan with Vulkan is made for rpi5-8gb") as refused:
        preset("rpi5-8gb:vulkan")
    assert "generic-gpu, steamdeck-16gb" in refused.value.numbers
    with pytest.raises(ConfigError, match="Unknown device"):
        preset("steamdeck-16gb:cuda")
    with pytest.raises(ConfigError, match="steamdeck-16gb:vulkan is a machine to plan for"):
        local_device("steamdeck-16gb:vulkan")
