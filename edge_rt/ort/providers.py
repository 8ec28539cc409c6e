"""The execution providers that compute on GPUs, and the devices that they find.

ONNX Runtime loads such a provider from a library of its own: WebGPU's comes with the wheel ``onnxruntime-ep-webgpu``,
those for NVIDIA's GPUs and for Vulkan with edge-rt itself (``device.provider``). ``provider_states`` says which devices
there are, and ``find_device`` returns one. Portable packages run on NVIDIA's GPUs through the provider inside the wheel
``onnxruntime-gpu``: ``find_portable_cuda``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from edge_rt.device.cuda import CudaProvider
from edge_rt.device.driver import Gpu, SelfTest
from edge_rt.device.installed import INSTALLED
from edge_rt.device.names import CPU_BITS, CUDA, GPUS, VULKAN, WEBGPU, DeviceName, require_op_profile
from edge_rt.device.provider import GpuProvider, GpuProviders
from edge_rt.errors import ConfigError, EdgeRTError, RuntimeUnavailable, VersionMismatch
from edge_rt.ort.compute_device import RECORDS, ComputeDevice, PlacedNode
from edge_rt.ort.device_weights import DeviceWeights
from edge_rt.ort.onnxruntime_import import ort
from edge_rt.ort.session import Session
from edge_rt.package.reader import Package
from edge_rt.system.machine import install_command

WEBGPU_MODULE: Final = "onnxruntime_ep_webgpu"
_PORTABLE_CUDA: Final = f"portable packages on {CUDA}"
_LEAST_ONNXRUNTIME: Final = {CUDA: (1, 28), VULKAN: (1, 28), _PORTABLE_CUDA: (1, 24), WEBGPU: (1, 24)}
"""Kind of devices -> the oldest ONNX Runtime that its provider works with."""


@dataclass(frozen=True)
class ProviderState:
    """What there is of one kind of devices.

    Attributes:
        refused: devices that nothing can be computed on, and why.
        hidden: why a GPU may be left out beside these; None: nothing is known of one.
    """

    kind: str
    devices: tuple[ComputeDevice, ...]
    problem: EdgeRTError | None
    refused: tuple[tuple[Gpu, EdgeRTError], ...] = ()
    hidden: EdgeRTError | None = None


def provider_states(providers: GpuProviders = INSTALLED) -> list[ProviderState]:
    """Return what there is of every kind of GPU; providers that are installed are loaded."""
    own = {provider.kind: provider for provider in providers}
    return [_state(kind, own.get(kind)) for kind in GPUS if kind in own or kind == WEBGPU]


def _state(kind: str, provider: GpuProvider | None) -> ProviderState:
    try:
        if provider is None:
            return ProviderState(kind, _webgpu_devices(), None)
        devices = _own_devices(provider)
        others = ((gpu, provider.refused(gpu)) for gpu in provider.listed())
        refused = tuple((gpu, why) for gpu, why in others if why is not None)
        return ProviderState(kind, devices, None, refused, provider.hidden())
    except EdgeRTError as error:
        return ProviderState(kind, (), error)


def find_device(name: DeviceName, providers: GpuProviders = INSTALLED) -> ComputeDevice:
    """Return a device; the provider that computes on it is loaded.

    Args:
        name: of the device. Those of edge-rt's own provider are numbered as their driver does, WebGPU's as its provider
            lists them.

    Raises:
        VersionMismatch: ONNX Runtime is too old for the provider, or the device's driver is.
    """
    if name.is_own:
        _require_onnxruntime(name.kind)
        provider = providers.of(name)
        wanted: int | None = provider.gpu(name).number
        devices = {device.name.index: device for device in _own_devices(provider)}
    else:
        wanted, devices = name.index, dict(enumerate(_webgpu_devices()))
    if wanted not in devices:
        raise RuntimeUnavailable(
            "There is no device of that number.",
            f"Got {name}; devices of the kind {name.kind}: {len(devices)}, counted from 0.",
            "Choose another: edge-rt doctor lists them.",
        )
    return devices[wanted]


def find_portable_cuda(name: DeviceName, providers: GpuProviders = INSTALLED) -> ComputeDevice:
    """Return an NVIDIA GPU as ONNX Runtime's own provider computes on it, which portable packages run on."""
    _require_onnxruntime(_PORTABLE_CUDA)
    provider = providers.of(name)
    assert isinstance(provider, CudaProvider), name
    if provider.portable not in (available := ort.get_available_providers()):
        raise RuntimeUnavailable(
            "This ONNX Runtime cannot run portable packages on NVIDIA GPUs.",
            f"It has {', '.join(available)}; {provider.portable} is in the wheel onnxruntime-gpu.",
            f"Run: pip uninstall onnxruntime, then {install_command('gpu')}; or export with the profile native.",
        )
    gpu = provider.listed_gpu(name)
    # NVIDIA's libraries from wheels are in no folder that the loader looks at. The function prints what it lacks.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(AttributeError):
        ort.preload_dlls()
    # TF32 would round factors to 10 bits.
    options = {"device_id": str(gpu.number), "use_tf32": "0"}
    return ComputeDevice(
        name, provider.portable, str(ort.__version__), gpu.name, False, None, provider.facts(gpu), options
    )


