"""Trains the layers of a draft model towards the distribution of its target, on answers that the target wrote."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from edge_rt.train.draft_model.net import DraftLayers
from edge_rt.train.draft_model.sequences import Batch
from edge_rt.train.target import TargetModel
from edge_rt.train.updates import Found, Progress, Schedule, run_updates


class DraftNet:
    """A draft model: its layers between the embedding and the LM head of its target, which stay as they are.

    Args:
        rotations: cosines and sines, float32 ``[positions, head_dim / 2]``, of at least as many positions as
            sequences have tokens.
    """

    def __init__(self, net: DraftLayers, target: TargetModel, rotations: tuple[Tensor, Tensor]) -> None:
        self.net, self.target, self._rotations = net, target, rotations

    def states(self, batch: Batch) -> Tensor:
        """Return the stream behind the last layer in the rows of a batch, float32 ``[rows, hidden_size]``."""
        found: Tensor = self.net(*self.inputs(batch))
        return found

    def inputs(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """Return embeddings, rotations and rows of a batch, the arguments of the layers."""
        tokens = batch.token_ids.shape[1]
        cosines, sines = self._rotations
        embedded = functional.embedding(batch.token_ids, self.target.embedding)
        return embedded, (cosines[:tokens], sines[:tokens]), batch.rows


@dataclass(frozen=True)
class ModelRecipe:
    """How a draft model is trained.

    Attributes:
        soft: share of the model's distribution in the loss; the rest is its most likely token.
        others: tokens outside the reduced vocabulary that are drawn for every update.
    """

    soft: float = 0.6
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    tokens: int = 3072
    context: int = 256
    others: int = 1024
    warm_up: int = 40
    fit_rows: int = 20_000


class Vocabularies:
    """Draws the tokens that are compared in an update: those that answers often have, and some of the others.

    A draft model guesses among all tokens, so those that answers seldom have must be learned to be unlikely, too. A
    drawn token stands for as many as there are for each drawn one.

    Args:
        kept: int64, the reduced vocabulary.
    """

    def __init__(self, kept: Tensor, vocab_size: int, others: int, seed: int) -> None:
        is_other = torch.ones(vocab_size, dtype=torch.bool)
        is_other[kept] = False
        self._kept = kept
        self._others = is_other.nonzero()[:, 0]
        self._drawn = min(others, len(self._others))
        self._draws = torch.Generator().manual_seed(seed)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return int64 ids and float32 numbers that are added to their logits."""
        chosen = torch.randperm(len(self._others), generator=self._draws)[: self._drawn]
        weight = math.log(len(self._others) / self._drawn) if self._drawn else 0.0
        shifts = torch.cat([torch.zeros(len(self._kept)), torch.full((self._drawn,), weight)])
        return torch.cat([self._kept, self._others[chosen]]), shifts


def learn_model(
    guesses: DraftNet,
    batches: Iterator[Batch],
    vocabularies: Vocabularies,
    recipe: ModelRecipe,
    share_done: Callable[[], float],
    report: Callable[[Progress], None],
) -> None:
    """Train the layers of a draft model in place until ``share_done`` returns 1."""
    run_updates(
        guesses.net,
        lambda _: _loss(guesses, next(batches), vocabularies, recipe),
        Schedule(recipe.learning_rate, recipe.weight_decay, recipe.warm_up),
        share_done,
        report,
    )


def _loss(guesses: DraftNet, batch: Batch, vocabularies: Vocabularies, recipe: ModelRecipe) -> Found:
    target = guesses.target
    ids, shifts = vocabularies.draw()
    head = target.head[ids]
    with torch.no_grad():
        wanted = target.logits(batch.hidden, head) + shifts
        soft, best = wanted.softmax(-1), wanted.argmax(-1)
    logits = target.logits(guesses.states(batch), head) + shifts
    logs = logits.log_softmax(-1)
    distance = -(soft * logs).sum(-1)
    surprise = -logs.gather(1, best[:, None])[:, 0]
    loss = (recipe.soft * distance + (1.0 - recipe.soft) * surprise).mean()
    return Found(loss, float(loss.detach()), float((logits.argmax(-1) == best).float().mean()))


_RIDGE: Final = 0.01
_SCALE: Final = 4.0
"""Size of the fitted states over that of the stream before them, most of which the norm behind so leaves out."""


@torch.no_grad()
def fit_start(guesses: DraftNet, batches: Iterator[Batch], rows: int) -> None:
    """Set ``W_down`` of the last layer; its other weights are left unchanged."""
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
