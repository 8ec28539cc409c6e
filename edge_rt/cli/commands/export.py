"""``edge-rt export``: export a checkpoint as a package."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from edge_rt.cli.loading import check_runtime, tell_estimate, tell_source
from edge_rt.cli.options import flags, making_flags
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only, path_of
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.inspect_report import forecast_rows, kv_text, over_budget, rounding_rows, weights_rows
from edge_rt.cli.render.progress import show_progress
from edge_rt.errors import ConfigError, ModelNotFound
from edge_rt.export.options import ExportOptions
from edge_rt.package.exits import parse_exits
from edge_rt.package.manifest import BUILT_IN_CALIBRATION
from edge_rt.package.writer import PackageWriter
from edge_rt.system.byte_size import parse_size

if TYPE_CHECKING:
    from edge_rt.export import ExportReport
    from edge_rt.package.manifest import AdapterInfo
    from edge_rt.store.layout import Store
    from edge_rt.store.resolve import Resolved
    from edge_rt.system.progress import ProgressCallback

NO_CALIBRATION: Final = "none"


@dataclass(frozen=True)
class ExportFlags:
    """What is exported, and where to."""

    out: Annotated[Path, making_flags.OUT]
    via: Annotated[str | None, making_flags.VIA] = None
    profile: Annotated[str | None, making_flags.PROFILE] = None
    activations: Annotated[str | None, making_flags.ACTIVATIONS.but(shown="auto")] = None
    weights: Annotated[str | None, making_flags.WEIGHTS] = None
    size: Annotated[str | None, making_flags.SIZE] = None
    calibration: Annotated[str | None, making_flags.CALIBRATION] = None
    kv_type: Annotated[str | None, making_flags.DEFAULT_KV_TYPE] = None
    exits: Annotated[str | None, making_flags.EXITS] = None
    adapter: Annotated[list[str] | None, making_flags.ADAPTER] = None
    accept_loss: Annotated[bool, making_flags.ACCEPT_LOSS] = False
    dry_run: Annotated[bool, making_flags.DRY_RUN] = False
    force: Annotated[bool, flags.FORCE.but(help="Replace a package at DIR.")] = False
    memory: Annotated[
        str | None, flags.MEMORY.but(help="Refuse an export that needs more, such as 2GiB.", shown=None, panel=None)
    ] = None

    def options(self) -> ExportOptions:
        """Return the options of an export; what is told during one is added to them."""
        return ExportOptions(
            via=self.via,
            profile=self.profile,
            activations=self.activations,
            weights=self.weights,
            size=None if self.size is None else parse_size(self.size),
            calibration=_calibration(self.calibration),
            kv=self.kv_type,
            exits=() if self.exits is None else parse_exits(self.exits),
            adapters=_adapters(self.adapter or ()),
            accept_loss=self.accept_loss,
            force=self.force,
        )


def export(
    wanted: ExportFlags,
    load: Annotated[ModelFlags, only("named", "model")],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Export a checkpoint as a package; nothing is left behind if it fails or is stopped.

    A checkpoint is a GGUF file, any part of a split one, or a folder with config.json, safetensors and tokenizer.json.
    """
    terminal = output.terminal()
    budget = None if wanted.memory is None else parse_size(wanted.memory)
    options = wanted.options()
    check_runtime()
    if wanted.dry_run:
        return _dry_run(terminal, _present(load.reference, places), wanted.out, options, budget)
    # Before anything is fetched.
    PackageWriter(wanted.out, force=wanted.force).check_destination()
    with show_progress(terminal) as progress:
        source = _source(terminal, load.reference, places, progress)
        # In the main thread: Ctrl-C then unwinds through the clean-up of the private folder.
        from edge_rt.export.entry import export_with

        options = replace(
            options,
            progress=progress,
            on_estimate=functools.partial(tell_estimate, terminal, budget=budget),
            on_chatter=(lambda text: terminal.note(text.rstrip(), "dim")) if output.verbose else None,
        )
        report = export_with(source, wanted.out, options)
    for warning in (*report.warnings, *_exceeded(report, budget)):
        terminal.warn(warning)
    if output.json:
        terminal.document(report.to_json())
    else:
        _print_report(terminal, report)
    return 0


def _dry_run(terminal: Terminal, source: Path, out: Path, options: ExportOptions, budget: int | None) -> int:
    """Show what an export would do; return the exit code that it would have."""
    from edge_rt.export.entry import plan_with

    forecast = plan_with(source, out, options)
    refusal = forecast.refusal or over_budget(forecast, budget)
    if terminal.is_json:
        terminal.document({**forecast.to_json(), "refusal": refusal})
    else:
        terminal.table(forecast_rows(forecast))
        for warning in forecast.warnings:
            terminal.warn(warning)
        if refusal is not None:
            terminal.error(" ".join(filter(None, (refusal["what"], refusal["numbers"], refusal["action"]))))
    return 0 if refusal is None else refusal["exit_code"]


