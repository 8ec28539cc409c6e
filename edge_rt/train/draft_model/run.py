"""``edge-rt train drafter --kind model``: a small model out of the first layers of a model, trained on its answers.

The recipe is that of FastDraft (Intel, arXiv 2411.11055): the family and tokenizer of the target, fewer layers, and
distillation on text that the target wrote. Instead of a pre-training it starts from layers of the target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from edge_rt.export import ExportReport, export_model
from edge_rt.ort.session import pool_size
from edge_rt.package.reader import Package, open_package
from edge_rt.system.progress import ProgressCallback, no_progress
from edge_rt.train import checkpoint
from edge_rt.train.answers import shard_paths, write_answers
from edge_rt.train.batch import BatchRunner
from edge_rt.train.batches import Recorded, count_tokens, most_frequent
from edge_rt.train.draft_model.folder import folder_name, remove_folder, write_folder
from edge_rt.train.draft_model.learn import DraftNet, ModelRecipe, Vocabularies, fit_start, learn_model
from edge_rt.train.draft_model.net import DraftLayers
from edge_rt.train.draft_model.plain import PlainLayers, rope_settings
from edge_rt.train.draft_model.sequences import Dialogue, SequenceBatches, held_out_sequences, in_batches, join
from edge_rt.train.learn import RANKS, Acceptance
from edge_rt.train.options import TRAINING_SHARE, TrainOptions, stage_event
from edge_rt.train.target import TargetModel, read_target
from edge_rt.train.trainable import require_draft_model
from edge_rt.train.updates import Clock

MEASURED_ROWS: Final = 10_000
_TOKENS: Final = 3072
_LOGIT_ROWS: Final = 512
"""Rows whose logits over the whole vocabulary are computed at once."""


@torch.no_grad()
def model_acceptance(
    states: Callable[[Sequence[Dialogue]], Tensor],
    target: TargetModel,
    held_out: Sequence[Dialogue],
    *,
    steps: int = 3,
) -> Acceptance:
    """Measure a draft model on recorded answers, among all tokens: at every place against the token of the answer.

    Where the guesses before were right, the draft model has the answer's own tokens before it, so one pass over an
    answer tells how long its drafts would have been right.

    Args:
        states: computes the draft model's states before the final norm in the rows of dialogues, float32
            ``[rows, hidden_size]``.
        target: whose final norm and LM head it has, with the whole vocabulary.
    """
    first = torch.zeros(len(RANKS))
    right, tried, places = torch.zeros(steps), torch.zeros(steps), 0
    for dialogues in in_batches(held_out, _TOKENS):
        batch = join(dialogues)
        rows = states(dialogues).split(_LOGIT_ROWS)
        guesses = torch.cat([target.logits(some).topk(max(RANKS), -1).indices for some in rows])
        hits = guesses == batch.next_ids[:, None]
        first += torch.stack([hits[:, :rank].any(-1).sum() for rank in RANKS])
        places += len(hits)
        is_right = torch.ones(len(hits), dtype=torch.bool)
        for step in range(steps):
            is_right = is_right & (batch.left >= step)
            tried[step] += is_right.sum()
            is_right = is_right & hits[:, 0].roll(-step)
            right[step] += is_right.sum()
    shares = (right / tried.clamp(min=1)).tolist()
    return Acceptance(tuple((first / max(1, places)).tolist()), tuple(shares), places)


def package_acceptance(
    package: Package, target: TargetModel, held_out: Sequence[Dialogue], *, threads: int
) -> Acceptance:
    """Measure the package of a draft model through its own passes; the arguments are those of ``model_acceptance``."""
    longest = max(len(one.token_ids) for one in held_out)
    with BatchRunner(package, sequences=1, capacity=longest, threads=threads, most_rows=longest) as runner:

        def states(dialogues: Sequence[Dialogue]) -> Tensor:
            found = []
            for one in dialogues:
                runner.lengths[0] = 0
                (rows,) = runner.forward([one.token_ids.tolist()], [True])
                found.append(rows.hidden[-len(one.next_ids) :].copy())
            return torch.from_numpy(np.concatenate(found))

        found: Acceptance = model_acceptance(states, target, held_out)
        return found


KIND: Final = "model"
_POSITIONS: Final = 1152


@dataclass(frozen=True)
class TrainedModel:
    """A trained draft model.

    Attributes:
        untrained: how often guesses of its start were right in them.
        reached: the same of the trained one, in float.
    """

    guesses: DraftNet
    held_out: Sequence[Dialogue]
    untrained: Acceptance
    reached: Acceptance
    tokens: int
    updates: int
    seconds: float


@dataclass(frozen=True)
class ModelReport:
    """What a training gave.

    Attributes:
        exported: what the export of the draft model did; None if it was not better than its start.
        packaged: how often guesses of the package are right; None without one.
    """

    exported: ExportReport | None
    trained: TrainedModel
    packaged: Acceptance | None
    left_out: int = 0

    @property
    def size_bytes(self) -> int | None:
        """Bytes of what was written; None if nothing was."""
        return None if self.exported is None else self.exported.disk_bytes

    @property
    def exits(self) -> Mapping[int, TrainedModel]:
        """Nothing: a draft model has no adapters of exits."""
        return {}

    @property
    def written_exits(self) -> tuple[int, ...]:
        """Nothing."""
        return ()

    @property
    def more_figures(self) -> dict[str, Acceptance]:
        """Figures besides those of the training: of the package, whose weights are rounded."""
        return {} if self.packaged is None else {"package": self.packaged}


def train_model(
    package: Package,
    folder: Path,
    options: TrainOptions,
    recipe: ModelRecipe,
    progress: ProgressCallback = no_progress,
) -> TrainedModel:
    """Train a draft model on the answers of a folder, and measure it.

    A checkpoint in the folder is continued. One is written every minute, and when Ctrl-C stops the training.
    """
    config = package.manifest.decoder
    assert config is not None, package.manifest.op_profile
    sizes = (config.hidden_size, config.vocab_size)
    paths = shard_paths(folder)
    torch.manual_seed(options.seed)
    reader = PlainLayers(package)
    weights = [reader.layer(number) for number in range(options.layers)]
    draft = DraftLayers(config, weights)
    file = checkpoint.file_of(folder, KIND)
    state = checkpoint.load(file, draft, options.seed, config.vocab_size, options.vocabulary)
    counts = count_tokens(paths, Recorded(*sizes))
    kept = state.kept if state is not None else most_frequent(counts, options.vocabulary)
    target = _whole_target(package)
    rotations = _rotations(reader, config.context_length)
    held_out = held_out_sequences(paths, *sizes, recipe.context, MEASURED_ROWS)
    seed = options.seed + (0 if state is None else state.updates)
    batches = SequenceBatches(
        paths, hidden_size=sizes[0], vocab_size=sizes[1], context=recipe.context, tokens=recipe.tokens, seed=seed
    ).draw()
    beginner = DraftNet(DraftLayers(config, weights), target, rotations)
    fit_start(beginner, batches, min(recipe.fit_rows, int(counts.sum())))
    guesses = beginner if state is None else DraftNet(draft, target, rotations)
    untrained = _measured(beginner, held_out)
    clock = Clock(
        guesses.net,
        file,
        kept,
        seed=options.seed,
        state=state,
        updates=options.updates,
        seconds=TRAINING_SHARE * options.seconds,
        progress=progress,
        most_bytes=None,
    )
    vocabularies = Vocabularies(torch.from_numpy(kept), config.vocab_size, recipe.others, seed)
    with clock.saving():
        learn_model(guesses, batches, vocabularies, recipe, clock.share, clock.report)
    progress(stage_event("measuring"))
    reached = _measured(guesses, held_out)
    return TrainedModel(guesses, held_out, untrained, reached, int(counts.sum()), clock.updates, clock.seconds)


def train_draft_model(
    package: Package,
    out: Path,
    folder: Path,
    options: TrainOptions,
    *,
    weights: str | None = None,
    force: bool = False,
    recipe: ModelRecipe | None = None,
    progress: ProgressCallback = no_progress,
) -> ModelReport:
    """Train a small model that drafts for a model, from nothing but that model, and write it as a package.

    Args:
        folder: for answers and checkpoints, as in ``edge_rt.train.run.train_drafter``; kinds of drafters share answers.
        weights: types of the matrices, as in ``edge_rt.export.export_model``; None: like those of the model.
        recipe: of the training; None: the usual one.
    """
    require_draft_model(package, options.layers)
    config = package.manifest.model
    # Refused before answers are written.
    rope = _rope_settings(package)
    recipe = recipe or ModelRecipe()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    left_out = 0
    if not checkpoint.file_of(folder, KIND).exists():
        left_out = write_answers(package, folder, options, progress)
    trained = train_model(package, folder, options, recipe, progress)
    if trained.reached.first[0] <= trained.untrained.first[0]:
        checkpoint.delete(folder, KIND)
        return ModelReport(None, trained, None, left_out)
    source = folder / folder_name(config.name, options.layers)
    remove_folder(source)
    try:
        write_folder(source, package, trained.guesses, rope)
        exported = export_model(
            source,
            out,
            profile="native",
            weights=weights or usual_weights(package.manifest.quantisation["feed_forward"]),
            sampling=package.manifest.sampling,
            # What rounding costs is seen in the acceptance that is measured below: the model verifies every guess.
            accept_loss=True,
            force=force,
        )
    finally:
        remove_folder(source)
    packaged = package_acceptance(
        open_package(exported.path),
        trained.guesses.target,
        trained.held_out,
        # The pool of the process may be there already, as large as the machine.
        threads=pool_size() or options.threads or torch.get_num_threads(),
    )
    checkpoint.delete(folder, KIND)
    return ModelReport(exported, trained, packaged, left_out)


def usual_weights(stored: str) -> str:
    """Return the value of the option ``weights`` for a draft model of a model whose feed-forwards have some types."""
    types = set(stored.split("+"))
    if types <= {"F32"}:
        return "f32"
    if types <= {"F16", "BF16", "F32"}:
        return "f16"
    return "int8" if types <= {"Q8_0", "W8N"} else "int4"


def _measured(guesses: DraftNet, held_out: Sequence[Dialogue]) -> Acceptance:
    found: Acceptance = model_acceptance(lambda dialogues: guesses.states(join(dialogues)), guesses.target, held_out)
    return found


def _whole_target(package: Package) -> TargetModel:
    """Return the model's embedding, final norm and whole LM head, which is the embedding if they are tied."""
    config = package.manifest.model
    target = read_target(package, np.arange(config.vocab_size))
    return dataclasses.replace(target, head=target.embedding) if config.is_tied else target


def _rotations(reader: PlainLayers, context: int) -> tuple[Tensor, Tensor]:
    cosines, sines = reader.rotations(range(min(_POSITIONS, context)))
    return torch.from_numpy(cosines), torch.from_numpy(sines)


def _rope_settings(package: Package) -> dict[str, object]:
    """Return what ``config.json`` says of the model's rotations."""
    decoder = package.manifest.decoder
    assert decoder is not None, package.manifest.op_profile
    return rope_settings(decoder.ropes[0])
