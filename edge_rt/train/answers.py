"""The answers that a drafter learns from: written by the model, and kept in a folder, file by file."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InputError, StorageError
from edge_rt.package.reader import Package
from edge_rt.runtime.prompts import PromptEncoder
from edge_rt.system.files import write_atomically
from edge_rt.system.progress import ProgressCallback, no_progress
from edge_rt.train.batch import BatchRunner
from edge_rt.train.dialogues.writer import ROOM, DialogueWriter, WrittenAnswer, find_markers
from edge_rt.train.options import WRITING_SHARE, TrainOptions, stage_event

SHARD_TOKENS: Final = 20_000
"""Answer tokens of a file: about 23 MB for states of 576 numbers, as many more for every exit."""
_COLUMNS: Final = ("tokens", "begin", "rows", "temperature")


class Shard(NamedTuple):
    """Answers of one file.

    Attributes:
        ids: int32, the tokens of all dialogues one after the other.
        hidden: float16 ``[rows, columns]``, see ``WrittenAnswer``.
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


def pack(answers: Iterable[WrittenAnswer]) -> Shard:
    """Join answers."""
    items = list(answers)
    facts = [(len(a.token_ids), a.begin, len(a.hidden), round(100 * a.temperature)) for a in items]
    return Shard(
        np.concatenate([a.token_ids for a in items]),
        np.concatenate([a.hidden for a in items]),
        np.asarray(facts, np.int64).reshape(-1, len(_COLUMNS)),
    )


def write_shard(path: Path, shard: Shard) -> None:
    """Write a file."""
    memory = io.BytesIO()
    np.savez(memory, **shard._asdict())
    write_atomically(path, [memory.getvalue()], durable=False, parents=True)


def read_shard(path: Path, columns: int, vocab_size: int) -> Shard:
    """Read a file.

    Args:
        columns: of its hidden states: the model's hidden size, for the last layer and for every exit.
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


def written(folder: Path, answers: Iterable[WrittenAnswer]) -> Iterator[Shard]:
    """Write answers to files behind those that a folder has, and yield every file's content once it is on the disk."""
    number = len(shard_paths(folder))
    kept: list[WrittenAnswer] = []
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


_SEQUENCES: Final = 32
_CONTEXT: Final = 1152
_PREFILL_ROWS: Final = 128


def write_answers(
    package: Package, folder: Path, options: TrainOptions, progress: ProgressCallback = no_progress
) -> int:
    """Write answers into a folder until there are enough, or the time for them is over.

    Returns:
        Prompts of ``options`` that are too long to be answered, and were left out.
    """
    import torch

    begun = time.monotonic()
    files = len(shard_paths(folder))
    total = files * SHARD_TOKENS
    limit = WRITING_SHARE * options.seconds

    def is_enough() -> bool:
        spent, message = time.monotonic() - begun, f"{total:,} answer tokens"
        if options.tokens is not None:
            progress(stage_event("answers", total, options.tokens, "tokens", message))
            return total >= options.tokens
        # The last file is finished behind the time.
        progress(stage_event("answers", min(int(spent), int(limit)), int(limit), "seconds", message))
        return spent >= limit and total > 0

    if is_enough():
        return 0
    config = package.manifest.model
    capacity = min(_CONTEXT, config.context_length)
    texts = PromptEncoder(package, config.context_length)
    prompts = None if options.prompts is None else _fitting(texts, options.prompts, capacity - 2 * ROOM)
    with BatchRunner(
        package,
        sequences=_SEQUENCES,
        capacity=capacity,
        threads=options.threads or torch.get_num_threads(),
        most_rows=_SEQUENCES + _PREFILL_ROWS,
    ) as runner:
        # Another seed behind the answers of an earlier run, which would be written again otherwise.
        seed = options.seed + 1000 * files
        exits = [package.manifest.exits.index(layer) for layer in options.exits]
        writer = DialogueWriter(runner, texts.tokenizer, find_markers(texts), seed, prompts, exits)
        for shard in written(folder, writer.answers()):
            total += shard.num_tokens
            if is_enough():
                break
    return 0 if prompts is None else len(options.prompts or ()) - len(prompts)


def _fitting(texts: PromptEncoder, prompts: Sequence[str], most: int) -> list[str]:
    """Return the prompts of at most ``most`` tokens."""
    sizes = [len(texts.tokenizer.encode_text(prompt)) for prompt in prompts]
    fitting = [prompt for prompt, size in zip(prompts, sizes, strict=True) if size <= most]
    if not fitting:
        raise InputError(
            "No prompt is short enough to be answered.",
            f"The shortest of {len(prompts)} has {min(sizes, default=0)} tokens; {most} are possible.",
            "Give shorter prompts, or train on --data self.",
        )
    return fitting
