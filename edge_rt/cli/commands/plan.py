"""``edge-rt plan``: the memory that a model needs, before anything is loaded."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import edge_rt.cli.commands.generate  # noqa: F401 - what a command holds that loads a model
from edge_rt.cli.loading import tell_device
from edge_rt.cli.notices import WHY_NOTHING
from edge_rt.cli.options import flags, making_flags
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags, SpeculationFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.device.names import AUTO, VULKAN, WEBGPU, is_local
from edge_rt.errors import ConfigError, MemoryBudgetExceeded
from edge_rt.memory.device import PLANNING, this_machine
from edge_rt.package.spec_modes import Drafts

if TYPE_CHECKING:
    from edge_rt.memory.figures import Device
    from edge_rt.memory.plan import Plan
    from edge_rt.memory.shape import ModelShape
    from edge_rt.package.reader import Package
    from edge_rt.runtime.load.options import LoadOptions


ACTOR_SLOTS: Final = 4
"""Answers at once of a model on one of several machines, as ``edge-rt batch`` and the workers of Ray have them."""
_VULKAN_ESTIMATES: Final = (
    "No GPU has run the kernels for Vulkan yet: what its driver takes and the speed are estimates."
)
_VULKAN_ESTIMATES_SHARED: Final = (
    "No GPU has run the kernels for Vulkan yet: what its driver takes, what it lends of the machine's memory and the "
    "speed are estimates. Weights are counted as copied; they are read in place where the driver allows it."
)
"""The same, of a GPU that has no memory of its own."""


@dataclass(frozen=True)
class FoundModel:
    """A model that can be planned.

    Attributes:
        package: the package; None for a checkpoint.
    """

    shape: ModelShape
    notes: tuple[str, ...] = ()
    package: Package | None = None


@dataclass(frozen=True)
class MachineFlags:
    """The machine to plan for, or several."""

    device: Annotated[
        str | None,
        flags.DEVICE.but(
            help="cuda, vulkan: a GPU of this machine; or another machine: a preset, or a saved one; list shows them.",
            shown="this machine",
            complete=flags.planned_devices,
        ),
    ] = None
    weights: Annotated[
        str | None, making_flags.WEIGHTS.but(help="Types of the matrices that an export of a checkpoint would give.")
    ] = None
    machines: Annotated[Path | None, flags.MACHINES] = None


def plan(
    load: Annotated[
        ModelFlags, only("named", "model", "memory", "device_memory", "experts", "ctx", "kv_type", "prompt_cache")
    ],
    speculation: Annotated[SpeculationFlags, only("spec", "draft_max", "corpus", "drafter")],
    machine: MachineFlags,
    output: OutputFlags,
    places: Annotated[PlaceFlags, only("store", "config")],
    slots: Annotated[int | None, flags.SLOTS.but(shown=f"1; with --machines {ACTOR_SLOTS}")] = None,
    kv_rows: Annotated[int | None, flags.KV_ROWS] = None,
) -> int:
    """Show how much memory a model needs, and the fastest settings within a budget.

    The model is a package, a GGUF file, or a folder with config.json and safetensors; of checkpoints only headers are
    read. Exit code 4 if it does not fit.
    """
    from edge_rt.cli.plan_speed import Speeds, measured_here
    from edge_rt.cli.render.plan_report import budget_warnings, layers_text, plan_json, print_plan
    from edge_rt.memory.device import LIST, preset
    from edge_rt.runtime.load.options import require_rows_here
    from edge_rt.runtime.load.planning import plan_package

    terminal, device = output.terminal(), machine.device
    if device == LIST:
        _list_devices(terminal)
        return 0
    speculation.check_planned()
    found = find_model(load.reference, places, machine.weights)
    slots = slots or (1 if machine.machines is None else ACTOR_SLOTS)
    asked = load.options(places, speculation, is_package=found.package is not None).but(slots=slots, kv_rows=kv_rows)
    if machine.machines is not None:
        return _plan_machines(terminal, machine, machine.machines.expanduser(), found, load, asked, places)
    is_here = is_local(device)
    if device is not None:
        asked = asked.but(device=device if is_here else AUTO)
    profile = this_machine(load.own_bytes + PLANNING) if is_here else preset(str(device))
    made = plan_package(found.package or found.shape, asked, profile)
    require_rows_here(made, asked)
    choice = made.device_choice
    is_for_gpu = profile.gpu is not None or asked.device_name.is_gpu
    on_cpu_here = is_here and made.device.gpu is None
    measured = measured_here(made.shape, made.device) if is_here else {}
    speeds = Speeds(made.shape, made.device, measured, made.request.drafter)
    notes = found.notes
    if is_for_gpu and made.device.gpu is None:
        is_own = asked.device_name.kind != WEBGPU
        why = "packages of the op profile native only" if is_own else "native packages on cuda and vulkan only"
        notes += (f"Counted as on the CPU: the memory of a GPU is planned for {why}.",)
    elif not is_here and str(device).endswith(f":{VULKAN}"):
        gpu = made.device.gpu
        notes += (_VULKAN_ESTIMATES_SHARED if gpu is not None and gpu.is_unified else _VULKAN_ESTIMATES,)
    unused = _unused(made)
    if on_cpu_here and not speeds.rate(made.choice).is_measured:
        notes += _cache_notes(made.shape)
    if output.json:
        told = [choice.note] if choice is not None and choice.note is not None else []
        told += budget_warnings(made, is_here=is_here).values()
        told += [text] if (text := layers_text(made)) is not None else []
        terminal.document({**plan_json(made, speeds), "notes": [*notes, *unused, *told]})
        return 0 if made.fits else MemoryBudgetExceeded.exit_code
    if choice is not None:
        tell_device(terminal, choice)
    for text in unused:
        terminal.warn(text)
    command = ["plan"] if not is_here else ["chat"] if slots == 1 else ["batch", "IN", "OUT"]
    verb = ["edge-rt", *command, "-m", load.reference]
    named = ["--device", str(device)]
    if choice is not None:
        # With the settings of another plan, `auto` might take the CPU.
        named = ["--device", str(choice.device)] if choice.device.is_gpu else []
    print_plan(terminal, made, speeds, notes, verb=verb, named=named, is_here=is_here)
    return 0 if made.fits else MemoryBudgetExceeded.exit_code


def _plan_machines(
    terminal: Terminal,
    machine: MachineFlags,
    file: Path,
    found: FoundModel,
    load: ModelFlags,
    asked: LoadOptions,
    places: PlaceFlags,
) -> int:
    from edge_rt.cli.machines import Sizer, read_machines
    from edge_rt.cli.render.machines_report import machines_json, machines_notes, print_machines

    if machine.device is not None or load.device_memory is not None:
        raise ConfigError(
            "The CPUs of the machines in a file are planned for.",
            f"Got {'--device' if machine.device is not None else '--device-memory'} beside --machines.",
            "Leave it out: a machine in the file may name a device.",
        )
    machines = read_machines(file)
    sizer = Sizer(
        found.package or found.shape, asked.but(device=AUTO), this_machine(load.own_bytes), places.open_store()
    )
    sizing = sizer.best(machines)
    notes = [*found.notes, *machines_notes(sizing)]
    if terminal.is_json:
        terminal.document({**machines_json(sizing), "notes": notes})
    else:
        print_machines(terminal, sizing, notes)
    return 0 if sizing.models else MemoryBudgetExceeded.exit_code


def find_model(reference: str, places: PlaceFlags, weights: str | None = None) -> FoundModel:
    """Return the numbers of the model that an argument means, and remarks about them."""
    from edge_rt.package.reader import is_package, open_package

    path = Path(reference).expanduser()
    if is_package(path):
        return _of_package(open_package(path), weights)
    from edge_rt.store.resolve import resolve

    store = places.open_store()
    resolved = resolve(reference, store)
    if resolved.path is None:
        raise resolved.no_package(reference)
    if resolved.kind == "package":
        return _of_package(resolved.open(store), weights)
    return _foreseen(resolved.path, weights)


def _of_package(package: Package, weights: str | None) -> FoundModel:
    from edge_rt.memory.shape import shape_of_package

    if weights is not None:
        raise ConfigError(
            "--weights is for checkpoints.",
            f"{package.path} is a package: its weights have their types.",
            "Leave it out, or give the checkpoint.",
        )
    return FoundModel(shape_of_package(package), package=package)


def _foreseen(path: Path, weights: str | None) -> FoundModel:
    from edge_rt.export.opening import package_sizes
    from edge_rt.memory.shape import likely_fine_blocks, shape_of_model
    from edge_rt.package.manifest import KV_FORMATS

    sizes = package_sizes(path, weights)
    shape = shape_of_model(
        sizes.decoder,
        op_profile=sizes.op_profile,
        weights_bytes=sizes.weights_bytes,
        tokenizer_bytes=sizes.tokenizer_bytes,
        kv_formats=KV_FORMATS[sizes.op_profile],
        embedding_bytes=sizes.embedding_bytes,
        table_bytes=sizes.table_bytes,
        fine_blocks=likely_fine_blocks(sizes.decoder) if sizes.op_profile == "native" else 0,
    )
    notes = sizes.notes
    if weights is not None:
        notes += (f"A package with these weights: edge-rt pull {shlex.quote(str(path))} --weights {weights}",)
    return FoundModel(shape, notes)


def _unused(made: Plan) -> tuple[str, ...]:
    """Return the warning about flags that have no effect, as in the commands that run the model."""
    if not made.unused:
        return ()
    if made.shape.drafts is Drafts.NOTHING:
        return (f"speculation is off ({WHY_NOTHING}): not used: {', '.join(made.unused)}.",)
    profile = made.shape.op_profile
    return (f"speculation is off (auto, op profile {profile}): not used: {', '.join(made.unused)}.",)


def _cache_notes(shape: ModelShape) -> tuple[str, ...]:
    """Return a remark about speed if the weights are smaller than the CPU's last-level cache."""
    from edge_rt.system.byte_size import show_size
    from edge_rt.system.machine import last_level_cache_bytes

    cache = last_level_cache_bytes()
    if cache is None or shape.read_bytes > cache:
        return ()
    size = show_size(cache)
    return (f"The weights fit the CPU's last-level cache, {size}: the real speed may be higher.",)


