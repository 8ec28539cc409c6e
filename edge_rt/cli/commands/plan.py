"""``edge-rt plan``: the memory that a model needs, before anything is loaded."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

# What a command holds that loads a model, so that a plan counts as much for it.
from edge_rt.cli.baseline_memory import PLANNING, this_machine
from edge_rt.cli.loading import tell_device
from edge_rt.cli.notices import WHY_NOTHING
from edge_rt.cli.options import flags, making_flags
from edge_rt.cli.options.groups import ModelFlags, OutputFlags, PlaceFlags, SpeculationFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.device.names import AUTO as AUTO_DEVICE, CPU, CUDA, GPUS
from edge_rt.errors import ConfigError, MemoryBudgetExceeded
from edge_rt.package.spec_modes import AUTO, COMPUTED_MODES, Drafts, mode_of

if TYPE_CHECKING:
    from edge_rt.device.provider import GpuProvider
    from edge_rt.memory.choice import DeviceChoice
    from edge_rt.memory.figures import Device
    from edge_rt.memory.plan import Plan, Request
    from edge_rt.memory.shape import DrafterShape, DraftModelShape, ModelShape
    from edge_rt.package.reader import Package
    from edge_rt.runtime.speculation.cost_model import CostStore


@dataclass(frozen=True)
class FoundModel:
    """A model that can be planned.

    Attributes:
        can_run: whether the commands that run a model accept it.
        package: the package; None for a checkpoint.
    """

    shape: ModelShape
    notes: tuple[str, ...] = ()
    can_run: bool = True
    package: Package | None = None


@dataclass(frozen=True)
class MachineFlags:
    """The machine to plan for."""

    device: Annotated[
        str | None,
        flags.DEVICE.but(
            help="cuda: a GPU of this machine; or another machine: a preset, or a saved one; 'list' shows them.",
            shown="this machine",
            complete=flags.planned_devices,
        ),
    ] = None
    weights: Annotated[
        str | None, making_flags.WEIGHTS.but(help="Types of the matrices that an export of a checkpoint would give.")
    ] = None


def plan(
    load: Annotated[ModelFlags, only("named", "model", "memory", "device_memory", "ctx", "kv_type")],
    speculation: Annotated[SpeculationFlags, only("spec", "draft_max", "corpus", "drafter")],
    machine: MachineFlags,
    output: OutputFlags,
    places: Annotated[PlaceFlags, only("store", "config")],
) -> int:
    """Show how much memory a model needs, and the fastest settings within a budget.

    The model is a package, a GGUF file, or a folder with config.json and safetensors; of checkpoints only headers are
    read. Exit code 4 if it does not fit.
    """
    from edge_rt.cli.plan_speed import Speeds, measured_here
    from edge_rt.cli.render.plan_report import budget_warnings, layers_text, plan_json, print_plan
    from edge_rt.memory.device import LIST, LOCAL
    from edge_rt.memory.plan import Request, make_plan
    from edge_rt.system.byte_size import file_size

    terminal, device = output.terminal(), machine.device
    if device == LIST:
        _list_devices(terminal)
        return 0
    speculation.check_planned()
    corpus = speculation.corpus
    if corpus is not None:
        from edge_rt.runtime.speculation.corpus import Corpus

        Corpus.open(corpus, verify=False).close()
    found = find_model(load.reference, places, machine.weights)
    profile, is_here = _machine(device, load.own_bytes, found)
    spec = speculation.placed_spec(places) if found.package is not None else speculation.spec
    folder = speculation.placed_drafter(places) if found.package is not None else speculation.drafter
    drafter, second = _drafting(found, spec, folder)
    request = Request(
        budget_bytes=load.budget_bytes(places),
        ctx=load.ctx,
        kv=load.kv_type,
        spec=spec,
        draft_max=speculation.draft_max,
        corpus=None if corpus is None else str(corpus),
        corpus_bytes=file_size(corpus),
        drafter=drafter,
        drafter_folder=None if folder is None else str(folder),
        draft_model=second,
        device_budget_bytes=load.device_budget_bytes,
    )
    choice = None
    if device in (None, AUTO_DEVICE):
        choice, profile, request = choose_here(found.shape, profile, request, package=found.package)
    if is_here:
        request = with_driver(request, profile)
    if found.package is not None:
        from edge_rt.memory.shape import shape_on

        found = replace(found, shape=shape_on(found.shape, found.package, profile))
    made = make_plan(found.shape, profile, request)
    on_cpu_here = is_here and made.device.gpu is None
    speeds = Speeds(found.shape, made.device, measured_here(found.shape, made.device) if is_here else {}, drafter)
    notes = found.notes + _device_notes(made, device, profile)
    unused = _unused(made)
    if on_cpu_here and not speeds.rate(made.choice).is_measured:
        notes += _cache_notes(found.shape)
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
    # A model that this machine cannot run can still be planned.
    verb = ["edge-rt", "chat" if found.can_run and is_here else "plan", "-m", load.reference]
    named = [] if device in LOCAL else ["--device", str(device)]
    if choice is not None and choice.device != CPU:
        # With the settings of another plan, `auto` might take the CPU.
        named = ["--device", choice.device]
    print_plan(terminal, made, speeds, notes, verb=verb, named=named, is_here=is_here)
    return 0 if made.fits else MemoryBudgetExceeded.exit_code


def _machine(device: str | None, own_bytes: int, found: FoundModel) -> tuple[Device, bool]:
    """Return the machine that ``--device`` means, and whether it is this one.

    Raises:
        ConfigError: there is no device of that name, or the package cannot run there.
        RuntimeUnavailable, VersionMismatch: this machine has no such GPU.
    """
    from edge_rt.memory.device import LOCAL, preset

    if device in LOCAL:
        return this_machine(own_bytes + PLANNING), True
    assert device is not None
    if device.partition(":")[0] not in GPUS:
        return preset(device), False
    from edge_rt.runtime.load.devices import gpu_figures, require_op_profile

    if found.package is not None:
        require_op_profile(device, found.package.manifest)
    gpu = gpu_figures(device, found.shape.op_profile)
    return replace(this_machine(own_bytes + PLANNING), gpu=gpu), True


def choose_here(
    shape: ModelShape,
    machine: Device,
    request: Request,
    store: CostStore | None = None,
    own: GpuProvider | None = None,
    package: Package | None = None,
) -> tuple[DeviceChoice, Device, Request]:
    """Return the device that a load with ``auto`` would take, this machine with its GPU if it is one, and the request.

    If a GPU has failed, the CPU is planned without the budget of the GPU's memory.

    Args:
        machine: this machine, without a GPU.
        store: where measured costs of passes are saved; None uses that of ``edge_rt.load``.
        own: edge-rt's own provider; None: the installed one.
        package: the model's package, whose layers may be divided; None: they may not.
    """
    from edge_rt.device.provider import INSTALLED
    from edge_rt.memory.plan import make_plan
    from edge_rt.memory.shape import shape_on
    from edge_rt.runtime.load.devices import choose_device, gpu_figures
    from edge_rt.runtime.speculation.cost_model import user_costs

    provider = own or INSTALLED

    without_budget = replace(request, device_budget_bytes=None)

    def plan_on(device: str) -> Plan:
        # A budget of a GPU's memory says nothing about the CPU, and is refused there.
        asked = without_budget if device == CPU else request
        there = replace(machine, gpu=gpu_figures(device, shape.op_profile, provider))
        return make_plan(shape if package is None else shape_on(shape, package, there), there, asked)

    choice = choose_device(
        shape, user_costs() if store is None else store, plan_on, threads=machine.threads, own=provider
    )
    chosen = replace(machine, gpu=gpu_figures(choice.device, shape.op_profile, provider))
    asked = without_budget if choice.replaces_gpu else request
    return choice, chosen, replace(asked, device_choice=choice)


def with_driver(request: Request, machine: Device, own: GpuProvider | None = None) -> Request:
    """Return a request that counts the driver of GPUs as a load in this process does, after the driver was asked.

    Args:
        machine: this machine, with its GPU if that computes.
        own: edge-rt's own provider; None: the installed one.
    """
    from edge_rt.device.provider import INSTALLED
    from edge_rt.runtime.load.devices import driver_bytes

    return replace(request, driver_bytes=driver_bytes(own or INSTALLED, on_gpu=machine.gpu is not None))


def _device_notes(made: Plan, device: str | None, asked: Device) -> tuple[str, ...]:
    """Return a remark where a GPU was named, and the plan counts a run on the CPU."""
    kind = str(device).partition(":")[0]
    if made.device.gpu is not None or (asked.gpu is None and kind not in GPUS):
        return ()
    is_nvidia = asked.gpu is not None or kind == CUDA
    why = "packages of the op profile native only" if is_nvidia else "GPUs of NVIDIA only"
    return (f"Counted as on the CPU: the memory of a GPU is planned for {why}.",)


def find_model(reference: str, places: PlaceFlags, weights: str | None = None) -> FoundModel:
    """Return the numbers of the model that an argument means, and remarks about them.

    Args:
        places: where models are stored.

    Raises:
        ConfigError: ``weights`` is unknown, or the model is a package.
        ModelNotFound: it is not on this machine.
        EdgeRTError: it cannot be read, or its size cannot be estimated.
    """
    from edge_rt.package.reader import is_package, open_package

    path = Path(reference).expanduser()
    if is_package(path):
        return _of_package(open_package(path), weights)
    from edge_rt.store.resolve import resolve

    resolved = resolve(reference, places.open_store())
    if resolved.path is None:
        raise resolved.no_package(reference)
    if resolved.kind == "package":
        return _of_package(open_package(resolved.path), weights)
    return _foreseen(resolved.path, weights)


def _of_package(package: Package, weights: str | None) -> FoundModel:
    from edge_rt.memory.shape import shape_of

    if weights is not None:
        raise ConfigError(
            "--weights is for checkpoints.",
            f"{package.path} is a package: its weights have their types.",
            "Leave it out, or give the checkpoint.",
        )
    return FoundModel(shape_of(package.manifest, package.id), package=package)


def _drafting(
    found: FoundModel, spec: str | None, named: Path | None
) -> tuple[DrafterShape | None, DraftModelShape | None]:
    """Return the numbers of the networks that a load would draft with; None for none."""
    from edge_rt.runtime.load.drafters import drafting_shapes
    from edge_rt.runtime.load.options import MAKERS

    if found.package is None:
        for flag, is_given in (
            ("--drafter", named is not None),
            (f"--spec {spec}", mode_of(spec or AUTO) in COMPUTED_MODES),
        ):
            if is_given:
                raise ConfigError(
                    f"{flag} is for packages.", "What drafts belongs to one.", "Leave it out, or give the package."
                )
        return None, None
    return drafting_shapes(found.package, spec, named, MAKERS)


def _foreseen(path: Path, weights: str | None) -> FoundModel:
    from edge_rt.export.size_estimate import estimate_package
    from edge_rt.memory.shape import shape_of_config
    from edge_rt.package.manifest import KV_FORMATS

    found = estimate_package(path, weights=weights)
    shape = shape_of_config(
        found.config,
        op_profile=found.op_profile,
        weights_bytes=found.weights_bytes,
        tokenizer_bytes=found.tokenizer_bytes,
        kv_formats=KV_FORMATS[found.op_profile],
        embedding_bytes=found.embedding_bytes,
        window_layers=found.window_layers,
        decoder=found.decoder,
    )
    notes = found.notes
    if weights is not None and found.is_exact:
        notes += (f"A package with these weights: edge-rt pull {shlex.quote(str(path))} --weights {weights}",)
    return FoundModel(shape, notes, can_run=found.is_exact)


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
                    {**asdict(entry.device), "text": entry.text, "evidence": dict(entry.evidence)}
                    for entry in presets().values()
                ],
                "saved": [asdict(replace(profile, name=name)) for name, profile in saved.items()],
            }
        )
        return
    rows = [("", "memory", "available", "of the GPU", "available", "read per second", "")]
    rows += [(entry.name, *_listed(entry.device), entry.text) for entry in presets().values()]
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
