"""``edge-rt profile``: what a model was planned to take of the memory, beside what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from edge_rt.byte_size import in_mib
from edge_rt.cli.baseline_memory import this_machine
from edge_rt.cli.loading import obtain_package
from edge_rt.cli.options import (
    ConfigOption,
    CtxOption,
    JsonOption,
    KvOption,
    MemoryOption,
    ModelFlags,
    ModelOption,
    NoColorOption,
    OfflineOption,
    QuietOption,
    StoreOption,
    ThreadsOption,
    VerboseOption,
    make_terminal,
)
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.speculation import CorpusOption, DraftMaxOption, check_planned

if TYPE_CHECKING:
    from edge_rt.measure.memory_report import MemoryProfile
    from edge_rt.memory.device import DeviceProfile
    from edge_rt.memory.plan import Plan

CHAT_TURNS: Final = 8
_MIB: Final = 1 << 20
_WORKER: Final = "edge_rt.cli.memory_worker"
_BAR: Final = 36
_STAGES: Final = {
    "runtime": "the process has started",
    "loaded": "the model is loaded",
    "calibration": "passes are measured",
    "prefill": "the context is full",
    "tree": "the largest tree is verified",
    "sampling": "tokens are drawn",
    "drafters": "the drafters' tables are full",
    "corpus": "the corpus is looked up",
    "answer": "an answer is generated",
}


def profile(
    model: ModelOption = None,
    memory: MemoryOption = None,
    ctx: CtxOption = None,
    kv_type: KvOption = None,
    spec: Annotated[
        str | None,
        typer.Option("--spec", metavar="MODE", help="Mode of speculation, or off.", show_default="the plan's"),
    ] = None,
    draft_max: DraftMaxOption = None,
    corpus: CorpusOption = None,
    threads: ThreadsOption = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it: a .png, .svg or .pdf file.")
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    offline: OfflineOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Measure the memory that a model takes, against its plan.

    A fresh process loads the model as planned and uses it to the plan's limits: a full context, the largest draft in
    every pass, full tables. Its peak of resident memory is compared with the plan, part by part.
    """
    flags = ModelFlags(model, ctx, threads, "auto", store, config, offline, kv_type, memory=memory)
    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    if plot is not None:
        from edge_rt.cli.render.speculation_plot import require_plot

        require_plot(plot)
    check_planned(spec, draft_max, corpus)
    name, package = obtain_package(terminal, flags)
    plan = _plan(package, flags, spec, draft_max, corpus, this_machine(flags.own_bytes))
    if plan.given_up:
        terminal.note("Given up: " + "; ".join(plan.given_up), "dim")

    def work() -> MemoryProfile:
        from edge_rt.measure.memory_report import MemoryProfile
        from edge_rt.measure.memory_watch import measure_plan

        def tell(stage: str) -> None:
            if stage in _STAGES:
                terminal.note(f"Measuring: {_STAGES[stage]}", "dim")
            elif stage.startswith("turn"):
                terminal.note(f"Measuring a chat: {stage} of {CHAT_TURNS}", "dim")

        run = measure_plan(package, plan, worker=_WORKER, threads=threads, on_stage=tell)
        if plot is None or not _can_chat(package):
            return MemoryProfile(plan, run)
        chat = measure_plan(package, plan, worker=_WORKER, threads=threads, turns=CHAT_TURNS, on_stage=tell)
        return MemoryProfile(plan, run, chat)

    # In this thread, where a signal ends the measurement and its process at once.
    measured = work()
    if plot is not None:
        from edge_rt.cli.render.memory_plot import draw

        draw(measured, plot, title=_title(name, plan))
        terminal.note(f"Drawn: {plot}", "dim")
    if json:
        terminal.document({**measured.to_json(), "model": name})
    else:
        _print(terminal, measured)
    if measured.exceeded:
        terminal.warn("The measured peak is above the budget: please report it, with the output of --json.")
    return int(measured.exceeded)


def _plan(
    package: Path,
    flags: ModelFlags,
    spec: str | None,
    draft_max: int | None,
    corpus: Path | None,
    device: DeviceProfile,
) -> Plan:
    """Return the plan that a fresh process would make of a package on this machine.

    Raises:
        ConfigError: a flag is wrong.
        MemoryBudgetExceeded: it does not fit.
    """
    from edge_rt.memory.plan import require_fit
    from edge_rt.package.reader import open_package
    from edge_rt.runtime.load.planning import Wanted, plan_package
    from edge_rt.runtime.speculation.speculation import SpecOptions

    wanted = Wanted(flags.ctx, flags.kv, None, SpecOptions(spec, draft_max, corpus))
    return require_fit(plan_package(open_package(package), wanted, flags.budget_bytes, device=device))


def _can_chat(package: Path) -> bool:
    from edge_rt.package.reader import open_package

    return open_package(package).manifest.chat_template is not None


def _title(name: str, plan: Plan) -> str:
    choice = plan.choice
    drafts = f"drafts of {choice.draft_max} ({choice.spec})" if choice.draft_max else "no speculation"
    return f"{name}, {plan.shape.op_profile}: context {choice.ctx}, cache {choice.kv_format}, {drafts}"


def _print(terminal: Terminal, measured: MemoryProfile) -> None:
    """Write table and chart."""
    terms = measured.terms()
    planned, peak = measured.plan.total_bytes, measured.run.peak_bytes
    rows: list[tuple[str, ...]] = [("MiB", "planned", "measured", "error", "")]
    texts = {term.name: term.text for term in measured.plan.terms}
    for name, term in terms.items():
        rows.append((name, *_cells(term["planned"], term["measured"]), texts.get(name, "")))
    rows.append(("unaccounted", "", in_mib(measured.unaccounted_bytes), "", "peak less the sum of the parts"))
    rows.append(("peak", *_cells(planned, peak), "of resident memory, by the kernel's count"))
    rows.append(("budget", in_mib(measured.plan.budget_bytes), "", "", _room(measured)))
    terminal.table(rows, right=(1, 2, 3))
    terminal.line()
    for line in chart({**terms, "peak": {"planned": planned, "measured": peak}}):
        terminal.line(line)
    highest = measured.run.highest()
    terminal.line()
    private, files = in_mib(highest.private_bytes), in_mib(highest.file_bytes)
    terminal.line(f"of the peak {private} MiB are private, {files} MiB of files")


def chart(terms: dict[str, dict[str, int]], width: int = _BAR) -> list[str]:
    """Return lines of text that show planned beside measured bytes as bars.

    Args:
        terms: name -> ``planned`` and ``measured``.
        width: characters of the longest bar.
    """
    most = max(max(term.values()) for term in terms.values()) or 1
    names = max(map(len, terms))
    lines = []
    for name, term in terms.items():
        for label, mark in (("planned", "░"), ("measured", "█")):
            size = term[label]
            bar = mark * max(round(width * size / most), 1 if size else 0)
            lines.append(f"{name if label == 'planned' else '':<{names}}  {bar:<{width}}  {in_mib(size):>8} {label}")
    return lines


def _cells(planned: int, measured: int) -> tuple[str, str, str]:
    # The share of something tiny says nothing.
    error = f"{100 * (planned / measured - 1):+.1f} %" if measured >= _MIB else ""
    return in_mib(planned), in_mib(measured), error


def _room(measured: MemoryProfile) -> str:
    left = measured.plan.budget_bytes - measured.run.peak_bytes
    return f"{in_mib(left)} left at the peak" if left >= 0 else f"{in_mib(-left)} too much at the peak"
