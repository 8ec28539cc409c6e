"""The memory plan: the settings that fit a budget, the memory of each part, and alternatives."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace

from edge_rt.byte_size import show_at_least, show_mib, show_size
from edge_rt.errors import ConfigError, MemoryBudgetExceeded
from edge_rt.memory.alternatives import alternatives_to
from edge_rt.memory.choice import Choice
from edge_rt.memory.device import Device
from edge_rt.memory.fallbacks import DEFAULT_CONTEXT, KEPT_SPEED, LEAST_CONTEXT, Decision, Fallbacks
from edge_rt.memory.plan_terms import Term, terms_of
from edge_rt.memory.request import Alternative, Request
from edge_rt.memory.shape import ModelShape
from edge_rt.memory.speed import plain_tokens_per_second, tokens_per_second
from edge_rt.memory.terms import Regimes, Sizes, sizes_of
from edge_rt.spec_modes import AUTO, TRAINED_MODES

__all__ = [
    "DEFAULT_CONTEXT", "KEPT_SPEED", "LEAST_CONTEXT", "Alternative", "Choice", "Plan", "Request", "Term", "make_plan",
    "require_fit",
]  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The settings that were decided, the memory they need, and alternatives.

    Attributes:
        shape: the model.
        device: the machine.
        request: the request.
        unused: its flags that have no effect because nothing is drafted: ``("--draft-max", "--corpus")``.
        choice: the settings that were decided; the smallest configuration if nothing fits.
        terms: memory of each part at its largest.
        total_bytes: their sum, the peak memory of the process.
        budget_bytes: the budget.
        fits: whether the total is within the budget.
        minimum_bytes: the smallest budget that works with the pinned settings.
        speculation_bytes: the smallest budget at which speculation keeps 96 % of its speed with this context and cache
            (SpecMemo's criterion); None if nothing would be drafted.
        tokens_per_second: expected decoding throughput with half the context filled.
        plain_tokens_per_second: the same without speculation.
        given_up: what was reduced to fit the budget, as texts with numbers.
        alternatives: other settings that fit.
        sizes: bytes that the terms are computed from.
    """

    shape: ModelShape
    device: Device
    request: Request
    unused: tuple[str, ...]
    choice: Choice
    terms: tuple[Term, ...]
    total_bytes: int
    budget_bytes: int
    fits: bool
    minimum_bytes: int
    speculation_bytes: int | None
    tokens_per_second: float
    plain_tokens_per_second: float
    given_up: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    sizes: Sizes

    @property
    def regimes(self) -> Regimes:
        """Bytes at each of the memory peaks that have to fit."""
        return self.sizes.regimes

    @property
    def runtime_bytes(self) -> int:
        """Bytes of the total that the process needs before any model is loaded."""
        return self.sizes.runtime


def make_plan(shape: ModelShape, device: Device, request: Request) -> Plan:
    """Return the plan for a budget; it does not raise for lack of memory, see ``Plan.fits``.

    Args:
        shape: the model.
        device: the machine.
        request: the pinned settings; all others are chosen.

    Raises:
        ConfigError: a pinned setting is out of range, or does not apply to this model.
    """
    _check(shape, request)
    budget = device.available_bytes if request.budget_bytes is None else request.budget_bytes
    asked, request = request, request.used_by(shape)
    fallbacks = Fallbacks(shape, device, request)
    decision = fallbacks.decide(budget)
    choice = decision.choice
    sizes = sizes_of(shape, device, choice, request)
    speculation_bytes = fallbacks.speculation_bytes(choice)
    return Plan(
        shape=shape,
        device=device,
        request=asked,
        unused=tuple(flag for flag in asked.flags[::2] if flag not in request.flags[::2]),
        choice=choice,
        terms=terms_of(shape, choice, sizes, request),
        total_bytes=decision.total_bytes,
        budget_bytes=budget,
        fits=decision.total_bytes <= budget,
        minimum_bytes=decision.least_bytes,
        speculation_bytes=speculation_bytes,
        tokens_per_second=tokens_per_second(shape, device, choice),
        plain_tokens_per_second=plain_tokens_per_second(shape, device, choice),
        given_up=_given_up(shape, device, request, fallbacks, decision),
        alternatives=alternatives_to(shape, device, request, decision, budget, speculation_bytes),
        sizes=sizes,
    )


