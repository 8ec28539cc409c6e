"""Training examples of a draft model: dialogues with the rows in which the model's answer goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edge_rt.train.answers import Shard, read_shard
from edge_rt.train.batches import GROUP_SHARDS, groups, split

_SORTED: Final = 256
"""Sequences among which those of a batch are of similar length."""


@dataclass(frozen=True)
class Dialogue:
    """One dialogue, cut at its front.

    Attributes:
        token_ids: int32, without the last token of the answer, behind which nothing is guessed.
        next_ids: int32 ``[rows]``, tokens behind the last ``rows`` tokens: all of the answer but its first one, which
            comes from the pass of the prompt.
        hidden: float16 ``[rows, hidden_size]``, what the model computed in these rows.
    """

    token_ids: npt.NDArray[np.int32]
    next_ids: npt.NDArray[np.int32]
    hidden: npt.NDArray[np.float16]


@dataclass(frozen=True)
class Batch:
    """Sequences of one pass, padded behind.

    Attributes:
        token_ids: int64 ``[sequences, tokens]``.
        rows: int64 ``[rows]``, places among ``sequences * tokens`` where a guess is made.
        next_ids: int64 ``[rows]``, the tokens that the answers have behind them.
        left: int64 ``[rows]``, rows that the same answer has behind a row.
        hidden: float32 ``[rows, hidden_size]``.
    """

    token_ids: Tensor
    rows: Tensor
    next_ids: Tensor
    left: Tensor
    hidden: Tensor


def sequences_of(shard: Shard, context: int) -> Iterator[Dialogue]:
    """Yield the dialogues of recorded answers.

    Args:
        context: tokens before an answer that are kept, the last ones.
    """
    token = row = 0
    for tokens, begin, rows, _ in shard.answers.tolist():
        ids, hidden = shard.ids[token : token + tokens], shard.hidden[row : row + rows]
        token, row = token + tokens, row + rows
        guessed = tokens - 1 - begin
        if guessed > 0:
            yield Dialogue(ids[max(0, begin - context) : -1], ids[begin + 1 :], hidden[rows - guessed :])


def join(sequences: Sequence[Dialogue]) -> Batch:
    """Return sequences as one batch; there must be at least one."""
    longest = max(len(one.token_ids) for one in sequences)
    ids = np.zeros((len(sequences), longest), np.int64)
    rows, left = [], []
    for place, one in enumerate(sequences):
        size, guessed = len(one.token_ids), len(one.next_ids)
        ids[place, :size] = one.token_ids
        rows.append(place * longest + np.arange(size - guessed, size))
        left.append(np.arange(guessed - 1, -1, -1))
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(np.concatenate(rows)),
        torch.from_numpy(np.concatenate([one.next_ids for one in sequences]).astype(np.int64)),
        torch.from_numpy(np.concatenate(left)),
        torch.from_numpy(np.concatenate([one.hidden for one in sequences]).astype(np.float32)),
    )


class SequenceBatches:
    """Draws batches from files of answers, group by group, every answer once before any comes again.

    Args:
        tokens: of a batch, padding included, unless one sequence has more.
    """

    def __init__(
        self, paths: Sequence[Path], *, hidden_size: int, vocab_size: int, context: int, tokens: int, seed: int
    ) -> None:
        assert paths, "no answers"
        self._paths = list(paths)
        self._sizes = (hidden_size, vocab_size)
        self._context, self._tokens = context, tokens
        self._random = np.random.default_rng(seed)

    def draw(self) -> Iterator[Batch]:
        """Yield batches without end."""
        for sequences in groups(self._paths, GROUP_SHARDS, self._random, self._read):
            yield from self._batches(sequences)

    def _read(self, paths: Sequence[Path]) -> list[Dialogue]:
        shards = (split(read_shard(path, *self._sizes), is_held_out=False) for path in paths)
        return [one for shard in shards for one in sequences_of(shard, self._context)]

    def _batches(self, sequences: Sequence[Dialogue]) -> Iterator[Batch]:
        shuffled = [sequences[i] for i in self._random.permutation(len(sequences))]
        for begin in range(0, len(shuffled), _SORTED):
            batches = list(in_batches(shuffled[begin : begin + _SORTED], self._tokens))
            for place in self._random.permutation(len(batches)):
                yield join(batches[place])


def in_batches(sequences: Sequence[Dialogue], tokens: int) -> Iterator[list[Dialogue]]:
    """Yield sequences of similar length that have at most some tokens together, padding included; at least one."""
    batch: list[Dialogue] = []
    for one in sorted(sequences, key=lambda each: len(each.token_ids)):
        if batch and (len(batch) + 1) * len(one.token_ids) > tokens:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def held_out_sequences(
    paths: Sequence[Path], hidden_size: int, vocab_size: int, context: int, most_rows: int
) -> list[Dialogue]:
    """Return dialogues whose answers are not trained on, evenly from all files, of about ``most_rows`` rows at most."""
    shards = (split(read_shard(path, hidden_size, vocab_size), is_held_out=True) for path in paths)
    found = [one for shard in shards for one in sequences_of(shard, context)]
    step = max(1, -(-sum(len(one.next_ids) for one in found) // most_rows))
    return found[::step]