def _present(reference: str, places: PlaceFlags) -> Path:
    """Return the path of a checkpoint that is on this machine; a dry run fetches nothing."""
    store = places.open_store()
    resolved = _resolved(reference, store)
    path = resolved.path or store.fetched_path(resolved.name)
    if path is None:
        raise ModelNotFound(
            f"{reference} is not on this machine.",
            f"An export {resolved.description}.",
            "A dry run fetches nothing: leave out --dry-run, or give a GGUF file or a folder.",
        )
    return path


def _resolved(reference: str, store: Store) -> Resolved:
    """Return what a package is made from."""
    from edge_rt.store.resolve import resolve_source

    resolved = resolve_source(reference, store)
    if resolved.kind == "package":
        raise ConfigError(
            f"{resolved.path} is a package.",
            "An export needs the checkpoint that a package is made from.",
            "Give a GGUF file, a folder with config.json and safetensors, or the name of a model that can be fetched.",
        )
    return resolved


def _calibration(option: str | None) -> Path | str | None:
    """Return the option as an argument of ``export_model``."""
    if option is None:
        return BUILT_IN_CALIBRATION
    return None if option == NO_CALIBRATION else path_of(option)


def _adapters(options: Sequence[str]) -> dict[Path | str, float]:
    """Return the adapters of the options, and their scales."""
    found: dict[Path | str, float] = {}
    for option in options:
        path, scale = parse_adapter(option)
        if path in found:
            raise ConfigError(
                f"The adapter {path} is named twice.",
                f"Its scales are {found[path]:g} and {scale:g}.",
                "Name it once, with the sum of its scales.",
            )
        found[path] = scale
    return found


def parse_adapter(option: str) -> tuple[Path, float]:
    """Return path and scale of ``PATH[:SCALE]``: what exists is a path, and one letter before the colon is a drive."""
    if not option:
        raise ConfigError("--adapter is empty.", "Got ''.", "Name a folder of PEFT or a GGUF file.")
    head, _, tail = option.rpartition(":")
    if len(head) > 1 and not path_of(option).exists():
        try:
            return path_of(head), float(tail)
        except ValueError:
            pass
    return path_of(option), 1.0


def _source(terminal: Terminal, reference: str, places: PlaceFlags, progress: ProgressCallback) -> Path:
    """Return the path of the checkpoint; it is fetched into the store if it is not on this machine."""
    from edge_rt.store.fetch import fetch_source

    store = places.open_store()
    resolved = _resolved(reference, store)
    if resolved.is_checkpoint and resolved.path is not None and not resolved.in_store:
        if resolved.path != Path(reference).expanduser():
            tell_source(terminal, resolved, offline=places.offline)
        return resolved.path
    tell_source(terminal, resolved, offline=places.offline)
    fetched = fetch_source(reference, store=store, offline=places.offline, progress=progress)
    return fetched.path


def _exceeded(report: ExportReport, budget: int | None) -> tuple[str, ...]:
    """Return a warning if the export took more memory than was predicted or allowed."""
    from edge_rt.system.byte_size import show_size

    allowed = report.predicted_peak_bytes if budget is None else min(budget, report.predicted_peak_bytes)
    if report.peak_bytes <= allowed:
        return ()
    above = "was predicted" if budget is None or report.peak_bytes <= budget else "--memory allows"
    taken, most = show_size(report.peak_bytes), show_size(allowed if above == "was predicted" else budget or 0)
    return (f"the export took {taken} of memory, more than {above} ({most}): please report it, with --json.",)


def _stages(seconds: Mapping[str, float]) -> str:
    """Return the stages that took longest, the longest first."""
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {taken:.1f}" for name, taken in longest)


def _adapter(info: AdapterInfo) -> str:
    trained = "" if info.model is None else f", trained on {info.model}"
    return f"{info.name}, scale {info.scale:g}{trained}"


def _print_report(terminal: Terminal, report: ExportReport) -> None:
    from edge_rt.system.byte_size import human_bytes, show_size

    rows = [
        ("package", str(report.path)),
        ("op profile", report.profile),
        ("disk", f"{human_bytes(report.disk_bytes)} (predicted at most {human_bytes(report.predicted_disk_bytes)})"),
        ("memory", f"{show_size(report.peak_bytes)} (predicted at most {show_size(report.predicted_peak_bytes)})"),
        ("time", f"{report.seconds:.1f} s ({_stages(report.stages)})"),
    ]
    rows += [("adapter", _adapter(one)) for one in report.adapters]
    for check in report.check:
        text = (
            f"error {100 * check.relative_error:.3g} % of the logits' spread, "
            f"same first choice {100 * check.top1_agreement:.1f} %, KL {check.mean_kl:.2g}"
        )
        rows.append((f"check {check.activations}", text))
    rows.append(("KV cache", kv_text(report.kv_formats, report.kv_losses)))
    if report.rounding is not None:
        rows += rounding_rows(dataclasses.asdict(report.rounding))
    if report.weights is not None:
        rows += weights_rows(report.weights)
    terminal.table(rows)
    terminal.note(f"try: edge-rt chat -m {shlex.quote(str(report.path))}", "dim")
