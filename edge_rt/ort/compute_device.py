"""A device that an execution provider computes on, arrays in its memory, and where the nodes of a graph run."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.device.names import CUDA, GPU_LAYERS, DeviceName
from edge_rt.errors import DeviceMemoryExhausted, RuntimeUnavailable
from edge_rt.ort.errors import translate
from edge_rt.ort.onnxruntime_import import ort
from edge_rt.system.byte_size import show_size
from edge_rt.system.machine import install_command

if TYPE_CHECKING:
    # A process that opens no GPU does without it.
    from edge_rt.device.driver import GpuLibrary

Numbers = npt.NDArray[Any]
RECORDS: Final = "graphs"
"""Option of edge-rt's own provider: "1" records passes that have a number."""
_FIRST_LAYER: Final = "first_layer"
"""Option of edge-rt's own provider: the number of the first layer that it computes; the CPU computes those before."""
_CPU_PROVIDER: Final = "CPUExecutionProvider"


_MEMORY_OF_PASSES: Final = "pass_memory"
"""Option of edge-rt's own provider: a number of memory that sessions share, and its bytes, such as "7:1048576"."""
_MEMORIES: Final = itertools.count()


@dataclass(frozen=True)
class ComputeDevice:
    """A device of an execution provider.

    Attributes:
        is_software: whether a program on the CPU stands in for it.
        has_cpu_bits: whether results of edge-rt's own operators there are the CPU's to the last bit.
        handle: ONNX Runtime's object; None for a provider inside its wheel, which is asked for by name.
        details: further facts that measurements depend on, as a JSON object.
        library: that of edge-rt's own provider; None for the others.
        operations: what a self-test found, as ``SelfTest.operations``; empty where there was none.
    """

    name: DeviceName
    provider: str
    version: str
    text: str
    is_software: bool
    handle: Any = field(repr=False, compare=False)
    details: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    has_cpu_bits: bool = True
    library: GpuLibrary | None = field(default=None, repr=False, compare=False)
    operations: Mapping[str, str] = field(default_factory=dict, compare=False)

    def copy(self, to: Numbers, source: Numbers, sizes: Numbers) -> None:
        """Copy pieces of the device's memory to other places of it; none is written that another one is of.

        Args:
            to: their addresses there, whole numbers ``[pieces]``; likewise those here (``source``), and bytes
                (``sizes``).

        Raises:
            EdgeRTError: as a pass.
        """
        assert self.library is not None, "no provider of edge-rt's own"
        assert self.name.index is not None, self.name
        arrays = [np.ascontiguousarray(array, np.uint64) for array in (to, source, sizes)]
        assert len({array.shape for array in arrays}) == 1, arrays
        if said := self.library.copy(self.name.index, len(to), *(array.ctypes.data for array in arrays)):
            raise translate(RuntimeError(said), loading=False, is_on_device=True)

    def open(self, model: str | bytes, options: Any) -> Any:
        """Return an ``onnxruntime.InferenceSession`` on the device; the CPU takes nodes that its provider lacks."""
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        # Without enable_fallback=0 ONNX Runtime's Python code opens a session that failed again, on the CPU.
        if self.handle is not None:
            options.add_provider_for_devices([self.handle], dict(self.options))
            return ort.InferenceSession(model, options, enable_fallback=0)
        wanted = [(self.provider, dict(self.options)), _CPU_PROVIDER]
        session = ort.InferenceSession(model, options, providers=wanted, enable_fallback=0)
        # A provider whose libraries cannot be loaded is left out without an error.
        if self.provider not in session.get_providers():
            raise RuntimeUnavailable(
                f"ONNX Runtime cannot load its {self.provider}.",
                f"{why_not_loaded(self.provider)}.",
                f"Install the libraries of CUDA and cuDNN that it was built for, {install_command('gpu')}, or use "
                "the device cpu.",
            )
        return session

    def unrecorded(self) -> ComputeDevice:
        """Return the device for sessions some of whose nodes the CPU computes, on edge-rt's own provider.

        No pass there is recorded: for that all nodes must be on the device.
        """
        return replace(self, options={**self.options, RECORDS: "0"})

    def dividing(self, first_layer: int, count: int) -> ComputeDevice:
        """Return the same for sessions whose first layers the CPU computes.

        Args:
            first_layer: number of the first layer on the device, at least 1.
        """
        assert first_layer > 0, first_layer
        return replace(
            self.unrecorded(),
            options={**self.unrecorded().options, _FIRST_LAYER: str(first_layer)},
            details={**self.details, GPU_LAYERS: count},
        )

    def undivided(self) -> ComputeDevice:
        """Return the same for sessions that are there as a whole."""
        return replace(self, options={name: value for name, value in self.options.items() if name != _FIRST_LAYER})

    def sharing(self, pass_bytes: int) -> ComputeDevice:
        """Return the device for sessions of one model, on edge-rt's own provider, whose passes share their memory.

        They run one after the other.

        Args:
            pass_bytes: what the largest pass needs; one that needs more gets more.
        """
        return replace(self, options={**self.options, _MEMORY_OF_PASSES: f"{next(_MEMORIES)}:{pass_bytes}"})

    @property
    def tells_places(self) -> bool:
        """Whether sessions there say which inputs they read in this process; ONNX Runtime's own providers may not."""
        return RECORDS in self.options

    @property
    def facts(self) -> dict[str, Any]:
        """What measurements on the device depend on, as a JSON object."""
        named = {"device": str(self.name), "provider": self.provider, "version": self.version, "text": self.text}
        return {**named, **self.details}

    @property
    def records_passes(self) -> bool:
        """Whether sessions there record passes that have a number, and then start them again as a whole."""
        return self.options.get(RECORDS) == "1"


