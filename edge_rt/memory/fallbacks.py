"""What a plan reduces to fit the memory, and in which order.

That is: states of earlier texts, speculation, rows that slots share, slots, KV precision, the prefill chunk, the
context. With several slots it is a batch that is planned, whose answers seldom need a context each: rows go down to
those of one context before slots go, and both before what a single answer has.

If a GPU's memory is too small for all that, its layers are divided: with the preferred settings that fit then, as many
as have room are on the GPU. So more of the settings is kept than with all layers there.

Experts are resident where that fits with the context that is wanted; else a cache of them gets what everything else
leaves of the memory, if that holds the experts of a token at least.

Speculation is reduced as in SpecMemo (Yildirim & Chen 2025), so that most of its speed is kept. First a trained drafter
that was not asked for by name is left out. Then the drafters' tables shrink. Then the draft tree shrinks, down to where
96 % of the speed are left. Then a cheaper drafter is used, and at last speculation is turned off.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from edge_rt.memory.figures import Amounts, Choice, Device
from edge_rt.memory.request import Alternative, Request
from edge_rt.memory.shape import ModelShape
from edge_rt.memory.sizes import sizes_of
from edge_rt.memory.speed import LEAST_TABLE, foretold, tokens_per_second
from edge_rt.package.expert_sizes import RESIDENT, ExpertSizes
from edge_rt.package.kv_formats import pool_rows
from edge_rt.package.spec_modes import AUTO, COMPUTED_MODES, DRAFTER_MODES, EXIT, OFF, SELF, Drafts, mode_of
from edge_rt.package.states import wanted_checkpoints
from edge_rt.system.byte_size import round_up

DEFAULT_CONTEXT: Final = 8192
"""Largest context that the plan chooses by itself, in tokens."""
LEAST_CONTEXT: Final = 512
"""Smallest context that the plan chooses by itself, in tokens, unless the model was trained for less."""
DEFAULT_DRAFT: Final = 23
SELF_DRAFT: Final = 8
"""The same of chains that the model drafts itself, a pass for each token."""
KEPT_SPEED: Final = 0.96
"""Share of the speed that a smaller draft tree must keep: SpecMemo's criterion."""
CHUNKS: Final = {"native": (256, 128, 64), "portable": (128, 64), "traced": (64, 32)}
"""Op profile -> tokens of a prefill pass, largest first: larger chunks need more memory and are faster."""

_TREES: Final = (16, 12, 8, 6, 4)
_CHAIN: Final = 2  # drafted tokens when there is memory for very few
_CONTEXT_STEP: Final = 64
_SUFFIX_TABLE: Final = (8192, 1 << 16)  # smallest and largest default; it should hold a whole context
_RECYCLING_TABLE: Final = 8192
"""Where the tables are -> contexts: 8,192 in the library take half of the memory of 2,048 in Python."""
_SMALLER_TABLES: Final = ((4096, LEAST_TABLE), (LEAST_TABLE, LEAST_TABLE))
_LESS_PRECISE: Final = ("f32", "f16", "int8", "k8v4", "int4")
_WORTH_PRECISION: Final = 1.05


def why_one_slot(shape: ModelShape) -> str | None:
    """Return why a model computes one answer at a time; None: it can compute several."""
    if shape.op_profile != "native":
        return f"passes of {shape.op_profile} packages have one sequence"
    if shape.window_layers and shape.recurrent_layers:
        return "layers with a window beside layers with a state have one sequence"
    return None


class Setting(NamedTuple):
    """What is decided before speculation; ``rows`` are those that several slots share."""

    ctx: int
    kv: str
    chunk: int
    slots: int = 1
    rows: int = 0


Placement = Callable[[Choice, Amounts], Choice | None]
"""Returns a choice as it is placed within a budget; None if it does not fit."""


@dataclass(frozen=True)
class Decision:
    """The settings chosen for a request under a budget.

    Attributes:
        choice: the choice under the budget; the smallest configuration if none fits. It divides the layers between the
            CPU and a GPU only if nothing fits with all of them on the GPU.
        least: memory that the smallest configuration needs, with the layers divided as in ``choice``.
    """

    best: Choice
    choice: Choice
    needs: Amounts
    least: Amounts


