"""What a plan is computed from besides what was asked for: read from the disk and the machine, once."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge_rt.device.names import AUTO as AUTO_DEVICE, require_op_profile
from edge_rt.errors import ConfigError, RuntimeUnavailable
from edge_rt.memory.device import MACHINE, this_device, unmeasured_gpu
from edge_rt.memory.drafter_shapes import DrafterShape
from edge_rt.memory.figures import Device, GpuFigures
from edge_rt.memory.plan import GPU_OP_PROFILE
from edge_rt.memory.shape import DraftModelShape, ModelShape, shape_of_package, shape_on
from edge_rt.package.exits import require_ahead_mode, require_self_mode
from edge_rt.package.expert_sizes import RESIDENT, expert_sizes
from edge_rt.package.manifest import PROMPTS_FOLDER, WEIGHTS_FILE, Manifest
from edge_rt.package.reader import Package
from edge_rt.package.spec_modes import AUTO, COMPUTED_MODES, CORPUS_MODES, mode_of
from edge_rt.runtime.load.drafters import drafting_shapes
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.system.byte_size import file_size, round_up
from edge_rt.system.process_memory import own_bytes, read_memory

if TYPE_CHECKING:
    from edge_rt.device.driver import Gpu
    from edge_rt.device.provider import GpuProvider
    from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts


@dataclass(frozen=True)
class GpuFacts:
    """A GPU of this machine.

    Attributes:
        figures: its memory and speed; None if it cannot be opened, cannot be taken, or its memory is not planned.
        costs: cache format -> costs of passes that were measured on it; empty: none were.
    """

    gpu: Gpu
    figures: GpuFigures | None
    costs: Mapping[str, RowCosts] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class LostGpus:
    """GPUs whose driver does not answer.

    Attributes:
        costs: cache format -> costs of passes that were measured on any of them.
    """

    error: str
    costs: Mapping[str, RowCosts] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What there is: a model, a machine, and a process on it.

    Attributes:
        machine: without the GPUs of this one; another machine with its own.
        drafter: the trained drafter that a load takes; None if it takes none.
        base_bytes: what the process holds, without the driver of GPUs; None: what ``machine`` says.
        driver_bytes: what is counted for the driver where the CPU computes; None: another machine has one of its own.
        budget_bytes: what a budget leaves that models share; None: there is none.
        gpus: the GPU that was named; with ``auto`` those that could be taken.
        cpu_costs: cache format -> costs of passes that were measured on the CPU.
        lost: GPUs that ``auto`` cannot take, because their drivers do not answer.
        asked_bytes: memory of the process that drivers take which were asked.
        context_bytes: what this process's context holds already of a GPU that shares the machine's memory.
        has_prompts: whether prompts come with the package, computed.
    """

    shape: ModelShape
    machine: Device
    drafter: DrafterShape | None = None
    draft_model: DraftModelShape | None = None
    corpus_bytes: int = 0
    is_here: bool = True
    base_bytes: int | None = None
    driver_bytes: int | None = None
    budget_bytes: int | None = None
    gpus: tuple[GpuFacts, ...] = ()
    cpu_costs: Mapping[str, RowCosts] = field(default_factory=dict)
    lost: tuple[LostGpus, ...] = ()
    asked_bytes: int = 0
    context_bytes: int = 0
    has_prompts: bool = False


