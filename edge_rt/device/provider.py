"""edge-rt's own execution provider for NVIDIA GPUs: where its library is, and GPUs made ready to be opened."""

from __future__ import annotations

import ctypes
import importlib.resources
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge_rt.errors import RuntimeUnavailable
from edge_rt.system.json_files import user_cache

if TYPE_CHECKING:
    # A process that opens no GPU does without them.
    from edge_rt.device.driver import Gpu, GpuLibrary, GpuReport
    from edge_rt.device.kernels import Nvrtc

GPU_LIBRARY: Final = "libedge_rt_gpu.so"
"""Its file, beside the library of edge-rt's operators."""
SOURCES: Final = "cuda"
"""Folder of the kernels' sources, in the same place."""

DRIVER: Final = "libcuda.so.1"
"""The library of NVIDIA's driver, as ``csrc/gpu/cuda/driver_library.cc`` opens it."""

CUDA_PROVIDER: Final = "CUDAExecutionProvider"
"""The provider for NVIDIA GPUs in ONNX Runtime's wheel ``onnxruntime-gpu``."""

KernelMaker = Callable[["Gpu", "GpuReport"], Mapping[str, bytes]]
"""Returns the kernels of a GPU as name of a source -> cubin; see ``kernels_of``."""


class GpuProvider:
    """A library of the provider, and what makes its kernels. Tests have one whose driver is emulated.

    Args:
        are_made: whether that takes no time, because they were made before; None: it never does.
        portable: ONNX Runtime's own provider for the same GPUs, which portable packages run on.
        driver: name of the driver's library; None: the provider's library has one, which is emulated.
    """

    def __init__(
        self,
        library: Callable[[], Path],
        kernels: KernelMaker,
        are_made: Callable[[Gpu, GpuReport], bool] | None = None,
        portable: str = CUDA_PROVIDER,
        driver: str | None = None,
    ) -> None:
        self.portable = portable
        self._driver = driver
        self._find, self._make_kernels, self._are_made = library, kernels, are_made
        # Kernels take a minute or more to compile: who only asks which GPUs there are does not wait for them.
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._library: GpuLibrary | None = None
        self._ready: set[int] = set()
        self._was_asked = False

    @property
    def path(self) -> Path:
        """The path of the library."""
        return self._find()

    @property
    def library(self) -> GpuLibrary:
        """The opened library."""
        from edge_rt.device.driver import GpuLibrary

        path = self.path
        with self._lock:
            if self._library is None:
                self._library = GpuLibrary(path)
            self._was_asked = True
            return self._library

    def has_driver(self) -> bool:
        """Return whether the driver can be asked, without opening the provider's library, which takes memory."""
        if self._driver is None:
            return True
        try:
            ctypes.CDLL(self._driver)
        except OSError:
            return False
        self._was_asked = True
        return True

    def report(self) -> GpuReport:
        """Ask the driver which GPUs there are."""
        from edge_rt.device.kernels import check_compute

        report = self.library.report()
        if all(not gpu.can_compute for gpu in report.gpus):
            check_compute(report.gpus[0].compute)
        return report

    def free_bytes(self, number: int) -> int:
        """Return how much memory of a GPU nobody uses at present; this opens the GPU for a moment."""
        return self.library.free_bytes(number)

    @property
    def was_asked(self) -> bool:
        """Whether this process has asked the driver anything, which takes memory that stays."""
        return self._was_asked

    def is_ready(self, number: int) -> bool:
        """Return whether a GPU was made ready in this process, as every load does before it opens one for good."""
        with self._lock:
            return number in self._ready

    @property
    def has_opened(self) -> bool:
        """Whether any GPU was made ready in this process."""
        with self._lock:
            return bool(self._ready)

    def make_ready(self, number: int, on_compile: Callable[[], None] | None = None) -> None:
        """Hand over the kernels of a GPU, which are compiled when it is used for the first time.

        Args:
            on_compile: called before they are compiled, which takes a minute or more.
        """
        from edge_rt.device.kernels import check_compute

        library = self.library
        with self._making:
            if self.is_ready(number):
                return
            report = library.report()
            gpu = report.gpu(number)
            check_compute(gpu.compute)
            if on_compile is not None and self._are_made is not None and not self._are_made(gpu, report):
                on_compile()
            library.set_kernels(number, self._make_kernels(gpu, report))
            with self._lock:
                self._ready.add(number)


def kernels_of(gpu: Gpu, report: GpuReport) -> dict[str, bytes]:
    """Return the installed kernels for a GPU, compiled by NVIDIA's run-time compiler unless they were before."""
    from edge_rt.device.kernels import nvrtc_for

    return prebuilt(gpu.compute, nvrtc_for(report.driver_version))


def are_compiled(gpu: Gpu, report: GpuReport) -> bool:
    """Return whether this user's cache holds the installed kernels for a GPU."""
    from edge_rt.device.kernels import kernel_paths, nvrtc_for

    nvrtc = nvrtc_for(report.driver_version)
    kept = kernel_paths(nvrtc, gpu.compute, sources=_installed(SOURCES), cache=kernel_cache())
    return all(path.is_file() for path in kept.values())


def prebuilt(compute: int, nvrtc: Nvrtc, cache: Path | None = None) -> dict[str, bytes]:
    """Return the installed kernels for an architecture, compiled unless they were before.

    Args:
        compute: 10 * major + minor of the architecture.
        cache: folder of compiled kernels; None: this user's.
    """
    from edge_rt.device.kernels import compiled_kernels

    return compiled_kernels(nvrtc, compute, sources=_installed(SOURCES), cache=cache or kernel_cache())


def compiler_here(provider: GpuProvider | None = None) -> Nvrtc:
    """Return the compiler that kernels on this machine are made with; without a driver the first that is installed.

    Args:
        provider: the provider; None: the installed one.
    """
    from edge_rt.device.kernels import any_nvrtc, nvrtc_for

    try:
        report = (provider or INSTALLED).library.report()
    except RuntimeUnavailable:
        return any_nvrtc()
    return nvrtc_for(report.driver_version)


def kernel_cache() -> Path:
    """Return the folder of this user's compiled kernels."""
    return user_cache("kernels")


def _installed(name: str) -> Path:
    """Return a place in the installed package; nothing else may name the code that runs."""
    return Path(str(importlib.resources.files("edge_rt") / "native" / name))


def _installed_library() -> Path:
    path = _installed(GPU_LIBRARY)
    if not path.is_file():
        raise RuntimeUnavailable(
            "This installation of edge-rt has no provider for NVIDIA GPUs.",
            f"{GPU_LIBRARY} is not beside the library of its operators.",
            "Use --device cpu, or with a portable package --device webgpu.",
        )
    return path


INSTALLED: Final = GpuProvider(_installed_library, kernels_of, are_compiled, driver=DRIVER)
"""The provider of the installed package."""
