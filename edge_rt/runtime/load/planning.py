"""From what a load is asked for to a plan of its memory, and to its share of a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from edge_rt.byte_size import file_size, round_up
from edge_rt.errors import ConfigError, RuntimeUnavailable
from edge_rt.memory.budget import Budget, Claim
from edge_rt.memory.device import Device, this_device
from edge_rt.memory.plan import Plan, Request, make_plan, require_fit
from edge_rt.memory.request import AUTO, CORPUS_MODES, as_arguments
from edge_rt.memory.shape import shape_of
from edge_rt.memory.terms import pass_memory_bytes
from edge_rt.package.reader import Package
from edge_rt.runtime.drafters.corpus import Corpus
from edge_rt.runtime.drafters.recycling import MAX_CONTEXTS
from edge_rt.runtime.drafters.suffix import MAX_TOKENS
from edge_rt.runtime.graph.io_binding import check_kv_format
from edge_rt.runtime.prompt.encoding_budget import EncodingBudget
from edge_rt.runtime.speculation.speculation import DEFAULT_MAX_NODES, SpecOptions, TableBounds
from edge_rt.session import PassMemory, pool_size
from edge_rt.system.machine import usable_cpus
from edge_rt.system.process_memory import read_memory

_SETTLING: Final = 3
PIECES_BYTES: Final = 24 << 20
"""What closed models leave in the heap that one with another tokenizer cannot use, as it lies in pieces. Measured with
vocabularies of 49,000 and 128,000 tokens in turn: after ten loads 12 MiB more belong to no model than after the first,
and the smaller model's peak is 25 MiB higher, of which its plan has room for some."""

Memory = int | str | Budget | None
"""A budget as it is given: bytes, a text such as ``"600MiB"``, one that several models share, or what there is."""


@dataclass(frozen=True)
class Wanted:
    """What a load asks for; None leaves it to the plan.

    Attributes:
        ctx: tokens of context.
        kv: format of the KV cache, or ``"auto"``.
        prefill_chunk: tokens of one pass over a prompt.
        spec: how to speculate, and the corpus that drafts are looked up in.
        threads: that compute.
    """

    ctx: int | None = None
    kv: str | None = None
    prefill_chunk: int | None = None
    spec: SpecOptions = field(default_factory=SpecOptions)
    threads: int | None = None

    def check(self, package: Package) -> None:
        """Refuse what is not for this package, or says nothing together; numbers are ``make_plan``'s to judge.

        Raises:
            ConfigError: the package has no such cache format (with those there are, and whether exporting again gives
                it), or the mode of speculation does not use a corpus.
            InvalidCorpus: the corpus is none, or comes from another tokenizer.
            StorageError: it cannot be read.
        """
        if self.kv not in (None, AUTO):
            check_kv_format(package.manifest, str(self.kv))
        corpus, mode = self.spec.corpus, self.spec.mode or AUTO
        if corpus is None:
            return
        if mode not in CORPUS_MODES:
            raise ConfigError(
                f"A corpus is not used with the mode of speculation {mode!r}.",
                f"It is used with {', '.join(CORPUS_MODES)}.",
                "Leave one out.",
            )
        tokenizer = package.manifest.files[package.manifest.tokenizer.file].sha256
        # Its sections are compared with their hashes when it is loaded.
        Corpus.open(Path(corpus), tokenizer=tokenizer, verify=False).close()