class DeviceArray:
    """An array in the memory of a device, which sessions on the device read and write in place.

    A session must have been opened on the device before: without a driver a provider refuses a session, but ends the
    process if it is asked for memory.

    Attributes:
        place: the device's memory, as ONNX Runtime names it.

    Args:
        values: what it holds at first; a provider may hand out memory again that held anything.
    """

    def __init__(self, device: ComputeDevice, values: npt.NDArray[Any]) -> None:
        self.nbytes, self.shape = values.nbytes, values.shape
        self.device = device
        self.place: tuple[Any, ...] = (CUDA, device.name.index)
        if device.handle is not None:
            memory = device.handle.memory_info(ort.OrtDeviceMemoryType.DEFAULT)
            self.place = ("gpu", memory.device_id, memory.device_vendor_id)
        try:
            self.value = ort.OrtValue.ortvalue_from_numpy(values, *self.place)
        except Exception as error:
            if isinstance(failed := translate(error, loading=False), RuntimeUnavailable):
                raise failed from error
            raise DeviceMemoryExhausted(
                "The memory of the device is exhausted.",
                f"{show_size(self.nbytes)} on {device.text}: {' '.join(str(error).split())[:200].rstrip('.')}.",
                "Load the model with a smaller context, or close another program that uses the device.",
            ) from error

    @property
    def address(self) -> int:
        """Where it lies in the device's memory."""
        return int(self.value.data_ptr())


@dataclass(frozen=True)
class DeviceRows:
    """Neighbouring rows of an array on a GPU of edge-rt's own provider, as an input or an output of a pass."""

    array: DeviceArray
    shape: tuple[int, ...]
    dtype: npt.DTypeLike
    first: int = 0

    @property
    def address(self) -> int:
        """Where they lie in the device's memory."""
        row_bytes = math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize
        assert (self.first + self.shape[0]) * row_bytes <= self.array.nbytes, (self.first, self.shape)
        return self.array.address + self.first * row_bytes


@dataclass(frozen=True)
class PlacedNode:
    """A node of a graph, and the execution provider that computes it."""

    name: str
    operator: str
    provider: str

    @property
    def is_on_cpu(self) -> bool:
        """Whether the CPU computes it."""
        return self.provider == _CPU_PROVIDER


def why_not_loaded(provider: str) -> str:
    """Return what the system's loader says of the library of a provider inside ONNX Runtime's wheel."""
    name = f"libonnxruntime_providers_{provider.removesuffix('ExecutionProvider').lower()}.so"
    try:
        ctypes.CDLL(str(Path(ort.__file__).parent / "capi" / name))
    except OSError as error:
        return str(error).rstrip(".")
    return f"{name} can be loaded, but does not start"


def placement_of(session: Any) -> tuple[PlacedNode, ...]:
    """Return the nodes of an ``onnxruntime.InferenceSession`` that was opened on a device."""
    parts = session.get_provider_graph_assignment_info()
    return tuple(PlacedNode(node.name, node.op_type, part.ep_name) for part in parts for node in part.get_nodes())
