"""The plot of ``edge-rt profile --plot``: memory by context, planned and measured memory, and a chat over time."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edge_rt.cli.render.console import number
from edge_rt.errors import ConfigError, RuntimeUnavailable, StorageError
from edge_rt.memory.figures import Choice
from edge_rt.memory.plan_terms import Term, terms_of
from edge_rt.memory.sizes import sizes_of
from edge_rt.system.byte_size import show_size
from edge_rt.system.machine import install_command

if TYPE_CHECKING:
    from edge_rt.measure.memory_report import MemoryReport, MemoryRun, TermSizes
    from edge_rt.memory.plan import Plan


_MIB: Final = 1 << 20
_POINTS: Final = 33
_COLOURS: Final = {
    # From the bottom up: parts that are the same for every context first.
    "weights": "#4477aa",
    "runtime": "#77aadd",
    "tokenizer": "#99ddff",
    "session": "#44bb99",
    "activations": "#bbcc33",
    "logits": "#aaaa00",
    "sampling": "#eedd88",
    "drafters": "#ee8866",
    "corpus": "#dddddd",
    "drafter": "#aa4499",
    "drafter_head": "#cc99bb",
    "draft_weights": "#aa7744",
    "draft_model": "#ddbb99",
    "gpu_context": "#bbbbbb",
    "kv_cache": "#ffaabb",
}
_LINES: Final = ("#332288", "#cc3311", "#117733", "#882255", "#ee7733", "#555555")
_BUDGET: Final = "#bb0000"
_BEHIND: Final = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
_PLANNED, _MEASURED = "#bbccee", "#4477aa"


def draw_memory(report: MemoryReport, path: Path, *, title: str) -> None:
    """Plot planned and measured memory."""
    # Not pyplot, which keeps figures in memory and may need a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 9.5), layout="constrained")
    figure.suptitle(title, fontsize=12, parse_math=False)
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2), width_ratios=(3, 2))
    _contexts(figure.add_subplot(grid[0, 0]), report.plan)
    _terms(figure.add_subplot(grid[0, 1]), report)
    _timeline(figure.add_subplot(grid[1, :]), report.chat or report.run, report)
    try:
        figure.savefig(path.expanduser(), dpi=150)
    except OSError as error:
        raise StorageError(f"{path} cannot be written.", f"{error.strerror}.", "Check path and disk.") from error


def largest_context(total: Callable[[int], int], budget: int, trained: int) -> int | None:
    """Return the longest context under a budget.

    Args:
        total: context -> bytes, ascending.

    Returns:
        Tokens; None if not even a context of 2 fits.
    """
    if total(2) > budget:
        return None
    low, high = 2, trained + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if total(middle) <= budget else (low, middle)
    return low


def _terms_at(plan: Plan, ctx: int, kv_format: str) -> tuple[Term, ...]:
    choice: Choice = replace(plan.choice, ctx=ctx, kv_format=kv_format)
    sizes = sizes_of(plan.shape, plan.device, choice, plan.request)
    return terms_of(plan.shape, choice, sizes, plan.request)


def _counted(plan: Plan, term: Term) -> int:
    """Return the bytes of a part that are plotted: of a GPU's own memory if there is one, else of the machine's."""
    if plan.device.has_own_gpu_memory:
        return term.device_bytes
    return term.bytes + term.device_bytes


def _limit(plan: Plan) -> int:
    return plan.budget.gpu if plan.device.has_own_gpu_memory else plan.budget.host


def spread(wanted: dict[str, float], gap: float) -> dict[str, float]:
    """Return positions for labels near the wanted ones, at least ``gap`` apart and in the same order."""
    placed: dict[str, float] = {}
    lowest = float("-inf")
    for name, value in sorted(wanted.items(), key=lambda item: item[1]):
        placed[name] = lowest = max(value, lowest + gap)
    return placed


def _contexts(axes: Any, plan: Plan) -> None:
    """Plot total bytes by context for every cache format, and the parts of the chosen format as bands."""
    chosen, trained = plan.choice, plan.shape.model.context_length

    def total(kv_format: str, ctx: int) -> int:
        return sum(_counted(plan, term) for term in _terms_at(plan, ctx, kv_format))

    longest = {
        kv_format: largest_context(partial(total, kv_format), _limit(plan), trained)
        for kv_format in plan.shape.kv_formats
    }
    last = min(trained, max(2 * chosen.ctx, *(round(1.2 * (most or 0)) for most in longest.values())))
    contexts = sorted({max(2, last * step // (_POINTS - 1)) for step in range(_POINTS)})
    bands = {name: [0.0] * len(contexts) for name in _COLOURS}
    for place, ctx in enumerate(contexts):
        for term in _terms_at(plan, ctx, chosen.kv_format):
            bands[term.name][place] += _counted(plan, term) / _MIB
    bands = {name: band for name, band in bands.items() if any(band)}
    labels, fills = [_label(name) for name in bands], [_COLOURS[name] for name in bands]
    axes.stackplot(contexts, list(bands.values()), labels=labels, colors=fills, alpha=0.6)
    colours = dict(zip(plan.shape.kv_formats, _LINES, strict=False))
    ends = {}
    for kv_format, colour in colours.items():
        values = [total(kv_format, ctx) / _MIB for ctx in contexts]
        ends[kv_format] = values[-1]
        axes.plot(contexts, values, color=colour, linewidth=2.4 if kv_format == chosen.kv_format else 1.4, zorder=3)
    budget, highest = _limit(plan) / _MIB, max(ends.values())
    is_shown = budget <= 1.6 * highest
    top = 1.12 * (max(highest, budget) if is_shown else highest)
    for kv_format, height in spread(ends, 0.032 * top).items():
        axes.annotate(
            kv_format, (contexts[-1], height), (4, 0), textcoords="offset points", va="center", fontsize=9,
            color=colours[kv_format], weight="bold" if kv_format == chosen.kv_format else "normal",
            annotation_clip=False,
        )  # fmt: skip
    if is_shown:
        crossing = {name: most for name, most in longest.items() if name in colours and most and most < trained}
        _budget_line(axes, plan, crossing, colours, is_low=budget < 0.6 * top)
    else:
        axes.text(
            0.99, 0.99, f"budget {show_size(_limit(plan))}: every context fits", transform=axes.transAxes,
            ha="right", va="top", fontsize=9, color=_BUDGET,
        )  # fmt: skip
    needs = plan.needs.gpu if plan.device.has_own_gpu_memory else plan.needs.host
    axes.plot([chosen.ctx], [needs / _MIB], "o", color="black", markersize=6, zorder=6)
    axes.annotate(
        f"planned: {show_size(needs)}", (chosen.ctx, needs / _MIB), (0, -32),
        textcoords="offset points", ha="center", fontsize=9, weight="bold", zorder=6, bbox=_BEHIND,
        arrowprops={"arrowstyle": "-", "linewidth": 0.8},
    )  # fmt: skip
    where = " of the GPU" if plan.device.has_own_gpu_memory else ""
    axes.set_title(f"Memory{where} by context; bands: the parts with a cache of {chosen.kv_format}", fontsize=10)
    axes.set_xlabel("tokens of context")
    axes.xaxis.set_major_formatter(lambda value, _: number(round(value)))
    axes.set_ylabel("MiB")
    axes.set_xlim(contexts[0], contexts[-1])
    axes.set_ylim(0, top)
    axes.legend(loc="upper left", fontsize=8, reverse=True, framealpha=0.85)


def _budget_line(axes: Any, plan: Plan, longest: dict[str, int], colours: dict[str, str], *, is_low: bool) -> None:
    """Plot the budget, and where the lines of the formats cross it."""
    budget = _limit(plan) / _MIB
    axes.axhline(budget, color=_BUDGET, linewidth=1.4, linestyle="--", zorder=4)
    axes.annotate(
        f"budget {show_size(_limit(plan))}", (0 if is_low else 1, budget), (5 if is_low else -5, 5),
        xycoords=("axes fraction", "data"), textcoords="offset points", ha="left" if is_low else "right",
        fontsize=9, color=_BUDGET, zorder=6, bbox=_BEHIND,
    )  # fmt: skip
    before = float("-inf")
    for kv_format, most in sorted(longest.items(), key=lambda item: item[1]):
        colour = colours[kv_format]
        axes.plot([most], [budget], "o", color=colour, markersize=5, zorder=5)
        is_chosen = kv_format == plan.choice.kv_format
        # Labels of two close points are on different sides of the line.
        is_close = most - before < plan.shape.model.context_length / 12
        before = float("-inf") if is_close else most
        height = (34 if is_chosen else 14) * (-1.6 if is_close else 1)
        axes.annotate(
            f"max context {number(most)}" if is_chosen else number(most), (most, budget),
            (8 if is_close else -8, height), textcoords="offset points", ha="left" if is_close else "right",
            color=colour, zorder=6, fontsize=9 if is_chosen else 8, weight="bold" if is_chosen else "normal",
            bbox=_BEHIND, arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8},
        )  # fmt: skip


def _terms(axes: Any, report: MemoryReport) -> None:
    terms = {**report.terms(), "peak": _peak(report)}
    places = range(len(terms))
    most = max(max(term["planned"], term["measured"] or 0) for term in terms.values()) / _MIB
    sizes: dict[str, list[int | None]] = {
        "planned": [term["planned"] for term in terms.values()],
        "measured": [term["measured"] for term in terms.values()],
    }
    for (kind, counts), offset, colour in zip(sizes.items(), (-0.2, 0.2), (_PLANNED, _MEASURED), strict=True):
        values = [(count or 0) / _MIB for count in counts]
        axes.barh([place + offset for place in places], values, height=0.38, color=colour, label=kind)
        for place, value, count in zip(places, values, counts, strict=True):
            axes.annotate(
                "-" if count is None else f"{value:.1f}", (value, place + offset), (3, 0),
                textcoords="offset points", va="center", fontsize=7.5,
            )  # fmt: skip
    axes.set_title(f"Planned and measured: the peak is predicted to {100 * report.relative_error:+.1f} %", fontsize=10)
    axes.set_yticks(list(places), [_label(name) for name in terms], fontsize=9)
    axes.set_xlabel("MiB")
    axes.set_xlim(0, 1.14 * most)
    axes.invert_yaxis()
    axes.legend(loc="center right", fontsize=9)


def _peak(report: MemoryReport) -> TermSizes:
    return {"planned": report.planned_bytes, "measured": report.run.peak_bytes}


def _timeline(axes: Any, run: MemoryRun, report: MemoryReport) -> None:
    seconds = [moment.seconds for moment in run.moments]
    kinds = {
        "files: weights and libraries": ([moment.memory.file_bytes / _MIB for moment in run.moments], "#4477aa"),
        "private: heaps, tables, activations": ([moment.memory.anon_bytes / _MIB for moment in run.moments], "#44bb99"),
        "KV cache and logits": ([moment.memory.shmem_bytes / _MIB for moment in run.moments], "#ffaabb"),
    }
    axes.stackplot(
        seconds, [values for values, _ in kinds.values()], labels=list(kinds), alpha=0.75,
        colors=[colour for _, colour in kinds.values()],
    )  # fmt: skip
    planned, budget = report.planned_bytes / _MIB, report.plan.budget_bytes / _MIB
    label = f"planned peak {show_size(report.planned_bytes)}"
    axes.axhline(planned, color="black", linewidth=1, linestyle=":", label=label)
    if budget <= 1.3 * planned:
        label = f"budget {show_size(report.plan.budget_bytes)}"
        axes.axhline(budget, color=_BUDGET, linewidth=1.4, linestyle="--", label=label)
    highest = max(planned, budget if budget <= 1.3 * planned else 0.0)
    turns = [stage for stage in run.stages if "tokens" in stage.facts]
    shown = [stage for stage in run.stages if not turns or stage in turns or stage.name == "loaded"]
    last = -1.0
    for stage in shown:
        axes.vlines(stage.seconds, 0, stage.memory.resident_bytes / _MIB, color="white", linewidth=0.8)
        # Names that would overlap are left out.
        if stage.seconds - last > seconds[-1] / 45:
            text = f"{stage.name}: {stage.facts['tokens']} tokens" if "tokens" in stage.facts else stage.name
            axes.annotate(
                text, (stage.seconds, 0), (-3, 5), textcoords="offset points", rotation=90,
                ha="right", va="bottom", fontsize=8, color="white",
            )  # fmt: skip
            last = stage.seconds
    name = "A chat" if report.chat is run else "The measurement"
    axes.set_title(f"{name} over time, from process start: peak {show_size(run.peak_bytes)}", fontsize=10)
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB")
    axes.set_xlim(0, seconds[-1])
    axes.set_ylim(0, 1.22 * highest)
    axes.legend(loc="upper left", ncols=5, fontsize=8, framealpha=0.85)


def _label(name: str) -> str:
    return {"kv_cache": "KV cache"}.get(name, name)


SUFFIXES: Final = (".png", ".svg", ".pdf")
_BAR, _HALF, _LINE = "#4477aa", "#88aacc", "#bb5566"


def require_plot(path: Path) -> None:
    """Refuse a plot that cannot be saved, before anything is measured."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"{path} cannot be a plot.", f"Its suffix is {path.suffix!r:.20}.", f"Use {', '.join(SUFFIXES)}."
        )
    if not path.expanduser().parent.is_dir():
        raise StorageError(f"{path} cannot be written.", "Its folder does not exist.", "Make it first.")
    if importlib.util.find_spec("matplotlib") is None:
        raise RuntimeUnavailable(
            "The plot cannot be drawn.", "matplotlib is not installed.", f"Install it: {install_command('plot')}."
        )


