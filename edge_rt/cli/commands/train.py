"""``edge-rt train drafter``: train a drafter from nothing but the model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edge_rt.cli.loading import check_runtime, obtain_package
from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import LoadFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only, spread
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.progress import show_progress
from edge_rt.errors import ConfigError, RuntimeUnavailable, StorageError

if TYPE_CHECKING:
    from edge_rt.package.reader import Package
    from edge_rt.train.acceptance import Acceptance
    from edge_rt.train.run import TrainReport

KINDS: Final = ("head",)
SELF: Final = "self"
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([smhd]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

train_app = typer.Typer(no_args_is_help=True, help="Train drafters (pip install 'edge-rt[train]').")


@dataclass(frozen=True)
class TrainFlags:
    """What is trained, from what, and for how long."""

    out: Annotated[Path | None, flags.OUT.but(shown="drafters/head in the package")] = None
    kind: Annotated[str, flags.KIND] = "head"
    data: Annotated[str, flags.DATA] = SELF
    time: Annotated[str, flags.TIME] = "30m"
    tokens: Annotated[int | None, flags.TRAIN_TOKENS] = None
    updates: Annotated[int | None, flags.UPDATES] = None
    vocabulary: Annotated[int | None, flags.VOCABULARY] = None
    seed: Annotated[int, flags.SEED.but(help="Of the answers and the training.", shown="0", panel=None)] = 0
    work: Annotated[Path | None, flags.WORK] = None
    force: Annotated[bool, flags.FORCE.but(help="Replace a drafter at DIR.")] = False

    def seconds(self) -> float:
        """Return the time for everything.

        Raises:
            ConfigError: it, the kind or the data is unknown.
        """
        if self.kind not in KINDS:
            raise ConfigError("The kind of drafter is unknown.", f"Got {self.kind!r:.40}.", f"Use {', '.join(KINDS)}.")
        if self.data != SELF:
            raise ConfigError("The data are unknown.", f"Got {self.data!r:.40}.", f"Use --data {SELF}.")
        return parse_duration(self.time)


def parse_duration(text: str) -> float:
    """Return a duration in seconds.

    Args:
        text: a number of seconds, or a number with one of the units s, m, h and d.

    Raises:
        ConfigError: it is not a duration above 0.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if seconds <= 0:
        raise ConfigError("The time cannot be read.", f"Got {text!r:.40}.", "Write it as 90s, 30m or 8h.")
    return seconds


@train_app.callback()
def _group() -> None:
    """Train drafters (pip install 'edge-rt[train]')."""


@train_app.command()
@spread
def drafter(
    wanted: TrainFlags,
    load: Annotated[LoadFlags, only("model", "threads")],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Train a drafter for a model, from texts that the model writes itself; a later run continues.

    Half of the time it writes dialogues, then it learns to foresee its own next tokens in them.
    """
    terminal, seconds = output.terminal(), wanted.seconds()
    check_runtime()
    _require_torch()
    name, package = obtain_package(terminal, load.reference, places)
    out = wanted.out.expanduser() if wanted.out is not None else package.path / "drafters" / wanted.kind
    if out.exists() and not wanted.force:
        raise StorageError(f"{out} exists.", "Nothing was trained.", "Choose another --out, or add --force.")
    work = wanted.work.expanduser() if wanted.work is not None else _work_folder(name, package)

    from edge_rt.train.run import DEFAULT_VOCABULARY, TrainOptions, train_drafter

    options = TrainOptions(
        seconds=seconds,
        tokens=wanted.tokens,
        updates=wanted.updates,
        seed=wanted.seed,
        threads=load.threads,
        vocabulary=wanted.vocabulary or DEFAULT_VOCABULARY,
    )
    terminal.note(f"answers and checkpoints: {work}", "dim")
    with show_progress(terminal) as progress:
        report = train_drafter(package, out, work, options, name=wanted.kind, force=wanted.force, progress=progress)
    _show(terminal, out, report)
    return 0


def _require_torch() -> None:
    """Refuse to train without torch.

    Raises:
        RuntimeUnavailable: it is not installed.
    """
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise RuntimeUnavailable(
            "Training needs torch.",
            "It is not installed, because running models does not need it.",
            "Install it: pip install 'edge-rt[train]'.",
        )


def _work_folder(name: str, package: Package) -> Path:
    import platformdirs

    return platformdirs.user_cache_path("edge-rt") / "train" / f"{name[:64]}-{package.id[:12]}"


def _show(terminal: Terminal, out: Path, report: TrainReport) -> None:
    trained = report.trained
    document: dict[str, Any] = {
        "path": None if report.drafter is None else str(out),
        "size_bytes": None if report.drafter is None else report.drafter.size_bytes,
        "answer_tokens": trained.tokens,
        "updates": trained.updates,
        "seconds": round(trained.seconds, 1),
        "untrained": _figures(trained.untrained),
        "trained": _figures(trained.reached),
    }
    if terminal.is_json:
        terminal.document(document)
        return
    if report.drafter is None:
        terminal.warn("The trained head guesses no better than an untrained one; nothing was written. Train longer.")
    terminal.table(
        [
            ("drafter", "not written" if report.drafter is None else str(out)),
            ("training", f"{trained.tokens:,} answer tokens, {trained.updates:,} updates, {trained.seconds:.0f} s"),
            ("untrained", _line(trained.untrained)),
            ("trained", _line(trained.reached)),
        ]
    )


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
