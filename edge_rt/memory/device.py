"""Device descriptions: presets, devices saved by ``edge-rt doctor --save-profile``, and this machine.

Presets are in ``devices.json``, where every figure has a source and a tag for how reliable it is. They serve to plan
for another machine. For this machine the available memory is read from the system and the bandwidth is measured.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from edge_rt.device.cuda import CONTEXT_BYTES, DRIVER_BYTES, PAGE_BYTES
from edge_rt.device.names import DEVICES_HELP, VULKAN, DeviceName, is_local, parse_device, unknown_device
from edge_rt.errors import ConfigError, StorageError
from edge_rt.memory.figures import Device, GpuFigures
from edge_rt.system.byte_size import round_up
from edge_rt.system.checkpoint_names import is_portable_name
from edge_rt.system.files import write_atomically
from edge_rt.system.json_files import parse_json, read_bytes

_GB: Final = 10**9
SHARED_HEAP: Final = 1 / 3
"""How much of a machine's memory Vulkan's driver lends an integrated GPU: an estimate. Mesa's for AMD names two thirds
of what the kernel gives, usually half."""


@dataclass(frozen=True)
class Preset:
    """A device of ``devices.json``.

    Attributes:
        vulkan: name of its GPU, for which plans with Vulkan are made; None: there are none.
    """

    name: str
    text: str
    device: Device
    evidence: Mapping[str, tuple[str, str]]
    vulkan: str | None = None

    def with_vulkan(self) -> Device:
        """Return the device with its GPU as Vulkan's driver has it: what that takes and lends are estimates.

        Raises:
            ConfigError: there is no plan for it.
        """
        from edge_rt.device.vulkan import VulkanProvider

        if self.vulkan is None:
            raise ConfigError(
                f"No plan with Vulkan is made for {self.name}.",
                f"There are those for {', '.join(name for name, one in presets().items() if one.vulkan)}.",
                f"Choose one of these, with :{VULKAN} behind it.",
            )
        machine, gpu = self.device, self.device.gpu
        if gpu is None:
            heap = int(SHARED_HEAP * machine.total_bytes)
            gpu = unmeasured_gpu(self.vulkan, heap, machine.available_bytes, is_unified=True, machine=machine)
        gpu = replace(
            gpu,
            name=self.vulkan,
            context_bytes=VulkanProvider.context_bytes,
            host_bytes=VulkanProvider.host_bytes,
            chunk_bytes=VulkanProvider.chunk_bytes,
            page_bytes=VulkanProvider.page_bytes,
        )
        return replace(machine, name=f"{machine.name}:{VULKAN}", gpu=gpu)


def read_presets(path: Path) -> Mapping[str, Preset]:
    """Return the presets of a file."""
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
            vulkan = entry.get("vulkan")
            result[device.name] = Preset(device.name, entry["text"], checked(device, path), evidence, vulkan)
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
    """Return a device that was read from a file if its numbers are possible."""
    if (problem := device.problem()) is not None:
        raise malformed(path, f"of {device.name!r:.60} {problem}")
    return device


def read_document(path: Path) -> Any:
    """Return the JSON of a file."""
    refuse = functools.partial(malformed, path)
    return parse_json(read_bytes(path, _MAX_BYTES, refuse), refuse)


def malformed(path: Path, reason: str) -> ConfigError:
    """Return the error for a file that describes no device."""
    return ConfigError(
        f"{path} is not a device description.",
        f"{reason[:200].rstrip('.')}.",
        "Measure again: edge-rt doctor --save-profile.",
    )


PRESETS_FILE: Final = Path(__file__).with_name("devices.json")
GENERIC: Final = "generic"
"""Preset whose speed is used for a machine that was never measured."""
GENERIC_GPU: Final = "generic-gpu"
"""Preset whose GPU's speed is used for a GPU that was never measured."""
MACHINE: Final = "this machine"
SAVED_NAME: Final = "default"
"""Name of the device description from which ``this_device`` reads its measured speed."""
LIST: Final = "list"
"""Value of ``--device`` that lists all devices."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VERSION: Final = 1
_MAX_BYTES: Final = 1 << 20


@cache
def presets() -> Mapping[str, Preset]:
    """Return all presets by name, in the order of the file."""
    return read_presets(PRESETS_FILE)


def preset(name: str) -> Device:
    """Return the device of a preset, with ``:vulkan`` behind its name that with its GPU; or a saved device."""
    if name in presets():
        return presets()[name].device
    machine, _, kind = name.partition(":")
    if machine in presets() and kind == VULKAN:
        return presets()[machine].with_vulkan()
    if _can_be_saved(name) and (path := device_path(name)).is_file():
        return load_device(path)
    raise unknown_device(name, (*_preset_names(), *saved_names()))


def _preset_names() -> tuple[str, ...]:
    """Return the names that ``preset`` takes, also those of machines with their GPUs."""
    return (*presets(), *(f"{name}:{VULKAN}" for name, one in presets().items() if one.vulkan))


def unmeasured_gpu(
    name: str,
    total_bytes: int,
    available_bytes: int,
    *,
    is_unified: bool,
    device_name: DeviceName | None = None,
    context_bytes: int = CONTEXT_BYTES,
    host_bytes: int = DRIVER_BYTES,
    chunk_bytes: int = 0,
    page_bytes: int = PAGE_BYTES,
    has_cpu_bits: bool = True,
    imports: bool = False,
    is_software: bool = False,
    machine: Device | None = None,
) -> GpuFigures:
    """Return a GPU of this machine with the speed of a preset, because none was measured.

    Arguments as of ``GpuFigures``.

    Args:
        machine: what the speed depends on of a GPU that has no memory of its own: how fast the machine's is read, and
            of a program on its CPU all. None: that is not known.
    """
    generic = presets()[GENERIC_GPU].device.gpu
    assert generic is not None
    if machine is not None and is_unified:
        generic = replace(generic, bandwidth=machine.bandwidth)
    if machine is not None and is_software:
        generic = replace(generic, step_overhead_s=machine.step_overhead_s, row_cost=machine.row_cost)
    return replace(
        generic,
        name=name,
        total_bytes=total_bytes,
        available_bytes=max(1, available_bytes),
        is_unified=is_unified,
        device_name=device_name,
        context_bytes=context_bytes,
        host_bytes=host_bytes,
        chunk_bytes=chunk_bytes,
        page_bytes=page_bytes,
        has_cpu_bits=has_cpu_bits,
        imports=imports,
        is_software=is_software,
    )


def local_device(name: str) -> DeviceName:
    """Return the device of this machine that a name stands for, where something is to run.

    Raises:
        ConfigError: it is a machine that is only planned for, or none has that name.
    """
    if (machine := name.removesuffix(f":{VULKAN}")) in presets():
        raise ConfigError(
            f"{name} is a machine to plan for, not a device of this one.",
            f"It stands for {presets()[machine].text}.",
            f"Plan for it with edge-rt plan --device. {DEVICES_HELP}",
        )
    return parse_device(name, _preset_names())


def devices_folder() -> Path:
    """Return the folder of the saved devices."""
    import platformdirs

    return Path(platformdirs.user_data_dir("edge-rt", appauthor=False)) / "devices"


def device_path(name: str, folder: Path | None = None) -> Path:
    """Return the file of a saved device."""
    if not _can_be_saved(name):
        raise ConfigError(
            "That cannot be the name of a saved device.",
            f"Got {name!r:.60}.",
            "Use up to 64 lower-case letters, digits, dots, dashes and underscores, without a dot at the end; names of "
            "Windows devices are not allowed.",
        )
    return (devices_folder() if folder is None else folder) / f"{name}.json"


def _can_be_saved(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and is_portable_name(name)


def check_new_name(name: str) -> None:
    """Refuse a name that a saved device cannot have, because ``--device`` could not select it."""
    device_path(name)
    if name == LIST or is_local(name) or name in presets():
        what = "is the name of a preset" if name in presets() else "has another meaning for --device"
        raise ConfigError("That cannot be the name of a saved device.", f"{name!r} {what}.", "Choose another name.")


def saved_names(folder: Path | None = None) -> list[str]:
    """Return the names of the saved devices, sorted."""
    folder = devices_folder() if folder is None else folder
    return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []


def save_device(device: Device, path: Path) -> None:
    """Save a device description; the file is written atomically."""
    text = json.dumps({"version": _VERSION, **asdict(device)}, indent=2) + "\n"
    write_atomically(path, [text.encode()], parents=True)


def load_device(path: Path) -> Device:
    """Read a saved device."""
    document = read_document(path)
    try:
        if document.pop("version") != _VERSION:
            raise malformed(path, f"it is not of version {_VERSION}")
        if document.get("gpu") is not None:
            raise malformed(path, "only presets have a GPU")
        document["row_cost"] = tuple((int(rows), float(cost)) for rows, cost in document["row_cost"])
        return checked(Device(**document), path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise malformed(path, f"{type(error).__name__}: {error}") from error


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
    from edge_rt.system.machine import available_memory_bytes, machine_memory, usable_cpus

    device = presets()[GENERIC].device
    path = device_path(SAVED_NAME) if path is None else path
    with suppress(ConfigError, StorageError):
        if path.is_file():
            device = load_device(path)
    return replace(
        device,
        name=MACHINE,
        total_bytes=machine_memory()[0],
        available_bytes=max(1, (available or available_memory_bytes)()),
        threads=usable_cpus() if threads is None else threads,
    )


LIBRARIES_BYTES: Final = 49 << 20
"""numpy, ONNX Runtime, tokenizers and the runtime, on top of the memory of a command that has imported itself alone.

