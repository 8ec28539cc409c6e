"""Reads descriptions of devices: the presets, and devices that were saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import ConfigError, StorageError
from edge_rt.memory.figures import Device, GpuFigures

_GB: Final = 10**9


@dataclass(frozen=True)
class Preset:
    """A device of ``devices.json``.

    Attributes:
        name: value of ``--device`` that selects it.
        text: description for people.
        device: its figures.
        evidence: tag and source of every figure.
    """

    name: str
    text: str
    device: Device
    evidence: Mapping[str, tuple[str, str]]


def read_presets(path: Path) -> Mapping[str, Preset]:
    """Return the presets of a file.

    Raises:
        ConfigError: the file is malformed, or has impossible figures for a device.
        StorageError: it cannot be read.
    """
    document = read_document(path)
    result: dict[str, Preset] = {}
    try:
        for entry in document["devices"]:
            gpu = entry.get("gpu")
            host = _figures(entry)
            values = {key: value["value"] for key, value in host.items()}
            device = Device(
                name=entry["name"],
                total_bytes=int(values["total_gb"] * _GB),
                available_bytes=int(values["available_gb"] * _GB),
                **_speed(values),
                threads=int(entry["threads"]),
                gpu=None if gpu is None else _preset_gpu(gpu, values),
            )
            of_gpu = {} if gpu is None else {f"gpu.{key}": value for key, value in _figures(gpu).items()}
            evidence = {key: (str(one["evidence"]), str(one["source"])) for key, one in {**host, **of_gpu}.items()}
            result[device.name] = Preset(device.name, entry["text"], checked(device, path), evidence)
    except (KeyError, TypeError, ValueError) as error:
        raise malformed(path, f"{type(error).__name__}: {error}") from error
    return result


def _figures(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a machine or of a GPU, each with its evidence."""
    return {key: value for key, value in entry.items() if isinstance(value, dict) and "value" in value}


def _speed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that say how fast a machine or a GPU is."""
    return {
        "bandwidth": values["bandwidth_gb_s"] * _GB * values["efficiency"],
        "step_overhead_s": values["step_overhead_ms"] / 1e3,
        "row_cost": tuple((int(rows), float(cost)) for rows, cost in values["row_cost"]),
    }


def _preset_gpu(entry: Mapping[str, Any], host: Mapping[str, Any]) -> GpuFigures:
    """Return a preset's GPU: one with unified memory has the machine's."""
    values = {key: value["value"] for key, value in _figures(entry).items()}
    own = host if entry["is_unified"] else values
    return GpuFigures(
        name=entry["name"],
        total_bytes=int(own["total_gb"] * _GB),
        available_bytes=int(own["available_gb"] * _GB),
        **_speed(values),
        is_unified=bool(entry["is_unified"]),
    )


def checked(device: Device, path: Path) -> Device:
    """Return a device that was read from a file if its numbers are possible.

    Raises:
        ConfigError: they are not.
    """
    if (problem := device.problem()) is not None:
        raise malformed(path, f"of {device.name!r:.60} {problem}")
    return device


def read_document(path: Path) -> Any:
    """Return the JSON of a file.

    Raises:
        ConfigError: it is no JSON.
        StorageError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise malformed(path, f"{error}") from error


def malformed(path: Path, reason: str) -> ConfigError:
    """Return the error for a file that describes no device."""
    return ConfigError(
        f"{path} is not a device description.", f"{reason[:200]}.", "Measure again: edge-rt doctor --save-profile."
    )
