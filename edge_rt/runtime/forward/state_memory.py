"""Memory of the states of layers that have some, and the inputs that say which of them a pass reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.ort.binding import Binding
from edge_rt.ort.compute_device import ComputeDevice, DeviceArray
from edge_rt.package.decoder import Decoder
from edge_rt.package.op_list import STATE_INPUTS
from edge_rt.package.states import SLOTS, state_sizes
from edge_rt.runtime.cache.checkpoints import Checkpoints, HostStateCopies, StateCopies
from edge_rt.runtime.cache.state_slots import StateSlots
from edge_rt.runtime.forward.device_copies import DeviceStateCopies, DividedCopies
from edge_rt.runtime.forward.io_binding_base import Part, Specs
from edge_rt.runtime.forward.outputs import give_back, untouched

Array = npt.NDArray[Any]


class _StatesHere:
    """States of some layers in this process; pages that no pass has written take no memory.

    Args:
        sizes: name of a graph's input -> numbers of a slot.
        bare: the same without room for drafts.
        checkpoints: states of earlier texts that are kept.

    Attributes:
        arrays: name -> float32 ``[sequences, 2, numbers of a slot]``, where passes run.
        copies: places for states of earlier texts.
        nbytes: of all arrays and copies.
    """

    def __init__(self, sizes: Mapping[str, int], bare: Mapping[str, int], sequences: int, checkpoints: int) -> None:
        self._memory = untouched((sequences * SLOTS * sum(sizes.values()),), np.float32)
        kept = (checkpoints, sum(bare.values()))
        self._kept = untouched(kept, np.float32) if checkpoints else np.empty(kept, np.float32)
        self.nbytes = self._memory.nbytes + self._kept.nbytes
        self.arrays: dict[str, Array] = {}
        begin = 0
        for name, size in sizes.items():
            end = begin + sequences * SLOTS * size
            self.arrays[name] = self._memory[begin:end].reshape(sequences, SLOTS, size)
            begin = end
        self.copies = HostStateCopies(self.arrays, bare, self._kept)

    def forget(self) -> None:
        """Return the memory to the system; the states are zeros afterwards."""
        give_back(self._memory)
        if self._kept.size:
            give_back(self._kept)

    def release(self) -> None:
        """Release the memory."""
        self.arrays.clear()
        self._memory = self._kept = np.empty(0, np.float32)


class _StatesThere:
    """The same in the memory of a device."""

    def __init__(
        self, device: ComputeDevice, sizes: Mapping[str, int], bare: Mapping[str, int], sequences: int, checkpoints: int
    ) -> None:
        # One layer after the other: these zeros are read once, and need no memory of this process.
        self.arrays = {
            name: DeviceArray(device, np.zeros((sequences, SLOTS, size), np.float32)) for name, size in sizes.items()
        }
        self.copies = DeviceStateCopies(device, self.arrays, bare, checkpoints)
        self.nbytes = sum(array.nbytes for array in self.arrays.values()) + self.copies.nbytes

    def forget(self) -> None:
        """Do nothing: a text that begins reads none."""

    def release(self) -> None:
        """Release the memory."""
        self.copies.release()
        self.arrays.clear()


class StateMemory:
    """States of one or several sequences, each with two slots and room for what drafts change.

    Args:
        sequences: whose states are kept.
        drafts: most of a pass.
        checkpoints: states of earlier texts that are kept.
        device: that computes; None: the CPU does.
        host_layers: with a device: how many layers, the first ones, the CPU computes, with their states here.

    Attributes:
        arrays: name of a graph's input -> float32 ``[sequences, 2, numbers of a slot]``, where passes run.
        slots: the bookkeeping of every sequence.
        nbytes: of all arrays, and of what is kept of earlier texts.
    """

    def __init__(
        self,
        model: Decoder,
        sequences: int,
        drafts: int,
        checkpoints: int,
        device: ComputeDevice | None = None,
        host_layers: int = 0,
    ) -> None:
        here = range(model.num_layers if device is None else host_layers)
        self._parts: list[_StatesHere | _StatesThere] = []
        if sizes := state_sizes(model, drafts, here):
            self._parts.append(_StatesHere(sizes, state_sizes(model, 0, here), sequences, checkpoints))
        there = range(len(here), model.num_layers)
        if device is not None and (sizes := state_sizes(model, drafts, there)):
            self._parts.append(_StatesThere(device, sizes, state_sizes(model, 0, there), sequences, checkpoints))
        self.nbytes = sum(part.nbytes for part in self._parts)
        copies: list[StateCopies] = [part.copies for part in self._parts]
        self._checkpoints = Checkpoints(copies[0] if len(copies) == 1 else DividedCopies(copies))
        self.slots = tuple(StateSlots(index, drafts, self._checkpoints) for index in range(sequences))

    @property
    def arrays(self) -> dict[str, Array | DeviceArray]:
        """What passes read and write; nothing after ``release``."""
        return {name: array for part in self._parts for name, array in part.arrays.items()}

    def inputs(self, sequences: int) -> StateInputs:
        """Return inputs for passes of so many sequences."""
        return StateInputs(sequences, self.slots[0].most_drafts, self.slots[0])

    def forget(self) -> None:
        """Return memory of this process to the system; no states of earlier texts are kept afterwards."""
        self._checkpoints.forget()
        for part in self._parts:
            part.forget()

    def release(self) -> None:
        """Release the memory."""
        self._checkpoints.release()
        for part in self._parts:
            part.release()


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
