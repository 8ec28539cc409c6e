"""Weights mapped from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.errors import StorageError, is_out_of_memory, out_of_memory


def map_bytes(path: Path, offset: int = 0, length: int | None = None) -> npt.NDArray[Any]:
    """Map a file.

    Args:
        path: the file.
        offset: first byte that is mapped.
        length: bytes that are mapped; None: up to the end.

    Returns:
        uint8 ``[length]``, read-only. Nothing is read until it is used.

    Raises:
        StorageError: the file cannot be opened or mapped, or is shorter.
        MemoryBudgetExceeded: there is no room to map it.
    """
    try:
        return np.memmap(path, np.uint8, "r", offset, None if length is None else (length,))
    except (OSError, ValueError) as error:
        if is_out_of_memory(error):
            raise out_of_memory(error) from error
        raise StorageError(f"{path} cannot be mapped.", f"{error}.", "Check the file, and the memory.") from error