def require_fit(plan: Plan, spell: Callable[[tuple[str, ...]], str] = shlex.join) -> Plan:
    """Return the plan if it fits.

    Args:
        plan: the plan.
        spell: formats the flags of a setting that fits for the reader of the error.

    Raises:
        MemoryBudgetExceeded: it does not fit; the message has the needed and available memory and a setting that fits.
    """
    if plan.fits:
        return plan
    parts = ", ".join(f"{name} {show_size(count)}" for name, count in _largest_first(plan) if count)
    ways = [f"{spell(other.flags)} (needs {show_size(other.total_bytes)})" for other in plan.alternatives[:2]]
    raise MemoryBudgetExceeded(
        f"{plan.shape.name} does not fit the memory.",
        f"It needs at least {show_at_least(plan.minimum_bytes)} with a context of {plan.choice.ctx} tokens "
        f"({plan.choice.kv_format} cache), the budget is {show_mib(plan.budget_bytes)} ({parts}).",
        f"Try {' or '.join(dict.fromkeys(ways))}.",
    )


def _largest_first(plan: Plan) -> list[tuple[str, int]]:
    """Return names and bytes of the parts, largest first; extra memory that only loading needs is a separate part."""
    sizes = plan.sizes
    parts = {term.name: term.bytes for term in plan.terms}
    parts |= {"tokenizer": sizes.tokenizer, "session": sizes.session, "load peak": sizes.load_excess}
    return sorted(parts.items(), key=lambda part: part[1], reverse=True)


def _check(shape: ModelShape, request: Request) -> None:
    if request.ctx is not None and not 2 <= request.ctx <= shape.context_length:
        raise ConfigError(
            "The context is out of range.",
            f"Got {request.ctx} tokens; the model was trained for 2 to {shape.context_length}.",
            "Choose one in that range.",
        )
    if request.kv not in (None, AUTO, *shape.kv_formats):
        raise ConfigError(
            "The package's KV cache has no such format.",
            f"Got {request.kv!r:.40}; formats of the op profile {shape.op_profile}: {', '.join(shape.kv_formats)}.",
            "Choose one of these, or auto.",
        )
    if request.spec in TRAINED_MODES and request.drafter is None:
        raise ConfigError(
            f"The mode of speculation {request.spec!r} needs a trained drafter, and the plan has none.",
            "A drafter belongs to a package.",
            "Plan for a package, or choose another mode.",
        )
    for name, value in (("largest draft", request.draft_max), ("prefill chunk", request.prefill_chunk)):
        if value is not None and value < 1:
            raise ConfigError(f"The {name} is out of range.", f"Got {value}.", "Give at least 1.")


def _given_up(
    shape: ModelShape, device: Device, request: Request, fallbacks: Fallbacks, decision: Decision
) -> tuple[str, ...]:
    """Return what was reduced from the best choice to this one, in the order of the reductions."""
    best, choice = decision.best, decision.choice
    speculative = {
        name: getattr(choice, name)
        for name in ("spec", "draft_max", "suffix_tokens", "recycling_contexts", "logit_rows")
    }
    drafter = "" if request.drafter is None else request.drafter.name
    steps = (
        (f"drafter: none instead of {drafter}", {"drafter": choice.drafter}),
        (f"speculation: {_speculation(choice)} instead of {_speculation(best)}", speculative),
        (f"KV cache: {choice.kv_format} instead of {best.kv_format}", {"kv_format": choice.kv_format}),
        (
            f"prefill chunk: {choice.prefill_chunk} tokens instead of {best.prefill_chunk}",
            {"prefill_chunk": choice.prefill_chunk},
        ),
        (f"context: {choice.ctx} tokens instead of {best.ctx}", {"ctx": choice.ctx}),
    )
    result, held = [], best
    for text, fields in steps:
        less = replace(held, **fields)
        if less == held:
            continue
        saved = fallbacks.total(held) - fallbacks.total(less)
        # A shorter context has smaller tables by default; this does not count as a separate reduction.
        if saved or text.startswith("context"):
            change = tokens_per_second(shape, device, less) / tokens_per_second(shape, device, held) - 1
            speed = f", {100 * change:+.0f} % tokens per second" if abs(change) >= 0.005 else ""
            result.append(f"{text} (saves {show_size(saved)}{speed})")
        held = less
    return tuple(result)


def _speculation(choice: Choice) -> str:
    if not choice.draft_max:
        return "off"
    tables = [f"{choice.suffix_tokens} tokens"] * bool(choice.suffix_tokens)
    tables += [f"{choice.recycling_contexts} contexts"] * bool(choice.recycling_contexts)
    of_tables = f" and tables of {' and '.join(tables)}" if tables else ""
    return f"{choice.spec} with drafts of {choice.draft_max}{of_tables}"
