"""The library of edge-rt's own execution provider, as Python calls it: which GPUs there are, and their kernels."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from edge_rt.device.kernels import OLDEST_COMPUTE
from edge_rt.device.names import CUDA, DeviceName
from edge_rt.errors import RuntimeUnavailable, VersionMismatch

ABI_VERSION: Final = 2
"""Number of the calls below, as ``kAbiVersion`` in ``csrc/gpu/provider.cc``."""
_NO_DEVICE: Final = 100
_NOT_PERMITTED: Final = 800
_DRIVER_MISMATCH: Final = 803
_DEVICE_FILES: Final = ("nvidiactl", "nvidia[0-9]*", "nvidia-uvm", "nvmap", "nvhost-gpu", "nvgpu/igpu0/*")
_USE_THE_CPU: Final = "or use --device cpu"


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine.

    Attributes:
        compute: 10 * major + minor of its architecture.
        more: what else its driver tells of it, by name.
        refusal: why kernels cannot run there; empty: they can.
    """

    number: int
    name: str
    compute: int
    total_bytes: int
    is_integrated: bool
    more: Mapping[str, str] = field(default_factory=dict, compare=False)
    refusal: str = field(default="", compare=False)

    @property
    def can_compute(self) -> bool:
        """Whether its architecture is new enough for the kernels."""
        return self.compute >= OLDEST_COMPUTE

    @property
    def device_name(self) -> DeviceName:
        """How it is asked for."""
        return DeviceName(CUDA, self.number)


@dataclass(frozen=True)
class GpuReport:
    """What the driver says.

    Attributes:
        driver_version: 1000 * major + 10 * minor of the CUDA version that it is of.
    """

    driver_version: int
    gpus: tuple[Gpu, ...]

    @property
    def driver_text(self) -> str:
        """The version as people write it, such as ``"12.4"``."""
        return f"{self.driver_version // 1000}.{self.driver_version % 1000 // 10}"

    def facts(self, gpu: Gpu) -> dict[str, Any]:
        """Return what measurements on one of the GPUs depend on, besides its name, as a JSON object."""
        return {
            "architecture": f"sm_{gpu.compute}",
            "memory_bytes": gpu.total_bytes,
            "shares_memory": gpu.is_integrated,
            "driver": self.driver_text,
        }

    def gpu(self, number: int) -> Gpu:
        """Return a GPU."""
        for gpu in self.gpus:
            if gpu.number == number:
                return gpu
        raise RuntimeUnavailable(
            "There is no GPU of that number.",
            f"Got {number}; NVIDIA's driver found {len(self.gpus)}, counted from 0.",
            "Choose another: edge-rt doctor lists them.",
        )


class GpuLibrary:
    """The opened library."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
            version = self._library.edge_rt_gpu_abi_version()
        except (OSError, AttributeError) as error:
            raise RuntimeUnavailable(
                "The provider for NVIDIA GPUs cannot be loaded.", f"{error}.", f"Install edge-rt again, {_USE_THE_CPU}."
            ) from error
        if version != ABI_VERSION:
            raise VersionMismatch(
                "The provider for NVIDIA GPUs belongs to another version of edge-rt.",
                f"{path.name} has calls of version {version}, this edge-rt of {ABI_VERSION}.",
                "Install edge-rt again.",
            )
        self._library.edge_rt_gpu_describe.restype = ctypes.c_char_p
        self._library.edge_rt_gpu_set_kernels.argtypes = (
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
        )
        self._library.edge_rt_gpu_set_kernels.restype = None
        size = ctypes.POINTER(ctypes.c_size_t)
        self._library.edge_rt_gpu_memory.argtypes = (ctypes.c_int, size, size)

    def report(self) -> GpuReport:
        """Ask the driver which GPUs there are; none is opened."""
        return read_report(self._library.edge_rt_gpu_describe().decode(errors="replace"), closed_device_files())

    def set_kernels(self, number: int, cubins: Mapping[str, bytes]) -> None:
        """Hand over a GPU's kernels, before a session is opened there.

        Args:
            cubins: name of a source -> what was compiled of it.
        """
        for source, cubin in cubins.items():
            self._library.edge_rt_gpu_set_kernels(number, source.encode(), cubin, len(cubin))

    def free_bytes(self, number: int) -> int:
        """Return how much memory of a GPU nobody uses at present; this opens the GPU."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if code := self._library.edge_rt_gpu_memory(number, ctypes.byref(free), ctypes.byref(total)):
            raise RuntimeUnavailable(
                "The GPU cannot be opened.", f"GPU {number}, error {code} of the driver.", "Check it with nvidia-smi."
            )
        return free.value


