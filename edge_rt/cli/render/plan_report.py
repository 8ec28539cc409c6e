"""A plan as displayed text, and as a JSON object."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.inspect_report import kv_text
from edge_rt.memory.speed import UNCERTAINTY
from edge_rt.package.decoder import sizes
from edge_rt.system.byte_size import counted, show_at_least, show_size

if TYPE_CHECKING:
    from edge_rt.cli.plan_speed import Rate, Speeds
    from edge_rt.memory.figures import Amounts, Device
    from edge_rt.memory.plan import Plan


def plan_json(made: Plan, speeds: Speeds) -> dict[str, Any]:
    """Return a plan as a JSON object."""
    rate = speeds.rate(made.choice)
    return {
        "fits": made.fits,
        "budget_bytes": made.budget_bytes,
        "total_bytes": made.total_bytes,
        "minimum_bytes": made.minimum_bytes,
        "speculation_bytes": made.speculation_bytes,
        "device_total_bytes": made.device_bytes,
        "device_budget_bytes": made.device_budget_bytes,
        "device_minimum_bytes": made.minimum.gpu if made.device.has_own_gpu_memory else None,
        "device_terms": {term.name: term.device_bytes for term in made.terms if term.device_bytes},
        "terms": {term.name: term.bytes for term in made.terms},
        "term_texts": {term.name: term.text for term in made.terms},
        "file_bytes": sum(term.bytes for term in made.terms if term.kind == "file"),
        "regimes": {**asdict(made.regimes), "largest": made.regimes.largest},
        "choice": asdict(made.choice),
        "experts": _experts(made),
        "drafter": _drafter(made),
        "tokens_per_second": rate.tokens_per_second,
        "plain_tokens_per_second": rate.plain,
        "speed_is_measured": rate.is_measured,
        "speed_uncertainty": UNCERTAINTY if made.device.gpu is None or rate.is_measured or rate.is_derived else None,
        "given_up": list(made.given_up),
        "alternatives": [
            {
                "flags": list(other.flags),
                "total_bytes": other.total_bytes,
                "device_bytes": other.device_bytes,
                "tokens_per_second": speeds.rate(other.choice).tokens_per_second,
                "choice": asdict(other.choice),
            }
            for other in made.alternatives
        ],
        "model": made.shape.model.name,
        "is_estimate": made.shape.is_estimate,
        "shape": _shape(made),
        "device": _device(made.device),
    }


def _experts(made: Plan) -> dict[str, Any] | None:
    """Return where experts are, and what is read of them; None: there are none, or they cannot be read."""
    sizes, cache_bytes = made.shape.experts, made.choice.expert_bytes
    if sizes is None:
        return None
    return {
        "stored_bytes": sizes.stored_bytes,
        "least_bytes": sizes.least_bytes,
        "cache_bytes": cache_bytes,
        "hit_share": 1.0 if cache_bytes is None else sizes.hit_share(cache_bytes),
        "read_bytes_per_token": 0.0 if cache_bytes is None else sizes.missed_bytes(cache_bytes),
        "read_bandwidth": None if cache_bytes is None else made.device.read_bandwidth,
    }


def _device(device: Device) -> dict[str, Any]:
    """Return a machine as a JSON object."""
    figures = asdict(device)
    if device.gpu is not None and device.gpu.device_name is not None:
        figures["gpu"]["device_name"] = str(device.gpu.device_name)
    return figures


def _shape(made: Plan) -> dict[str, Any]:
    """Return the numbers of the model and of its package."""
    shape = made.shape
    numbers = {name: value for name, value in asdict(shape).items() if name not in ("model", "called")}
    names = ("window_layers", "recurrent_layers", "rotation_bytes", "loaded_rope_bytes", "short_context")
    derived = {name: getattr(shape, name) for name in names}
    return {**sizes(shape.model), **derived, **numbers}


def print_plan(
    terminal: Terminal,
    made: Plan,
    speeds: Speeds,
    notes: tuple[str, ...],
    *,
    verb: list[str],
    named: list[str],
    is_here: bool,
) -> None:
    """Write a plan for people.

    Args:
        verb: the command to which the flags of other settings are appended.
        named: flags that name the device; empty for this machine's CPU.
    """
    choice = made.choice
    for note in notes:
        terminal.warn(note)
    estimated = ", estimated" if made.shape.is_estimate and notes else ""
    terminal.line(f"{made.shape.name} on {made.device.name} ({made.shape.op_profile}{estimated})\n")
    if not is_here:
        terminal.line("Planned, not measured: figures of a description of the machine.\n")
    terminal.table(made.rows(), right=(1, 2))
    terminal.line()
    terminal.table(_decided(made, speeds.rate(choice), is_here=is_here))
    if made.given_up:
        terminal.line("\nReduced to fit the budget")
    for text in made.given_up:
        terminal.indented(text, 2)
    terminal.line("\nOther settings that fit" if made.fits else "\nWhat fits")
    for other in made.alternatives:
        terminal.line(f"  {shlex.join([*verb, *other.flags, *named])}")
        on_gpu = f" and {show_size(other.device_bytes)} on the GPU" if other.device_bytes else ""
        expected = _rate(made, speeds.rate(other.choice), is_here=is_here)
        needs = f"needs {show_size(other.total_bytes)}{on_gpu}, {expected}: {other.choice.in_words()}"
        terminal.indented(needs, 4)
    usual = made.shape.kv_formats[0]
    less = LESS_EXACT[LESS_EXACT.index(usual) + 1 :] if usual in LESS_EXACT else LESS_EXACT
    if any(one.kv_format in less for one in (choice, *(other.choice for other in made.alternatives))):
        *others, least = less
        names, most = (f"{', '.join(others)} or {least}", f", {least} the most") if others else (least, "")
        terminal.line()
        terminal.indented(f"A cache in {names} is slightly less exact than {usual}{most}.")
    if not made.fits:
        terminal.note(f"It does not fit: {_missing(made)} are missing for context {choice.ctx}.", "red")
    for text in budget_warnings(made, is_here=is_here).values():
        terminal.warn(text)


def budget_warnings(made: Plan, *, is_here: bool) -> dict[str, str]:
    """Return remarks on budgets that are more than there is: with such a budget a plan may fit, and a load may not.

    Args:
        is_here: whether it is for a device of this machine, of which is known what is free now.

    Returns:
        Name of the flag that gives the budget -> a sentence.
    """
    found, device = dict[str, str](), made.device
    limit = device.available_bytes if is_here else device.total_bytes
    if made.budget_bytes > limit:
        has = "this machine has available now" if is_here else f"{device.name} has"
        found["--memory"] = f"The budget is more than {has}, {show_size(limit)}."
    gpu = device.gpu
    if gpu is None or gpu.is_unified:
        return found
    limit = gpu.available_bytes if is_here else gpu.total_bytes
    if made.budget.gpu > limit:
        has = f"{show_size(limit)} of {show_size(gpu.total_bytes)}" if is_here else show_size(limit)
        when = " free now" if is_here else ""
        found["--device-memory"] = f"The budget of device memory is more than {gpu.name} has{when}, {has}."
    return found


def layers_text(made: Plan) -> str | None:
    """Return a sentence on a plan that divides the layers between the CPU and a GPU; None where one computes all."""
    there, gpu = made.choice.gpu_layers, made.device.gpu
    if there is None or gpu is None or not made.fits:
        return None
    which = "the last layer" if there == 1 else f"the last {there} layers"
    return f"{gpu.name} has memory for {which} of {made.shape.model.num_layers}; the CPU computes the others."


LESS_EXACT: Final = ("int8", "int4x2", "k8v4", "int4")
"""Cache formats that are less precise than f16, the most precise first."""


def _missing(made: Plan) -> str:
    needs, budget = made.needs, made.budget
    parts = [show_size(needs.host - budget.host)] * (needs.host > budget.host)
    parts += [f"{show_size(needs.on_gpu - budget.on_gpu)} on the GPU"] * needs.exceeds_gpu(budget)
    return " and ".join(parts)


def _decided(made: Plan, rate: Rate, *, is_here: bool) -> list[tuple[str, str]]:
    choice = made.choice
    drafting = "off"
    if choice.draft_max:
        tables = [f"{choice.suffix_tokens} tokens"] * bool(choice.suffix_tokens)
        tables += [f"{choice.recycling_contexts} contexts"] * bool(choice.recycling_contexts)
        drafting = f"{choice.spec}, drafts of up to {choice.draft_max}"
        drafting += f", tables of {' and '.join(tables)}" if tables else ""
        if (drafter := _drafter(made)) is not None:
            drafting += f", drafter {drafter}"
    speed = f"{_rate(made, rate, is_here=is_here)}, with {choice.ctx // 2} tokens in the context"
    if choice.draft_max and rate.plain is not None and choice.slots == 1:
        speed += f"; without speculation {rate.plain:.0f}"
    divided = "" if choice.gpu_layers is None else f", with {counted(choice.gpu_layers, 'layer')} there"
    rows = [
        ("context", f"{choice.ctx} of {made.shape.model.context_length} tokens"),
        *_rotation(made),
        *_layers(made),
        ("KV cache", _cache(made)),
        *_expert_rows(made),
        ("speculation", drafting),
        ("prefill chunk", f"{choice.prefill_chunk} tokens"),
        *_slots(made),
        ("expected", speed),
        ("smallest budget that works", _at_least(made, made.minimum) + divided),
    ]
    if made.speculation is not None:
        at = f"with context {choice.ctx} and {choice.kv_format} cache"
        rows.append(("speculation keeps 96 % from", f"{_at_least(made, made.speculation)} {at}"))
    return rows


def _cache(made: Plan) -> str:
    """Return the format of the cache, and why it is the default if it is."""
    shape, name = made.shape, made.choice.kv_format
    if name != shape.kv_formats[0]:
        return name
    if shape.is_estimate and len(shape.kv_formats) > 1:
        return f"{name}; an export measures whether int8 is the package's default"
    return kv_text(shape.kv_formats, shape.kv_losses)


def _at_least(made: Plan, amounts: Amounts) -> str:
    own = f", and {show_at_least(amounts.gpu)} of the GPU" if made.device.has_own_gpu_memory else ""
    return show_at_least(amounts.host) + own


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


def rotation_text(made: Plan) -> str | None:
    """Return what is to be said of a model that has rotations of their own for long contexts, and a plan for these."""
    short = made.shape.short_context
    if not short or made.choice.ctx <= short:
        return None
    return (
        f"with a context beyond {short} tokens this model rotates short texts like long ones, where transformers goes "
        f"by the length of the text: for short texts, --ctx {short} is better"
    )


def _expert_rows(made: Plan) -> list[tuple[str, str]]:
    sizes, cache_bytes = made.shape.experts, made.choice.expert_bytes
    if sizes is None:
        return []
    whole = show_size(sizes.stored_bytes)
    if cache_bytes is None:
        return [("experts", f"all in memory, {whole}")]
    missed, speed = show_size(int(sizes.missed_bytes(cache_bytes))), show_size(int(made.device.read_bandwidth))
    share = f"{100 * sizes.hit_share(cache_bytes):.0f} % of a token's are there"
    return [("experts", f"a cache of {show_size(cache_bytes)} for {whole}: {share}, {missed} read at {speed} a second")]


def _slots(made: Plan) -> list[tuple[str, str]]:
    wanted, slots = made.request.slots, made.choice.slots
    if wanted == 1:
        return []
    rows = f", which share {made.choice.kv_rows} rows of the cache" if slots > 1 else ""
    return [("slots", f"{counted(slots, 'answer')} at once{rows}")]


def _layers(made: Plan) -> list[tuple[str, str]]:
    there = made.choice.gpu_layers
    if there is None:
        return []
    which = "the last one" if there == 1 else f"the last {there}"
    return [("layers on the GPU", f"{which} of {made.shape.model.num_layers}; the CPU computes the others")]


def _rate(made: Plan, rate: Rate, *, is_here: bool) -> str:
    answers = f", {made.choice.slots} answers together" if made.choice.slots > 1 else ""
    gpu = made.device.gpu
    if rate.tokens_per_second is None:
        if made.choice.slots == 1:
            return "speed not measured, and not foretold of a program on the CPU"
        return f"speed of {made.choice.slots} answers together not measured"
    certain = "planned, not measured" if not is_here else "measured here" if rate.is_measured else ""
    if rate.is_derived:
        certain = "measured here with another cache"
    if gpu is None or rate.is_measured or rate.is_derived:
        certain = ", ".join((f"+-{100 * UNCERTAINTY:.0f} %", *[certain] * bool(certain)))
    digits = ".0f" if rate.tokens_per_second >= 1000 else ".3g"
    typical = "of a typical GPU, not measured" if made.choice.gpu_layers is None else "a guess, not measured"
    if gpu is not None and gpu.is_unified:
        typical = "a guess from how fast this machine reads its memory, not measured"
    return f"{rate.tokens_per_second:{digits}} tokens per second{answers} ({certain or typical})"
