"""IO binding of native packages on edge-rt's own provider: cache and results in the memory of the device.

If the first layers are computed by the CPU, their cache is in this process.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from edge_rt.errors import UnsupportedModel
from edge_rt.ort.binding import Binding, StopSwitch
from edge_rt.ort.compute_device import ComputeDevice, DeviceArray, DeviceRows
from edge_rt.ort.session import Session
from edge_rt.package.ahead import STREAM
from edge_rt.package.decoder import Decoder
from edge_rt.package.kv_formats import portable_head_dim
from edge_rt.package.spec_modes import MAX_DRAFT
from edge_rt.package.states import CHECKPOINTS
from edge_rt.runtime.cache.window_copies import RowCopies
from edge_rt.runtime.forward.device_copies import DeviceRowCopies, DividedCopies, Planes
from edge_rt.runtime.forward.hidden_rows import DeviceHiddenRows, HiddenRows
from edge_rt.runtime.forward.io_binding_base import Array, BoundPass
from edge_rt.runtime.forward.io_binding_native import MOST_RECORDED, NativeIOBinding, NativePass
from edge_rt.runtime.forward.io_binding_portable import PortableIOBinding
from edge_rt.runtime.forward.outputs import BoundResults, DeviceOutputMemory, DeviceResults, Outputs, untouched
from edge_rt.runtime.forward.state_memory import StateInputs, StateMemory

_OF_LAYER: Final = re.compile(r"(?:cache|conv|state)\.([0-9]+)")
"""An input that is what a layer keeps."""


class GpuIOBinding(NativeIOBinding):
    """The native binding with each layer's cache where the layer is computed; tokens, parents and row maps are here.

    States of earlier texts are kept there as well. Arguments as of ``NativeIOBinding``, and:
    """

    def __init__(
        self,
        model: Decoder,
        capacity: int,
        kv_format: str | Sequence[str],
        *,
        device: ComputeDevice,
        largest_pass: int,
        sequences: int = 0,
        rows: int | None = None,
        drafts: int = MAX_DRAFT + 1,
        checkpoints: int = CHECKPOINTS,
        hidden: bool = False,
        stream: bool = False,
        host_layers: int = 0,
    ) -> None:
        # Keys and values are read where they lie.
        assert not host_layers or host_layers in model.divisions, (host_layers, model.divisions)
        self._device, self._host_layers = device, host_layers
        self._host_caches = bisect_left(model.cache_layers, host_layers)
        self._caches: list[DeviceArray] = []
        super().__init__(
            model,
            capacity,
            kv_format,
            sequences=sequences,
            rows=rows,
            largest_pass=largest_pass,
            drafts=drafts,
            checkpoints=checkpoints,
            hidden=hidden,
            stream=stream,
        )
        self.outputs = DeviceOutputMemory(device, model, model.hidden_size if hidden else 0)
        self._stream_there: DeviceArray | None = None
        if stream:
            zeros = np.zeros((min(largest_pass, capacity), model.hidden_size), np.float32)
            self._stream_there = DeviceArray(device, zeros)
        # What is read on both sides is read here, and ONNX Runtime makes the copy that the device needs.
        there = {} if host_layers else self._rope_tables
        self._tables = {name: DeviceArray(device, table) for name, table in there.items()}

    @property
    def _layers_there(self) -> tuple[int, ...]:
        """Numbers of the layers whose cache is on the device."""
        return self._layers[self._host_caches :]

    def _allocate(self, shapes: Sequence[tuple[int, ...]]) -> None:
        here, there = shapes[: self._host_caches], shapes[self._host_caches :]
        if here:
            super()._allocate(here)
        # One layer after the other: these zeros are read once, and need no memory of this process.
        self._caches = []
        for layer, shape in zip(self._layers_there, there, strict=True):
            zeros = np.zeros(shape, np.uint8)
            self._caches.append(DeviceArray(self._device, zeros.view(np.float32) if layer in self._convs else zeros))
        self.cache_bytes += sum(cache.nbytes for cache in self._caches)

    def _make_states(self, sequences: int, drafts: int, checkpoints: int) -> StateMemory:
        return StateMemory(self.model, sequences, drafts, checkpoints, self._device, self._host_layers)

    def _make_row_copies(self, most_rows: int, count: int) -> RowCopies:
        layers = [
            (cache, tuple(self._parts_there(layer, cache)))
            for layer, cache in zip(self._layers_there, self._caches, strict=True)
            if self.model.layer_windows[layer]
        ]
        copies: list[RowCopies] = [DeviceRowCopies(self._device, layers, most_rows, count)] if layers else []
        if self._window_memory():
            copies.append(super()._make_row_copies(most_rows, count))
        return copies[0] if len(copies) == 1 else DividedCopies(copies)

    def _parts_there(self, layer: int, cache: DeviceArray) -> Iterator[Planes]:
        """Yield where parts of the rows of a layer on the device lie in its memory."""
        if layer not in self._convs:
            yield from self._planes(layer, cache.shape[2])
            return
        rows = cache.shape[0]
        yield Planes(0, 0, 1, rows, cache.nbytes // rows)

    def _layer_arrays(self) -> Mapping[str, Array | DeviceArray]:
        there = zip(self._layers_there, self._caches, strict=False)
        caches = {f"cache.{layer}": cache for layer, cache in there}
        return {**super()._layer_arrays(), **self._tables, **caches}

    def check(self, session: Session) -> None:
        """Compare the graph with the manifest, and where it computes layers with where their caches lie."""
        super().check(session)
        self.check_places(session, range(self.model.num_layers))

    def check_places(self, session: Session, layers: range) -> None:
        """Compare where a graph of some layers computes them with where their caches lie."""
        known = {layer for layer in (*self._layers, *self.model.recurrent_layers) if layer in layers}
        wanted = {layer for layer in known if layer < self._host_layers}
        found = {int(one[1]) for one in map(_OF_LAYER.fullmatch, session.host_inputs) if one is not None}
        if found != wanted:
            raise UnsupportedModel(
                f"The execution provider for {self._device.text} computes other layers than it was asked to.",
                f"The CPU would compute {len(found)} of {len(known)} layers; {len(wanted)} were planned.",
                "Use the device cpu, or install edge-rt again.",
            )

    def sharing(self, *, reads_upper: bool) -> NativeIOBinding:
        """Return a binding of another graph on the device to the same cache; see ``NativeIOBinding.sharing``."""
        other = super().sharing(reads_upper=reads_upper)
        other.outputs = DeviceOutputMemory(self._device, self.model, 0)
        return other

    def release(self) -> None:
        """Release the buffers."""
        super().release()
        self._caches, self._tables, self._stream_there = [], {}, None

    def fill(self, rows: int) -> None:
        """Write the first rows of layers that the CPU computes.

        Those on a device begin as zeros, so that passes after them read finite numbers anyway.
        """
        super().fill(rows)

    def bind(self, session: Session, rows: int, num_logits: int, sequences: int = 0) -> BoundPass:
        """Bind buffers for passes of one shape to the graph."""
        binding = session.binding()
        self.bind_layers(binding, sequences=sequences)
        row_maps, window_maps = self.maps_of(sequences)
        states = None if self._memory is None else self._memory.inputs(max(sequences, 1))
        results, stream = self.bind_results(binding, num_logits), None
        if self._stream is not None and self._stream_there is not None:
            stream = self._stream[:rows]
            binding.bind_fetched(STREAM, DeviceRows(self._stream_there, stream.shape, np.float32), stream)
        return _GpuPass(binding, rows, results, row_maps, states, stream, window_maps)

    def bind_results(self, binding: Binding, num_logits: int, *, hidden: bool = True) -> BoundResults:
        """Bind the outputs of a graph on the device; see ``IOBinding.bind_results``.

        The graph of states ends with a norm that the CPU computes: its results are in this process.
        """
        if not isinstance(self.outputs, DeviceOutputMemory):
            return super().bind_results(binding, num_logits, hidden=hidden)
        return DeviceResults(binding, self.outputs, num_logits, self._hidden_name if hidden else None)

    def hidden_rows(self, ends: Sequence[int], largest_pass: int) -> HiddenRows:
        """Return memory for hidden states where layers read them; see ``NativeIOBinding.hidden_rows``."""
        here = sum(end < self._host_layers for end in ends)
        if here == len(ends):
            return super().hidden_rows(ends, largest_pass)
        return DeviceHiddenRows(self._device, len(ends), self.model.hidden_size, largest_pass, here)


class _GpuPass(NativePass):
    """A pass that is recorded when it comes again; arguments as of ``NativePass``."""

    def __init__(
        self,
        binding: Binding,
        rows: int,
        results: BoundResults,
        row_maps: Array,
        states: StateInputs | None,
        stream: Array | None,
        window_maps: Array | None,
    ) -> None:
        super().__init__(binding, rows, results, row_maps, states, stream, window_maps)
        # The first pass of a shape may be the last one. Several sequences share the rows in another way every time.
        self._is_small, self._has_run = rows <= MOST_RECORDED and not len(row_maps), False

    def run(self, switch: StopSwitch) -> Outputs:
        """Run the graph on what was set; see ``Binding.run`` for what is raised."""
        self.binding.run(switch, record=self._is_small and self._has_run)
        self._has_run = True
        outputs = self._results.collect()
        if self._stream is not None:
            self.binding.fetch([STREAM])
        outputs.stream, outputs.stream_rows = self._stream, self._logit_rows
        return outputs


class DeviceIOBinding(PortableIOBinding):
    """The portable binding with a cache that never leaves the device; tokens go there and logits come back."""

    def __init__(
        self,
        model: Decoder,
        capacity: int,
        kv_format: str,
        *,
        device: ComputeDevice,
    ) -> None:
        self._device = device
        super().__init__(model, capacity, kv_format)

    def _allocate(self, capacity: int) -> None:
        # One array for all: what is copied to the device is not written here.
        shape = (1, self.model.num_kv_heads, capacity, portable_head_dim(self.model.head_dim))
        empty = untouched(shape, np.float32)
        layers = range(self.model.num_layers)
        self.keys = [DeviceArray(self._device, empty) for _ in layers]
        self.values = [DeviceArray(self._device, empty) for _ in layers]
        self.cache_bytes = 2 * len(layers) * empty.nbytes
        self._tables = {name: DeviceArray(self._device, table) for name, table in self._rope_tables.items()}

    def _bind_rope(self, binding: Binding) -> None:
        for name, table in self._tables.items():
            binding.bind_input(name, table)

    def release(self) -> None:
        """Release the buffers."""
        super().release()
        self._tables = {}

    def fill(self, rows: int) -> None:
        """Do nothing: rows on a device begin as zeros, so that passes after them read finite numbers anyway."""
