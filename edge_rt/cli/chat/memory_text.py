"""What a chat says of the memory of its model, and of a GPU's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edge_rt.byte_size import show_rounded, show_share

if TYPE_CHECKING:
    from edge_rt.memory.plan_terms import Term


def planned_text(memory: Mapping[str, Any], *, with_budget: bool = True) -> str:
    """Return what is planned: ``"231 MiB of 400"``, ``"231 MiB and 523 MiB of the GPU"``.

    Args:
        memory: ``"memory"`` of ``Model.describe``.
        with_budget: whether the budgets are named, where some were given.
    """
    text = show_share(memory["planned_bytes"], memory["budget_bytes"] if with_budget else None)
    if not memory["device_bytes"]:
        return text
    if memory["device_budget_bytes"] is None:
        return f"{text}, shared with the GPU"
    return f"{text} and {show_rounded(memory['device_bytes'])} of the GPU"


def on_gpu(memory: Mapping[str, Any]) -> dict[str, str]:
    """Return a row that says what is planned on a GPU; none where the CPU computes."""
    held = memory["device_bytes"]
    return {"planned on the GPU": show_share(held, memory["device_budget_bytes"])} if held else {}


def term_size(term: Term) -> str:
    """Return the size of a part of the plan, in the process and on a GPU."""
    if not term.device_bytes:
        return show_rounded(term.bytes)
    on_device = f"{show_rounded(term.device_bytes)} on the GPU"
    return f"{show_rounded(term.bytes)} + {on_device}" if term.bytes else on_device
