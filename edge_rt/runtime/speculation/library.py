"""The drafting core of the native library: its functions, and the handles they work on (``csrc/draft/draft_abi.h``)."""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence as Items
from ctypes import c_double, c_float, c_int, c_int32, c_int64, c_void_p
from typing import Any, Final

from edge_rt.errors import InferenceError, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.ort.op_library import NativeLibrary, native_library

VERSION: Final = 3
"""Version of these functions; changes together with ``csrc/draft/draft_abi.h``."""
MAX_GUESSES: Final = 64
"""Most guesses of a source for one cursor."""
_REFUSED: Final = -1
_NO_MEMORY: Final = -2

_IDS: Final = (c_void_p, c_int64)
_ROWS: Final = (c_void_p, c_void_p, c_void_p, c_int32)
_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "suffix_open": (c_void_p, (c_int32,)),
    "recycling_open": (c_void_p, (c_int32, c_int32, c_float, c_void_p)),
    "recycling_beside": (c_void_p, (c_void_p,)),
    "reference_open": (c_void_p, _IDS),
    "forest_open": (c_void_p, (c_int32,)),
    "source_begin": (c_int, (c_void_p, *_IDS)),
    "source_extend": (c_int, (c_void_p, *_IDS)),
    "source_observe": (c_int, (c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_int32, *_ROWS)),
    "source_root": (c_int, (c_void_p, c_void_p)),
    "source_children": (c_int, (c_void_p, c_void_p, c_void_p)),
    "source_bytes": (c_int64, (c_void_p,)),
    "suffix_limit": (c_int, (c_void_p, c_int32)),
    "suffix_size": (c_int64, (c_void_p,)),
    "forest_set": (c_int, (c_void_p, c_int32, c_void_p, c_void_p, c_void_p)),
    "grower_open": (c_void_p, (c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int32)),
    "grower_price": (c_int, (c_void_p, c_void_p, c_int32)),
    "grower_begin": (c_int, (c_void_p, c_double, *_IDS)),
    "grower_propose": (c_int, (c_void_p, c_int32, c_int32, c_double, c_double, c_void_p, c_void_p, c_void_p)),
    "grower_observe": (
        c_int,
        (c_void_p, c_int32, c_void_p, c_void_p, c_int32, c_void_p, c_int32, *_ROWS, c_int32, c_void_p),
    ),
    "grower_ledger": (c_int, (c_void_p, c_void_p, c_void_p)),
    "grower_clear": (c_int, (c_void_p,)),
    "grower_bytes": (c_int64, (c_void_p,)),
    "divide": (
        c_int,
        (
            c_int32,
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
            c_int32,
            c_int32,
            c_int32,
            c_double,
            c_double,
            c_void_p,
        ),
    ),
    "source_close": (None, (c_void_p,)),
    "grower_close": (None, (c_void_p,)),
}


class DraftLibrary:
    """The functions of the drafting core, by their names without ``edge_rt_draft_``; most check their arguments."""

    def __init__(self, library: NativeLibrary) -> None:
        try:
            found = library.function("draft_version", c_int)()
            if found != VERSION:
                raise AttributeError(f"version {found}, {VERSION} is needed")
            for name, (result, arguments) in _FUNCTIONS.items():
                setattr(self, name, library.function(f"draft_{name}", result, *arguments))
        except AttributeError as error:
            raise RuntimeUnavailable(
                "The native library has no drafting core of this version.", f"{error}.", "Install edge-rt again."
            ) from error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(name)


@functools.cache
def draft_library() -> DraftLibrary | None:
    """Return the installed library's drafting core; None where there is none, and nothing drafts."""
    try:
        return DraftLibrary(native_library())
    except RuntimeUnavailable:
        return None


class Handle:
    """Something that the library made, closed with this object.

    Attributes:
        address: 0 once it is closed: where garbage hangs together, what uses it may be finalised after it.
    """

    address = 0

    def __init__(self, address: int | None, close: Callable[[int], None], keep: Items[object] = ()) -> None:
        if address is None:
            raise _no_memory()
        self.address = address
        self._keep = tuple(keep)
        self._close = close

    def __del__(self) -> None:
        address, self.address = self.address, 0
        if address:
            self._close(address)


def checked(code: int) -> int:
    """Return what a function of the library returned, unless it failed."""
    if code >= 0:
        return code
    if code == _NO_MEMORY:
        raise _no_memory()
    raise InferenceError(
        "The drafting core refused what it was told.",
        "A token, a node or a count is out of range.",
        "Turn speculation off, and report it.",
    )


def _no_memory() -> MemoryBudgetExceeded:
    return MemoryBudgetExceeded(
        "The drafters' tables do not fit the memory.", "The system gave none.", "Close other programs, or draft less."
    )


def int32s(values: Items[int]) -> tuple[array[int], int, int]:
    """Return int32 values, their address and their number; the address is valid as long as the first is kept."""
    try:
        held = array("i", values)
    except (OverflowError, TypeError):
        return (array("i"), 0, checked(_REFUSED))
    address, count = held.buffer_info()
    return held, address, count


class GuessView(ctypes.Structure):
    """A guess as the library writes it."""

    _fields_ = (("token", c_int32), ("kind", c_int32), ("cursor", c_int32 * 4))
