"""``edge-rt train drafter``: train a drafter from nothing but the model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edge_rt.cli.loading import check_runtime, obtain_package
from edge_rt.cli.options import answer_flags, flags, making_flags
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.options.typer_commands import PlainCommand, PlainGroup, literal, typer_command
from edge_rt.cli.overview import COMMANDS
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.progress import show_progress
from edge_rt.errors import ConfigError, RuntimeUnavailable, StorageError
from edge_rt.measure.prompts import read_prompts
from edge_rt.package.exits import parse_exits, require_exit_mode
from edge_rt.package.weights_info import require_known
from edge_rt.system.byte_size import counted
from edge_rt.system.machine import install_command

if TYPE_CHECKING:
    from edge_rt.package.reader import Package
    from edge_rt.system.progress import ProgressCallback
    from edge_rt.train.draft_model.run import ModelReport
    from edge_rt.train.learn import Acceptance
    from edge_rt.train.options import TrainOptions
    from edge_rt.train.run import TrainReport

SELF: Final = "self"
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([smhd]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

_HELP: Final = literal(COMMANDS["train"].summary)

train_app = typer.Typer(cls=PlainGroup, rich_markup_mode="rich", no_args_is_help=True, help=_HELP)


@dataclass(frozen=True)
class TrainFlags:
    """What is trained, from what, and for how long."""

    out: Annotated[Path | None, making_flags.OUT.but(shown="drafters/KIND in the package; NAME-draft for a model")] = (
        None
    )
    kind: Annotated[str, making_flags.KIND] = "head"
    exits: Annotated[
        str | None,
        making_flags.EXITS.but(help="Exits to train adapters for, such as 6,15.", shown="all of the package"),
    ] = None
    data: Annotated[str, making_flags.DATA] = SELF
    time: Annotated[str, making_flags.TIME] = "30m"
    tokens: Annotated[int | None, making_flags.TRAIN_TOKENS] = None
    updates: Annotated[int | None, making_flags.UPDATES] = None
    unrolled: Annotated[int | None, making_flags.UNROLLED] = None
    dropout: Annotated[float | None, making_flags.DROPOUT] = None
    layers: Annotated[int | None, making_flags.LAYERS] = None
    weights: Annotated[
        str | None,
        making_flags.WEIGHTS.but(
            help="Types of a draft model's matrices, as in export.", shown="like the model's", panel=None
        ),
    ] = None
    vocabulary: Annotated[int | None, making_flags.VOCABULARY] = None
    seed: Annotated[int, answer_flags.SEED.but(help="Of the answers and the training.", shown="0", panel=None)] = 0
    work: Annotated[Path | None, making_flags.WORK] = None
    force: Annotated[bool, flags.FORCE.but(help="Replace a drafter at DIR.")] = False

    def seconds(self) -> float:
        """Return the time for everything."""
        if self.kind not in KINDS:
            raise ConfigError("The kind of drafter is unknown.", f"Got {self.kind!r:.40}.", f"Use {', '.join(KINDS)}.")
        given = {
            "exits": self.exits,
            "unrolled": self.unrolled,
            "dropout": self.dropout,
            "layers": self.layers,
            "weights": self.weights,
        }
        for name, value in given.items():
            if value is not None and name not in KINDS[self.kind].options:
                raise ConfigError(
                    f"--{name} does not go together with --kind {self.kind}.", f"Got {value}.", "Leave it out."
                )
        if self.dropout is not None and not 0.0 <= self.dropout < 1.0:
            raise ConfigError("The share is out of range.", f"--dropout is {self.dropout}.", "Choose 0 to below 1.")
        require_known(self.weights)
        return parse_duration(self.time)

    def exits_of(self, package: Package) -> tuple[int, ...]:
        """Return the exits to train adapters for; none for other kinds."""
        if self.kind != "exit":
            return ()
        require_exit_mode("exit", has_exits=bool(package.manifest.exits))
        return package.manifest.exits if self.exits is None else tuple(sorted(set(parse_exits(self.exits))))

    def prompts(self) -> tuple[str, ...] | None:
        """Return the prompts of the file; None if the model writes them itself."""
        return None if self.data == SELF else tuple(one.text for one in read_prompts(Path(self.data)))


def parse_duration(text: str) -> float:
    """Return a duration in seconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if seconds <= 0:
        raise ConfigError("The time cannot be read.", f"Got {text!r:.40}.", "Write it as 90s, 30m or 8h.")
    return seconds