@dataclass(frozen=True)
class LoadPlan:
    """A plan that fits, and what follows from it.

    Attributes:
        plan: the plan.
        budget_bytes: the budget that was given, of all models that share it; None without one.
        is_strict: whether it holds a budget that was given, or had to give something up for what there is. A plan that
            does neither says what is taken unless more is asked for later, which is then given.
        claim: its share of the budget, or of what there is where that is short; None without either.
        text_room: memory for text that has to be encoded at once, in that share; None: as much as the system has.
    """

    plan: Plan
    budget_bytes: int | None
    is_strict: bool
    claim: Claim | None
    text_room: EncodingBudget | None

    def spec_options(self, options: SpecOptions) -> SpecOptions:
        """Return how to speculate, as it was asked for and as the plan decided."""
        choice = self.plan.choice
        mode = options.mode
        if mode is None and choice.spec == "off" and self.plan.given_up:
            mode = "off"
        elif mode is None and choice.spec != "off":
            mode = choice.spec
        most = choice.draft_max or options.max_nodes
        return replace(options, mode=mode or "auto", max_nodes=most or DEFAULT_MAX_NODES)

    @property
    def table_bounds(self) -> TableBounds:
        """What drafters may remember."""
        choice = self.plan.choice
        if self.is_strict:
            tokens = choice.suffix_tokens
            return TableBounds(tokens, choice.recycling_contexts, is_planned=True)
        return TableBounds(choice.suffix_tokens or MAX_TOKENS, choice.recycling_contexts or MAX_CONTEXTS)

    @property
    def logit_rows(self) -> int:
        """Rows of logits for which there is room from the beginning."""
        rows = self.plan.choice.logit_rows
        return rows if self.is_strict else max(rows, DEFAULT_MAX_NODES + 1)

    @property
    def most_logit_rows(self) -> int | None:
        """Rows of logits beyond which no pass may go; None: as many as the system has memory for."""
        return self.logit_rows if self.is_strict else None

    @property
    def largest_pass(self) -> int:
        """Rows of the largest pass that is planned."""
        return max(self.plan.choice.largest_pass, self.logit_rows)

    @property
    def pass_memory(self) -> PassMemory:
        """Memory for the intermediate values of passes."""
        planned = pass_memory_bytes(self.plan.shape, self.plan.choice)
        # ONNX Runtime takes packed weights from the same arena, whatever its limit, and then holds no limit any more.
        # There the size of a pass is what bounds it.
        return PassMemory(planned, is_limit=self.is_strict and self.plan.shape.op_profile == "native")

    @property
    def totals(self) -> tuple[int, int | None]:
        """Bytes that are planned, with those that long texts have taken since, and the budget's; None without one."""
        more = 0 if self.text_room is None else self.text_room.taken_bytes
        return self.plan.total_bytes + more, self.budget_bytes

    def to_json(self) -> dict[str, Any]:
        """Return what is planned as a JSON object: bytes in all and of every term, the budget, what was given up."""
        plan = self.plan
        return {
            "planned_bytes": plan.total_bytes,
            "budget_bytes": self.budget_bytes,
            "available_bytes": plan.budget_bytes,
            "minimum_bytes": plan.minimum_bytes,
            "terms": {term.name: term.bytes for term in plan.terms},
            "given_up": list(plan.given_up),
        }

    def release(self) -> None:
        """Give the share of the budget back; does nothing the second time."""
        if self.claim is not None:
            self.claim.release()


def plan_package(
    package: Package,
    wanted: Wanted,
    memory: Memory = None,
    *,
    device: Device | None = None,
    base_bytes: int | None = None,
) -> Plan:
    """Return the plan for a package in this process, whether it fits or not; nothing is loaded.

    Without a budget the plan may take what the machine has available, beside what this process holds already. In a
    budget that models share, it may take what they leave, and the process itself is counted once.

    A process does not get smaller by all that a closed model took: the heap keeps much of it, for the next load to
    use. Where one model takes another's place, what the process holds is therefore what it held before the first one.

    Args:
        package: the opened package.
        wanted: what is asked for.
        memory: the budget.
        device: another machine than this one; then the process is taken to be one that holds nothing yet.
        base_bytes: what this process held before its first model (``runtime_bytes`` of its plan), where the planned one
            takes the place of all that are loaded; None: what it holds now.

    Raises:
        ConfigError: what is wanted is out of range or says nothing together, or the budget is no size.
        InvalidCorpus: the corpus is none, or comes from another tokenizer.
        StorageError: it cannot be read.
    """
    wanted.check(package)
    # Planning takes memory itself, the first time; what follows is to find the process as it was planned.
    for _ in range(_SETTLING):
        before = resident_bytes()
        plan = _plan_package(package, wanted, _budget(memory), device, base_bytes)
        if resident_bytes() == before:
            break
    return plan


