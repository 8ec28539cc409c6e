"""IO binding of native packages on edge-rt's own provider: cache and results in the memory of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from edge_rt.binding import Binding, StopSwitch
from edge_rt.compute_device import ComputeDevice, DeviceArray
from edge_rt.package.decoder import Decoder
from edge_rt.package.manifest import ModelConfig
from edge_rt.runtime.graph.bound_results import BoundResults, DeviceOutputMemory, DeviceResults
from edge_rt.runtime.graph.hidden_rows import DeviceHiddenRows, HiddenRows
from edge_rt.runtime.graph.io_binding_base import Array, BoundPass
from edge_rt.runtime.graph.io_binding_native import NativeIOBinding, NativePass
from edge_rt.runtime.graph.outputs import Outputs
from edge_rt.session import Session

MOST_RECORDED: Final = 16
"""Rows of the largest pass that is recorded: what decoding computes again and again. Prompts have many lengths."""


class CudaIOBinding(NativeIOBinding):
    """The native binding with a cache that never leaves the device; tokens, parents and row maps are read here.

    Arguments as of ``NativeIOBinding``, and:

    Args:
        device: where the cache lies.

    Raises:
        MemoryBudgetExceeded: the device has too little memory.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        kv_format: str | Sequence[str],
        *,
        device: ComputeDevice,
        largest_pass: int,
        decoder: Decoder | None = None,
        hidden: bool = False,
    ) -> None:
        self._device = device
        self._caches: list[DeviceArray] = []
        super().__init__(config, capacity, kv_format, largest_pass=largest_pass, decoder=decoder, hidden=hidden)
        self.outputs = DeviceOutputMemory(device, config, config.hidden_size if hidden else 0)
        self._tables = {name: DeviceArray(device, table) for name, table in self._rope_tables.items()}

    def _allocate(self, shapes: Sequence[tuple[int, ...]]) -> None:
        # One layer after the other: these zeros are read once, and need no memory of this process.
        self._caches = [DeviceArray(self._device, np.zeros(shape, np.uint8)) for shape in shapes]
        self.cache_bytes = sum(cache.nbytes for cache in self._caches)

    def _layer_arrays(self) -> Mapping[str, Array | DeviceArray]:
        return {**self._tables, **{f"cache.{layer}": cache for layer, cache in enumerate(self._caches)}}

    def sharing(self, *, reads_upper: bool) -> NativeIOBinding:
        """Return a binding of another graph on the device to the same cache; see ``NativeIOBinding.sharing``."""
        other = super().sharing(reads_upper=reads_upper)
        other.outputs = DeviceOutputMemory(self._device, self.config, 0)
        return other

    def release(self) -> None:
        """Release the buffers."""
        super().release()
        self._caches, self._tables = [], {}

    def fill(self, rows: int) -> None:
        """Do nothing: rows on a device begin as zeros, so that passes after them read finite numbers anyway."""

    def bind(self, session: Session, rows: int, num_logits: int) -> BoundPass:
        """Bind buffers for passes of one shape to the graph."""
        binding = session.binding()
        self.bind_layers(binding)
        return _CudaPass(binding, rows, self.bind_results(binding, num_logits))

    def bind_results(self, binding: Binding, num_logits: int, *, hidden: bool = True) -> BoundResults:
        """Bind the outputs of a graph on the device that ends with the head; see ``IOBinding.bind_results``."""
        assert isinstance(self.outputs, DeviceOutputMemory)
        return DeviceResults(binding, self.outputs, num_logits, self._hidden_name if hidden else None)

    def hidden_rows(self, segments: int, largest_pass: int) -> HiddenRows:
        """Return memory on the device for hidden states; see ``NativeIOBinding.hidden_rows``."""
        return DeviceHiddenRows(self._device, segments, self.config.hidden_size, largest_pass)


class _CudaPass(NativePass):
    """A pass that is recorded when it comes again; arguments as of ``BoundPass``."""

    def __init__(self, binding: Binding, rows: int, results: BoundResults) -> None:
        super().__init__(binding, rows, results)
        # The first pass of a shape may be the last one.
        self._is_small, self._has_run = rows <= MOST_RECORDED, False

    def run(self, switch: StopSwitch) -> Outputs:
        """Run the graph on what was set; see ``Binding.run`` for what is raised."""
        self.binding.run(switch, record=self._is_small and self._has_run)
        self._has_run = True
        return self._results.collect()
