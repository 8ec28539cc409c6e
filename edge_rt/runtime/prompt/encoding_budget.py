"""Memory for text that has to be encoded at once: what a plan reserves for it, then what its budget leaves over."""

from __future__ import annotations

from dataclasses import replace

from edge_rt.byte_size import exact_size, round_up
from edge_rt.errors import EncodingBudgetExceeded
from edge_rt.memory.budget import Budget, Claim
from edge_rt.memory.plan import Plan, make_plan
from edge_rt.memory.terms import encodable_bytes, long_stretch_bytes, longest_stretch

_STEPS = 50  # a budget that would do is looked for in steps of one fiftieth
_DRIFT = 1 << 20  # what a process holds before a load differs a little from start to start


class EncodingBudget:
    """Room for text that cannot be cut, in the memory plan of a model.

    What goes beyond the plan is claimed from the budget, and kept until the model is closed: the heap may keep it too.

    Args:
        plan: the plan.
        budget: what the model's share is taken from.
        claim: that share.
        is_given: whether a budget was given, which may then be a larger one; else it is what the machine has.

    Attributes:
        planned_bytes: UTF-8 bytes that the plan itself has room for.
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
        """Bytes of memory that were taken beyond the plan."""
        return self._claim.bytes - self._claimed

    def require(self, stretch_bytes: int) -> None:
        """Take the memory that encoding so many bytes of text at once needs, if it is not held yet.

        Raises:
            EncodingBudgetExceeded: the budget does not have it; nothing is taken.
        """
        shape, ctx = self._plan.shape, self._plan.choice.ctx
        more = long_stretch_bytes(shape, ctx, stretch_bytes)
        missing = self._claim.extend(self._claimed + more) if more else 0
        if missing:
            room = encodable_bytes(shape, ctx, more - missing)
            raise EncodingBudgetExceeded(stretch_bytes, room, self._enough(stretch_bytes, missing))

    def _enough(self, stretch_bytes: int, missing: int) -> str | None:
        """Return a budget under which a plan leaves enough; None where no budget was given."""
        plan = self._plan
        if not self._is_given:
            return None
        budget = plan.budget_bytes
        while True:
            # With more memory the plan takes more as well: what it gave up comes first.
            larger = make_plan(plan.shape, plan.device, replace(plan.request, budget_bytes=budget))
            needed = larger.total_bytes + long_stretch_bytes(plan.shape, larger.choice.ctx, stretch_bytes)
            if needed <= budget:
                break
            budget = max(needed, budget + budget // _STEPS)
        # What others hold of the budget comes on top.
        total = max(self._budget.total_bytes + budget - plan.budget_bytes, self._budget.total_bytes + missing)
        return exact_size(round_up(total + _DRIFT))
