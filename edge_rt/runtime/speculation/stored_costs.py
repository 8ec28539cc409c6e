"""Costs of a package's passes that earlier loads measured on this machine: on the CPU, and on its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from edge_rt.device.names import GPU_LAYERS
from edge_rt.memory.figures import Choice
from edge_rt.memory.speed import speculation_step, speculative_tokens_per_second
from edge_rt.ort.op_library import library_path, native_status
from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts
from edge_rt.system.json_files import JsonCache, user_cache
from edge_rt.system.machine import cpu_model
from edge_rt.version import VERSION

if TYPE_CHECKING:
    from edge_rt.device.driver import Gpu

ANSWER_MS: Final = 0.35
"""What a step of several answers takes for each besides its pass: choosing a token, and its text. Measured with 2 to 8
answers of SmolLM2 on an AMD Zen 5."""
_PARTS: Final = {"part", "graph", "reads", "expert_bytes"}
"""What the keys of costs have that are not those of a model's own passes, but of something that drafts with it; or of
passes that read experts from a file.
"""


def costs_on_cpu(store: CostStore, package_id: str, threads: int, isa: str | None = None) -> dict[str, RowCosts]:
    """Return the measured costs of a package's passes on the CPU, by cache format; disturbed ones are left out.

    Args:
        isa: instruction set of the native operators; None: the best, which is used unless another is requested.
    """
    usable = (None, native_status(library_path()).best) if isa is None else (isa,)
    found = [
        (key, costs)
        for key, costs in _found(store, package_id, {"threads": threads})
        if key.get("isa") in usable and "device" not in key
    ]
    return _by_format(found)


def costs_on_gpu(store: CostStore, package_id: str, gpu: Gpu, facts: Mapping[str, Any]) -> dict[str, RowCosts]:
    """Return the measured costs of a package's passes on a GPU, by cache format; disturbed ones are left out.

    Those that were measured with another driver do not count, nor those with some layers on the CPU.

    Args:
        facts: of the GPU, as ``GpuProvider.facts``.
    """
    facts = {"device": str(gpu.device_name), "text": gpu.name, **facts}
    found = _on_gpus(store, package_id, gpu.kind)
    return _by_format(
        [(key, costs) for key, costs in found if all(key["device"].get(name) == value for name, value in facts.items())]
    )


def costs_on_any_gpu(store: CostStore, package_id: str, kind: str) -> dict[str, RowCosts]:
    """Return as ``costs_on_gpu`` what was measured on any GPU of a kind with any driver, such as one that fails now."""
    return _by_format(_on_gpus(store, package_id, kind))


def may_be_faster(of_gpu: Mapping[str, RowCosts], of_cpu: Mapping[str, RowCosts]) -> bool:
    """Return whether any pass that was measured on both is faster on the GPU; if none is, no choice is faster there."""
    for kv in of_gpu.keys() & of_cpu.keys():
        gpu, cpu = of_gpu[kv], of_cpu[kv]
        # A draft of the most rows reads the costs of one more.
        most = min(gpu.rows[-1], cpu.rows[-1]) + 1
        for depth in set(gpu.depths) & set(cpu.depths):
            if any(one < other for one, other in zip(gpu.curve(depth, most), cpu.curve(depth, most), strict=True)):
                return True
    return False


def relative_curve(
    costs: RowCosts, depth: int, choice: Choice, least_rows: int = 2
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return the seconds of a pass over one row, and passes over more rows relative to it, as in ``Device.row_cost``.

    Args:
        least_rows: rows that are wanted in any case, at least 2.
    """
    line = costs.curve(depth, max(least_rows, drafted_rows(choice) + 1))
    return line[0] / 1e3, tuple((place + 1, cost / line[0]) for place, cost in enumerate(line))


def drafted_rows(choice: Choice) -> int:
    """Return the rows of a typical pass that verifies a draft; 1 with speculation off."""
    if not choice.draft_max:
        return 1
    return round(speculation_step(choice.spec, choice.draft_max, choice.suffix_tokens).rows)


def tokens_per_second(costs: RowCosts, depth: int, choice: Choice) -> float:
    """Return the expected decoding speed of a choice from measured costs."""
    return speculative_tokens_per_second(*relative_curve(costs, depth, choice), choice)


def step_parts(costs: RowCosts, slots: int, depth: int) -> tuple[float, float]:
    """Return the milliseconds of a pass over a token of each of several answers, and what their contexts add to it."""
    least = costs.depths[0]
    context = costs.curve(max(depth, least), 1)[0] - costs.curve(least, 1)[0]
    return costs.curve(least, slots)[-1], slots * context


def measured_threads(store: CostStore, package_id: str) -> list[int]:
    """Return with how many threads of this CPU a package's passes were measured, ascending."""
    keys = [key for key, _ in _found(store, package_id, {}) if "device" not in key]
    return sorted({threads for key in keys if isinstance(threads := key.get("threads"), int)})


def _found(store: CostStore, package_id: str, facts: Mapping[str, Any]) -> list[tuple[dict[str, Any], RowCosts]]:
    """Return the steady costs of a model's own passes with their keys, measured by this version on this machine."""
    here = {"package_id": package_id, "edge_rt": VERSION, "cpu": cpu_model(), **facts}
    return [
        (key, costs)
        for key, costs in store.find(here)
        if costs.steady and len(costs.rows) > 1 and not _PARTS.intersection(key)
    ]


def _on_gpus(store: CostStore, package_id: str, kind: str) -> list[tuple[dict[str, Any], RowCosts]]:
    """Return what was measured on GPUs of a kind with all layers there, with its keys."""
    return [
        (key, costs)
        for key, costs in _found(store, package_id, {})
        if isinstance(device := key.get("device"), dict)
        and str(device.get("device")).partition(":")[0] == kind
        and GPU_LAYERS not in device
    ]


def _by_format(found: list[tuple[dict[str, Any], RowCosts]]) -> dict[str, RowCosts]:
    """Return one of the costs for each cache format: those of the most depths, then the lowest."""
    found.sort(key=lambda entry: (len(entry[1].depths), -entry[1].ms[0][0]))
    return {str(key.get("kv_format")): costs for key, costs in found}


def verification_key(*, package_id: str, device: Mapping[str, Any], kv_format: str, onnxruntime: str) -> dict[str, Any]:
    """Return what the bits of a package's passes on a device depend on."""
    return {
        "package_id": package_id, "device": dict(device), "kv_format": kv_format, "onnxruntime": onnxruntime,
        "edge_rt": VERSION,
    }  # fmt: skip


def user_verified() -> JsonCache:
    """Return this user's verifications that passed, with the number of tokens that were drafted in each."""
    return JsonCache(user_cache("verified-devices"))
