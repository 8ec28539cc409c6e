"""``edge-rt export``: a checkpoint becomes a package."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from edge_rt.byte_size import parse_size
from edge_rt.cli.loading import check_runtime, tell_estimate, tell_source
from edge_rt.cli.options import (
    ConfigOption,
    JsonOption,
    ModelFlags,
    ModelOption,
    NoColorOption,
    OfflineOption,
    QuietOption,
    StoreOption,
    VerboseOption,
    make_terminal,
)
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.progress import show_progress
from edge_rt.cli.user_paths import path_of
from edge_rt.package.manifest import BUILT_IN_CALIBRATION

if TYPE_CHECKING:
    from edge_rt.export import ExportReport
    from edge_rt.progress import ProgressCallback

ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        help="native (edge-rt's operators) or portable (ONNX Runtime's).",
        show_default="what this machine runs",
    ),
]
ActivationsOption = Annotated[
    str,
    typer.Option(
        "--activations", metavar="KIND", help="int8 (fast) or float (closest to the checkpoint; portable only)."
    ),
]
CalibrationOption = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="FILE|none",
        help="Text that the constants for 4-bit keys are computed from, or none for a package without (native only).",
        show_default="a text of edge-rt's own",
    ),
]
NO_CALIBRATION: Final = "none"


def export(
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder to create.")],
    model: ModelOption = None,
    profile: ProfileOption = None,
    activations: ActivationsOption = "int8",
    calibration: CalibrationOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a package at DIR.")] = False,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="Refuse an export that needs more, such as 2GiB."),
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    offline: OfflineOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Turn a GGUF checkpoint into a package; nothing is left behind if it fails or is stopped."""
    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    flags = ModelFlags(model, store=store, config=config, offline=offline)
    budget = None if memory is None else parse_size(memory)
    check_runtime()
    with show_progress(terminal) as progress:
        source = _source(terminal, flags, progress)
        # In the main thread: Ctrl-C then unwinds through the clean-up of the private folder.
        from edge_rt.export import export_model

        report = export_model(
            source,
            out,
            profile=profile,
            activations=activations,
            calibration=_calibration(calibration),
            force=force,
            progress=progress,
            on_estimate=functools.partial(tell_estimate, terminal, budget=budget),
        )
    for warning in report.warnings:
        terminal.warn(warning)
    if json:
        terminal.document(report.to_json())
    else:
        _print_report(terminal, report)
    return 0


def _calibration(option: str | None) -> Path | str | None:
    """Return the option as ``export_model`` takes it."""
    if option is None:
        return BUILT_IN_CALIBRATION
    return None if option == NO_CALIBRATION else path_of(option)


def _source(terminal: Terminal, flags: ModelFlags, progress: ProgressCallback) -> Path:
    """Return the checkpoint's file; it is fetched into the store if it is not on this machine."""
    path = Path(flags.reference).expanduser()
    if path.suffix.lower() == ".gguf" and path.is_file():
        return path
    from edge_rt.store import fetch_source
    from edge_rt.store.resolve import resolve_source

    store = flags.open_store()
    resolved = resolve_source(flags.reference, store)
    if resolved.kind == "gguf" and resolved.path is not None and not resolved.in_store:
        return resolved.path
    tell_source(terminal, resolved, offline=flags.offline)
    fetched = fetch_source(flags.reference, store=store, offline=flags.offline, gguf_only=True, progress=progress)
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
