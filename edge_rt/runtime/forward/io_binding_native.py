"""IO binding of native packages: SpecAttention's cache, with a format and a number of rows per layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from edge_rt.ort.binding import Binding, StopSwitch
from edge_rt.ort.compute_device import DeviceArray
from edge_rt.ort.session import Session, TensorSpec
from edge_rt.package.ahead import STREAM
from edge_rt.package.decoder import Decoder, Model
from edge_rt.package.kv_formats import KV_FORMAT, RESTING_PER_SLOT, UPPER_HALVES, KvFormat, pool_rows, window_capacity
from edge_rt.package.rope_tables import loaded_tables
from edge_rt.package.spec_modes import MAX_DRAFT
from edge_rt.package.states import CHECKPOINTS, SLOTS, states_bytes
from edge_rt.runtime.cache.checkpoints import Copies
from edge_rt.runtime.cache.row_pool import PooledCache, RowPool
from edge_rt.runtime.cache.sliding_window import SlidingWindow
from edge_rt.runtime.cache.window_copies import HostRowCopies, RowCopies, WindowCopies
from edge_rt.runtime.forward.device_copies import Planes
from edge_rt.runtime.forward.io_binding_base import FILLING, Array, BoundPass, IOBinding, Part, Specs
from edge_rt.runtime.forward.outputs import BoundResults, OutputMemory, Outputs, untouched
from edge_rt.runtime.forward.state_memory import StateInputs, StateMemory, state_specs

if TYPE_CHECKING:
    from edge_rt.runtime.forward.hidden_rows import HiddenRows

LARGEST_PASS: Final = 256
"""Rows of the largest pass unless given."""

_ALIGNMENT: Final = 64
"""Alignment in bytes of every layer's cache: a cache line of the CPU."""
MOST_RECORDED: Final = 16
"""Rows of the largest pass that a GPU records: what decoding computes again and again. Prompts have many lengths."""