def _plan_package(
    package: Package, wanted: Wanted, budget: Budget | None, device: Device | None, base_bytes: int | None
) -> Plan:
    spec = wanted.spec
    resident: int | None
    if device is None:
        resident = resident_bytes() if base_bytes is None else base_bytes
        device = this_device()
        threads = wanted.threads or pool_size() or usable_cpus()
        held = resident if base_bytes is None else max(base_bytes, _unshared_bytes())
        device = replace(device, available_bytes=device.available_bytes + held, threads=threads)
    else:
        resident = device.base_bytes
    total = None
    if budget is not None:
        if budget.base_bytes:
            resident = budget.base_bytes
        total = budget.free_bytes + budget.base_bytes
    request = Request(
        budget_bytes=total,
        ctx=wanted.ctx,
        kv=wanted.kv,
        spec=spec.mode,
        draft_max=spec.max_nodes if spec.mode != "off" else None,
        prefill_chunk=wanted.prefill_chunk,
        resident_bytes=resident,
        corpus=None if spec.corpus is None else str(spec.corpus),
        corpus_bytes=file_size(spec.corpus),
    )
    return make_plan(shape_of(package.manifest, package.id), device, request)


def plan_load(package: Package, wanted: Wanted, memory: Memory, decided: Plan | None = None) -> LoadPlan:
    """Return a plan that fits, with its share of the budget taken.

    Args:
        package: the opened package.
        wanted: what is asked for.
        memory: the budget; None: what the machine has available, or the budget of ``decided``.
        decided: a plan for this package that was made before, to be done as it is; ``wanted`` is not looked at then.

    Raises:
        ConfigError: what is wanted is out of range, the budget is no size, or the plan is another package's.
        MemoryBudgetExceeded: it does not fit: what is needed, what there is, and a setting that fits.
    """
    budget = _budget(memory)
    if decided is not None and decided.shape.package_id != package.id:
        raise ConfigError(
            "The plan was made for another package.",
            f"It is for {decided.shape.name} ({str(decided.shape.package_id)[:12]}), this is {package.id[:12]}.",
            "Make one with edge_rt.plan for the package that is to be loaded.",
        )
    plan = plan_package(package, wanted, budget) if decided is None else decided
    require_fit(plan, _spelling(plan, memory))
    total = plan.request.budget_bytes if budget is None else budget.total_bytes
    is_strict = total is not None or bool(plan.given_up)
    if budget is None and is_strict:
        budget = Budget(plan.budget_bytes)
    if budget is None:
        return LoadPlan(plan, total, is_strict, claim=None, text_room=None)
    base = plan.runtime_bytes
    claim = budget.claim(plan.shape.name, plan.total_bytes - base, base_bytes=base)
    return LoadPlan(plan, total, is_strict, claim, EncodingBudget(plan, budget, claim, is_given=total is not None))


def resident_bytes() -> int:
    """Return the memory that this process holds now, in bytes: rounded up, as two plans in a row are to agree."""
    return round_up(int(psutil.Process().memory_info().rss))


def _unshared_bytes() -> int:
    """Return the memory of this process that is not counted as available already, as pages of mapped files are."""
    try:
        return read_memory().private_bytes
    except RuntimeUnavailable:
        return 0


def _spelling(plan: Plan, memory: Memory) -> Callable[[tuple[str, ...]], str]:
    """Return how settings that fit are written for a caller of ``edge_rt.load``."""
    if not isinstance(memory, Budget):
        return as_arguments
    return partial(as_arguments, budget=plan.budget_bytes, shared_bytes=memory.total_bytes - plan.budget_bytes)


def _budget(memory: Memory) -> Budget | None:
    return memory if memory is None or isinstance(memory, Budget) else Budget(memory)