def read_facts(model: Package | ModelShape, options: LoadOptions, machine: Device | None = None) -> Facts:
    """Read what a plan for some options depends on; nothing is loaded.

    Without a budget a plan may take the memory that the machine has available, in addition to what this process holds
    already. In a budget that models share, it may take what the others leave, and the process itself is counted once.

    A process does not return all memory of a closed model to the system: the heap keeps much of it, and the next load
    uses it. If one model replaces another, the memory of the process is therefore counted as before the first model
    (``base_bytes`` of its plan), given as ``base_bytes``.

    Args:
        model: a package; or the numbers of one that a checkpoint would give.
        machine: another machine; or this one, for a process that has not started yet and holds ``base_bytes``.

    Raises:
        ConfigError: options do not suit the package, or have no effect together, or the budget is not a size.
        InvalidCorpus: the file is not a corpus, or comes from another tokenizer.
    """
    package = model if isinstance(model, Package) else None
    _check(options, package)
    is_here = machine is None or (machine.name == MACHINE and machine.gpu is None)
    # Before the driver is asked, whose memory is counted apart.
    held = resident_bytes() if machine is None else 0
    here = machine or _this_process()
    if options.threads is not None:
        here = replace(here, threads=options.threads)
    facts = Facts(
        shape_of_package(model) if isinstance(model, Package) else model,
        here,
        *((None, None) if package is None else drafting_shapes(package, options.spec, options.drafter)),
        corpus_bytes=file_size(options.corpus),
        base_bytes=here.base_bytes,
        is_here=is_here,
        has_prompts=package is not None and (package.path / PROMPTS_FOLDER).is_dir(),
    )
    if is_here:
        facts = _with_gpus(facts, options, is_process=machine is None)
        taken = options.gpu_providers.host_bytes
        facts = replace(facts, driver_bytes=taken, asked_bytes=taken)
    if machine is None:
        facts = _with_process(facts, options, held)
    if package is not None:
        facts = _with_experts(facts, package, options)
    figures = (here.gpu, *(one.figures for one in facts.gpus))
    with_memory = next((one for one in figures if one is not None and not one.is_unified), None)
    if package is None or with_memory is None:
        return facts
    return replace(facts, shape=shape_on(facts.shape, package, replace(here, gpu=with_memory)))


def _with_experts(facts: Facts, package: Package, options: LoadOptions) -> Facts:
    """Return the facts with the sizes of experts, and if a cache of them may be needed, how fast they are read here."""
    sizes = None if sys.platform == "win32" else expert_sizes(package)
    if sizes is None:
        return facts
    facts = replace(facts, shape=replace(facts.shape, experts=sizes))
    budget = options.budget_bytes or facts.machine.available_bytes
    is_short = facts.shape.weights_bytes + (facts.base_bytes or 0) > budget
    asked = options.planned_experts(has_some=True)
    if not facts.is_here or asked == RESIDENT or (asked is None and not is_short):
        return facts
    speed = measured_read_speed(package)
    return replace(facts, machine=replace(facts.machine, read_bandwidth=speed))


@functools.lru_cache(maxsize=16)
def _read_speed(path: Path, size: int) -> float:
    from edge_rt.ort.expert_cache import read_speed

    return read_speed(path, size)


def measured_read_speed(package: Package) -> float:
    """Return how many bytes of a package's weights are read per second, measured once by a process."""
    return _read_speed(package.file(WEIGHTS_FILE), package.manifest.files[WEIGHTS_FILE].size)


def _this_process() -> Device:
    """Return this machine, with the threads that compute in this process."""
    from edge_rt.ort.session import pool_threads

    return this_device(threads=pool_threads())


def _with_process(facts: Facts, options: LoadOptions, held: int) -> Facts:
    """Return the facts with the memory of this process."""
    providers = options.gpu_providers
    facts = replace(facts, context_bytes=providers.context_bytes)
    if options.base_bytes is None:
        # What the process holds includes what drivers took, which every plan for a GPU counts by itself.
        now, driver = resident_bytes(), providers.opened.host_bytes
        if providers.was_asked and not driver:
            driver = min(facts.asked_bytes, max(0, now - held))
        facts = replace(facts, base_bytes=max(0, now - driver), driver_bytes=driver)
    else:
        held = max(options.base_bytes, _unshared_bytes())
        facts = replace(facts, base_bytes=options.base_bytes)
    budget = options.budget
    if budget is not None:
        facts = replace(
            facts,
            base_bytes=budget.base_bytes or facts.base_bytes,
            driver_bytes=max(facts.driver_bytes or 0, budget.gpu_bytes),
            budget_bytes=budget.free_bytes + budget.base_bytes + budget.gpu_bytes,
        )
    available = facts.machine.available_bytes + held
    return replace(facts, machine=replace(facts.machine, available_bytes=available))


