"""Opens the networks that draft for a model: a trained drafter, its first layers, fewer bits of it, a second model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edge_rt.binding import StopSwitch
from edge_rt.compute_device import ComputeDevice
from edge_rt.package.drafter import Drafter
from edge_rt.package.drafter_search import open_fitting
from edge_rt.package.reader import Package
from edge_rt.runtime.decode.draft import Drafter as SpecDrafter
from edge_rt.runtime.drafters.exit_adapters import ExitAdapters
from edge_rt.runtime.drafters.provider import DrafterJob, DrafterProvider, LoadedDrafter
from edge_rt.runtime.drafters.source import Source
from edge_rt.runtime.graph.cache import KVCache
from edge_rt.runtime.graph.io_binding_base import IOBinding
from edge_rt.runtime.graph.runner import Runner
from edge_rt.runtime.graph.segmented_runner import SegmentedRunner
from edge_rt.runtime.load.draft_model import open_draft_model
from edge_rt.runtime.load.drafters import require_maker
from edge_rt.runtime.load.exits import ExitMaker
from edge_rt.runtime.load.load_plan import LoadPlan
from edge_rt.runtime.load.self_drafting import open_self_drafting
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.session import pool_size
from edge_rt.spec_modes import AUTO, EXIT, MODEL, SELF
from edge_rt.system.machine import usable_cpus


@dataclass(frozen=True)
class OpenedModel:
    """What is open of a model before the networks that draft for it.

    Attributes:
        package: its package.
        load_plan: what was decided.
        io_binding: memory of the cache.
        cache: its bookkeeping.
        runner: runs passes.
        held_runner: returns the runner as long as the model is open.
        switch: stops passes.
        isa: instruction set of the native operators; None for a portable package.
        device: where passes run; None: on the CPU.
        facts: what costs of passes depend on.
        cost_key: the same, with everything of this machine.
    """

    package: Package
    load_plan: LoadPlan
    io_binding: IOBinding
    cache: KVCache
    runner: Runner
    held_runner: Callable[[], Runner]
    switch: StopSwitch
    isa: str | None
    device: ComputeDevice | None
    facts: dict[str, Any]
    cost_key: dict[str, Any]


@dataclass
class Networks:
    """The networks that draft for a model; the mappings are arguments of ``Speculation``.

    Attributes:
        drafter: the trained drafter that is loaded; None if none is.
        providers: mode -> loaded network.
        own: mode -> function of the costs that makes its drafter.
        more: mode -> function of the costs that makes its source.
    """

    drafter: Drafter | None = None
    providers: dict[str, DrafterProvider] = field(default_factory=dict)
    own: dict[str, Callable[[RowCosts], SpecDrafter]] = field(default_factory=dict)
    more: dict[str, Callable[[RowCosts], Source]] = field(default_factory=dict)


def open_networks(model: OpenedModel) -> Networks:
    """Open what the plan has decided.

    Raises:
        EdgeRTError: a network cannot be opened, or does not fit the memory.
    """
    networks, load_plan = Networks(), model.load_plan
    loaded = None
    if load_plan.drafter_folder is not None:
        networks.drafter = open_fitting(load_plan.drafter_folder, model.package)
        loaded = _load(model, networks.drafter)
    if isinstance(loaded, DrafterProvider):
        networks.providers[loaded.name] = loaded
    if isinstance(model.runner, SegmentedRunner):
        exits = _open_exits(model, model.runner, loaded if isinstance(loaded, ExitAdapters) else None)
        networks.own[EXIT], networks.more[EXIT] = exits.drafter, exits.source
    if load_plan.draft_model is not None:
        # As it is written: a generation that asks for this mode alone writes the same.
        is_named = load_plan.spec_mode == AUTO
        name = f"{MODEL}:{load_plan.options.drafter}" if is_named else load_plan.spec_mode
        ends = model.package.manifest.tokenizer.eos_token_ids
        networks.more[name] = open_draft_model(load_plan.draft_model, load_plan, model.facts, model.switch, ends)
    if load_plan.drafts_itself:
        networks.own[SELF], networks.more[SELF] = open_self_drafting(
            model.package, load_plan, model.io_binding, model.cache, model.device, model.facts, model.switch
        )
    return networks


def _load(model: OpenedModel, drafter: Drafter) -> LoadedDrafter:
    load_plan = model.load_plan
    numbers, ctx = load_plan.plan.request.drafter, load_plan.plan.choice.ctx
    job = DrafterJob(
        package=model.package,
        drafter=drafter,
        draft_max=load_plan.draft_max,
        prompt_rows=0 if numbers is None else numbers.prompt_rows(ctx),
        threads=pool_size() or usable_cpus(),
        isa=model.isa,
    )
    kind = drafter.info.kind
    require_maker(kind, load_plan.options.makers)
    return load_plan.options.makers[kind](job)


def _open_exits(model: OpenedModel, runner: SegmentedRunner, adapters: ExitAdapters | None) -> ExitMaker:
    manifest, options = model.package.manifest, model.load_plan.options
    for segments, layer in enumerate(manifest.exits, start=1):
        if adapters is not None and layer in adapters.by_layer:
            runner.adapt(segments, adapters.by_layer[layer])
    return ExitMaker(
        manifest.exits,
        model.held_runner,
        model.cache,
        model.io_binding,
        key=model.cost_key,
        store=options.costs,
        max_nodes=model.load_plan.draft_max,
        end_ids=manifest.tokenizer.eos_token_ids,
        trace=options.spec_trace,
        adapters=adapters,
        on_measure=options.on_measuring("exits"),
    )
