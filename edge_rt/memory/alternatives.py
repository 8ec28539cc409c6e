"""Other settings that fit, as command-line flags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from edge_rt.byte_size import round_up
from edge_rt.memory.choice import Choice
from edge_rt.memory.fallbacks import LEAST_CONTEXT, Decision, Fallbacks
from edge_rt.memory.figures import Amounts, Device
from edge_rt.memory.request import Alternative, Request
from edge_rt.memory.shape import ModelShape
from edge_rt.memory.speed import tokens_per_second
from edge_rt.spec_modes import AUTO, OFF

MOST: Final = 4
"""Number of other settings under the same budget."""
_FORMATS_SHOWN: Final = 2
_SLACK: Final = 1 << 19
"""Bytes by which two processes of the same command may differ: a suggested setting must also fit in a later process."""


def alternatives_to(
    shape: ModelShape,
    device: Device,
    request: Request,
    decision: Decision,
    speculation: Amounts | None,
) -> tuple[Alternative, ...]:
    """Return other settings, each of which fits.

    Args:
        shape: the model.
        device: the machine.
        request: the request.
        decision: what the plan decided for it.
        speculation: budget at which speculation would keep its speed; None if nothing is drafted.
    """
    found: list[Alternative] = []
    budget = request.budget(device)
    seen = {decision.choice} if decision.needs.within(budget) else set[Choice]()
    candidates = _nearby(shape, request, decision.choice) if seen else _pinning_less(request)
    may_divide = not seen or decision.choice.gpu_layers is not None
    for candidate in candidates:
        other = _planned(shape, device, candidate)
        # Nobody whose model has room on the GPU wants it divided.
        if other is not None and other.choice not in seen and (may_divide or other.choice.gpu_layers is None):
            seen.add(other.choice)
            found.append(other)
        if len(found) == MOST:
            break
    # Budgets at which the pinned settings work; if none does, the smallest configuration without them.
    others = [_with_budget(request, device, decision.least)]
    if speculation is not None and not decision.choice.draft_max:
        kept = replace(request, ctx=decision.choice.ctx, kv=decision.choice.kv_format)
        others.append(_with_budget(kept, device, speculation))
    for other_request in others:
        other = _planned(shape, device, other_request)
        if other is not None and other_request.budget(device) != budget:
            found.append(other)
    return tuple(found)


def _with_budget(request: Request, device: Device, needs: Amounts) -> Request:
    """Return the request with budgets that are just enough."""
    budget = request.budget(device)
    fits = needs.within(budget)
    # Where one is short, the other stays as it was.
    if fits or needs.host > budget.host:
        request = replace(request, budget_bytes=round_up(needs.host + _SLACK))
    if device.has_own_gpu_memory and (fits or needs.gpu > budget.gpu):
        request = replace(request, device_budget_bytes=round_up(needs.gpu))
    return request


def _nearby(shape: ModelShape, request: Request, choice: Choice) -> Iterator[Request]:
    """Yield variants of a choice that fits: other cache formats, half or twice the context, no speculation."""
    smaller = [name for name in shape.kv_formats if shape.token_bytes(name) < shape.token_bytes(choice.kv_format)]
    smaller.sort(key=shape.token_bytes, reverse=True)
    for name in smaller[:1] + smaller[1:][-(_FORMATS_SHOWN - 1) :]:
        yield replace(request, kv=name, ctx=choice.ctx)
    if choice.ctx // 2 >= min(LEAST_CONTEXT, shape.context_length):
        yield replace(request, ctx=choice.ctx // 2)
    if choice.ctx < shape.context_length:
        yield replace(request, ctx=min(2 * choice.ctx, shape.context_length))
    if choice.draft_max:
        yield replace(request.without_drafts(OFF), ctx=choice.ctx)


def _pinning_less(request: Request) -> Iterator[Request]:
    """Yield requests with fewer pinned settings: first without one of them, then without more."""
    # Flags are added to a command that names a mode already: they name another.
    if request.wants_drafts:
        yield request.without_drafts(AUTO)
        yield request.without_drafts(OFF)
    if request.kv not in (None, AUTO):
        yield replace(request, kv=AUTO)
    if request.ctx is not None:
        yield replace(request, ctx=None)
        yield replace(request.without_drafts(OFF), ctx=None)
    yield replace(request.without_drafts(OFF if request.wants_drafts else None), ctx=None, kv=None)


def _planned(shape: ModelShape, device: Device, request: Request) -> Alternative | None:
    """Return the planned setting of a request with its flags; None if it does not fit."""
    budget = request.budget(device)
    if device.gpu is not None and budget.gpu > device.gpu.total_bytes:
        return None
    decision = Fallbacks(shape, device, request).decide(budget)
    if not decision.needs.within(budget) or not decision.least.within(replace(budget, host=budget.host - _SLACK)):
        return None
    # Flags leave out what the plan would decide again anyway, but a shorter context is shown.
    shown = request if request.ctx is not None else replace(request, ctx=decision.choice.ctx)
    again = Fallbacks(shape, device, shown).decide(budget)
    if again.choice != decision.choice:
        shown = request
    speed = tokens_per_second(shape, device, decision.choice, request.drafter)
    return Alternative(decision.choice, decision.needs.host, speed, shown.flags, decision.needs.gpu)
