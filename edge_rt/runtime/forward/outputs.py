"""Outputs of a pass, and the memory that they are written to."""

from __future__ import annotations

import functools
import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.ort.binding import Binding
from edge_rt.ort.compute_device import ComputeDevice, DeviceArray, DeviceRows
from edge_rt.package.decoder import Decoder
from edge_rt.system.byte_size import counted
from edge_rt.system.process_memory import advise

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most likely next tokens of every row, as the graph's operator RowTopK finds them.

    Attributes:
        ids: int32 ``[rows, k]``, the most likely first; equal logits by id, so the first is numpy's ``argmax``.
        logits: float32 ``[rows, k]``.
        log_sum_exp: float32 ``[rows]``, of the whole row of logits.
    """

    ids: Array
    logits: Array
    log_sum_exp: Array

    def of(self, rows: slice) -> TopTokens:
        """Return those of some rows."""
        return TopTokens(self.ids[rows], self.logits[rows], self.log_sum_exp[rows])

    def probabilities(self) -> Array:
        """Return the tokens' probabilities at temperature 1, float32 ``[rows, k]``."""
        result: Array = np.exp(self.logits - self.log_sum_exp[:, None])
        return result


class Outputs:
    """Results of a pass for the rows that needed logits; overwritten by the next pass, whatever its shape.

    Args:
        logits: float32 ``[rows, vocabulary]``.
        top: the most likely tokens of the same rows; None if the graph does not compute them.
        hidden: float32 ``[rows, hidden_size]``, the stream behind the last layer, before the final norm; None if it was
            not asked for when the model was loaded.
        fetch: copies the logits of a pass on a device into ``logits`` when they are read; None: they are there.
    """

    __slots__ = ("_fetch", "_logits", "ended", "hidden", "place", "stream", "stream_rows", "top")

    def __init__(
        self,
        logits: Array,
        top: TopTokens | None = None,
        hidden: Array | None = None,
        fetch: Callable[[], None] | None = None,
    ) -> None:
        self._logits, self.top, self.hidden, self._fetch = logits, top, hidden, fetch
        self.ended = 0.0
        """Moment when the pass ended, ``time.perf_counter``; 0 if nobody has noted it."""
        self.stream: Array | None = None
        """float32 ``[rows of the pass, hidden_size]``, the stream behind the last layer of all rows of a pass over one
        sequence; None if it was not asked for when the model was loaded."""
        self.stream_rows: Array | None = None
        """int64 ``[rows]``: the row of the pass that each of these results is of."""
        self.place = top, 0
        """The most likely tokens of the whole pass, and where these rows begin there."""

    @property
    def logits(self) -> Array:
        """The logits, float32 ``[rows, vocabulary]``."""
        if self._fetch is not None:
            self._fetch()
        return self._logits

    def split(self, counts: Sequence[int]) -> list[Outputs]:
        """Return the results of parts that have so many of the rows each, in their order."""
        if len(counts) == 1:
            return [self]
        # Whoever reads first copies those of all parts.
        fetch = None if self._fetch is None else functools.cache(self._fetch)
        parts, begin = [], 0
        for count in counts:
            rows = slice(begin, begin + count)
            top = None if self.top is None else self.top.of(rows)
            parts.append(Outputs(self._logits[rows], top, None if self.hidden is None else self.hidden[rows], fetch))
            parts[-1].ended, parts[-1].place = self.ended, (self.top, begin)
            begin += count
        return parts

    def fetched_by(self, fetch: Callable[[], None]) -> Outputs:
        """Return the same results with logits that are copied when they are read."""
        return Outputs(self._logits, self.top, self.hidden, fetch)


