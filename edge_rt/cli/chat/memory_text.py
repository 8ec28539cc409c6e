"""What a chat says of its model, of the model's memory, and of a GPU's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edge_rt.byte_size import counted, show_share, show_size
from edge_rt.cli.render.console import number

if TYPE_CHECKING:
    from edge_rt.memory.plan_terms import Term


def planned_text(memory: Mapping[str, Any], *, with_budget: bool = True) -> str:
    """Return what is planned: ``"231.0 of 400.0 MiB"``, ``"231.0 MiB and 523.0 MiB of the GPU"``.

    Args:
        memory: ``"memory"`` of ``Model.describe``.
        with_budget: whether the budgets are named, where some were given.
    """
    text = show_share(memory["planned_bytes"], memory["budget_bytes"] if with_budget else None)
    if not memory["device_bytes"]:
        return text
    if memory["device_budget_bytes"] is None:
        return f"{text}, shared with the GPU"
    return f"{text} and {show_size(memory['device_bytes'])} of the GPU"


def info_rows(facts: Mapping[str, Any], device: str, spec: str) -> dict[str, str]:
    """Return the facts of a loaded model, as ``/show info`` shows them; what there is not is left out.

    Args:
        facts: ``Model.describe``.
        device: what computes, for people.
        spec: the drafter in use.
    """
    sampling = ", ".join(f"{name} {value:g}" for name, value in facts["sampling"].items())
    rows = {
        "model": facts["model"],
        "package": facts["package"],
        "architecture": f"{facts['architecture']}, {facts['parameters'] / 1e6:.0f} M parameters",
        "weights": f"{', '.join(f'{name} {kind}' for name, kind in facts['quantisation'].items())}; "
        f"{show_size(facts['weights_bytes'])}",
        "activations": facts["activations"],
        "context": f"{number(facts['context_tokens'])} tokens",
        "rotation": facts["rotation"],
        "cache": f"{facts['kv_format']}, {number(facts['kv_bytes_per_token'])} bytes a token",
        "speculation": spec,
        "drafter": facts["drafter"] or facts["draft_model"],
        "sampling": sampling,
        "device": f"{device}, {counted(facts['threads'], 'thread')}",
        "device chosen": facts["device_note"],
        "nodes on the CPU": ", ".join(facts["cpu_nodes"]),
        "op profile": facts["op_profile"] + (f", {facts['isa']}" if facts["isa"] else ""),
        "ONNX Runtime": facts["onnxruntime"],
        "loaded in": f"{facts['load_ms'] / 1e3:.2f} s",
    }
    return {name: str(value) for name, value in rows.items() if value}


def used_text() -> str:
    """Return what this process holds now: ``"213.4 MiB used now"``."""
    from edge_rt.system.process_memory import read_memory

    return f"{show_size(read_memory().resident_bytes)} used now"


def on_gpu(memory: Mapping[str, Any]) -> dict[str, str]:
    """Return a row that says what is planned on a GPU; none where the CPU computes."""
    held = memory["device_bytes"]
    return {"planned on the GPU": show_share(held, memory["device_budget_bytes"])} if held else {}


def term_size(term: Term) -> str:
    """Return the size of a part of the plan, in the process and on a GPU."""
    if not term.device_bytes:
        return show_size(term.bytes)
    on_device = f"{show_size(term.device_bytes)} on the GPU"
    return f"{show_size(term.bytes)} + {on_device}" if term.bytes else on_device
