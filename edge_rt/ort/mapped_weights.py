"""Files of weights, each mapped once for everything in this process that reads it: graphs on the CPU, heads that draft.

ONNX Runtime would map every tensor by itself, and once more for every graph that has it. Pages of a file are in memory
once, but count as resident for each mapping in which they were touched.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPackage
from edge_rt.ort.errors import of_system
from edge_rt.ort.expert_cache import ExpertCache, ReadAt
from edge_rt.ort.onnxruntime_import import ort
from edge_rt.ort.op_library import native_library
from edge_rt.ort.read_weights import read_tensors
from edge_rt.package.layer_sizes import is_rotation
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import Package
from edge_rt.system.process_memory import advise

Array = npt.NDArray[Any]

_DTYPES: Final[Mapping[int, npt.DTypeLike]] = {1: np.float32, 2: np.uint8}
"""Types of the constants of native graphs: numbers of ONNX's ``TensorProto.DataType``."""


class MappedFile:
    """A file, mapped read-only; nothing is read until it is used, and it stays mapped as long as an array of it lives.

    Args:
        size: bytes that are mapped.

    Attributes:
        bytes: uint8 ``[size]``, read-only.
    """

    def __init__(self, path: Path, size: int) -> None:
        try:
            with path.open("rb") as file:
                self._mapped = _map(file.fileno(), size)
        except OSError as error:
            raise of_system(error.errno or 0) from error
        except ValueError as error:
            raise InvalidPackage(
                f"{path} is empty, or shorter than it was.", f"{error}.", "Export or pull the model again."
            ) from error
        self.bytes: Array = np.frombuffer(self._mapped, np.uint8)

    def array(self, offset: int, length: int, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a part of the file as an array that was stored there; ``ValueError`` if its shape is another one's."""
        return self.bytes[offset : offset + length].view(dtype).reshape(shape)

    def set_apart(self, offset: int, length: int) -> None:
        """Make the pages that lie in a part as a whole a mapping of their own, which is not read with those around it.

        The system maps pages around those that are read, and whole large folios, but within one mapping alone.
        """
        begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + length) // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end:
            advise(self._mapped, "MADV_RANDOM", begin, end - begin)

    def give_back(self, offset: int, length: int) -> None:
        """Let pages of a part be resident no longer; they are mapped again when they are read."""
        begin = offset // mmap.PAGESIZE * mmap.PAGESIZE
        advise(self._mapped, "MADV_DONTNEED", begin, offset + length - begin)


def _map(file: int, size: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(file, size, access=mmap.ACCESS_READ)
    # Some file systems of virtual machines and networks refuse shared mappings.
    return mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


_MOST_DIMENSIONS: Final = 8


class Constants(dict[str, Any]):
    """Constants of a graph, which keep what they are read from."""

    def __init__(self, weights: MappedWeights) -> None:
        super().__init__()
        self.weights = weights


class MappedWeights:
    """``weights.bin`` of a package, mapped once for all of its graphs on the CPU and the heads that draft for it.

    Attributes:
        experts: the cache that experts are read into; None: they are read where they are mapped.
    """

    def __init__(self, package: Package) -> None:
        self._tensors = package.tensors
        self._path = package.file(WEIGHTS_FILE)
        self.file = MappedFile(self._path, package.manifest.files[WEIGHTS_FILE].size)
        self.experts: ExpertCache | None = None
        self._read: Mapping[int, Array] = {}

    def use_positions(self, positions: int) -> None:
        """Keep the rows of rotations behind so many positions, which are not read, from being mapped with others."""
        for name, place in (item for tensors in self._tensors.values() for item in tensors.items()):
            rows = place.shape[0] if place.shape else 0
            if is_rotation(name) and 0 < positions < rows:
                used = place.length * positions // rows
                self.file.set_apart(place.offset + used, place.length - used)

    def cache_experts(
        self, pools: Sequence[tuple[int, int]], experts: Collection[str], positions: int, read: ReadAt | None
    ) -> None:
        """Let experts be read into a cache, and never where they are mapped; all other tensors are read now.

        Args:
            pools: bytes of a slot, and slots, for experts of each size.
            experts: names of the tensors that hold them.
            positions: of tables of rotations, that are read.
            read: takes the place of reading the file; None: the file is read.
        """
        data = self.file.bytes
        self.experts = ExpertCache(native_library(), self._path, data.ctypes.data, data.nbytes, pools, read)
        places = {}
        for name, place in (item for tensors in self._tensors.values() for item in tensors.items()):
            if name not in experts and place.length:
                rows = max(1, place.shape[0]) if place.shape else 1
                wanted = min(positions, rows) if is_rotation(name) else rows
                places[place.offset] = (place.length, place.length * wanted // rows)
        self._read = read_tensors(self._path, data.nbytes, places)

    def constants(self, graph: str) -> Constants:
        """Return name -> ``onnxruntime.OrtValue`` of the constants of a native graph, which lie in the mapping.

        Those whose type, shape and bytes do not fit together are left to ONNX Runtime, which refuses the graph.
        """
        values = Constants(self)
        for name, (offset, length, kind, shape) in self._tensors[graph].items():
            dtype = _DTYPES.get(kind)
            if dtype is None or length == 0 or len(shape) > _MOST_DIMENSIONS:
                continue
            if math.prod(shape) * np.dtype(dtype).itemsize == length:
                values[name] = ort.OrtValue.ortvalue_from_numpy(self.array(offset, length, dtype, shape))
        return values

    def array(self, offset: int, length: int, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """Return a tensor: the copy that was read of it, else where it is mapped; read-only, of any shape and dtype.

        Args:
            offset: byte of the file where it begins.
            length: its bytes; ``ValueError`` if shape and dtype have others.
        """
        read = self._read.get(offset)
        if read is None or read.nbytes != length:
            return self.file.array(offset, length, dtype, shape)
        return read.view(dtype).reshape(shape)
