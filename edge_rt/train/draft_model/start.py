"""Where a draft model starts: the first layers of its target, the last one fitted to what the target ends with.

The first layers leave a stream that the LM head cannot read. With ``W_down`` of the last one set to the ridge
regression from its inputs to the target's own last hidden state, the draft model guesses from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch.nn import functional

from edge_rt.train.draft_model.guesses import Guesses
from edge_rt.train.draft_model.sequences import Batch

_RIDGE: Final = 0.01
_SCALE: Final = 4.0
"""Size of the fitted states over that of the stream before them, most of which the norm behind so leaves out."""


@torch.no_grad()
def fit_start(guesses: Guesses, batches: Iterator[Batch], rows: int) -> None:
    """Set ``W_down`` of the last layer; its other weights are left unchanged.

    Args:
        guesses: the draft model.
        batches: of recorded answers.
        rows: to fit.
    """
    last = guesses.net.last
    squares = torch.zeros(last.down.shape[1], last.down.shape[1])
    products = torch.zeros(last.down.shape[1], last.down.shape[0])
    scale, seen = 0.0, 0
    while seen < rows:
        batch = next(batches)
        stream = guesses.net.before_last(*guesses.inputs(batch))
        if not seen:
            scale = _SCALE * float(stream.pow(2).mean().sqrt())
        states = functional.rms_norm(batch.hidden, batch.hidden.shape[-1:], None, guesses.target.epsilon)
        inner = last.inner(stream)
        squares += inner.T @ inner
        products += inner.T @ (scale * states - stream)
        seen += len(stream)
    squares += _RIDGE * squares.diagonal().mean() * torch.eye(len(squares))
    last.down.copy_(torch.linalg.solve(squares, products).T)
