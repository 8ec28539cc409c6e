"""NVIDIA's GPUs: their driver's errors, architectures, and kernels that NVIDIA's run-time compiler makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edge_rt.device.names import CUDA
from edge_rt.device.provider import GpuProvider, installed, installed_library
from edge_rt.errors import RuntimeUnavailable, VersionMismatch
from edge_rt.system.json_files import user_cache

if TYPE_CHECKING:
    # A process that opens no GPU does without them.
    from edge_rt.device.driver import DriverError, Gpu, SelfTest
    from edge_rt.device.kernels import Nvrtc

GPU_LIBRARY: Final = "libedge_rt_gpu.so"
"""The provider's library, beside that of edge-rt's operators."""
SOURCES: Final = "cuda"
"""Folder of the kernels' sources, in the same place."""
DRIVER: Final = "libcuda.so.1"
"""The library of NVIDIA's driver, as ``csrc/gpu/cuda/driver_library.cc`` opens it."""
CUDA_PROVIDER: Final = "CUDAExecutionProvider"
"""The provider for NVIDIA GPUs in ONNX Runtime's wheel ``onnxruntime-gpu``."""

CONTEXT_BYTES: Final = 512 << 20
"""CUDA's context, the kernels, recorded graphs, and what the driver rounds up. An estimate: what planners of other
projects leave free on a GPU (512 to 1024 MiB). Every plan counts it; where a process has one already, so much more
counts as free."""
PAGE_BYTES: Final = 2 << 20
"""The driver gives whole pages (an H200, driver 580)."""
DRIVER_BYTES: Final = 128 << 20
"""Memory of the process for the driver's library and its staging. An estimate. Every plan for a GPU counts it, and once
the process has asked the driver anything, every plan."""

_NO_DEVICE: Final = 100
_NOT_PERMITTED: Final = 800
_DRIVER_MISMATCH: Final = 803

KernelMaker = Callable[["Gpu"], Mapping[str, bytes]]
"""Returns the kernels of a GPU as name of a source -> cubin; see ``kernels_of``."""


class CudaProvider(GpuProvider):
    """The library for NVIDIA's driver. Tests have one whose driver is emulated.

    Args:
        kernels: makes the kernels.
        are_made: whether that takes no time, because they were made before; None: it never does.
        portable: ONNX Runtime's own provider for the same GPUs, which portable packages run on.
    """

    kind = CUDA
    whose = "NVIDIA GPUs"
    context_bytes = CONTEXT_BYTES
    host_bytes = DRIVER_BYTES
    page_bytes = PAGE_BYTES
    is_asked_always = True
    device_files = ("nvidiactl", "nvidia[0-9]*", "nvidia-uvm", "nvmap", "nvhost-gpu", "nvgpu/igpu0/*")
    file_group = "video or render on Jetson"

    def __init__(
        self,
        library: Callable[[], Path],
        kernels: KernelMaker,
        are_made: Callable[[Gpu], bool] | None = None,
        portable: str = CUDA_PROVIDER,
        driver: str | None = None,
    ) -> None:
        super().__init__(library, driver)
        self.portable = portable
        self._make_kernels, self._are_made = kernels, are_made

    def kernels(self, gpu: Gpu) -> Mapping[str, bytes]:
        """Return the kernels of a GPU, by the names of their sources."""
        return self._make_kernels(gpu)

    def are_made(self, gpu: Gpu) -> bool:
        """Return whether its kernels were compiled before."""
        return self.is_ready(gpu.number) or self._are_made is None or self._are_made(gpu)

    def refused(self, gpu: Gpu) -> RuntimeUnavailable | None:
        """Return why kernels cannot run on a GPU: its architecture is too old."""
        from edge_rt.device.kernels import check_compute

        try:
            check_compute(compute_of(gpu))
        except RuntimeUnavailable as error:
            return error
        return None

    def self_test(self, gpu: Gpu) -> SelfTest:
        """Return that it has the CPU's bits, as all architectures have that kernels run on."""
        from edge_rt.device.driver import SelfTest

        del gpu
        return SelfTest(has_cpu_bits=True)

    def facts(self, gpu: Gpu) -> dict[str, Any]:
        """Return what measurements on a GPU depend on besides its name, as a JSON object."""
        return {
            "architecture": f"sm_{compute_of(gpu)}",
            "memory_bytes": gpu.total_bytes,
            "shares_memory": gpu.is_unified,
            "driver": cuda_version(gpu),
        }

    def driver_error(self, answer: DriverError | None) -> RuntimeUnavailable:
        """Return the error for what the driver has answered in place of its GPUs."""
        return driver_error(answer, self.closed_files())