def grown(facts: Facts, options: LoadOptions) -> Facts | None:
    """Return the facts for a process that holds more by now than they say; None if it does not."""
    is_measured = options.base_bytes is None and not (options.budget is not None and options.budget.base_bytes)
    held = resident_bytes() - (facts.driver_bytes or 0)
    if not is_measured or facts.base_bytes is None or held <= facts.base_bytes:
        return None
    more = held - facts.base_bytes
    machine = replace(facts.machine, available_bytes=facts.machine.available_bytes + more)
    return replace(facts, base_bytes=held, machine=machine)


def _check(options: LoadOptions, package: Package | None) -> None:
    """Refuse options that do not suit a model, or have no effect together; a plan checks numbers.

    Args:
        package: None for a checkpoint.
    """
    spec = options.spec or AUTO
    if package is not None:
        require_op_profile(options.device_name, package.manifest.op_profile)
        require_self_mode(options.spec, options.kv, package.manifest)
        require_ahead_mode(options.spec, package.manifest)
        if options.kv not in (None, AUTO):
            from edge_rt.runtime.forward.io_binding import check_kv_format

            check_kv_format(package.manifest, str(options.kv))
        if options.prompt_cache is not None and (why := why_rows_are_not_stored(package.manifest)) is not None:
            raise ConfigError("A prompt cache cannot be used with this package.", why, "Leave it out.")
    elif options.drafter is not None or mode_of(spec) in COMPUTED_MODES:
        asked = f"The mode of speculation {spec!r}" if options.drafter is None else "A drafter"
        raise ConfigError(
            f"{asked} is for packages.", "What drafts belongs to one.", "Leave it out, or give the package."
        )
    if options.corpus is None:
        return
    if mode_of(spec) not in CORPUS_MODES:
        raise ConfigError(
            f"A corpus is not used with the mode of speculation {mode_of(spec)!r}.",
            f"It is used with {', '.join(CORPUS_MODES)}.",
            "Leave one out.",
        )
    from edge_rt.runtime.speculation.corpus import Corpus

    # Only its header is read; the hashes of its sections are compared when the model is loaded.
    tokenizer = None if package is None else tokenizer_hash(package)
    Corpus.open(options.corpus, tokenizer=tokenizer, verify=False).close()


def tokenizer_hash(package: Package) -> str:
    """Return the SHA-256 of a package's tokenizer, which a corpus has to be built with."""
    return package.manifest.files[package.manifest.tokenizer.file].sha256


def why_rows_are_not_stored(manifest: Manifest) -> str | None:
    """Return why rows of a package's cache cannot be stored; None: they can."""
    if manifest.op_profile != "native":
        return f"Results of the op profile {manifest.op_profile} depend on how a prompt is cut into passes."
    model = manifest.model
    windows = enumerate(model.layer_windows)
    if any(window and layer not in model.conv_layers for layer, window in windows):
        return "Layers with a sliding window keep the last rows only."
    return None