def _list_devices(terminal: Terminal) -> None:
    from edge_rt.memory.device import device_path, load_device, presets, saved_names

    saved = {name: load_device(device_path(name)) for name in saved_names()}
    if terminal.is_json:
        terminal.document(
            {
                "presets": [
                    {
                        **asdict(entry.device),
                        "text": entry.text,
                        "evidence": dict(entry.evidence),
                        "vulkan": entry.vulkan,
                    }
                    for entry in presets().values()
                ],
                "saved": [asdict(replace(profile, name=name)) for name, profile in saved.items()],
            }
        )
        return
    rows = [("", "memory", "available", "of the GPU", "available", "read per second", "")]
    for entry in presets().values():
        with_gpu = "" if entry.vulkan is None else f"; {entry.name}:{VULKAN} with {entry.vulkan}"
        rows.append((entry.name, *_listed(entry.device), entry.text + with_gpu))
    rows += [(name, *_listed(one), "saved here, measured") for name, one in saved.items()]
    terminal.table(rows, right=(1, 2, 3, 4, 5))


def _listed(device: Device) -> tuple[str, str, str, str, str]:
    """Return the figures of a device as they are listed: its memory, that of its GPU, and what computes."""
    from edge_rt.system.byte_size import show_size

    gpu = device.gpu
    own = ("", "")
    if gpu is not None:
        own = ("shared", "") if gpu.is_unified else (show_size(gpu.total_bytes), show_size(gpu.available_bytes))
    speed = f"{device.computes.bandwidth / 1e9:.0f} GB"
    return show_size(device.total_bytes), show_size(device.available_bytes), *own, speed