@train_app.callback(help=_HELP)
def _group() -> None:
    """Have ``drafter`` as a command of its own: the only command of a group would stand for the group."""


@train_app.command(cls=PlainCommand)
@typer_command
def drafter(
    wanted: TrainFlags,
    load: Annotated[ModelFlags, only("named", "model", "threads")],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Train a drafter for a model, from texts that the model writes itself; a later run continues.

    It first generates dialogues, for half of the time, then trains a drafter to predict the model's own next tokens in
    them.
    """
    terminal, seconds, prompts = output.terminal(), wanted.seconds(), wanted.prompts()
    check_runtime()
    if wanted.out is not None:
        _refuse_existing(wanted.out.expanduser(), force=wanted.force)
    if not _is_package(load.reference, places):
        _require_torch()  # nothing is fetched or exported in vain
    name, package = obtain_package(terminal, load.reference, places)
    exits = wanted.exits_of(package)
    KINDS[wanted.kind].check(wanted, package)
    out = wanted.out.expanduser() if wanted.out is not None else KINDS[wanted.kind].usual_place(name, package)
    _refuse_existing(out, force=wanted.force)
    _require_torch()
    work = wanted.work.expanduser() if wanted.work is not None else _work_folder(name, package, prompts, exits)

    from edge_rt.train.options import DEFAULT_LAYERS, DEFAULT_VOCABULARY, TrainOptions

    options = TrainOptions(
        seconds=seconds,
        tokens=wanted.tokens,
        updates=wanted.updates,
        seed=wanted.seed,
        threads=load.threads,
        vocabulary=wanted.vocabulary or DEFAULT_VOCABULARY,
        layers=wanted.layers or DEFAULT_LAYERS,
        prompts=prompts,
        exits=exits,
    )
    terminal.note(f"answers and checkpoints: {work}", "dim")
    with show_progress(terminal) as progress:
        report = KINDS[wanted.kind].train(_TrainingJob(wanted, package, out, work, options, progress))
    if report.left_out:
        left = counted(report.left_out, "prompt", f"{report.left_out:,}")
        terminal.warn(f"Left out, because too long to be answered: {left}.")
    _show(terminal, out, report)
    return 0


@dataclass(frozen=True)
class _TrainingJob:
    """What a training gets."""

    wanted: TrainFlags
    package: Package
    out: Path
    work: Path
    options: TrainOptions
    progress: ProgressCallback


@dataclass(frozen=True)
class _Trainable:
    """A kind of drafter.

    Attributes:
        check: refuses a package that it cannot be trained for, given the flags.
        usual_place: where it is written, given the name of the model and its package.
    """

    check: Callable[[TrainFlags, Package], None]
    train: Callable[[_TrainingJob], TrainReport | ModelReport]
    usual_place: Callable[[str, Package], Path]
    options: tuple[str, ...]


def _check_head(wanted: TrainFlags, package: Package) -> None:
    from edge_rt.train.trainable import require_trainable

    require_trainable(package, wanted.exits_of(package), wanted.unrolled or 1)


def _check_model(wanted: TrainFlags, package: Package) -> None:
    from edge_rt.train.options import DEFAULT_LAYERS
    from edge_rt.train.trainable import require_draft_model

    require_draft_model(package, wanted.layers or DEFAULT_LAYERS)


def _train_head(job: _TrainingJob) -> TrainReport:
    from edge_rt.train.learn import TrainingRecipe
    from edge_rt.train.run import train_drafter

    return train_drafter(
        job.package,
        job.out,
        job.work,
        job.options,
        name=job.wanted.kind,
        force=job.wanted.force,
        recipe=TrainingRecipe(steps=job.wanted.unrolled or 1, dropout=job.wanted.dropout or 0.0),
        progress=job.progress,
    )


def _train_model(job: _TrainingJob) -> ModelReport:
    from edge_rt.train.draft_model.run import train_draft_model

    return train_draft_model(
        job.package,
        job.out,
        job.work,
        job.options,
        weights=job.wanted.weights,
        force=job.wanted.force,
        progress=job.progress,
    )


KINDS: Final = {
    "head": _Trainable(
        _check_head, _train_head, lambda _, package: package.path / "drafters" / "head", ("unrolled", "dropout")
    ),
    "exit": _Trainable(
        _check_head, _train_head, lambda _, package: package.path / "drafters" / "exit", ("exits", "dropout")
    ),
    "model": _Trainable(_check_model, _train_model, lambda name, _: Path(f"{name[:64]}-draft"), ("layers", "weights")),
}


def _refuse_existing(out: Path, *, force: bool) -> None:
    """Refuse to train what could not be written."""
    if out.exists() and not force:
        raise StorageError(f"{out} exists.", "Nothing was trained.", "Choose another --out, or add --force.")


def _is_package(reference: str, places: PlaceFlags) -> bool:
    """Return whether a model argument means a package that is on this machine."""
    from edge_rt.store.resolve import resolve

    found = resolve(reference, places.open_store())
    return found.kind == "package" and found.path is not None


def _require_torch() -> None:
    """Refuse to train without torch."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise RuntimeUnavailable(
            "Training needs torch.",
            "It is not installed, because running models does not need it.",
            f"Install it: {install_command('train')}.",
        )


