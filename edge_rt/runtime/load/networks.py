"""Opens the networks that draft for a model: a trained drafter, its first layers, fewer bits of it, a second model.

What a model does not draft with is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.memory.shape import DraftModelShape
from edge_rt.memory.terms import pass_memory_bytes
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.compute_device import ComputeDevice
from edge_rt.ort.device_weights import DeviceWeights
from edge_rt.ort.mapped_weights import MappedWeights
from edge_rt.ort.session import PassMemory, Session, check_window_support
from edge_rt.package.drafter import HEAD, TrainedDrafter
from edge_rt.package.drafter_search import open_fitting
from edge_rt.package.reader import Package, open_package
from edge_rt.package.spec_modes import AHEAD, AUTO, EXIT, MODEL, SELF
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.io_binding_base import IOBinding
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding
from edge_rt.runtime.forward.runner import ModelRunner, Runner
from edge_rt.runtime.load.load_plan import LoadPlan
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.speculation.cost_model import Costs, MeasuredCosts
from edge_rt.runtime.speculation.source import MAX_CHAIN, ForestSource

if TYPE_CHECKING:
    from edge_rt.runtime.forward.segmented_runner import SegmentedRunner
    from edge_rt.runtime.speculation.exit_adapters import ExitAdapters
    from edge_rt.runtime.speculation.head_runner import DrafterJob

SourceMaker = Callable[[Costs], ForestSource]
"""Makes a source of guesses, given the costs of the model's passes; costs of its own are measured then, unless they are
stored.
"""

_PRIOR: Final = 0.6
"""Share of the tokens of a second model that is taken to be right before any is known."""
LEAST_GAIN: Final = 1.05
"""Speed over plain decoding that drafts with fewer bits must promise."""


@dataclass(frozen=True)
class OpenedModel:
    """What is open of a model before the networks that draft for it.

    Attributes:
        weights: those of a native package, mapped; None for the other op profiles.
        held_runner: returns the runner as long as the model is open.
        device: where passes run; None: on the CPU.
        measured: costs of the passes.
        laid: the weights in the device's memory, if they were laid there for all sessions.
    """

    package: Package
    weights: MappedWeights | None
    load_plan: LoadPlan
    options: LoadOptions
    io_binding: IOBinding
    cache: KVCache
    runner: Runner
    held_runner: Callable[[], Runner]
    switch: StopSwitch
    device: ComputeDevice | None
    facts: dict[str, Any]
    measured: MeasuredCosts
    laid: DeviceWeights | None


def open_networks(model: OpenedModel) -> tuple[TrainedDrafter | None, dict[str, SourceMaker]]:
    """Open what the plan has decided; return the trained drafter, and mode of speculation -> what makes its source."""
    load_plan, sources = model.load_plan, dict[str, SourceMaker]()
    drafter = adapters = None
    if load_plan.drafter_folder is not None:
        drafter = open_fitting(load_plan.drafter_folder, model.package)
        if drafter.info.kind == EXIT:
            from edge_rt.runtime.speculation.exit_adapters import ExitAdapters

            adapters = ExitAdapters(_job(model, drafter))
        else:
            from edge_rt.runtime.speculation.head_runner import open_head

            head = open_head(_job(model, drafter))
            sources[HEAD] = lambda _: head()
    if model.package.manifest.exits:
        sources[EXIT] = _open_exits(model, adapters)
    if load_plan.draft_model is not None:
        # As it is written: a generation that asks for this mode alone writes the same.
        is_named = load_plan.spec_mode == AUTO
        name = f"{MODEL}:{load_plan.plan.request.drafter_folder}" if is_named else load_plan.spec_mode
        sources[name] = _open_draft_model(model, load_plan.draft_model)
    if load_plan.drafts_itself:
        sources[SELF] = _open_self_drafting(model)
    if load_plan.drafts_ahead:
        sources[AHEAD] = _open_ahead(model)
    return drafter, sources


def _job(model: OpenedModel, drafter: TrainedDrafter) -> DrafterJob:
    from edge_rt.runtime.speculation.head_matrices import target_matrices
    from edge_rt.runtime.speculation.head_runner import DrafterJob

    plan = model.load_plan.plan
    assert model.weights is not None, model.package.manifest.op_profile
    return DrafterJob(
        package=model.package,
        target=target_matrices(model.package, model.weights, is_resident=model.device is None),
        drafter=drafter,
        draft_max=model.load_plan.draft_max,
        prompt_rows=0 if plan.request.drafter is None else plan.request.drafter.prompt_rows(plan.choice.ctx),
        threads=plan.device.threads,
        isa=model.options.isa,
    )


def _open_exits(model: OpenedModel, adapters: ExitAdapters | None) -> SourceMaker:
    """Open what drafts at exits.

    Args:
        adapters: trained ones, which guess at the exits in place of the model's head.
    """
    from edge_rt.runtime.forward.segmented_runner import SegmentedRunner
    from edge_rt.runtime.speculation.exit_costs import ExitCurves, ExitMeasurement
    from edge_rt.runtime.speculation.exit_source import ExitController, ExitSource

    manifest, options, most = model.package.manifest, model.options, model.load_plan.draft_max
    assert isinstance(model.runner, SegmentedRunner), type(model.runner)
    for segments, layer in enumerate(manifest.exits, start=1):
        if adapters is not None and layer in adapters.by_layer:
            model.runner.adapt(segments, adapters.by_layer[layer])
    drafter_id = None if adapters is None else adapters.drafter_id
    measurement = ExitMeasurement(model.measured.key, model.io_binding, model.cache, options.costs, drafter_id)
    measurement.on_measure = options.on_measuring("exits")
    # Not the runner itself: a source must not keep a closed model's.
    held_runner = model.held_runner
    cache, ends = model.cache, tuple(manifest.tokenizer.eos_token_ids)

    def runner() -> SegmentedRunner:
        held = held_runner()
        assert isinstance(held, SegmentedRunner), type(held)
        return held

    def source(whole: Costs) -> ForestSource:
        curves = ExitCurves(measurement.get(runner(), whole), most + 1)
        return ExitSource(runner, cache, ExitController(curves), ends, adapters)

    return source


def _open_draft_model(first: OpenedModel, second: DraftModelShape) -> SourceMaker:
    """Open a second model as the plan has decided."""
    from edge_rt.runtime.speculation.beside import MOST_SHARE, Beside, BesideMeasurement, told_share
    from edge_rt.runtime.speculation.draft_model import DraftModel
    from edge_rt.runtime.speculation.model_source import ChainCosts, ModelSource, Way

    load_plan, options = first.load_plan, first.options
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
    graph, constants = manifest.segments[0].graph, None
    if manifest.op_profile == "native":
        weights = MappedWeights(package)
        weights.use_positions(choice.ctx)
        constants = weights.constants(graph)
    session = Session(
        package.file(graph),
        threads=load_plan.plan.device.threads,
        profile=manifest.op_profile,
        isa=options.isa,
        memory=PassMemory(pass_memory_bytes(second.shape, choice), is_limit=load_plan.is_strict),
        initializers=constants,
    )
    cache = io_binding.open_cache()
    runner = ModelRunner(session, io_binding, first.switch)
    # Its passes run on the CPU, wherever those of the first model do.
    on_cpu = {name: value for name, value in first.facts.items() if name != "device"}
    facts = on_cpu | {"package_id": package.id, "kv_format": io_binding.kv_format}
    measured = MeasuredCosts(facts, io_binding, cache, options.costs)
    measured.on_measure = options.on_measuring("the model that drafts")
    model = DraftModel(
        runner,
        cache,
        known_tokens=second.known_tokens,
        stand_in=next(iter(manifest.tokenizer.eos_token_ids), 0),
        chunk=choice.prefill_chunk,
    )
    most, ends = min(load_plan.draft_max, MAX_CHAIN), first.package.manifest.tokenizer.eos_token_ids

    def held_bytes() -> int:
        return cache.used_bytes + second.shape.weights_bytes

    why_not = _why_not_beside(first, cache)
    beside_measurement = BesideMeasurement(first.measured, measured, options.costs)
    # Not the runner itself: a source must not keep a closed model's.
    held_runner = first.held_runner

    def source(whole: Costs) -> ForestSource:
        # A measurement empties this model's cache, which is filled again from the text that is known.
        alone, beside, told = measured.get(runner), None, why_not
        share = 1.0
        if why_not is None:
            share = beside_measurement.share(held_runner(), runner, alone)
            told = told_share(share)
        costs = ChainCosts(whole, alone, most, prior=_PRIOR, hides=share <= MOST_SHARE)
        if share <= MOST_SHARE:
            beside = Beside(model, alone, share, costs.value_of, end_ids=ends)
        return ModelSource([Way(model, costs, beside)], most=most, end_ids=ends, held_bytes=held_bytes, beside=told)

    return source


def _why_not_beside(model: OpenedModel, cache: KVCache) -> str | None:
    """Return why a second model with a cache does not draft beside passes that verify; None: costs decide."""
    if model.device is None:
        return "off: the CPU computes the model as well"
    if model.device.is_software:
        return "off: the device is a program on the CPU"
    if model.load_plan.host_layers:
        return "off: the CPU computes layers of the model as well"
    if not cache.goes_back:
        return "off: the second model cannot go back to any row"
    return None


def _open_self_drafting(model: OpenedModel) -> SourceMaker:
    """Open the draft graph of a package over the upper halves of its model's cache."""
    from edge_rt.runtime.speculation.model_source import ChainCosts, ModelSource, UpperHalves, Way

    manifest, load_plan, options, cache = model.package.manifest, model.load_plan, model.options, model.cache
    assert manifest.draft_graph is not None
    assert model.weights is not None, manifest.op_profile
    assert isinstance(model.io_binding, NativeIOBinding)
    constants = model.weights if model.device is None else model.laid
    session = Session(
        model.package.file(manifest.draft_graph),
        threads=load_plan.plan.device.threads,
        device=model.device,
        profile=manifest.op_profile,
        isa=options.isa,
        memory=load_plan.pass_memory if model.device is None else None,
        initializers=None if constants is None else constants.constants(manifest.draft_graph),
    )
    most, size, ends = (
        min(load_plan.draft_max, MAX_CHAIN),
        manifest.model.vocab_size,
        manifest.tokenizer.eos_token_ids,
    )
    views = []
    for name, reads_upper in (("whole cache", False), ("upper cache", True)):
        binding = model.io_binding.sharing(reads_upper=reads_upper)
        binding.outputs.plan(1, 1)
        facts = model.facts | {"graph": manifest.draft_graph, "reads": name}
        measured = MeasuredCosts(facts, binding, cache, options.costs)
        measured.on_measure = options.on_measuring(f"drafts with fewer bits ({name})")
        views.append((ModelRunner(session, binding, model.switch), measured))

    def source(whole: Costs) -> ForestSource:
        # A measurement empties the cache: only between generations, as that of the model's own passes.
        ways = [
            Way(UpperHalves(runner, cache, size), ChainCosts(whole, measured.get(runner), most))
            for runner, measured in views
        ]
        return ModelSource(ways, name=SELF, least_gain=LEAST_GAIN, most=most, end_ids=ends)

    return source