class OutputMemory:
    """Memory shared by passes of all sizes: the outputs of a pass are its first rows.

    Decoding steps need one row of logits, then ten, then four; separate memory for each of these sizes would be
    hundreds of kilobytes for every row of every size. Where a plan states the largest number of rows (``plan``),
    exactly that much is allocated, once.

    Args:
        top_tokens: number of most likely tokens that the graph computes per row; 0 if it computes none.
        hidden_size: length of a row of hidden states; 0 if they are not wanted.
    """

    def __init__(self, vocab_size: int, top_tokens: int, hidden_size: int = 0) -> None:
        self._vocab_size = vocab_size
        self._top_tokens = top_tokens
        self._hidden_size = hidden_size
        self._rows = 0
        self._planned = 0
        self._most: int | None = None
        self.release()

    def plan(self, rows: int, most: int | None) -> None:
        """Set how many rows are allocated at once, and the largest number of rows of a pass.

        Args:
            rows: at least 1.
            most: at least ``rows``; None allows as many as the system has memory for.
        """
        assert 1 <= rows <= (rows if most is None else most), (rows, most)
        self._planned, self._most = rows, most

    @property
    def most(self) -> int | None:
        """Largest number of rows of a pass, or None."""
        return self._most

    def reserve(self, rows: int) -> bool:
        """Make room for the outputs of ``rows`` rows.

        Returns:
            True if there was too little room, and new memory was allocated. Results of earlier calls of ``first`` stay
            valid, and passes bound to them still write to them; the old memory is freed with the last of them.
        """
        if rows <= self._rows:
            return False
        if self._most is not None and rows > self._most:
            raise MemoryBudgetExceeded(
                "A pass wants the logits of more rows than the memory plan has.",
                f"{counted(rows, 'row')} of {self._vocab_size} logits; the plan has {self._most}.",
                "Ask for fewer, or load the model with larger drafts or a larger budget.",
            )
        # Rows that are never written take no memory, so without a plan more are allocated than asked for.
        room = max(self._planned, rows if self._most is not None else 1 << max(rows - 1, _LEAST_ROWS - 1).bit_length())
        try:
            self._memory = self._allocate(room)
        except (MemoryError, OSError, OverflowError) as error:
            raise MemoryBudgetExceeded(
                "The logits of a pass do not fit the memory.",
                f"{counted(room, 'row')} of {self._vocab_size} logits: {error}.",
                "Ask for the logits of fewer rows.",
            ) from error
        self._rows = room
        return True

    def first(self, rows: int) -> Outputs:
        """Return the outputs of a pass that needs logits for ``rows`` rows; there must be room for them."""
        assert rows <= self._rows, (rows, self._rows)
        logits, top, hidden = self._memory.logits[:rows], self._memory.top, self._memory.hidden
        return Outputs(
            logits,
            None if top is None else top.of(slice(rows)),
            None if hidden is None else hidden[:rows],
        )

    def release(self) -> None:
        """Release the memory; afterwards there is no room for any row."""
        self._rows = 0
        self._memory = Outputs(np.empty((0, self._vocab_size), np.float32))

    def _allocate(self, rows: int) -> Outputs:
        logits = untouched((rows, self._vocab_size), np.float32)
        hidden = untouched((rows, self._hidden_size), np.float32) if self._hidden_size else None
        if self._top_tokens == 0:
            return Outputs(logits, None, hidden)
        shape = (rows, self._top_tokens)
        top = TopTokens(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(rows, np.float32))
        return Outputs(logits, top, hidden)


_LEAST_ROWS: Final = 16


