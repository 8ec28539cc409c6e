"""The figures of a generation as displayed text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from edge_rt.cli.render.console import SEPARATOR, Terminal, WordWrap, joined_lines, number
from edge_rt.device.names import CPU, GPU_LAYERS
from edge_rt.system.byte_size import counted, show_share, show_size

if TYPE_CHECKING:
    from edge_rt.runtime.results import Event, Memory, Result, SpecStats


class AnswerView:
    """Writes the events of one answer; on a screen its lines are broken between words."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._is_thinking = False
        self.wrote = False
        self._answer = WordWrap(terminal.answer, terminal.columns) if terminal.out_is_tty else None
        dimmed = partial(terminal.note, style="dim", end="")
        self._thoughts = WordWrap(dimmed, terminal.columns) if terminal.err_is_tty else None

    def show(self, event: Event) -> None:
        """Write an event."""
        if event.reasoning:
            if self._thoughts is None:
                self._terminal.note(event.reasoning, "dim", end="")
            else:
                self._thoughts.push(event.reasoning)
            self._is_thinking = True
        if event.text:
            self.end_thoughts()
            if self._answer is None:
                self._terminal.answer(event.text)
            else:
                self._answer.push(event.text)
            self.wrote = True

    def end_thoughts(self) -> None:
        """Begin a new line behind thoughts."""
        if self._is_thinking:
            if self._thoughts is not None:
                self._thoughts.finish()
            self._terminal.note()
            self._is_thinking = False

    def finish(self) -> None:
        """Write what is still held back, when the answer is complete or was stopped."""
        self.end_thoughts()
        if self._answer is not None:
            self._answer.finish()


def device_text(device: str | Mapping[str, Any]) -> str:
    """Return the device of ``Model.describe`` for people."""
    if isinstance(device, str):
        return device
    layers = f", {counted(device[GPU_LAYERS], 'layer')}" if GPU_LAYERS in device else ""
    return f"{device['device']} ({device['text']}{layers})"


LEAST_SHARE: Final = 0.005
"""Shares up to this would be shown as 0 %."""


def stats_parts(result: Result, device: str = CPU) -> list[str]:
    """Return the figures that are shown after an answer."""
    times = result.timings
    return [
        f"prompt {_counted(times.prompt_n, 'token')}, {number(times.prompt_per_second)} tok/s",
        f"first token {times.ttft_ms / 1e3:.2f} s",
        # A single token has no speed.
        f"answer {_counted(times.predicted_n, 'token')}"
        + (f", {_rate(times.predicted_per_second)}" if times.predicted_per_second else ""),
        *([f"speculation: {spec_text(result.spec)}"] if result.spec is not None and result.spec.steps else []),
        f"peak memory {peak_text(result.memory)}",
        *([device] if device != CPU else []),
    ]


def peak_text(memory: Memory) -> str:
    """Return the peak of the process, and the budget if there is one: ``"301.4 of 400.0 MiB"``."""
    return show_share(memory.peak_bytes, memory.budget_bytes)


def spec_text(spec: SpecStats) -> str:
    """Return how many of the guessed tokens that were tested stayed, as text."""
    if not spec.draft_n:
        return "no guesses"
    return f"{number(spec.draft_n_accepted)} of {_counted(spec.draft_n, 'guess')} right"


def visible_shares(shares: Sequence[float]) -> list[float]:
    """Return the shares of steps that accepted at least 1, 2, ... tokens, without those that would show as 0 %."""
    return list(takewhile(lambda share: share > LEAST_SHARE, shares))


def _spec_rows(spec: SpecStats) -> dict[str, str]:
    rows = {
        "speculation": f"{spec.mode}: {spec_text(spec)}"
        + (f" ({100 * spec.acceptance:.0f} %)" if spec.draft_n else "")
        + f", {spec.tokens_per_step:.1f} tokens a step, {_counted(spec.steps, 'step')}",
        "choices": ", ".join(f"{name} {number(count)}" for name, count in sorted(spec.choices.items())) or "-",
        "drafted": f"{_counted(spec.rows_drafted, 'row')}, {number(spec.draft_n)} of them tested "
        "(their parents were kept)",
        "drafting": f"{100 * spec.drafting_share:.1f} % of the time ({spec.drafting_ms:.1f} ms)",
        "drafters": f"hold {show_size(spec.memory_bytes)}",
    }
    if spec.beside is not None:
        rows["beside passes"] = spec.beside + (
            f": {_counted(spec.beside_n, 'pass')} gave {_counted(spec.beside_drafted, 'drafted token')} "
            f"({spec.hidden_ms:.1f} ms of drafting)"
            if spec.beside_n
            else ""
        )
    if shares := visible_shares(spec.accepted_per_position):
        rows["by position"] = " ".join(f"{100 * share:.0f} %" for share in shares)
    return rows


def _counted(count: int, noun: str) -> str:
    return counted(count, noun, number(count))


def _rate(per_second: float) -> str:
    """Return a decoding speed as text; a single token has none."""
    return f"{per_second:.1f} tok/s" if per_second else "-"


def tell_stats(terminal: Terminal, result: Result, device: str = CPU) -> None:
    """Write the figures to stderr: a line, on a narrow screen several, or a table with ``-v``."""
    if terminal.verbose:
        tell_table(terminal, result, device)
    else:
        width = terminal.columns() if terminal.err_is_tty else None
        for line in joined_lines(stats_parts(result, device), SEPARATOR, width):
            terminal.reply(line, "dim")


def tell_table(terminal: Terminal, result: Result, device: str = CPU) -> None:
    """Write all figures to stderr, one per line; ``device`` is what computed, for people."""
    times, usage = result.timings, result.usage
    rows = {
        "prompt": f"{_counted(usage.prompt_tokens, 'token')}, {number(usage.cached_tokens)} of them cached",
        "prefill": f"{_counted(times.prompt_n, 'token')} in {times.prompt_ms / 1e3:.2f} s, "
        f"{number(times.prompt_per_second)} tok/s",
        "first token": f"{times.ttft_ms / 1e3:.2f} s",
        "answer": f"{_counted(times.predicted_n, 'token')} in {times.predicted_ms / 1e3:.2f} s, "
        f"{_rate(times.predicted_per_second)}",
        **(_spec_rows(result.spec) if result.spec is not None else {}),
        "finished": result.finish_reason + (f" at {result.stop_string!r}" if result.stop_string else ""),
        "peak memory": peak_text(result.memory),
        "cache": show_size(result.memory.kv_bytes),
        "device": device,
    }
    for name, value in rows.items():
        terminal.reply(f"{name:12} {value}", "dim")


def facts_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a JSON object as rows of name and value; nested objects on one line."""
    rows = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            text = ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list | tuple):
            text = ", ".join(map(str, value)) or "-"
        elif isinstance(value, float):
            text = f"{value:.6g}"
        else:
            text = "-" if value is None else str(value)
        rows.append((name, text))
    return rows
