"""Answers on disk: files of some thousand answer tokens, with the hidden states that a head learns from.

A file holds three arrays without padding, written absent-or-complete, so that a killed run loses the last unfinished
file alone. ``numpy.load`` reads them without running anything that is stored in them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_rt.errors import StorageError
from edge_rt.system.atomic_files import write_atomically
from edge_rt.train.dialogues.writer import Answer

SHARD_TOKENS: Final = 20_000
"""Answer tokens of a file: about 23 MB for states of 576 numbers, as many more for every exit."""
_COLUMNS: Final = ("tokens", "begin", "rows", "temperature")


class Shard(NamedTuple):
    """Answers of one file.

    Attributes:
        ids: int32, the tokens of all dialogues one after the other.
        hidden: float16 ``[rows, columns]``, see ``Answer``.
        answers: int64 ``[answers, 4]``: tokens, place of the answer's first one, rows of ``hidden``, and hundredths of
            the temperature.
    """

    ids: npt.NDArray[np.int32]
    hidden: npt.NDArray[np.float16]
    answers: npt.NDArray[np.int64]

    @property
    def num_tokens(self) -> int:
        """Answer tokens."""
        return int((self.answers[:, 0] - self.answers[:, 1]).sum())


def pack(answers: Iterable[Answer]) -> Shard:
    """Join answers."""
    items = list(answers)
    facts = [(len(a.token_ids), a.begin, len(a.hidden), round(100 * a.temperature)) for a in items]
    return Shard(
        np.concatenate([a.token_ids for a in items]),
        np.concatenate([a.hidden for a in items]),
        np.asarray(facts, np.int64).reshape(-1, len(_COLUMNS)),
    )


def write_shard(path: Path, shard: Shard) -> None:
    """Write a file.

    Raises:
        StorageError: the disk is full, or the folder cannot be written; what was there stays.
    """
    memory = io.BytesIO()
    np.savez(memory, **shard._asdict())
    write_atomically(path, [memory.getvalue()], durable=False, parents=True)


def read_shard(path: Path, columns: int, vocab_size: int) -> Shard:
    """Read a file.

    Args:
        columns: of its hidden states: the model's hidden size, for the last layer and for every exit.

    Raises:
        StorageError: it is damaged, or of another model.
    """
    try:
        # From memory: a damaged file would stay open until it is collected.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            arrays: dict[str, npt.NDArray[Any]] = {name: found[name] for name in Shard._fields}
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(path, str(error)) from error
    except Exception as error:  # zipfile and its decompressors raise errors of their own
        raise _damaged(path, type(error).__name__) from error
    ids, hidden, answers = (arrays[name] for name in Shard._fields)
    if [array.dtype.name for array in (ids, hidden, answers)] != ["int32", "float16", "int64"]:
        raise _damaged(path, "Its arrays have other types")
    if ids.ndim != 1 or hidden.shape[1:] != (columns,) or answers.shape[1:] != (len(_COLUMNS),):
        raise _damaged(path, f"Its states have the shape {list(hidden.shape)}, {columns} columns are wanted")
    if answers.size == 0 or answers[:, 0].sum() != len(ids) or answers[:, 2].sum() != len(hidden):
        raise _damaged(path, "Its answers do not add up")
    if answers.min() < 0 or (answers[:, 1] >= answers[:, 0]).any() or ids.min() < 0 or ids.max() >= vocab_size:
        raise _damaged(path, "Its tokens are out of range")
    return Shard(ids, hidden, answers)


def shard_paths(folder: Path) -> list[Path]:
    """Return the files of a folder in the order they were written."""
    return sorted(folder.glob("answers-*.npz"))


def written(folder: Path, answers: Iterable[Answer]) -> Iterator[Shard]:
    """Write answers to files behind those that a folder has, and yield every file's content once it is on the disk."""
    number = len(shard_paths(folder))
    kept: list[Answer] = []
    tokens = 0
    for answer in answers:
        kept.append(answer)
        tokens += len(answer.token_ids) - answer.begin
        if tokens >= SHARD_TOKENS:
            shard = pack(kept)
            write_shard(folder / f"answers-{number:05d}.npz", shard)
            kept, tokens, number = [], 0, number + 1
            yield shard


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path.name} cannot be used for training.", f"{why.rstrip('.')}.", "Delete it; it will be written again."
    )
