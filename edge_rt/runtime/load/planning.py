"""Plans the memory of a load from its options, and takes its share of a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psutil

from edge_rt.device.names import AUTO as AUTO_DEVICE, CPU, parse_device
from edge_rt.errors import ConfigError, RuntimeUnavailable
from edge_rt.memory.budget import Budget
from edge_rt.memory.choice import DeviceChoice
from edge_rt.memory.device import this_device
from edge_rt.memory.figures import Device, GpuFigures
from edge_rt.memory.plan import Plan, Request, make_plan, require_fit
from edge_rt.memory.request import as_arguments
from edge_rt.memory.shape import DrafterShape, DraftModelShape, shape_of, shape_on
from edge_rt.ort.session import pool_size
from edge_rt.package.exits import kv_of
from edge_rt.package.reader import Package
from edge_rt.package.spec_modes import OFF
from edge_rt.runtime.load.devices import (
    choose_device,
    driver_bytes,
    gpu_figures,
    is_planned_for_gpu,
    planned_choice,
    require_same_device,
)
from edge_rt.runtime.load.drafters import drafting_shapes
from edge_rt.runtime.load.load_plan import LoadPlan
from edge_rt.runtime.load.options import LoadOptions, Memory
from edge_rt.runtime.prompts import EncodingBudget
from edge_rt.system.byte_size import file_size, parse_size, round_up
from edge_rt.system.machine import usable_cpus
from edge_rt.system.process_memory import read_memory

_SETTLING: Final = 3
PIECES_BYTES: Final = 24 << 20
"""Fragmented heap memory that closed models leave, and that a model with another tokenizer cannot reuse. Measured with
vocabularies of 49,000 and 128,000 tokens alternately: after ten loads 12 MiB more belong to no model than after the
first, and the smaller model's peak is 25 MiB higher, part of which its plan has room for.
"""


def device_of(
    package: Package,
    options: LoadOptions,
    plan: Callable[[LoadOptions], Plan] | None = None,
    failed: Mapping[str, str] = MappingProxyType({}),
) -> DeviceChoice:
    """Return the device that a load computes on: the one that was named, that of a given plan, or what ``auto`` takes.

    Args:
        plan: makes the plan for options that name a device; None: that of this process.
        failed: GPUs that ``auto`` chose before and that failed: the name of each, and its error.

    Raises:
        EdgeRTError: as ``plan_package``, but not for a GPU that cannot be used.
    """
    if options.device != AUTO_DEVICE:
        return DeviceChoice(options.device, is_named=True)
    if options.plan is not None:
        return planned_choice(options.plan)

    def plan_on(device: str) -> Plan:
        # A budget of a GPU's memory says nothing about the CPU, and is refused there.
        budget = None if device == CPU else options.device_memory
        asked = options.but(device=device, device_memory=budget)
        return plan_package(package, asked) if plan is None else plan(asked)

    return choose_device(
        shape_of(package.manifest, package.id),
        options.costs,
        plan_on,
        threads=options.threads or pool_size() or usable_cpus(),
        isa=options.isa,
        own=options.gpu_provider,
        failed=failed,
    )


def options_on(options: LoadOptions, choice: DeviceChoice) -> LoadOptions:
    """Return the options of a load with the device that was chosen for it."""
    budget = None if choice.replaces_gpu else options.device_memory
    return options.but(device=choice.device, device_memory=budget)


def plan_package(
    package: Package, options: LoadOptions, *, device: Device | None = None, choice: DeviceChoice | None = None
) -> Plan:
    """Return the plan for a package in this process, whether it fits or not; nothing is loaded.

    Without a budget the plan may take the memory that the machine has available, in addition to what this process holds
    already. In a budget that models share, it may take what the others leave, and the process itself is counted once.

    A process does not return all memory of a closed model to the system: the heap keeps much of it, and the next load
    uses it. If one model replaces another, the memory of the process is therefore counted as before the first model
    (``base_bytes`` of its plan), given as ``base_bytes``. The driver of GPUs stays once a model was loaded on one,
    and is counted from then on.

    Args:
        device: another machine than this one; the process is then assumed to hold nothing yet, and ``auto`` is what
            that machine computes on.
        choice: what ``device_of`` has returned for the options; None: it is asked here.

    Raises:
        ConfigError: an option is out of range, options have no effect together, the mode of speculation cannot run with
            this package, or the budget is not a size.
        InvalidCorpus: the file is not a corpus, or comes from another tokenizer.
        InvalidDrafter: the named drafter is malformed, or for another model; see also ``open_drafter``.
        RuntimeUnavailable: this build cannot run the drafter, or there is no such GPU.
        StorageError: a file cannot be read.
    """
    options.check(package)
    budget = _budget(options.memory)
    if device is None:
        choice = choice or device_of(package, options)
        options = options_on(options, choice)
    drafter, second = drafting_shapes(package, options.spec, options.drafter, options.makers)
    gpu = None
    if device is None and is_planned_for_gpu(options.device, package.manifest.op_profile):
        op_profile = package.manifest.op_profile
        freed = options.freed_device_bytes.get(str(parse_device(options.device)), 0)
        gpu = gpu_figures(options.device, op_profile, options.gpu_provider, freed)
        if gpu is not None:
            gpu = replace(gpu, has_context=_has_context(options, is_unified=gpu.is_unified))
    # Planning itself takes memory the first time. It is repeated until the process's memory stays the same.
    for _ in range(_SETTLING):
        before = resident_bytes()
        plan = _plan_package(package, options, budget, device, choice, gpu, drafter, second)
        if resident_bytes() == before:
            break
    return plan


def _plan_package(
    package: Package,
    options: LoadOptions,
    budget: Budget | None,
    device: Device | None,
    choice: DeviceChoice | None,
    gpu: GpuFigures | None,
    drafter: DrafterShape | None,
    second: DraftModelShape | None,
) -> Plan:
    base_bytes = options.base_bytes
    resident: int | None
    driver: int | None = None
    if device is None:
        # Where `auto` leaves the CPU to compute, the driver was asked nevertheless.
        held_driver = driver_bytes(options.gpu_provider)
        driver = driver_bytes(options.gpu_provider, on_gpu=gpu is not None)
        # What the process holds now includes the driver, which is counted apart.
        resident = max(0, resident_bytes() - held_driver) if base_bytes is None else base_bytes
        device = this_device()
        threads = options.threads or pool_size() or usable_cpus()
        held = resident + held_driver if base_bytes is None else max(base_bytes, _unshared_bytes())
        device = replace(device, available_bytes=device.available_bytes + held, threads=threads, gpu=gpu)
    else:
        resident = device.base_bytes
        if device.gpu is not None and device.gpu.device_name is not None:
            # A GPU of this machine, whose driver was asked in this process.
            driver = driver_bytes(options.gpu_provider, on_gpu=True)
    total = None
    if budget is not None:
        if budget.base_bytes:
            resident = budget.base_bytes
        shared = budget.driver_bytes
        total = budget.free_bytes + budget.base_bytes + shared
        if driver is not None:
            # What another model counts for the driver, which may be opening a GPU at present, leaves this one no room.
            driver = max(driver, shared)
        if gpu is not None and gpu.is_unified:
            # The plan counts the context, whoever has brought it.
            total += budget.context_bytes
    request = Request(
        budget_bytes=total,
        ctx=options.ctx,
        kv=kv_of(options.spec, options.kv),
        spec=options.spec,
        draft_max=options.draft_max if options.spec != OFF else None,
        prefill_chunk=options.prefill_chunk,
        resident_bytes=resident,
        driver_bytes=driver,
        corpus=None if options.corpus is None else str(options.corpus),
        corpus_bytes=file_size(options.corpus),
        hidden=options.hidden,
        drafter=drafter,
        drafter_folder=None if options.drafter is None else str(options.drafter),
        draft_model=second,
        device_budget_bytes=None if options.device_memory is None else parse_size(options.device_memory),
        device_choice=choice,
    )
    return make_plan(shape_on(shape_of(package.manifest, package.id), package, device), device, request)


def plan_load(package: Package, options: LoadOptions, choice: DeviceChoice | None = None) -> LoadPlan:
    """Return a plan that fits, with its share of the budget taken.

    Args:
        options: the options; a plan among them is carried out unchanged, with ``auto`` on the device that it is for.
        choice: what ``device_of`` has returned for the options; None: it is asked here.

    Raises:
        ConfigError: an option is out of range, the budget is not a size, or the plan is for another package.
        MemoryBudgetExceeded: the model does not fit; the error states what is needed, what is available, and a setting
            that fits.
    """
    budget, decided = _budget(options.memory), options.plan
    if decided is not None and decided.shape.package_id != package.id:
        raise ConfigError(
            "The plan was made for another package.",
            f"It is for {decided.shape.name} ({str(decided.shape.package_id)[:12]}), this is {package.id[:12]}.",
            "Make one with edge_rt.plan for the package that is to be loaded.",
        )
    choice = choice or device_of(package, options)
    options = options_on(options, choice)
    if decided is not None:
        require_same_device(decided, options.device)
    asked = options.but(memory=budget) if decided is None else _asked_of(decided, options)
    plan = plan_package(package, asked, choice=choice) if decided is None else decided
    require_fit(plan, options.spell or _spelling(plan, options.memory))
    total = plan.request.budget_bytes if budget is None else budget.total_bytes
    is_strict = total is not None or plan.request.device_budget_bytes is not None or bool(plan.given_up)
    if budget is None and is_strict:
        budget = Budget(plan.budget_bytes)
    if budget is None:
        end_context = _count_context(plan, options)
        return LoadPlan(plan, asked, total, is_strict, claim=None, encoding_budget=None, end_context=end_context)
    # What this plan counts of the process beyond what the budget's first claim has counted is claimed as well.
    base, driver, context = budget.base_bytes or plan.base_bytes, plan.sizes.driver, plan.sizes.unified_context
    own = plan.total_bytes - base - driver - context
    claim = budget.claim(plan.shape.name, own, base_bytes=base, driver_bytes=driver, context_bytes=context)
    encoding_budget = EncodingBudget(plan, budget, claim, is_given=total is not None)
    return LoadPlan(plan, asked, total, is_strict, claim, encoding_budget, _count_context(plan, options))


def _has_context(options: LoadOptions, *, is_unified: bool) -> bool:
    """Return whether a plan for a GPU need not count this process's context there.

    The context stays when a model is closed. What is free there lacks it then; a budget has to have room for it, unless
    another model that stays loaded counts it. With ``base_bytes`` none stays. A budget that models share, of memory
    that the GPU shares, has it once, as the driver: there every plan counts it.
    """
    if is_unified and isinstance(options.memory, Budget):
        return False
    own, number = options.gpu_provider, parse_device(options.device).index
    budget = options.memory if is_unified else options.device_memory
    if budget is None:
        return own.is_ready(number)
    return options.base_bytes is None and own.is_context_counted(number)


def _count_context(plan: Plan, options: LoadOptions) -> Callable[[], None] | None:
    """Note that a model counts the context of its GPU, until the returned function is called; None if it does not."""
    if plan.sizes.gpu is None or not plan.sizes.gpu.context:
        return None
    return options.gpu_provider.count_context(parse_device(options.device).index)


def asked_again(options: LoadOptions) -> LoadOptions:
    """Return the options that ask for what a plan among them was made for, so that it is made again."""
    if options.plan is None:
        return options
    request = options.plan.request
    return _asked_of(options.plan, options).but(
        memory=request.budget_bytes if options.memory is None else options.memory,
        device_memory=request.device_budget_bytes,
        ctx=request.ctx,
        kv=request.kv,
        prefill_chunk=request.prefill_chunk,
        base_bytes=request.resident_bytes,
    )


def _asked_of(plan: Plan, options: LoadOptions) -> LoadOptions:
    """Return the options of a load with an earlier plan, filled in from what that plan was asked for."""
    request = plan.request
    return options.but(
        plan=None,
        threads=plan.device.threads,
        spec=request.spec,
        draft_max=request.draft_max,
        corpus=None if request.corpus is None else Path(request.corpus),
        hidden=request.hidden,
        drafter=None if request.drafter_folder is None else Path(request.drafter_folder),
    )


def resident_bytes() -> int:
    """Return the memory that this process holds now, in bytes, rounded up so that two plans in a row agree."""
    return round_up(int(psutil.Process().memory_info().rss))


def _unshared_bytes() -> int:
    """Return this process's memory without pages of mapped files, which count as available already."""
    try:
        return read_memory().private_bytes
    except RuntimeUnavailable:
        return 0


def _spelling(plan: Plan, memory: Memory) -> Callable[[tuple[str, ...]], str]:
    """Return a function that formats a setting that fits for a caller of ``edge_rt.load``."""
    if not isinstance(memory, Budget):
        return as_arguments
    return partial(as_arguments, budget=plan.budget_bytes, shared_bytes=memory.total_bytes - plan.budget_bytes)


def _budget(memory: Memory) -> Budget | None:
    return memory if memory is None or isinstance(memory, Budget) else Budget(memory)