def driver_error(answer: DriverError | None, closed: tuple[Path, ...] = ()) -> RuntimeUnavailable:
    """Return the error for what NVIDIA's driver has answered.

    Args:
        answer: None: it counts no GPUs.
        closed: files of GPUs that this process may not use.
    """
    from edge_rt.device.driver import USE_THE_CPU, not_permitted

    code, sentence = (_NO_DEVICE, "the driver counts 0 GPUs") if answer is None else (answer.code, answer.sentence)
    numbers = f"{sentence.rstrip('.')}."
    if code == 0 and sentence.startswith(("dlsym", "cuDriverGetVersion")):
        return VersionMismatch("The driver for NVIDIA GPUs is too old.", numbers, f"Update the driver, {USE_THE_CPU}.")
    if code == 0:
        return RuntimeUnavailable(
            "There is no driver for NVIDIA GPUs.", numbers, f"Install NVIDIA's driver, {USE_THE_CPU}."
        )
    if closed or code == _NOT_PERMITTED:
        return not_permitted(numbers[:-1], closed, CudaProvider.file_group)
    if code == _DRIVER_MISMATCH:
        return VersionMismatch(
            "The driver for NVIDIA GPUs does not fit its kernel module.",
            numbers,
            "Restart the machine: the driver was updated since it was started.",
        )
    if code == _NO_DEVICE:
        return RuntimeUnavailable("There is no NVIDIA GPU on this machine.", numbers, "Use the device cpu.")
    return RuntimeUnavailable(
        "The driver for NVIDIA GPUs failed.", numbers, f"Check it with nvidia-smi, {USE_THE_CPU}."
    )


def compute_of(gpu: Gpu) -> int:
    """Return 10 * major + minor of a GPU's architecture."""
    return int(gpu.more.get("compute", 0))


def cuda_version(gpu: Gpu) -> str:
    """Return the version of CUDA that a GPU's driver is of, as people write it, such as ``"12.4"``."""
    return f"{int(gpu.driver) // 1000}.{int(gpu.driver) % 1000 // 10}"


def kernels_of(gpu: Gpu) -> dict[str, bytes]:
    """Return the installed kernels for a GPU, compiled by NVIDIA's run-time compiler unless they were before."""
    from edge_rt.device.kernels import nvrtc_for

    return prebuilt(compute_of(gpu), nvrtc_for(int(gpu.driver)))


def are_compiled(gpu: Gpu) -> bool:
    """Return whether this user's cache holds the installed kernels for a GPU."""
    from edge_rt.device.kernels import kernel_paths, nvrtc_for

    nvrtc = nvrtc_for(int(gpu.driver))
    kept = kernel_paths(nvrtc, compute_of(gpu), sources=installed(SOURCES), cache=kernel_cache())
    return all(path.is_file() for path in kept.values())


def prebuilt(compute: int, nvrtc: Nvrtc, cache: Path | None = None) -> dict[str, bytes]:
    """Return the installed kernels for an architecture, compiled unless they were before.

    Args:
        compute: 10 * major + minor of the architecture.
        cache: folder of compiled kernels; None: this user's.
    """
    from edge_rt.device.kernels import compiled_kernels

    return compiled_kernels(nvrtc, compute, sources=installed(SOURCES), cache=cache or kernel_cache())


def compiler_here(provider: GpuProvider) -> Nvrtc:
    """Return the compiler that kernels on this machine are made with; without a driver the first that is installed."""
    from edge_rt.device.kernels import any_nvrtc, nvrtc_for

    try:
        listed = provider.listed()
    except RuntimeUnavailable:
        return any_nvrtc()
    return nvrtc_for(int(listed[0].driver))


def kernel_cache() -> Path:
    """Return the folder of this user's compiled kernels."""
    return user_cache("kernels")


INSTALLED_CUDA: Final = CudaProvider(
    lambda: installed_library(GPU_LIBRARY, CudaProvider.whose), kernels_of, are_compiled, driver=DRIVER
)
"""That of the installed package."""
