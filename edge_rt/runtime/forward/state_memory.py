"""Memory of the states of layers that have some, and the inputs that say which of them a pass reads and writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.ort.binding import Binding
from edge_rt.ort.compute_device import ComputeDevice, DeviceArray
from edge_rt.package.decoder import Decoder
from edge_rt.package.op_list import STATE_INPUTS
from edge_rt.package.states import SLOTS, state_sizes
from edge_rt.runtime.cache.checkpoints import Checkpoints, HostStateCopies
from edge_rt.runtime.cache.state_slots import StateSlots
from edge_rt.runtime.forward.device_copies import DeviceStateCopies
from edge_rt.runtime.forward.io_binding_base import Part, Specs
from edge_rt.runtime.forward.outputs import give_back, untouched

Array = npt.NDArray[Any]


class States(ABC):
    """States of one or several sequences, each with two slots and room for what drafts change.

    Attributes:
        arrays: name of a graph's input -> float32 ``[sequences, 2, numbers of a slot]``, where passes run.
        slots: the bookkeeping of every sequence.
        nbytes: of all arrays.
    """

    arrays: Mapping[str, Array | DeviceArray]
    slots: tuple[StateSlots, ...]
    nbytes: int

    def inputs(self, sequences: int) -> StateInputs:
        """Return inputs for passes of so many sequences."""
        return StateInputs(sequences, self.slots[0].most_drafts, self.slots[0])

    @abstractmethod
    def forget(self) -> None:
        """Return memory of this process to the system; no states of earlier texts are kept afterwards."""

    @abstractmethod
    def release(self) -> None:
        """Release the memory."""


class StateMemory(States):
    """States in this process; pages that no pass has written take no memory.

    Args:
        sequences: whose states are kept.
        drafts: most of a pass.
        checkpoints: states of earlier texts that are kept.
    """

    arrays: dict[str, Array]

    def __init__(self, model: Decoder, sequences: int, drafts: int, checkpoints: int) -> None:
        sizes, bare = state_sizes(model, drafts), state_sizes(model, 0)
        self._memory = untouched((sequences * SLOTS * sum(sizes.values()),), np.float32)
        kept = (checkpoints, sum(bare.values()))
        self._kept = untouched(kept, np.float32) if checkpoints else np.empty(kept, np.float32)
        self.nbytes = self._memory.nbytes + self._kept.nbytes
        self.arrays = {}
        begin = 0
        for name, size in sizes.items():
            end = begin + sequences * SLOTS * size
            self.arrays[name] = self._memory[begin:end].reshape(sequences, SLOTS, size)
            begin = end
        self._checkpoints = Checkpoints(HostStateCopies(self.arrays, bare, self._kept))
        self.slots = tuple(StateSlots(index, drafts, self._checkpoints) for index in range(sequences))

    def forget(self) -> None:
        """Return the memory to the system; the states are zeros afterwards, and none are kept."""
        self._checkpoints.forget()
        give_back(self._memory)
        if self._kept.size:
            give_back(self._kept)

    def release(self) -> None:
        """Release the memory."""
        self._checkpoints.release()
        self.arrays.clear()
        self._memory = self._kept = np.empty(0, np.float32)


class DeviceStateMemory(States):
    """States of one or several sequences in the memory of a device, and those of earlier texts that are kept there.

    Args:
        drafts: most of a pass.
        checkpoints: states of earlier texts that are kept.
    """

    arrays: dict[str, DeviceArray]

    def __init__(self, device: ComputeDevice, model: Decoder, sequences: int, drafts: int, checkpoints: int) -> None:
        # One layer after the other: these zeros are read once, and need no memory of this process.
        self.arrays = {
            name: DeviceArray(device, np.zeros((sequences, SLOTS, size), np.float32))
            for name, size in state_sizes(model, drafts).items()
        }
        self._copies = DeviceStateCopies(device, self.arrays, state_sizes(model, 0), checkpoints)
        self._checkpoints = Checkpoints(self._copies)
        self.slots = tuple(StateSlots(number, drafts, self._checkpoints) for number in range(sequences))
        self.nbytes = sum(array.nbytes for array in self.arrays.values()) + self._copies.nbytes

    def forget(self) -> None:
        """Keep no states of earlier texts any more; a text that begins reads none."""
        self._checkpoints.forget()

    def release(self) -> None:
        """Release the memory."""
        self._checkpoints.release()
        self._copies.release()
        self.arrays.clear()


class StateInputs:
    """The inputs of passes of one shape that say what happens to states.

    Args:
        drafts: most of a pass.
        usual: the states of parts that name none.
    """

    def __init__(self, sequences: int, drafts: int, usual: StateSlots) -> None:
        self._usual = usual
        self._index, self._slot, self._certain = (np.zeros(sequences, np.int32) for _ in range(3))
        self._advance = np.full((sequences, drafts), -1, np.int32)

    def bind(self, binding: Binding) -> None:
        """Bind them to a graph."""
        arrays = (self._index, self._slot, self._advance, self._certain)
        for name, array in zip(STATE_INPUTS, arrays, strict=True):
            binding.bind_input(name, array)

    def set(self, parts: Sequence[Part]) -> None:
        """Write them for the next run."""
        for number, part in enumerate(parts):
            states = part.states or self._usual
            self._index[number], self._slot[number] = states.index, states.slot
            self._certain[number] = states.certain(len(part.token_ids))
            count = len(states.advance)
            self._advance[number, :count] = states.advance
            self._advance[number, count:] = -1


def state_specs(model: Decoder, layers: range) -> Specs:
    """Return name -> shape and type of the inputs of a graph of some layers that are for states."""
    found: Specs = {
        f"{kind}.{layer}": (("states", SLOTS, f"{kind}_floats"), "tensor(float)")
        for layer in layers
        if layer in model.recurrent_layers
        for kind in ("conv", "state")
    }
    if found:
        found |= {name: (shape, "tensor(int32)") for name, shape in STATE_INPUTS.items()}
    return found
