"""A library of edge-rt's own execution provider, as Python calls it: which GPUs there are, and their kernels."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edge_rt.device.names import DeviceName
from edge_rt.errors import RuntimeUnavailable, VersionMismatch

ABI_VERSION: Final = 5
"""Number of the calls below, as ``kAbiVersion`` in ``csrc/gpu/provider.cc``."""
USE_THE_CPU: Final = "or use the device cpu"


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine, as its driver tells of it.

    Attributes:
        kind: that of its name: whose driver it is.
        driver: the driver's version, in its own words.
        is_unified: whether it shares the machine's memory.
        more: what else the driver tells of it, by name.
        refusal: why kernels cannot run there; empty: they can.
    """

    kind: str
    number: int
    name: str
    driver: str
    total_bytes: int
    is_unified: bool
    more: Mapping[str, str] = field(default_factory=dict, hash=False)
    refusal: str = ""

    @property
    def device_name(self) -> DeviceName:
        """How it is asked for."""
        return DeviceName(self.kind, self.number)

    @property
    def imports(self) -> bool:
        """Whether it reads weights where their file is mapped, unless its driver refuses that."""
        return self.is_unified and self.more.get("imports") == "1"

    @property
    def is_software(self) -> bool:
        """Whether it is a program on the CPU."""
        return self.more.get("type") == "software"


@dataclass(frozen=True)
class SelfTest:
    """Whether a GPU computes as the CPU does, to the last bit.

    Attributes:
        has_cpu_bits: whether all results are the CPU's; if not, those of one GPU are the same whatever is computed
            beside them, and other devices have others.
        operations: name of an operation -> ``"as it is"``, ``"mended"`` or ``"differs"``.
    """

    has_cpu_bits: bool
    operations: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class DriverError:
    """What a driver has answered in place of its GPUs.

    Attributes:
        code: the driver's; 0: it could not be loaded.
    """

    code: int
    sentence: str