def _with_gpus(facts: Facts, options: LoadOptions, *, is_process: bool) -> Facts:
    """Return the facts with the GPUs that a load may take; no driver is asked where it takes none."""
    name, is_planned = options.device_name, facts.shape.op_profile == GPU_OP_PROFILE
    if name.is_own and not is_planned and is_process:
        # ONNX Runtime's own provider takes what it needs, and says what it lacks.
        return facts
    if name.is_own:
        provider = options.gpu_providers.of(name)
        # ONNX Runtime's own provider may know older ones, and takes what it needs.
        gpu = provider.listed_gpu(name)
        figures = _figures(gpu, provider, options, facts.machine) if is_planned else None
        return replace(facts, gpus=(GpuFacts(gpu, figures),))
    store, package_id = options.costs, facts.shape.package_id
    if name.kind != AUTO_DEVICE or store is None or package_id is None or not is_planned:
        return facts
    for provider in options.gpu_providers:
        facts = _with_measured(facts, provider, store, package_id)
    if any(one.costs for one in facts.gpus) or any(lost.costs for lost in facts.lost):
        from edge_rt.runtime.speculation.stored_costs import costs_on_cpu

        facts = replace(facts, cpu_costs=costs_on_cpu(store, package_id, facts.machine.threads, options.isa))
    return replace(facts, gpus=tuple(_opened(one, options, facts) for one in facts.gpus))


def _with_measured(facts: Facts, provider: GpuProvider, store: CostStore, package_id: str) -> Facts:
    """Return the facts with the GPUs of a provider that ``auto`` may take, and what was measured there."""
    from edge_rt.runtime.speculation.stored_costs import costs_on_any_gpu, costs_on_gpu

    if not provider.is_asked_always and not costs_on_any_gpu(store, package_id, provider.kind):
        return facts
    if not provider.has_driver():
        return facts
    try:
        gpus = [gpu for gpu in provider.gpus() if not gpu.is_software]
    except RuntimeUnavailable as error:
        return replace(
            facts, lost=(*facts.lost, LostGpus(str(error), costs_on_any_gpu(store, package_id, provider.kind)))
        )
    found = (GpuFacts(gpu, None, costs_on_gpu(store, package_id, gpu, provider.facts(gpu))) for gpu in gpus)
    return replace(facts, gpus=(*facts.gpus, *found))


def _opened(one: GpuFacts, options: LoadOptions, facts: Facts) -> GpuFacts:
    """Return what is known of a GPU when it was opened; what cannot be taken is not."""
    from edge_rt.runtime.speculation.stored_costs import may_be_faster

    # What was not measured on both, or is slower in every measured pass.
    if not may_be_faster(one.costs, facts.cpu_costs):
        return one
    provider = options.gpu_providers.of(one.gpu.device_name)
    try:
        return replace(one, figures=_figures(one.gpu, provider, options, facts.machine))
    except RuntimeUnavailable as error:
        return replace(one, error=str(error))


def _figures(gpu: Gpu, provider: GpuProvider, options: LoadOptions, machine: Device) -> GpuFigures:
    """Return the figures of a GPU; one with memory of its own is opened for a moment, to ask how much is free."""
    if (why := provider.refused(gpu)) is not None:
        raise why
    free = gpu.total_bytes
    if not gpu.is_unified:
        # A plan counts the context that this process may have there already, and what a model gives back.
        kept = provider.context_bytes if provider.is_ready(gpu.number) else 0
        free = min(free, provider.free_bytes(gpu.number) + options.freed_device_bytes.get(gpu.device_name, 0) + kept)
    return unmeasured_gpu(
        gpu.name,
        gpu.total_bytes,
        free,
        is_unified=gpu.is_unified,
        device_name=gpu.device_name,
        context_bytes=provider.context_bytes,
        host_bytes=provider.host_bytes,
        chunk_bytes=provider.chunk_bytes,
        page_bytes=provider.page_bytes,
        has_cpu_bits=provider.self_test(gpu).has_cpu_bits,
        imports=gpu.imports,
        is_software=gpu.is_software,
        machine=machine,
    )


def resident_bytes() -> int:
    """Return the memory that this process holds now, in bytes, rounded up so that two plans in a row agree."""
    return round_up(own_bytes())


def _unshared_bytes() -> int:
    """Return this process's memory without pages of mapped files, which count as available already."""
    try:
        return read_memory().private_bytes
    except RuntimeUnavailable:
        return 0
