"""What a pass over the graph computes, and the memory that it is written to."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.system.mapped_memory import advise

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most likely tokens behind every row, as the graph's operator RowTopK finds them.

    Attributes:
        ids: int32 ``[rows, k]``, the most likely first; equal logits by id, so the first is numpy's ``argmax``.
        logits: float32 ``[rows, k]``.
        log_sum_exp: float32 ``[rows]``, of the whole row of logits.
    """

    ids: Array
    logits: Array
    log_sum_exp: Array

    def probabilities(self) -> Array:
        """Return the tokens' probabilities at temperature 1, float32 ``[rows, k]``."""
        result: Array = np.exp(self.logits - self.log_sum_exp[:, None])
        return result


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a pass computed for the rows that wanted logits; overwritten by the next pass, whatever its shape.

    Attributes:
        logits: float32 ``[rows, vocabulary]``.
        top: the most likely tokens of the same rows; None from a graph that does not look for them.
    """

    logits: Array
    top: TopTokens | None = None


class OutputMemory:
    """Memory that passes of every number of rows share: the outputs of a pass are its first rows.

    A step in a decode loop wants one row of logits, then ten, then four; memory for each of these sizes would be
    hundreds of kilobytes for every row of every size. Where a plan says how many rows there ever are (``plan``), room
    for just these is made once.

    Args:
        vocab_size: length of a row of logits.
        top_tokens: most likely tokens of a row that the graph finds; 0 if it does not look for them.
    """

    def __init__(self, vocab_size: int, top_tokens: int) -> None:
        self._vocab_size = vocab_size
        self._top_tokens = top_tokens
        self._rows = 0
        self._planned = 0
        self._most: int | None = None
        self.release()

    def plan(self, rows: int, most: int | None) -> None:
        """Say for how many rows room is made at once, and beyond how many no pass may go.

        Args:
            rows: at least 1.
            most: at least ``rows``; None lets passes want as many as the system has memory for.
        """
        assert 1 <= rows <= (rows if most is None else most), (rows, most)
        self._planned, self._most = rows, most

    @property
    def most(self) -> int | None:
        """Rows beyond which no pass may go, or None."""
        return self._most

    def reserve(self, rows: int) -> bool:
        """Make room for the outputs of ``rows`` rows.

        Returns:
            True if there was too little, and outputs lie elsewhere from now on. What ``first`` returned before stays
            valid and is written by the passes that are bound to it; it keeps the old memory for as long as it lives.

        Raises:
            MemoryBudgetExceeded: the plan has not so many rows, or there is not so much address space; the memory is as
                before.
        """
        if rows <= self._rows:
            return False
        if self._most is not None and rows > self._most:
            raise MemoryBudgetExceeded(
                "A pass wants the logits of more rows than the memory plan has.",
                f"{rows} rows of {self._vocab_size} logits; the plan has {self._most}.",
                "Ask for fewer, or load the model with larger drafts or a larger budget.",
            )
        # Rows that are never written take no memory, so without a plan there may be more than were asked for.
        room = max(self._planned, rows if self._most is not None else 1 << max(rows - 1, _LEAST_ROWS - 1).bit_length())
        try:
            self._memory = self._allocate(room)
        except (MemoryError, OSError, OverflowError) as error:
            raise MemoryBudgetExceeded(
                "The logits of a pass do not fit the memory.",
                f"{room} rows of {self._vocab_size} logits: {error}.",
                "Ask for the logits of fewer rows.",
            ) from error
        self._rows = room
        return True

    def first(self, rows: int) -> Outputs:
        """Return the outputs of a pass that wants logits for ``rows`` rows, for which there is room."""
        assert rows <= self._rows, (rows, self._rows)
        logits, top = self._memory.logits[:rows], self._memory.top
        if top is None:
            return Outputs(logits)
        return Outputs(logits, TopTokens(top.ids[:rows], top.logits[:rows], top.log_sum_exp[:rows]))

    def release(self) -> None:
        """Let go of the memory; there is no room for any row any more."""
        self._rows = 0
        self._memory = Outputs(np.empty((0, self._vocab_size), np.float32))

    def _allocate(self, rows: int) -> Outputs:
        logits = untouched((rows, self._vocab_size), np.float32)
        if self._top_tokens == 0:
            return Outputs(logits)
        shape = (rows, self._top_tokens)
        return Outputs(
            logits, TopTokens(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(rows, np.float32))
        )


_LEAST_ROWS: Final = 16


def untouched(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return zeros whose pages take memory only once they are written.

    numpy asks for huge pages, and then the first row of a head would take the memory of thousands.
    """
    memory = mmap.mmap(-1, math.prod(shape) * np.dtype(dtype).itemsize)
    # A system without huge pages has nothing to be kept from.
    advise(memory, "MADV_NOHUGEPAGE")
    return np.frombuffer(memory, dtype).reshape(shape)


def give_back(array: Array) -> None:
    """Make an array of ``untouched``, or what a view is of, zeros again; Linux gets its memory back, others keep it."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    assert isinstance(base, mmap.mmap), type(base)
    # The mapping is a shared one, of which MADV_DONTNEED would keep the pages.
    if not advise(base, "MADV_REMOVE"):
        np.frombuffer(base, np.uint8)[:] = 0
