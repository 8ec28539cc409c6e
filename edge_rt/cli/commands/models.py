"""``edge-rt pull``, ``list`` and ``rm``: the models on this machine."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from edge_rt.cli.loading import check_runtime, tell_source, telling_exporter
from edge_rt.cli.options import flags, making_flags
from edge_rt.cli.options.flags import DEFAULT_MODEL
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.progress import show_progress
from edge_rt.errors import ConfigError
from edge_rt.system.byte_size import parse_size

if TYPE_CHECKING:
    from edge_rt.store.layout import StoreEntry
    from edge_rt.store.pull import PullReport


@dataclass(frozen=True)
class PullFlags:
    """What is fetched, and how it is exported."""

    name: Annotated[str | None, flags.NAME] = None
    activations: Annotated[str | None, making_flags.ACTIVATIONS.but(help="auto, int8 or float.")] = None
    weights: Annotated[str | None, making_flags.WEIGHTS] = None
    size: Annotated[str | None, making_flags.SIZE] = None
    kv_type: Annotated[str | None, making_flags.DEFAULT_KV_TYPE] = None
    accept_loss: Annotated[bool, making_flags.ACCEPT_LOSS] = False
    force: Annotated[bool, flags.FORCE.but(help="Fetch and export again.")] = False


def pull(
    wanted: PullFlags,
    load: Annotated[ModelFlags, only("named", "model")],
    output: OutputFlags,
    places: PlaceFlags,
) -> int:
    """Fetch a model, and export it into the store."""
    from edge_rt.store.pull import pull as pull_into
    from edge_rt.store.resolve import resolve

    terminal = output.terminal()
    size = 0 if wanted.size is None else parse_size(wanted.size)
    reference = load.reference
    place = places.open_store()
    resolved = resolve(reference, place)
    if wanted.force or resolved.kind != "package":
        check_runtime()
    if resolved.kind != "package":
        tell_source(terminal, resolved, offline=places.offline, lead=f"{resolved.name}: ")
    with show_progress(terminal) as progress:
        report = pull_into(
            reference,
            store=place,
            name=wanted.name,
            offline=places.offline,
            activations=wanted.activations,
            weights=wanted.weights,
            size=size,
            kv=wanted.kv_type,
            accept_loss=wanted.accept_loss,
            force=wanted.force,
            progress=progress,
            exporter=telling_exporter(terminal),
        )
    if output.json:
        terminal.document(_pull_json(report))
    else:
        _print_pulled(terminal, report)
    return 0


def _pull_json(report: PullReport) -> dict[str, Any]:
    source = None
    if report.source is not None:
        source = {**dataclasses.asdict(report.source), "path": str(report.source.path)}
    return {
        "name": report.name,
        "package": None if report.package is None else str(report.package),
        "source": source,
        "was_present": report.was_present,
        "export": None if report.export is None else report.export.to_json(),
        "seconds": report.seconds,
    }


def _print_pulled(terminal: Terminal, report: PullReport) -> None:
    if report.was_present:
        terminal.line(f"{report.name} is already present: {report.package}")
        return
    terminal.line(f"{report.name} is ready: {report.package} ({report.seconds:.1f} s)")
    terminal.note(f"try: edge-rt chat -m {report.name}", "dim")


def list_models(output: OutputFlags, places: Annotated[PlaceFlags, only("store", "config")]) -> int:
    """List the models in the store."""
    from edge_rt.system.byte_size import human_bytes

    terminal = output.terminal()
    place = places.open_store()
    entries = place.list()
    if output.json:
        models = [{**dataclasses.asdict(entry), "path": entry.path and str(entry.path)} for entry in entries]
        terminal.document({"store": str(place.root), "models": models})
        return 0
    if not entries:
        terminal.note(f"No models in {place.root}. 'edge-rt pull' fetches {DEFAULT_MODEL}.")
        return 0
    header = ("NAME", "PACKAGE", "SOURCE", "WEIGHTS", "ACTIVATIONS", "PROFILE", "LICENCE")
    rows = [header]
    for entry in entries:
        package = human_bytes(entry.size_bytes) if entry.path else "-"
        source = human_bytes(entry.source_bytes) if entry.source_bytes else "-"
        how = (_weights(entry), entry.activations or "-", entry.op_profile or "-")
        rows.append((entry.name, package, source, *how, entry.license or "-"))
    terminal.table(rows, right=(1, 2))
    for entry in entries:
        if entry.problem:
            terminal.warn(f"{entry.name}: {entry.problem}")
    return 0


def _weights(entry: StoreEntry) -> str:
    return "+".join(sorted({part for kind in (entry.quantisation or {}).values() for part in kind.split("+")})) or "-"


@dataclass(frozen=True)
class RemoveFlags:
    """What is removed."""

    name: Annotated[str, flags.NAME_ARGUMENT]
    yes: Annotated[bool, flags.YES] = False


def rm(removed: RemoveFlags, output: OutputFlags, places: Annotated[PlaceFlags, only("store", "config")]) -> int:
    """Remove a model from the store: its package and its source files."""
    from edge_rt.system.byte_size import human_bytes

    terminal, name = output.terminal(), removed.name
    place = places.open_store()
    entry = next((entry for entry in place.list() if entry.name == name), None)
    if entry is not None and not removed.yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError("Removing needs confirmation.", "There is no terminal to ask at.", "Add --yes.")
        size = human_bytes(entry.size_bytes + entry.source_bytes)
        if not terminal.ask(f"Remove {name} ({size}) from {place.root}?"):
            terminal.note("nothing was removed")
            return 1
    report = place.remove(name)
    if output.json:
        terminal.document({"name": report.name, "bytes": report.bytes})
    else:
        terminal.line(f"removed {report.name}, {human_bytes(report.bytes)} freed")
    return 0
