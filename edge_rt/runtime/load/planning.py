"""Plans a load from facts and options, by arithmetic: which device computes, and what its memory holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from edge_rt.device.names import AUTO as AUTO_DEVICE, ON_CPU, DeviceChoice
from edge_rt.memory.figures import Choice, Device, GpuFigures
from edge_rt.memory.plan import Plan, make_plan, no_device_budget
from edge_rt.memory.request import Request
from edge_rt.memory.shape import ModelShape
from edge_rt.package.exits import kv_of
from edge_rt.package.reader import Package
from edge_rt.package.spec_modes import OFF
from edge_rt.runtime.load.facts import Facts, GpuFacts, grown, read_facts
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.system.byte_size import parse_size, show_at_least, show_size

if TYPE_CHECKING:
    from edge_rt.runtime.speculation.cost_model import RowCosts

_SETTLING: Final = 3
PIECES_BYTES: Final = 24 << 20
"""Fragmented heap memory that closed models leave, and that a model with another tokenizer cannot reuse. Measured with
vocabularies of 49,000 and 128,000 tokens alternately: after ten loads 12 MiB more belong to no model than after the
first, and the smaller model's peak is 25 MiB higher, part of which its plan has room for.
"""
LEAST_GAIN: Final = 1.05
"""How much faster than the CPU a GPU must be to be taken: less may be noise of the measurements."""

_CALIBRATE: Final = "edge-rt bench -m MODEL --calibrate --device"


def plan_package(model: Package | ModelShape, options: LoadOptions, machine: Device | None = None) -> Plan:
    """Return the plan for a model, whether it fits or not; nothing is loaded.

    Arguments and errors are those of ``read_facts`` and ``plan_load``.
    """
    facts = read_facts(model, options, machine)
    plan = plan_load(facts, options)
    # Planning itself takes memory the first time. It is repeated until the process's memory stays the same.
    for _ in range(_SETTLING - 1):
        more = None if machine is not None else grown(facts, options)
        if more is None:
            break
        facts = more
        plan = plan_load(facts, options)
    return plan


def plan_load(facts: Facts, options: LoadOptions) -> Plan:
    """Return the plan for options under some facts, whether it fits or not.

    Raises:
        ConfigError: an option is out of range, or has no effect with the device.
    """
    name = options.device_name
    if not facts.is_here:
        return _plan_on(facts, options, facts.machine.gpu)
    if name.kind != AUTO_DEVICE:
        figures = facts.gpus[0].figures if facts.gpus else None
        device = facts.gpus[0].gpu.device_name if facts.gpus else name
        hint = None if figures is None or figures.has_cpu_bits else _own_bits(figures)
        return replace(_plan_on(facts, options, figures), device_choice=DeviceChoice(device, hint, is_named=True))
    # A budget of a GPU's memory says nothing about the CPU, and is refused there.
    on_cpu = _plan_on(facts, options.but(device_memory=None), None)
    plan = _choose(facts, options, on_cpu)
    choice = plan.device_choice
    assert choice is not None
    if plan.device.gpu is None and options.device_memory is not None and not choice.has_failed:
        raise no_device_budget(parse_size(options.device_memory), choice.note)
    return plan


def _plan_on(facts: Facts, options: LoadOptions, gpu: GpuFigures | None) -> Plan:
    """Return the plan for the CPU, or for a GPU."""
    available = facts.machine.available_bytes
    if gpu is not None and gpu.is_unified:
        # The plan counts the context, whoever has brought it.
        available += facts.context_bytes
    budget = options.budget_bytes if facts.budget_bytes is None else facts.budget_bytes
    driver = facts.driver_bytes
    if gpu is not None and driver is not None:
        driver = max(gpu.host_bytes, facts.asked_bytes)
    request = Request(
        budget_bytes=budget,
        ctx=options.ctx,
        kv=kv_of(options.spec, options.kv),
        spec=options.spec,
        draft_max=options.draft_max if options.spec != OFF else None,
        prefill_chunk=options.prefill_chunk,
        resident_bytes=facts.base_bytes,
        driver_bytes=driver,
        corpus=None if options.corpus is None else str(options.corpus),
        corpus_bytes=facts.corpus_bytes,
        hidden=options.hidden,
        slots=options.slots or 1,
        kv_rows=options.kv_rows,
        experts=options.planned_experts(has_some=facts.shape.experts is not None and gpu is None),
        formats=options.formats,
        prompt_cache=options.prompt_cache is not None or facts.has_prompts,
        drafter=facts.drafter,
        drafter_folder=None if options.drafter is None else str(options.drafter),
        draft_model=facts.draft_model,
        device_budget_bytes=_device_budget(options, gpu),
    )
    return make_plan(facts.shape, replace(facts.machine, available_bytes=available, gpu=gpu), request)


def _device_budget(options: LoadOptions, gpu: GpuFigures | None) -> int | None:
    """Return the budget of a GPU's own memory; None: there is none."""
    given = options.device_memory
    if given is None and gpu is not None and not gpu.is_unified:
        given = options.usual_device_memory
    return None if given is None else parse_size(given)


