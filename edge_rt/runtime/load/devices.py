"""The device that a package is loaded on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from edge_rt.compute_device import ComputeDevice, PlacedNode
from edge_rt.device_names import CUDA, GPUS, WEBGPU, parse_device
from edge_rt.errors import ConfigError
from edge_rt.gpu_provider import INSTALLED, GpuProvider
from edge_rt.package.manifest import Manifest
from edge_rt.package.reader import Package
from edge_rt.providers import find_device, find_portable_cuda
from edge_rt.session import Session, pool_size
from edge_rt.system.machine import usable_cpus

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
        device: its name.
        manifest: of the package.
        own: edge-rt's own provider.
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
        sessions: of the package, opened there.
    """
    nodes = [node for session in sessions for node in session.placement if node.operator == _ATTENTION]
    return None if nodes and all(node.is_on_cpu for node in nodes) else device


def placement(package: Package, device: str, own: GpuProvider = INSTALLED) -> tuple[PlacedNode, ...]:
    """Return where the nodes of a package's graphs are computed on a device; nothing is kept open.

    Args:
        package: the opened package.
        device: the name of a GPU.
        own: edge-rt's own provider.

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
