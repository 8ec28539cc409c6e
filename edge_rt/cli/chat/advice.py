"""Advice in a chat when memory is short: commands that can be typed there, not command-line flags."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from edge_rt.cli.render.console import number
from edge_rt.errors import (
    ConfigError,
    EncodingBudgetExceeded,
    InvalidDrafter,
    MemoryBudgetExceeded,
    ReferenceBudgetExceeded,
)
from edge_rt.system.byte_size import counted, parse_size, show_share, show_size

if TYPE_CHECKING:
    from edge_rt.memory.plan_terms import Term
    from edge_rt.runtime.load.options import LoadOptions


WAYS: Final = (
    "Change the context with /ctx N; for another budget, cache or drafter leave with /exit and start again with "
    "--memory, --device-memory, --kv-type or --spec."
)

LEAVE: Final = "/exit and "
"""Written before a command line."""


def setting_in_chat(setting: tuple[str, ...], reference: str, load: LoadOptions, *, is_same_model: bool) -> str:
    """Return how to get a setting that fits from within a chat.

    Args:
        reference: the model argument of the load that does not fit.
        load: its options, with a budget in bytes if there is one.

    Returns:
        A slash command if only the context differs; else the instruction to leave and the command line to start again.
    """
    given = dict(zip(setting[::2], setting[1::2], strict=True))
    kept = {
        "--kv-type": load.kv,
        "--spec": load.spec,
        "--draft-max": None if load.draft_max is None else str(load.draft_max),
        "--corpus": None if load.corpus is None else str(load.corpus),
        "--drafter": None if load.drafter is None else str(load.drafter),
    }
    # That of the configuration file is left out where the CPU computes.
    usual = load.usual_device_memory if "--device-memory" in given else None
    budgets = {"--memory": load.memory, "--device-memory": usual if load.device_memory is None else load.device_memory}
    other = {name: given.get(name) for name in kept} != kept or any(
        (parse_size(given[name]) if name in given else None) != budget for name, budget in budgets.items()
    )
    if is_same_model and not other and "--ctx" in given:
        return f"/ctx {given['--ctx']}"
    return f"{LEAVE}{shlex.join(['edge-rt', 'chat', '-m', reference, *setting])}"


@contextmanager
def in_words_of_a_chat() -> Generator[None]:
    """Rewrite the advice of memory errors, so that it names what can be done in a chat."""
    try:
        yield
    except EncodingBudgetExceeded as error:
        # Another context would not fit a longer text.
        way = "leave with /exit, free memory and start again"
        if error.enough is not None:
            way = f"leave with /exit and start again with --memory {error.enough}"
        raise EncodingBudgetExceeded(error.stretch_bytes, error.room_bytes, error.enough, way=way) from error
    except ReferenceBudgetExceeded as error:
        way = (
            "Give a shorter text, do without one (/set reference none), or leave with /exit and start again with a "
            "larger --memory."
        )
        raise ReferenceBudgetExceeded(
            error.reference_tokens, error.room_tokens, is_estimate=error.is_estimate, way=way
        ) from error
    except MemoryBudgetExceeded as error:
        raise MemoryBudgetExceeded(error.what, error.numbers, WAYS) from error


@contextmanager
def flags_of_a_chat(reference: str) -> Generator[None]:
    """Explain, if flags do not work with another model, that they are the chat's flags, and how to change them."""
    try:
        yield
    except (ConfigError, InvalidDrafter) as error:
        start = f"Leave with /exit and start again with other flags: edge-rt chat -m {shlex.quote(reference)}"
        raise ConfigError(error.what, error.numbers, start) from error


def planned_text(memory: Mapping[str, Any], *, with_budget: bool = True) -> str:
    """Return what is planned: ``"231.0 of 400.0 MiB"``, ``"231.0 MiB and 523.0 MiB of the GPU"``."""
    text = show_share(memory["planned_bytes"], memory["budget_bytes"] if with_budget else None)
    if not memory["device_bytes"] or memory["device_budget_bytes"] is None:
        return text
    return f"{text} and {show_size(memory['device_bytes'])} of the GPU"


def shared_text(memory: Mapping[str, Any]) -> str:
    """Return what is said behind a plan for a GPU that shares the machine's memory; empty for others."""
    is_shared = memory["device_bytes"] and memory["device_budget_bytes"] is None
    return ", for the process and the GPU together" if is_shared else ""


def info_rows(facts: Mapping[str, Any], device: str, spec: str) -> dict[str, str]:
    """Return the facts of a loaded model, as ``/show info`` shows them; what there is not is left out."""
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


def held_rows(tokens: int, held: tuple[int, int], facts: Mapping[str, Any], waiting: str) -> dict[str, str]:
    """Return rows that say how long a conversation is, and what the cache holds.

    Args:
        tokens: of the conversation as the next message sends it; a text that was cut at the context's end takes more
            than the context if it ends with the template's words.
        held: rows of the cache that hold tokens, and their bytes.
        waiting: texts for the next message.
    """
    rows, size = held
    room = facts["context_tokens"]
    of_context = f"{number(tokens)} of {number(room)} tokens"
    if tokens > room:
        of_context = f"{number(tokens)} tokens to send, more than the context of {number(room)}"
    whole = show_size(room * facts["kv_bytes_per_token"])
    return {
        "conversation": of_context,
        **({"for the next message": waiting} if waiting else {}),
        "cache": f"{show_size(size)} of {whole}, {counted(rows, 'row', number(rows))} held",
    }


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