def _choose(facts: Facts, options: LoadOptions, on_cpu: Plan) -> Plan:
    """Return the plan for what ``auto`` stands for, with those that take its place if a GPU fails.

    A GPU is taken if it decodes ``LEAST_GAIN`` times as fast as the CPU by passes that were measured on both, and its
    plan fits without giving up anything that the plan for the CPU keeps, if that fits.
    """

    def speeds_of(costs: Mapping[str, RowCosts]) -> tuple[float, float] | None:
        return measured_speeds(costs, facts.cpu_costs, on_cpu.choice, facts.shape)

    # `doctor` says why no GPU can be used; here it is said where one would have been taken.
    failures = tuple(("the GPU", lost.error) for lost in facts.lost if _is_faster(speeds_of(lost.costs)))
    measured = [one for one in facts.gpus if one.costs]
    # One of two equal GPUs is enough.
    known = {one.gpu.name for one in measured}
    hint = unmeasured = next((_unmeasured(one) for one in facts.gpus if one.gpu.name not in known), None)
    compared = [(speeds, one) for one in measured if (speeds := speeds_of(one.costs)) is not None]
    if measured and not compared:
        hint = _not_compared(measured[0], is_cpu_measured=bool(facts.cpu_costs))
    faster = sorted((pair for pair in compared if _is_faster(pair[0])), key=lambda pair: -pair[0][0])
    plans: list[Plan] = []
    passed_over = None
    for speeds, one in faster:
        if one.figures is None:
            failures = (*failures, (str(one.gpu.device_name), str(one.error)))
            continue
        if not one.figures.has_cpu_bits:
            passed_over = passed_over or _other_bits(one)
            continue
        on_gpu = _plan_on(facts, options, one.figures)
        if _keeps_as_much(on_gpu, on_cpu):
            choice = DeviceChoice(one.gpu.device_name, passed_over or unmeasured, failures)
            plans.append(replace(on_gpu, device_choice=choice))
        elif not plans:
            passed_over = passed_over or _passed_over(speeds, one, on_gpu)
    if plans:
        # A GPU that failed has taken what the driver takes.
        taken = max(plan.device.gpu.host_bytes for plan in plans if plan.device.gpu is not None)
        driver = None if facts.driver_bytes is None else max(facts.driver_bytes, facts.asked_bytes, taken)
        on_cpu = _plan_on(replace(facts, driver_bytes=driver), options.but(device_memory=None), None)
    plan = replace(on_cpu, device_choice=DeviceChoice(ON_CPU, passed_over or hint, failures))
    for on_gpu in reversed(plans):
        plan = replace(on_gpu, fallback=plan)
    return plan


