"""Training examples out of recorded answers: places from which a head drafts, and what the model said behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edge_rt.train.shards import Shard


@dataclass(frozen=True)
class Anchors:
    """Rows of several answers, and the places among them from which a head may draft.

    A head at the anchor row r knows the row's hidden state and the next token; k steps on, it should say what the model
    says in row r + k. ``left`` tells how many rows the same answer has behind a row.

    Attributes:
        hidden: float16 ``[rows, hidden_size]``.
        next_ids: int64 ``[rows]``, the token behind every row.
        left: int64 ``[rows]``.
        places: int64 ``[anchors]``, rows with at least one row behind them.
    """

    hidden: Tensor
    next_ids: Tensor
    left: Tensor
    places: Tensor

    def states(self, rows: Tensor) -> Tensor:
        """Return hidden states as float32; rows behind the last one give that of the last one."""
        return self.hidden[rows.clamp(max=len(self.hidden) - 1)].float()

    def tokens(self, rows: Tensor) -> Tensor:
        """Return the tokens behind rows, in the same way."""
        return self.next_ids[rows.clamp(max=len(self.next_ids) - 1)]


def anchors_of(shards: Iterable[Shard]) -> Anchors:
    """Return the anchors of recorded answers; there must be at least one shard."""
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
    return Anchors(
        torch.from_numpy(np.concatenate(hidden)),
        torch.from_numpy(np.concatenate(next_ids).astype(np.int64)),
        torch.from_numpy(np.concatenate(left).astype(np.int64)),
        torch.from_numpy(np.concatenate(places).astype(np.int64)),
    )
