"""Expected tokens per second of a choice: bytes that a pass reads, divided by the device's memory bandwidth."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from edge_rt.memory.drafter_shapes import DrafterShape
from edge_rt.memory.figures import Choice, Device
from edge_rt.memory.shape import ModelShape
from edge_rt.package.drafter import HEAD
from edge_rt.package.spec_modes import AUTO, COMPUTED_MODES, mode_of
from edge_rt.package.states import states_bytes


@dataclass(frozen=True)
class SpeculationStep:
    """An average step of speculative decoding."""

    draft_max: int
    tokens: float
    rows: float


SPECULATION_STEPS: Final[dict[str, tuple[SpeculationStep, ...]]] = {
    "auto": (
        SpeculationStep(1, 1.516, 1.923),
        SpeculationStep(2, 1.813, 2.778),
        SpeculationStep(4, 2.097, 3.918),
        SpeculationStep(8, 2.237, 4.525),
        SpeculationStep(12, 2.286, 4.677),
        SpeculationStep(16, 2.308, 4.775),
        SpeculationStep(23, 2.314, 4.811),
        SpeculationStep(31, 2.319, 4.856),
    ),
    "suffix": (
        SpeculationStep(1, 1.517, 1.915),
        SpeculationStep(2, 1.801, 2.699),
        SpeculationStep(4, 2.068, 3.654),
        SpeculationStep(8, 2.166, 3.966),
        SpeculationStep(12, 2.213, 4.094),
        SpeculationStep(16, 2.229, 4.161),
        SpeculationStep(23, 2.236, 4.198),
        SpeculationStep(31, 2.241, 4.236),
    ),
    "recycling": (
        SpeculationStep(1, 1.394, 1.806),
        SpeculationStep(2, 1.586, 2.490),
        SpeculationStep(4, 1.726, 3.244),
        SpeculationStep(8, 1.759, 3.426),
        SpeculationStep(12, 1.763, 3.427),
        SpeculationStep(16, 1.764, 3.429),
        SpeculationStep(23, 1.767, 3.451),
        SpeculationStep(31, 1.764, 3.432),
    ),
}
"""Mode -> steps, by ascending ``draft_max``. ``ngram`` gives 2.203 tokens in 4.287 rows at 23, close to ``suffix``."""

SUFFIX_TABLE: Final = ((1024, 0.987), (2048, 1.0))
"""(tokens held, share of the tokens per step that remains) for ``suffix``: 2,048 to 65,536 differ by less than 1 %."""
AUTO_TABLES: Final = ((1024, 1.0),)
"""The same for ``auto``, by tokens and contexts: 1,024 to 65,536 tokens and 1,024 to 32,768 contexts lost nothing."""
LEAST_TABLE: Final = 1024
"""Smallest tables that were measured."""


def speculation_step(mode: str, draft_max: int, suffix_tokens: int) -> SpeculationStep:
    """Return a step of a mode with drafts of at most ``draft_max`` tokens, interpolated between measured steps.

    Args:
        mode: ``"auto"`` or a drafter; for a drafter that was not measured the figures of ``suffix`` are used.
        draft_max: most drafted tokens, at least 1.
    """
    steps = SPECULATION_STEPS.get(mode, SPECULATION_STEPS["suffix"])
    place = bisect_left([step.draft_max for step in steps], draft_max)
    if place == len(steps):
        found = steps[-1]
    elif place == 0 or steps[place].draft_max == draft_max:
        found = steps[place]
    else:
        low, high = steps[place - 1], steps[place]
        share = (draft_max - low.draft_max) / (high.draft_max - low.draft_max)
        found = SpeculationStep(
            draft_max,
            low.tokens + share * (high.tokens - low.tokens),
            low.rows + share * (high.rows - low.rows),
        )
    table = AUTO_TABLES if mode == "auto" else SUFFIX_TABLE if mode == "suffix" else ()
    left = 1.0
    for size, share in reversed(table):
        if suffix_tokens <= size:
            left = share
    return SpeculationStep(draft_max, found.tokens * left, found.rows)


DRAFTING_S: Final = 150e-6
"""Seconds that a step spends in Python on drafting and on updating the drafters' tables."""
UNCERTAINTY: Final = 0.3
"""Relative error of an expected speed."""


@dataclass(frozen=True)
class HeadChain:
    """What a trained head guesses.

    Attributes:
        positions: share of guesses that are right for the 1st, 2nd, ... token, given that those before were.
        guess_seconds: seconds of a guess.
    """

    positions: tuple[float, ...]
    guess_seconds: float


def head_chain(drafter: DrafterShape | None, device: Device, choice: Choice) -> HeadChain | None:
    """Return what the trained head guesses that drafts with a choice; None if none does.

    It computes on the CPU, whatever computes the model. What other networks gain is not known: adapters of exits and
    second models were measured for one token, or for none.
    """
    if drafter is None or drafter.kind != HEAD or not choice.drafter or choice.spec not in (AUTO, HEAD):
        return None
    return HeadChain(drafter.positions, drafter.read_bytes(choice.ctx) / device.bandwidth)


def row_cost(curve: Sequence[tuple[int, float]], rows: float) -> float:
    """Return the latency of a pass over ``rows`` rows relative to one row, interpolated."""
    counts = [count for count, _ in curve]
    place = min(max(bisect_left(counts, rows), 1), len(curve) - 1)
    (low, cheap), (high, dear) = curve[place - 1], curve[place]
    return max(1.0, cheap + (rows - low) * (dear - cheap) / (high - low))


