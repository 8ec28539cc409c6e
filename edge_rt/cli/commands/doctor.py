"""``edge-rt doctor``: facts about this machine and its installation, and what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from edge_rt.cli.options import flags
from edge_rt.cli.options.groups import OutputFlags, PlaceFlags
from edge_rt.cli.options.spread import only
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.inspect_report import device_facts, device_lines
from edge_rt.cli.render.stats import facts_lines
from edge_rt.device.names import GPU_LAYERS
from edge_rt.errors import ConfigError, EdgeRTError, RuntimeUnavailable, StorageError
from edge_rt.ort.op_library import NativeStatus, library_path, native_status
from edge_rt.version import VERSION

if TYPE_CHECKING:
    from edge_rt.ort.providers import ProviderState

WHEELS: Final = ("onnxruntime", "onnxruntime-gpu")
"""Wheels that install the same folder."""
_TITLES: Final = {
    "edge_rt": "edge-rt",
    "memory_granted_bytes": "memory limit (cgroup)",
    "vulkan_kernel_cache": "Vulkan kernel cache",
}
"""Names of facts that are shown otherwise than they are written in JSON."""
PROVIDER_WHEELS: Final = ("onnxruntime-ep-webgpu",)
LIBRARIES: Final = ("numpy", "tokenizers", "jinja2", "gguf", "onnx", "onnx-ir", "huggingface_hub")


@dataclass(frozen=True)
class SaveFlags:
    """Whether this machine is measured, the name of the saved device description, and kernels to compile."""

    save_profile: Annotated[bool, flags.SAVE_PROFILE] = False
    profile_name: Annotated[str | None, flags.PROFILE_NAME] = None
    compile: Annotated[str | None, flags.COMPILE] = None


def doctor(saved: SaveFlags, output: OutputFlags, places: Annotated[PlaceFlags, only("store", "config")]) -> int:
    """Report what this machine offers; exit code 5 if something required is missing."""
    terminal = output.terminal()
    # What is asked for is checked before the measurement.
    if saved.compile is not None:
        from edge_rt.device.kernels import parse_architecture

        parse_architecture(saved.compile)
    name = _profile_name(saved.profile_name, saved.save_profile)
    facts: dict[str, Any] = {"edge_rt": VERSION, "python": platform.python_version(), "platform": platform.platform()}
    problems: list[str] = []
    warnings: list[str] = []
    facts |= _machine()
    facts |= _store(places, problems)
    facts["wheels"] = {name: version for name in (*WHEELS, *PROVIDER_WHEELS) if (version := _version(name))}
    facts["libraries"] = {name: _version(name) for name in LIBRARIES}
    facts["providers"], facts["devices"] = _providers(problems, warnings)
    facts |= native_facts(native_status(library_path()), warnings)
    problems += [f"The library {name} is missing." for name, version in facts["libraries"].items() if version is None]
    if set(WHEELS) <= set(facts["wheels"]):
        warnings.append(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other: "
            "uninstall both, then install one."
        )
    if saved.compile is not None:
        facts["kernels"] = _compiled(terminal, saved.compile)
    facts["kernel_cache"] = _kernel_cache(warnings)
    facts["vulkan_kernel_cache"] = _vulkan_kernel_cache(warnings)
    facts["pass_costs"] = _pass_costs()
    if name is not None:
        facts |= _measured(terminal, name, warnings)
    if output.json:
        terminal.document({**facts, "warnings": warnings, "problems": problems})
    else:
        terminal.table(_readable(facts))
        for warning in warnings:
            terminal.warn(warning)
        for problem in problems:
            terminal.error(problem)
        if not problems:
            terminal.note("Everything required is installed.", "green")
    return RuntimeUnavailable.exit_code if problems else 0


def _machine() -> dict[str, Any]:
    import psutil

    from edge_rt.system.machine import cgroup_memory_bytes, cpu_model, usable_cpus

    memory = psutil.virtual_memory()
    return {
        "cpus_usable": usable_cpus(),
        "cpus": os.cpu_count(),
        "cpu": cpu_model(),
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "memory_granted_bytes": cgroup_memory_bytes(),
    }


def _profile_name(given: str | None, is_saved: bool) -> str | None:
    """Return the name of the device description to save; None if none is saved."""
    from edge_rt.memory.device import SAVED_NAME, check_new_name

    if not is_saved:
        if given is not None:
            raise ConfigError(
                "--profile-name is given without --save-profile.", f"Got {given!r:.60}.", "Add --save-profile."
            )
        return None
    name = SAVED_NAME if given is None else given
    check_new_name(name)
    return name


def _measured(terminal: Terminal, name: str, warnings: list[str]) -> dict[str, Any]:
    """Measure this machine and save its device description under a name."""
    from edge_rt.measure.machine import measure_bandwidth, measure_device
    from edge_rt.memory.device import device_path, save_device

    terminal.note("Measuring the memory bandwidth.", "dim")

    def bandwidth(threads: int) -> float:
        measured = measure_bandwidth(threads)
        if measured.is_disturbed:
            warnings.append(
                f"Other programs were running: the measured bandwidth varied by {100 * measured.spread:.0f} %, the "
                "best was kept. Measure again when the machine is less busy."
            )
        return measured.bytes_per_second

    profile = measure_device(name, bandwidth=bandwidth)
    path = device_path(name)
    save_device(profile, path)
    return {
        "profile": str(path),
        "profile_bandwidth_bytes": int(profile.bandwidth),
        "profile_base_bytes": profile.base_bytes,
    }


def _compiled(terminal: Terminal, architecture: str) -> dict[str, Any]:
    """Compile the kernels for an architecture, unless they were, and return what was made."""
    from edge_rt.device.cuda import INSTALLED_CUDA, compiler_here, kernel_cache, prebuilt
    from edge_rt.device.kernels import parse_architecture

    nvrtc = compiler_here(INSTALLED_CUDA)
    terminal.note(f"Compiling the kernels for {architecture}.", "dim")
    cubins = prebuilt(parse_architecture(architecture), nvrtc)
    return {
        "architecture": architecture,
        "nvrtc": ".".join(map(str, nvrtc.version)),
        "files": len(cubins),
        "size_bytes": sum(map(len, cubins.values())),
        "folder": str(kernel_cache()),
    }


def _kernel_cache(warnings: list[str]) -> dict[str, Any] | None:
    """Return where compiled kernels for NVIDIA GPUs are kept, how much it is and for which architectures."""
    from edge_rt.device.cuda import kernel_cache
    from edge_rt.device.kernels import cache_contents

    try:
        contents = cache_contents(kernel_cache())
    except StorageError as error:
        warnings.append(str(error))
        return None
    return {
        "folder": str(contents.folder),
        "files": contents.files,
        "size_bytes": contents.size_bytes,
        "architectures": [f"sm_{compute}" for compute in contents.architectures],
    }


def _vulkan_kernel_cache(warnings: list[str]) -> dict[str, Any] | None:
    """Return where what Vulkan's drivers make of kernels is kept, and how much it is."""
    from edge_rt.device.compiled_files import held
    from edge_rt.device.vulkan import INSTALLED_VULKAN

    folder = INSTALLED_VULKAN.compiled_folder
    try:
        files, size = held(folder)
    except StorageError as error:
        warnings.append(str(error))
        return None
    return {"folder": str(folder), "files": files, "size_bytes": size}


