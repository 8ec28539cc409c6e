"""The memory plan: the settings that fit a budget, the memory of each part, and alternatives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from edge_rt.device.names import DeviceChoice, DeviceName
from edge_rt.errors import ConfigError
from edge_rt.memory.device import MACHINE
from edge_rt.memory.fallbacks import (
    DEFAULT_CONTEXT,
    KEPT_SPEED,
    LEAST_CONTEXT,
    Decision,
    Fallbacks,
    alternatives_to,
    why_one_slot,
)
from edge_rt.memory.figures import Amounts, Choice, Device
from edge_rt.memory.plan_terms import Term, rows_of, terms_of
from edge_rt.memory.request import Alternative, Request
from edge_rt.memory.shape import ModelShape
from edge_rt.memory.sizes import Regimes, Sizes, sizes_of
from edge_rt.memory.speed import foretold
from edge_rt.package.expert_sizes import RESIDENT
from edge_rt.package.spec_modes import AUTO, MODEL, TRAINED_MODES, mode_of
from edge_rt.system.byte_size import show_at_least, show_size
from edge_rt.system.notebooks import shown_table, shown_text

__all__ = [
    "DEFAULT_CONTEXT", "KEPT_SPEED", "LEAST_CONTEXT", "Alternative", "Choice", "Plan", "Request", "Term", "make_plan",
]  # fmt: skip

GPU_OP_PROFILE: Final = "native"
"""Packages of this op profile run on GPUs whose memory is planned."""


@dataclass(frozen=True, repr=False)
class Plan:
    """The settings that were decided, the memory they need, and alternatives.

    Attributes:
        shape: the model.
        device: the machine; its GPU only if that computes the model.
        request: the request.
        unused: its flags that have no effect because nothing is drafted: ``("--draft-max", "--corpus")``.
        choice: the settings that were decided; the smallest configuration if nothing fits.
        terms: memory of each part at its largest.
        needs: their sums: the peak memory of the process, and what a GPU with memory of its own holds.
        budget: the budgets of both.
        fits: whether the sums are within the budgets.
        minimum: the smallest budgets that work with the pinned settings.
        speculation: the smallest budgets at which speculation keeps 96 % of its speed with this context and cache
            (SpecMemo's criterion); None if nothing would be drafted.
        tokens_per_second: expected decoding throughput of an answer alone with half the context filled; None: it is not
            foretold, of a program on the CPU that stands for a GPU.
        plain_tokens_per_second: the same without speculation.
        given_up: what was reduced to fit the budget, as texts with numbers; before it slots that this model or
            machine does not have, whatever the memory.
        decision: how the choice was made.
        sizes: bytes that the terms are computed from.
        device_choice: what computes on this machine; None for another machine.
        fallback: the plan that is carried out if the GPU fails that ``auto`` has chosen; None: there is none.
    """

    shape: ModelShape
    device: Device
    request: Request
    unused: tuple[str, ...]
    choice: Choice
    terms: tuple[Term, ...]
    needs: Amounts
    budget: Amounts
    fits: bool
    minimum: Amounts
    speculation: Amounts | None
    tokens_per_second: float | None
    plain_tokens_per_second: float | None
    given_up: tuple[str, ...]
    decision: Decision
    sizes: Sizes
    device_choice: DeviceChoice | None = None
    fallback: Plan | None = None

    @property
    def why_answers_wait(self) -> str | None:
        """Why there is one slot where several were asked for, whatever the memory; None: there may be several."""
        return why_one_slot(self.shape) if self.request.slots > 1 else None

    @property
    def reduced(self) -> tuple[str, ...]:
        """What was given up to fit the budget."""
        waiting = _waiting(self.request, self.why_answers_wait)
        return tuple(text for text in self.given_up if text not in waiting)

    @cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Other settings that fit; they are looked for when somebody asks, which takes longer than the plan itself."""
        request = self.request.used_by(self.shape)
        return alternatives_to(self.shape, self.device, request, self.decision, self.speculation)

    @property
    def total_bytes(self) -> int:
        """Peak memory of the process, and of a GPU that shares the machine's memory."""
        return self.needs.host

    @property
    def budget_bytes(self) -> int:
        """The budget of that memory."""
        return self.budget.host

    @property
    def minimum_bytes(self) -> int:
        """The smallest budget of that memory that works with the pinned settings."""
        return self.minimum.host

    @property
    def speculation_bytes(self) -> int | None:
        """The smallest one at which speculation keeps its speed; None if nothing would be drafted."""
        return None if self.speculation is None else self.speculation.host

    @property
    def process_bytes(self) -> int:
        """Peak memory of the process alone."""
        return self.needs.host - (0 if self.device.has_own_gpu_memory else self.device_bytes)

    @property
    def held_device_bytes(self) -> dict[DeviceName, int]:
        """What the model surely holds on a GPU and gives back when it is closed: name of the GPU -> bytes."""
        gpu, held = self.device.gpu, self.sizes.gpu
        return {} if gpu is None or gpu.device_name is None or held is None else {gpu.device_name: held.surely_held}

    @property
    def device_bytes(self) -> int:
        """Bytes that lie on a GPU, with memory of its own or not; 0 if the CPU computes."""
        return 0 if self.sizes.gpu is None else self.sizes.gpu.total

    @property
    def device_budget_bytes(self) -> int | None:
        """The budget of a GPU's own memory; None without one."""
        return self.budget.gpu if self.device.has_own_gpu_memory else None

    @property
    def regimes(self) -> Regimes:
        """Bytes at each of the memory peaks that have to fit."""
        return self.sizes.regimes

    @property
    def runtime_bytes(self) -> int:
        """Bytes of the total that the process needs before any model is loaded, and for the driver of GPUs."""
        return self.sizes.runtime

    @property
    def base_bytes(self) -> int:
        """Those without the driver."""
        return self.sizes.runtime - self.sizes.driver

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the rows of a table: (part, bytes, share of the total or bytes on the GPU, what it comes from)."""
        return rows_of(self.terms, self.device, self.request, self.needs, self.budget, self.regimes)

    def __repr__(self) -> str:
        need, does = show_size(self.needs.host), "fits" if self.fits else "does not fit"
        return (
            f"<edge_rt.Plan for {self.shape.name!r} on {self.device.name}: {self.choice.in_words()}; "
            f"{need} of {show_size(self.budget.host)}, {does}>"
        )

    def _repr_html_(self) -> str:
        does = "fits" if self.fits else "does not fit"
        title = f"{self.shape.name} on {self.device.name} {does}: {self.choice.in_words()}."
        speed = "Its speed is not foretold of a program on the CPU."
        if self.tokens_per_second is not None:
            speed = f"Expected: {self.tokens_per_second:.0f} tokens per second, with half of the context filled."
        reduced = [f"Reduced: {text}." for text in self.given_up]
        return shown_text("\n".join([title, speed, *reduced])) + shown_table(self.rows(), right=(1, 2))


def make_plan(shape: ModelShape, device: Device, request: Request) -> Plan:
    """Return the plan for a budget; it does not raise for lack of memory, see ``Plan.fits``.

    Raises:
        ConfigError: a pinned setting is out of range, or does not apply to this model or machine.
    """
    _check(shape, request)
    if shape.op_profile != GPU_OP_PROFILE:
        device = replace(device, gpu=None)
    if device.gpu is not None:
        # Those that it computes lie there.
        shape = replace(shape, experts=None)
    _check_device_budget(shape, device, request)
    _check_experts(shape, device, request)
    budget = request.budget(device)
    asked, request = request, request.used_by(shape)
    fallbacks = Fallbacks(shape, device, request)
    decision = fallbacks.decide(budget)
    choice = decision.choice
    sizes = sizes_of(shape, device, choice, request)
    speculation = fallbacks.speculation_needs(choice)
    speed, plain = foretold(shape, device, choice, request.drafter)
    return Plan(
        shape=shape,
        device=device,
        request=asked,
        unused=tuple(flag for flag in asked.flags[::2] if flag not in request.flags[::2]),
        choice=choice,
        terms=terms_of(shape, choice, sizes, request),
        needs=decision.needs,
        budget=budget,
        fits=decision.needs.within(budget),
        minimum=decision.least,
        speculation=speculation,
        tokens_per_second=speed,
        plain_tokens_per_second=plain,
        given_up=_given_up(shape, device, request, fallbacks, decision),
        decision=decision,
        sizes=sizes,
    )


def _check_device_budget(shape: ModelShape, device: Device, request: Request) -> None:
    if request.device_budget_bytes is None or device.has_own_gpu_memory:
        return
    if device.gpu is None:
        way = (
            "name the GPU"
            if device.name == MACHINE
            else "plan for a machine whose GPU has some: edge-rt plan --device list"
        )
        if shape.op_profile != GPU_OP_PROFILE:
            way = "choose a native package"
        raise no_device_budget(request.device_budget_bytes, way=way)
    raise ConfigError(
        "This GPU has no memory of its own.",
        f"Got {show_size(request.device_budget_bytes)} for {device.gpu.name}, which shares the memory of the machine.",
        "Give one budget for both with --memory (memory).",
    )


def no_device_budget(given_bytes: int, why_cpu: str | None = None, *, way: str = "name the GPU") -> ConfigError:
    """Return the error for a budget of a GPU's memory where the CPU computes; ``way``: what else can be done."""
    return ConfigError(
        "A budget of device memory is for native packages on a GPU with memory of its own.",
        f"Got {show_size(given_bytes)}; this model is planned for the CPU.{'' if why_cpu is None else f' {why_cpu}'}",
        f"Leave out --device-memory (device_memory), or {way}.",
    )


def _check(shape: ModelShape, request: Request) -> None:
    if request.ctx is not None and not 2 <= request.ctx <= shape.model.context_length:
        raise ConfigError(
            "The context is out of range.",
            f"Got {request.ctx}; this model allows 2 to {shape.model.context_length} tokens.",
            "Choose one in that range.",
        )
    if request.kv_rows is not None and request.kv_rows < (request.ctx or 2):
        raise ConfigError(
            "The rows of the KV cache are fewer than a context has.",
            f"Got {request.kv_rows} rows for a context of {request.ctx or 2} tokens.",
            "Give more rows, or a smaller context.",
        )
    if request.kv not in (None, AUTO, *shape.kv_formats):
        raise ConfigError(
            "The package's KV cache has no such format.",
            f"Got {request.kv!r:.40}; formats of the op profile {shape.op_profile}: {', '.join(shape.kv_formats)}.",
            "Choose one of these, or auto.",
        )
    has_network = request.drafter if request.spec in TRAINED_MODES else request.draft_model
    if mode_of(request.spec or AUTO) in (*TRAINED_MODES, MODEL) and has_network is None:
        raise ConfigError(
            f"The mode of speculation {request.spec!r} needs a network that drafts, and the plan has none.",
            "Such a network drafts for a package.",
            "Plan for a package, or choose another mode.",
        )
    for name, value in (("largest draft", request.draft_max), ("prefill chunk", request.prefill_chunk)):
        if value is not None and value < 1:
            raise ConfigError(f"The {name} is out of range.", f"Got {value}.", "Give at least 1.")


def _experts_text(shape: ModelShape, choice: Choice) -> str:
    if choice.expert_bytes is None or shape.experts is None:
        return ""
    whole = show_size(shape.experts.stored_bytes)
    return f"experts: {show_size(choice.expert_bytes)} of {whole} in memory, the others are read when they are wanted"


def _check_experts(shape: ModelShape, device: Device, request: Request) -> None:
    asked = request.experts
    if asked is None or asked == RESIDENT:
        return
    if shape.experts is None or device.gpu is not None:
        raise ConfigError(
            "There are no experts that could be read while the model runs.",
            f"Got {asked} for {shape.name}{' on a GPU' if device.gpu is not None else ''}.",
            "Leave out --experts (experts), or choose a native package of a model with experts, on the CPU.",
        )
    if int(asked) < (least := shape.experts.least_bytes):
        raise ConfigError(
            "The cache of experts is too small for one token.",
            f"Got {int(asked)} bytes; the experts of a token in all layers take {least} ({show_at_least(least)}).",
            "Give at least that with --experts (experts), or leave it out.",
        )


def _given_up(
    shape: ModelShape, device: Device, request: Request, fallbacks: Fallbacks, decision: Decision
) -> tuple[str, ...]:
    """Return what was reduced from the best choice to this one, in the order of the reductions."""
    best, choice = decision.best, decision.choice
    speculative = {
        name: getattr(choice, name)
        for name in ("spec", "draft_max", "suffix_tokens", "recycling_contexts", "logit_rows")
    }
    drafters = [] if request.drafter is None else [request.drafter.name]
    if request.draft_model is not None:
        drafters.append(request.draft_model.shape.name)
    layers = f"layers on the GPU: {choice.gpu_layers} of {shape.model.num_layers}, the others on the CPU"
    steps = (
        (layers, {"gpu_layers": choice.gpu_layers}),
        (_experts_text(shape, choice), {"expert_bytes": choice.expert_bytes}),
        (
            f"states of earlier texts: {choice.checkpoints} instead of {best.checkpoints}",
            {"checkpoints": choice.checkpoints},
        ),
        (f"drafter: none instead of {' and '.join(drafters)}", {"drafter": choice.drafter}),
        (f"speculation: {_speculation(choice)} instead of {_speculation(best)}", speculative),
        (
            f"rows of the KV cache: {choice.kv_rows} instead of {best.kv_rows}",
            {"kv_rows": choice.kv_rows or best.kv_rows},
        ),
        (
            f"slots: {choice.slots} instead of {best.slots}",
            {"slots": choice.slots, "kv_rows": choice.kv_rows},
        ),
        (f"precision of the KV cache: {choice.kv_format} instead of {best.kv_format}", {"kv_format": choice.kv_format}),
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
        if text == layers:
            saved = fallbacks.needs(held).gpu - fallbacks.needs(less).gpu
            result.append(f"{text} (saves {show_size(saved)} of the GPU's memory)")
            held = less
            continue
        saved = fallbacks.needs(held).both - fallbacks.needs(less).both
        # A shorter context has smaller tables by default; this does not count as a separate reduction.
        if saved or text.startswith("context"):
            (before, _), (after, _) = (foretold(shape, device, one, request.drafter) for one in (held, less))
            change = 0.0 if before is None or after is None else after / before - 1
            speed = f", {100 * change:+.0f} % tokens per second" if abs(change) >= 0.005 else ""
            result.append(f"{text} (saves {show_size(saved)}{speed})")
        held = less
    return (*_waiting(request, why_one_slot(shape)), *result)


def _waiting(request: Request, why: str | None) -> list[str]:
    is_reduced = request.slots > 1 and why is not None
    return [f"slots: 1 instead of {request.slots}, the others wait ({why})"] if is_reduced else []


def _speculation(choice: Choice) -> str:
    if not choice.draft_max:
        return "off"
    tables = [f"{choice.suffix_tokens} tokens"] * bool(choice.suffix_tokens)
    tables += [f"{choice.recycling_contexts} contexts"] * bool(choice.recycling_contexts)
    of_tables = f" and tables of {' and '.join(tables)}" if tables else ""
    return f"{choice.spec} with drafts of {choice.draft_max}{of_tables}"
