"""IO binding of native packages on edge-rt's own provider: cache and results in the memory of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from edge_rt.binding import Binding, StopSwitch
from edge_rt.compute_device import ComputeDevice, DeviceArray, DeviceRows
from edge_rt.package.decoder import Decoder
from edge_rt.package.manifest import ModelConfig
from edge_rt.runtime.graph.io_binding_base import Array, BoundPass
from edge_rt.runtime.graph.io_binding_native import NativeIOBinding, NativePass
from edge_rt.runtime.graph.outputs import OutputMemory, Outputs
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
        assert isinstance(self.outputs, DeviceOutputMemory)
        binding = session.binding()
        self.bind_layers(binding)
        names = [output.name for output in self.more_outputs]
        return _CudaPass(binding, rows, self.outputs, num_logits, *names)


class DeviceOutputMemory(OutputMemory):
    """Memory of results on a device, and here for what is copied of them.

    Args:
        device: the device.
        config: of the model.
        hidden_size: as of ``OutputMemory``.
    """

    def __init__(self, device: ComputeDevice, config: ModelConfig, hidden_size: int) -> None:
        self._device = device
        self._there: dict[str, DeviceArray] = {}
        super().__init__(config.vocab_size, config.top_tokens, hidden_size)

    def place(self, name: str, array: Array) -> DeviceRows:
        """Return where rows of an array of ``first`` are written on the device.

        Args:
            name: ``"logits"``, ``"top_ids"``, ``"top_logits"``, ``"log_sum_exp"`` or ``"hidden"``.
            array: the rows here.
        """
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


def named_outputs(outputs: Outputs) -> dict[str, npt.NDArray[np.generic]]:
    """Return name -> array of all results."""
    arrays = {"logits": outputs.logits}
    if (top := outputs.top) is not None:
        arrays |= {"top_ids": top.ids, "top_logits": top.logits, "log_sum_exp": top.log_sum_exp}
    if outputs.hidden is not None:
        arrays["hidden"] = outputs.hidden
    return arrays


class _Logits:
    """Copies the logits of a binding's last run when somebody reads them, once.

    It does not know its pass, which would keep itself alive through its own results.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self.is_fetched = False

    def __call__(self) -> None:
        if not self.is_fetched:
            self._binding.fetch(["logits"])
            self.is_fetched = True


class _CudaPass(NativePass):
    """A pass whose results are written on the device; of the logits a copy is made only when somebody reads them."""

    def __init__(
        self, binding: Binding, rows: int, memory: DeviceOutputMemory, num_logits: int, hidden_name: str | None = None
    ) -> None:
        self._memory = memory
        self._names: list[str] = []
        super().__init__(binding, rows, memory.first(num_logits), hidden_name)
        self._logits = _Logits(binding)
        self._results = self.outputs.fetched_by(self._logits)
        # The first pass of a shape may be the last one.
        self._is_small, self._has_run = rows <= MOST_RECORDED, False

    def _bind_outputs(self, hidden_name: str | None) -> None:
        for name, array in named_outputs(self.outputs).items():
            output = hidden_name if name == "hidden" else name
            assert output is not None
            self.binding.bind_fetched(output, self._memory.place(name, array), array)
            if name != "logits":
                self._names.append(output)

    def run(self, switch: StopSwitch) -> Outputs:
        """Run the graph on what was set; see ``Binding.run`` for what is raised."""
        self._logits.is_fetched = False
        self.binding.run(switch, record=self._is_small and self._has_run)
        self._has_run = True
        self.binding.fetch(self._names)
        return self._results