def draw_speculation(document: dict[str, Any], path: Path, *, title: str) -> None:
    """Plot the figures of ``bench --prompts``."""
    # Not pyplot, which keeps figures in memory and may need a display.
    from matplotlib.figure import Figure

    groups = {
        **document["by_category"],
        "least repetitive half": document["least_repetitive_half"],
        "all": document,
    }
    figure = Figure(figsize=(11, max(3.5, 1.4 + 0.36 * len(groups))), layout="constrained")
    figure.suptitle(title, fontsize=11, parse_math=False)
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    _accepted(left, document["accepted_per_position"])
    _speedups(right, groups)
    try:
        figure.savefig(path.expanduser(), dpi=150)
    except OSError as error:
        raise StorageError(f"{path} cannot be written.", f"{error.strerror}.", "Check path and disk.") from error


def _accepted(axes: Any, shares: list[float]) -> None:
    axes.set_title("Accepted drafted tokens", fontsize=10)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share of steps that accepted it, %")
    axes.set_ylim(0, 100)
    if not shares:
        axes.text(0.5, 0.5, "nothing was accepted", transform=axes.transAxes, ha="center")
        axes.set_xticks([])
        return
    positions = range(1, len(shares) + 1)
    bars = axes.bar(positions, [100 * share for share in shares], color=_BAR)
    if len(shares) <= 12:
        axes.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
        axes.set_xticks(positions)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)