def open_device(
    name: DeviceName,
    op_profile: str,
    providers: GpuProviders = INSTALLED,
    on_compile: Callable[[bool], None] | None = None,
) -> ComputeDevice:
    """Return the GPU that a package is loaded on.

    Args:
        on_compile: called before the kernels for a GPU are compiled, when it is used for the first time, with whether
            they are kept for later.
    """
    require_op_profile(name, op_profile)
    if name.kind == CUDA and op_profile == "portable":
        return find_portable_cuda(name, providers)
    device = find_device(name, providers)
    if name.is_own:
        provider = providers.of(name)
        gpu = provider.gpu(device.name)
        # A self-test first, as it keeps nothing of what is compiled.
        found = provider.self_test(gpu)
        provider.make_ready(gpu, on_compile)
        return tested(device, found)
    return device


def tested(device: ComputeDevice, found: SelfTest) -> ComputeDevice:
    """Return a device of edge-rt's own provider with what a test of it has found."""
    bits = {} if device.name.kind == CUDA else {CPU_BITS: found.has_cpu_bits}
    details = {**device.details, **bits}
    return replace(device, has_cpu_bits=found.has_cpu_bits, details=details, operations=found.operations)


@dataclass(frozen=True)
class Placement:
    """Where the nodes of a package's graphs are computed.

    Attributes:
        mapped_bytes, copied_bytes: of the weights: those that the device reads where the file is mapped, and those in
            its own memory; None: ONNX Runtime does not tell.
    """

    device: ComputeDevice
    nodes: tuple[PlacedNode, ...]
    mapped_bytes: int | None = None
    copied_bytes: int | None = None


def placement(package: Package, name: DeviceName, providers: GpuProviders = INSTALLED) -> Placement:
    """Return where the nodes of a package's graphs are computed on a GPU; nothing is kept open."""
    if not name.is_gpu:
        raise ConfigError("Nodes are placed on GPUs only.", f"Got the device {name}.", f"Name one: {', '.join(GPUS)}.")
    device = open_device(name, package.manifest.op_profile, providers)
    nodes: list[PlacedNode] = []
    weights = None if device.library is None else DeviceWeights(package, device, package.manifest.graphs)
    for graph in package.manifest.graphs:
        constants = None if weights is None else weights.constants(graph)
        profile = package.manifest.op_profile
        nodes += Session(package.file(graph), device=device, profile=profile, initializers=constants).placement
    if weights is None:
        return Placement(device, tuple(nodes))
    return Placement(device, tuple(nodes), weights.laid.mapped_bytes, weights.laid.copied_bytes)


