"""Batches of anchors out of more answers than fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edge_rt.train.answers import Shard, read_shard


@dataclass(frozen=True)
class Anchors:
    """Rows of several answers, and the places among them from which a head may draft.

    A head at the anchor row r knows the row's hidden state and the next token; k steps on, it should say what the model
    says in row r + k. ``left`` tells how many rows the same answer has behind a row. The adapter of an exit is a head
    that knows the next token's state at the exit instead, and says one token.

    Attributes:
        hidden: float16 ``[rows, hidden_size]``, behind the last layer.
        known: float16 ``[rows, hidden_size]``, what a draft from a row begins with; may be one row shorter.
        next_ids: int64 ``[rows]``, the token behind every row.
        left: int64 ``[rows]``.
        places: int64 ``[anchors]``, rows with at least one row behind them.
    """

    hidden: Tensor
    known: Tensor
    next_ids: Tensor
    left: Tensor
    places: Tensor

    def states(self, rows: Tensor) -> Tensor:
        """Return hidden states as float32; rows behind the last one give that of the last one."""
        return self.hidden[rows.clamp(max=len(self.hidden) - 1)].float()

    def begins(self, rows: Tensor) -> Tensor:
        """Return the states that drafts from rows begin with, in the same way."""
        return self.known[rows.clamp(max=len(self.known) - 1)].float()

    def tokens(self, rows: Tensor) -> Tensor:
        """Return the tokens behind rows, in the same way."""
        return self.next_ids[rows.clamp(max=len(self.next_ids) - 1)]


def anchors_of(shards: Iterable[Shard], hidden_size: int) -> Anchors:
    """Return the anchors of recorded answers; there must be at least one shard.

    Args:
        shards: states behind the last layer; with those of an exit beside them, drafts begin with these.
    """
    hidden, next_ids, left, places = [], [], [], []
    begin = 0
    for shard in shards:
        hidden.append(shard.hidden)
        token = 0
        for tokens, answer, rows, _ in shard.answers.tolist():
            ids = shard.ids[token : token + tokens]
            token += tokens
            # The rows end before the last token, which was never computed.
            next_ids.append(ids[tokens - rows :])
            left.append(np.arange(rows - 1, -1, -1))
            first = begin + rows - (tokens - answer)
            places.append(np.arange(max(first, begin), begin + rows - 1))
            begin += rows
    states = torch.from_numpy(np.concatenate(hidden))
    last = states[:, :hidden_size]
    return Anchors(
        last,
        last if states.shape[1] == hidden_size else states[1:, hidden_size:],
        torch.from_numpy(np.concatenate(next_ids).astype(np.int64)),
        torch.from_numpy(np.concatenate(left).astype(np.int64)),
        torch.from_numpy(np.concatenate(places).astype(np.int64)),
    )


T = TypeVar("T")

GROUP_SHARDS: Final = 40
"""Files that are in memory at a time: 800,000 answer tokens, 0.9 GB for states of 576 numbers; half for an exit."""
HELD_OUT: Final = 16
"""One of so many answers takes no part in training."""


def split(shard: Shard, *, is_held_out: bool) -> Shard:
    """Return the answers of a file that are trained on, or the others."""
    numbers = np.arange(len(shard.answers))
    chosen = (numbers % HELD_OUT == 0) == is_held_out
    ids = np.repeat(chosen, shard.answers[:, 0])
    rows = np.repeat(chosen, shard.answers[:, 2])
    return Shard(shard.ids[ids], shard.hidden[rows], shard.answers[chosen])


@dataclass(frozen=True)
class Recorded:
    """What files of answers hold, and what is taken of it.

    Attributes:
        exits: exits whose states lie beside those of the last layer.
        place: of the exit among these that drafts begin at; None: behind the last layer.
    """

    hidden_size: int
    vocab_size: int
    exits: int = 0
    place: int | None = None

    def read(self, path: Path, *, is_held_out: bool) -> Shard:
        """Return the answers of a file that are trained on, or the others, with the states that are taken."""
        size = self.hidden_size
        shard = split(read_shard(path, size * (1 + self.exits), self.vocab_size), is_held_out=is_held_out)
        taken = [shard.hidden[:, :size]]
        if self.place is not None:
            taken.append(shard.hidden[:, size * (1 + self.place) : size * (2 + self.place)])
        return shard._replace(hidden=np.concatenate(taken, 1))

    @property
    def group(self) -> int:
        """Files that are in memory at a time."""
        return GROUP_SHARDS if self.place is None else GROUP_SHARDS // 2


def groups(
    paths: Sequence[Path], size: int, random: np.random.Generator, read: Callable[[Sequence[Path]], T]
) -> Iterator[T]:
    """Yield what groups of files hold, without end: every file once, in a drawn order, before any comes again.

    Args:
        size: files of a group, the last one may have fewer.
        read: reads the files of a group, which come sorted; not called where the next group is the same.
    """
    read_last: list[Path] = []
    while True:
        order = [paths[i] for i in random.permutation(len(paths))]
        for begin in range(0, len(order), size):
            group = sorted(order[begin : begin + size])
            if group != read_last:
                found, read_last = read(group), group
            yield found


class Batches:
    """Draws batches from files of answers, group by group, every anchor once before any comes again."""

    def __init__(self, paths: Sequence[Path], recorded: Recorded, *, batch: int, seed: int) -> None:
        assert paths, "no answers"
        self._paths = list(paths)
        self._recorded = recorded
        self._batch = batch
        self._random = np.random.default_rng(seed)

    def draw(self) -> Iterator[tuple[Anchors, Tensor]]:
        """Yield anchors and the rows among them to draft from, without end."""
        for anchors in groups(self._paths, self._recorded.group, self._random, self._read):
            places = anchors.places[torch.from_numpy(self._random.permutation(len(anchors.places)))]
            for rows in places.split(self._batch):
                if len(rows) == min(self._batch, len(places)):
                    yield anchors, rows

    def _read(self, paths: Sequence[Path]) -> Anchors:
        shards = (self._recorded.read(path, is_held_out=False) for path in paths)
        return anchors_of(shards, self._recorded.hidden_size)


def held_out(paths: Sequence[Path], recorded: Recorded, most_shards: int = 64) -> Anchors:
    """Return the anchors of the answers that are not trained on, of at most ``most_shards`` files."""
    chosen = paths[:: max(1, -(-len(paths) // most_shards))]
    return anchors_of((recorded.read(path, is_held_out=True) for path in chosen), recorded.hidden_size)


def count_tokens(paths: Sequence[Path], recorded: Recorded) -> npt.NDArray[np.int64]:
    """Return how often each token occurs in the answers that are trained on, int64 ``[vocab_size]``."""
    found = np.zeros(recorded.vocab_size, np.int64)
    for path in paths:
        shard = recorded.read(path, is_held_out=False)
        token = 0
        for tokens, begin, _, _ in shard.answers.tolist():
            found += np.bincount(shard.ids[token + begin : token + tokens], minlength=recorded.vocab_size)
            token += tokens
    return found


def most_frequent(counts: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """Return the tokens with the largest counts, int64 ``[most]``, the most frequent first, equal ones by id."""
    return np.argsort(-counts, kind="stable")[:most].astype(np.int64)