def _open_ahead(model: OpenedModel) -> SourceMaker:
    """Open the block of a package that predicts further ahead, and let it follow the model's passes."""
    from edge_rt.runtime.speculation.ahead_model import open_ahead_model
    from edge_rt.runtime.speculation.ahead_source import AheadSource
    from edge_rt.runtime.speculation.model_source import ChainCosts, Way

    manifest, load_plan, options = model.package.manifest, model.load_plan, model.options
    assert manifest.ahead is not None, manifest.op_profile
    assert model.weights is not None, manifest.op_profile
    assert isinstance(model.runner, ModelRunner), type(model.runner)
    session = Session(
        model.package.file(manifest.ahead.graph),
        threads=load_plan.plan.device.threads,
        profile=manifest.op_profile,
        isa=options.isa,
        memory=load_plan.pass_memory,
        initializers=model.weights.constants(manifest.ahead.graph),
    )
    opened = open_ahead_model(model.package, model.weights, session, load_plan.plan.choice.ctx, model.switch)
    ahead, io_binding = opened.model, opened.io_binding
    model.runner.listener = ahead.passed
    # Its passes run on the CPU, wherever those of the model do.
    on_cpu = {name: value for name, value in model.facts.items() if name != "device"}
    facts = on_cpu | {"graph": manifest.ahead.graph, "kv_format": io_binding.kv_format}
    # Other tokens have other experts.
    vocabulary = manifest.model.vocab_size if manifest.ahead.layer.experts is not None else 0
    measured = MeasuredCosts(facts, io_binding, opened.cache, options.costs, vocabulary=vocabulary)
    measured.on_measure = options.on_measuring("the block that predicts ahead")
    most, ends = min(load_plan.draft_max, MAX_CHAIN), manifest.tokenizer.eos_token_ids

    def source(whole: Costs) -> ForestSource:
        # A measurement empties its cache.
        costs = ChainCosts(whole, measured.get(opened.runner), most, prior=_PRIOR)
        ahead.forget()
        ways = [Way(ahead, costs)]
        return AheadSource(ahead, ways, name=AHEAD, most=most, end_ids=ends, held_bytes=lambda: ahead.memory_bytes)

    return source
