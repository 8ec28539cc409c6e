"""From a model argument to a loaded model: show what is fetched, fetch, export, load."""

from __future__ import annotations

import functools
import shlex
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from edge_rt.cli.interrupt import SignalReceived, run_in_background
from edge_rt.cli.notices import warn_of_driver
from edge_rt.cli.options.groups import PlaceFlags
from edge_rt.cli.render.console import Terminal
from edge_rt.errors import MemoryBudgetExceeded, VersionMismatch
from edge_rt.system.byte_size import exact_size, round_up, show_at_least
from edge_rt.system.machine import collector_paused
from edge_rt.system.process_memory import own_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from edge_rt.device.names import DeviceChoice
    from edge_rt.export import ExportEstimate, ExportReport
    from edge_rt.export.options import ExportOptions
    from edge_rt.memory.plan import Plan
    from edge_rt.package.reader import Package
    from edge_rt.runtime.load.options import LoadOptions
    from edge_rt.runtime.model import Model
    from edge_rt.store.pull import Exporter
    from edge_rt.store.resolve import Resolved


def tell_estimate(
    terminal: Terminal,
    estimate: ExportEstimate,
    *,
    budget: int | None = None,
    package: str | None = None,
    lead: str = "",
) -> None:
    """Show how much disk and memory an export will need.

    Args:
        budget: memory budget in bytes; None: no limit.
        package: name of the package, if it is exported only to be loaded; None if the user asked for the export.
        lead: text before the suggested command, such as how to leave a chat to type it.

    Raises:
        MemoryBudgetExceeded: the estimate is above the budget; nothing was written yet.
    """
    from edge_rt.cli.render.inspect_report import sufficient
    from edge_rt.system.byte_size import human_bytes, show_size

    disk, memory = human_bytes(estimate.disk_bytes), show_at_least(estimate.peak_memory_bytes)
    if budget is not None and estimate.peak_memory_bytes > budget:
        raise MemoryBudgetExceeded(
            "The export does not fit the memory budget.",
            f"It may need up to {memory}; the budget is {show_size(budget)}.",
            f"Give --memory {exact_size(sufficient(estimate.peak_memory_bytes))}, or export on another machine: a "
            "package runs anywhere."
            if package is None
            else _pull_first(package, lead),
        )
    terminal.note(f"the export needs up to {disk} of disk and {memory} of memory", "dim")


def _pull_first(package: str, lead: str) -> str:
    return f"Fetch and export it first, once, without a budget: {lead}edge-rt pull {shlex.quote(package)}"


def require_export_fits(resolved: Resolved, reference: str, budget: int | None, *, lead: str = "") -> None:
    """Refuse a budget in which a recipe's export never succeeds, before anything is fetched."""
    from edge_rt.system.byte_size import show_size

    least = 0 if resolved.recipe is None else resolved.recipe.least_memory
    if budget is not None and budget < least:
        raise MemoryBudgetExceeded(
            "The export does not fit the memory budget.",
            f"It needs more than {show_size(least)}; the budget is {show_size(budget)}.",
            _pull_first(reference, lead),
        )


def telling_exporter(
    terminal: Terminal, *, budget: int | None = None, package: str | None = None, lead: str = ""
) -> Exporter:
    """Return an exporter for the store that shows its estimate, as ``tell_estimate``, and its warnings."""
    from edge_rt.store.pull import export_with_edge_rt

    on_estimate = functools.partial(tell_estimate, terminal, budget=budget, package=package, lead=lead)

    def export(source: Path, out: Path, options: ExportOptions) -> ExportReport:
        if package is not None:
            terminal.note(f"exporting {out.name} (once)")
        report = export_with_edge_rt(source, out, replace(options, on_estimate=on_estimate))
        for warning in report.warnings:
            terminal.warn(warning)
        return report

    return export


def check_runtime() -> None:
    """Check that ONNX Runtime can be used, before anything is downloaded."""
    from edge_rt.ort.session import check_onnxruntime_version

    check_onnxruntime_version()


def tell_source(terminal: Terminal, resolved: Resolved, *, offline: bool, lead: str = "") -> None:
    """Show what a model is made from, and whether it will be fetched, unless the network must not be used."""
    if not offline or resolved.download_bytes == 0:
        terminal.note(f"{lead}{resolved.description}")


def telling_load(terminal: Terminal, options: LoadOptions) -> LoadOptions:
    """Return options of a load that tells what is special about its plan, and shows why a GPU's first one waits."""

    def on_compile(are_kept: bool) -> None:
        kept = "kept for later" if are_kept else "not kept: the user's cache folder cannot be written"
        terminal.note(f"compiling the kernels for this GPU ({kept}; it may take a minute)", "dim")

    return options.but(on_compile=on_compile, on_plan=functools.partial(tell_plan, terminal, told=set()))


