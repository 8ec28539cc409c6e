"""``edge-rt export``: export a checkpoint as a package."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from edge_rt.byte_size import parse_size
from edge_rt.cli.loading import check_runtime, tell_estimate, tell_source
from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import LoadFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.progress import show_progress
from edge_rt.cli.user_paths import path_of
from edge_rt.package.manifest import BUILT_IN_CALIBRATION

if TYPE_CHECKING:
    from edge_rt.export import ExportReport
    from edge_rt.progress import ProgressCallback

NO_CALIBRATION: Final = "none"


@dataclass(frozen=True)
class ExportFlags:
    """What is exported, and where to."""

    out: Annotated[Path, flags.OUT]
    profile: Annotated[str | None, flags.PROFILE] = None
    activations: Annotated[str, flags.ACTIVATIONS.but(shown="int8")] = "int8"
    calibration: Annotated[str | None, flags.CALIBRATION] = None
    force: Annotated[bool, flags.FORCE.but(help="Replace a package at DIR.")] = False
    memory: Annotated[
        str | None, flags.MEMORY.but(help="Refuse an export that needs more, such as 2GiB.", shown=None)
    ] = None


def export(
    wanted: ExportFlags,
    load: Annotated[LoadFlags, only("model")],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Export a checkpoint as a package; nothing is left behind if it fails or is stopped.

    A checkpoint is a GGUF file, any part of a split one, or a folder with config.json, safetensors and tokenizer.json.
    """
    terminal = output.terminal()
    budget = None if wanted.memory is None else parse_size(wanted.memory)
    check_runtime()
    with show_progress(terminal) as progress:
        source = _source(terminal, load.reference, places, progress)
        # In the main thread: Ctrl-C then unwinds through the clean-up of the private folder.
        from edge_rt.export import export_model

        report = export_model(
            source,
            wanted.out,
            profile=wanted.profile,
            activations=wanted.activations,
            calibration=_calibration(wanted.calibration),
            force=wanted.force,
            progress=progress,
            on_estimate=functools.partial(tell_estimate, terminal, budget=budget),
        )
    for warning in report.warnings:
        terminal.warn(warning)
    if output.json:
        terminal.document(report.to_json())
    else:
        _print_report(terminal, report)
    return 0


def _calibration(option: str | None) -> Path | str | None:
    """Return the option as an argument of ``export_model``."""
    if option is None:
        return BUILT_IN_CALIBRATION
    return None if option == NO_CALIBRATION else path_of(option)


def _source(terminal: Terminal, reference: str, places: PlaceFlags, progress: ProgressCallback) -> Path:
    """Return the path of the checkpoint; it is fetched into the store if it is not on this machine."""
    path = Path(reference).expanduser()
    if path.suffix.lower() == ".gguf" and path.is_file():
        return path
    from edge_rt.store import fetch_source
    from edge_rt.store.resolve import resolve_source

    store = places.open_store()
    resolved = resolve_source(reference, store)
    if resolved.is_checkpoint and resolved.path is not None and not resolved.in_store:
        if resolved.path != path:
            tell_source(terminal, resolved, offline=places.offline)
        return resolved.path
    tell_source(terminal, resolved, offline=places.offline)
    fetched = fetch_source(reference, store=store, offline=places.offline, progress=progress)
    return fetched.path


def _print_report(terminal: Terminal, report: ExportReport) -> None:
    from edge_rt.byte_size import human_bytes, show_size

    rows = [
        ("package", str(report.path)),
        ("op profile", report.profile),
        ("disk", f"{human_bytes(report.disk_bytes)} (predicted at most {human_bytes(report.predicted_disk_bytes)})"),
        ("memory", f"{show_size(report.peak_bytes)} (predicted at most {show_size(report.predicted_peak_bytes)})"),
        ("time", f"{report.seconds:.1f} s"),
    ]
    for check in report.check:
        text = (
            f"error {100 * check.relative_error:.3g} % of the logits' spread, "
            f"same first choice {100 * check.top1_agreement:.1f} %, KL {check.mean_kl:.2g}"
        )
        rows.append((f"check {check.activations}", text))
    terminal.table(rows)
