"""Measures how much of a GPU's own memory this process takes."""

from __future__ import annotations

from edge_rt.device_names import CUDA, parse_device
from edge_rt.gpu_provider import INSTALLED, GpuProvider


class DeviceMemory:
    """Compares what is free on a GPU with what was free when this was made.

    CUDA's context is open at both moments and does not count. What other programs take or give back meanwhile does.

    Args:
        device: name of the device.
        own: edge-rt's own provider.

    Raises:
        ConfigError: the device is unknown.
        RuntimeUnavailable, VersionMismatch: there is no such GPU, or it cannot be used.
    """

    def __init__(self, device: str, own: GpuProvider = INSTALLED) -> None:
        name = parse_device(device)
        self._number, self._own = name.index, own
        # Memory that is shared with all other programs tells nothing.
        self._is_measured = name.kind == CUDA and not own.library.report().gpu(name.index).is_integrated
        self._free = self._free_bytes() if self._is_measured else 0

    def facts(self) -> dict[str, int]:
        """Return what this process takes as ``device_bytes``; nothing where that cannot be measured."""
        return {"device_bytes": max(0, self._free - self._free_bytes())} if self._is_measured else {}

    def _free_bytes(self) -> int:
        return self._own.library.free_bytes(self._number)