def tell_plan(terminal: Terminal, plan: Plan, told: set[str] | None = None) -> None:
    """Warn about budgets of a plan for this machine that are more than there is; say what else is special about it.

    That is which layers are on the GPU, and rotations for long contexts.

    Args:
        told: what was told before: flags of budgets, and ``"rotation"``; what is told of this plan is added.
    """
    from edge_rt.cli.render.plan_report import budget_warnings, layers_text, rotation_text

    told = set() if told is None else told
    for flag, text in budget_warnings(plan, is_here=True).items():
        if flag not in told:
            terminal.warn(text)
        told.add(flag)
    if (divided := layers_text(plan)) is not None:
        terminal.note(divided, "dim")
    if (rotated := rotation_text(plan)) is not None and "rotation" not in told:
        terminal.note(rotated, "dim")
        told.add("rotation")


def tell_device(terminal: Terminal, choice: DeviceChoice) -> None:
    """Say what there is to be said about the device that ``auto`` has chosen."""
    if choice.has_failed:
        terminal.warn(str(choice.note))
    elif choice.note is not None:
        terminal.note(choice.note, "dim")


def obtain_package(
    terminal: Terminal, reference: str, places: PlaceFlags, *, budget: int | None = None, lead: str = ""
) -> tuple[str, Package]:
    """Return the name of a model and its opened package; it is fetched and exported first if needed.

    Args:
        budget: memory budget of an export in bytes; None: no limit.

    Raises:
        EdgeRTError: there is no such model, or it cannot be fetched, exported or opened.
    """
    from edge_rt.package.reader import open_package
    from edge_rt.store.resolve import resolve

    store = places.open_store()
    resolved = resolve(reference, store)
    is_outdated = False
    if resolved.kind == "package" and resolved.path is not None:
        try:
            return resolved.name, open_package(resolved.path)
        except VersionMismatch:
            if not resolved.can_be_made_again(store):
                raise
        reference, is_outdated = resolved.name, True
    from edge_rt.cli.render.progress import show_progress
    from edge_rt.store.pull import find_made, pull

    is_local = resolved.is_checkpoint and not resolved.in_store
    made = find_made(resolved, store)
    if made is not None:
        terminal.note(f"using {made.path.name}, the package made of {resolved.path}", "dim")
        return made.path.name, made
    require_export_fits(resolved, reference, budget, lead=lead)
    check_runtime()
    if not is_local and not is_outdated:
        # Whether a local checkpoint was exported before is known only after it is hashed.
        lead_in = "" if resolved.path is not None else f"{resolved.name} is not on this machine: "
        tell_source(terminal, resolved, offline=places.offline, lead=lead_in)
    exporter = telling_exporter(terminal, budget=budget, package=reference, lead=lead)
    with show_progress(terminal) as progress:
        report = pull(reference, store=store, offline=places.offline, progress=progress, exporter=exporter)
    path = report.package
    assert path is not None
    is_used = is_local and report.was_present
    text = f"using {path.name}, the package made of {resolved.path}" if is_used else f"{path.name} is ready in {path}"
    terminal.note(text, "dim")
    return path.name, open_package(path)


def plan_model(package: Package, options: LoadOptions, base_bytes: int | None = None) -> Plan:
    """Return a plan for a package that fits; nothing is loaded.

    Args:
        base_bytes: memory of this process before its first model, if there was one; the package then replaces the model
            that is loaded now.

    Raises:
        EdgeRTError: the options are wrong, or it does not fit the memory.
    """

    def work() -> Plan:
        from edge_rt.memory.advice import require_fit
        from edge_rt.runtime.load.planning import plan_package

        asked = options.but(base_bytes=_base_bytes(options) if base_bytes is None else base_bytes)
        return require_fit(plan_package(package, asked), asked.spell or shlex.join)

    return run_in_background(work)


def load_model(package: Package, options: LoadOptions, plan: Plan | None = None) -> Model:
    """Load a package while signals can still reach this process.

    Args:
        plan: what ``plan_model`` has made of the options; None: it is made here.

    Raises:
        SignalReceived: a signal came; the model is freed as soon as ONNX Runtime has loaded it.
    """
    abandoned = threading.Event()

    def work() -> Model:
        with collector_paused():
            from edge_rt.runtime.model import Model

            asked = options.but(base_bytes=_base_bytes(options)) if plan is None else options
            model = Model(package, asked, plan)
        if abandoned.is_set():
            model.close()
        return model

    try:
        return run_in_background(work)
    except SignalReceived:
        abandoned.set()
        raise


@contextmanager
def model_of_command(
    terminal: Terminal,
    package: Package,
    options: LoadOptions,
    load: Callable[[Package, LoadOptions], Model] = load_model,
) -> Generator[Model]:
    """Load the model of a command, which is not closed: the process ends with it, and the system frees all at once.

    What is special about its plan and its device is told before, and after the block whether a GPU's driver has made
    the process take more than its budget.
    """
    model = load(package, telling_load(terminal, options))
    tell_device(terminal, model.device_choice)
    yield model
    warn_of_driver(terminal, model)


def _base_bytes(options: LoadOptions) -> int:
    """Return the memory of this process before a model, counted as in ``edge-rt plan``, so that both agree."""
    # Imported first, so that the imports of a load count as memory of the process before the model.
    import edge_rt.runtime.model  # noqa: F401
    from edge_rt.memory.device import STEP

    return max(options.base_bytes or 0, round_up(own_bytes(), STEP))
