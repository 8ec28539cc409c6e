"""``edge-rt train drafter``: writes answers with the model, trains a head on them, and keeps it if it is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from edge_rt.package.drafter import TrainedDrafter, TrainingRecord
from edge_rt.package.reader import Package
from edge_rt.system.progress import ProgressCallback, no_progress
from edge_rt.train import checkpoint
from edge_rt.train.answers import write_answers
from edge_rt.train.folder import Label, TrainedAdapter, write_adapters, write_drafter
from edge_rt.train.learn import Acceptance, TrainingRecipe
from edge_rt.train.options import TrainOptions
from edge_rt.train.trainable import require_trainable
from edge_rt.train.training import Trained, kind_of, train_head
from edge_rt.version import VERSION

_SELF: Final = "answers of the model to user turns that it wrote itself, greedy and sampled"
_PROMPTS: Final = "answers of the model to {} prompts of its user, greedy and sampled"


@dataclass(frozen=True)
class TrainReport:
    """What a training gave.

    Attributes:
        drafter: the drafter that was written; None if nothing was better than its linear start.
        trained: the head and its figures; of adapters, the last one.
        exits: layers before an exit -> its adapter and its figures, those that were not written included.
    """

    drafter: TrainedDrafter | None
    trained: Trained
    left_out: int = 0
    exits: Mapping[int, Trained] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int | None:
        """Bytes of what was written; None if nothing was."""
        return None if self.drafter is None else self.drafter.size_bytes

    @property
    def written_exits(self) -> tuple[int, ...]:
        """The exits whose adapters were written."""
        return () if self.drafter is None else self.drafter.info.layers

    @property
    def more_figures(self) -> dict[str, Acceptance]:
        """Figures besides those of the training; none, because it is measured with weights as they are written."""
        return {}


def train_drafter(
    package: Package,
    out: Path,
    folder: Path,
    options: TrainOptions,
    *,
    name: str = "head",
    force: bool = False,
    recipe: TrainingRecipe | None = None,
    progress: ProgressCallback = no_progress,
) -> TrainReport:
    """Train a head, or the adapters of exits, from nothing but the model, and write a drafter.

    Args:
        folder: for answers and checkpoints. With a checkpoint of a run that was stopped, its training goes on; behind a
            run that was finished more answers are written, and the training begins anew on all of them.
        recipe: of the training; None: the usual one.
    """
    recipe = recipe or TrainingRecipe()
    require_trainable(package, options.exits, recipe.steps)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    left_out = 0
    layers: tuple[int | None, ...] = options.exits or (None,)
    if not any(checkpoint.file_of(folder, kind_of(layer)).exists() for layer in layers):
        left_out = write_answers(package, folder, options, progress)
    label = Label(name, f"edge-rt {VERSION}")
    if options.exits:
        found: dict[int, Trained] = {}
        kept = None
        for layer in options.exits:
            found[layer] = train_head(package, folder, options, recipe, progress, layer=layer, kept=kept)
            kept = found[layer].target.kept
        better = [TrainedAdapter(layer, one.net, one.reached) for layer, one in found.items() if one.is_better]
        last, drafter = found[options.exits[-1]], None
        if better:
            record = _record(tuple(found.values()), options)
            drafter = write_adapters(out, package, better, last.target.kept, record, label, force=force)
        checkpoint.delete(folder, *(kind_of(layer) for layer in layers))
        return TrainReport(drafter, last, left_out, found)
    trained, drafter = train_head(package, folder, options, recipe, progress), None
    if trained.is_better:
        record = _record((trained,), options)
        drafter = write_drafter(
            out, package, trained.net, trained.target.kept, trained.reached, record, label, force=force
        )
    checkpoint.delete(folder, kind_of(None))
    return TrainReport(drafter, trained, left_out)


def _record(trained: tuple[Trained, ...], options: TrainOptions) -> TrainingRecord:
    """Return the record of what was trained; steps and hours are those of all adapters."""
    return TrainingRecord(
        tokens=trained[0].tokens,
        epochs=round(sum(one.epochs for one in trained) / len(trained), 3),
        steps=sum(one.updates for one in trained),
        seed=options.seed,
        recipe="exit-1" if options.exits else "head-1",
        data=_SELF if options.prompts is None else _PROMPTS.format(len(options.prompts)),
        hours=round(sum(one.seconds for one in trained) / 3600, 3),
    )
