"""The error of a model that does not fit, with settings that do."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.memory.figures import GpuFigures
from edge_rt.memory.plan import Plan
from edge_rt.memory.request import Alternative
from edge_rt.memory.shape import ModelShape
from edge_rt.package.spec_modes import OFF
from edge_rt.system.byte_size import counted, show_at_least, show_size


def require_fit(
    plan: Plan, spell: Callable[[tuple[str, ...]], str] = shlex.join, others: Sequence[tuple[str, int]] = ()
) -> Plan:
    """Return the plan if it fits.

    Args:
        spell: formats the flags of a setting that fits for the reader of the error.
        others: names and bytes of what else the budget has to hold, which is not in the plan's.

    Raises:
        MemoryBudgetExceeded: it does not fit; the message has the needed and available memory and a setting that fits.
    """
    if plan.fits:
        return plan
    beside = sum(count for _, count in others)
    ways = _ways(plan, spell, beside)
    is_gpu_short = plan.needs.exceeds_gpu(plan.budget)
    minimum, budget = plan.minimum, plan.budget
    least, limit = (minimum.on_gpu, budget.on_gpu) if is_gpu_short else (minimum.host + beside, budget.host + beside)
    held = "".join(f", {show_size(count)} of it for {name}" for name, count in others if not is_gpu_short)
    parts = ", ".join(
        f"{name} {show_size(count)}" for name, count in _largest_first(plan, on_gpu=is_gpu_short) if count
    )
    gpu = plan.device.gpu
    why = None if not is_gpu_short or gpu is None else _why_not_divided(plan.shape, gpu)
    undivided = "" if why is None else f" {why}"
    allowed = "its driver allows" if is_gpu_short and budget.heap else "the budget is"
    raise MemoryBudgetExceeded(
        f"{plan.shape.name} does not fit the memory{' of the GPU' if is_gpu_short else ''}.",
        f"It needs at least {show_at_least(least)} with a context of {plan.choice.ctx} tokens "
        f"({plan.choice.kv_format} cache), {allowed} {show_size(limit)}{held} ({parts}).{undivided}",
        f"Try {' or '.join(ways)}." if ways else "Choose a smaller model, or let the CPU compute.",
    )


def _ways(plan: Plan, spell: Callable[[tuple[str, ...]], str], beside: int) -> list[str]:
    """Return settings that fit, at most two: their flags, what they need, and what they give up without a flag."""
    ways: dict[tuple[str, ...], str] = {}
    for other in plan.alternatives:
        given_up = _given_up(plan, other)
        memory = ("--memory", "--device-memory")
        pairs = zip(other.flags[::2], other.flags[1::2], strict=True)
        # More memory that changes nothing is no other setting.
        setting = (*(f"{flag} {value}" for flag, value in pairs if flag not in memory), *given_up)
        words = f"; {', '.join(given_up)}" if given_up else ""
        ways.setdefault(setting, f"{spell(other.flags)} (needs {_needed(plan, other, beside)}{words})")
    return list(ways.values())[:2]


def _given_up(plan: Plan, other: Alternative) -> list[str]:
    """Return what a setting has less of than what was asked for and would be best, where its flags do not say so."""
    best, choice = plan.decision.best, other.choice
    mode = "" if choice.spec == best.spec else f"{choice.spec} "
    drafts = f"{mode}drafts of {choice.draft_max}" if choice.draft_max else "no drafts"
    experts = "" if choice.expert_bytes is None else f"{show_size(choice.expert_bytes)} of experts in memory"
    # A flag that was given from the start may have less than it says, as with slots.
    steps = (
        ("--ctx", choice.ctx != best.ctx, f"context {choice.ctx}"),
        ("--kv-type", choice.kv_format != best.kv_format, f"{choice.kv_format} cache"),
        ("--draft-max", (choice.draft_max, choice.spec) != (best.draft_max, best.spec), drafts),
        ("--drafter", choice.draft_max > 0 and choice.drafter != best.drafter, "no trained drafter"),
        ("--slots", choice.slots != best.slots, counted(choice.slots, "slot")),
        ("--kv-rows", 0 < choice.kv_rows != best.kv_rows, f"{choice.kv_rows} rows of the cache"),
        ("--experts", choice.expert_bytes != best.expert_bytes, experts),
        ("", choice.gpu_layers != best.gpu_layers, f"{choice.gpu_layers} layers on the GPU"),
        ("", choice.prefill_chunk != best.prefill_chunk, f"prefill chunk {choice.prefill_chunk}"),
    )
    said = dict(zip(other.flags[::2], other.flags[1::2], strict=True))
    if said.get("--spec") == OFF:
        said["--draft-max"] = drafts
    return [text for flag, differs, text in steps if differs and text and said.get(flag, "nothing") not in text]


def _needed(plan: Plan, other: Alternative, beside: int) -> str:
    own = f" and {show_size(other.device_bytes)} of the GPU" if plan.device.has_own_gpu_memory else ""
    return show_size(other.total_bytes + beside) + own


def _largest_first(plan: Plan, *, on_gpu: bool) -> list[tuple[str, int]]:
    """Return names and bytes of the parts, largest first; extra memory that only loading needs is a separate part."""
    sizes = plan.sizes
    if on_gpu:
        parts = {term.name: term.device_bytes for term in plan.terms}
        # Where the driver refuses to read them in place, they are copied there.
        parts["weights"] += sizes.in_place
    else:
        # Of shared memory a part is what both hold of it.
        shared = plan.device.gpu is not None and plan.device.gpu.is_unified
        on_both = {term.name: term.bytes + (term.device_bytes if shared else 0) for term in plan.terms}
        parts = on_both | {"tokenizer": sizes.tokenizer, "session": sizes.session, "load peak": sizes.load_excess}
    return sorted(parts.items(), key=lambda part: part[1], reverse=True)


def _why_not_divided(shape: ModelShape, gpu: GpuFigures) -> str | None:
    """Return a sentence on why layers of a native model are not divided with the CPU; None: they may be, anywhere."""
    if not gpu.has_cpu_bits:
        return "Its layers are not divided with the CPU, whose results differ from this GPU's in last bits."
    if gpu.is_unified:
        return None
    if shape.layers is None:
        if shape.is_estimate:
            return "Its layers can be divided with the CPU only once it is exported."
        return "Its layers are not divided with the CPU, because its graph does not tell them apart."
    fewest = shape.gpu_layer_counts[0] if shape.gpu_layer_counts else shape.model.num_layers
    if fewest == 1:
        return None
    return f"Its last {fewest} layers are not divided with the CPU, because they read each other's keys and values."
