"""A plan as displayed text, and as a JSON object."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from edge_rt.byte_size import show_at_least, show_mib
from edge_rt.cli.render.console import Terminal
from edge_rt.memory.speed import UNCERTAINTY

if TYPE_CHECKING:
    from edge_rt.cli.plan_speed import Rate, Speeds
    from edge_rt.memory.plan import Choice, Plan


def plan_json(made: Plan, speeds: Speeds) -> dict[str, Any]:
    """Return a plan as a JSON object."""
    rate = speeds.rate(made.choice)
    return {
        "fits": made.fits,
        "budget_bytes": made.budget_bytes,
        "total_bytes": made.total_bytes,
        "minimum_bytes": made.minimum_bytes,
        "speculation_bytes": made.speculation_bytes,
        "terms": {term.name: term.bytes for term in made.terms},
        "term_texts": {term.name: term.text for term in made.terms},
        "file_bytes": sum(term.bytes for term in made.terms if term.kind == "file"),
        "regimes": {**asdict(made.regimes), "largest": made.regimes.largest},
        "choice": asdict(made.choice),
        "drafter": _drafter(made),
        "tokens_per_second": rate.tokens_per_second,
        "plain_tokens_per_second": rate.plain,
        "speed_is_measured": rate.is_measured,
        "speed_uncertainty": UNCERTAINTY,
        "given_up": list(made.given_up),
        "alternatives": [
            {
                "flags": list(other.flags),
                "total_bytes": other.total_bytes,
                "tokens_per_second": speeds.rate(other.choice).tokens_per_second,
                "choice": asdict(other.choice),
            }
            for other in made.alternatives
        ],
        "model": made.shape.name,
        "is_estimate": made.shape.is_estimate,
        "shape": asdict(made.shape),
        "device": asdict(made.device),
    }


def print_plan(
    terminal: Terminal, made: Plan, speeds: Speeds, notes: tuple[str, ...], *, verb: list[str], elsewhere: list[str]
) -> None:
    """Write a plan for people.

    Args:
        terminal: receives the text.
        made: the plan.
        speeds: expected speeds of its choices.
        notes: remarks about the model.
        verb: the command to which the flags of other settings are appended.
        elsewhere: flags that name another machine; empty for this one.
    """
    choice, total = made.choice, made.total_bytes
    for note in notes:
        terminal.warn(note)
    estimated = ", estimated" if made.shape.is_estimate and notes else ""
    terminal.line(f"{made.shape.name} on {made.device.name} ({made.shape.op_profile}{estimated})\n")
    rows = [(term.name, show_mib(term.bytes), f"{100 * term.bytes / total:.1f} %", term.text) for term in made.terms]
    rows += [("total", show_mib(total), "", f"largest while {_REGIMES[made.regimes.largest]}")]
    rows += [("budget", show_mib(made.budget_bytes), "", _budget_text(made))]
    terminal.table(rows, right=(1, 2))
    terminal.line()
    terminal.table(_decided(made, speeds.rate(choice)))
    if made.given_up:
        terminal.line("\nReduced to fit the budget")
    for text in made.given_up:
        terminal.line(f"  {text}")
    terminal.line("\nOther settings that fit" if made.fits else "\nWhat fits")
    for other in made.alternatives:
        terminal.line(f"  {shlex.join([*verb, *other.flags, *elsewhere])}")
        needs = f"needs {show_mib(other.total_bytes)}, {_rate(speeds.rate(other.choice))}"
        terminal.line(f"    {needs}: {in_words(other.choice)}")
    if any(one.kv_format in LESS_EXACT for one in (choice, *(other.choice for other in made.alternatives))):
        names = f"{', '.join(LESS_EXACT[:-1])} or {LESS_EXACT[-1]}"
        terminal.line(f"\nA cache in {names} is slightly less exact than f16, {LESS_EXACT[-1]} the most.")
    if not made.fits:
        short = show_mib(total - made.budget_bytes)
        terminal.note(f"It does not fit: {short} are missing for context {choice.ctx}.", "red")
    if not elsewhere and made.budget_bytes > made.device.available_bytes:
        available = show_mib(made.device.available_bytes)
        terminal.warn(f"The budget is more than this machine has available now, {available}.")


LESS_EXACT: Final = ("int8", "int4x2", "k8v4", "int4")
"""Cache formats that are less precise than f16, the most precise first."""


def in_words(choice: Choice) -> str:
    """Return a choice as text, for example ``"int4 cache, no speculation, context 4096, chunk 64"``."""
    drafting = "no speculation"
    if choice.draft_max:
        drafting = f"speculation with drafts of {choice.draft_max} ({choice.spec})"
    return f"{choice.kv_format} cache, {drafting}, context {choice.ctx}, chunk {choice.prefill_chunk}"


_REGIMES: Final = {
    "load": "tokenizer and graph are read",
    "prefill": "a prompt fills the context",
    "decode": "the largest pass is computed in a full context",
}


def _decided(made: Plan, rate: Rate) -> list[tuple[str, str]]:
    choice = made.choice
    drafting = "off"
    if choice.draft_max:
        tables = [f"{choice.suffix_tokens} tokens"] * bool(choice.suffix_tokens)
        tables += [f"{choice.recycling_contexts} contexts"] * bool(choice.recycling_contexts)
        drafting = f"{choice.spec}, drafts of up to {choice.draft_max}"
        drafting += f", tables of {' and '.join(tables)}" if tables else ""
        if (drafter := _drafter(made)) is not None:
            drafting += f", drafter {drafter}"
    speed = f"{_rate(rate)}, with {choice.ctx // 2} tokens in the context"
    if choice.draft_max:
        speed += f"; without speculation {rate.plain:.0f}"
    rows = [
        ("context", f"{choice.ctx} of {made.shape.context_length} tokens"),
        *_rotation(made),
        ("KV cache", choice.kv_format),
        ("speculation", drafting),
        ("prefill chunk", f"{choice.prefill_chunk} tokens"),
        ("expected", speed),
        ("smallest budget that works", show_at_least(made.minimum_bytes)),
    ]
    if made.speculation_bytes is not None:
        at = f"with context {choice.ctx} and {choice.kv_format} cache"
        rows.append(("speculation keeps 96 % from", f"{show_at_least(made.speculation_bytes)} {at}"))
    return rows


def _drafter(made: Plan) -> str | None:
    """Return the name of the trained drafter that is loaded; None if none is."""
    found = made.request.drafter
    return found.name if made.choice.drafter and found is not None else None


def _rotation(made: Plan) -> list[tuple[str, str]]:
    short = made.shape.short_context
    if not short:
        return []
    side = "longer than" if made.choice.ctx > short else "of up to"
    return [("rotation", f"for contexts {side} {short} tokens")]


def _budget_text(made: Plan) -> str:
    what = "given" if made.request.budget_bytes is not None else "what is available"
    left = made.budget_bytes - made.total_bytes
    return f"{what}; {show_mib(left)} left" if left >= 0 else f"{what}; {show_mib(-left)} too little"


def _rate(rate: Rate) -> str:
    measured = ", measured here" if rate.is_measured else ""
    return f"{rate.tokens_per_second:.3g} tokens per second (+-{100 * UNCERTAINTY:.0f} %{measured})"
