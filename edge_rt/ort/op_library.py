"""The library that implements the custom operators of the native op profile (``op_list.py``).

It is found inside the installed package and nowhere else: if a package, an option or the environment could
choose the path, it could choose the code that runs.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from edge_rt.errors import ConfigError, RuntimeUnavailable, VersionMismatch
from edge_rt.package.op_list import OPS, TILE_ROWS

ABI_VERSION: Final = 4
"""Version of the library's functions and of the operators; changes together with ``csrc/register.cc``."""


def library_file(platform: str = sys.platform) -> str:
    """Return the name of the library's file on a platform, named as ``sys.platform`` names it."""
    return {"win32": "edge_rt_ops.dll", "darwin": "libedge_rt_ops.dylib"}.get(platform, "libedge_rt_ops.so")


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Int32s = npt.NDArray[np.int32]

_POINTER: Final = ctypes.c_void_p


def _addresses(*arrays: npt.NDArray[Any]) -> list[int]:
    assert all(array.flags.c_contiguous for array in arrays)
    return [array.ctypes.data for array in arrays]


class NativeLibrary:
    """The library of operators, loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = ctypes.CDLL(str(path))
            version, names, select = (
                getattr(self._handle, f"edge_rt_{name}") for name in ("abi_version", "isa_names", "select_isa")
            )
        except (OSError, AttributeError) as error:
            raise RuntimeUnavailable("The native library cannot be loaded.", f"{error}.", _ADVICE) from error
        if (found := version()) != ABI_VERSION:
            raise VersionMismatch(
                "The native library belongs to another version of edge-rt.",
                f"{path} has interface {found}, {ABI_VERSION} is needed.",
                "Install edge-rt again.",
            )
        names.restype = ctypes.c_char_p
        select.argtypes = (ctypes.c_char_p,)
        self._select = select
        self.isa_names: tuple[str, ...] = tuple(names().decode().split(","))
        """Instruction sets that the library has kernels for and this CPU executes, best first."""

    def select(self, isa: str | None) -> str:
        """Set the instruction set of sessions that register the library from now on; None is the best one.

        Returns:
            Its name.
        """
        if isa == "" or self._select(None if isa is None else isa.encode()) != 0:
            raise ConfigError(
                "The instruction set cannot be used here.",
                f"Got {isa!r}, available are {', '.join(self.isa_names)}.",
                "Leave it out to use the best one.",
            )
        return isa or self.isa_names[0]

    def use_threads(self, threads: int) -> None:
        """Set how many threads compute in sessions of the library from now on, the caller included."""
        self.function("use_threads", None, ctypes.c_int)(threads)

    def function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """Return one of the library's other functions.

        Args:
            result: ctypes type of what it returns; None if it returns nothing.
        """
        found = getattr(self._handle, f"edge_rt_{name}")
        found.restype, found.argtypes = result, arguments
        return cast("Callable[..., Any]", found)

    def signatures(self) -> tuple[str, ...]:
        """Return the operators that the library holds, written as ``Op.signature`` writes them."""
        describe = self._handle.edge_rt_op_signatures
        describe.restype = ctypes.c_char_p
        return tuple(describe().decode().splitlines())

    def tile_bytes(self, form: str, in_features: int) -> int:
        """Return the bytes of a tile, 16 rows of a packed matrix.

        Args:
            form: format of the matrix, such as ``"w8"``.
        """
        count = self._handle.edge_rt_tile_bytes
        count.restype, count.argtypes = ctypes.c_int64, (ctypes.c_char_p, ctypes.c_int64)
        if (size := int(count(form.encode(), in_features))) < 0:
            raise ConfigError(
                "There are no such packed matrices.",
                f"Format {form!r}, {in_features} columns.",
                "Use a format of the native op profile, and whole groups of columns.",
            )
        return size

    def gather_rows(self, form: str, source: Bytes, shape: tuple[int, int], ids: Int32s, target: Bytes) -> None:
        """Copy rows of a packed matrix into tiles of their own; products with them have the same bits.

        Args:
            source: uint8, C-contiguous: the tiles of a matrix.
            ids: int32 ``[count]``, C-contiguous: the rows, in any order, also more than once.
            target: uint8, C-contiguous: receives ``ceil(count / 16)`` tiles; rows behind the last one become zero.
        """
        tile = self.tile_bytes(form, shape[1])
        wanted = [-(-rows // TILE_ROWS) * tile for rows in (shape[0], len(ids))]
        gather = self._handle.edge_rt_gather_rows
        gather.argtypes = (ctypes.c_char_p, *(ctypes.c_int64,) * 2, *(_POINTER,) * 2, ctypes.c_int64, _POINTER)
        fits = [source.nbytes, target.nbytes] == wanted and ids.itemsize == ctypes.sizeof(ctypes.c_int32)
        if not fits or gather(form.encode(), *shape, *_addresses(source, ids), len(ids), *_addresses(target)) != 0:
            raise ConfigError(
                "The rows of a packed matrix cannot be copied.",
                f"{len(ids)} of {shape[0]} rows in {source.nbytes} bytes, to {target.nbytes} bytes; a tile has {tile}.",
                "Row numbers must be below the number of rows, and the memory as large as their tiles.",
            )


# The command is at the end, so that it can be copied from the terminal.
_ADVICE: Final = (
    "Install a C++17 compiler and then edge-rt again, or export the model with ONNX Runtime's own operators: "
    "edge-rt export -m SOURCE --out DIR --profile portable"
)
_NOT_BUILT: Final = "edge-rt was installed without a C++ compiler and holds no native library."


def library_path(package: Traversable | None = None) -> Path | None:
    """Return where the library is, or None if there is none.

    Args:
        package: the one folder to look into; None is the installed package.
    """
    if package is not None:
        return _library_in(package)
    beside = _library_in(importlib.resources.files("edge_rt"))
    return beside if beside is not None else _library_in_site_packages()


def _library_in(package: Traversable) -> Path | None:
    found = package.joinpath("native").joinpath(library_file())
    # A package inside a zip file has no path that a library could be loaded from.
    return found if isinstance(found, Path) and found.is_file() else None


def _library_in_site_packages() -> Path | None:
    """Find the installed library if Python was started in a checkout and imports the sources from there."""
    # Not needed where edge-rt is installed, and slow to import.
    import importlib.metadata

    try:
        installed = importlib.metadata.distribution("edge-rt").locate_file("edge_rt")
    except importlib.metadata.PackageNotFoundError:
        return None
    return _library_in(Path(str(installed)))


def open_library(path: Path | None) -> NativeLibrary:
    """Load a library; None means that none was built."""
    if path is None:
        raise RuntimeUnavailable("The native operators are missing.", _NOT_BUILT, _ADVICE)
    library = NativeLibrary(path)
    missing = sorted({op.signature for op in OPS} - set(library.signatures()))
    if missing:
        raise VersionMismatch(
            "The native library belongs to another version of edge-rt.",
            f"{path} lacks {len(missing)} of {len(OPS)} operators, for example {missing[0].partition('(')[0]}.",
            "Install edge-rt again.",
        )
    return library


@functools.cache
def native_library() -> NativeLibrary:
    """Return the installed library, loaded once."""
    return open_library(library_path())


@dataclass(frozen=True)
class NativeStatus:
    """Whether native packages can run here: the library's path, or the sentences of the error."""

    library: str | None
    reason: str | None
    instruction_sets: tuple[str, ...] = ()

    @property
    def best(self) -> str | None:
        """The instruction set that sessions use unless another one is asked for."""
        return self.instruction_sets[0] if self.instruction_sets else None


def native_status(path: Path | None) -> NativeStatus:
    """Return whether the library at ``path`` (None: there is none) can be used; see ``library_path``."""
    if path is None:
        return NativeStatus(None, _NOT_BUILT)
    try:
        return NativeStatus(str(path), None, open_library(path).isa_names)
    except (RuntimeUnavailable, VersionMismatch) as error:
        return NativeStatus(str(path), f"{error.what} {error.numbers}")