def _webgpu_library() -> Path:
    try:
        return Path(importlib.import_module(WEBGPU_MODULE).get_library_path())
    except (ImportError, RuntimeError) as error:
        raise RuntimeUnavailable(
            "ONNX Runtime's provider for WebGPU is not installed.", f"{error}.", f"Run: {install_command('webgpu')}."
        ) from error


def _webgpu_devices() -> tuple[ComputeDevice, ...]:
    found = _handles(WEBGPU, _webgpu_library())
    if not found:
        raise RuntimeUnavailable(
            "There is no device for WebGPU.",
            "Its provider found none on this machine.",
            "Install the driver of the GPU (on Linux with Vulkan and its loader, libvulkan1), or use the device cpu.",
        )
    return tuple(_webgpu_device(DeviceName(WEBGPU, index), handle) for index, handle in enumerate(found))


def _webgpu_device(name: DeviceName, handle: Any) -> ComputeDevice:
    hardware = handle.device
    vendor = str(hardware.vendor) or f"vendor {hardware.vendor_id:#06x}"
    described = str(dict(hardware.metadata).get("Description", "")) or f"device {hardware.device_id:#06x}"
    is_software = hardware.type == ort.OrtHardwareDeviceType.CPU
    text = "a program on the CPU" if is_software else f"{vendor} {described}"
    return ComputeDevice(name, str(handle.ep_name), _version_of(handle), text, is_software, handle)


def _own_devices(provider: GpuProvider) -> tuple[ComputeDevice, ...]:
    """Return the GPUs that edge-rt's kernels can run on."""
    _require_onnxruntime(provider.kind)
    gpus = provider.gpus()
    handles = {int(handle.ep_metadata["gpu"]): handle for handle in _handles(provider.kind, provider.path)}
    return tuple(_own_device(provider, gpu, handles[gpu.number]) for gpu in gpus if gpu.number in handles)


def _own_device(provider: GpuProvider, gpu: Gpu, handle: Any) -> ComputeDevice:
    device = ComputeDevice(
        gpu.device_name,
        str(handle.ep_name),
        _version_of(handle),
        gpu.name,
        gpu.is_software,
        handle,
        provider.facts(gpu),
        {RECORDS: "1"},
        library=provider.library,
    )
    known = provider.known_test(gpu)
    return device if known is None else tested(device, known)


_REGISTRATION: Final = threading.Lock()
_REGISTERED: Final[set[Path]] = set()


def _require_onnxruntime(kind: str) -> None:
    version, least = str(ort.__version__), _LEAST_ONNXRUNTIME[kind]
    if tuple(int(part) for part in version.partition("+")[0].split(".")[:2]) < least:
        raise VersionMismatch(
            f"ONNX Runtime is too old for the provider for {kind}.",
            f"Version {version} is installed, at least {least[0]}.{least[1]} is needed.",
            "Upgrade it with pip: onnxruntime, or onnxruntime-gpu if that is the wheel.",
        )


def _handles(kind: str, library: Path) -> list[Any]:
    """Return ONNX Runtime's devices of a provider, whose library is loaded unless it is."""
    _require_onnxruntime(kind)
    with _REGISTRATION:
        devices = list(ort.get_ep_devices())
        # Registering a library a second time, here or in the program around edge-rt, makes its devices unusable.
        if library not in _REGISTERED and not any(_library_of(handle) == str(library) for handle in devices):
            try:
                ort.register_execution_provider_library(f"edge_rt.{kind}", str(library))
            except Exception as error:
                raise VersionMismatch(
                    f"ONNX Runtime refused the provider for {kind}.",
                    f"{' '.join(str(error).split())[:300].rstrip('.')}.",
                    "Install its wheel again, or another version of ONNX Runtime.",
                ) from error
            devices = list(ort.get_ep_devices())
        _REGISTERED.add(library)
    return [handle for handle in devices if _library_of(handle) == str(library)]


def _library_of(handle: Any) -> str:
    return str(handle.ep_metadata.get("library_path", ""))


def _version_of(handle: Any) -> str:
    return str(handle.ep_metadata.get("version", ""))
