"""GPUs of edge-rt's own provider: what its library says of them, an error for every cause, their kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edge_rt.device.cuda import CUDA_PROVIDER, INSTALLED_CUDA, SOURCES, CudaProvider, driver_error, prebuilt
from edge_rt.device.driver import DriverError, Gpu, GpuLibrary, closed_files, read_gpus
from edge_rt.device.names import DeviceName
from edge_rt.device.provider import GpuProviders
from edge_rt.errors import RuntimeUnavailable, VersionMismatch
from edge_rt.ort.providers import find_device, provider_states
from tests.gpu.test_gpu_kernels import FakeNvrtc
from tests.helpers.onnxruntime_version import needs_onnxruntime

TWO = (
    "driver\t13000\n"
    "gpu\t0\t2147483648\t0\tNVIDIA GeForce GT 1030\tvendor=NVIDIA\tcompute=61\trefusal=its architecture is 61\n"
    "gpu\t1\t8000000000\t1\tOrin\tvendor=NVIDIA\tcompute=87\n"
)  # fmt: skip
OLD = "driver\t12040\ngpu\t0\t2147483648\t0\tNVIDIA GeForce GT 1030\tcompute=61\n"

needs_provider = needs_onnxruntime(1, 28)


class FakeLibrary:
    def __init__(self, lines):
        self.lines, self.kernels = lines, []

    def describe(self):
        return self.lines

    def set_kernels(self, number, cubins):
        self.kernels.append((number, dict(cubins)))


class FakeProvider(CudaProvider):
    """One whose library is a list of lines, and which compiles for the numbers of GPUs."""

    def __init__(self, lines, *, are_made=None, portable=CUDA_PROVIDER):
        super().__init__(lambda: Path("library"), lambda gpu: {"source": bytes([gpu.number])}, are_made, portable)
        self.fake = FakeLibrary(lines)

    @property
    def library(self):
        return self.fake


class TestReport:
    def test_what_is_read(self):
        old, orin = read_gpus(TWO, "cuda")
        more = {"vendor": "NVIDIA", "compute": "61"}
        assert old == Gpu("cuda", 0, "NVIDIA GeForce GT 1030", "13000", 2 << 30, False, more, "its architecture is 61")
        assert orin == Gpu("cuda", 1, "Orin", "13000", 8_000_000_000, True, {**more, "compute": "87"})
        provider = FakeProvider(TWO)
        assert [provider.refused(gpu) is None for gpu in (old, orin)] == [False, True]
        assert provider.facts(orin) == {
            "architecture": "sm_87", "memory_bytes": 8_000_000_000, "shares_memory": True, "driver": "13.0",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("lines", "kind", "what"),
        [
            ("error\t0\tdlopen: libcuda.so.1: no such file\n", RuntimeUnavailable, "There is no driver"),
            ("error\t0\tdlsym: libcuda.so.1 has no cuGraphX\n", VersionMismatch, "driver for NVIDIA GPUs is too old"),
            ("error\t0\tcuDriverGetVersion: of CUDA 11.2\n", VersionMismatch, "driver for NVIDIA GPUs is too old"),
            ("error\t100\tcuInit failed: CUDA_ERROR_NO_DEVICE (100)\n", RuntimeUnavailable, "There is no NVIDIA GPU"),
            ("driver\t13000\n", RuntimeUnavailable, "There is no NVIDIA GPU"),
            ("error\t800\tcuInit failed: X (800)\n", RuntimeUnavailable, "This user may not use the GPU"),
            ("error\t803\tcuInit failed: X (803)\n", VersionMismatch, "does not fit its kernel module"),
            ("error\t999\tcuInit failed: X (999)\n", RuntimeUnavailable, "The driver for NVIDIA GPUs failed"),
        ],
    )
    def test_every_cause_has_its_error(self, lines, kind, what):
        with pytest.raises(RuntimeUnavailable, match=what) as caught:
            FakeProvider(lines).gpus()
        assert type(caught.value) is kind
        assert caught.value.exit_code == 5
        assert caught.value.action

    @pytest.mark.parametrize("code", [100, 304, 999])
    def test_a_driver_that_finds_nothing_may_lack_permission(self, code):
        with pytest.raises(RuntimeUnavailable, match="may not use the GPU") as caught:
            raise driver_error(DriverError(code, f"cuInit failed: X ({code})"), (Path("/dev/nvmap"),))
        assert "/dev/nvmap" in caught.value.numbers
        assert "group" in caught.value.action

    def test_files_that_may_not_be_used(self, tmp_path):
        for name in ("nvidia0", "nvidiactl", "nvme0"):
            (tmp_path / name).write_text("")
        patterns = ("nvidiactl", "nvidia[0-9]*")
        assert closed_files(patterns, tmp_path) == ()
        closed = closed_files(patterns, tmp_path, lambda path: path.name == "nvidiactl")
        assert closed == (tmp_path / "nvidia0",)

    def test_no_such_gpu(self):
        with pytest.raises(RuntimeUnavailable, match="Got cuda:2; the driver for NVIDIA GPUs found 2"):
            FakeProvider(TWO).gpu(DeviceName("cuda", 2))


class TestLibrary:
    def test_one_that_cannot_be_loaded(self, tmp_path):
        (tmp_path / "none.so").write_bytes(b"no library")
        with pytest.raises(RuntimeUnavailable, match="cannot be loaded"):
            GpuLibrary(tmp_path / "none.so", "NVIDIA GPUs")

    def test_a_driver_without_a_function(self, tmp_path):
        """What is installed, and any library in the driver's place."""
        try:
            path = INSTALLED_CUDA.path
        except RuntimeUnavailable:
            pytest.skip("this installation has no provider")
        (tmp_path / "libcuda.so.1").symlink_to(path.resolve())
        code = "from edge_rt.device.cuda import INSTALLED_CUDA; INSTALLED_CUDA.listed()"
        environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert "VersionMismatch: The driver for NVIDIA GPUs is too old. " in done.stderr
        assert "libcuda.so.1 has no cuInit" in done.stderr


