"""Where a head starts: the linear map that foresees the next hidden state best."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from edge_rt.train.anchors import Anchors
from edge_rt.train.head import DraftHead

_RIDGE = 0.01


@torch.no_grad()
def start(net: DraftHead, embedding: Tensor, anchors: Anchors, rows: Tensor) -> None:
    """Set ``W_fc`` to the ridge regression from normed state and embedding to the normed next state.

    With small blocks behind it a head so begins near EAGLE's linear guess instead of noise.

    Args:
        net: the head; its other weights are left unchanged.
        embedding: float32 ``[vocabulary, hidden_size]``.
        anchors: recorded answers.
        rows: int64, anchors to fit; some ten thousand.
    """
    tokens = functional.embedding(anchors.tokens(rows), embedding)
    inputs = torch.cat([net.rms(anchors.begins(rows)), net.rms(tokens)], -1)
    wanted = net.rms(anchors.states(rows + 1))
    squares = inputs.T @ inputs
    squares += _RIDGE * squares.diagonal().mean() * torch.eye(len(squares))
    net.fc.copy_(torch.linalg.solve(squares, inputs.T @ wanted).T)