def _speedups(axes: Any, groups: dict[str, dict[str, Any]]) -> None:
    axes.set_title("Speed-up of decoding over plain, 95 % intervals over prompts", fontsize=10)
    axes.set_xlabel("times plain")
    known = {name: item for name, item in groups.items() if item["speedup"] is not None}
    places = range(len(known))
    colours = [_BAR if name in ("all", "least repetitive half") else _HALF for name in known]
    axes.barh(places, [item["speedup"] for item in known.values()], color=colours)
    furthest = 1.0
    for place, item in enumerate(known.values()):
        end = item["speedup"]
        if (interval := item["speedup_interval"]) is not None:
            axes.plot(interval, (place, place), color="black", linewidth=1.2, marker="|", markersize=7)
            end = max(end, interval[1])
        axes.annotate(
            f"{item['speedup']:.2f}", (end, place), (5, 0), textcoords="offset points", va="center", fontsize=8
        )
        furthest = max(furthest, end)
    axes.axvline(1.0, color=_LINE, linewidth=1, linestyle="--")
    axes.set_xlim(0, 1.12 * furthest)
    # Categories come from the user's file: dollar signs in them must not start formulas.
    labels = [f"{name} ({item['prompts']})" for name, item in known.items()]
    axes.set_yticks(places, labels, fontsize=8, parse_math=False)
    axes.invert_yaxis()