class Fallbacks:
    """The configurations that a request allows, from the preferred one to the smallest."""

    def __init__(self, shape: ModelShape, device: Device, request: Request) -> None:
        self._shape = shape
        self._device = device
        self._request = request
        self._chunks = (request.prefill_chunk,) if request.prefill_chunk is not None else CHUNKS[shape.op_profile]
        longest = DEFAULT_CONTEXT if request.kv_rows is None else min(DEFAULT_CONTEXT, request.kv_rows)
        self.ctx = min(shape.model.context_length, longest) if request.ctx is None else request.ctx
        self._least_ctx = min(LEAST_CONTEXT, self.ctx) if request.ctx is None else self.ctx
        self._formats = self._cache_formats()
        slots = request.slots if why_one_slot(shape) is None else 1
        self._slots = [slots >> halves for halves in range(slots.bit_length())]

    def needs(self, choice: Choice) -> Amounts:
        """Return the memory that a choice needs."""
        return sizes_of(self._shape, self._device, choice, self._request).needs

    def decide(self, budget: Amounts) -> Decision:
        """Return the first configuration that fits the budget.

        Context, cache format and chunk are decided first, such that the smallest form of speculation fits beside them.
        Speculation then gets the memory that is left.
        """
        best = self._speculation_steps(self._setting(self._slots[0], self._all_rows(self._slots[0])))[0]
        best = replace(best, checkpoints=self._most_checkpoints(best))
        if isinstance(asked := self._request.experts, int):
            best = replace(best, expert_bytes=self._experts.cache_bytes(asked))
        least = self._speculation_steps(Setting(self._least_ctx, self._formats[-1], self._chunks[-1]))[-1]
        least = self._smallest(least)
        least_needs = self.needs(least)
        can_divide = self._device.divides_layers and bool(self._shape.gpu_layer_counts)
        placements = self._expert_placements(budget)
        divides = can_divide and least_needs.gpu > budget.gpu
        if divides:
            placements.append(self._divided)
        for place in placements:
            if (found := self._first_that_fits(budget, place)) is not None:
                smallest = self.needs(self._smallest(replace(least, gpu_layers=found.gpu_layers)))
                found = self._with_checkpoints(found, budget)
                return Decision(best, found, self.needs(found), smallest)
        if divides:
            # With the fewest layers on the GPU it needs the least memory there, if the others have room here.
            fewest = replace(least, gpu_layers=self._shape.gpu_layer_counts[0])
            if (needs := self.needs(fewest)).host <= budget.host:
                return Decision(best, fewest, needs, needs)
        return Decision(best, least, least_needs, least_needs)

    @property
    def _experts(self) -> ExpertSizes:
        assert self._shape.experts is not None
        return self._shape.experts

    def _expert_placements(self, budget: Amounts) -> list[Placement]:
        """Return where experts may be, preferred ways first.

        They are not read into a cache as long as they fit with the whole context.
        """
        asked = self._request.experts
        if self._shape.experts is None or asked == RESIDENT:
            return [self._as_it_is]
        if asked is not None:
            return [self._with_cache]
        fits = any(
            self._as_it_is(step, budget) is not None
            for setting in self._settings(budget, self._as_it_is)
            if setting.ctx == self.ctx
            for step in self._speculation_steps(setting)
        )
        return [self._as_it_is] if fits else [self._with_cache, self._as_it_is]

    def _with_cache(self, choice: Choice, budget: Amounts) -> Choice | None:
        """Return a choice with the cache of experts that was asked for, or the largest that fits; None: none does."""
        asked = self._request.experts
        least = replace(choice, expert_bytes=self._experts.least_bytes)
        left = budget.host - self.needs(least).host
        if isinstance(asked, int):
            return self._as_it_is(replace(choice, expert_bytes=self._experts.cache_bytes(asked)), budget)
        if left < 0:
            return None
        return replace(choice, expert_bytes=self._experts.cache_bytes(self._experts.least_bytes + left))

    def _smallest(self, choice: Choice) -> Choice:
        """Return a choice with the smallest cache of experts, if it may have one and needs less memory so."""
        asked = self._request.experts
        if self._shape.experts is None or asked == RESIDENT:
            return choice
        if asked is not None:
            return replace(choice, expert_bytes=self._experts.cache_bytes(int(asked)))
        cached = replace(choice, expert_bytes=self._experts.least_bytes)
        return cached if self.needs(cached).host < self.needs(choice).host else choice

    def _with_checkpoints(self, choice: Choice, budget: Amounts) -> Choice:
        """Return a choice that keeps as many states of earlier texts as what it leaves has room for."""
        for count in range(self._most_checkpoints(choice), choice.checkpoints, -1):
            if self.needs(more := replace(choice, checkpoints=count)).within(budget):
                return more
        return choice

    def _most_checkpoints(self, choice: Choice) -> int:
        """Return how many states, or with several slots what windows saw, of earlier texts are wanted."""
        shape = self._shape
        keeps = shape.recurrent_layers or (shape.window_layers and choice.slots > 1)
        return wanted_checkpoints(choice.slots) if keeps else 0

    def _first_that_fits(self, budget: Amounts, place: Placement) -> Choice | None:
        """Return the preferred configuration of those that fit the budget when they are placed; None if none does."""
        for setting in self._settings(budget, place):
            for choice in self._speculation_steps(setting):
                if (placed := place(choice, budget)) is not None:
                    return placed
        return None

    def _as_it_is(self, choice: Choice, budget: Amounts) -> Choice | None:
        """Return a choice if it fits the budget."""
        return choice if self.needs(choice).within(budget) else None

    def _divided(self, choice: Choice, budget: Amounts) -> Choice | None:
        """Return a choice with as many layers on the GPU as fit its memory; None if the others do not fit here.

        At least one layer stays on either side.
        """

        def with_layers(count: int) -> Choice:
            return replace(choice, gpu_layers=count)

        counts = self._shape.gpu_layer_counts
        if self._shape.segments > 1:
            # Between the graphs of a package is memory that fewer layers may need and more may not.
            placed = (self._as_it_is(with_layers(count), budget) for count in reversed(counts))
            return next((choice for choice in placed if choice is not None), None)
        fitting = bisect_right(counts, budget.gpu, key=lambda count: self.needs(with_layers(count)).gpu)
        return self._as_it_is(with_layers(counts[fitting - 1]), budget) if fitting else None

    def speculation_needs(self, choice: Choice) -> Amounts | None:
        """Return the smallest budget at which speculation keeps ``KEPT_SPEED`` of its speed for a context and a cache.

        With this budget, and context and cache format pinned, `decide` chooses exactly that. None if nothing would be
        drafted however much memory there is.
        """
        setting = Setting(choice.ctx, choice.kv_format, self._chunks[0], choice.slots, choice.kv_rows)
        steps = self._speculation_steps(setting)
        if not steps[0].draft_max:
            return None
        wanted = KEPT_SPEED * self._speed(steps[0])
        kept = [
            self.needs(replace(step, gpu_layers=choice.gpu_layers, expert_bytes=choice.expert_bytes))
            for step in steps
            if step.draft_max and self._speed(step) >= wanted
        ]
        return min(kept, key=lambda needs: (needs.host, needs.gpu))

    def _setting(self, slots: int = 1, rows: int = 0) -> Setting:
        return Setting(self.ctx, self._formats[0], self._chunks[0], slots, rows)

    def _settings(self, budget: Amounts, place: Placement) -> Iterator[Setting]:
        """Yield settings, preferred ones first."""
        for slots in self._slots[:-1]:
            yield self._setting(slots, self._all_rows(slots))
            if (rows := self._most_rows(slots, budget, place)) is not None:
                yield self._setting(slots, rows)
        for kv in self._formats:
            yield self._setting()._replace(kv=kv)
        for chunk in self._chunks[1:]:
            yield Setting(self.ctx, self._formats[-1], chunk)
        if (ctx := self._longest_context(budget, place)) is not None:
            yield Setting(ctx, self._formats[-1], self._chunks[-1])

    def _all_rows(self, slots: int) -> int:
        """Return the rows that slots share if there is memory for all: as asked for, else a whole context for each."""
        if slots == 1:
            return 0
        asked = self._request.kv_rows
        return pool_rows(self.ctx, slots) if asked is None else pool_rows(max(asked, self.ctx), 1)

    def _most_rows(self, slots: int, budget: Amounts, place: Placement) -> int | None:
        """Return the most rows, those of a context at least, that fit with the smallest speculation; None: too many."""
        if self._request.kv_rows is not None:
            return None
        least = pool_rows(self.ctx, 1)
        steps = self._most_steps(
            (self._all_rows(slots) - least) // _CONTEXT_STEP,
            lambda steps: self._setting(slots, least + _CONTEXT_STEP * steps),
            budget,
            place,
        )
        return None if steps is None else least + _CONTEXT_STEP * steps

    def _longest_context(self, budget: Amounts, place: Placement) -> int | None:
        """Return the longest context that fits with everything else reduced to its smallest; None if none fits."""
        steps = self._most_steps(
            (self.ctx - self._least_ctx) // _CONTEXT_STEP,
            lambda steps: Setting(self._least_ctx + _CONTEXT_STEP * steps, self._formats[-1], self._chunks[-1]),
            budget,
            place,
        )
        return None if steps is None else self._least_ctx + _CONTEXT_STEP * steps

    def _most_steps(
        self, most: int, setting: Callable[[int], Setting], budget: Amounts, place: Placement
    ) -> int | None:
        """Return the largest number, at most ``most``, whose setting fits with the smallest speculation."""

        def fits(steps: int) -> bool:
            return place(self._speculation_steps(setting(steps))[-1], budget) is not None

        if not fits(0):
            return None
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if fits(middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _speculation_steps(self, setting: Setting) -> list[Choice]:
        """Return the ways to speculate with a setting, preferred ones first."""
        request, (ctx, kv, chunk, slots, rows) = self._request, setting
        mode = request.spec
        # Unless rows are exact, speculation is off if it is not requested.
        drafts = self._shape.drafts
        off = Choice(ctx, kv, OFF, 0, chunk, 0, 0, 1, slots=slots, kv_rows=rows)
        if slots > 1 and self._most_checkpoints(off):
            # Without one a conversation would begin anew with every turn.
            off = replace(off, checkpoints=slots)
        if mode == OFF or drafts is Drafts.NOTHING or (mode in (None, AUTO) and not drafts.are_exact):
            return [off]
        drafter = mode or AUTO
        usual = SELF_DRAFT if drafter == SELF else DEFAULT_DRAFT
        draft = max(1, min(usual if request.draft_max is None else request.draft_max, ctx - 2))
        if self._shape.traced is not None:
            draft = min(draft, self._shape.traced.exact_rows - 1)
        least, most = _SUFFIX_TABLE
        has_text = mode_of(drafter) not in ("recycling", *COMPUTED_MODES)
        known = min(max(least, 1 << (2 * ctx - 1).bit_length()), most) if has_text else 0
        contexts = _RECYCLING_TABLE if drafter in (AUTO, "recycling") else 0
        is_trained = request.drafter is not None and drafter in DRAFTER_MODES
        is_loaded = is_trained or request.draft_model is not None
        first = replace(
            off, spec=drafter, draft_max=draft, suffix_tokens=known, recycling_contexts=contexts,
            logit_rows=draft + 1, drafter=is_loaded,
        )  # fmt: skip
        steps = [first]
        if is_trained and drafter in (AUTO, EXIT) and not request.names_drafter:
            first = replace(first, drafter=False)
            steps.append(first)
        for tokens, likely in _SMALLER_TABLES:
            steps.append(replace(first, suffix_tokens=min(known, tokens), recycling_contexts=min(contexts, likely)))
        if request.draft_max is None:
            wanted = KEPT_SPEED * self._speed(first)
            for nodes in _TREES:
                smaller = replace(steps[-1], draft_max=nodes, logit_rows=nodes + 1)
                if nodes < steps[-1].draft_max and self._speed(smaller) >= wanted:
                    steps.append(smaller)
        if mode is None and not request.names_drafter:
            other = replace(steps[-1], spec="suffix", suffix_tokens=min(known, LEAST_TABLE), recycling_contexts=0)
            steps.append(other)
            if request.draft_max is None and other.draft_max > _CHAIN:
                steps.append(replace(other, draft_max=_CHAIN, logit_rows=_CHAIN + 1))
            if not request.wants_drafts:
                steps.append(off)
        return steps

    def _speed(self, choice: Choice) -> float:
        """Return the speed that decides how large drafts are: what a trained head gains has no part in it."""
        return tokens_per_second(self._shape, self._device, choice)

    def _cache_formats(self) -> tuple[str, ...]:
        """Return the allowed cache formats, preferred ones first, each smaller than the one before."""
        shape, kv = self._shape, self._request.kv
        if kv is not None and kv != AUTO:
            return (kv,)
        first = shape.kv_formats[0]
        smaller = [first]
        for name in _LESS_PRECISE:
            if name in shape.kv_formats and shape.token_bytes(name) < shape.token_bytes(smaller[-1]):
                smaller.append(name)
        if kv is None:
            return tuple(smaller)
        fastest, chunk = 0, self._chunks[0]
        speeds = [self._speed(self._speculation_steps(Setting(self.ctx, name, chunk))[0]) for name in smaller]
        for place, speed in enumerate(speeds):
            # A less precise format must be clearly faster to be preferred.
            if speed >= _WORTH_PRECISION * speeds[fastest]:
                fastest = place
        return tuple(smaller[fastest:])


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
    if choice.ctx // 2 >= min(LEAST_CONTEXT, shape.model.context_length):
        yield replace(request, ctx=choice.ctx // 2)
    if choice.ctx < shape.model.context_length:
        yield replace(request, ctx=min(2 * choice.ctx, shape.model.context_length))
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
    if request.kv_rows is not None:
        yield replace(request, kv_rows=None)
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
    speed, _ = foretold(shape, device, decision.choice, request.drafter)
    return Alternative(decision.choice, decision.needs.host, speed, shown.flags, decision.needs.gpu)
