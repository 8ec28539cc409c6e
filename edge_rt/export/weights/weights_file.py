"""The position of every tensor in ``weights.bin``, and writing it there piece by piece."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from edge_rt.errors import StorageError
from edge_rt.system.byte_size import human_bytes

PAGE_BYTES: Final = 4096
SMALL_ALIGNMENT_BYTES: Final = 64
_READ_BYTES: Final = 8 << 20
PAGE_ALIGNED_FROM_BYTES: Final = 64 << 10


@dataclass(frozen=True)
class Slot:
    """Position of one tensor.

    Attributes:
        shape: dimensions, outermost first; the first one is the axis of ``WeightsFile.write``'s rows.
        offset: bytes from the start of ``weights.bin``.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.row_bytes * self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first axis."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize


@dataclass
class WeightsLayout:
    """Slots in the order they were added; large ones begin at a page, small ones at a cache line."""

    slots: dict[str, Slot] = field(default_factory=dict)
    size: int = 0
    parts: dict[str, Slot] = field(default_factory=dict)
    """Stretches of slots that are written one by one, by names of their own."""

    def add(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Slot:
        """Place a tensor after the last one and return its slot."""
        assert name not in self.slots, name
        slot = Slot(name, np.dtype(dtype), shape, 0)
        alignment = PAGE_BYTES if slot.nbytes >= PAGE_ALIGNED_FROM_BYTES else SMALL_ALIGNMENT_BYTES
        slot = Slot(name, slot.dtype, shape, -(-self.size // alignment) * alignment)
        self.slots[name] = slot
        self.size = slot.offset + slot.nbytes
        return slot

    def add_part(self, slot: Slot, name: str, begin: int, nbytes: int) -> Slot:
        """Return a stretch of a slot of bytes, from its byte ``begin``, as a slot of its own."""
        assert slot.dtype == np.uint8, slot
        assert 0 <= begin <= begin + nbytes <= slot.nbytes, (slot, begin, nbytes)
        part = Slot(f"{slot.name}.{name}", slot.dtype, (nbytes,), slot.offset + begin)
        self.parts[part.name] = part
        return part


class WeightsFile:
    """Writes tensors of a layout in any order, the rows of each from the first to the last; gaps are zero.

    The whole file is allocated first, so that a full disk is found before the work and not after it.

    Args:
        is_new: False to write further tensors to a file that this class has created.

    Attributes:
        checksums: CRC-32 of what was written, by slot.
    """

    def __init__(self, path: Path, layout: WeightsLayout, *, is_new: bool = True) -> None:
        self._path = path
        self._layout = layout
        self._is_new = is_new
        self.checksums: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            self._stream = self._path.open("xb" if self._is_new else "r+b", buffering=0)
        except OSError as error:
            raise self._failure(error) from error
        if not self._is_new:
            return self
        try:
            self._allocate()
            self._stream.truncate(self._layout.size)
        except OSError as error:
            self._stream.close()
            raise self._failure(error) from error
        return self

    def _allocate(self) -> None:
        if not hasattr(os, "posix_fallocate") or not self._layout.size:
            return
        try:
            os.posix_fallocate(self._stream.fileno(), 0, self._layout.size)
        except OSError as error:
            # Some file systems cannot allocate; there a full disk is found while writing.
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def write(self, slot: Slot, first_row: int, rows: npt.NDArray[Any]) -> None:
        """Write rows of a tensor; their dtype and trailing shape must be the slot's."""
        assert rows.dtype == slot.dtype, (slot.name, rows.dtype)
        assert rows.shape[1:] == slot.shape[1:], (slot.name, rows.shape)
        assert first_row + rows.shape[0] <= slot.shape[0], slot.name
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        self.checksums[slot.name] = zlib.crc32(data, self.checksums.get(slot.name, 0))
        try:
            self._stream.seek(slot.offset + first_row * slot.row_bytes)
            while data:
                data = data[self._stream.write(data) :]
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> StorageError:
        try:
            free = f"{human_bytes(shutil.disk_usage(self._path.parent).free)} are free"
        except OSError:
            free = "the free space is unknown"
        return StorageError(
            "The weights could not be written.",
            f"{error.strerror}: {human_bytes(self._layout.size)} are needed, {free}.",
            "Free some space or choose another disk.",
        )


def verify_checksums(path: Path, layout: WeightsLayout, checksums: Mapping[str, int]) -> None:
    """Read tensors back and compare them with the checksums of what was written."""
    for name, expected in checksums.items():
        slot, found = layout.slots.get(name) or layout.parts[name], 0
        stored = np.memmap(path, np.uint8, "r", offset=slot.offset, shape=(slot.nbytes,))
        for begin in range(0, slot.nbytes, _READ_BYTES):
            found = zlib.crc32(stored[begin : begin + _READ_BYTES].data, found)
        if found != expected:
            raise StorageError(
                "The disk gives other weights than were written to it, so they were not published.",
                f"'{name}', {slot.nbytes} bytes at byte {slot.offset}: checksum {found:#x} instead of {expected:#x}.",
                "Export again, and check the disk if it happens once more.",
            )
