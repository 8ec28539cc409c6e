"""Expected tokens per second of a choice: bytes that a pass reads, divided by the device's memory bandwidth."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from edge_rt.memory.choice import Choice
from edge_rt.memory.figures import Device
from edge_rt.memory.shape import ModelShape
from edge_rt.memory.speculation_table import speculation_step
from edge_rt.spec_modes import COMPUTED_MODES, mode_of

DRAFTING_S: Final = 150e-6
"""Seconds that a step spends in Python on drafting and on updating the drafters' tables."""
UNCERTAINTY: Final = 0.3
"""Relative error of an expected speed."""


def row_cost(curve: Sequence[tuple[int, float]], rows: float) -> float:
    """Return the latency of a pass over ``rows`` rows relative to one row, interpolated."""
    counts = [count for count, _ in curve]
    place = min(max(bisect_left(counts, rows), 1), len(curve) - 1)
    (low, cheap), (high, dear) = curve[place - 1], curve[place]
    return max(1.0, cheap + (rows - low) * (dear - cheap) / (high - low))


def pass_seconds(shape: ModelShape, device: Device, choice: Choice) -> float:
    """Return the seconds of a pass over one row with half the context filled."""
    seen = choice.ctx // 2
    windowed = min(seen, shape.sliding_window) if shape.window_layers else 0
    rows = (shape.num_layers - shape.window_layers) * seen + shape.window_layers * windowed
    cache = rows * shape.token_bytes(choice.kv_format)
    return device.computes.step_overhead_s + (shape.read_bytes + cache) / device.computes.bandwidth


def plain_tokens_per_second(shape: ModelShape, device: Device, choice: Choice) -> float:
    """Return the tokens per second of plain decoding."""
    return 1 / pass_seconds(shape, device, choice)


def tokens_per_second(shape: ModelShape, device: Device, choice: Choice) -> float:
    """Return the tokens per second of a choice; speculation that does not pay off counts as off."""
    return speculative_tokens_per_second(pass_seconds(shape, device, choice), device.computes.row_cost, choice)


def speculative_tokens_per_second(seconds: float, curve: Sequence[tuple[int, float]], choice: Choice) -> float:
    """Return the tokens per second of a choice; speculation that does not pay off counts as off.

    Args:
        seconds: seconds of a pass over one row.
        curve: as in ``Device.row_cost``.
        choice: how tokens are drafted.
    """
    # What a network gains depends on its own time and on how often it is right, which shows only where it runs.
    if not choice.draft_max or mode_of(choice.spec) in COMPUTED_MODES:
        return 1 / seconds
    gain = speculation_step(choice.spec, choice.draft_max, choice.suffix_tokens)
    return max(1 / seconds, gain.tokens / (seconds * row_cost(curve, gain.rows) + DRAFTING_S))
