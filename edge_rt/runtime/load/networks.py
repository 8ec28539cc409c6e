"""Opens the networks that draft for a model: a trained drafter, its first layers, fewer bits of it, a second model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.memory.shape import DraftModelShape
from edge_rt.memory.terms import pass_memory_bytes
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.compute_device import ComputeDevice
from edge_rt.ort.session import PassMemory, Session, check_window_support
from edge_rt.package import drafter as trained
from edge_rt.package.drafter_search import open_fitting
from edge_rt.package.reader import Package, open_package
from edge_rt.package.spec_modes import AUTO, EXIT, MODEL, SELF
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.io_binding_base import IOBinding
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding
from edge_rt.runtime.forward.runner import ModelRunner, Runner
from edge_rt.runtime.forward.segmented_runner import SegmentedRunner
from edge_rt.runtime.load.load_plan import LoadPlan
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.speculation.chain_costs import ChainCosts
from edge_rt.runtime.speculation.cost_measurement import MeasuredCosts
from edge_rt.runtime.speculation.cost_model import CostStore, RowCosts
from edge_rt.runtime.speculation.exit_adapters import ExitAdapters
from edge_rt.runtime.speculation.exit_controller import ExitController
from edge_rt.runtime.speculation.exit_costs import ExitCurves, ExitMeasurement
from edge_rt.runtime.speculation.exit_source import ExitSource
from edge_rt.runtime.speculation.model_source import DraftModel, ModelSource, UpperHalves, Way
from edge_rt.runtime.speculation.provider import DrafterJob, DrafterProvider, LoadedDrafter
from edge_rt.runtime.speculation.source import MAX_CHAIN, Source

_PRIOR = 0.6
"""Share of its tokens that is taken to be right before any is known."""


def open_draft_model(
    second: DraftModelShape,
    load_plan: LoadPlan,
    options: LoadOptions,
    facts: dict[str, Any],
    switch: StopSwitch,
    end_ids: tuple[int, ...],
) -> Callable[[RowCosts], Source]:
    """Open a second model as the plan has decided.

    Args:
        load_plan: what was decided for the first one.
        facts: what costs of passes depend on, besides the package.
        end_ids: tokens that end an answer of the first model.

    Returns:
        Makes the source of its guesses, given the costs of the first model's passes; those of its own are measured
        then, unless they are stored.

    Raises:
        EdgeRTError: the package cannot be opened, or its cache does not fit the memory.
    """
    package = open_package(Path(second.path))
    manifest, choice = package.manifest, second.choice(load_plan.plan.choice)
    check_window_support(manifest.op_profile, manifest.model.sliding_window)
    try:
        io_binding = open_io_binding(manifest, choice.ctx, choice.kv_format, largest_pass=choice.largest_pass)
    except (MemoryError, OSError, OverflowError) as error:
        raise MemoryBudgetExceeded(
            "The KV cache of the model that drafts does not fit the memory.",
            f"{error}.",
            "Load the model with a smaller context.",
        ) from error
    io_binding.outputs.plan(1, 1)
    session = Session(
        package.file(manifest.segments[0].graph),
        threads=load_plan.plan.device.threads,
        profile=manifest.op_profile,
        isa=options.isa,
        memory=PassMemory(pass_memory_bytes(second.shape, choice), is_limit=load_plan.is_strict),
    )
    cache = io_binding.open_cache()
    runner = ModelRunner(session, io_binding, switch)
    # Its passes run on the CPU, wherever those of the first model do.
    on_cpu = {name: value for name, value in facts.items() if name != "device"}
    own_facts = on_cpu | {"package_id": package.id, "kv_format": io_binding.kv_format}
    measured = MeasuredCosts(own_facts, io_binding, cache, options.costs)
    measured.on_measure = options.on_measuring("the model that drafts")
    model = DraftModel(
        runner,
        cache,
        known_tokens=second.known_tokens,
        stand_in=next(iter(manifest.tokenizer.eos_token_ids), 0),
        chunk=choice.prefill_chunk,
    )
    most = min(load_plan.draft_max, MAX_CHAIN)

    def held_bytes() -> int:
        return cache.used_bytes + second.shape.weights_bytes

    def source(whole: RowCosts) -> Source:
        # A measurement empties this model's cache, which is filled again from the text that is known.
        costs = ChainCosts(whole, measured.get(runner), most, prior=_PRIOR)
        return ModelSource([Way(model, costs)], most=most, end_ids=end_ids, held_bytes=held_bytes)

    return source


class ExitMaker:
    """Makes the source of guesses at exits from the costs of whole passes, and measures what it needs besides.

    Args:
        runner: returns the runner as long as the model is open.
        key: everything that costs depend on.
        store: where measured costs are stored.
        max_nodes: most nodes of a draft.
        end_ids: tokens that end an answer.
        adapters: trained ones, which guess at the exits in place of the model's head.
        on_measure: called when costs are measured.
    """

    def __init__(
        self,
        runner: Callable[[], Runner],
        cache: KVCache,
        io_binding: IOBinding,
        *,
        key: dict[str, Any],
        store: CostStore | None,
        max_nodes: int,
        end_ids: Sequence[int],
        adapters: ExitAdapters | None = None,
        on_measure: Callable[[], None] | None = None,
    ) -> None:
        self._adapters = adapters
        self._open_runner = runner
        self._cache = cache
        self._measurement = ExitMeasurement(
            key, io_binding, cache, store, None if adapters is None else adapters.drafter_id
        )
        self._measurement.on_measure = on_measure
        self._max_nodes = max_nodes
        self._end_ids = tuple(end_ids)

    def source(self, whole: RowCosts) -> Source:
        """Return the source, given the costs of passes through all segments."""
        curves = ExitCurves(self._measurement.get(self._runner(), whole), self._max_nodes + 1)
        return ExitSource(self._runner, self._cache, ExitController(curves), self._end_ids, self._adapters)

    def _runner(self) -> SegmentedRunner:
        found = self._open_runner()
        assert isinstance(found, SegmentedRunner), type(found)
        return found


LEAST_GAIN: Final = 1.05
"""Speed over plain decoding that drafts with fewer bits must promise."""


def open_self_drafting(
    package: Package,
    load_plan: LoadPlan,
    options: LoadOptions,
    io_binding: IOBinding,
    cache: KVCache,
    device: ComputeDevice | None,
    facts: dict[str, Any],
    switch: StopSwitch,
) -> Callable[[RowCosts], Source]:
    """Open the draft graph of a package over the cache of its model.

    Args:
        package: the package, which has one.
        io_binding: of the model; its cache has upper halves.
        device: where passes run, which then holds the weights twice; None: on the CPU.

    Returns:
        Makes the source of its guesses, given the costs of the model's own passes; those of draft passes are measured
        then, unless they are stored.

    Raises:
        EdgeRTError: the graph cannot be opened.
    """
    manifest = package.manifest
    assert manifest.draft_graph is not None
    assert isinstance(io_binding, NativeIOBinding)
    session = Session(
        package.file(manifest.draft_graph),
        threads=load_plan.plan.device.threads,
        device=device,
        profile=manifest.op_profile,
        isa=options.isa,
        memory=load_plan.pass_memory if device is None else None,
    )
    most = min(load_plan.draft_max, MAX_CHAIN)
    made = []
    for name, reads_upper in (("whole cache", False), ("upper cache", True)):
        binding = io_binding.sharing(reads_upper=reads_upper)
        binding.outputs.plan(1, 1)
        own_facts = facts | {"graph": manifest.draft_graph, "reads": name}
        measured = MeasuredCosts(own_facts, binding, cache, options.costs)
        measured.on_measure = options.on_measuring(f"drafts with fewer bits ({name})")
        made.append((ModelRunner(session, binding, switch), measured))

    def source(whole: RowCosts) -> Source:
        # A measurement empties the cache: only between generations, as that of the model's own passes.
        size, ends = manifest.model.vocab_size, manifest.tokenizer.eos_token_ids
        ways = [
            Way(UpperHalves(runner, cache, size), ChainCosts(whole, measured.get(runner), most))
            for runner, measured in made
        ]
        return ModelSource(ways, name=SELF, least_gain=LEAST_GAIN, most=most, end_ids=ends)

    return source


@dataclass(frozen=True)
class OpenedModel:
    """What is open of a model before the networks that draft for it.

    Attributes:
        held_runner: returns the runner as long as the model is open.
        device: where passes run; None: on the CPU.
        cost_key: the same, with everything of this machine.
    """

    package: Package
    load_plan: LoadPlan
    io_binding: IOBinding
    cache: KVCache
    runner: Runner
    held_runner: Callable[[], Runner]
    switch: StopSwitch
    device: ComputeDevice | None
    facts: dict[str, Any]
    cost_key: dict[str, Any]


@dataclass
class Networks:
    """The networks that draft for a model; the mappings are arguments of ``Speculation``.

    Attributes:
        drafter: the trained drafter that is loaded; None if none is.
        more: mode -> function of the costs that makes its source.
    """

    drafter: trained.Drafter | None = None
    providers: dict[str, DrafterProvider] = field(default_factory=dict)
    more: dict[str, Callable[[RowCosts], Source]] = field(default_factory=dict)


def open_networks(model: OpenedModel, options: LoadOptions) -> Networks:
    """Open what the plan has decided.

    Raises:
        EdgeRTError: a network cannot be opened, or does not fit the memory.
    """
    networks, load_plan = Networks(), model.load_plan
    loaded = None
    if load_plan.drafter_folder is not None:
        networks.drafter = open_fitting(load_plan.drafter_folder, model.package)
        loaded = _load(model, networks.drafter, options.isa)
    if isinstance(loaded, DrafterProvider):
        networks.providers[loaded.name] = loaded
    if isinstance(model.runner, SegmentedRunner):
        exits = _open_exits(model, model.runner, loaded if isinstance(loaded, ExitAdapters) else None, options)
        networks.more[EXIT] = exits.source
    if load_plan.draft_model is not None:
        # As it is written: a generation that asks for this mode alone writes the same.
        is_named = load_plan.spec_mode == AUTO
        name = f"{MODEL}:{load_plan.plan.request.drafter_folder}" if is_named else load_plan.spec_mode
        ends = model.package.manifest.tokenizer.eos_token_ids
        networks.more[name] = open_draft_model(
            load_plan.draft_model, load_plan, options, model.facts, model.switch, ends
        )
    if load_plan.drafts_itself:
        networks.more[SELF] = open_self_drafting(
            model.package, load_plan, options, model.io_binding, model.cache, model.device, model.facts, model.switch
        )
    return networks


def _load(model: OpenedModel, drafter: trained.Drafter, isa: str | None) -> LoadedDrafter:
    load_plan = model.load_plan
    numbers, ctx = load_plan.plan.request.drafter, load_plan.plan.choice.ctx
    job = DrafterJob(
        package=model.package,
        drafter=drafter,
        draft_max=load_plan.draft_max,
        prompt_rows=0 if numbers is None else numbers.prompt_rows(ctx),
        threads=load_plan.plan.device.threads,
        isa=isa,
    )
    if drafter.info.kind == EXIT:
        return ExitAdapters(job)
    from edge_rt.runtime.speculation.head_runner import HeadProvider

    return HeadProvider(job)


def _open_exits(
    model: OpenedModel, runner: SegmentedRunner, adapters: ExitAdapters | None, options: LoadOptions
) -> ExitMaker:
    manifest = model.package.manifest
    for segments, layer in enumerate(manifest.exits, start=1):
        if adapters is not None and layer in adapters.by_layer:
            runner.adapt(segments, adapters.by_layer[layer])
    return ExitMaker(
        model.held_runner,
        model.cache,
        model.io_binding,
        key=model.cost_key,
        store=options.costs,
        max_nodes=model.load_plan.draft_max,
        end_ids=manifest.tokenizer.eos_token_ids,
        adapters=adapters,
        on_measure=options.on_measuring("exits"),
    )
