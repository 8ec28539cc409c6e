from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import edge_rt
from edge_rt.device.names import ON_CPU, DeviceName, parse_device
from edge_rt.errors import (
    ConfigError,
    DeviceFailed,
    DeviceHung,
    DeviceLost,
    DeviceMemoryExhausted,
    MemoryBudgetExceeded,
    RuntimeUnavailable,
    UnsupportedModel,
    VersionMismatch,
)
from edge_rt.ort import providers
from edge_rt.ort.errors import translate
from edge_rt.ort.providers import find_device, placement
from edge_rt.package.reader import open_package
from edge_rt.package.spec_modes import Drafts
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.system.json_files import JsonCache
from tests.helpers.onnxruntime_version import needs_onnxruntime
from tests.helpers.webgpu import require_webgpu

IDS = [(5 + 41 * i) % 419 for i in range(40)]


class TestNames:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("auto", DeviceName("auto")),
            ("cpu", DeviceName("cpu")),
            ("cuda", DeviceName("cuda")),
            ("cuda:1", DeviceName("cuda", 1)),
            ("webgpu:0", DeviceName("webgpu")),
        ],
    )
    def test_what_is_read(self, text, expected):
        assert parse_device(text) == expected

    @pytest.mark.parametrize(
        "text", ["", "gpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1:1", "cpu:0", "auto:1", "cuda:1000", "cuda:²"]
    )
    def test_what_is_refused(self, text):
        with pytest.raises(ConfigError, match="Unknown device"):
            parse_device(text)
        with pytest.raises(ConfigError, match="Unknown device"):
            LoadOptions(device=text)


class TestMissing:
    def test_webgpu_without_its_wheel(self, monkeypatch):
        monkeypatch.setattr(providers, "WEBGPU_MODULE", "no_such_module_of_edge_rt")
        with pytest.raises(RuntimeUnavailable, match="not installed") as caught:
            find_device(DeviceName("webgpu"))
        assert "onnxruntime-ep-webgpu" in caught.value.action

    def test_an_onnx_runtime_that_is_too_old(self, monkeypatch):
        monkeypatch.setattr(providers.ort, "__version__", "1.23.2")
        with pytest.raises(VersionMismatch, match=r"Version 1\.23\.2 is installed, at least 1\.24 is needed"):
            providers._handles("webgpu", Path("none.so"))
        with pytest.raises(VersionMismatch, match=r"Version 1\.23\.2 is installed, at least 1\.28 is needed"):
            find_device(DeviceName("cuda"))

    @needs_onnxruntime(1, 24)
    def test_a_library_that_onnx_runtime_refuses(self, tmp_path):
        (tmp_path / "none.so").write_bytes(b"no library")
        with pytest.raises(VersionMismatch, match="refused the provider"):
            providers._handles("webgpu", tmp_path / "none.so")

    def test_errors_of_a_provider(self):
        failed = translate(RuntimeError("[ONNXRuntimeError] : 11 : EP_FAIL : no adapter"), loading=True, device="x")
        assert type(failed) is RuntimeUnavailable
        full = "edge_rt gpu: Failed to allocate device memory, cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2)"
        assert "memory of the GPU is exhausted" in translate(RuntimeError(full), loading=False).what
        assert type(translate(RuntimeError(full), loading=True, device="a GPU")) is DeviceMemoryExhausted
        for text, kind in (
            ("the device is lost: QuantEmbed: cuLaunchKernel failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)", DeviceLost),
            ("the device does not answer: a pass failed: vkWaitForFences: no answer within 60 s", DeviceHung),
            ("the device failed: a copy of 32 bytes: vkQueueSubmit failed: VK_ERROR_UNKNOWN (-13)", DeviceFailed),
        ):
            assert type(translate(RuntimeError(f"edge_rt gpu: {text}"), loading=False)) is kind
        short = RuntimeError("bad_alloc")
        assert type(translate(short, loading=False)) is MemoryBudgetExceeded
        assert type(translate(short, loading=False, is_on_device=True)) is DeviceMemoryExhausted
        portable = "CUDA failure 2: out of memory ; GPU=0 ; hostname=a ; file=b.cc ; line=1 ; expr=c"
        assert type(translate(RuntimeError(portable), loading=False)) is DeviceMemoryExhausted
        portable = portable.replace("2: out of memory", "700: an illegal memory access was encountered")
        assert type(translate(RuntimeError(portable), loading=True, device="a GPU")) is DeviceFailed
        refused = translate(RuntimeError("something else"), loading=True, device="a GPU")
        assert type(refused) is UnsupportedModel
        assert "for a GPU refused the model" in refused.what


