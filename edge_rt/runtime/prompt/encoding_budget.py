"""Memory for text that has to be encoded at once: first the plan's reserve, then the rest of its budget."""

from __future__ import annotations

from dataclasses import replace

from edge_rt.byte_size import exact_size, round_up
from edge_rt.errors import EncodingBudgetExceeded
from edge_rt.memory.budget import Budget, Claim
from edge_rt.memory.plan import Plan, make_plan
from edge_rt.memory.terms import encodable_bytes, long_stretch_bytes, longest_stretch

_STEPS = 50  # a budget that is large enough is searched in steps of one fiftieth
_DRIFT = 1 << 20  # the memory of a process before a load varies a little between starts


class EncodingBudget:
    """Memory for text that has to be encoded at once, in the memory plan of a model.

    Memory beyond the plan is claimed from the budget and kept until the model is closed, as the heap may keep it as
    well.

    Args:
        plan: the plan.
        budget: the budget that the model's share is taken from.
        claim: that share.
        is_given: whether the user gave a budget, and so could give a larger one; otherwise it is the machine's memory.

    Attributes:
        planned_bytes: UTF-8 bytes of text that the plan itself has room for.
    """

    def __init__(self, plan: Plan, budget: Budget, claim: Claim, *, is_given: bool) -> None:
        self._plan = plan
        self._budget = budget
        self._claim = claim
        self._claimed = claim.bytes
        self._is_given = is_given
        self.planned_bytes = longest_stretch(plan.choice.ctx)

    @property
    def taken_bytes(self) -> int:
        """Bytes of memory taken beyond the plan."""
        return self._claim.bytes - self._claimed

    def require(self, stretch_bytes: int) -> None:
        """Claim the memory for encoding this many bytes of text at once, if it is not held yet.

        Raises:
            EncodingBudgetExceeded: the budget does not have it; nothing is claimed.
        """
        shape, ctx = self._plan.shape, self._plan.choice.ctx
        more = long_stretch_bytes(shape, ctx, stretch_bytes)
        missing = self._claim.extend(self._claimed + more) if more else 0
        if missing:
            room = encodable_bytes(shape, ctx, more - missing)
            raise EncodingBudgetExceeded(stretch_bytes, room, self._enough(stretch_bytes, missing))

    def _enough(self, stretch_bytes: int, missing: int) -> str | None:
        """Return a budget in which a plan leaves enough memory; None if no budget was given."""
        plan = self._plan
        if not self._is_given:
            return None
        budget = plan.budget_bytes
        while True:
            # With a larger budget the plan takes more as well: what it had given up comes first.
            larger = make_plan(plan.shape, plan.device, replace(plan.request, budget_bytes=budget))
            needed = larger.total_bytes + long_stretch_bytes(plan.shape, larger.choice.ctx, stretch_bytes)
            if needed <= budget:
                break
            budget = max(needed, budget + budget // _STEPS)
        # What other models hold of the budget is added.
        total = max(self._budget.total_bytes + budget - plan.budget_bytes, self._budget.total_bytes + missing)
        return exact_size(round_up(total + _DRIFT))