``generate`` takes 42.7 MiB, and up to 6 more with other versions of the libraries; a chat at a terminal has 8 more for
its line editor. Kernels that map whole large folios map up to 18 MiB more of the libraries' code, if their files were
written in large pieces. A command that loads a model measures itself, so this is a lower bound for it; for ``edge-rt
plan`` it is all that is known.
"""

STEP: Final = 128 << 10
"""The memory of a process is rounded up to this step, so that the same command mostly gets the same plan."""
PLANNING: Final = 1 << 19
"""Margin of ``edge-rt plan`` over a command that loads: processes differ by 0.1 MiB, and a budget that ``plan`` reports
as enough must be enough. The margin is below 1 MiB, so every command refuses a budget 1 MiB below the smallest one."""


def this_machine(own_bytes: int) -> Device:
    """Return this machine with the memory that a command has when it starts.

    The memory of the interpreter and the command line depends on their versions, so it is measured in this process and
    rounded up. A saved device description may have a higher value, which is then used; it never makes a plan smaller.
    """
    return with_base(this_device(), own_bytes)


def holding(resident_bytes: int) -> Device:
    """Return this machine for a process that has everything imported, and holds so many bytes."""
    return replace(this_device(), base_bytes=round_up(resident_bytes, STEP))


def with_base(device: Device, own_bytes: int) -> Device:
    """Return the device with a command's memory as ``base_bytes``, or the measured value if that is more."""
    expected = round_up(own_bytes, STEP) + LIBRARIES_BYTES
    return replace(device, base_bytes=max(expected, device.base_bytes or 0))