class TestOpProfiles:
    def test_a_native_package_on_webgpu(self, native_package):
        with pytest.raises(ConfigError, match="packages of the op profile portable run there"):
            edge_rt.load(native_package, device="webgpu")

    def test_the_cpu_places_nothing(self, small_package):
        with pytest.raises(ConfigError, match="placed on GPUs only"):
            placement(open_package(small_package), ON_CPU)


@pytest.fixture(scope="module")
def nodes(small_package):
    return require_webgpu(small_package)


@pytest.fixture(scope="module")
def pair(nodes, small_package):
    with (
        edge_rt.load(small_package, device="cpu", ctx=128) as cpu,
        edge_rt.load(small_package, device="webgpu", ctx=128) as gpu,
    ):
        yield cpu, gpu


class TestWebGPU:
    """On any adapter, such as SwiftShader with ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1."""

    def test_no_node_is_left_to_the_cpu(self, nodes):
        assert len(nodes) > 20
        assert [node for node in nodes if node.is_on_cpu] == []
        assert {node.provider for node in nodes} == {"WebGpuExecutionProvider"}

    def test_logits_are_those_of_the_cpu_within_rounding(self, pair):
        """Chunks behind one another, so that keys and values of earlier passes are read on the device."""

        def logits(model):
            with model.passes() as (runner, _):
                rows = []
                for start, end in ((0, 17), (17, 18), (18, 19), (19, 40)):
                    rows.append(runner.forward(IDS[start:end], start, end - start).logits.copy())
            return np.concatenate(rows)

        expected, found = (logits(model) for model in pair)
        error = np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean())
        # The activations of this package are rounded to 8 bits, by each provider in its own way. A cache that does not
        # reach the device, or tokens that are not copied, gives an error near 1.
        assert error < 0.05
        assert (found.argmax(1) == expected.argmax(1)).mean() > 0.8

    def test_an_answer_and_a_second_one_that_begins_like_it(self, pair):
        _, gpu = pair
        first = gpu.generate(IDS[:20], max_tokens=4, temperature=0.0, repetition_guard=False)
        again = gpu.generate([*IDS[:20], *first.token_ids[:2]], max_tokens=2, temperature=0.0, repetition_guard=False)
        assert again.usage.cached_tokens > 10
        gpu.reset()
        anew = gpu.generate([*IDS[:20], *first.token_ids[:2]], max_tokens=2, temperature=0.0, repetition_guard=False)
        assert again.token_ids == anew.token_ids

    def test_speculation_is_off_until_it_was_verified(self, pair, small_package, monkeypatch, tmp_path):
        _, gpu = pair
        assert gpu.speculation.drafts is Drafts.NOTHING
        assert gpu.verification is not None
        store = JsonCache(tmp_path)
        monkeypatch.setattr("edge_rt.runtime.speculation.stored_costs.user_verified", lambda: store)
        store.save(gpu.verification, {"drafted": 1})
        with edge_rt.load(small_package, device="webgpu", ctx=128) as model:
            assert model.speculation.drafts is Drafts.ASKED_CHAINS

    def test_what_was_decided(self, pair):
        cpu, gpu = pair
        assert (cpu.describe()["device"], cpu.describe()["cpu_nodes"]) == ("cpu", [])
        assert gpu.describe()["device"]["provider"] == "WebGpuExecutionProvider"
        assert gpu.describe()["cpu_nodes"] == []

    def test_no_such_adapter(self, nodes):
        with pytest.raises(RuntimeUnavailable, match="no device of that number"):
            find_device(DeviceName("webgpu", 99))

    def test_without_a_driver(self, nodes, small_package, tmp_path):
        """In a process of its own, because a provider looks for drivers once."""
        program = (
            "import json, sys, edge_rt\n"
            "try: edge_rt.load(sys.argv[1], device='webgpu', ctx=64)\n"
            "except edge_rt.EdgeRTError as error: print(json.dumps(error.to_json()))\n"
        )

        env = {**os.environ, "VK_DRIVER_FILES": str(tmp_path), "VK_ICD_FILENAMES": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", program, str(small_package)], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        if done.stdout == "" and sys.platform != "linux":
            pytest.skip("the adapter is not one of Vulkan")
        assert json.loads(done.stdout)["type"] == "RuntimeUnavailable"
