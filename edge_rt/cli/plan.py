"""``edge-rt plan``: what a model takes of the memory, before anything is loaded."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from edge_rt.cli.command_memory import this_machine
from edge_rt.cli.console import Terminal
from edge_rt.cli.options import (
    ConfigOption,
    CtxOption,
    JsonOption,
    KvOption,
    MemoryOption,
    ModelFlags,
    ModelOption,
    NoColorOption,
    QuietOption,
    StoreOption,
    VerboseOption,
    make_terminal,
)
from edge_rt.cli.speculation import MODES, DraftMaxOption, SpecOption
from edge_rt.errors import ConfigError, MemoryBudgetExceeded, ModelNotFound

if TYPE_CHECKING:
    from edge_rt.memory.device import DeviceProfile
    from edge_rt.memory.plan import Plan
    from edge_rt.memory.shape import ModelShape

LIST: Final = "list"


def plan(
    model: ModelOption = None,
    memory: MemoryOption = None,
    ctx: CtxOption = None,
    kv_type: KvOption = None,
    spec: SpecOption = None,
    draft_max: DraftMaxOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Another machine than this one: a preset, or a saved profile; 'list' shows them.",
            show_default="this machine",
        ),
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_color: NoColorOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Say what a model takes of the memory, and what is fastest within a budget.

    The model is a package, a GGUF file, or a folder with config.json and safetensors: only headers are read. Exit code
    4 if it does not fit.
    """
    # First of all: what this process takes now is what every command takes.
    here = this_machine() if device in (None, "auto", "cpu") else None
    from edge_rt.memory.device import preset
    from edge_rt.memory.plan import Request, make_plan

    terminal = make_terminal(json=json, quiet=quiet, verbose=verbose, no_color=no_color)
    if device == LIST:
        _list_devices(terminal, as_json=json)
        return 0
    flags = ModelFlags(model, ctx, None, "auto", store, config, True, kv_type, memory=memory)
    if spec not in (None, *MODES):
        raise ConfigError(
            "The mode of speculation is unknown.", f"Got {spec!r:.40}.", f"Choose one of {', '.join(MODES)}."
        )
    if spec == "off" and draft_max is not None:
        raise ConfigError("--draft-max is given with --spec off.", "", "Leave one of them out.")
    profile = preset(str(device)) if here is None else here
    shape, notes = find_shape(flags)
    request = Request(budget_bytes=flags.budget_bytes, ctx=ctx, kv=kv_type, spec=spec, draft_max=draft_max)
    made = make_plan(shape, profile, request)
    if json:
        terminal.document({**plan_json(made), "notes": list(notes)})
    else:
        _print(terminal, made, notes, model=flags.reference, device=device)
    return 0 if made.fits else MemoryBudgetExceeded.exit_code


def find_shape(flags: ModelFlags) -> tuple[ModelShape, tuple[str, ...]]:
    """Return the numbers of the model that the flags mean, and what has to be said about them.

    Raises:
        ModelNotFound: it is not on this machine.
        EdgeRTError: it cannot be read, or its size cannot be told.
    """
    from edge_rt.memory.shape import shape_of
    from edge_rt.package import is_package, open_package

    path = Path(flags.reference).expanduser()
    if is_package(path):
        package = open_package(path)
        return shape_of(package.manifest, package.id), ()
    if path.is_dir():
        from edge_rt.export.foresee import is_checkpoint_folder

        if is_checkpoint_folder(path):
            return _foreseen(path)
    from edge_rt.store import resolve

    resolved = resolve(flags.reference, flags.open_store())
    if resolved.path is None:
        raise ModelNotFound(
            f"{flags.reference} is not on this machine.",
            f"edge-rt {resolved.description}.",
            f"Run: edge-rt pull {shlex.quote(flags.reference)}",
        )
    if resolved.kind == "package":
        package = open_package(resolved.path)
        return shape_of(package.manifest, package.id), ()
    return _foreseen(resolved.path)


def _foreseen(path: Path) -> tuple[ModelShape, tuple[str, ...]]:
    from edge_rt.export.foresee import foresee_folder, foresee_gguf
    from edge_rt.memory.shape import shape_of_config
    from edge_rt.package import KV_FORMATS

    found = foresee_folder(path) if path.is_dir() else foresee_gguf(path)
    shape = shape_of_config(
        found.config,
        op_profile=found.op_profile,
        weights_bytes=found.weights_bytes,
        tokenizer_bytes=found.tokenizer_bytes,
        kv_formats=KV_FORMATS[found.op_profile],
        embedding_bytes=found.embedding_bytes,
        window_layers=found.window_layers,
    )
    return shape, found.notes


