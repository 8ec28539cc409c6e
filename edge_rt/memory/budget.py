"""A budget of memory that the models of one process share, and what a loaded model claims of it for long texts."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from edge_rt.errors import ConfigError, EncodingBudgetExceeded, MemoryBudgetExceeded
from edge_rt.memory.plan import Plan, make_plan
from edge_rt.memory.terms import encodable_bytes, format_bytes, long_stretch_bytes, longest_stretch
from edge_rt.system.byte_size import exact_size, parse_size, round_up, show_size


class Budget:
    """Memory budget that several models share, at the same time or one after another; thread-safe.

    The first claim sets the memory of the process itself, and later claims do not change it. When a model is closed,
    its freed heap stays with the process, and the next load reuses it. What GPUs take of the process stays as well, but
    not what a load counted for one that it did not come to use.

    Args:
        total_bytes: limit for all claims together; a number of bytes, or a text such as ``"600MiB"``.

    Raises:
        ConfigError: it is not a size.
    """

    def __init__(self, total_bytes: int | str) -> None:
        if isinstance(total_bytes, bool) or not isinstance(total_bytes, int | str):
            raise ConfigError(
                "The size of memory is neither a whole number nor a text.",
                f"Got {total_bytes!r:.40} ({type(total_bytes).__name__}).",
                'Give bytes as an int, or a text such as "1.5GiB".',
            )
        self.total_bytes = parse_size(total_bytes)
        self._lock = threading.Lock()
        self._claims: dict[int, Claim] = {}
        self._base_bytes = self._kept_gpu_bytes = 0

    def __repr__(self) -> str:
        return f"<edge_rt.Budget of {show_size(self.total_bytes)}, {show_size(self.free_bytes)} free>"

    def claim(self, name: str, num_bytes: int, *, base_bytes: int = 0, gpu_bytes: int = 0) -> Claim:
        """Reserve bytes of the budget until the claim is released.

        Args:
            name: name of the claim; a second claim of the same name is called ``"name (2)"``, and so on.
            num_bytes: bytes to reserve.
            base_bytes: memory of the process itself, which all claims share; the value of the first claim is kept.
            gpu_bytes: memory of the process for the driver of GPUs, and for the driver's part of a GPU that shares the
                machine's memory. All claims share it; the largest value counts.

        Raises:
            MemoryBudgetExceeded: the budget does not have that many bytes left; nothing is reserved.
        """
        with self._lock:
            base = self._base_bytes or base_bytes
            free = self._free_beside(base + max(self._gpu_bytes, gpu_bytes))
            if num_bytes > free:
                held = ", ".join(f"{claim.name} {show_size(claim.bytes)}" for claim in self._claims.values())
                raise MemoryBudgetExceeded(
                    f"{name} does not fit what is left of the memory budget.",
                    f"It needs {show_size(num_bytes)}, {show_size(free)} of {show_size(self.total_bytes)} are left"
                    + (f" ({held})." if held else "."),
                    "Close another model, ask for a smaller context, or give a larger budget.",
                )
            claim = Claim(self, self._unused(name), num_bytes, gpu_bytes)
            self._claims[id(claim)] = claim
            self._base_bytes = base
            return claim

    @property
    def free_bytes(self) -> int:
        """Bytes that are not claimed and not used by the process itself."""
        with self._lock:
            return self._free_beside(self._base_bytes + self._gpu_bytes)

    @property
    def base_bytes(self) -> int:
        """Bytes of the process itself, which the claims share; 0 before a claim has set them."""
        with self._lock:
            return self._base_bytes

    @property
    def gpu_bytes(self) -> int:
        """Bytes of the process for GPUs, which the claims share; see ``claim``."""
        with self._lock:
            return self._gpu_bytes

    @property
    def claims(self) -> tuple[tuple[str, int], ...]:
        """Name and bytes of every open claim, oldest first."""
        with self._lock:
            return tuple((claim.name, claim.bytes) for claim in self._claims.values())

    @property
    def _gpu_bytes(self) -> int:
        return max(self._kept_gpu_bytes, *(claim.gpu_bytes for claim in self._claims.values()), 0)

    def _free_beside(self, shared_bytes: int) -> int:
        return self.total_bytes - shared_bytes - sum(claim.bytes for claim in self._claims.values())

    def _extend(self, claim: Claim, num_bytes: int) -> int:
        with self._lock:
            missing = num_bytes - claim.bytes - self._free_beside(self._base_bytes + self._gpu_bytes)
            if missing <= 0:
                claim.bytes = max(claim.bytes, num_bytes)
            return max(0, missing)

    def _give_back(self, claim: Claim, kept_gpu_bytes: int) -> None:
        with self._lock:
            if self._claims.pop(id(claim), None) is not None:
                self._kept_gpu_bytes = max(self._kept_gpu_bytes, kept_gpu_bytes)

    def _unused(self, name: str) -> str:
        names = {claim.name for claim in self._claims.values()}
        result, number = name, 2
        while result in names:
            result, number = f"{name} ({number})", number + 1
        return result


class Claim:
    """Reserved bytes of a budget; made by ``Budget.claim``. Leaving a ``with`` block releases it.

    Attributes:
        bytes: reserved bytes; ``extend`` increases them.
        gpu_bytes: memory of the process for GPUs, which it shares with the other claims.
    """

    def __init__(self, budget: Budget, name: str, num_bytes: int, gpu_bytes: int) -> None:
        self.name = name
        self.bytes = num_bytes
        self.gpu_bytes = gpu_bytes
        self._budget = budget

    def extend(self, num_bytes: int) -> int:
        """Grow the claim to ``num_bytes`` in total, or leave it unchanged if the budget does not have them.

        Returns:
            Bytes that the budget lacks; 0 if the claim now holds ``num_bytes``.
        """
        return self._budget._extend(self, num_bytes)

    def release(self, *, kept_gpu_bytes: int | None = None) -> None:
        """Return the bytes to the budget; a second call does nothing.

        Args:
            kept_gpu_bytes: what GPUs keep of the process; None: what was claimed for them.
        """
        self._budget._give_back(self, self.gpu_bytes if kept_gpu_bytes is None else kept_gpu_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


_STEPS: Final = 50
"""A budget that is large enough is searched in steps of one fiftieth."""
DRIFT: Final = 1 << 20
"""The memory of a process before a load varies a little between starts."""


class EncodingBudget:
    """Memory for text that has to be encoded at once, in the memory plan of a model.

    Memory beyond the plan is claimed from the budget and kept until the model is closed, as the heap may keep it as
    well.

    Args:
        budget: the budget that the model's share is taken from.
        is_given: whether the user gave a budget, and so could give a larger one; otherwise it is the machine's memory.

    Attributes:
        planned_bytes: UTF-8 bytes of text that the plan itself has room for.
    """

    def __init__(self, plan: Plan, budget: Budget, claim: Claim, *, is_given: bool) -> None:
        self._plan = plan
        self._budget = budget
        self._claim = claim
        self._claimed = claim.bytes
        self._tables = 0
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
        missing = self._claim.extend(self._claimed + self._tables + more) if more else 0
        if missing:
            room = encodable_bytes(shape, ctx, more - missing)
            raise EncodingBudgetExceeded(stretch_bytes, room, self._enough(stretch_bytes, missing))

    def reserve_tables(self, vocab_size: int) -> None:
        """Claim memory for tables of grammars until the model is closed, if the plan has no room for them; but once.

        Raises:
            MemoryBudgetExceeded: the budget does not have it; nothing is claimed.
        """
        if self._tables:
            return
        wanted = 0 if self._plan.request.formats else format_bytes(vocab_size)
        if missing := self._claim.extend(self._claim.bytes + wanted):
            raise MemoryBudgetExceeded(
                "The tables for answers in a format do not fit the memory budget.",
                f"They take {show_size(wanted)}, {show_size(missing)} more than is left.",
                "Load the model with room for them (formats=True), or with a larger budget or a smaller context.",
            )
        self._tables = wanted

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
        return exact_size(round_up(total + DRIFT))
