"""IO bindings of both op profiles: inputs, outputs, and the memory of both and of the KV cache.

The inputs and outputs of the graphs are described in ``docs/package-format.md``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPackage
from edge_rt.ort.binding import Binding, StopSwitch
from edge_rt.ort.session import Session, TensorSpec
from edge_rt.package.decoder import Model
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.row_pool import PooledCache, RowPool
from edge_rt.runtime.cache.sliding_window import SlidingWindow
from edge_rt.runtime.cache.state_slots import StateSlots
from edge_rt.runtime.forward.outputs import BoundResults, OutputMemory, Outputs, give_back

Array = npt.NDArray[Any]
Specs = dict[str, tuple[tuple[int | str, ...], str]]

FILLING: Final = 0x11
"""A byte that stands for finite numbers in every cache format."""


class Part(NamedTuple):
    """What a pass computes of one sequence.

    Attributes:
        token_ids: at least one; they get the positions from ``start`` on.
        num_logits: how many of the last tokens need logits; of all parts together at least 1.
        parents: for every token the earlier one of the part that it follows, or -1 for the context's last; None for a
            chain. Only packages of the native op profile compute trees.
        logit_rows: indices of the ``num_logits`` tokens that need logits; None takes the last ones.
        row_map: int32 ``[>= start + tokens]``, position -> row of the cache, which is copied; None for the sequence
            that has the whole cache to itself (``IOBinding.open_cache``).
        states: those of the sequence, where layers have some; None: those of the first sequence.
        window_map: as ``row_map``, in layers with a window.
    """

    token_ids: Sequence[int]
    start: int
    num_logits: int
    parents: Sequence[int] | None = None
    logit_rows: Sequence[int] | None = None
    row_map: Array | None = None
    states: StateSlots | None = None
    window_map: Array | None = None


def put_tokens(parts: Sequence[Part], input_ids: Array, logit_rows: Array, numbers: Array) -> None:
    """Write which tokens a pass has, part behind part, and which of its rows need logits.

    Args:
        numbers: int64 ``[rows]``, 0 to rows - 1.
    """
    row = first = 0
    for part in parts:
        end, last = row + len(part.token_ids), first + part.num_logits
        input_ids[row:end] = part.token_ids
        if part.logit_rows is None:
            logit_rows[first:last] = numbers[end - part.num_logits : end]
        else:
            logit_rows[first:last] = part.logit_rows
            logit_rows[first:last] += row
        row, first = end, last


class BoundPass(ABC):
    """Buffers for passes of one shape, bound to the graph."""

    def __init__(self, binding: Binding, rows: int, results: BoundResults) -> None:
        num_logits = results.num_logits
        self.binding = binding
        self._results = results
        self._input_ids = np.zeros(rows, np.int64)
        self._logit_rows = np.zeros(num_logits, np.int64)
        self._numbers = np.arange(rows, dtype=np.int64)
        binding.bind_input("input_ids", self._input_ids)
        binding.bind_input("logit_rows", self._logit_rows)

    def run(self, switch: StopSwitch) -> Outputs:
        """Run the graph on what was set; see ``Binding.run`` for what is raised."""
        self.binding.run(switch)
        outputs = self._results.collect()
        outputs.ended = time.perf_counter()
        return outputs

    def set(self, parts: Sequence[Part]) -> None:
        """Write the inputs of the next run."""
        put_tokens(parts, self._input_ids, self._logit_rows, self._numbers)
        self._place(parts)

    @abstractmethod
    def _place(self, parts: Sequence[Part]) -> None:
        """Write the inputs that give the positions of the rows in their sequences."""


class IOBinding(ABC):
    """Inputs and outputs of one op profile's graph, and the memory of its cache.

    Args:
        kv_format: name of the cache's format, as it is shown to users.
        top_tokens: most likely tokens that the graph returns with every row of logits.
        hidden: the value of the graph that is the hidden states, if they are wanted.

    Attributes:
        more_outputs: values inside the graph that the session has to make outputs.
        outputs: memory of the outputs of all passes; a pass is bound only when there is room for its rows.
        row_bytes: bytes of one token in all layers.
        cache_bytes: bytes of the cache, every row of every layer; see the subclasses.
        most_sequences: that a pass can have with row maps of their own; 0: one sequence has the cache to itself.
        pool: of the rows that several sequences share; None: one sequence has them.
        slots: the bookkeeping of the sequences of a pool; passes without a row map are those of the first.
        states: those of every sequence, where layers have some.
    """

    profile: ClassVar[str]

    def __init__(
        self,
        model: Model,
        capacity: int,
        kv_format: str,
        top_tokens: int,
        hidden: TensorSpec | None = None,
    ) -> None:
        self.model = model
        self.capacity = capacity
        self.kv_format = kv_format
        self.more_outputs = () if hidden is None else (hidden,)
        self.outputs = OutputMemory(model.vocab_size, top_tokens, 0 if hidden is None else model.hidden_size)
        self.result, self.result_size = "logits", model.vocab_size
        self._rope_tables: dict[str, Array] = {}
        self.row_bytes = 0
        self.cache_bytes = 0
        self.most_sequences = 0
        self.row_map: Array | None = None
        self.window: SlidingWindow | None = None
        self.pool: RowPool | None = None
        self.slots: tuple[PooledCache, ...] = ()
        self.states: tuple[StateSlots, ...] = ()

    def open_cache(self) -> KVCache:
        """Return the bookkeeping of the cache's memory, with no token in it; there is one per IO binding."""
        if self.slots:
            return self.slots[0]
        states = self.states[0] if self.states else None
        return KVCache(self.capacity, row_bytes=self.row_bytes, row_map=self.row_map, window=self.window, states=states)

    @abstractmethod
    def bind(self, session: Session, rows: int, num_logits: int, sequences: int = 0) -> BoundPass:
        """Bind buffers for passes of one shape to the graph; ``outputs`` must have room for them.

        Args:
            sequences: that have row maps of their own, at most ``most_sequences``; 0: one that has the whole cache.
        """

    def bind_results(self, binding: Binding, num_logits: int, *, hidden: bool = True) -> BoundResults:
        """Bind the outputs of a graph that ends with the head; ``outputs`` must have room for them.

        Args:
            hidden: whether the graph gives the hidden states that are wanted, too.
        """
        hidden_name = self._hidden_name if hidden else None
        return BoundResults(binding, self.outputs.first(num_logits), hidden_name, result=self.result)

    @property
    def _hidden_name(self) -> str | None:
        """The output that is the hidden states; None: they are not wanted."""
        return next((output.name for output in self.more_outputs if output.shape[0] == "logit_rows"), None)

    def _bind_rope(self, binding: Binding) -> None:
        """Bind the tables of rotations that are not in ``weights.bin``."""
        for name, table in self._rope_tables.items():
            binding.bind_input(name, table)

    @abstractmethod
    def release(self) -> None:
        """Release the memory of cache and outputs; no pass may run afterwards."""
        self.outputs.release()
        self._rope_tables = {}

    @abstractmethod
    def fill(self, rows: int) -> None:
        """Write ``FILLING`` into the first rows of the cache, so that passes after them read memory as usual.

        A layer that has fewer rows is filled completely.
        """

    def forget(self) -> None:
        """Empty all rows of the cache and return their memory to the system."""
        # All of them are views of one mapping.
        for buffer in self._host_buffers()[:1]:
            give_back(buffer)

    @property
    def cache_address(self) -> int | None:
        """An address in the mapping that is the memory of the cache; None for a cache on a device."""
        buffers = self._host_buffers()
        return int(buffers[0].ctypes.data) if buffers else None

    @abstractmethod
    def _host_buffers(self) -> list[Array]:
        """Return the buffers of the cache in this process, in order; none after release, or on a device."""

    def rope_specs(self) -> Specs:
        """Return name -> shape and type of the tables of rotations that are not in ``weights.bin``."""
        return {
            name: (("rope_positions", table.shape[1]), "tensor(float)") for name, table in self._rope_tables.items()
        }

    @abstractmethod
    def _specs(self) -> Specs:
        """Return name -> shape and type of the inputs and outputs that only this profile has."""

    def check(self, session: Session) -> None:
        """Compare the graph with the manifest: otherwise a wrong shape would be an error in the middle of an answer."""
        wanted: Specs = {
            "input_ids": (("rows",), "tensor(int64)"),
            "logit_rows": (("logit_rows",), "tensor(int64)"),
            self.result: (("logit_rows", self.result_size), "tensor(float)"),
            **self.rope_specs(),
            **self._specs(),
            **{output.name: (output.shape, output.type) for output in self.more_outputs},
        }
        found = {spec.name: (spec.shape, spec.type) for spec in (*session.inputs, *session.outputs)}
        if found != wanted:
            name = next(n for n in (*wanted, *found) if wanted.get(n) != found.get(n))
            raise InvalidPackage(
                "The graph of the package does not fit its manifest.",
                f"{name}: the manifest asks for {wanted.get(name)}, the graph has {found.get(name)}.",
                "Export or pull the model again.",
            )