def plan_json(made: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object."""
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
        "tokens_per_second": made.tokens_per_second,
        "plain_tokens_per_second": made.plain_tokens_per_second,
        "speed_is_measured": made.device.is_measured,
        "given_up": list(made.given_up),
        "alternatives": [
            {
                "flags": list(other.flags),
                "total_bytes": other.total_bytes,
                "tokens_per_second": other.tokens_per_second,
                "choice": asdict(other.choice),
            }
            for other in made.alternatives
        ],
        "model": made.shape.name,
        "is_estimate": made.shape.is_estimate,
        "shape": asdict(made.shape),
        "device": asdict(made.device),
    }


def _print(terminal: Terminal, made: Plan, notes: tuple[str, ...], *, model: str, device: str | None) -> None:
    from edge_rt.memory.size import show_size

    choice, total = made.choice, made.total_bytes
    for note in notes:
        terminal.warn(note)
    estimated = ", estimated" if made.shape.is_estimate and notes else ""
    terminal.line(f"{made.shape.name} on {made.device.name} ({made.shape.op_profile}{estimated})\n")
    rows = [(term.name, _mib(term.bytes), f"{100 * term.bytes / total:.1f} %", term.text) for term in made.terms]
    rows += [("total", _mib(total), "", f"largest while {_REGIMES[made.regimes.largest]}")]
    rows += [("budget", _mib(made.budget_bytes), "", _budget_text(made))]
    terminal.table(rows, right=(1, 2))
    terminal.line()
    terminal.table(_decided(made))
    if made.given_up:
        terminal.line("\ngiven up for the budget")
    for text in made.given_up:
        terminal.line(f"  {text}")
    terminal.line("\nother settings that fit" if made.fits else "\nwhat fits")
    verb = ["edge-rt", "generate", "-m", model]
    for other in made.alternatives:
        command = shlex.join([*verb, *other.flags])
        terminal.line(f"  {command}")
        terminal.line(f"    takes {show_size(other.total_bytes)}, {_rate(other.tokens_per_second, made.device)}")
    if not made.fits:
        short = show_size(total - made.budget_bytes)
        terminal.note(f"it does not fit: {short} are missing for context {choice.ctx}", "red")
    if device in (None, "auto", "cpu") and made.budget_bytes > made.device.available_bytes:
        available = show_size(made.device.available_bytes)
        terminal.warn(f"the budget is more than this machine has available now, {available}.")


_REGIMES: Final = {
    "load": "tokenizer and graph are read",
    "prefill": "a prompt fills the context",
    "decode": "the largest pass is computed in a full context",
}


def _decided(made: Plan) -> list[tuple[str, str]]:
    from edge_rt.memory.size import show_size

    choice = made.choice
    drafting = "off"
    if choice.draft_max:
        tables = [f"{choice.suffix_tokens} tokens"] * bool(choice.suffix_tokens)
        tables += [f"{choice.recycling_contexts} contexts"] * bool(choice.recycling_contexts)
        drafting = f"{choice.spec}, drafts of up to {choice.draft_max}, tables of {' and '.join(tables)}"
    speed = _rate(made.tokens_per_second, made.device)
    if choice.draft_max:
        speed += f"; without speculation {made.plain_tokens_per_second:.0f}"
    rows = [
        ("context", f"{choice.ctx} of {made.shape.context_length} tokens"),
        ("KV cache", choice.kv_format),
        ("speculation", drafting),
        ("prefill chunk", f"{choice.prefill_chunk} tokens"),
        ("expected", speed),
        ("smallest budget that works", show_size(made.minimum_bytes)),
    ]
    if made.speculation_bytes is not None:
        at = f"with context {choice.ctx} and {choice.kv_format} cache"
        rows.append(("speculation keeps 96 % from", f"{show_size(made.speculation_bytes)} {at}"))
    return rows


def _budget_text(made: Plan) -> str:
    from edge_rt.memory.size import show_size

    what = "given" if made.request.budget_bytes is not None else "what is available"
    left = made.budget_bytes - made.total_bytes
    return f"{what}; {show_size(left)} left" if left >= 0 else f"{what}; {show_size(-left)} too little"


def _rate(value: float, device: DeviceProfile) -> str:
    from edge_rt.memory.speed import UNCERTAINTY

    doubt = "" if device.is_measured else f" (+-{100 * UNCERTAINTY:.0f} %)"
    return f"{value:.3g} tokens per second{doubt}"


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def _list_devices(terminal: Terminal, *, as_json: bool) -> None:
    from edge_rt.memory.device import load_profile, presets, profile_path, saved_names
    from edge_rt.memory.size import show_size

    saved = {name: load_profile(profile_path(name)) for name in saved_names()}
    if as_json:
        terminal.document(
            {
                "presets": [
                    {**asdict(entry.profile), "text": entry.text, "evidence": dict(entry.evidence)}
                    for entry in presets().values()
                ],
                "saved": [asdict(replace(profile, name=name)) for name, profile in saved.items()],
            }
        )
        return
    rows = [("", "memory", "available", "read per second", "")]
    for entry in presets().values():
        one = entry.profile
        speed = f"{one.bandwidth / 1e9:.0f} GB"
        rows.append((entry.name, show_size(one.total_bytes), show_size(one.available_bytes), speed, entry.text))
    for name, one in saved.items():
        speed = f"{one.bandwidth / 1e9:.0f} GB"
        rows.append((name, show_size(one.total_bytes), show_size(one.available_bytes), speed, "saved here, measured"))
    terminal.table(rows, right=(1, 2, 3))
