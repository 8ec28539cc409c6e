"""``edge-rt doctor``: devices with the reason where there are none, and kernels compiled ahead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_rt.cli.render.inspect_report import device_facts, device_lines
from edge_rt.cli.render.stats import device_text
from edge_rt.device.cuda import kernel_cache
from edge_rt.device.names import DeviceName
from edge_rt.errors import RuntimeUnavailable
from edge_rt.ort.compute_device import ComputeDevice
from edge_rt.ort.providers import ProviderState
from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts
from edge_rt.system.machine import cpu_model
from edge_rt.version import VERSION

DETAILS = {"architecture": "sm_87", "memory_bytes": 8 << 30, "shares_memory": True, "driver": "13.0"}
ORIN = ComputeDevice(DeviceName("cuda", 1), "EdgeRtGpu", "1.0.0", "Orin", False, None, DETAILS)


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
    assert "shared with the machine, driver of CUDA 13.0" in text
    assert missing == ("webgpu", facts["webgpu"])


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


def test_a_cache_of_kernels_that_cannot_be_read(inline):
    kernel_cache().parent.mkdir(parents=True)
    kernel_cache().write_text("a file")
    told = json.loads(inline("doctor", "--json").stdout)
    assert told["kernel_cache"] is None
    assert any("cache of compiled kernels" in warning for warning in told["warnings"])


def test_the_device_of_a_loaded_model():
    assert device_text("cpu") == "cpu"
    assert device_text(ORIN.facts) == "cuda:1 (Orin)"
    assert device_text(ORIN.dividing(3, 2).facts) == "cuda:1 (Orin, 2 layers)"


def test_it_shows_what_is_known_of_passes(inline, cli_env):
    costs = RowCosts((1, 8), (64,), ((2.0, 3.0),), passes=300)
    key = {"package_id": "0123456789ab", "kv_format": "f16", "threads": 2, "cpu": cpu_model(), "edge_rt": VERSION}
    CostStore(Path(cli_env["XDG_CACHE_HOME"]) / "edge-rt" / "row-costs").save(key, costs)
    (known,) = json.loads(inline("doctor", "--json").stdout)["pass_costs"]
    assert (known["passes"], known["is_steady"], known["relative"]) == (300, True, {"1": 1.0, "8": 1.5})
    assert known["age_s"] < 600
    told = inline("doctor").stdout.decode()
    assert "passes (01234567, f16, 2 threads)" in told
    assert "1: 1.0x, 8: 1.5x (300 passes, 0.0 hours old)" in told
