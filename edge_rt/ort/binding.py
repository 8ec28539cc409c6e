"""Arrays bound to the inputs and outputs of a session, and runs on them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import numpy as np

from edge_rt.errors import Cancelled
from edge_rt.ort.compute_device import DeviceArray, DeviceRows
from edge_rt.ort.errors import translate
from edge_rt.ort.onnxruntime_import import ort

_NO_RECORD: Final = -1
"""As the number of a run: it is not recorded."""


class Stoppable(Protocol):
    """What a run may wait for inside a node."""

    def stop(self, *, is_stopped: bool) -> None:
        """Let runs that wait for it fail, and those to come, until it is taken back."""


class StopSwitch:
    """Stops a run from another thread or a signal handler; can be used again after ``reset``.

    edge-rt keeps a flag of its own because ONNX Runtime has no error code for a terminated run.
    """

    def __init__(self) -> None:
        # A plain flag: a signal handler must not wait for a lock that it interrupted.
        self._is_set = False
        self._options: dict[int, Any] = {}
        self._waiting: list[weakref.ref[Stoppable]] = []
        self.run_options(_NO_RECORD)

    @property
    def is_set(self) -> bool:
        """True from ``stop`` until ``reset``."""
        return self._is_set

    def stop(self) -> None:
        """End the current run, and every later one, as soon as the running node returns."""
        self._is_set = True
        for options in list(self._options.values()):
            options.terminate = True
        self._tell(is_stopped=True)

    def reset(self) -> None:
        """Allow runs again."""
        self._is_set = False
        for options in list(self._options.values()):
            options.terminate = False
        self._tell(is_stopped=False)

    def stops(self, one: Stoppable) -> None:
        """Stop something as well that runs wait for, as long as somebody else holds it."""
        self._waiting.append(weakref.ref(one))

    def _tell(self, *, is_stopped: bool) -> None:
        for waiting in self._waiting:
            if (one := waiting()) is not None:
                one.stop(is_stopped=is_stopped)

    def forget(self, number: int) -> None:
        """Drop the options of runs that are recorded under a number; they are made again if they are asked for."""
        self._options.pop(number, None)

    def run_options(self, number: int = _NO_RECORD) -> Any:
        """Return the ``onnxruntime.RunOptions`` that carry the flag to runs that are recorded under a number."""
        if (found := self._options.get(number)) is not None:
            return found
        options = ort.RunOptions()
        # ONNX Runtime's Python code looks this up at every run, and raises and catches an exception if it is missing,
        # which takes as long as a layer of a small model.
        options.add_run_config_entry("gpu_graph_id", str(number))
        options.log_severity_level = 4
        self._options[number] = options
        # It may have been stopped in between.
        options.terminate = self._is_set
        return options


class Binding:
    """Arrays bound to the inputs and outputs of a session; ONNX Runtime reads and writes them in place.

    On a device, arrays of this process are copied at every run: inputs before it, outputs behind it. A cache that is
    bound as input and as output must therefore be an array of the device. Bound arrays are kept alive here. An array
    may be bound to an input and an output at once: that is how the KV cache is updated without a copy.

    Args:
        tells_places: on a device: whether the session says which inputs it reads in this process. These are bound once,
            and may be written by passes, as the cache of layers that the CPU computes is.
        number: on a device that records passes: the number that this binding's are recorded under, which no other
            binding of the session has. A recorded pass reads and writes the same memory when it is started again, so
            all arrays that the device reads must be its own. None: they are not recorded.
    """

    def __init__(
        self, session: Any, *, is_on_device: bool = False, tells_places: bool = False, number: int | None = None
    ) -> None:
        self._session = session
        self._is_on_device = is_on_device
        self._binding = session.io_binding()
        self._values: dict[str, Any] = {}
        self._copied: dict[str, Any] = {}
        self._outputs: list[str] = []
        self._fetched: dict[str, Any] = {}
        self._number = _NO_RECORD if number is None else number
        self._read_here = inputs_of_the_host(session) if tells_places else frozenset()
        self._is_recorded = False

    def bind_input(self, name: str, array: np.ndarray[Any, Any] | DeviceArray | DeviceRows) -> None:
        """Bind a C-contiguous array, or an array or rows of the device, to an input."""
        if isinstance(array, DeviceRows):
            self._binding._iobinding.bind_input(name, _place(array), array.dtype, array.shape, array.address)
            self._values[name] = array
            return
        value = self._value(name, array)
        if self._is_on_device and not isinstance(array, DeviceArray) and name not in self._read_here:
            assert self._number == _NO_RECORD, name
            self._copied[name] = value
        else:
            self._binding.bind_ortvalue_input(name, value)

    def bind_output(self, name: str, array: np.ndarray[Any, Any] | DeviceArray | DeviceRows) -> None:
        """Bind a writable C-contiguous array, or an array or rows of the device, to an output."""
        if isinstance(array, DeviceRows):
            self._binding._iobinding.bind_output(name, _place(array), array.dtype, array.shape, array.address)
            self._values[name] = array
            return
        assert isinstance(array, DeviceArray) or array.flags.writeable, name
        self._binding.bind_ortvalue_output(name, self._value(name, array))

    def bind(self, inputs: Mapping[str, np.ndarray[Any, Any]], outputs: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Bind arrays by name, as ``bind_input`` and ``bind_output`` do."""
        for name, array in inputs.items():
            self.bind_input(name, array)
        for name, array in outputs.items():
            self.bind_output(name, array)

    def bind_fetched(self, name: str, rows: DeviceRows, array: np.ndarray[Any, Any]) -> None:
        """Bind rows of the device to an output, of which ``fetch`` makes a copy in this process.

        All outputs of the binding are bound so, each once.

        Args:
            array: receives the copy, of the same shape and dtype.
        """
        assert array.flags.writeable, name
        assert (array.shape, array.dtype) == (rows.shape, rows.dtype), name
        self.bind_output(name, rows)
        # What keeps the rows alive.
        self._values[f"{name} on the device"] = rows
        self._value(name, array)
        self._outputs.append(name)

    def fetch(self, names: Sequence[str]) -> None:
        """Copy outputs of the last run from the device; their names are those of ``bind_fetched``."""
        if not self._fetched:
            # Only now: these values lie in a list of ONNX Runtime's, which moves when another output is bound.
            self._fetched = dict(zip(self._outputs, self._binding.get_outputs(), strict=True))
        try:
            ort.copy_tensors([self._fetched[name] for name in names], [self._values[name] for name in names])
        except Exception as error:
            raise translate(error, loading=False, is_on_device=True) from error

    def _value(self, name: str, array: np.ndarray[Any, Any] | DeviceArray) -> Any:
        if isinstance(array, DeviceArray):
            self._values[name] = array.value
            return array.value
        # ONNX Runtime silently copies a non-contiguous array, and its output is lost.
        assert array.flags.c_contiguous, name
        value = ort.OrtValue.ortvalue_from_numpy(array)
        self._values[name] = value
        return value

    def run(self, switch: StopSwitch, *, record: bool = False) -> None:
        """Run the graph once on the bound arrays.

        Args:
            record: whether the pass is recorded, or started as it was recorded; ignored where none are. The run that
                records it computes it twice.
        """
        if switch.is_set:
            raise Cancelled("The run was stopped.")
        try:
            # ONNX Runtime copies such an input when it is bound, and would not see what is written to it later.
            for name, value in self._copied.items():
                self._binding.bind_ortvalue_input(name, value)
            number = self._number if record else _NO_RECORD
            if number != _NO_RECORD and not self._is_recorded:
                self._is_recorded = True
                weakref.finalize(self, _forget, self._session, switch, number).atexit = False
            self._session.run_with_iobinding(self._binding, switch.run_options(number))
        except Exception as error:
            if switch.is_set:
                raise Cancelled("The run was stopped.") from error
            raise translate(error, loading=False, is_on_device=self._is_on_device) from error


def _place(rows: DeviceRows) -> Any:
    """Return ONNX Runtime's object for the device of rows, as functions take it that bind memory by its address."""
    # The public functions take no vendor, and mean another one than the provider's in older versions.
    return ort.OrtDevice.make(*rows.array.place)._get_c_device()


def inputs_of_the_host(session: Any) -> frozenset[str]:
    """Return the names of inputs that a session on a device reads in this process."""
    places = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
    return frozenset(value.name for value, place in places if place.device_vendor_id == 0)


def _forget(session: Any, switch: StopSwitch, number: int) -> None:
    """Release a recorded pass; older versions of ONNX Runtime keep it as long as the session."""
    switch.forget(number)
    with suppress(AttributeError):
        session.release_captured_graph(number)
