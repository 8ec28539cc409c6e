"""A training on disk: the head's weights in half precision, and how far it has come."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from edge_rt.errors import StorageError
from edge_rt.system.atomic_files import write_atomically
from edge_rt.train.head import DraftHead

MAX_BYTES: Final = 8 << 20
"""Largest checkpoint: half-precision weights, without the moments of the optimiser, which a resumed run builds anew."""


@dataclass(frozen=True)
class State:
    """How far a training has come.

    Attributes:
        updates: done.
        seconds: spent on them.
        kept: int64, ids of the reduced vocabulary.
        seed: of the training.
    """

    updates: int
    seconds: float
    kept: np.ndarray
    seed: int


def save(path: Path, net: DraftHead, state: State) -> None:
    """Write a checkpoint; the old one stays until the new one is whole.

    Raises:
        StorageError: the disk is full, or the head is too large.
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
    if len(content) > MAX_BYTES:
        raise StorageError(
            "The head is too large for a checkpoint.",
            f"It takes {len(content)} bytes, {MAX_BYTES} are allowed.",
            "Train a smaller one.",
        )
    write_atomically(path, [content], parents=True)


def load(path: Path, net: DraftHead, seed: int, vocab_size: int) -> State | None:
    """Read a checkpoint into a head; None, with the head unchanged, if there is none that fits.

    Raises:
        StorageError: there is one, and it is damaged, or of another model or seed.
    """
    if not path.is_file():
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        shapes = {f"weight.{name}": tuple(tensor.shape) for name, tensor in net.state_dict().items()}
        given = {name: array.shape for name, array in arrays.items() if name.startswith("weight.")}
        if shapes != given:
            raise ValueError("it is of a head of another shape")
        kept = arrays["kept"].astype(np.int64)
        if kept.ndim != 1 or not len(kept) or kept.min() < 0 or kept.max() >= vocab_size:
            raise ValueError("its vocabulary is not that of the model")
        if int(arrays["seed"]) != seed:
            raise ValueError(f"it was trained with the seed {int(arrays['seed'])}, now it is {seed}")
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
