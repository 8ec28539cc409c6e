"""Which matrices need more bits: what a type's error would change in the model's predictions, measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError
from edge_rt.export.quantise.decision import WeightChoice
from edge_rt.export.quantise.feedback import importance, quantise
from edge_rt.export.quantise.grids import Grid
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.weights.matrices import Matrices
from edge_rt.export.weights.native import tile_bytes
from edge_rt.export.weights.tile_formats import tile_format
from edge_rt.system.byte_size import show_at_least, show_size

Array = npt.NDArray[Any]

TRIED_ROWS: Final = 32
"""Rows of a matrix that every type is tried on."""


def measured_choice(
    choice: WeightChoice,
    tensors: Mapping[str, TensorInfo],
    matrices: Matrices,
    influences: Mapping[str, Array],
    budget: int,
    on_matrix: Callable[[int, int], None],
) -> WeightChoice:
    """Return the choice with the types that measuring gives.

    Args:
        budget: bytes that the matrices in ``ladders`` may take together.
    """
    wanted = dict(choice.ladders) or {
        name: (group.usual, group.better) for group in choice.rivals for name in group.names
    }
    found = {}
    for done, (name, types) in enumerate(wanted.items()):
        on_matrix(done, len(wanted))
        found[name] = costs(tensors[name], types, matrices, influences.get(name))
    if choice.ladders:
        return dataclasses.replace(choice, types=share_out(found, budget))
    return winners(choice, found)


@dataclass(frozen=True)
class Cost:
    """What a matrix takes and loses in one type.

    Attributes:
        loss: estimate of the Kullback-Leibler divergence, in nats a token, that its error causes.
    """

    type_name: str
    nbytes: int
    loss: float


def costs(tensor: TensorInfo, types: Sequence[str], matrices: Matrices, influence: Array | None) -> tuple[Cost, ...]:
    """Return what a matrix takes and loses in each type, from a sample; without influence all inputs count alike."""
    inputs, rows = tensor.shape
    numbers = np.unique(np.linspace(0, rows - 1, min(rows, TRIED_ROWS)).astype(np.int64))
    sample = matrices.rows(tensor.name, numbers.tolist())
    meets = np.ones(inputs, np.float32) if influence is None else influence.astype(np.float32)
    found = []
    for type_name in types:
        _, errors = quantise(sample, importance(meets), (), Grid(tile_format(type_name)))
        of_row = float(meets @ np.square(errors).sum(axis=0)) / len(numbers)
        found.append(Cost(type_name, tile_bytes(tensor, type_name), 0.5 * of_row * rows))
    return tuple(found)


def winners(choice: WeightChoice, measured: Mapping[str, Sequence[Cost]]) -> WeightChoice:
    """Return the choice in which the rivals that gain most have the better type."""

    def gain(name: str) -> float:
        usual, better = measured[name]
        return usual.loss - better.loss

    ranked = [name for group in choice.rivals for name in sorted(group.names, key=gain, reverse=True)[: group.count]]
    return choice.with_winners(ranked)


def share_out(measured: Mapping[str, Sequence[Cost]], budget: int) -> dict[str, str]:
    """Return a type for every matrix so that all take at most ``budget`` bytes and lose little together.

    All begin with the least bytes; then the step that gains most for its bytes is taken, as long as one fits.
    """
    chosen = {name: min(found, key=lambda cost: cost.nbytes) for name, found in measured.items()}
    least = sum(cost.nbytes for cost in chosen.values())
    require_budget(least, budget)
    rest = budget - least

    def steps() -> Iterable[tuple[float, str, Cost]]:
        for name, now in chosen.items():
            for cost in measured[name]:
                more = cost.nbytes - now.nbytes
                if 0 < more <= rest and cost.loss < now.loss:
                    yield (now.loss - cost.loss) / more, name, cost

    while (best := max(steps(), key=lambda step: step[0], default=None)) is not None:
        _, name, cost = best
        rest -= cost.nbytes - chosen[name].nbytes
        chosen[name] = cost
    return {name: cost.type_name for name, cost in chosen.items()}


def require_budget(least: int, budget: int, size: int = 0) -> None:
    """Refuse a budget of fewer bytes than the smallest types take; ``size`` was asked for, 0 if it is not known."""
    if budget < least:
        raise ConfigError(
            "The model does not fit the size.",
            f"Its matrices take at least {show_at_least(least)}; {show_size(max(budget, 0))} are left for them.",
            f"Give a size of {show_at_least(size + least - budget)} or more."
            if size
            else f"Give a size that is larger by {show_at_least(least - budget)} or more.",
        )
