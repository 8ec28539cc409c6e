"""Tensors of a file of weights that are read into memory instead of being mapped.

Where the memory is short, the system drops pages of mapped files, and a pass would wait for them one by one. What every
pass reads is therefore copied where experts are read from a file; the copy also outlives whatever happens to the file.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPackage, StorageError
from edge_rt.ort.errors import of_system
from edge_rt.system.files import forget_read, read_at

Array = npt.NDArray[Any]
_PIECE: Final = 16 << 20
_PAGE: Final = 4096


def read_tensors(path: Path, size: int, places: Mapping[int, tuple[int, int]]) -> dict[int, Array]:
    """Read tensors into one block of memory, whose pages that nothing is read into take none.

    Args:
        size: bytes of the file, which all tensors together do not exceed.
        places: byte of the file where a tensor begins -> its bytes, and how many of them, the first ones, are read.

    Returns:
        Byte of the file -> uint8, read-only.

    Raises:
        InvalidPackage: the tensors are larger than the file.
        StorageError: it cannot be read, or is shorter than it was.
    """
    begins, at = {}, 0
    for offset in sorted(places):
        begins[offset] = at
        at += -(-places[offset][0] // _PAGE) * _PAGE
    if sum(length for length, _ in places.values()) > size:
        raise InvalidPackage(
            f"{path} holds tensors that lie over one another.",
            f"They have more than the {size} bytes of the file.",
            "Export or pull the model again.",
        )
    memory = mmap.mmap(-1, max(at, 1))
    try:
        with path.open("rb", buffering=0) as file, memoryview(memory) as view:
            for offset, begin in begins.items():
                wanted = places[offset][1]
                for done in range(0, wanted, _PIECE):
                    part = view[begin + done : begin + min(done + _PIECE, wanted)]
                    _fill(file.fileno(), part, offset + done, path)
    except OSError as error:
        raise of_system(error.errno or errno.EIO) from error
    whole = np.frombuffer(memory, np.uint8)
    whole.flags.writeable = False
    return {offset: whole[begin : begin + places[offset][0]] for offset, begin in begins.items()}


def _fill(file: int, part: memoryview, offset: int, path: Path) -> None:
    while part:
        got = read_at(file, part, offset)
        if not got:
            raise StorageError(
                f"{path} is shorter than it was.", f"It ends at byte {offset}.", "Export or pull the model again."
            )
        # Otherwise it would be in memory twice.
        forget_read(file, offset, got)
        part, offset = part[got:], offset + got