class GpuLibrary:
    """The opened library.

    Args:
        whose: such as ``"NVIDIA GPUs"``, for errors.
    """

    def __init__(self, path: Path, whose: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(str(path))
            version = self._library.edge_rt_gpu_abi_version()
        except (OSError, AttributeError) as error:
            raise RuntimeUnavailable(
                f"The provider for {whose} cannot be loaded.", f"{error}.", f"Install edge-rt again, {USE_THE_CPU}."
            ) from error
        if version != ABI_VERSION:
            raise VersionMismatch(
                f"The provider for {whose} belongs to another version of edge-rt.",
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
        self._library.edge_rt_gpu_keep_compiled.argtypes = (ctypes.c_int, ctypes.c_char_p)
        self._library.edge_rt_gpu_keep_compiled.restype = None
        self._library.edge_rt_gpu_self_test.argtypes = (ctypes.c_int,)
        self._library.edge_rt_gpu_self_test.restype = ctypes.c_char_p
        size = ctypes.POINTER(ctypes.c_size_t)
        self._library.edge_rt_gpu_memory.argtypes = (ctypes.c_int, size, size)
        numbers = ctypes.c_void_p
        self._library.edge_rt_gpu_copy.argtypes = (ctypes.c_int, ctypes.c_size_t, numbers, numbers, numbers)
        self._library.edge_rt_gpu_copy.restype = ctypes.c_char_p
        _declare_weights(self._library)

    def describe(self) -> str:
        """Ask the driver which GPUs there are, for ``read_gpus``; none is opened."""
        return str(self._library.edge_rt_gpu_describe().decode(errors="replace"))

    def set_kernels(self, number: int, images: Mapping[str, bytes]) -> None:
        """Hand over a GPU's kernels, before a session is opened there.

        Args:
            images: name -> what was compiled of it.
        """
        for name, image in images.items():
            self._library.edge_rt_gpu_set_kernels(number, name.encode(), image, len(image))

    def keep_compiled(self, number: int, path: Path) -> None:
        """Name a file for what a GPU's driver makes of its kernels, before it is opened; its folder is there."""
        self._library.edge_rt_gpu_keep_compiled(number, os.fsencode(path))

    def free_bytes(self, number: int) -> int:
        """Return how much memory of a GPU this process may still take at present; this opens the GPU."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if code := self._library.edge_rt_gpu_memory(number, ctypes.byref(free), ctypes.byref(total)):
            raise RuntimeUnavailable(
                "The GPU cannot be opened.", f"GPU {number}, error {code} of the driver.", "Check its driver."
            )
        return free.value

    def copy(self, number: int, pieces: int, to: int, source: int, sizes: int) -> str:
        """Copy pieces of a GPU's memory to other places of it; none is written that another one is of.

        Args:
            pieces: how many.
            to: where in this process so many uint64 lie, the addresses to copy to; likewise those to copy from
                (``source``), and bytes (``sizes``).

        Returns:
            What failed, in the words of the provider; empty: nothing did.
        """
        return str(self._library.edge_rt_gpu_copy(number, pieces, to, source, sizes).decode(errors="replace"))

    def self_test(self, number: int) -> SelfTest:
        """Return what a GPU's operations make, whose kernels were handed over; this opens the GPU."""
        found = read_self_test(self._library.edge_rt_gpu_self_test(number).decode(errors="replace"))
        if isinstance(found, DriverError):
            raise RuntimeUnavailable(
                "The GPU cannot be tested.", f"GPU {number}: {found.sentence.rstrip('.')}.", "Check its driver."
            )
        return found

    def lay_weights(self, number: int, path: Path, size: int, parts: Sequence[tuple[int, int]]) -> LaidWeights:
        """Lay tensors of a file into a GPU's memory, or find them there; this opens the GPU.

        Args:
            size: bytes of the file.
            parts: offset and bytes of each tensor.

        Raises:
            WeightsRefusedError: the file cannot be read, or the GPU fails, or has no memory for them.
        """
        flat = (ctypes.c_uint64 * (2 * len(parts)))(*(value for part in parts for value in part))
        handle = self._library.edge_rt_gpu_weights_open(number, os.fsencode(path), size, flat, len(parts))
        if not handle:
            raise WeightsRefusedError(self._library.edge_rt_gpu_weights_error().decode(errors="replace"))
        return LaidWeights(self._library, handle)


def _declare_weights(library: ctypes.CDLL) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    opens, offers = library.edge_rt_gpu_weights_open, library.edge_rt_gpu_weights_offer
    opens.argtypes = (ctypes.c_int, ctypes.c_char_p, number, ctypes.POINTER(number), ctypes.c_size_t)
    opens.restype = pointer
    library.edge_rt_gpu_weights_error.restype = ctypes.c_char_p
    sizes = (ctypes.POINTER(ctypes.c_int64), ctypes.c_size_t)
    offers.argtypes = (pointer, ctypes.c_char_p, number, number, ctypes.c_int, *sizes)
    library.edge_rt_gpu_weights_bytes.argtypes = (pointer, ctypes.c_int)
    library.edge_rt_gpu_weights_bytes.restype = number
    library.edge_rt_gpu_weights_close.argtypes = (pointer,)
    library.edge_rt_gpu_weights_close.restype = None


class WeightsRefusedError(Exception):
    """Weights cannot be laid into a GPU's memory; the text is the library's."""


class LaidWeights:
    """Tensors of a file that lie in a GPU's memory as long as this object lives."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library, self._handle = library, handle
        weakref.finalize(self, library.edge_rt_gpu_weights_close, handle).atexit = False

    def offer(self, name: str, part: tuple[int, int], kind: int, shape: Sequence[int]) -> None:
        """Name a tensor for the session that this thread opens next.

        Args:
            part: its offset and bytes.
            kind: its type, as ONNX numbers them.
        """
        dims = (ctypes.c_int64 * len(shape))(*shape)
        if not self._library.edge_rt_gpu_weights_offer(self._handle, name.encode(), *part, kind, dims, len(shape)):
            raise MemoryError

    def withdraw(self) -> None:
        """Forget what was named."""
        self._library.edge_rt_gpu_weights_offer(None, b"", 0, 0, 0, None, 0)

    @property
    def mapped_bytes(self) -> int:
        """Bytes of all tensors of the file that the GPU reads where the file is mapped, for whatever model."""
        return int(self._library.edge_rt_gpu_weights_bytes(self._handle, 1))

    @property
    def copied_bytes(self) -> int:
        """Bytes of those that were copied to its memory."""
        return int(self._library.edge_rt_gpu_weights_bytes(self._handle, 0))


def read_gpus(lines: str, kind: str) -> tuple[Gpu, ...] | DriverError:
    """Read what ``edge_rt_gpu_describe`` says.

    Args:
        kind: the GPUs' kind.
    """
    driver, gpus = "", []
    for what, *fields in (line.split("\t") for line in lines.splitlines()):
        if what == "error":
            return DriverError(int(fields[0]), "\t".join(fields[1:]))
        if what == "driver":
            driver = fields[0]
        elif what == "gpu":
            number, total, is_unified = map(int, fields[:3])
            more = dict(text.split("=", 1) for text in fields[4:])
            own, refusal = more.pop("driver", driver), more.pop("refusal", "")
            gpus.append(Gpu(kind, number, fields[3], own, total, bool(is_unified), more, refusal))
    return tuple(gpus)


def read_self_test(lines: str) -> SelfTest | DriverError:
    """Read what ``edge_rt_gpu_self_test`` says."""
    has_cpu_bits, operations = False, {}
    for what, *fields in (line.split("\t") for line in lines.splitlines()):
        if what == "error":
            return DriverError(int(fields[0]), "\t".join(fields[1:]))
        if what == "bits":
            has_cpu_bits = fields[0] == "cpu"
        elif what == "operation":
            operations[fields[0]] = fields[1]
    return SelfTest(has_cpu_bits, operations)


def closed_files(
    patterns: Sequence[str], folder: Path = Path("/dev"), may_use: Callable[[Path], bool] | None = None
) -> tuple[Path, ...]:
    """Return the files of GPUs that this process may not read and write, in order.

    Args:
        patterns: of their names in the folder.
        may_use: whether this process may read and write a file; None: asks the system.
    """
    is_open = may_use or (lambda path: os.access(path, os.R_OK | os.W_OK))
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    return tuple(sorted(path for path in found if not is_open(path)))


def not_permitted(why: str, files: Sequence[Path], group: str) -> RuntimeUnavailable:
    """Return the error for GPUs whose files this user may not use.

    Args:
        why: what the driver said, without a stop.
        group: the group that usually owns the files.
    """
    named = ", ".join(map(str, files[:4])) or "its files"
    return RuntimeUnavailable(
        "This user may not use the GPU.",
        f"{why}; no permission to read and write {named}.",
        f"Add the user to the group that owns the files ({group}), and log in again.",
    )
