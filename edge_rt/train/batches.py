"""Batches of anchors out of more answers than fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from edge_rt.train.anchors import Anchors, anchors_of
from edge_rt.train.shards import Shard, read_shard

GROUP_SHARDS: Final = 40
"""Files that are in memory at a time: 800,000 answer tokens, 0.9 GB for states of 576 numbers."""
HELD_OUT: Final = 16
"""One of so many answers takes no part in training."""


def split(shard: Shard, *, is_held_out: bool) -> Shard:
    """Return the answers of a file that are trained on, or the others."""
    numbers = np.arange(len(shard.answers))
    chosen = (numbers % HELD_OUT == 0) == is_held_out
    ids = np.repeat(chosen, shard.answers[:, 0])
    rows = np.repeat(chosen, shard.answers[:, 2])
    return Shard(shard.ids[ids], shard.hidden[rows], shard.answers[chosen])


class Batches:
    """Draws batches from files of answers, group by group, every anchor once before any comes again.

    Args:
        paths: the files, at least one.
        hidden_size, vocab_size: of the model.
        batch: anchors of a batch.
        seed: of the order.
    """

    def __init__(self, paths: Sequence[Path], *, hidden_size: int, vocab_size: int, batch: int, seed: int) -> None:
        assert paths, "no answers"
        self._paths = list(paths)
        self._sizes = (hidden_size, vocab_size)
        self._batch = batch
        self._random = np.random.default_rng(seed)

    def draw(self) -> Iterator[tuple[Anchors, Tensor]]:
        """Yield anchors and the rows among them to draft from, without end."""
        kept: tuple[list[Path], Anchors] | None = None
        while True:
            order = [self._paths[i] for i in self._random.permutation(len(self._paths))]
            for begin in range(0, len(order), GROUP_SHARDS):
                group = order[begin : begin + GROUP_SHARDS]
                if kept is None or sorted(kept[0]) != sorted(group):
                    kept = None  # its memory is free before the next group takes it
                    shards = (split(read_shard(path, *self._sizes), is_held_out=False) for path in group)
                    kept = (group, anchors_of(shards))
                anchors = kept[1]
                places = anchors.places[torch.from_numpy(self._random.permutation(len(anchors.places)))]
                for rows in places.split(self._batch):
                    if len(rows) == min(self._batch, len(places)):
                        yield anchors, rows


def held_out(paths: Sequence[Path], hidden_size: int, vocab_size: int, most_shards: int = 64) -> Anchors:
    """Return the anchors of the answers that are not trained on, of at most ``most_shards`` files."""
    chosen = paths[:: max(1, -(-len(paths) // most_shards))]
    return anchors_of(split(read_shard(path, hidden_size, vocab_size), is_held_out=True) for path in chosen)


def frequent_tokens(paths: Sequence[Path], hidden_size: int, vocab_size: int, count: int) -> np.ndarray:
    """Return the tokens that answers have most often, int64 ``[count]``, the most frequent first, equal ones by id."""
    found = np.zeros(vocab_size, np.int64)
    for path in paths:
        shard = split(read_shard(path, hidden_size, vocab_size), is_held_out=False)
        token = 0
        for tokens, begin, _, _ in shard.answers.tolist():
            found += np.bincount(shard.ids[token + begin : token + tokens], minlength=vocab_size)
            token += tokens
    return np.argsort(-found, kind="stable")[: min(count, vocab_size)].astype(np.int64)
