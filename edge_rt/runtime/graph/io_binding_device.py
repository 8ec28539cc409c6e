"""IO binding of portable packages on a device: GroupQueryAttention's cache in the memory of the device."""

from __future__ import annotations

import numpy as np

from edge_rt.binding import Binding
from edge_rt.compute_device import ComputeDevice, DeviceArray
from edge_rt.kv_formats import portable_head_dim
from edge_rt.package.decoder import Decoder
from edge_rt.package.manifest import ModelConfig
from edge_rt.runtime.graph.io_binding_portable import PortableIOBinding
from edge_rt.runtime.graph.outputs import untouched


class DeviceIOBinding(PortableIOBinding):
    """The portable binding with a cache that never leaves the device; tokens go there and logits come back.

    Args:
        device: where the cache lies.

    Raises:
        MemoryBudgetExceeded: the device has too little memory.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        kv_format: str,
        *,
        device: ComputeDevice,
        decoder: Decoder | None = None,
    ) -> None:
        self._device = device
        super().__init__(config, capacity, kv_format, decoder=decoder)

    def _allocate(self, capacity: int) -> None:
        # One array for all: what is copied to the device is not written here.
        shape = (1, self.config.num_kv_heads, capacity, portable_head_dim(self.config.head_dim))
        empty = untouched(shape, np.float32)
        layers = range(self.config.num_layers)
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
