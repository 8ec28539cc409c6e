"""Portable packages on NVIDIA GPUs, through ONNX Runtime's own provider; nothing here runs on a GPU.

Another provider of the wheel for CPUs stands in for it, which computes no node, so that all are left to the CPU.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest

from edge_rt.device.cuda import CUDA_PROVIDER
from edge_rt.device.names import DeviceName
from edge_rt.device.provider import GpuProviders
from edge_rt.errors import ConfigError, MemoryBudgetExceeded, RuntimeUnavailable, VersionMismatch
from edge_rt.ort import providers
from edge_rt.ort.compute_device import DeviceArray, PlacedNode
from edge_rt.ort.providers import find_portable_cuda, open_device, placement
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.reader import open_package
from edge_rt.package.spec_modes import Drafts
from edge_rt.runtime.load.loading import cache_device
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.model import Model
from tests.device.test_provider import TWO, FakeProvider
from tests.helpers.onnxruntime_version import needs_onnxruntime
from tests.helpers.portable_cuda import STAND_IN, with_stand_in

pytestmark = needs_onnxruntime(1, 24)
IDS = [(5 + 41 * i) % 419 for i in range(20)]
without_cuda = pytest.mark.skipif(CUDA_PROVIDER in ort.get_available_providers(), reason="the wheel has the provider")


class TestMissing:
    @without_cuda
    def test_the_wheel_for_gpus(self):
        with pytest.raises(RuntimeUnavailable, match="onnxruntime-gpu") as caught:
            find_portable_cuda(DeviceName("cuda"), GpuProviders(FakeProvider(TWO)))
        assert caught.value.exit_code == 5
        assert "onnxruntime-gpu" in caught.value.action
        assert "the profile native" in caught.value.action

    @without_cuda
    def test_a_load_says_so_before_it_asks_for_a_driver(self, small_package):
        own = FakeProvider("error\t0\tdlopen: none\n")
        with pytest.raises(RuntimeUnavailable, match="onnxruntime-gpu"):
            Model(open_package(small_package), LoadOptions(device="cuda", ctx=64, gpu_providers=GpuProviders(own)))

    @pytest.mark.parametrize(
        ("lines", "number", "what"),
        [("error\t0\tdlopen: none\n", 0, "There is no driver"), (TWO, 2, "no GPU of that number")],
    )
    def test_the_driver_or_a_gpu(self, lines, number, what):
        with pytest.raises(RuntimeUnavailable, match=what):
            find_portable_cuda(DeviceName("cuda", number), with_stand_in(lines))

    def test_an_onnx_runtime_that_is_too_old(self, monkeypatch):
        monkeypatch.setattr(providers.ort, "__version__", "1.23.2")
        with pytest.raises(VersionMismatch, match=r"Version 1\.23\.2 is installed, at least 1\.24 is needed"):
            find_portable_cuda(DeviceName("cuda"), with_stand_in(TWO))

    @without_cuda
    def test_a_provider_that_onnx_runtime_leaves_out_is_no_run_on_the_cpu(self, small_package):
        """As it does if a library is missing, which it writes to its log only."""
        package = open_package(small_package)
        found = open_device(DeviceName("cuda"), package.manifest.op_profile, with_stand_in(TWO))
        device = dataclasses.replace(found, provider=CUDA_PROVIDER)
        (graph,) = package.manifest.graphs
        with (
            pytest.warns(UserWarning, match=CUDA_PROVIDER),
            pytest.raises(RuntimeUnavailable, match="cannot load its CUDAExecutionProvider") as caught,
        ):
            Session(package.file(graph), threads=pool_size() or 2, device=device)
        assert caught.value.exit_code == 5
        assert "libonnxruntime_providers_cuda.so" in caught.value.numbers

    def test_traced_packages_do_not_run_there(self):
        manifest = SimpleNamespace(op_profile="traced")
        with pytest.raises(ConfigError, match="op profile native or portable run there"):
            open_device(DeviceName("cuda"), manifest.op_profile, with_stand_in(TWO))


class TestDevice:
    def test_what_is_told_of_it(self):
        device = find_portable_cuda(DeviceName("cuda", 1), with_stand_in(TWO))
        assert (device.text, device.provider, device.records_passes) == ("Orin", STAND_IN, False)
        assert device.options["device_id"] == "1"
        assert device.facts["architecture"] == "sm_87"

    @without_cuda
    def test_arrays_are_asked_for_there(self):
        device = find_portable_cuda(DeviceName("cuda", 1), with_stand_in(TWO))
        with pytest.raises(MemoryBudgetExceeded, match="on Orin: Can't allocate memory on the"):
            DeviceArray(device, np.zeros(4, np.float32))

    @pytest.mark.parametrize(
        ("attention", "is_there"), [((CUDA_PROVIDER,), True), (("CPUExecutionProvider",), False), ((), True)]
    )
    def test_the_cache_is_where_attention_is_computed(self, attention, is_there):
        device = find_portable_cuda(DeviceName("cuda"), with_stand_in(TWO))
        nodes = [PlacedNode("a", "GroupQueryAttention", provider) for provider in attention]
        session = SimpleNamespace(placement=(PlacedNode("m", "MatMulNBits", CUDA_PROVIDER), *nodes))
        assert cache_device(device, [session]) == (device if is_there else None)
        assert cache_device(None, []) is None


class TestRun:
    """Of a package whose nodes are all left to the CPU."""

    def test_nodes_are_named(self, small_package):
        nodes = placement(open_package(small_package), DeviceName("cuda"), with_stand_in(TWO)).nodes
        assert len(nodes) > 20
        assert all(node.is_on_cpu for node in nodes)

    def test_logits_and_what_was_decided(self, small_package):
        """A cache on the device would be refused: this wheel has no memory there."""

        def logits(model):
            with model.passes() as (runner, _):
                rows = []
                for start, end in ((0, 9), (9, 10), (10, 20)):
                    rows.append(runner.forward(IDS[start:end], start, end - start).logits.copy())
            return np.concatenate(rows)

        package = open_package(small_package)
        asked = LoadOptions(device="cuda", ctx=64, spec="ngram", gpu_providers=with_stand_in(TWO))
        with Model(package, asked) as gpu, Model(package, asked.but(device="cpu")) as cpu:
            assert np.array_equal(logits(gpu), logits(cpu))
            assert gpu.describe()["device"]["provider"] == STAND_IN
            assert any("GroupQueryAttention" in name for name in gpu.describe()["cpu_nodes"])
            assert gpu.verification["device"]["text"] == "NVIDIA GeForce GT 1030"
            assert (gpu.speculation.drafts, cpu.speculation.drafts) == (Drafts.NOTHING, Drafts.ASKED_CHAINS)
