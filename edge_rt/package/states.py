"""States of layers: how large they are in memory, for the memory plan and for the bound buffers.

A state has two slots, of which a pass reads one and writes the other. Behind the state a slot has room for what the
drafts of the pass that wrote it would change (``csrc/ops/recurrent/recurrent.h``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from edge_rt.package.decoder import Decoder, Model

SLOTS: Final = 2
"""Of the state of a sequence."""
CHECKPOINTS: Final = 4
"""States of earlier texts that are kept where there is memory, to go on from them."""
FURTHER_CHECKPOINTS: Final = 2
"""The same of every further answer that is computed at once: of its prompt, and of its end."""


def wanted_checkpoints(slots: int) -> int:
    """Return how many states of earlier texts are kept beside so many answers, where there is memory."""
    return CHECKPOINTS + FURTHER_CHECKPOINTS * (slots - 1)


def state_sizes(model: Model, drafts: int, layers: Collection[int] | None = None) -> dict[str, int]:
    """Return name of an input of native graphs -> float32 numbers of a slot, with room for so many drafts.

    Args:
        layers: of these alone; None: of all.
    """
    found: dict[str, int] = {}
    if not isinstance(model, Decoder):
        return found
    for number in model.recurrent_layers:
        if layers is not None and number not in layers:
            continue
        recurrence = model.layers[number].recurrence
        assert recurrence is not None, number
        found[f"conv.{number}"] = (recurrence.taps - 1 + drafts) * recurrence.conv_size
        found[f"state.{number}"] = recurrence.state_floats + drafts * recurrence.transition_floats
    return found


def states_bytes(model: Model, drafts: int, layers: Collection[int] | None = None) -> int:
    """Return the bytes of the states of a sequence, both slots, with room for so many drafts; layers as above."""
    return SLOTS * 4 * sum(state_sizes(model, drafts, layers).values())