class NativeIOBinding(IOBinding):
    """SpecAttention's cache: one of several formats, written in place; a map gives the memory row of every logical row.

    ``cache_bytes`` is the sum over the layers that keep rows of 2 x kv_heads x rows x row bytes of the layer's format
    (``edge_rt.package.kv_formats``), each rounded up to 64. A layer has ``rows`` rows, one with a sliding window
    ``window_capacity(window, largest_pass, capacity)``. A short convolution has as many of ``hidden_size`` floats each,
    whatever the format. A layer that reads the keys and values of another one has none.

    Args:
        capacity: positions of a sequence.
        sequences: most that one pass computes, each with a row map of its own, over rows of one pool, and with rows of
            its own in layers with a sliding window. 0: one sequence has the cache to itself.
        rows: of the pool; None: ``capacity`` for each sequence, in whole blocks.
        largest_pass: rows of the largest pass that will be run; layers with a sliding window reserve room for it.
        drafts: most of a pass, where layers have states; ``checkpoints``: of these, how many are kept, or of several
            sequences' windows copied.
        hidden: whether passes return hidden states, too; the session must be opened with ``more_outputs``.
        stream: whether passes of one sequence return the stream behind the last layer, of all rows; likewise.

    Attributes:
        buffers: per layer that keeps rows, uint8 ``[2, kv_heads, rows, bytes per row]``; a page takes memory only once
            a row in it is written. Of a short convolution ``[rows, bytes per row]``.
    """

    profile = "native"
    model: Decoder

    def __init__(
        self,
        model: Decoder,
        capacity: int,
        kv_format: str | Sequence[str],
        *,
        sequences: int = 0,
        rows: int | None = None,
        largest_pass: int = LARGEST_PASS,
        drafts: int = MAX_DRAFT + 1,
        checkpoints: int = CHECKPOINTS,
        hidden: bool = False,
        stream: bool = False,
    ) -> None:
        formats = (kv_format,) * model.num_layers if isinstance(kv_format, str) else tuple(kv_format)
        assert len(formats) == model.num_layers, (formats, model.num_layers)
        output = hidden_output(model) if hidden else None
        super().__init__(model, capacity, _spelled(formats), model.top_tokens, output)
        self._stream: Array | None = None
        if stream:
            self.more_outputs = (*self.more_outputs, stream_output(model))
            # Pages that no pass has written take no memory.
            self._stream = untouched((capacity, model.hidden_size), np.float32)
        self.top_tokens = model.top_tokens
        self._rope_tables = loaded_tables(model, capacity)
        self.kv_formats = formats
        self._convs = frozenset(model.conv_layers)
        self._memory: StateMemory | None = None
        if model.recurrent_layers:
            self._memory = self._make_states(max(sequences, 1), drafts, checkpoints)
        self.states = () if self._memory is None else self._memory.slots
        self._layers = model.cache_layers
        windows = [model.layer_windows[layer] for layer in self._layers]
        token_bytes = [
            4 * model.hidden_size if layer in self._convs else self._form(layer).token_bytes(*self._heads(layer))
            for layer in self._layers
        ]
        self.row_bytes = sum(token_bytes)
        # What keeps both, states and rows of a window, would have to copy both.
        self.most_sequences = sequences = 0 if any(windows) and model.recurrent_layers else sequences
        if rows is None:
            rows = pool_rows(capacity, sequences) if sequences else capacity
        rings, window_rows = [], rows
        if window := model.ring_window:
            of_window = sum(count for count, size in zip(token_bytes, windows, strict=True) if size)
            seen = window_capacity(window, largest_pass, capacity)
            window_rows = max(sequences, 1) * seen
            rings = [
                SlidingWindow(min(window, capacity), seen, capacity, row_bytes=of_window, first=first)
                for first in range(0, window_rows, seen)
            ]
            self.window = rings[0]
            if sequences or len(self._convs) == sum(map(bool, windows)):
                for ring in rings:
                    ring.memory = self._window_memory
        self._row_maps, self._window_maps = (np.zeros((sequences, capacity), np.int32) for _ in range(2))
        rows_of = [window_rows if size else rows for size in windows]
        sizes = [of_layer * count for of_layer, count in zip(rows_of, token_bytes, strict=True)]
        self.buffers: list[Array] = []
        self._allocate(
            [
                (count, size // count)
                if layer in self._convs
                else (2, (heads := self._heads(layer)[0]), count, size // (2 * heads * count))
                for layer, size, count in zip(self._layers, sizes, rows_of, strict=True)
            ]
        )
        self._formats = np.asarray([KV_FORMAT[name].id for name in formats], np.int32)
        self._copies = Copies(0)
        self._kept_rows: RowCopies | None = None
        if sequences:
            self.pool = RowPool(rows, most_resting=RESTING_PER_SLOT * sequences)
            self.slots = tuple(self._open_slots(self.pool, rings, checkpoints))
        if 0 in model.layer_windows:
            self.row_map = self.slots[0].row_map if sequences else np.arange(capacity, dtype=np.int32)

    def _open_slots(self, pool: RowPool, rings: Sequence[SlidingWindow], checkpoints: int) -> Iterator[PooledCache]:
        """Yield the bookkeeping of every slot; what their windows saw of earlier texts is copied for all of them."""
        if not rings:
            for states in self.states or (None,) * self.most_sequences:
                yield PooledCache(self.capacity, pool, row_bytes=self.row_bytes, states=states)
            return
        self._copies = Copies(checkpoints)
        self._kept_rows = self._make_row_copies(rings[0].window - 1, checkpoints)
        for ring in rings:
            copies = WindowCopies(ring, self._copies, self._kept_rows)
            yield PooledCache(self.capacity, pool, row_bytes=self.row_bytes, window=ring, copies=copies)

    def _make_row_copies(self, most_rows: int, count: int) -> RowCopies:
        """Make so many places for rows of layers with a window."""
        row_bytes = sum(math.prod(part.shape[1:]) for part in self._window_memory())
        places = untouched((max(count, 1), most_rows * row_bytes), np.uint8)
        return HostRowCopies(self._window_memory, places[:count], most_rows)

    def _window_memory(self) -> list[Array]:
        """Return the memory of layers with a window, by what rows consist of: uint8 ``[rows, ...]``."""
        found: list[Array] = []
        for number, buffer in zip(self._layers, self.buffers, strict=False):
            if number in self._convs:
                found.append(buffer)
            elif self.model.layer_windows[number]:
                found += [part.transpose(1, 0, 2) for part in self._parts_of(number, buffer)]
        return found

    def _heads(self, layer: int) -> tuple[int, int]:
        """Return the number and the size of the heads of a layer's keys and values."""
        attention = self.model.attention_of(layer)
        return attention.num_kv_heads, attention.head_dim

    def _form(self, layer: int) -> KvFormat:
        return KV_FORMAT[self.kv_formats[layer]]

    def _make_states(self, sequences: int, drafts: int, checkpoints: int) -> StateMemory:
        """Make the states of so many sequences, with room for so many drafts each."""
        return StateMemory(self.model, sequences, drafts, checkpoints)

    def _allocate(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Make the cache of every layer, uint8 of these shapes, and set ``cache_bytes``."""
        sizes = [math.prod(shape) for shape in shapes]
        begins = [0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]
        self.cache_bytes = begins[-1]
        memory = untouched((self.cache_bytes,), np.uint8)
        self.buffers = [
            memory[begin : begin + size].reshape(shape)
            for begin, size, shape in zip(begins, sizes, shapes, strict=False)
        ]

    def sharing(self, *, reads_upper: bool) -> NativeIOBinding:
        """Return a binding of another graph to the same cache, with outputs of its own.

        Args:
            reads_upper: it reads the upper halves of codes alone; all layers must have a format that has them.
        """
        other = copy.copy(self)
        other.outputs = OutputMemory(self.model.vocab_size, self.model.top_tokens)
        other.more_outputs, other._stream = (), None
        if reads_upper:
            other._formats = np.asarray([UPPER_HALVES[name] for name in self.kv_formats], np.int32)
        return other

    def of_states(self, rows: int) -> NativeIOBinding:
        """Return a binding of the graph of states to the same cache, whose passes want up to so many rows."""
        other = self.sharing(reads_upper=False)
        other.result, other.result_size, other.top_tokens = "states", self.model.hidden_size, 0
        other.outputs = OutputMemory(self.model.hidden_size, 0)
        other.outputs.plan(rows, rows)
        return other

    def release(self) -> None:
        """Release the buffers."""
        super().release()
        self.buffers = []
        self._copies.release()
        if self._kept_rows is not None:
            self._kept_rows.release()
        if self._memory is not None:
            self._memory.release()

    def forget(self) -> None:
        """Empty all rows of the cache, and the states, and return their memory to the system."""
        super().forget()
        self._copies.forget()
        if self._memory is not None:
            self._memory.forget()

    def fill(self, rows: int) -> None:
        """Write the first rows of all layers, at the offsets that their formats give."""
        # After ``release`` there are no buffers.
        for number, buffer in zip(self._layers, self.buffers, strict=False):
            if number in self._convs:
                buffer[:rows] = FILLING
                continue
            capacity, layer = buffer.shape[2], buffer.reshape(-1)
            for begin, end in self._form(number).places(*self._heads(number), capacity, min(rows, capacity)):
                layer[begin:end] = FILLING

    def row_parts(self) -> list[Array]:
        """Return the cache's memory by what rows consist of: for every layer with attention its keys, then its values.

        Returns:
            Codes, then scales where the format has them, uint8 ``[kv_heads, rows, bytes]``; nothing after ``release``.
        """
        return [
            part
            for number, buffer in zip(self._layers, self.buffers, strict=False)
            if number not in self._convs
            for part in self._parts_of(number, buffer)
        ]

    def _parts_of(self, number: int, buffer: Array) -> Iterator[Array]:
        """Yield the same of one layer."""
        layer = buffer.reshape(-1)
        return (part.view(layer) for part in self._planes(number, buffer.shape[2]))

    def _planes(self, number: int, rows: int) -> Iterator[Planes]:
        """Yield where such parts of a layer with attention lie in its memory, which has so many rows."""
        form, (heads, head_dim) = self._form(number), self._heads(number)
        begin = 0
        for row in (form.key, form.value):
            sizes = row.parts(head_dim)
            step = rows * sum(sizes)
            for at, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
                yield Planes(begin + at * rows, step, heads, rows, size)
            begin += heads * step

    @property
    def kept_bytes(self) -> int:
        """Bytes of a state as ``KVCache.states_of`` has it; 0: the layers keep nothing but rows."""
        found = states_bytes(self.model, 0) // SLOTS
        if self.window is not None and self.window.memory is not None:
            seen = self.window.window - 1
            found += sum(seen * math.prod(part.shape[1:]) for part in self._window_memory())
        return found

    def _host_buffers(self) -> list[Array]:
        return self.buffers

    def bind(self, session: Session, rows: int, num_logits: int, sequences: int = 0) -> BoundPass:
        """Bind buffers for passes of one shape to the graph."""
        binding = session.binding()
        self.bind_layers(binding, sequences=sequences)
        row_maps, window_maps = self.maps_of(sequences)
        states = None if self._memory is None else self._memory.inputs(max(sequences, 1))
        stream = None if self._stream is None else self._stream[:rows]
        if stream is not None:
            binding.bind_output(STREAM, stream)
        results = self.bind_results(binding, num_logits)
        return NativePass(binding, rows, results, row_maps, states, stream, window_maps)

    def check_places(self, session: Session, layers: range) -> None:
        """Compare where a graph of some layers computes them with where their caches lie: all is here."""

    def maps_of(self, sequences: int) -> tuple[Array, Array]:
        """Return the maps that passes of so many sequences read, to be written before; those of windows last."""
        return self._row_maps[:sequences], self._window_maps[:sequences]

    def hidden_rows(self, ends: Sequence[int], largest_pass: int) -> HiddenRows:
        """Return memory for the hidden states behind segments of a package; see ``HiddenRows``.

        Args:
            ends: how many layers the segments before each of these places compute.
        """
        from edge_rt.runtime.forward.hidden_rows import HiddenRows

        return HiddenRows(len(ends), self.model.hidden_size, largest_pass)

    def bind_layers(self, binding: Binding, names: Collection[str] | None = None, sequences: int = 0) -> None:
        """Bind the caches, their maps and the rotations; only inputs that are among ``names``, if these are given.

        Args:
            sequences: whose maps are ``maps_of``; 0: one that has the first rows to itself.
        """
        inputs: dict[str, Array | DeviceArray] = {"kv_formats": self._formats, **self._layer_arrays()}
        row_maps, window_maps = self.maps_of(sequences)
        if self.row_map is not None:
            inputs["row_map"] = row_maps if sequences else self.row_map[None]
        if self.window is not None:
            inputs["window_row_map"] = window_maps if sequences else self.window.row_map[None]
        for name, array in inputs.items():
            if names is None or name in names:
                binding.bind_input(name, array)

    def _layer_arrays(self) -> Mapping[str, Array | DeviceArray]:
        """Return name of an input -> the array that passes read where they run: rotations and caches."""
        caches = {
            f"cache.{layer}": buffer.view(np.float32) if layer in self._convs else buffer
            for layer, buffer in zip(self._layers, self.buffers, strict=False)
        }
        states = {} if self._memory is None else self._memory.arrays
        return {**self._rope_tables, **caches, **states}

    def _specs(self) -> Specs:
        return {**self.layer_specs(range(self.model.num_layers)), **self.output_specs()}

    def layer_specs(self, layers: range) -> Specs:
        """Return name -> shape and type of the inputs of a graph of some layers, without rotations and tokens."""
        model = self.model
        windows = model.layer_windows[layers.start : layers.stop]
        maps = {"row_map": 0 in windows, "window_row_map": any(windows)}
        sources = {model.kv_layer_of(i) if i in model.attention_layers else i for i in layers}
        kept = [i for i in model.cache_layers if i in sources]
        rows = {i: "window_rows" if model.layer_windows[i] else "capacity" for i in kept}
        return {
            "past_length": (("sequences",), "tensor(int32)"),
            **{name: (("sequences", "positions"), "tensor(int32)") for name, is_wanted in maps.items() if is_wanted},
            "parents": (("rows",), "tensor(int32)"),
            "sequence_rows": (("sequences",), "tensor(int32)"),
            "kv_formats": ((model.num_layers,), "tensor(int32)"),
            **{
                f"cache.{i}": ((size, model.hidden_size), "tensor(float)")
                if i in self._convs
                else ((2, self._heads(i)[0], size, "row_bytes"), "tensor(uint8)")
                for i, size in rows.items()
            },
            **state_specs(model, layers),
        }

    def output_specs(self) -> Specs:
        """Return name -> shape and type of what the head computes besides logits."""
        if not (top_tokens := self.top_tokens):
            return {}
        return {
            "top_ids": (("logit_rows", top_tokens), "tensor(int32)"),
            "top_logits": (("logit_rows", top_tokens), "tensor(float)"),
            "log_sum_exp": (("logit_rows",), "tensor(float)"),
        }


def hidden_output(model: Model) -> TensorSpec:
    """Return the value of a native graph that is the stream behind the last layer, of the rows that need logits."""
    return TensorSpec(f"layer{model.num_layers - 1}.down", ("logit_rows", model.hidden_size), "tensor(float)")


def stream_output(model: Model) -> TensorSpec:
    """Return the value of a native graph that is the same of all rows, in packages that have it."""
    return TensorSpec(STREAM, ("rows", model.hidden_size), "tensor(float)")


class Places:
    """The inputs of passes of one shape that give the positions of rows in their sequences.

    Args:
        row_maps: int32 ``[sequences, positions]``, to copy those of the parts to, which all passes share; without
            sequences there is one part, whose map is bound.
        window_maps: as ``row_maps``, of layers with a window; None: there are no such layers.
    """

    def __init__(self, rows: int, row_maps: Array, window_maps: Array | None) -> None:
        sequences = max(len(row_maps), 1)
        self._row_maps, self._window_maps = row_maps, window_maps
        self._past_length = np.zeros(sequences, np.int32)
        self._sequence_rows = np.zeros(sequences, np.int32)
        self._parents = np.zeros(rows, np.int32)
        self._chain = np.arange(-1, rows - 1, dtype=np.int32)

    def bind(self, binding: Binding) -> None:
        """Bind them to a graph."""
        binding.bind_input("past_length", self._past_length)
        binding.bind_input("sequence_rows", self._sequence_rows)
        binding.bind_input("parents", self._parents)

    def put(self, parts: Sequence[Part]) -> None:
        """Write them for the next run."""
        row = 0
        for index, part in enumerate(parts):
            count = len(part.token_ids)
            self._past_length[index] = part.start
            self._sequence_rows[index] = count
            self._parents[row : row + count] = self._chain[:count] if part.parents is None else part.parents
            used = part.start + count
            for maps, own in ((self._row_maps, part.row_map), (self._window_maps, part.window_map)):
                if maps is not None and own is not None:
                    maps[index, :used] = own[:used]
            row += count


class NativePass(BoundPass):
    """A pass of chains or trees; arguments as of ``BoundPass`` and ``Places``.

    Args:
        states: inputs of layers with states; None: there are none.
        stream: float32 ``[rows, hidden_size]``, which the graph writes; None: it does not.
    """

    def __init__(
        self,
        binding: Binding,
        rows: int,
        results: BoundResults,
        row_maps: Array,
        states: StateInputs | None = None,
        stream: Array | None = None,
        window_maps: Array | None = None,
    ) -> None:
        super().__init__(binding, rows, results)
        self._stream = stream
        self._places = Places(rows, row_maps, window_maps)
        self._places.bind(binding)
        self._states = states
        if states is not None:
            states.bind(binding)

    def run(self, switch: StopSwitch) -> Outputs:
        """Run the graph on what was set; see ``BoundPass.run``."""
        outputs = super().run(switch)
        outputs.stream, outputs.stream_rows = self._stream, self._logit_rows
        return outputs

    def _place(self, parts: Sequence[Part]) -> None:
        self._places.put(parts)
        if self._states is not None:
            self._states.set(parts)


def _spelled(formats: Sequence[str]) -> str:
    """Return the name of the only format, or the formats of consecutive layers: ``"f16 x 2, int4 x 28"``."""
    runs = [(name, len(list(run))) for name, run in groupby(formats)]
    return runs[0][0] if len(runs) == 1 else ", ".join(f"{name} x {count}" for name, count in runs)
