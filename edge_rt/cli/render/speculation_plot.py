"""The plot of ``edge-rt bench --plot``: acceptance rate by position, and speed-up by category."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import ConfigError, RuntimeUnavailable, StorageError
from edge_rt.system.extras import install_command

SUFFIXES: Final = (".png", ".svg", ".pdf")
_BAR, _HALF, _LINE = "#4477aa", "#88aacc", "#bb5566"


def require_plot(path: Path) -> None:
    """Refuse a plot that cannot be saved, before anything is measured.

    Raises:
        ConfigError: the file name does not end like a plot's.
        StorageError: its folder does not exist.
        RuntimeUnavailable: matplotlib is not installed.
    """
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


def draw(document: dict[str, Any], path: Path, *, title: str) -> None:
    """Plot the figures of ``bench --prompts``.

    Args:
        document: its JSON object.
        path: the file; one that exists is replaced.
        title: what was measured.

    Raises:
        StorageError: the file cannot be written.
    """
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