def pass_seconds(shape: ModelShape, device: Device, choice: Choice) -> float:
    """Return the seconds of a pass over one row with half the context filled."""
    seen = choice.ctx // 2
    windows = shape.window_attentions
    windowed = min(seen, shape.model.sliding_window) if windows else 0
    # Both slots of a state: one is read, the other written.
    cache = shape.cache_bytes(choice.kv_format, seen, windowed, is_read=True)
    cache += states_bytes(shape.model, 0)
    if choice.gpu_layers is not None:
        return _divided_seconds(shape, device, choice, cache)
    return (
        device.computes.step_overhead_s
        + (shape.read_bytes + cache) / device.computes.bandwidth
        + missed_seconds(shape, device, choice)
    )


def missed_seconds(shape: ModelShape, device: Device, choice: Choice) -> float:
    """Return the seconds in which the experts of a row are read that are not there."""
    if choice.expert_bytes is None or shape.experts is None:
        return 0.0
    return shape.experts.missed_bytes(choice.expert_bytes) / device.read_bandwidth


def _divided_seconds(shape: ModelShape, device: Device, choice: Choice, cache: int) -> float:
    """Return the seconds of a pass that the CPU begins and a GPU ends; each layer reads its share of the cache.

    Of a model with experts a row reads a part, as large on either side.
    """
    assert shape.layers is not None
    assert choice.gpu_layers is not None
    assert device.gpu is not None
    there = shape.layers.behind[-1 - choice.gpu_layers]
    if shape.expert_layers:
        there = there * shape.read_bytes // shape.layers.behind[0]
    there = min(shape.read_bytes, there)
    share = choice.gpu_layers / shape.model.num_layers
    on_cpu = (shape.read_bytes - there + (1 - share) * cache) / device.bandwidth
    on_gpu = (there + share * cache) / device.gpu.bandwidth
    return device.step_overhead_s + on_cpu + device.gpu.step_overhead_s + on_gpu


def row_costs(shape: ModelShape, device: Device, choice: Choice) -> Sequence[tuple[int, float]]:
    """Return the latency of passes over more rows relative to one row, as in ``Device.row_cost``.

    With divided layers it is that of the CPU, for which rows cost more. Rows of a model with experts have more of these
    together than one row, and read more of them from the file: that is in the price of every further row.
    """
    curve = device.computes.row_cost if choice.gpu_layers is None else device.row_cost
    experts = shape.experts
    if experts is None:
        return curve
    whole, missed = pass_seconds(shape, device, choice), missed_seconds(shape, device, choice)
    read = min(experts.row_bytes / device.bandwidth, whole - missed)
    found: list[tuple[int, float]] = []
    for rows, cost in curve:
        union = experts.union_factor(rows)
        seconds = (whole - missed - read) * cost + read * max(cost, union) + missed * union
        found.append((rows, max(seconds / whole, found[-1][1] if found else 1.0)))
    return found


def plain_tokens_per_second(shape: ModelShape, device: Device, choice: Choice) -> float:
    """Return the tokens per second of plain decoding."""
    return 1 / pass_seconds(shape, device, choice)


def tokens_per_second(shape: ModelShape, device: Device, choice: Choice, drafter: DrafterShape | None = None) -> float:
    """Return the tokens per second of a choice; see ``speculative_tokens_per_second``.

    Args:
        drafter: the trained drafter of the request; None: without it.
    """
    seconds, head = pass_seconds(shape, device, choice), head_chain(drafter, device, choice)
    return speculative_tokens_per_second(seconds, row_costs(shape, device, choice), choice, head)


def foretold(
    shape: ModelShape, device: Device, choice: Choice, drafter: DrafterShape | None = None
) -> tuple[float, float] | tuple[None, None]:
    """Return the tokens per second of a choice, and those without speculation, where they can be foretold.

    None of a program on the CPU that stands for a GPU: its figures are those of no machine, which is enough to compare
    choices (``tokens_per_second``) and not to tell anybody.
    """
    if device.gpu is not None and device.gpu.is_software:
        return None, None
    return tokens_per_second(shape, device, choice, drafter), plain_tokens_per_second(shape, device, choice)


def speculative_tokens_per_second(
    seconds: float, curve: Sequence[tuple[int, float]], choice: Choice, head: HeadChain | None = None
) -> float:
    """Return the tokens per second of a choice; speculation that does not pay off counts as off.

    With ``auto`` and a trained head this is a lower bound: the better one of texts alone and of the head alone, because
    what both gain together is not known.

    Args:
        seconds: seconds of a pass over one row.
        head: what a trained head guesses; None without one.
    """
    if not choice.draft_max:
        return 1 / seconds
    speeds = [1 / seconds]
    # What another network gains depends on its own time and on how often it is right, which shows only where it runs.
    if mode_of(choice.spec) not in COMPUTED_MODES:
        gain = speculation_step(choice.spec, choice.draft_max, choice.suffix_tokens)
        speeds.append(gain.tokens / (seconds * row_cost(curve, gain.rows) + DRAFTING_S))
    if head is not None:
        speeds += _of_chains(seconds, curve, choice, head)
    return max(speeds)


def _of_chains(seconds: float, curve: Sequence[tuple[int, float]], choice: Choice, head: HeadChain) -> Iterator[float]:
    """Yield the tokens per second with chains of 1, 2, ... guesses, up to the longest that was measured."""
    tokens = likely = 1.0
    for guesses, share in enumerate(head.positions[: choice.draft_max], start=1):
        likely *= share
        tokens += likely
        verifying = seconds * row_cost(curve, guesses + 1)
        yield tokens / (verifying + guesses * head.guess_seconds + DRAFTING_S)
