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
        hidden_size: of the model.
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