def _pass_costs() -> list[dict[str, Any]]:
    """Return what passes cost on this CPU, relative to one row, how old that is and how many passes it rests on."""
    from edge_rt.runtime.speculation.cost_model import user_costs
    from edge_rt.system.machine import cpu_model

    known = user_costs().aged({"cpu": cpu_model(), "edge_rt": VERSION})
    return [
        {
            "package_id": key.get("package_id"),
            "kv_format": key.get("kv_format"),
            "threads": key.get("threads"),
            "drafts": next((key[name] for name in ("part", "graph") if name in key), None),
            "device": key.get("device"),
            "passes": costs.passes,
            "is_steady": costs.steady,
            "age_s": round(max(time.time() - when, 0.0)),
            "row_ms": costs.ms[0][0],
            "relative": {
                str(rows): round(ms / costs.ms[0][0], 2) for rows, ms in zip(costs.rows, costs.ms[0], strict=True)
            },
        }
        for key, costs, when in known
    ]


def _store(places: PlaceFlags, problems: list[str]) -> dict[str, Any]:
    from edge_rt.system.files import free_bytes

    try:
        root = places.open_store().root
        free = free_bytes(root)
    except (EdgeRTError, OSError) as error:
        problems.append(f"The store cannot be used: {error}")
        return {"store": None, "store_free_bytes": None}
    return {"store": str(root), "store_free_bytes": free}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _providers(problems: list[str], warnings: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the execution providers of ONNX Runtime's wheel, and the GPUs that others compute on."""
    try:
        from edge_rt.ort.providers import provider_states
        from edge_rt.ort.session import available_providers, check_onnxruntime_version

        check_onnxruntime_version()
        states = provider_states()
        warnings += hidden_gpus(states)
        return available_providers(), device_facts(states)
    except (EdgeRTError, ImportError) as error:
        problems.append(str(error))
        return [], {}


def hidden_gpus(states: Sequence[ProviderState]) -> list[str]:
    """Return why GPUs may be missing where a driver lists programs on the CPU alone."""
    return [f"{state.kind}: {state.hidden}" for state in states if state.hidden is not None]


def native_facts(status: NativeStatus, warnings: list[str]) -> dict[str, Any]:
    """Return facts about the native operators; portable packages work without them, so their absence is a warning."""
    if status.reason is not None:
        warnings.append(f"Native packages cannot be run: {status.reason}")
    return {
        "native_library": status.library,
        "native_reason": status.reason,
        "instruction_sets": list(status.instruction_sets),
        "best_instruction_set": status.best,
    }


def _readable(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts as rows of a table; each device has a row, and what there is not is left out."""
    from edge_rt.system.byte_size import human_bytes, show_size

    shown: list[tuple[str, Any]] = []  # settings of passes may have the same name
    facts = dict(facts)
    if (kernels := facts.get("kernels")) is not None:
        facts["kernels"] = f"{kernels['files']} for {kernels['architecture']} by NVRTC {kernels['nvrtc']}"
    if (cache := facts["kernel_cache"]) is not None:
        held = f"{human_bytes(cache['size_bytes'])} for {', '.join(cache['architectures'])}"
        facts["kernel_cache"] = f"{cache['folder']} ({held if cache['files'] else 'empty'})"
    if (cache := facts["vulkan_kernel_cache"]) is not None:
        held = human_bytes(cache["size_bytes"]) if cache["files"] else "empty"
        facts["vulkan_kernel_cache"] = f"{cache['folder']} ({held})"
    for name, value in facts.items():
        if name == "devices":
            shown += [(f"device {kind}", text) for kind, text in device_lines(value)]
        elif name == "pass_costs":
            # What drafts is in the document alone.
            for one in (one for one in value if one["drafts"] is None):
                setting = f"{str(one['package_id'])[:8]}, {one['kv_format']}, {one['threads']} threads"
                setting += _place(one["device"])
                curve = ", ".join(f"{rows}: {share}x" for rows, share in one["relative"].items())
                sure = f"{one['passes']} passes{'' if one['is_steady'] else ', not sure yet'}"
                shown.append((f"passes ({setting})", f"{curve} ({sure}, {one['age_s'] / 3600:.1f} hours old)"))
        elif name == "profile_bandwidth_bytes":
            shown.append(("profile bandwidth", f"{show_size(value)} per second"))
        elif name.endswith("_bytes") and value is not None:
            show = human_bytes if name.startswith("store_") else show_size  # a disk, or memory
            shown.append((_TITLES.get(name, name.removesuffix("_bytes").replace("_", " ")), show(value)))
        else:
            shown.append((_TITLES.get(name, name.replace("_", " ")), value))
    shown.append(("executable", sys.executable))
    told = [(name, value) for name, value in shown if value not in (None, "", [], {}, ())]
    return [row for name, value in told for row in facts_lines({name: value})]


def _place(device: Any) -> str:
    """Return which GPU computed passes, behind a comma; nothing for the CPU."""
    if not isinstance(device, Mapping):
        return ""
    layers = f", {device[GPU_LAYERS]} layers there" if GPU_LAYERS in device else ""
    return f", {device.get('device')}{layers}"