def measured_speeds(
    of_gpu: Mapping[str, RowCosts], of_cpu: Mapping[str, RowCosts], choice: Choice, shape: ModelShape
) -> tuple[float, float] | None:
    """Return the tokens per second of a GPU and of the CPU, by the same measurements on both; None without such.

    That is: with the cache format of the choice, else with the one of largest rows that was measured on both; at the
    deepest measured context up to half of the choice's; and with speculation, if passes of as many rows were measured.
    """
    from edge_rt.runtime.speculation.stored_costs import drafted_rows, tokens_per_second

    formats = of_gpu.keys() & of_cpu.keys()
    if not formats:
        return None
    kv = choice.kv_format if choice.kv_format in formats else max(formats, key=shape.token_bytes)
    gpu, cpu = of_gpu[kv], of_cpu[kv]
    depths = sorted(set(gpu.depths) & set(cpu.depths))
    if not depths:
        return None
    depth = max((depth for depth in depths if depth <= choice.ctx // 2), default=depths[0])
    if drafted_rows(choice) > min(gpu.rows[-1], cpu.rows[-1]):
        choice = replace(choice, spec=OFF, draft_max=0)
    return tokens_per_second(gpu, depth, choice), tokens_per_second(cpu, depth, choice)


def _is_faster(speeds: tuple[float, float] | None) -> bool:
    """Return whether a GPU is fast enough to be taken, by what ``measured_speeds`` returns."""
    return speeds is not None and speeds[0] >= LEAST_GAIN * speeds[1]


def _keeps_as_much(on_gpu: Plan, on_cpu: Plan) -> bool:
    """Return whether a plan fits a GPU, all layers there, and gives up nothing that a plan keeps which fits the CPU."""
    # What was measured is the speed of all layers there.
    is_whole = on_gpu.fits and on_gpu.choice.gpu_layers is None
    return is_whole and (not on_gpu.given_up or not on_cpu.fits or on_gpu.choice == on_cpu.choice)


def _unmeasured(one: GpuFacts) -> str:
    # Runs measure as well, but not without speculation, and not for ever on a machine that is never quiet.
    why = "its speed with this model is not known"
    return f"{one.gpu.name} is not used: {why}. {_CALIBRATE} {one.gpu.device_name} measures it."


def _not_compared(one: GpuFacts, *, is_cpu_measured: bool) -> str:
    name = one.gpu.name
    if is_cpu_measured:
        again = f"{_CALIBRATE} {ON_CPU}, and then {one.gpu.device_name}, measures both alike."
        return f"{name} is not used: it and the CPU were measured with other caches or contexts. {again}"
    why = "the CPU's speed with this model is not known"
    return f"{name} is not used: {why}. {_CALIBRATE} {ON_CPU} measures it."


def _own_bits(figures: GpuFigures) -> str:
    return (
        f"{figures.name} computes with other last bits than the CPU: its answers need not be the CPU's. Drafted and "
        "plain ones are the same."
    )


def _other_bits(one: GpuFacts) -> str:
    name, device = one.gpu.name, one.gpu.device_name
    return f"{name} is not used: its answers need not be the CPU's to the last token. The device {device} runs there."


def _passed_over(speeds: tuple[float, float], one: GpuFacts, plan: Plan) -> str:
    """Return what is said of a faster GPU whose plan does not fit, or gives up what the CPU keeps."""
    name, device = one.gpu.name, one.gpu.device_name
    faster = f"{name} is faster ({speeds[0]:.3g} against {speeds[1]:.3g} tokens per second, measured)"
    if plan.fits:
        return f"{faster}, but has no room for all that the CPU keeps; the device {device} runs there with less."
    least, limit, where = plan.minimum.host, plan.budget.host, "a run there does not fit the memory of the process"
    if plan.needs.exceeds_gpu(plan.budget):
        least, limit, where = plan.minimum.on_gpu, plan.budget.on_gpu, "the model does not fit its memory"
    return f"{faster}, but {where}: it needs at least {show_at_least(least)}, the budget is {show_size(limit)}."