def closed_device_files(folder: Path = Path("/dev"), may_use: Callable[[Path], bool] | None = None) -> tuple[Path, ...]:
    """Return the files of NVIDIA's GPUs that this process may not read and write, in order.

    Args:
        may_use: whether this process may read and write a file; None: asks the system.
    """
    is_open = may_use or (lambda path: os.access(path, os.R_OK | os.W_OK))
    found = {path for pattern in _DEVICE_FILES for path in folder.glob(pattern)}
    return tuple(sorted(path for path in found if not is_open(path)))


def read_report(lines: str, closed_files: Sequence[Path] = ()) -> GpuReport:
    """Read what ``edge_rt_gpu_describe`` says."""
    rows = [line.split("\t") for line in lines.splitlines()]
    driver_version, gpus = 0, []
    for kind, *fields in rows:
        if kind == "error":
            raise _driver_error(int(fields[0]), "\t".join(fields[1:]), closed_files)
        if kind == "driver":
            driver_version = int(fields[0])
        elif kind == "gpu":
            gpus.append(_read_gpu(fields))
    if not gpus:
        raise _driver_error(_NO_DEVICE, "the driver counts 0 GPUs", closed_files)
    return GpuReport(driver_version, tuple(gpus))


def _read_gpu(fields: Sequence[str]) -> Gpu:
    """Read a GPU's line."""
    number, total, is_integrated = map(int, fields[:3])
    more = dict(text.split("=", 1) for text in fields[4:])
    refusal = more.pop("refusal", "")
    return Gpu(number, fields[3], int(more.get("compute", 0)), total, bool(is_integrated), more, refusal)


def _driver_error(code: int, sentence: str, closed_files: Sequence[Path]) -> RuntimeUnavailable:
    """Return the error for what the driver has answered.

    Args:
        code: the driver's; 0: it could not be loaded.
    """
    numbers = f"{sentence.rstrip('.')}."
    if code == 0 and sentence.startswith(("dlsym", "cuDriverGetVersion")):
        return VersionMismatch("The driver for NVIDIA GPUs is too old.", numbers, f"Update the driver, {_USE_THE_CPU}.")
    if code == 0:
        return RuntimeUnavailable(
            "There is no driver for NVIDIA GPUs.", numbers, f"Install NVIDIA's driver, {_USE_THE_CPU}."
        )
    if closed_files or code == _NOT_PERMITTED:
        files = ", ".join(map(str, closed_files[:4])) or "its files"
        return RuntimeUnavailable(
            "This user may not use the GPU.",
            f"{numbers[:-1]}; no permission to read and write {files}.",
            "Add the user to the group that owns the files (video or render on Jetson), and log in again.",
        )
    if code == _DRIVER_MISMATCH:
        return VersionMismatch(
            "The driver for NVIDIA GPUs does not fit its kernel module.",
            numbers,
            "Restart the machine: the driver was updated since it was started.",
        )
    if code == _NO_DEVICE:
        return RuntimeUnavailable("There is no NVIDIA GPU on this machine.", numbers, "Use --device cpu.")
    return RuntimeUnavailable(
        "The driver for NVIDIA GPUs failed.", numbers, f"Check it with nvidia-smi, {_USE_THE_CPU}."
    )