def untouched(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return zeros whose pages take memory only once they are written.

    numpy asks for huge pages, and then the first row of a head would take the memory of thousands.
    """
    memory = mmap.mmap(-1, math.prod(shape) * np.dtype(dtype).itemsize)
    # A system without huge pages needs no advice against them.
    advise(memory, "MADV_NOHUGEPAGE")
    return np.frombuffer(memory, dtype).reshape(shape)


def give_back(array: Array) -> None:
    """Zero an array of ``untouched``, or the array that a view is of; on Linux this frees its memory, elsewhere not."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    assert isinstance(base, mmap.mmap), type(base)
    # The mapping is shared, and MADV_DONTNEED would keep the pages of a shared mapping.
    if not advise(base, "MADV_REMOVE"):
        np.frombuffer(base, np.uint8)[:] = 0


class BoundResults:
    """All outputs of a graph, written in this process.

    Args:
        outputs: the memory, for the rows that need logits; runs of other shapes write it as well.
        hidden_name: the output that is the hidden states; None: they are not wanted.
        result: the output whose rows are ``Outputs.logits``.
    """

    def __init__(
        self, binding: Binding, outputs: Outputs, hidden_name: str | None = None, *, result: str = "logits"
    ) -> None:
        self.num_logits = len(outputs.logits)
        self._outputs = outputs
        for name, array in named_outputs(outputs).items():
            if name != "hidden":
                self._bind(binding, name, result if name == "logits" else name, array)
            elif hidden_name is not None:
                self._bind(binding, name, hidden_name, array)

    def _bind(self, binding: Binding, name: str, output: str, array: Array) -> None:
        """Bind the memory of a result, which has a name in ``named_outputs``, to an output."""
        del name
        binding.bind_output(output, array)

    def collect(self) -> Outputs:
        """Return the results of the last run."""
        return self._outputs


class DeviceOutputMemory(OutputMemory):
    """Memory of results on a device, and here for what is copied of them."""

    def __init__(self, device: ComputeDevice, model: Decoder, hidden_size: int) -> None:
        self._device = device
        self._there: dict[str, DeviceArray] = {}
        super().__init__(model.vocab_size, model.top_tokens, hidden_size)

    def place(self, name: str, array: Array) -> DeviceRows:
        """Return where rows of an array of ``first`` are written on the device."""
        return DeviceRows(self._there[name], array.shape, array.dtype)

    def release(self) -> None:
        """Release the memory; afterwards there is no room for any row."""
        super().release()
        self._there = {}

    def _allocate(self, rows: int) -> Outputs:
        made = super()._allocate(rows)
        # Zeros of its own: reading ``made`` here would make its pages take memory.
        self._there = {
            name: DeviceArray(self._device, np.zeros(array.shape, array.dtype))
            for name, array in named_outputs(made).items()
        }
        return made


class DeviceResults(BoundResults):
    """Results that are written on a device; of the logits a copy is made only when somebody reads them."""

    def __init__(
        self, binding: Binding, memory: DeviceOutputMemory, num_logits: int, hidden_name: str | None = None
    ) -> None:
        self._memory = memory
        self._names: list[str] = []
        super().__init__(binding, memory.first(num_logits), hidden_name)
        self._binding, self._logits = binding, _Logits(binding)
        self._outputs = self._outputs.fetched_by(self._logits)

    def _bind(self, binding: Binding, name: str, output: str, array: Array) -> None:
        binding.bind_fetched(output, self._memory.place(name, array), array)
        if name != "logits":
            self._names.append(output)

    def collect(self) -> Outputs:
        """Return the results of the last run; see ``BoundResults.collect``."""
        self._logits.is_fetched = False
        self._binding.fetch(self._names)
        return self._outputs


class _Logits:
    """Copies the logits of a binding's last run when somebody reads them, once.

    It does not know the results, which would keep themselves alive through it.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self.is_fetched = False

    def __call__(self) -> None:
        if not self.is_fetched:
            self._binding.fetch(["logits"])
            self.is_fetched = True


def named_outputs(outputs: Outputs) -> dict[str, Array]:
    """Return name -> array of all results."""
    arrays = {"logits": outputs.logits}
    if (top := outputs.top) is not None:
        arrays |= {"top_ids": top.ids, "top_logits": top.logits, "log_sum_exp": top.log_sum_exp}
    if outputs.hidden is not None:
        arrays["hidden"] = outputs.hidden
    return arrays
