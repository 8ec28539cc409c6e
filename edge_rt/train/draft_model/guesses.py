"""A draft model while it is trained: its own layers, and what it has of its target."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from edge_rt.train.draft_model.net import DraftLayers
from edge_rt.train.draft_model.sequences import Batch
from edge_rt.train.target import Target


class Guesses:
    """A draft model: its layers between the embedding and the LM head of its target, which stay as they are.

    Args:
        net: the layers.
        target: the model, with the whole vocabulary.
        rotations: cosines and sines, float32 ``[positions, head_dim / 2]``, of at least as many positions as
            sequences have tokens.
    """

    def __init__(self, net: DraftLayers, target: Target, rotations: tuple[Tensor, Tensor]) -> None:
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
