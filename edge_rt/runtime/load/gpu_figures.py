"""The GPU that a load computes on, as its memory plan counts it."""

from __future__ import annotations

from edge_rt.device_names import CPU, CUDA, parse_device
from edge_rt.errors import ConfigError
from edge_rt.gpu_kernels import check_compute
from edge_rt.gpu_provider import INSTALLED, GpuProvider
from edge_rt.memory.choice import DeviceChoice
from edge_rt.memory.device import unmeasured_gpu
from edge_rt.memory.figures import GpuFigures
from edge_rt.memory.gpu_terms import DRIVER_BYTES
from edge_rt.memory.plan import GPU_OP_PROFILE, Plan


def is_planned_for_gpu(device: str, op_profile: str) -> bool:
    """Return whether the memory of a GPU is planned for a package, rather than a run on the CPU.

    Args:
        device: its name.
        op_profile: of the package.

    Raises:
        ConfigError: the device is unknown.
    """
    return parse_device(device).kind == CUDA and op_profile == GPU_OP_PROFILE


def gpu_figures(device: str, op_profile: str, own: GpuProvider = INSTALLED, freed_bytes: int = 0) -> GpuFigures | None:
    """Return the figures of the GPU that a device names; None where the plan counts a run on the CPU.

    A GPU with memory of its own is opened for a moment, to ask how much is free. Packages of other op profiles than
    native run on GPUs of NVIDIA with ONNX Runtime's own provider, also on older ones: these need only be there.

    Args:
        device: its name.
        op_profile: of the package.
        own: edge-rt's own provider.
        freed_bytes: memory of the GPU that will be free before something is loaded.

    Raises:
        ConfigError: the device is unknown.
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
