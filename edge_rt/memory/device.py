"""Machines that a model is to run on: presets, machines saved by ``edge-rt doctor --save-profile``, and this machine.

Presets are data, ``devices.json``: every figure has its source, and a tag that says how far it can be trusted. They are
priors, for a plan made elsewhere; on the machine itself memory is asked for and bandwidth is measured.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import ConfigError, StorageError
from edge_rt.system.atomic_files import write_atomically
from edge_rt.system.portable_names import is_portable_name

PRESETS_FILE: Final = Path(__file__).with_name("devices.json")
GENERIC: Final = "generic"
"""Preset whose speed is taken for a machine that was never measured."""
MACHINE: Final = "this machine"
SAVED_NAME: Final = "default"
"""Name under which ``this_device`` looks for its measured speed."""
LIST: Final = "list"
"""Given as a device, it shows them all."""
LOCAL: Final = (None, "auto", "cpu")
"""Given as a device, or left out, they mean this machine."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_GB: Final = 10**9
_VERSION: Final = 1


@dataclass(frozen=True)
class Device:
    """Memory and speed of a machine.

    Attributes:
        name: of the preset, or under which it was saved.
        total_bytes: memory of the machine.
        available_bytes: what a process may have of it.
        bandwidth: bytes per second that all threads read together, sustained.
        step_overhead_s: seconds of a pass beyond reading weights and cache.
        row_cost: (rows, time of a pass over them as a multiple of one row's), from (1, 1.0) on, rising; at least two.
        base_bytes: resident memory of a process that has imported what a load imports; None takes ``terms.BASE_BYTES``.
        is_measured: whether bandwidth was measured on this machine.
        threads: that compute.
    """

    name: str
    total_bytes: int
    available_bytes: int
    bandwidth: float
    step_overhead_s: float
    row_cost: tuple[tuple[int, float], ...]
    base_bytes: int | None = None
    is_measured: bool = False
    threads: int = 4

    def problem(self) -> str | None:
        """Return what is wrong with the numbers, or None."""
        for name in ("total_bytes", "available_bytes", "bandwidth", "step_overhead_s", "threads"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                return f"{name} is {value}, must be above 0"
        if self.base_bytes is not None and self.base_bytes <= 0:
            return f"base_bytes is {self.base_bytes}, must be above 0"
        rows, costs = [row for row, _ in self.row_cost], [cost for _, cost in self.row_cost]
        if len(rows) < 2 or (rows[0], costs[0]) != (1, 1.0):
            return "row_cost must begin with (1, 1.0) and have a second pair"
        if rows != sorted(set(rows)) or costs != sorted(costs) or not math.isfinite(costs[-1]):
            return "row_cost must rise"
        return None


@dataclass(frozen=True)
class Preset:
    """A device of ``devices.json``.

    Attributes:
        name: as ``--device`` takes it.
        text: what it is.
        device: its figures.
        evidence: for every figure its tag and source.
    """

    name: str
    text: str
    device: Device
    evidence: Mapping[str, tuple[str, str]]


@cache
def presets() -> Mapping[str, Preset]:
    """Return all presets by name, in the order of the file."""
    return read_presets(PRESETS_FILE)


def read_presets(path: Path) -> Mapping[str, Preset]:
    """Return the presets of a file.

    Raises:
        ConfigError: the file is malformed, or says impossible things of a device.
        StorageError: it cannot be read.
    """
    document = _read(path)
    result: dict[str, Preset] = {}
    try:
        for entry in document["devices"]:
            figures = {key: value for key, value in entry.items() if isinstance(value, dict)}
            values = {key: value["value"] for key, value in figures.items()}
            device = Device(
                name=entry["name"],
                total_bytes=int(values["total_gb"] * _GB),
                available_bytes=int(values["available_gb"] * _GB),
                bandwidth=values["bandwidth_gb_s"] * _GB * values["efficiency"],
                step_overhead_s=values["step_overhead_ms"] / 1e3,
                row_cost=tuple((int(rows), float(cost)) for rows, cost in values["row_cost"]),
                threads=int(entry["threads"]),
            )
            evidence = {key: (str(value["evidence"]), str(value["source"])) for key, value in figures.items()}
            result[device.name] = Preset(device.name, entry["text"], _checked(device, path), evidence)
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(path, f"{type(error).__name__}: {error}") from error
    return result


def preset(name: str) -> Device:
    """Return a preset's device, or one that was saved under that name.

    Raises:
        ConfigError: there is none of that name, or the saved one is malformed.
        StorageError: the saved one cannot be read.
    """
    if name in presets():
        return presets()[name].device
    if (path := device_path(name)).is_file():
        return load_device(path)
    raise ConfigError(
        "There is no device of that name.",
        f"Got {name!r:.60}; {len(presets())} presets are known, {len(saved_names())} machines are saved.",
        "See edge-rt plan --device list.",
    )


def devices_folder() -> Path:
    """Return where devices are saved."""
    import platformdirs

    return Path(platformdirs.user_data_dir("edge-rt", appauthor=False)) / "devices"


def device_path(name: str, folder: Path | None = None) -> Path:
    """Return the file of a saved device.

    Raises:
        ConfigError: the name cannot be one.
    """
    if _NAME.fullmatch(name) is None or not is_portable_name(name):
        raise ConfigError(
            "That cannot be the name of a saved device.",
            f"Got {name!r:.60}.",
            "Use up to 64 small letters, digits, dots, dashes and underscores, no dot at the end, no device's name.",
        )
    return (devices_folder() if folder is None else folder) / f"{name}.json"


def check_new_name(name: str) -> None:
    """Refuse a name under which a device could be saved, but not be asked for.

    Raises:
        ConfigError: it cannot be a name, or means something else to ``--device``.
    """
    device_path(name)
    if name == LIST or name in LOCAL or name in presets():
        what = "is the name of a preset" if name in presets() else "has another meaning for --device"
        raise ConfigError("That cannot be the name of a saved device.", f"{name!r} {what}.", "Choose another name.")


def saved_names(folder: Path | None = None) -> list[str]:
    """Return the names of the saved devices, in order."""
    folder = devices_folder() if folder is None else folder
    return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []


def save_device(device: Device, path: Path) -> None:
    """Write a device; the file is either as before or whole.

    Raises:
        StorageError: it cannot be written.
    """
    text = json.dumps({"version": _VERSION, **asdict(device)}, indent=2) + "\n"
    write_atomically(path, [text.encode()], parents=True)


def load_device(path: Path) -> Device:
    """Read a saved device.

    Raises:
        ConfigError: it is malformed.
        StorageError: it cannot be read.
    """
    document = _read(path)
    try:
        if document.pop("version") != _VERSION:
            raise _malformed(path, f"it is not of version {_VERSION}")
        document["row_cost"] = tuple((int(rows), float(cost)) for rows, cost in document["row_cost"])
        return _checked(Device(**document), path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise _malformed(path, f"{type(error).__name__}: {error}") from error


def this_device(
    path: Path | None = None, *, available: Callable[[], int] | None = None, threads: int | None = None
) -> Device:
    """Return this machine: memory as it is now, speed as it was measured or, if it was not, as a preset has it.

    A saved description that cannot be used is taken as none: a model loads without it.

    Args:
        path: of the saved description; None takes ``SAVED_NAME``'s.
        available: returns the bytes that there are; None asks the system and the cgroups.
        threads: that compute; None takes every CPU this process may use.
    """
    import psutil

    from edge_rt.system.machine import available_memory_bytes, usable_cpus

    device = presets()[GENERIC].device
    path = device_path(SAVED_NAME) if path is None else path
    with suppress(ConfigError, StorageError):
        if path.is_file():
            device = load_device(path)
    return replace(
        device,
        name=MACHINE,
        total_bytes=int(psutil.virtual_memory().total),
        available_bytes=max(1, (available or available_memory_bytes)()),
        threads=usable_cpus() if threads is None else threads,
    )


def _checked(device: Device, path: Path) -> Device:
    if (problem := device.problem()) is not None:
        raise _malformed(path, f"of {device.name!r:.60} {problem}")
    return device


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", f"{error.strerror}.", "Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"{error}") from error


def _malformed(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"{path} describes no device.", f"{reason[:200]}.", "Measure again: edge-rt doctor --save-profile."
    )
