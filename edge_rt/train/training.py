"""Trains a head, or the adapter of an exit, on the answers of a folder, and measures it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from edge_rt.package.reader import Package
from edge_rt.system.progress import ProgressCallback, no_progress
from edge_rt.train import checkpoint
from edge_rt.train.answers import shard_paths
from edge_rt.train.batches import Anchors, Batches, Recorded, count_tokens, held_out, most_frequent
from edge_rt.train.head import DraftHead, HeadNetShape
from edge_rt.train.learn import Acceptance, TrainingRecipe, acceptance, learn
from edge_rt.train.options import TRAINING_SHARE, TrainOptions, stage_event
from edge_rt.train.target import TargetModel, read_target
from edge_rt.train.updates import Clock

_RIDGE = 0.01


@torch.no_grad()
def start(net: DraftHead, embedding: Tensor, anchors: Anchors, rows: Tensor) -> None:
    """Set ``W_fc`` to the ridge regression from normed state and embedding to the normed next state.

    With small blocks behind it a head so begins near EAGLE's linear guess instead of noise.

    Args:
        embedding: float32 ``[vocabulary, hidden_size]``.
        rows: int64, anchors to fit; some ten thousand.
    """
    tokens = functional.embedding(anchors.tokens(rows), embedding)
    inputs = torch.cat([net.rms(anchors.begins(rows)), net.rms(tokens)], -1)
    wanted = net.rms(anchors.states(rows + 1))
    squares = inputs.T @ inputs
    squares += _RIDGE * squares.diagonal().mean() * torch.eye(len(squares))
    net.fc.copy_(torch.linalg.solve(squares, inputs.T @ wanted).T)


_START_ANCHORS: Final = 40_000


@dataclass(frozen=True)
class Trained:
    """A trained head, or the trained adapter of an exit.

    Attributes:
        untrained: how often guesses of the linear start were right, on answers that it was not trained on.
        reached: the same of the trained head, its weights rounded to 4 bits.
    """

    net: DraftHead
    target: TargetModel
    untrained: Acceptance
    reached: Acceptance
    tokens: int
    epochs: float
    updates: int
    seconds: float

    @property
    def is_better(self) -> bool:
        """Whether it guesses better than the linear start."""
        return self.reached.first[0] > self.untrained.first[0]


def kind_of(layer: int | None) -> str:
    """Return what the checkpoint of a head, or of the adapter of an exit, is called by."""
    return "head" if layer is None else f"exit{layer}"


def train_head(
    package: Package,
    folder: Path,
    options: TrainOptions,
    recipe: TrainingRecipe,
    progress: ProgressCallback = no_progress,
    *,
    layer: int | None = None,
    kept: Tensor | None = None,
) -> Trained:
    """Train a head on the answers of a folder, and measure it.

    A checkpoint in the folder is continued. One is written every minute, and when Ctrl-C stops the training.

    Args:
        options: how long, and of which size; its exits share the time.
        layer: one of the exits, whose adapter is trained; None: a head behind the last layer.
        kept: int64, ids of the reduced vocabulary; None: those of the checkpoint, or the most frequent tokens.
    """
    config = package.manifest.model
    exits = options.exits
    place = None if layer is None else exits.index(layer)
    recorded = Recorded(config.hidden_size, config.vocab_size, len(exits), place)
    paths = shard_paths(folder)
    torch.manual_seed(options.seed)
    inner = options.intermediate_size or -(-8 * config.hidden_size // 3 // 64) * 64
    shape = HeadNetShape(config.hidden_size, inner, options.blocks)
    draft = DraftHead(shape, torch.ones(config.hidden_size))
    file = checkpoint.file_of(folder, kind_of(layer))
    state = checkpoint.load(file, draft, options.seed, config.vocab_size, options.vocabulary)
    counts = count_tokens(paths, recorded)
    tokens = int(counts.sum())
    if kept is None:
        kept = torch.from_numpy(state.kept if state is not None else most_frequent(counts, options.vocabulary))
    target = read_target(package, kept.numpy())
    evaluated = held_out(paths, recorded)
    seed = options.seed + (0 if state is None else state.updates)
    batches = Batches(paths, recorded, batch=recipe.batch, seed=seed).draw()
    beginner = DraftHead(shape, target.norm)
    anchors, first = next(batches)
    rows = anchors.places[torch.randperm(len(anchors.places))[:_START_ANCHORS]]
    start(beginner, target.embedding, anchors, rows)
    if state is None:
        draft = beginner
    # What an exit's adapter begins with comes from a pass through the first layers: it says one token.
    steps = 3 if layer is None else 1
    untrained = acceptance(beginner, target, evaluated, steps=steps)
    clock = Clock(
        draft,
        file,
        kept.numpy(),
        seed=options.seed,
        state=state,
        updates=options.updates,
        seconds=TRAINING_SHARE * options.seconds / max(1, len(exits)),
        progress=progress,
        label="" if layer is None else f"exit {layer}: ",
    )
    with clock.saving():
        learn(draft, target, itertools.chain([(anchors, first)], batches), recipe, clock.share, clock.report)
    draft.rounds_weights = True
    progress(stage_event("measuring"))
    return Trained(
        draft,
        target,
        untrained,
        acceptance(draft, target, evaluated, steps=steps),
        tokens,
        clock.updates * recipe.batch / max(1, tokens),
        clock.updates,
        clock.seconds,
    )
