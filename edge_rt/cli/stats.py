"""The figures of a generation, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edge_rt.cli.console import SEPARATOR, Terminal, gibibytes, number

if TYPE_CHECKING:
    from edge_rt.runtime.results import Result


def stats_line(result: Result) -> str:
    """Return the one line that stands under an answer."""
    times = result.timings
    return SEPARATOR.join(
        [
            f"prompt {number(times.prompt_n)} tok {number(times.prompt_per_second)} tok/s",
            f"first token {times.ttft_ms / 1e3:.2f} s",
            f"{number(times.predicted_n)} tok {_rate(times.predicted_per_second)}",
            f"peak {gibibytes(result.memory.peak_bytes)}",
        ]
    )


def _rate(per_second: float) -> str:
    """Return a speed; a single token has none."""
    return f"{per_second:.1f} tok/s" if per_second else "-"


def tell_stats(terminal: Terminal, result: Result) -> None:
    """Write the figures to stderr: a line, or a table with ``-v``."""
    if not terminal.verbose:
        terminal.note(stats_line(result), "dim")
        return
    times, usage = result.timings, result.usage
    rows = {
        "prompt": f"{number(usage.prompt_tokens)} tokens, {number(usage.cached_tokens)} of them cached",
        "prefill": f"{number(times.prompt_n)} tokens in {times.prompt_ms / 1e3:.2f} s, "
        f"{number(times.prompt_per_second)} tok/s",
        "first token": f"{times.ttft_ms / 1e3:.2f} s",
        "answer": f"{number(times.predicted_n)} tokens in {times.predicted_ms / 1e3:.2f} s, "
        f"{_rate(times.predicted_per_second)}",
        "finished": result.finish_reason + (f" at {result.stop_string!r}" if result.stop_string else ""),
        "peak memory": gibibytes(result.memory.peak_bytes),
        "cache": gibibytes(result.memory.kv_bytes),
    }
    for name, value in rows.items():
        terminal.note(f"{name:12} {value}", "dim")


def facts_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a JSON object as rows of name and value; nested objects on one line."""
    rows = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            text = ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list | tuple):
            text = ", ".join(map(str, value))
        elif isinstance(value, float):
            text = f"{value:.6g}"
        else:
            text = "-" if value is None else str(value)
        rows.append((name, text))
    return rows
