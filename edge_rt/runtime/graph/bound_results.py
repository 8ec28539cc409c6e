"""Results of graphs that end with the head, bound to the memory that their runs write: here, or on a device."""

from __future__ import annotations

import numpy as np

from edge_rt.binding import Binding
from edge_rt.compute_device import ComputeDevice, DeviceArray, DeviceRows
from edge_rt.package.manifest import ModelConfig
from edge_rt.runtime.graph.outputs import Array, OutputMemory, Outputs


class BoundResults:
    """All outputs of a graph, written in this process.

    Args:
        binding: ONNX Runtime's binding, which receives the memory.
        outputs: the memory, for the rows that need logits; runs of other shapes write it as well.
        hidden_name: the output that is the hidden states; None: they are not wanted.

    Attributes:
        num_logits: the number of these rows.
    """

    def __init__(self, binding: Binding, outputs: Outputs, hidden_name: str | None = None) -> None:
        self.num_logits = len(outputs.logits)
        self._outputs = outputs
        for name, array in named_outputs(outputs).items():
            if name != "hidden":
                self._bind(binding, name, name, array)
            elif hidden_name is not None:
                self._bind(binding, name, hidden_name, array)

    def _bind(self, binding: Binding, name: str, output: str, array: Array) -> None:
        """Bind the memory of a result, which has a name in ``named_outputs``, to an output."""
        del name
        binding.bind_output(output, array)

    def collect(self) -> Outputs:
        """Return the results of the last run.

        Raises:
            InferenceError, RuntimeUnavailable: the device failed.
        """
        return self._outputs


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


class DeviceResults(BoundResults):
    """Results that are written on a device; of the logits a copy is made only when somebody reads them.

    Args:
        binding: as of ``BoundResults``.
        memory: has room for them.
        num_logits: rows that need logits.
        hidden_name: as of ``BoundResults``.
    """

    def __init__(
        self, binding: Binding, memory: DeviceOutputMemory, num_logits: int, hidden_name: str | None = None
    ) -> None:
        self._memory = memory
        self._names: list[str] = []
        super().__init__(binding, memory.first(num_logits), hidden_name)
        self._binding, self._logits = binding, _Logits(binding)
        self._outputs = self._outputs.fetched_by(self._logits)

    def _bind(self, binding: Binding, name: str, output: str, array: Array) -> None:
        binding.bind_fetched(output, self._memory.place(name, array), array)
        if name != "logits":
            self._names.append(output)

    def collect(self) -> Outputs:
        """Return the results of the last run; see ``BoundResults.collect``."""
        self._logits.is_fetched = False
        self._binding.fetch(self._names)
        return self._outputs


class _Logits:
    """Copies the logits of a binding's last run when somebody reads them, once.

    It does not know the results, which would keep themselves alive through it.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self.is_fetched = False

    def __call__(self) -> None:
        if not self.is_fetched:
            self._binding.fetch(["logits"])
            self.is_fetched = True


def named_outputs(outputs: Outputs) -> dict[str, Array]:
    """Return name -> array of all results."""
    arrays = {"logits": outputs.logits}
    if (top := outputs.top) is not None:
        arrays |= {"top_ids": top.ids, "top_logits": top.logits, "log_sum_exp": top.log_sum_exp}
    if outputs.hidden is not None:
        arrays["hidden"] = outputs.hidden
    return arrays
