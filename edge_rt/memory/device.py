"""Device descriptions: presets, devices saved by ``edge-rt doctor --save-profile``, and this machine.

Presets are in ``devices.json``, where every figure has a source and a tag for how reliable it is. They serve to plan
for another machine. For this machine the available memory is read from the system and the bandwidth is measured.
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
"""Preset whose speed is used for a machine that was never measured."""
MACHINE: Final = "this machine"
SAVED_NAME: Final = "default"
"""Name of the device description from which ``this_device`` reads its measured speed."""
LIST: Final = "list"
"""Value of ``--device`` that lists all devices."""
LOCAL: Final = (None, "auto", "cpu")
"""Values of ``--device`` that mean this machine; None is the flag left out."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_GB: Final = 10**9
_VERSION: Final = 1


@dataclass(frozen=True)
class Device:
    """Memory and speed of a machine.

    Attributes:
        name: name of the preset or of the saved device.
        total_bytes: memory of the machine.
        available_bytes: memory that a process may use.
        bandwidth: sustained bytes per second that all threads read together.
        step_overhead_s: seconds of a pass beyond reading weights and KV cache.
        row_cost: pairs of (rows, latency of a pass over them relative to one row); starts with (1, 1.0), ascending, at
            least two pairs.
        base_bytes: resident memory of a process after the imports that a load needs; None uses ``terms.BASE_BYTES``.
        is_measured: whether the bandwidth was measured on this machine.
        threads: threads that compute.
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
        name: value of ``--device`` that selects it.
        text: description for people.
        device: its figures.
        evidence: tag and source of every figure.
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
        ConfigError: the file is malformed, or has impossible figures for a device.
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
    """Return the device of a preset, or a saved device of that name.

    Raises:
        ConfigError: no device has that name, or the saved one is malformed.
        StorageError: the saved one cannot be read.
    """
    if name in presets():
        return presets()[name].device
    if (path := device_path(name)).is_file():
        return load_device(path)
    raise ConfigError(
        "There is no device of that name.",
        f"Got {name!r:.60}; there are {len(presets())} presets and {len(saved_names())} saved devices.",
        "See edge-rt plan --device list.",
    )


def devices_folder() -> Path:
    """Return the folder of the saved devices."""
    import platformdirs

    return Path(platformdirs.user_data_dir("edge-rt", appauthor=False)) / "devices"


def device_path(name: str, folder: Path | None = None) -> Path:
    """Return the file of a saved device.

    Raises:
        ConfigError: the name is not valid.
    """
    if _NAME.fullmatch(name) is None or not is_portable_name(name):
        raise ConfigError(
            "That cannot be the name of a saved device.",
            f"Got {name!r:.60}.",
            "Use up to 64 lower-case letters, digits, dots, dashes and underscores, without a dot at the end; names of "
            "Windows devices are not allowed.",
        )
    return (devices_folder() if folder is None else folder) / f"{name}.json"


def check_new_name(name: str) -> None:
    """Refuse a name that a saved device cannot have, because ``--device`` could not select it.

    Raises:
        ConfigError: the name is not valid, or has another meaning for ``--device``.
    """
    device_path(name)
    if name == LIST or name in LOCAL or name in presets():
        what = "is the name of a preset" if name in presets() else "has another meaning for --device"
        raise ConfigError("That cannot be the name of a saved device.", f"{name!r} {what}.", "Choose another name.")


def saved_names(folder: Path | None = None) -> list[str]:
    """Return the names of the saved devices, sorted."""
    folder = devices_folder() if folder is None else folder
    return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []


def save_device(device: Device, path: Path) -> None:
    """Save a device description; the file is written atomically.

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
    """Return this machine: its current memory, and its measured speed or, if it was not measured, that of a preset.

    A saved device description that cannot be used is ignored, because a model loads without it.

    Args:
        path: file of the saved device description; None uses the one named ``SAVED_NAME``.
        available: returns the available bytes; None reads them from the system and the cgroups.
        threads: threads that compute; None uses every CPU this process may use.
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
        f"{path} is not a device description.", f"{reason[:200]}.", "Measure again: edge-rt doctor --save-profile."
    )
