"""``edge-rt pull``, ``list`` and ``rm``: the models on this machine."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge_rt.cli.loading import check_runtime, tell_estimate, tell_source
from edge_rt.cli.options import (
    DEFAULT_MODEL,
    ConfigOption,
    JsonOption,
    ModelOption,
    NoColorOption,
    OfflineOption,
    QuietOption,
    StoreOption,
    VerboseOption,
    make_terminal,
    one_of,
    open_the_store,
)
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.progress import show_progress
from edge_rt.errors import ConfigError

if TYPE_CHECKING:
    from edge_rt.store import PullReport, StoreEntry


def pull(
    ref: Annotated[
        str | None,
        typer.Argument(metavar="[REF]", help=f"Name, org/name[:FILE.gguf], or GGUF file; {DEFAULT_MODEL} if absent."),
    ] = None,
    model: ModelOption = None,
    name: Annotated[str | None, typer.Option("--name", help="Name in the store.")] = None,
    activations: Annotated[str | None, typer.Option("--activations", metavar="KIND", help="int8 or float.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch and export again.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    offline: OfflineOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Fetch a model and export it into the store."""
    from edge_rt.store import export_with_edge_rt, pull as pull_into, resolve

    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    reference = one_of(ref, model, "The model") or DEFAULT_MODEL
    place = open_the_store(store, config)
    resolved = resolve(reference, place)
    if force or resolved.kind != "package":
        check_runtime()
    if resolved.kind != "package":
        tell_source(terminal, resolved, offline=offline, lead=f"{resolved.name}: ")
    with show_progress(terminal) as progress:
        report = pull_into(
            reference,
            store=place,
            name=name,
            offline=offline,
            activations=activations,
            force=force,
            progress=progress,
            exporter=functools.partial(export_with_edge_rt, on_estimate=functools.partial(tell_estimate, terminal)),
        )
    if json:
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
        terminal.line(f"{report.name} is here already: {report.package}")
        return
    terminal.line(f"{report.name} is ready: {report.package} ({report.seconds:.1f} s)")
    terminal.note(f"try: edge-rt chat -m {report.name}", "dim")


def list_models(
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """List the models in the store."""
    from edge_rt.byte_size import human_bytes

    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    place = open_the_store(store, config)
    entries = place.list()
    if json:
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


def rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name in the store.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Remove a model, its package and its source files, from the store."""
    from edge_rt.byte_size import human_bytes

    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    place = open_the_store(store, config)
    entry = next((entry for entry in place.list() if entry.name == name), None)
    if entry is not None and not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError("Removing needs a yes.", "There is no terminal to ask at.", "Add --yes.")
        size = human_bytes(entry.size_bytes + entry.source_bytes)
        if not terminal.ask(f"Remove {name} ({size}) from {place.root}?"):
            terminal.note("nothing was removed")
            return 1
    report = place.remove(name)
    if json:
        terminal.document({"name": report.name, "bytes": report.bytes})
    else:
        terminal.line(f"removed {report.name}, {human_bytes(report.bytes)} freed")
    return 0