class TestProvider:
    def test_kernels_are_handed_over_once(self):
        provider = FakeProvider(TWO)
        for _ in range(2):
            provider.make_ready(provider.gpu(DeviceName("cuda", 1)))
        assert provider.fake.kernels == [(1, {"source": b"\1"})]

    def test_a_wait_for_the_compiler_is_told(self):
        for are_made, expected in ((False, [True]), (True, [])):
            told = []
            provider = FakeProvider(TWO, are_made=lambda _, made=are_made: made)
            provider.make_ready(provider.gpu(DeviceName("cuda", 1)), told.append)
            assert told == expected

    def test_nobody_waits_for_the_compiler_but_those_who_need_its_kernels(self):
        seen, made = [], []

        def make(gpu):
            # Two others come while it compiles.
            asks = threading.Thread(target=lambda: seen.append((len(provider.listed()), provider.is_ready(1))))
            asks.start()
            asks.join(60)
            needs.start()
            made.append(gpu.number)
            return {}

        provider = CudaProvider(lambda: Path("library"), make)
        provider._library = FakeLibrary(TWO)
        orin = provider.listed_gpu(DeviceName("cuda", 1))
        needs = threading.Thread(target=lambda: provider.make_ready(orin))
        provider.make_ready(orin)
        needs.join(60)
        assert seen == [(2, False)]
        assert made == [1]
        assert provider.is_ready(1)

    @pytest.mark.parametrize(("number", "what"), [(0, "The GPU is too old"), (2, "no GPU of that number")])
    def test_what_cannot_be_made_ready(self, number, what):
        provider = FakeProvider(TWO)
        with pytest.raises(RuntimeUnavailable, match=what):
            provider.make_ready(provider.listed_gpu(DeviceName("cuda", number)))
        assert provider.fake.kernels == []

    def test_a_machine_with_old_gpus_alone(self):
        with pytest.raises(RuntimeUnavailable, match="too old"):
            FakeProvider(OLD).gpus()
        assert [gpu.number for gpu in FakeProvider(TWO).gpus()] == [1]

    @needs_provider
    @pytest.mark.parametrize(
        ("lines", "name", "what"),
        [
            (TWO, DeviceName("cuda"), "The GPU is too old"),
            (TWO, DeviceName("cuda", 7), "no GPU of that number"),
            (OLD, DeviceName("cuda"), "The GPU is too old"),
            ("error\t0\tdlopen: none\n", DeviceName("cuda"), "There is no driver"),
        ],
    )
    def test_devices_that_are_not_found(self, lines, name, what):
        with pytest.raises(RuntimeUnavailable, match=what):
            find_device(name, GpuProviders(FakeProvider(lines)))

    @needs_provider
    def test_the_reason_is_listed(self):
        states = {state.kind: state for state in provider_states(GpuProviders(FakeProvider(OLD)))}
        assert set(states) == {"cuda", "webgpu"}
        assert states["cuda"].devices == ()
        assert "too old" in str(states["cuda"].problem)

    def test_a_driver_that_is_not_installed_is_found_out_without_the_library(self):
        def library():
            raise AssertionError("it was opened")

        for driver, expected in (("libno_such_driver.so.1", False), ("libc.so.6", True), (None, True)):
            own = CudaProvider(library, lambda gpu: {}, driver=driver)
            assert sys.platform != "linux" or own.has_driver() is expected

    def test_an_installation_without_the_library(self, tmp_path):
        def library():
            raise RuntimeUnavailable("There is none.")

        with pytest.raises(RuntimeUnavailable, match="There is none"):
            CudaProvider(library, lambda gpu: {}).gpus()


def test_kernels_of_the_installed_sources(tmp_path):
    try:
        library = INSTALLED_CUDA.path
    except RuntimeUnavailable:
        pytest.skip("this installation has no provider")
    assert (library.parent / SOURCES).is_dir()
    cubins = prebuilt(87, FakeNvrtc(), tmp_path)
    assert "quant_linear_cuda" in cubins
    assert cubins["quant_linear_cuda"].startswith(b"\x7fELF quant_linear_cuda.cu for 87")
    assert len(list(tmp_path.iterdir())) == len(cubins)
