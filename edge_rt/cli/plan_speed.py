"""Expected speeds of a plan on this machine, from measured passes if the model has run here before.

A plan decides with the device's figures, so that it is the same before and after the first answer. Only the displayed
speeds use the measured passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edge_rt.memory.speed import (
    foretold,
    head_chain,
    pass_seconds,
    speculative_tokens_per_second,
)

if TYPE_CHECKING:
    from edge_rt.device.provider import GpuProviders
    from edge_rt.memory.drafter_shapes import DrafterShape
    from edge_rt.memory.figures import Choice, Device
    from edge_rt.memory.shape import ModelShape
    from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts


@dataclass(frozen=True)
class Rate:
    """An expected speed.

    Attributes:
        tokens_per_second: throughput of the choice with half the context filled, of all slots together; None: passes of
            several answers were not measured, or none of a program on the CPU that stands for a GPU.
        plain: the same without speculation.
        is_measured: whether it comes from passes that were measured on this machine with this cache format.
        is_derived: whether it comes from passes that were measured on this machine with another cache format.
    """

    tokens_per_second: float | None
    plain: float | None
    is_measured: bool
    is_derived: bool = False


class Speeds:
    """Rates of a model's choices on a device.

    Args:
        measured: cache format -> measured latency of passes; empty for another machine, or before the first answer.
    """

    def __init__(
        self, shape: ModelShape, device: Device, measured: Mapping[str, RowCosts], drafter: DrafterShape | None = None
    ) -> None:
        self._drafter = drafter
        self._shape = shape
        self._device = device
        self._measured = measured

    def rate(self, choice: Choice) -> Rate:
        """Return the expected speed of a choice."""
        shape, device = self._shape, self._device
        if choice.slots > 1:
            return self._together(choice)
        # Passes that were measured with all layers on the GPU say nothing about some of them there.
        # Nor do those with all experts in memory say anything about some of them there.
        if not self._measured or choice.gpu_layers is not None or choice.expert_bytes is not None:
            expected, plain = foretold(shape, device, choice, self._drafter)
            return Rate(expected, plain, is_measured=False)
        own = self._measured.get(choice.kv_format)
        size = shape.token_bytes(choice.kv_format)
        # A cache with larger rows is not faster, so its latency is a safe estimate for a format that was not measured.
        larger = [name for name in self._measured if shape.token_bytes(name) > size]
        dearer = self._measured[min(larger, key=shape.token_bytes)] if larger else None
        costs = own or dearer or next(iter(self._measured.values()))
        knows_depth = own is not None or dearer is not None
        from edge_rt.runtime.speculation.stored_costs import relative_curve

        head = head_chain(self._drafter, device, choice)
        least = 2 if head is None else len(head.positions) + 1
        seconds, curve = relative_curve(costs, choice.ctx // 2 if knows_depth else 0, choice, least)
        if not knows_depth:
            # Weights and overhead are the same with every cache; the time to read this one follows from the device.
            seconds += pass_seconds(shape, device, choice) - pass_seconds(shape, device, replace(choice, ctx=0))
        expected = speculative_tokens_per_second(seconds, curve, choice, head)
        return Rate(expected, 1 / seconds, is_measured=own is not None, is_derived=own is None)

    def _together(self, choice: Choice) -> Rate:
        """Return the speed of several answers, with a token of each in every pass, which reads the weights once."""
        costs = self._measured.get(choice.kv_format)
        if costs is None or choice.gpu_layers is not None:
            return Rate(None, None, is_measured=False)
        from edge_rt.runtime.speculation.stored_costs import ANSWER_MS, step_parts

        parts = step_parts(costs, choice.slots, choice.ctx // 2)
        rate = 1e3 * choice.slots / (sum(parts) + choice.slots * ANSWER_MS)
        return Rate(rate, rate, is_measured=True)


def measured_here(
    shape: ModelShape, device: Device, store: CostStore | None = None, providers: GpuProviders | None = None
) -> dict[str, RowCosts]:
    """Return the measured latency of a package's passes on this machine, by cache format; disturbed ones are left out.

    Args:
        device: this machine, with the GPU that computes if there is one.
        store: where measurements are saved; None uses that of ``edge_rt.load``.
        providers: edge-rt's; None: the installed ones.
    """
    if shape.package_id is None:
        return {}
    from edge_rt.runtime.speculation.cost_model import user_costs
    from edge_rt.runtime.speculation.stored_costs import costs_on_cpu, costs_on_gpu

    costs = user_costs() if store is None else store
    if device.gpu is None:
        return costs_on_cpu(costs, shape.package_id, device.threads)
    from edge_rt.device.installed import INSTALLED

    if device.gpu.device_name is None:
        return {}
    provider = (providers or INSTALLED).of(device.gpu.device_name)
    gpu = provider.gpu(device.gpu.device_name)
    return costs_on_gpu(costs, shape.package_id, gpu, provider.facts(gpu))