def _work_folder(name: str, package: Package, prompts: tuple[str, ...] | None, exits: tuple[int, ...]) -> Path:
    from edge_rt.system.json_files import user_cache

    data = "" if prompts is None else "-" + hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:12]
    behind = "".join(f"-{layer}" for layer in exits)
    return user_cache("train") / f"{name[:64]}-{package.id[:12]}{data}{behind}"


def _show(terminal: Terminal, out: Path, report: TrainReport | ModelReport) -> None:
    trained, size = report.trained, report.size_bytes
    each = [*report.exits.values()] or [trained]
    updates, seconds = sum(one.updates for one in each), sum(one.seconds for one in each)
    measured = {"untrained": trained.untrained, "trained": trained.reached, **report.more_figures}
    document: dict[str, Any] = {
        "path": None if size is None else str(out),
        "size_bytes": size,
        "answer_tokens": trained.tokens,
        "updates": updates,
        "seconds": round(seconds, 1),
        **{name: _figures(found) for name, found in measured.items()},
        "exits": [
            {"layer": layer, "untrained": _figures(one.untrained), "trained": _figures(one.reached)}
            for layer, one in report.exits.items()
        ],
    }
    if terminal.is_json:
        terminal.document(document)
        return
    if size is None:
        terminal.warn("What was trained guesses no better than its start; nothing was written. Train longer.")
    terminal.table(
        [
            ("drafter", "not written" if size is None else str(out)),
            ("training", f"{trained.tokens:,} answer tokens, {updates:,} updates, {seconds:.0f} s"),
            *(_results(report) if report.exits else [(name, _line(found)) for name, found in measured.items()]),
        ]
    )


def _results(report: TrainReport | ModelReport) -> list[tuple[str, str]]:
    rows = []
    for layer, one in report.exits.items():
        kept = "" if layer in report.written_exits else "; not written, because it is no better"
        rows += [(f"exit {layer}", _line(one.reached)), ("untrained", f"{_line(one.untrained)}{kept}")]
    return rows


def _figures(found: Acceptance) -> dict[str, Any]:
    return {
        "first": [round(share, 4) for share in found.first],
        "by_position": [round(share, 4) for share in found.by_position],
        "tokens": found.anchors,
    }


def _line(found: Acceptance) -> str:
    first = " / ".join(f"{100 * share:.1f}" for share in found.first)
    later = ", ".join(f"{100 * share:.1f}" for share in found.by_position)
    return f"first token right {first} % (1 / 2 / 4 guesses); by position {later} % ({found.anchors:,} held-out tokens)"
