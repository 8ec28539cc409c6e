"""The device that a package is loaded on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from edge_rt.device.kernels import check_compute
from edge_rt.device.names import CPU, CUDA, GPUS, WEBGPU, parse_device
from edge_rt.device.provider import INSTALLED, GpuProvider
from edge_rt.errors import ConfigError, RuntimeUnavailable
from edge_rt.memory.choice import Choice, DeviceChoice
from edge_rt.memory.device import unmeasured_gpu
from edge_rt.memory.figures import GpuFigures
from edge_rt.memory.gpu_terms import DRIVER_BYTES
from edge_rt.memory.plan import GPU_OP_PROFILE, Plan
from edge_rt.memory.shape import ModelShape
from edge_rt.ort.compute_device import ComputeDevice, PlacedNode
from edge_rt.ort.providers import find_device, find_portable_cuda
from edge_rt.ort.session import Session, pool_size
from edge_rt.package.manifest import Manifest
from edge_rt.package.reader import Package
from edge_rt.package.spec_modes import OFF
from edge_rt.runtime.speculation.stored_costs import (
    costs_on_any_gpu,
    costs_on_cpu,
    costs_on_gpu,
    drafted_rows,
    tokens_per_second,
)
from edge_rt.system.byte_size import show_at_least, show_size
from edge_rt.system.machine import usable_cpus

if TYPE_CHECKING:
    from edge_rt.device.driver import Gpu
    from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts


LEAST_GAIN: Final = 1.05
"""How much faster than the CPU a GPU must be to be taken: less may be noise of the measurements."""

_CALIBRATE: Final = "edge-rt bench -m MODEL --calibrate --device"


def choose_device(
    shape: ModelShape,
    store: CostStore | None,
    plan_on: Callable[[str], Plan],
    *,
    threads: int,
    isa: str | None = None,
    own: GpuProvider = INSTALLED,
    failed: Mapping[str, str] = MappingProxyType({}),
) -> DeviceChoice:
    """Return the device that ``auto`` stands for.

    A GPU is taken if it decodes ``LEAST_GAIN`` times as fast as the CPU by passes that were measured on both, and its
    plan fits without giving up anything that the plan for the CPU keeps, if that fits. No failure of a GPU is raised.

    Args:
        shape: the model. Only native packages run on the GPUs that are chosen.
        store: where measured costs of passes are saved; None: nothing was measured.
        plan_on: returns the plan for a device, by its name.
        threads: threads that compute on the CPU.
        isa: instruction set of the operators there; None: the best.
        own: edge-rt's own provider, whose driver says which GPUs there are.
        failed: GPUs that were chosen and failed while the model was loaded: the name of each, and its error.

    Raises:
        EdgeRTError: the options of the plan are wrong, whatever computes.
    """
    failures = dict(failed)
    choice = _choose(shape, store, plan_on, threads, isa, own, failures)
    if not failures:
        return choice
    (name, error), *others = failures.items()
    who = "The CPU" if choice.device == CPU else f"The GPU {choice.device}"
    told = [f"{who} computes, because {name} failed: {error}", *(f"{one} failed, too: {why}" for one, why in others)]
    return DeviceChoice(choice.device, " ".join(told), has_failed=True)


def _choose(
    shape: ModelShape,
    store: CostStore | None,
    plan_on: Callable[[str], Plan],
    threads: int,
    isa: str | None,
    own: GpuProvider,
    failures: dict[str, str],
) -> DeviceChoice:
    """Return the choice among the GPUs that have not failed; those that fail while they are planned are added."""
    on_cpu = DeviceChoice(CPU)
    if store is None or shape.package_id is None or shape.op_profile != GPU_OP_PROFILE:
        return on_cpu
    try:
        if not own.has_driver():
            return on_cpu
        report = own.report()
    except RuntimeUnavailable as error:
        # `doctor` says why no GPU can be used; here it is said where one would have been taken.
        planned, of_cpu = plan_on(CPU), costs_on_cpu(store, shape.package_id, threads, isa)
        before = measured_speeds(costs_on_any_gpu(store, shape.package_id), of_cpu, planned.choice, shape)
        if _is_faster(before):
            failures["the GPU"] = str(error)
        return on_cpu
    gpus = [gpu for gpu in report.gpus if gpu.can_compute and gpu.device_name not in failures]
    measured = [(gpu, costs) for gpu in gpus if (costs := costs_on_gpu(store, shape.package_id, gpu, report))]
    # One of two equal GPUs is enough.
    known = {gpu.name for gpu, _ in measured}
    unmeasured = next((_unmeasured(gpu) for gpu in gpus if gpu.name not in known), None)
    if not measured:
        return replace(on_cpu, note=unmeasured)
    planned, of_cpu = plan_on(CPU), costs_on_cpu(store, shape.package_id, threads, isa)
    compared = [
        (speeds, gpu)
        for gpu, costs in measured
        if (speeds := measured_speeds(costs, of_cpu, planned.choice, shape)) is not None
    ]
    if not compared:
        return replace(on_cpu, note=_not_compared(measured[0][0], is_cpu_measured=bool(of_cpu)))
    faster = sorted((found for found in compared if _is_faster(found[0])), key=lambda found: -found[0][0])
    note = None
    for speeds, gpu in faster:
        try:
            on_gpu = plan_on(gpu.device_name)
        except RuntimeUnavailable as error:
            failures[gpu.device_name] = str(error)
            continue
        if _keeps_as_much(on_gpu, planned):
            return DeviceChoice(gpu.device_name, note or unmeasured)
        note = note or _passed_over(speeds, gpu, on_gpu)
    return replace(on_cpu, note=note or unmeasured)


def measured_speeds(
    of_gpu: dict[str, RowCosts], of_cpu: dict[str, RowCosts], choice: Choice, shape: ModelShape
) -> tuple[float, float] | None:
    """Return the tokens per second of a GPU and of the CPU, by the same measurements on both; None without such.

    That is: with the cache format of the choice, else with the one of largest rows that was measured on both; at the
    deepest measured context up to half of the choice's; and with speculation, if passes of as many rows were measured.

    Args:
        of_gpu: cache format -> costs of passes on the GPU.
    """
    formats = of_gpu.keys() & of_cpu.keys()
    if not formats:
        return None
    kv = choice.kv_format if choice.kv_format in formats else max(formats, key=shape.token_bytes)
    gpu, cpu = of_gpu[kv], of_cpu[kv]
    depths = sorted(set(gpu.depths) & set(cpu.depths))
    if not depths:
        return None
    depth = max((depth for depth in depths if depth <= choice.ctx // 2), default=depths[0])
    if drafted_rows(choice) > min(gpu.rows[-1], cpu.rows[-1]):
        choice = replace(choice, spec=OFF, draft_max=0)
    return tokens_per_second(gpu, depth, choice), tokens_per_second(cpu, depth, choice)


def _is_faster(speeds: tuple[float, float] | None) -> bool:
    """Return whether a GPU is fast enough to be taken, by what ``measured_speeds`` returns."""
    return speeds is not None and speeds[0] >= LEAST_GAIN * speeds[1]


def _keeps_as_much(on_gpu: Plan, on_cpu: Plan) -> bool:
    """Return whether a plan fits a GPU, all layers there, and gives up nothing that a plan keeps which fits the CPU."""
    # What was measured is the speed of all layers there.
    is_whole = on_gpu.fits and on_gpu.choice.gpu_layers is None
    return is_whole and (not on_gpu.given_up or not on_cpu.fits or on_gpu.choice == on_cpu.choice)


def _unmeasured(gpu: Gpu) -> str:
    # Runs measure as well, but not without speculation, and not for ever on a machine that is never quiet.
    why = "its speed with this model is not known"
    return f"{gpu.name} is not used: {why}. {_CALIBRATE} {gpu.device_name} measures it."


def _not_compared(gpu: Gpu, *, is_cpu_measured: bool) -> str:
    if is_cpu_measured:
        again = f"{_CALIBRATE} {CPU}, and then {gpu.device_name}, measures both alike."
        return f"{gpu.name} is not used: it and the CPU were measured with other caches or contexts. {again}"
    why = "the CPU's speed with this model is not known"
    return f"{gpu.name} is not used: {why}. {_CALIBRATE} {CPU} measures it."


def _passed_over(speeds: tuple[float, float], gpu: Gpu, plan: Plan) -> str:
    """Return what is said of a faster GPU whose plan does not fit, or gives up what the CPU keeps."""
    faster = f"{gpu.name} is faster ({speeds[0]:.3g} against {speeds[1]:.3g} tokens per second, measured)"
    if plan.fits:
        return f"{faster}, but has no room for all that the CPU keeps; --device {gpu.device_name} runs there with less."
    least, limit, where = plan.minimum.host, plan.budget.host, "a run there does not fit the memory of the process"
    if plan.needs.gpu > plan.budget.gpu:
        least, limit, where = plan.minimum.gpu, plan.budget.gpu, "the model does not fit its memory"
    return f"{faster}, but {where}: it needs at least {show_at_least(least)}, the budget is {show_size(limit)}."


_OP_PROFILES: Final = {CUDA: ("native", "portable"), WEBGPU: ("portable",)}
"""Kind of device -> the op profiles whose operators its providers have."""
_ATTENTION: Final = "GroupQueryAttention"
"""The operator of portable packages that reads and writes the cache."""


def require_op_profile(device: str, manifest: Manifest) -> None:
    """Refuse a package whose operators the provider of a device does not have.

    Raises:
        ConfigError: the device is unknown, or the package is of another op profile.
    """
    name = parse_device(device)
    if not name.is_gpu or manifest.op_profile in _OP_PROFILES[name.kind]:
        return
    wanted = _OP_PROFILES[name.kind]
    raise ConfigError(
        f"The package cannot run on the device {name}.",
        f"Its op profile is {manifest.op_profile}; packages of the op profile {' or '.join(wanted)} run there.",
        f"Export the model with --profile {wanted[0]}, or use --device cpu.",
    )


def open_device(
    device: str,
    manifest: Manifest,
    own: GpuProvider = INSTALLED,
    on_compile: Callable[[], None] | None = None,
) -> ComputeDevice | None:
    """Return the device that a package is loaded on; None for the CPU.

    Args:
        on_compile: called before the kernels for an NVIDIA GPU are compiled, when it is used for the first time.

    Raises:
        ConfigError: the device is unknown, or cannot run packages of this op profile.
        RuntimeUnavailable: its provider or the device is missing, or cannot be used.
    """
    require_op_profile(device, manifest)
    name = parse_device(device)
    if not name.is_gpu:
        return None
    if name.kind == CUDA and manifest.op_profile == "portable":
        return find_portable_cuda(name, own)
    found = find_device(name, own)
    if name.kind == CUDA:
        own.make_ready(name.index, on_compile)
    return found


def cache_device(device: ComputeDevice | None, sessions: Sequence[Session]) -> ComputeDevice | None:
    """Return the device whose memory holds the cache: where attention is computed, so that no pass copies it.

    Args:
        device: where passes run; None: on the CPU.
    """
    nodes = [node for session in sessions for node in session.placement if node.operator == _ATTENTION]
    return None if nodes and all(node.is_on_cpu for node in nodes) else device


def placement(package: Package, device: str, own: GpuProvider = INSTALLED) -> tuple[PlacedNode, ...]:
    """Return where the nodes of a package's graphs are computed on a device; nothing is kept open.

    Raises:
        ConfigError: the device is unknown, not a GPU, or cannot run packages of this op profile.
        RuntimeUnavailable: its provider or the device is missing, or cannot be used.
        UnsupportedModel: the provider refuses the package.
    """
    found = open_device(device, package.manifest, own)
    if found is None:
        raise ConfigError(
            "Nodes are placed on GPUs only.", f"Got the device {device!r:.40}.", f"Name one: {', '.join(GPUS)}."
        )
    nodes: list[PlacedNode] = []
    for graph in package.manifest.graphs:
        session = Session(
            package.file(graph),
            threads=pool_size() or usable_cpus(),
            device=found,
            profile=package.manifest.op_profile,
        )
        nodes += session.placement
    return tuple(nodes)


def is_planned_for_gpu(device: str, op_profile: str) -> bool:
    """Return whether the memory of a GPU is planned for a package, rather than a run on the CPU."""
    return parse_device(device).kind == CUDA and op_profile == GPU_OP_PROFILE


def gpu_figures(device: str, op_profile: str, own: GpuProvider = INSTALLED, freed_bytes: int = 0) -> GpuFigures | None:
    """Return the figures of the GPU that a device names; None where the plan counts a run on the CPU.

    A GPU with memory of its own is opened for a moment, to ask how much is free. Packages of other op profiles than
    native run on GPUs of NVIDIA with ONNX Runtime's own provider, also on older ones: these need only be there.

    Args:
        freed_bytes: memory of the GPU that will be free before something is loaded.

    Raises:
        RuntimeUnavailable, VersionMismatch: there is no such GPU, or it cannot be used.
    """
    name = parse_device(device)
    if name.kind != CUDA:
        return None
    found = own.library.report().gpu(name.index)
    if not is_planned_for_gpu(device, op_profile):
        return None
    check_compute(found.compute)
    free = found.total_bytes
    if not found.is_integrated:
        free = min(free, own.free_bytes(name.index) + freed_bytes)
    return unmeasured_gpu(
        found.name,
        found.total_bytes,
        free,
        is_unified=found.is_integrated,
        device_name=str(name),
        has_context=own.is_ready(name.index),
    )


def driver_bytes(own: GpuProvider, *, on_gpu: bool = False) -> int:
    """Return what is counted of this process for the driver of GPUs.

    Where the CPU computes and no GPU was opened before, it is only what the driver took when it was asked.

    Args:
        own: edge-rt's own provider, after it was asked about the GPU.
        on_gpu: whether a GPU computes what is planned.
    """
    asked = own.asked_bytes
    return max(asked, DRIVER_BYTES) if on_gpu or own.has_opened else asked


def planned_choice(plan: Plan) -> DeviceChoice:
    """Return the device that a plan was made for, and what is to be said about it."""
    gpu = plan.device.gpu
    return plan.request.device_choice or DeviceChoice(CPU if gpu is None else gpu.device_name or CUDA)


def require_same_device(plan: Plan, device: str) -> None:
    """Refuse to carry out a plan on another device than the one that it was made for.

    Raises:
        ConfigError: one is the CPU, and the other is a GPU whose memory is planned.
    """
    gpu = plan.device.gpu
    is_same = gpu is None or gpu.device_name in (None, str(parse_device(device)))
    if is_same and (gpu is not None) == is_planned_for_gpu(device, plan.shape.op_profile):
        return
    text = "the CPU" if gpu is None else f"{gpu.name} ({gpu.device_name or CUDA})"
    raise ConfigError(
        "The plan was made for another device.",
        f"It is for {text}, and the model is to be loaded on {device}.",
        "Give edge_rt.plan the same device.",
    )
