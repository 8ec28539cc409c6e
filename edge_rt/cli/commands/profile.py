"""``edge-rt profile``: the planned memory of a model beside its measured memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from edge_rt.cli.loading import obtain_package, tell_device, tell_plan
from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags, SpeculationFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.memory.device import holding
from edge_rt.system.byte_size import in_mib

if TYPE_CHECKING:
    from edge_rt.measure.memory_report import MemoryReport, TermSizes
    from edge_rt.memory.figures import Device
    from edge_rt.memory.plan import Plan
    from edge_rt.package.reader import Package
    from edge_rt.runtime.load.options import LoadOptions

CHAT_TURNS: Final = 8
_MIB: Final = 1 << 20
_WORKER: Final = "edge_rt.cli.memory_worker"
_BAR: Final = 36
_DRIVER: Final = "gpu_context"
_REPORT: Final = "please report it, with the output of --json"
_STAGES: Final = {
    "runtime": "the process has started",
    "loaded": "the model is loaded",
    "calibration": "passes are measured",
    "prefill": "the context is full",
    "tree": "the largest tree is verified",
    "sampling": "tokens are drawn",
    "drafters": "the drafters' tables are full",
    "drafter": "the trained drafter is loaded",
    "corpus": "the corpus is looked up",
    "answer": "an answer is generated",
    "slots": "all slots answer, in all rows of the cache",
}


@dataclass(frozen=True)
class PictureFlags:
    """Whether figures are plotted."""

    plot: Annotated[Path | None, flags.PLOT.but(help="Save a plot: a .png, .svg or .pdf file.")] = None


def profile(
    load: Annotated[
        ModelFlags, only("named", "model", "memory", "device_memory", "experts", "ctx", "kv_type", "threads", "device")
    ],
    speculation: Annotated[SpeculationFlags, only("spec", "draft_max", "corpus", "drafter")],
    picture: PictureFlags,
    output: OutputFlags,
    places: PlaceFlags,
    slots: Annotated[int, flags.SLOTS] = 1,
    kv_rows: Annotated[int | None, flags.KV_ROWS] = None,
) -> int:
    """Measure how much memory a model takes, and compare it with its plan.

    A fresh process loads the model as planned and uses it up to the plan's limits: a full context, the largest draft in
    every pass, full tables. Its peak resident memory is compared with the plan, part by part.
    """
    terminal, plot = output.terminal(), picture.plot
    if plot is not None:
        from edge_rt.cli.render.plots import require_plot

        require_plot(plot)
    speculation.check_planned()
    asked = load.options(places, speculation).but(slots=None if slots == 1 else slots, kv_rows=kv_rows)
    name, package = obtain_package(terminal, load.reference, places, budget=load.budget_bytes(places))
    # In this thread, where a signal ends the measurement and its process at once.
    measured = _measure(terminal, package, asked, load.threads, with_chat=plot is not None)
    plan = measured.plan
    if plot is not None:
        from edge_rt.cli.render.plots import draw_memory as draw

        draw(measured, plot, title=_title(name, plan))
        terminal.note(f"Plot saved: {plot}", "dim")
    if output.json:
        terminal.document({**measured.to_json(), "model": name})
    else:
        print_report(terminal, measured)
    above = "the budget" if measured.exceeded else "the plan" if measured.is_above_plan else None
    if above is not None:
        terminal.warn(f"The measured peak is above {above}: {_why_above(measured)}.")
    return int(above is not None)


def _measure(
    terminal: Terminal, package: Package, asked: LoadOptions, threads: int | None, *, with_chat: bool
) -> MemoryReport:
    """Run a fresh process up to the limits of a plan for it, and a second one through a chat if a chat is plotted."""
    from edge_rt.measure.memory_report import MemoryReport
    from edge_rt.measure.memory_watch import MeasuredProcess

    def tell(stage: str) -> None:
        if stage in _STAGES:
            terminal.note(f"Measuring: {_STAGES[stage]}", "dim")
        elif stage.startswith("turn"):
            terminal.note(f"Measuring a chat: {stage} of {CHAT_TURNS}", "dim")

    with MeasuredProcess(_WORKER) as process:
        plan = _plan(terminal, package, asked, holding(process.base_bytes))
        tell_plan(terminal, plan)
        if plan.given_up:
            terminal.note("Reduced to fit: " + "; ".join(plan.given_up), "dim")
        run = process.run(package.path, plan, threads=threads, on_stage=tell)
    if not with_chat or package.manifest.chat_template is None:
        return MemoryReport(plan, run)
    with MeasuredProcess(_WORKER) as process:
        chat = process.run(package.path, plan, threads=threads, turns=CHAT_TURNS, on_stage=tell)
    return MemoryReport(plan, run, chat)


def _plan(terminal: Terminal, package: Package, options: LoadOptions, machine: Device) -> Plan:
    """Return the plan that a fresh process would make of a package, and say what there is to say about its device."""
    from edge_rt.memory.advice import require_fit
    from edge_rt.runtime.load.planning import plan_package

    plan = plan_package(package, options, machine)
    if plan.device_choice is not None:
        tell_device(terminal, plan.device_choice)
    return require_fit(plan)


def _why_above(measured: MemoryReport) -> str:
    """Return what is said of a peak that is above the budget or the plan."""
    gpu = measured.plan.device.gpu
    if gpu is None or not measured.is_above_plan:
        return _REPORT
    why = f"the driver of {gpu.name} lives in the process, and what it takes there is an estimate"
    return why if gpu.is_software else f"{why}; {_REPORT}"


def _title(name: str, plan: Plan) -> str:
    choice = plan.choice
    drafts = f"drafts of {choice.draft_max} ({choice.spec})" if choice.draft_max else "no speculation"
    slots = f", {choice.slots} slots" if choice.slots > 1 else ""
    return f"{name}, {plan.shape.op_profile}: context {choice.ctx}, cache {choice.kv_format}, {drafts}{slots}"


def print_report(terminal: Terminal, measured: MemoryReport) -> None:
    """Write table and chart."""
    # What lies on a GPU alone is told below.
    terms = {name: term for name, term in measured.terms().items() if term["planned"] or term["measured"] is not None}
    planned, peak, beside = measured.planned_bytes, measured.run.peak_bytes, measured.unmeasured_bytes
    rows: list[tuple[str, ...]] = [("MiB", "planned", "measured", "error", "")]
    texts = {term.name: term.text for term in measured.plan.terms}
    for name, term in terms.items():
        rows.append((name, *_cells(term["planned"], term["measured"]), texts.get(name, "")))
    if planned != measured.plan.process_bytes:
        held = planned - measured.plan.process_bytes
        rows.append(("device", in_mib(held), "-", "", "of the software device, in this process: see below"))
    rows.append(("unaccounted", "", in_mib(measured.unaccounted_bytes), "", "peak minus the sum of the parts"))
    rows.append(("peak", *_cells(planned, peak), "resident memory, as counted by the kernel"))
    if beside:
        rows.append(
            ("with the GPU", in_mib(planned + beside), "", "", f"{in_mib(beside)} of it not measured: see below")
        )
    rows.append(("budget", in_mib(measured.plan.budget_bytes), "", "", _room(measured)))
    terminal.table(rows, right=(1, 2, 3))
    terminal.line()
    for text in device_lines(measured):
        terminal.line(text)
    for line in chart({**terms, "peak": {"planned": planned, "measured": peak}}):
        terminal.line(line)
    highest = measured.run.highest()
    terminal.line()
    private, files = in_mib(highest.private_bytes), in_mib(highest.file_bytes)
    terminal.line(f"peak: {private} MiB private, {files} MiB mapped files")


def device_lines(measured: MemoryReport) -> list[str]:
    """Return what is planned and measured on a GPU, in MiB; nothing for a plan for the CPU."""
    found = measured.device_json()
    if found is None:
        return []
    planned, held = found["planned_without_context_bytes"], found["measured_without_context_bytes"]
    seen = "not measured alone: it shares the machine's memory" if held is None else f"{in_mib(held)} MiB measured"
    parts = ", ".join(f"{name} {in_mib(count)}" for name, count in found["terms"].items() if name != _DRIVER)
    return [
        f"on the GPU without what its driver takes: {in_mib(planned)} MiB planned, {seen}",
        f"  planned: {parts}",
        f"  its driver: {in_mib(found['planned_bytes'] - planned)} MiB, an estimate",
        "",
    ]


def chart(terms: dict[str, TermSizes], width: int = _BAR) -> list[str]:
    """Return lines of text that show planned and measured bytes as bars."""
    most = max(max(term["planned"], term["measured"] or 0) for term in terms.values()) or 1
    names = max(map(len, terms))
    lines = []
    for name, term in terms.items():
        for label, mark, size in (("planned", "░", term["planned"]), ("measured", "█", term["measured"])):
            bar = mark * max(round(width * (size or 0) / most), 1 if size else 0)
            text = f"{'-' if size is None else in_mib(size):>8} {label}"
            lines.append(f"{name if label == 'planned' else '':<{names}}  {bar:<{width}}  {text}")
    return lines


def _cells(planned: int, measured: int | None) -> tuple[str, str, str]:
    if measured is None:
        return in_mib(planned), "-", ""
    # A relative error of very small sizes is meaningless.
    error = f"{100 * (planned / measured - 1):+.1f} %" if measured >= _MIB else ""
    return in_mib(planned), in_mib(measured), error


def _room(measured: MemoryReport) -> str:
    left = measured.plan.budget_bytes - measured.run.peak_bytes - measured.unmeasured_bytes
    found = f"{in_mib(left)} left at the peak" if left >= 0 else f"{in_mib(-left)} too much at the peak"
    return f"{found}, with what is planned on the GPU" if measured.unmeasured_bytes else found
