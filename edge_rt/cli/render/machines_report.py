"""How many models run on which machines, as displayed text, and as a JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edge_rt.cli.render.console import Terminal
from edge_rt.system.byte_size import counted, exact_size, show_size

if TYPE_CHECKING:
    from edge_rt.cli.machines import MachinesShare, Sizing

_BASES = {
    "measured": "measured here",
    "derived": "from other models here",
    "bandwidth": "bandwidth of {}, measured",
    "figures": "figures of {}",
}


def machines_json(sizing: Sizing) -> dict[str, Any]:
    """Return it as a JSON object, but for remarks."""
    plan = sizing.plan
    return {
        "model": plan.shape.model.name,
        "fits": sizing.models > 0,
        "models": sizing.models,
        "tokens_per_second": sizing.tokens_per_second,
        "num_cpus": sizing.cpus,
        "memory_bytes": sizing.memory_bytes,
        "slots": plan.choice.slots,
        "ctx": plan.choice.ctx,
        "kv_format": plan.choice.kv_format,
        "kv_rows": plan.choice.kv_rows,
        "given_up": list(plan.given_up),
        "machines": [
            {
                "name": one.machines.name,
                "count": one.machines.count,
                "memory_bytes": one.machines.memory_bytes,
                "cpus": one.machines.cpus,
                "models": one.models,
                "tokens_per_second": one.models * one.speed.tokens_per_second,
                "speed_basis": one.speed.basis,
                "speed_threads": one.threads,
            }
            for one in sizing.shares
        ],
    }


def machines_notes(sizing: Sizing) -> list[str]:
    """Return what has to be said of the estimates, and of machines that have no model."""
    return list(_notes(sizing))


def _notes(sizing: Sizing) -> Iterator[str]:
    plan = sizing.plan
    if not sizing.models:
        yield (
            f"It fits none of the machines: a model needs at least {show_size(plan.minimum.host)} with a context of "
            f"{plan.choice.ctx} tokens."
        )
        return
    local = [one for one in sizing.shares if one.machines.device is None]
    if local:
        from edge_rt.system.machine import cpu_model

        known = {
            "measured": "measured with this model",
            "derived": "derived from other models that ran",
            "bandwidth": "by the bandwidth that was measured",
            "figures": "by the figures of this machine, as nothing was measured",
        }[local[0].speed.basis]
        threads = counted(local[0].threads, "thread")
        yield (
            f"Speeds are {known} on this machine ({cpu_model()}, {threads}): other machines are faster or slower. "
            "'edge-rt plan' there tells theirs; a device in the file takes its figures."
        )
    if any(one.models and one.threads > sizing.cpus for one in sizing.shares):
        yield "With fewer threads than were measured a model counts as slower in proportion."
    if any(one.models and one.threads < sizing.cpus for one in sizing.shares):
        yield "More threads than were measured count as no faster."
    if any(one.models > 1 for one in local):
        yield "Several models on a machine count as if each had the memory bandwidth that was measured with one."
    none = [one.machines for one in sizing.shares if not one.models]
    if none:
        short = [one for one in none if one.memory_bytes < sizing.memory_bytes]
        names = ", ".join(one.name for one in none)
        why = f"; with --memory {exact_size(min(one.memory_bytes for one in short))} one might" if short else ""
        yield f"No model of this size runs on {names}{why}."


def print_machines(terminal: Terminal, sizing: Sizing, notes: Sequence[str]) -> None:
    """Write it for people."""
    plan, choice = sizing.plan, sizing.plan.choice
    if sizing.models:
        size = f"{counted(sizing.cpus, 'CPU')} and {show_size(sizing.memory_bytes)}"
        answers = f"{counted(choice.slots, 'answer')} at once, context {choice.ctx}, cache {choice.kv_format}"
        terminal.line(f"{plan.shape.name}: {counted(sizing.models, 'model')} of {size}, {answers}\n")
    rows = [("MACHINE", "COUNT", "CPUS", "MEMORY", "MODELS", "TOK/S", "SPEED")]
    rows += [_row(one) for one in sizing.shares]
    rows.append(("all", "", "", "", str(sizing.models), f"{sizing.tokens_per_second:.0f}", ""))
    terminal.table(rows, right=(1, 2, 3, 4, 5))
    if sizing.models:
        terminal.line(
            f"\nnum_cpus={sizing.cpus}, memory={sizing.memory_bytes}, ActorPoolStrategy(size={sizing.models})"
        )
    terminal.note()
    if sizing.models:
        meaning = "plain decoding at a depth of 512 tokens; prompts come on top"
        terminal.note(f"MODELS: on each. TOK/S: of COUNT machines, {meaning}.", "dim")
        for text in plan.given_up:
            terminal.note(f"reduced to fit: {text}", "dim")
    for text in notes:
        terminal.note(text, "dim")


def _row(share: MachinesShare) -> tuple[str, str, str, str, str, str, str]:
    machines = share.machines
    name = "this machine" if machines.device is None else machines.device.name
    return (
        machines.name,
        str(machines.count),
        str(machines.cpus),
        show_size(machines.memory_bytes),
        str(share.models),
        f"{share.tokens_per_second:.0f}" if share.models else "-",
        _BASES[share.speed.basis].format(name),
    )
