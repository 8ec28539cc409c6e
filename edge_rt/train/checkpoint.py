"""A training on disk: the weights of a net in half precision, and how far it has come."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from edge_rt.errors import StorageError
from edge_rt.system.byte_size import show_size
from edge_rt.system.files import write_atomically

MAX_BYTES: Final = 8 << 20
"""Largest checkpoint of a head: half-precision weights, without the moments of the optimiser, which a resumed run
builds anew."""


@dataclass(frozen=True)
class State:
    """How far a training has come.

    Attributes:
        kept: int64, ids of the reduced vocabulary.
    """

    updates: int
    seconds: float
    kept: np.ndarray
    seed: int


def file_of(folder: Path, kind: str = "head") -> Path:
    """Return the checkpoint of a training folder for a kind of drafter, or an exit's adapter; it may not exist."""
    return folder / ("checkpoint.npz" if kind == "head" else f"checkpoint-{kind}.npz")


def delete(folder: Path, *kinds: str) -> None:
    """Delete the checkpoints of a training that is over, so that the next run begins a new one."""
    for kind in kinds:
        file_of(folder, kind).unlink(missing_ok=True)


def save(path: Path, net: nn.Module, state: State, *, most_bytes: int | None = MAX_BYTES) -> None:
    """Write a checkpoint; the old one stays until the new one is whole.

    Args:
        most_bytes: that the file may have; None: any number.
    """
    memory = io.BytesIO()
    weights = {f"weight.{name}": tensor.half().numpy() for name, tensor in net.state_dict().items()}
    np.savez_compressed(
        memory,
        updates=np.int64(state.updates),
        seconds=np.float64(state.seconds),
        kept=state.kept.astype(np.int32),
        seed=np.int64(state.seed),
        **weights,
    )
    content = memory.getvalue()
    if most_bytes is not None and len(content) > most_bytes:
        raise StorageError(
            "The head is too large for a checkpoint.",
            f"It takes {show_size(len(content))}, {show_size(most_bytes)} are allowed.",
            "Train a smaller one.",
        )
    write_atomically(path, [content], parents=True)


def load(path: Path, net: nn.Module, seed: int, vocab_size: int, vocabulary: int | None = None) -> State | None:
    """Read a checkpoint into a net.

    Args:
        net: gets its weights; unchanged if there is no file, or none that fits.
        vocabulary: ids of the reduced vocabulary that it must have; None: any number.

    Returns:
        How far the training has come; None without a file.
    """
    if not path.is_file():
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        shapes = {f"weight.{name}": tuple(tensor.shape) for name, tensor in net.state_dict().items()}
        given = {name: array.shape for name, array in arrays.items() if name.startswith("weight.")}
        if shapes != given:
            raise ValueError("it is of a drafter of another shape")
        kept = arrays["kept"].astype(np.int64)
        if kept.ndim != 1 or not len(kept) or kept.min() < 0 or kept.max() >= vocab_size:
            raise ValueError("its vocabulary is not that of the model")
        if int(arrays["seed"]) != seed:
            raise ValueError(f"it was trained with the seed {int(arrays['seed'])}, now it is {seed}")
        if vocabulary is not None and len(kept) != min(vocabulary, vocab_size):
            raise ValueError(f"it was trained with a vocabulary of {len(kept)}, now it is {vocabulary}")
        weights = {name.removeprefix("weight."): torch.from_numpy(arrays[name]).float() for name in shapes}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
            raise ValueError("its weights are not finite")
        state = State(int(arrays["updates"]), float(arrays["seconds"]), kept, seed)
    except Exception as error:  # numpy, zipfile and its decompressors raise errors of their own for damage
        raise StorageError(
            f"{path} cannot be continued.", f"{str(error) or type(error).__name__}.", "Delete it to begin anew."
        ) from error
    net.load_state_dict(weights)
    return state
