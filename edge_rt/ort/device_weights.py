"""Weights of a package in a GPU's memory, for edge-rt's own provider: ONNX Runtime neither allocates nor copies them.

They lie there once for all graphs. Where the GPU shares the machine's memory, and its driver takes pages of a file,
they are read where the file is mapped; elsewhere they are copied, in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from edge_rt.errors import EdgeRTError
from edge_rt.ort.compute_device import ComputeDevice
from edge_rt.ort.errors import translate
from edge_rt.package.graph_check import StoredTensor
from edge_rt.package.layer_sizes import names_of_host, nodes_in_order
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import Package

if TYPE_CHECKING:
    # A process that opens no GPU does without it.
    from edge_rt.device.driver import LaidWeights

_ITEM_BYTES: Final = {1: 4, 2: 1}
"""Types of the constants of native graphs, as ONNX numbers them: float32 and uint8 -> bytes."""
_MOST_DIMENSIONS: Final = 8


class LaidConstants:
    """Constants of a graph that lie in a GPU's memory; a session keeps this object."""

    def __init__(self, weights: LaidWeights, library: str, tensors: Mapping[str, StoredTensor]) -> None:
        self._weights, self._library, self._tensors = weights, library, tensors

    @contextmanager
    def added_to(self, options: Any) -> Generator[None]:
        """Context manager: they are in an ``onnxruntime.SessionOptions``, and this thread opens a session with it."""
        try:
            for name, place in self._tensors.items():
                self._weights.offer(name, (place.offset, place.length), place.type, place.shape)
            # The library has no operators: so it gets hold of the options.
            options.register_custom_ops_library(self._library)
            yield
        finally:
            self._weights.withdraw()


class DeviceWeights:
    """``weights.bin`` of a package on a GPU.

    Args:
        graphs: those that run there.
        host_layers: how many layers the CPU computes; what its nodes read is left to ONNX Runtime.

    Raises:
        EdgeRTError: the file cannot be read, the GPU fails, or has no memory for them.
    """

    def __init__(self, package: Package, device: ComputeDevice, graphs: Collection[str], host_layers: int = 0) -> None:
        assert device.library is not None, device
        assert device.name.index is not None, device
        self._path = str(device.library.path)
        self._of_graph = {graph: _tensors(package, graph, host_layers) for graph in graphs}
        parts = {(one.offset, one.length) for tensors in self._of_graph.values() for one in tensors.values()}
        size = package.manifest.files[WEIGHTS_FILE].size
        try:
            self.laid = device.library.lay_weights(device.name.index, package.file(WEIGHTS_FILE), size, sorted(parts))
        except MemoryError:
            raise
        except Exception as error:
            raise _refused(error, device) from error

    def constants(self, graph: str) -> LaidConstants:
        """Return those of a graph."""
        return LaidConstants(self.laid, self._path, self._of_graph[graph])


def _refused(error: Exception, device: ComputeDevice) -> EdgeRTError:
    # What is not said to be of another kind is the device's.
    return translate(RuntimeError(f"EPFail: {error}"), loading=True, device=device.text)


def _tensors(package: Package, graph: str, host_layers: int) -> dict[str, StoredTensor]:
    """Return the constants of a graph that lie on a GPU, but those whose type, shape and bytes do not fit together."""
    found = {name: place for name, place in package.tensors[graph].items() if _fits(place)}
    of_host = names_of_host(nodes_in_order(package.file(graph)), host_layers) if host_layers else set()
    return {name: place for name, place in found.items() if name not in of_host}


def _fits(place: StoredTensor) -> bool:
    item = _ITEM_BYTES.get(place.type)
    if item is None or place.length == 0 or len(place.shape) > _MOST_DIMENSIONS:
        return False
    return math.prod(place.shape) * item == place.length
