"""What a load carries out: a plan that fits, its share of a budget, and what follows from both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edge_rt.device.names import AUTO as AUTO_DEVICE
from edge_rt.errors import ConfigError
from edge_rt.memory.advice import require_fit
from edge_rt.memory.budget import DRIFT, Budget, Claim, EncodingBudget
from edge_rt.memory.fallbacks import DEFAULT_DRAFT
from edge_rt.memory.plan import Plan
from edge_rt.memory.request import as_arguments, with_more_memory
from edge_rt.memory.shape import DraftModelShape
from edge_rt.memory.terms import drafts_ahead, drafts_itself, pass_memory_bytes
from edge_rt.ort.session import PassMemory
from edge_rt.package.reader import Package
from edge_rt.package.spec_modes import AUTO, OFF
from edge_rt.runtime.load.options import LoadOptions, require_rows_here
from edge_rt.runtime.speculation.slot_sources import TableBounds
from edge_rt.runtime.speculation.text_sources import MAX_CONTEXTS, MAX_TOKENS
from edge_rt.system.byte_size import show_share


@dataclass(frozen=True)
class LoadPlan:
    """A plan that fits, and what follows from it.

    Attributes:
        budget_bytes: the whole budget that was given, including the shares of other models; None without one.
        is_strict: whether the plan is a limit: a budget was given, or something was given up to fit the available
            memory. Otherwise the plan only predicts the memory, and more is taken when it is needed later.
        claim: its share of the budget, or of the available memory if that is short; None without either.
        encoding_budget: memory for text that has to be encoded at once, part of that share; None: as much as the
            system has.
        draft_max: most drafted tokens of a pass, as asked for or as the plan decided.
    """

    plan: Plan
    budget_bytes: int | None
    is_strict: bool
    claim: Claim | None
    encoding_budget: EncodingBudget | None
    draft_max: int

    @property
    def spec_mode(self) -> str:
        """The mode of speculation, as it was asked for or as the plan decided."""
        choice = self.plan.choice
        asked = self.plan.request.spec
        if asked is not None:
            return asked
        if choice.spec == OFF:
            return OFF if self.plan.reduced else AUTO
        return choice.spec

    @property
    def table_bounds(self) -> TableBounds:
        """Bounds of the drafters' tables."""
        choice = self.plan.choice
        if self.is_strict:
            tokens = choice.suffix_tokens
            return TableBounds(tokens, choice.recycling_contexts, is_planned=True)
        return TableBounds(choice.suffix_tokens or MAX_TOKENS, choice.recycling_contexts or MAX_CONTEXTS)

    @property
    def logit_rows(self) -> int:
        """Rows of logits allocated at load."""
        rows = self.plan.choice.most_logits
        return rows if self.is_strict else max(rows, DEFAULT_DRAFT + 1)

    @property
    def most_logit_rows(self) -> int | None:
        """Largest number of logit rows of a pass; None: as many as the system has memory for."""
        return self.logit_rows if self.is_strict else None

    @property
    def drafts(self) -> int:
        """Most rows of a pass that are drafts, where states have room for them: those drafted, and one of a prompt."""
        planned = self.plan.choice.tree_rows
        return planned if self.is_strict else max(planned, self.draft_max + 1)

    @property
    def largest_pass(self) -> int:
        """Rows of the largest pass that is planned."""
        return max(self.plan.choice.largest_pass, self.logit_rows)

    @property
    def host_layers(self) -> int:
        """How many layers, the first ones, the CPU computes beside a GPU; 0 where one device computes all."""
        there = self.plan.choice.gpu_layers
        return 0 if there is None else self.plan.shape.model.num_layers - there

    @property
    def hidden(self) -> bool:
        """Whether passes return hidden states."""
        return self.plan.request.returns_hidden(self.plan.choice)

    @property
    def drafter_folder(self) -> Path | None:
        """Folder of the trained drafter that is loaded; None if none is."""
        found = self.plan.request.drafter
        return Path(found.path) if self.plan.choice.drafter and found is not None else None

    @property
    def draft_model(self) -> DraftModelShape | None:
        """The second model that is loaded; None if none is."""
        return self.plan.request.draft_model if self.plan.choice.drafter else None

    @property
    def drafts_itself(self) -> bool:
        """Whether the model can draft with the upper halves of its own weights."""
        return drafts_itself(self.plan.shape, self.plan.choice)

    @property
    def drafts_ahead(self) -> bool:
        """Whether a block of the package that predicts further ahead drafts; it computes on the CPU."""
        return drafts_ahead(self.plan.shape, self.plan.choice)

    @property
    def device_pass_bytes(self) -> int:
        """Bytes on a GPU that passes of all sessions share."""
        from edge_rt.memory.gpu_terms import gpu_pass_memory

        return gpu_pass_memory(self.plan.shape, self.plan.choice)

    @property
    def pass_memory(self) -> PassMemory:
        """Memory for the intermediate values of passes."""
        planned = pass_memory_bytes(self.plan.shape, self.plan.choice)
        # ONNX Runtime allocates packed weights in the same arena whatever its limit, and afterwards keeps no limit. For
        # such packages only the size of a pass bounds the memory.
        return PassMemory(planned, is_limit=self.is_strict and self.plan.shape.op_profile == "native")

    @property
    def totals(self) -> tuple[int, int | None]:
        """Planned bytes, including those taken for long texts since, and the bytes of the budget (None without one)."""
        more = 0 if self.encoding_budget is None else self.encoding_budget.taken_bytes
        return self.plan.total_bytes + more, self.budget_bytes

    def over_budget(self, peak: Callable[[], int]) -> str | None:
        """Return what is said of a process with a GPU's driver whose peak is above its budget; None: it is not.

        Args:
            peak: returns its bytes; it reads a file, and is asked only where there is a GPU and a budget.
        """
        gpu, budget = self.plan.device.gpu, self.budget_bytes
        if gpu is None or budget is None or (peak_bytes := peak()) <= budget:
            return None
        return (
            f"the process has taken {show_share(peak_bytes, budget)}: the driver of {gpu.name} lives in it, and takes "
            "memory that edge-rt can only estimate; what a GPU computes is not held to --memory."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object: bytes of all and of every term, budgets, and what was given up."""
        plan = self.plan
        return {
            "planned_bytes": plan.total_bytes,
            "budget_bytes": self.budget_bytes,
            "available_bytes": plan.budget_bytes,
            "minimum_bytes": plan.minimum_bytes,
            "terms": {term.name: term.bytes for term in plan.terms},
            "device_bytes": plan.device_bytes,
            "device_budget_bytes": plan.device_budget_bytes,
            "device_terms": {term.name: term.device_bytes for term in plan.terms if term.device_bytes},
            "given_up": list(plan.given_up),
        }

    def release(self, *, kept_gpu_bytes: int | None = None) -> None:
        """Return the share to the budget; does nothing the second time.

        Args:
            kept_gpu_bytes: what GPUs keep of the process; None: what the plan counts for them.
        """
        if self.claim is not None:
            self.claim.release(kept_gpu_bytes=kept_gpu_bytes)


def claim(plan: Plan, options: LoadOptions) -> LoadPlan:
    """Return what a load carries out, with its share of the budget taken.

    Raises:
        MemoryBudgetExceeded: the model does not fit; the error states what is needed, what is available, and a setting
            that fits.
        ConfigError: as ``require_rows_here``.
    """
    require_rows_here(plan, options)
    budget = options.budget
    require_fit(plan, _spelling(plan, budget, options.spell), () if budget is None else budget.claims)
    total = plan.request.budget_bytes if budget is None else budget.total_bytes
    is_strict = total is not None or plan.request.device_budget_bytes is not None or bool(plan.reduced)
    if budget is None and is_strict:
        budget = Budget(plan.budget_bytes)
    draft_max = plan.choice.draft_max or plan.request.draft_max or options.draft_max or DEFAULT_DRAFT
    if budget is None:
        return LoadPlan(plan, total, is_strict, None, None, draft_max)
    # What this plan counts of the process beyond what the budget's first claim has counted is claimed as well.
    base, of_gpus = budget.base_bytes or plan.base_bytes, plan.sizes.driver + plan.sizes.unified_context
    own = plan.total_bytes - base - of_gpus
    share = budget.claim(plan.shape.name, own, base_bytes=base, gpu_bytes=of_gpus)
    encoding_budget = EncodingBudget(plan, budget, share, is_given=total is not None)
    return LoadPlan(plan, total, is_strict, share, encoding_budget, draft_max)


def _spelling(
    plan: Plan, budget: Budget | None, spell: Callable[[tuple[str, ...]], str] | None
) -> Callable[[tuple[str, ...]], str]:
    """Return a function that formats a setting that fits for whoever loads, in a budget that holds others as well."""
    if budget is None:
        return spell or as_arguments
    beside = budget.total_bytes - plan.budget_bytes
    if spell is None:
        return partial(as_arguments, budget=plan.budget_bytes, shared_bytes=beside)
    return lambda flags: spell(with_more_memory(flags, beside + DRIFT if beside else 0))


def require_carried_out(plan: Plan, package: Package, options: LoadOptions) -> Plan:
    """Return a plan that was made earlier if it is for this package, and for the device of the options."""
    if plan.shape.package_id != package.id:
        raise ConfigError(
            "The plan was made for another package.",
            f"It is for {plan.shape.name} ({str(plan.shape.package_id)[:12]}), this is {package.id[:12]}.",
            "Make one with edge_rt.plan for the package that is to be loaded.",
        )
    choice, asked = plan.device_choice, options.device_name
    is_any = asked.kind == AUTO_DEVICE or (
        asked.index is None and choice is not None and choice.device.kind == asked.kind
    )
    if choice is None or is_any or asked == choice.device:
        return plan
    raise ConfigError(
        "The plan was made for another device.",
        f"It is for {choice.device}, and the model is to be loaded on {asked}.",
        "Give edge_rt.plan the same device.",
    )
