"""GPUs that a model is loaded on, opened."""

from __future__ import annotations

from collections.abc import Callable

from edge_rt.device.names import CUDA, GPUS, DeviceName
from edge_rt.device.provider import INSTALLED, GpuProvider
from edge_rt.errors import ConfigError
from edge_rt.ort.compute_device import ComputeDevice, PlacedNode
from edge_rt.ort.providers import find_device, find_portable_cuda
from edge_rt.ort.session import Session
from edge_rt.package.manifest import Manifest
from edge_rt.package.reader import Package
from edge_rt.runtime.load.facts import require_op_profile


def open_device(
    name: DeviceName,
    manifest: Manifest,
    provider: GpuProvider = INSTALLED,
    on_compile: Callable[[], None] | None = None,
) -> ComputeDevice:
    """Return the GPU that a package is loaded on.

    Args:
        on_compile: called before the kernels for an NVIDIA GPU are compiled, when it is used for the first time.
    """
    require_op_profile(name, manifest.op_profile)
    if name.kind == CUDA and manifest.op_profile == "portable":
        return find_portable_cuda(name, provider)
    device = find_device(name, provider)
    if name.kind == CUDA:
        provider.make_ready(name.index, on_compile)
    return device


def placement(package: Package, name: DeviceName, provider: GpuProvider = INSTALLED) -> tuple[PlacedNode, ...]:
    """Return where the nodes of a package's graphs are computed on a GPU; nothing is kept open."""
    if not name.is_gpu:
        raise ConfigError("Nodes are placed on GPUs only.", f"Got the device {name}.", f"Name one: {', '.join(GPUS)}.")
    device = open_device(name, package.manifest, provider)
    nodes: list[PlacedNode] = []
    for graph in package.manifest.graphs:
        session = Session(package.file(graph), device=device, profile=package.manifest.op_profile)
        nodes += session.placement
    return tuple(nodes)
