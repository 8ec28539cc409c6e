"""``edge-rt train drafter``: writes answers with the model, trains a head on them, and keeps it if it is better."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from edge_rt.errors import UnsupportedModel
from edge_rt.package.drafter import Drafter, TrainingRecord
from edge_rt.package.reader import Package
from edge_rt.progress import ProgressCallback, ProgressEvent, no_progress
from edge_rt.runtime.prompt.encoding import PromptEncoder
from edge_rt.train import checkpoint
from edge_rt.train.acceptance import Acceptance, acceptance
from edge_rt.train.anchors import Anchors
from edge_rt.train.batch import BatchRunner
from edge_rt.train.batches import Batches, frequent_tokens, held_out
from edge_rt.train.clock import Clock
from edge_rt.train.dialogues.markers import find_markers
from edge_rt.train.dialogues.writer import DialogueWriter
from edge_rt.train.folder import write_drafter
from edge_rt.train.head import DraftHead, HeadShape
from edge_rt.train.learn import Recipe, learn
from edge_rt.train.shards import SHARD_TOKENS, shard_paths, written
from edge_rt.train.start import start
from edge_rt.train.target import Target, target_of
from edge_rt.version import VERSION

DEFAULT_VOCABULARY: Final = 4096
"""Tokens that a head can guess, besides those of the prompt."""
WRITING_SHARE: Final = 0.5
"""Part of the time that goes into answers."""
_SEQUENCES: Final = 32
_CONTEXT: Final = 1152
_PREFILL_ROWS: Final = 128
_TRAINING_SHARE: Final = 0.45
_START_ANCHORS: Final = 40_000
_STAGES: Final = ("answers", "training", "measuring")


@dataclass(frozen=True)
class TrainOptions:
    """What is trained, and for how long.

    Attributes:
        seconds: time for everything. Answers and training of an earlier run in the same folder are continued.
        tokens: answer tokens to write, instead of ``WRITING_SHARE`` of the time; None: by time.
        updates: of the training, instead of the rest of the time; None: by time. With both numbers given, a seed
            repeats a training.
        seed: of all draws.
        threads: for both; None: all CPUs.
        vocabulary: rows of the LM head that guesses come from.
        intermediate_size: of a block; None: eight thirds of the hidden size, as usual.
        blocks: how many.
        kv_format: of the cache while answers are written.
    """

    seconds: float = 1800.0
    tokens: int | None = None
    updates: int | None = None
    seed: int = 0
    threads: int | None = None
    vocabulary: int = DEFAULT_VOCABULARY
    intermediate_size: int | None = None
    blocks: int = 1
    kv_format: str = "f16"


@dataclass(frozen=True)
class Trained:
    """A trained head.

    Attributes:
        net: the head.
        target: the model.
        held_out: answers that it was not trained on.
        untrained: how often guesses of the linear start were right there.
        reached: the same of the trained head, its weights rounded to 4 bits.
        tokens: answer tokens it was trained on.
        epochs: passes over them.
        updates: of the training.
        seconds: spent on training.
    """

    net: DraftHead
    target: Target
    held_out: Anchors
    untrained: Acceptance
    reached: Acceptance
    tokens: int
    epochs: float
    updates: int
    seconds: float


def write_answers(
    package: Package, folder: Path, options: TrainOptions, progress: ProgressCallback = no_progress
) -> int:
    """Write answers into a folder until there are enough, or the time for them is over.

    Returns:
        The number of answer tokens in the folder.

    Raises:
        StorageError: the disk is full; complete files stay, and are continued.
        UnsupportedModel, InvalidTemplate: the model cannot write dialogues by itself.
    """
    begun = time.monotonic()
    files = len(shard_paths(folder))
    total = files * SHARD_TOKENS
    limit = None if options.tokens is not None else WRITING_SHARE * options.seconds

    def tell() -> bool:
        spent = time.monotonic() - begun
        done, whole = (total, options.tokens) if limit is None else (int(spent), int(limit))
        unit = "tokens" if limit is None else "seconds"
        message = f"{total:,} answer tokens"
        progress(ProgressEvent("answers", 1, len(_STAGES), done, whole, unit, message))
        return total >= options.tokens if options.tokens is not None else spent >= (limit or 0.0)

    if tell() and files:
        return total
    texts = PromptEncoder(package, package.manifest.model.context_length)
    with BatchRunner(
        package,
        sequences=_SEQUENCES,
        capacity=min(_CONTEXT, package.manifest.model.context_length),
        kv_format=options.kv_format,
        threads=options.threads or torch.get_num_threads(),
        most_rows=_SEQUENCES + _PREFILL_ROWS,
    ) as runner:
        # Another seed behind the answers of an earlier run, which would be written again otherwise.
        writer = DialogueWriter(runner, texts.tokenizer, find_markers(texts), options.seed + 1000 * files)
        for shard in written(folder, writer.answers()):
            total += shard.num_tokens
            if tell():
                break
    return total


def train_head(
    package: Package, folder: Path, options: TrainOptions, recipe: Recipe, progress: ProgressCallback = no_progress
) -> Trained:
    """Train a head on the answers of a folder, and measure it.

    A checkpoint in the folder is continued, and written every minute.

    Raises:
        StorageError: answers or checkpoint cannot be used, or the disk is full.
        UnsupportedModel: heads cannot be trained for this model.
    """
    config = package.manifest.model
    sizes = (config.hidden_size, config.vocab_size)
    paths = shard_paths(folder)
    torch.manual_seed(options.seed)
    inner = options.intermediate_size or -(-8 * config.hidden_size // 3 // 64) * 64
    shape = HeadShape(config.hidden_size, inner, options.blocks)
    draft = DraftHead(shape, torch.ones(config.hidden_size))
    file = folder / "checkpoint.npz"
    state = checkpoint.load(file, draft, options.seed, config.vocab_size)
    kept = state.kept if state is not None else frequent_tokens(paths, *sizes, options.vocabulary)
    target = target_of(package, kept)
    evaluated = held_out(paths, *sizes)
    seed = options.seed + (0 if state is None else state.updates)
    batches = Batches(paths, hidden_size=sizes[0], vocab_size=sizes[1], batch=recipe.batch, seed=seed).draw()
    beginner = DraftHead(shape, target.norm)
    anchors, first = next(batches)
    rows = anchors.places[torch.randperm(len(anchors.places))[:_START_ANCHORS]]
    start(beginner, target.embedding, anchors, rows)
    if state is None:
        draft = beginner
    untrained = acceptance(beginner, target, evaluated)
    clock = Clock(
        draft,
        file,
        kept,
        seed=options.seed,
        state=state,
        updates=options.updates,
        seconds=_TRAINING_SHARE * options.seconds,
        progress=progress,
    )
    learn(draft, target, itertools.chain([(anchors, first)], batches), recipe, clock.share, clock.report)
    clock.save()
    draft.rounds_weights = True
    progress(ProgressEvent("measuring", 3, len(_STAGES)))
    return Trained(
        draft,
        target,
        evaluated,
        untrained,
        acceptance(draft, target, evaluated),
        len(paths) * SHARD_TOKENS,
        clock.updates * recipe.batch / max(1, len(paths) * SHARD_TOKENS),
        clock.updates,
        clock.seconds,
    )


@dataclass(frozen=True)
class TrainReport:
    """What a training gave.

    Attributes:
        drafter: the drafter that was written; None if it was not better than nothing.
        trained: the head and its figures.
    """

    drafter: Drafter | None
    trained: Trained


def train_drafter(
    package: Package,
    out: Path,
    folder: Path,
    options: TrainOptions,
    *,
    name: str = "head",
    force: bool = False,
    recipe: Recipe | None = None,
    progress: ProgressCallback = no_progress,
) -> TrainReport:
    """Train a head for a model, from nothing but the model, and write it as a drafter.

    Args:
        package: the model.
        out: the drafter's folder.
        folder: for answers and checkpoints; a later run with the same one continues.
        options: how long, and of which size.
        name: of the drafter.
        force: replace a drafter at ``out``.
        recipe: of the training; None: the usual one.
        progress: called as it goes on.

    Raises:
        UnsupportedModel, InvalidTemplate: heads cannot be trained for this model.
        StorageError: the disk is full, or files cannot be used; answers and the last checkpoint stay.
    """
    require_trainable(package)
    recipe = recipe or Recipe()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    write_answers(package, folder, options, progress)
    trained = train_head(package, folder, options, recipe, progress)
    if trained.reached.first[0] <= trained.untrained.first[0]:
        return TrainReport(None, trained)
    record = TrainingRecord(
        tokens=trained.tokens,
        epochs=round(trained.epochs, 3),
        steps=trained.updates,
        seed=options.seed,
        recipe="head-1",
        data="answers of the model to user turns that it wrote itself, greedy and sampled",
        hours=round(trained.seconds / 3600, 3),
    )
    drafter = write_drafter(
        out,
        package,
        trained.net,
        trained.target.kept,
        trained.reached,
        record,
        name=name,
        producer=f"edge-rt {VERSION}",
        force=force,
    )
    return TrainReport(drafter, trained)


def require_trainable(package: Package) -> None:
    """Refuse a package for which no head can be trained.

    Raises:
        UnsupportedModel: it is not native, or in several segments.
    """
    manifest = package.manifest
    if manifest.op_profile != "native" or len(manifest.segments) != 1:
        raise UnsupportedModel(
            "No draft head can be trained for this package.",
            f"Its op profile is {manifest.op_profile!r}, with {len(manifest.segments)} segments; "
            "'native' with one is needed.",
            "Export the model again with --profile native.",
        )
