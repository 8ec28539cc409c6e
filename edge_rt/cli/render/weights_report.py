"""Types and loss of a package's weights, and what an export would do, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edge_rt.byte_size import exact_size, human_bytes, round_up, show_at_least, show_size
from edge_rt.cli.render.progress import about_seconds
from edge_rt.errors import ErrorJSON, MemoryBudgetExceeded

if TYPE_CHECKING:
    from edge_rt.export import ExportForecast
    from edge_rt.package.weights_info import Quality, TensorClass, WeightsInfo

Row = tuple[str, str]


def weights_rows(info: WeightsInfo) -> list[Row]:
    """Return the rows about weights that were quantised."""
    choice = info.choice if not info.size else f"at most {show_size(info.size)}"
    text = "no text" if info.calibration is None else f"{info.calibration}, {info.calibration_tokens} tokens"
    rows = [("weights", choice), ("calibration of weights", text)]
    rows += [(_title(name), _class_text(found)) for name, found in info.classes.items()]
    if info.quality is not None:
        rows += _quality_rows(info.quality)
    return rows


def forecast_rows(found: ExportForecast) -> list[Row]:
    """Return the rows of a dry run."""
    choice = found.choice if not found.size else f"at most {show_size(found.size)}"
    rows = [
        ("op profile", found.profile),
        ("disk", f"at most {human_bytes(found.disk_bytes)}"),
        ("memory", f"at most {show_size(found.peak_memory_bytes)}"),
        ("time", about_seconds(found.seconds)),
        ("weights", choice),
    ]
    for name, one in found.classes.items():
        text = _class_text(one)
        if found.most is not None:
            most = found.most[name]
            text = f"{_types(one.types)} to {_types(most.types)}, {one.bits:.2f} to {most.bits:.2f} bits a weight"
        rows.append((_title(name), text))
    return rows


def sufficient(peak_bytes: int) -> int:
    """Return a budget in which an export that was predicted to reach so many bytes is not refused again.

    What a process holds before it exports is part of the prediction; processes differ by up to 3 MiB.
    """
    return round_up(peak_bytes + (4 << 20))


def over_budget(found: ExportForecast, budget: int | None) -> ErrorJSON | None:
    """Return why an export would be refused under a memory budget, in bytes; None if it would not."""
    if budget is None or found.peak_memory_bytes <= budget:
        return None
    return MemoryBudgetExceeded(
        "The export does not fit the memory budget.",
        f"It may need up to {show_at_least(found.peak_memory_bytes)}; the budget is {show_size(budget)}.",
        f"Give --memory {exact_size(sufficient(found.peak_memory_bytes))}, or export on another machine: a package "
        "runs anywhere.",
    ).to_json()


def _class_text(found: TensorClass) -> str:
    error = "" if found.error is None else f", error {100 * found.error:.3g} %"
    if found.upper_error is not None:
        error += f", of its 4-bit view {100 * found.upper_error:.3g} %"
    return f"{_types(found.types)}, {found.bits:.2f} bits a weight{error}"


def _types(types: Mapping[str, int]) -> str:
    """Return types with their shares of the weights, the largest first."""
    total = max(1, sum(types.values()))
    if len(types) == 1:
        return next(iter(types))
    ranked = sorted(types.items(), key=lambda item: -item[1])
    return " + ".join(f"{name} ({100 * count / total:.0f} %)" for name, count in ranked)


def _title(name: str) -> str:
    return name.replace("_", "-")


def _quality_rows(quality: Quality) -> list[Row]:
    where = "held-out tokens" if quality.is_held_out else "tokens that it was also fitted to"
    return [
        ("KL divergence", f"{quality.kl:.3g} nats a token, on {quality.tokens} {where}"),
        ("perplexity", f"{quality.perplexity:.4g} (checkpoint: {quality.float_perplexity:.4g})"),
    ]
