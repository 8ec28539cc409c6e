"""``edge-rt doctor``: devices with the reason where there are none, and kernels compiled ahead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_rt.cli.commands.doctor import hidden_gpus
from edge_rt.cli.render.inspect_report import device_facts, device_lines
from edge_rt.cli.render.stats import device_text
from edge_rt.device.cuda import kernel_cache
from edge_rt.device.driver import SelfTest
from edge_rt.device.names import DeviceName
from edge_rt.device.vulkan import INSTALLED_VULKAN
from edge_rt.errors import RuntimeUnavailable
from edge_rt.ort import providers
from edge_rt.ort.compute_device import ComputeDevice
from edge_rt.ort.providers import ProviderState
from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts
from edge_rt.system.machine import cpu_model
from edge_rt.version import VERSION

DETAILS = {"architecture": "sm_87", "memory_bytes": 8 << 30, "shares_memory": True, "driver": "13.0"}
ORIN = ComputeDevice(DeviceName("cuda", 1), "EdgeRtGpu", "1.0.0", "Orin", False, None, DETAILS)
ARC = ComputeDevice(
    DeviceName("vulkan", 0),
    "EdgeRtVulkan",
    "1.0.0",
    "Arc",
    False,
    None,
    {
        "type": "discrete",
        "memory_bytes": 6 << 30,
        "shares_memory": False,
        "driver": "Mesa 24.1",
        "int8_dots": True,
        "halves": False,
    },
)


def test_every_kind_of_device_is_listed_or_the_reason_why_there_is_none(inline):
    devices = json.loads(inline("doctor", "--json").stdout)["devices"]
    assert set(devices) == {"cuda", "vulkan", "webgpu"}
    for found in devices.values():
        if isinstance(found, str):
            # What happened, and what to do.
            assert found.count(". ") >= 1
        else:
            assert found
            assert {"device", "provider", "version", "text", "is_software"} <= set(found[0])


def test_what_is_said_of_a_gpu():
    states = [
        ProviderState("cuda", (ORIN,), None),
        ProviderState("webgpu", (), RuntimeUnavailable("There is none.", "0 found.", "Install one.")),
    ]
    facts = device_facts(states)
    assert facts == {
        "cuda": [
            {"device": "cuda:1", "provider": "EdgeRtGpu", "version": "1.0.0", "text": "Orin", **DETAILS}
            | {"is_software": False}
        ],
        "webgpu": "There is none. 0 found. Install one.",
    }
    (name, text), missing = device_lines(facts)
    assert (name, text[:13]) == ("cuda:1", "Orin (sm_87, ")
    assert "8.00 GiB shared with the machine, driver of CUDA 13.0" in text
    assert missing == ("webgpu", facts["webgpu"])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "its bits were not compared with the CPU's yet: the first use does"),
        (SelfTest(True, {"add": "as it is"}), "the CPU's bits"),
        (
            SelfTest(True, {"add": "as it is", "fma": "mended", "divide": "mended"}),
            "the CPU's bits; mended: fma / divide",
        ),
        (
            SelfTest(False, {"fma": "mended", "add": "differs"}),
            "exact on this device only: its bits are not the CPU's; mended: fma; differs: add",
        ),
    ],
)
def test_what_a_self_test_found(found, said):
    device = ARC if found is None else providers.tested(ARC, found)
    facts = device_facts([ProviderState("vulkan", (device,), None)])
    (one,) = facts["vulkan"]
    bits, operations = (None, None) if found is None else (found.has_cpu_bits, found.operations)
    assert (one["cpu_bits"], one["self_test"]) == (bits, operations)
    ((_, text),) = device_lines(json.loads(json.dumps(facts)))
    assert text == (
        f"Arc (discrete, 6.00 GiB, 8-bit dot products, no 16-bit storage, driver Mesa 24.1, EdgeRtVulkan, {said})"
    )


def test_a_gpu_that_may_be_left_out_is_told():
    closed = RuntimeUnavailable("This user may not use the GPU.", "No permission.", "Add the user to the group.")
    states = [ProviderState("cuda", (ORIN,), None), ProviderState("vulkan", (ARC,), None, (), closed)]
    assert hidden_gpus(states) == [f"vulkan: {closed}"]


@pytest.mark.parametrize(
    ("architecture", "code", "kind"),
    [("87", 2, "ConfigError"), ("sm_x", 2, "ConfigError"), ("sm_61", 5, "RuntimeUnavailable")],
)
def test_architectures_that_nothing_is_compiled_for(inline, architecture, code, kind):
    result = inline("doctor", "--json", "--compile", architecture)
    assert result.returncode == code
    assert json.loads(result.stdout)["error"]["type"] == kind


def test_the_cache_of_compiled_kernels(inline):
    cache = kernel_cache()
    lines = " ".join(inline("doctor").stdout.decode().split())
    assert f"kernel cache {cache} (empty)" in lines
    cache.mkdir(parents=True)
    for compute in (120, 87):
        (cache / f"quant_linear_cuda-sm_{compute}-{'0a' * 16}.cubin").write_bytes(bytes(1500))
    assert json.loads(inline("doctor", "--json").stdout)["kernel_cache"] == {
        "folder": str(cache),
        "files": 2,
        "size_bytes": 3000,
        "architectures": ["sm_87", "sm_120"],
    }
    assert "(3.0 kB for sm_87, sm_120)" in " ".join(inline("doctor").stdout.decode().split())


def test_the_cache_of_what_vulkan_drivers_made(inline):
    cache = INSTALLED_VULKAN.compiled_folder
    assert f"Vulkan kernel cache {cache} (empty)" in " ".join(inline("doctor").stdout.decode().split())
    cache.mkdir(parents=True)
    (cache / f"{'0a' * 16}.bin").write_bytes(bytes(1500))
    told = json.loads(inline("doctor", "--json").stdout)["vulkan_kernel_cache"]
    assert told == {"folder": str(cache), "files": 1, "size_bytes": 1500}
    assert f"{cache} (1.5 kB)" in " ".join(inline("doctor").stdout.decode().split())


def test_a_cache_of_kernels_that_cannot_be_read(inline):
    kernel_cache().parent.mkdir(parents=True)
    kernel_cache().write_text("a file")
    INSTALLED_VULKAN.compiled_folder.write_text("a file")
    told = json.loads(inline("doctor", "--json").stdout)
    assert (told["kernel_cache"], told["vulkan_kernel_cache"]) == (None, None)
    for named in ("cache of compiled kernels", "cache of compiled Vulkan kernels"):
        assert any(named in warning for warning in told["warnings"])


def test_the_device_of_a_loaded_model():
    assert device_text("cpu") == "cpu"
    assert device_text(ORIN.facts) == "cuda:1 (Orin)"
    assert device_text(ORIN.dividing(3, 2).facts) == "cuda:1 (Orin, 2 layers)"


def test_it_shows_what_is_known_of_passes(inline, cli_env):
    costs = RowCosts((1, 8), (64,), ((2.0, 3.0),), passes=300)
    key = {"package_id": "0123456789ab", "kv_format": "f16", "threads": 2, "cpu": cpu_model(), "edge_rt": VERSION}
    store = CostStore(Path(cli_env["XDG_CACHE_HOME"]) / "edge-rt" / "row-costs")
    store.save(key, costs)
    (known,) = json.loads(inline("doctor", "--json").stdout)["pass_costs"]
    assert (known["passes"], known["is_steady"], known["relative"]) == (300, True, {"1": 1.0, "8": 1.5})
    assert known["age_s"] < 600
    told = inline("doctor").stdout.decode()
    assert "passes (01234567, f16, 2 threads)" in told
    assert "1: 1.0x, 8: 1.5x (300 passes, 0.0 hours old)" in told
    # Settings that have the same name, and other devices.
    store.save({**key, "capacity": 336}, RowCosts((1, 8), (64,), ((2.0, 4.0),), passes=300))
    store.save({**key, "device": ARC.facts}, RowCosts((1, 8), (64,), ((2.0, 5.0),), passes=300))
    store.save({**key, "device": ORIN.dividing(3, 2).facts}, RowCosts((1, 8), (64,), ((2.0, 6.0),), passes=300))
    known = json.loads(inline("doctor", "--json").stdout)["pass_costs"]
    assert [one["device"] for one in known] == [ORIN.dividing(3, 2).facts, ARC.facts, None, None]
    told = " ".join(inline("doctor").stdout.decode().split())
    for setting, share in (("", 1.5), ("", 2.0), (", vulkan:0", 2.5), (", cuda:1, 2 layers there", 3.0)):
        assert f"passes (01234567, f16, 2 threads{setting}) 1: 1.0x, 8: {share}x" in told
