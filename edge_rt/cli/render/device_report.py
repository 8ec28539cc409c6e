"""Devices, and where the nodes of a graph run, as shown by ``doctor`` and ``inspect``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_rt.device.names import GPU_LAYERS, DeviceName
from edge_rt.system.byte_size import counted

if TYPE_CHECKING:
    from edge_rt.device.provider import GpuProvider
    from edge_rt.ort.providers import ProviderState


def device_facts(states: list[ProviderState]) -> dict[str, Any]:
    """Return kind of device -> its devices, or why there is none, as a JSON object."""
    return {
        state.kind: str(state.problem)
        if state.problem is not None
        else [{**device.facts, "is_software": device.is_software} for device in state.devices]
        for state in states
    }


def device_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name of every device, or the kind that there is none of, with a text for people."""
    lines: list[tuple[str, str]] = []
    for kind, found in facts.items():
        if isinstance(found, str):
            lines.append((kind, found))
        else:
            lines += [(one["device"], f"{one['text']} ({_more(one)})") for one in found]
    return lines


def device_text(found: str | Mapping[str, Any]) -> str:
    """Return the device of ``Model.describe`` for people."""
    if isinstance(found, str):
        return found
    layers = f", {counted(found[GPU_LAYERS], 'layer')}" if GPU_LAYERS in found else ""
    return f"{found['device']} ({found['text']}{layers})"


def _more(device: dict[str, Any]) -> str:
    from edge_rt.system.byte_size import human_bytes

    if "architecture" not in device:
        return f"{device['provider']} {device['version']}"
    shared = " shared with the machine" if device["shares_memory"] else ""
    memory = f"{human_bytes(device['memory_bytes'])}{shared}"
    return f"{device['architecture']}, {memory}, driver of CUDA {device['driver']}, {device['provider']}"


def placement_facts(path: Path, device: DeviceName, own: GpuProvider | None = None) -> dict[str, Any]:
    """Return where the nodes of a package run on a device, as a JSON object.

    Args:
        own: edge-rt's own provider; None: the installed one.

    Raises:
        EdgeRTError: the device or the package cannot be used.
    """
    from edge_rt.device.provider import INSTALLED
    from edge_rt.package.reader import open_package
    from edge_rt.runtime.load.devices import placement

    nodes = placement(open_package(path), device, own or INSTALLED)
    return {
        "device": str(device),
        "nodes": dict(Counter(node.provider for node in nodes)),
        "cpu_nodes": [f"{node.name} ({node.operator})" for node in nodes if node.is_on_cpu],
    }


def placement_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the same as rows of a table."""
    rows = [("device", str(facts["device"]))]
    rows += [(provider, counted(count, "node")) for provider, count in facts["nodes"].items()]
    return [*rows, ("on the CPU", ", ".join(facts["cpu_nodes"]) or "none")]
