"""The native library's sampling: a row of logits to a token, in parallel (``csrc/sampling/sampling_abi.h``)."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence as Items
from ctypes import c_char_p, c_double, c_int, c_int32, c_int64, c_void_p
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InferenceError, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.ort.op_library import native_library

Array = npt.NDArray[Any]

NO_MEMORY: Final = -2
NO_NUMBERS: Final = -3
NOTHING_LEFT: Final = -4


class _Tokens(ctypes.Structure):
    _fields_ = (("tokens", c_void_p), ("count", c_int64))


_NUMBERS: Final = (
    "temperature", "top_p", "min_p", "top_n_sigma", "top_h", "xtc_probability", "xtc_threshold", "fsd", "repetition",
    "presence", "frequency", "dry_multiplier", "dry_base",
)  # fmt: skip
_WHOLE: Final = ("dry_allowed", "fsd_order", "top_k", "vocabulary")
_LISTS: Final = ("prompt", "exempt", "breakers", "banned", "biased")


class _Settings(ctypes.Structure):
    _fields_ = (
        *((name, c_double) for name in _NUMBERS),
        *((name, c_int32) for name in _WHOLE),
        *((name, _Tokens) for name in _LISTS),
        ("bias", c_void_p),
    )


@functools.cache
def _functions() -> dict[str, Callable[..., Any]] | None:
    try:
        library = native_library()
    except RuntimeUnavailable:
        return None
    rows = (c_void_p, c_void_p, c_void_p)
    return {
        "open": library.function("chain_open", c_void_p, c_void_p, c_char_p),
        "close": library.function("chain_close", None, c_void_p),
        "observe": library.function("chain_observe", c_int, c_void_p, c_int32, c_int32),
        "draw": library.function("chain_draw", c_int, *rows, c_double),
        "law": library.function("chain_law", c_int, *rows, c_int32, c_void_p, c_void_p),
    }


def has_native_chain() -> bool:
    """Return whether the native library is there to sample."""
    return _functions() is not None


class NativeChain:
    """The chain of one generation.

    Args:
        numbers: settings by their names in the library.
        lists: lists of tokens by their names; all tokens are in the vocabulary.
        bias: of the tokens in ``biased``.
        isa: the instruction set; None is the best one.
    """

    def __init__(
        self,
        numbers: dict[str, float],
        lists: dict[str, Items[int]],
        bias: Items[float] = (),
        isa: str | None = None,
    ) -> None:
        functions = _functions()
        assert functions is not None, "has_native_chain was not asked"
        settings, held = _Settings(), []
        for name, number in numbers.items():
            setattr(settings, name, number)
        for name, tokens in lists.items():
            held.append(np.asarray(tokens, np.int32))
            setattr(settings, name, _Tokens(held[-1].ctypes.data, len(held[-1])))
        held.append(np.asarray(bias, np.float32))
        settings.bias = held[-1].ctypes.data
        self._size = int(numbers["vocabulary"])
        self._words = -(-self._size // 32)
        self._draw, self._law, self._observe = functions["draw"], functions["law"], functions["observe"]
        self._handle = functions["open"](ctypes.byref(settings), None if isa is None else isa.encode())
        if self._handle is None:
            raise _no_memory()
        weakref.finalize(self, functions["close"], self._handle)

    def observe(self, token_id: int, *, is_breaker: bool) -> None:
        """Remember a token of the answer, and whether repetitions end at it."""
        _checked(self._observe(self._handle, token_id, is_breaker))

    def draw(self, logits: Array, mask: Array | None, random: float) -> int:
        """Return a token; ``NO_NUMBERS`` or ``NOTHING_LEFT`` where there is none."""
        return _checked(self._draw(self._handle, *self._addresses(logits, mask), random))

    def law(self, logits: Array, mask: Array | None, *, excludes: bool) -> tuple[Array, Array] | int:
        """Return the tokens that may be drawn, int32 ``[n]`` by id, and their weights; or an error as ``draw``."""
        tokens, weights = np.empty(self._size, np.int32), np.empty(self._size, np.int32)
        row = self._addresses(logits, mask)
        count = _checked(self._law(self._handle, *row, int(excludes), tokens.ctypes.data, weights.ctypes.data))
        return count if count < 0 else (tokens[:count], weights[:count])

    def _addresses(self, logits: Array, mask: Array | None) -> tuple[int, int | None]:
        # The library reads what is behind an address, whatever it is.
        _require_row(logits, np.float32, self._size)
        if mask is None:
            return logits.ctypes.data, None
        _require_row(mask, np.uint32, self._words)
        return logits.ctypes.data, mask.ctypes.data


def _require_row(row: Array, kind: type, size: int) -> None:
    if row.dtype != kind or row.shape != (size,) or not row.flags.c_contiguous:
        raise InferenceError(
            "A row to sample from has another form than the vocabulary's.",
            f"{row.dtype} {list(row.shape)}, wanted {np.dtype(kind)} [{size}], without gaps.",
            "Report it.",
        )


def _checked(code: int) -> int:
    if code == NO_MEMORY:
        raise _no_memory()
    assert code != -1, "the library refused an argument"
    return code


def _no_memory() -> MemoryBudgetExceeded:
    return MemoryBudgetExceeded(
        "Sampling does not fit the memory.", "The system gave none.", "Close other programs, or use temperature 0."
    )
