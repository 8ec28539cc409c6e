"""Loads the parts of a model as a memory plan has decided."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from edge_rt.device.names import CPU
from edge_rt.device.provider import GpuProviders
from edge_rt.errors import ConfigError, MemoryBudgetExceeded, RuntimeUnavailable, StorageError, UnsupportedModel
from edge_rt.memory.budget import Budget
from edge_rt.memory.plan import Plan, make_plan
from edge_rt.memory.speed import row_costs
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.compute_device import ComputeDevice
from edge_rt.ort.device_weights import DeviceWeights
from edge_rt.ort.expert_cache import ExpertCache
from edge_rt.ort.mapped_weights import MappedWeights
from edge_rt.ort.session import Session, TensorSpec, arena_of, check_window_support, onnxruntime_version, pool_size
from edge_rt.package.drafter import HEAD, TrainedDrafter
from edge_rt.package.expert_sizes import expert_matrices
from edge_rt.package.manifest import PROMPTS_FOLDER
from edge_rt.package.reader import Package, absolute_path
from edge_rt.package.states import CHECKPOINTS
from edge_rt.runtime.cache.block_folder import USUAL_SIZE, BlockFolder
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.prompt_cache import PromptCache
from edge_rt.runtime.cache.row_blocks import RowBlocks, rows_key
from edge_rt.runtime.cache.row_pool import RowPool
from edge_rt.runtime.cache.row_states import RowStates
from edge_rt.runtime.embedding import Embedder
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.io_binding_base import IOBinding
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding, hidden_output, stream_output
from edge_rt.runtime.forward.runner import ModelRunner, Runner
from edge_rt.runtime.load.drafters import allowed_drafts
from edge_rt.runtime.load.facts import tokenizer_hash, why_rows_are_not_stored
from edge_rt.runtime.load.load_plan import LoadPlan, claim, require_carried_out
from edge_rt.runtime.load.networks import OpenedModel, open_networks
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from edge_rt.runtime.prompts import PromptEncoder
from edge_rt.runtime.speculation.cost_model import MeasuredCosts
from edge_rt.runtime.speculation.library import draft_library
from edge_rt.runtime.speculation.live_costs import open_costs
from edge_rt.runtime.speculation.speculation import Speculation
from edge_rt.system.byte_size import parse_size
from edge_rt.system.machine import return_free_memory
from edge_rt.text.tokenizer_reading import KeptReadings

_ATTENTION: Final = "GroupQueryAttention"
"""The operator of portable packages that reads and writes the cache."""


@dataclass
class Loaded:
    """A loaded model.

    Attributes:
        slots: caches of answers that are computed at once.
        pool: of their rows; None: there is one cache.
        runner: runs passes; owns the graph and the cache's memory.
        drafter: the trained drafter that is loaded; None if none is.
        isa: instruction set of the native operators; None for a portable package.
        prompts: reads and writes rows of prompts; None where they cannot be stored.
        device: where passes run; None: on the CPU.
        cpu_nodes: with a device, nodes that the CPU computes nevertheless, as ``"name (operator)"``.
        verification: what a verification of speculation on the device depends on; None for the CPU.
        experts: the cache that experts are read into, which the sessions hold; None: they are resident.
        embedder: what makes embeddings; None where the package gives none.
    """

    load_plan: LoadPlan
    texts: PromptEncoder
    cache: KVCache
    slots: tuple[KVCache, ...]
    pool: RowPool | None
    runner: Runner
    measured_costs: MeasuredCosts
    speculation: Speculation
    drafter: TrainedDrafter | None
    providers: list[str]
    isa: str | None
    kv_format: str
    prompts: PromptCache | None
    device: ComputeDevice | None
    cpu_nodes: tuple[str, ...]
    verification: dict[str, Any] | None
    embedder: Embedder | None
    experts: ExpertCache | None


_GPU_FAILURES: Final = (RuntimeUnavailable, MemoryBudgetExceeded, UnsupportedModel, StorageError)
"""What a GPU fails with while a model is loaded: it is lost or full, its provider refuses the graph, kernels cannot be
kept.
"""


def load(
    package: Package, options: LoadOptions, plan: Plan | None, *, switch: StopSwitch, runner: Callable[[], Runner]
) -> Loaded:
    """Carry out a plan. If ``auto`` has chosen a GPU and that fails, the next GPU or the CPU takes its place.

    Args:
        plan: made for the options; None: it is made here.
        runner: returns the runner as long as the model is open.

    Raises:
        EdgeRTError: as ``plan_package`` and ``open_model``; not for a GPU that ``auto`` has chosen.
    """
    plan = plan_package(package, options) if plan is None else require_carried_out(plan, package, options)
    while True:
        try:
            return open_model(package, plan, options, switch=switch, runner=runner)
        except _GPU_FAILURES as error:
            if plan.fallback is None or plan.device_choice is None:
                raise
            failed = (str(plan.device_choice.device), str(error))
            plan = _instead(plan.fallback, (*plan.device_choice.failures, failed))
            # A plan that was given is carried out as it is, or refused.
            if options.budget is not None and options.plan is None:
                plan = _in_what_is_left(plan, options.budget)
        # Outside of the handler, whose error holds what was opened on the GPU.
        gc.collect()


def _instead(plan: Plan, failures: tuple[tuple[str, str], ...]) -> Plan:
    """Return a plan that takes the place of one whose GPU has failed."""
    assert plan.device_choice is not None
    more = tuple(one for one in plan.device_choice.failures if one not in failures)
    return replace(plan, device_choice=replace(plan.device_choice, failures=(*failures, *more)))


def _in_what_is_left(plan: Plan, budget: Budget) -> Plan:
    """Return a plan made again for what a budget that models share has left: a GPU that failed may keep some of it."""
    request = replace(plan.request, budget_bytes=budget.free_bytes + budget.base_bytes + budget.gpu_bytes)
    if plan.device.gpu is None:
        request = replace(request, driver_bytes=max(request.driver_bytes or 0, budget.gpu_bytes))
    again = make_plan(plan.shape, plan.device, request)
    return replace(again, device_choice=plan.device_choice, fallback=plan.fallback)


def open_model(
    package: Package,
    plan: Plan,
    options: LoadOptions,
    *,
    switch: StopSwitch,
    runner: Callable[[], Runner],
) -> Loaded:
    """Load what a plan has decided: tokenizer, memory of the cache, graph, drafters.

    Args:
        runner: returns the runner as long as the model is open.
    """
    load_plan = claim(plan, options)
    try:
        return _open_parts(package, load_plan, options, switch, runner)
    except BaseException:
        load_plan.release(kept_gpu_bytes=kept_gpu_bytes(plan, options.gpu_providers))
        raise


def kept_gpu_bytes(plan: Plan, providers: GpuProviders) -> int:
    """Return how much of what a plan counts for GPUs the process keeps when the model is gone."""
    gpu = plan.device.gpu
    has_context = gpu is not None and gpu.device_name is not None and providers.is_ready(gpu.device_name)
    return (plan.sizes.driver if providers.was_asked else 0) + (plan.sizes.unified_context if has_context else 0)


def _open_parts(
    package: Package, load_plan: LoadPlan, options: LoadOptions, switch: StopSwitch, runner: Callable[[], Runner]
) -> Loaded:
    plan, manifest = load_plan.plan, package.manifest
    choice, computes = plan.choice, plan.device_choice
    if options.on_plan is not None:
        options.on_plan(plan)
    check_window_support(manifest.op_profile, manifest.model.sliding_window)
    device = None
    if computes is not None and computes.device.is_gpu:
        from edge_rt.ort.providers import open_device

        device = open_device(computes.device, manifest.op_profile, options.gpu_providers, options.on_compile)
    if device is not None and options.on_device_error == CPU:
        _require_same_text(device, manifest.op_profile)
    if device is not None and choice.gpu_layers is not None:
        device = device.dividing(load_plan.host_layers, choice.gpu_layers)
    if device is not None and device.tells_places:
        device = device.sharing(load_plan.device_pass_bytes)
    tell = options.on_load or _tell_nobody
    texts = PromptEncoder(
        package,
        choice.ctx,
        options.share_tokenizer_with,
        budget=load_plan.encoding_budget,
        kept=None if options.tokenizer_readings is None else KeptReadings(options.tokenizer_readings),
    )
    tell("tokenizer")
    is_native = manifest.op_profile == NativeIOBinding.profile
    more_outputs = (hidden_output(manifest.model),) if load_plan.hidden and is_native else ()
    if load_plan.drafts_ahead:
        more_outputs = (*more_outputs, stream_output(manifest.model))
    # Memory of a device can be asked for only when a session is open there: without a driver a provider refuses a
    # session, but ends the process if it is asked for memory first.
    weights = _map_weights(package, load_plan, options, switch) if is_native else None
    laid = None if device is None else _lay_weights(package, load_plan, device)
    sessions = [] if device is None else _open_sessions(package, load_plan, options.isa, more_outputs, device, laid)
    if choice.gpu_layers is not None:
        # The heap keeps the buffers through which ONNX Runtime has copied what both sides read.
        return_free_memory()
    io_binding = _open_io_binding(package, load_plan, cache_device(device, sessions))
    tell("cache")
    corpus = None
    if plan.request.corpus is not None:
        from edge_rt.runtime.speculation.corpus import Corpus

        corpus = Corpus.open(Path(plan.request.corpus), tokenizer=tokenizer_hash(package))
    sessions = sessions or _open_sessions(package, load_plan, options.isa, more_outputs, None, weights)
    session = sessions[0]
    tell("session")
    cache = io_binding.open_cache()
    prompts = _open_prompts(package, options, io_binding, device)
    facts: dict[str, Any] = {
        **({} if choice.expert_bytes is None else {"expert_bytes": choice.expert_bytes}),
        "package_id": package.id,
        "op_profile": manifest.op_profile,
        "isa": session.isa,
        "kv_format": io_binding.kv_format,
        "threads": pool_size(),
        "onnxruntime": onnxruntime_version(),
    }
    verification = None
    if device is not None:
        facts["device"] = device.facts
    # Native passes have the bits of the CPU's wherever they run.
    if device is not None and not is_native:
        from edge_rt.runtime.speculation.stored_costs import verification_key

        verification = verification_key(
            package_id=package.id,
            device=device.facts,
            kv_format=io_binding.kv_format,
            onnxruntime=onnxruntime_version(),
        )
    has_experts = plan.shape.expert_layers > 0
    measured_costs = MeasuredCosts(
        facts,
        io_binding,
        cache,
        options.costs,
        prior=row_costs(plan.shape, plan.device, choice) if has_experts else None,
        vocabulary=manifest.model.vocab_size if has_experts else 0,
    )
    measured_costs.on_measure = options.on_measuring("passes")
    made = _open_runner(package, load_plan, sessions, io_binding, cache, switch)
    opened = OpenedModel(
        package, weights, load_plan, options, io_binding, cache, made, runner, switch, device, facts,
        measured_costs, laid,
    )  # fmt: skip
    drafter, sources = open_networks(opened)
    if load_plan.drafter_folder is not None or load_plan.draft_model is not None:
        tell("drafter")
    # Said here: a closure over the sources would keep what drafts after the model is closed.
    are_compared = bool(sources.keys() - {HEAD})
    speculation = Speculation(
        load_plan.spec_mode,
        load_plan.draft_max,
        trace=options.spec_trace,
        drafts=allowed_drafts(package, load_plan, made, io_binding, None if options.unverified else verification),
        costs=lambda: open_costs(measured_costs, runner(), are_compared=are_compared),
        corpus=corpus,
        bounds=load_plan.table_bounds,
        sources=sources,
        library=draft_library(),
    )
    return Loaded(
        load_plan,
        texts,
        cache,
        io_binding.slots or (cache,),
        io_binding.pool,
        made,
        measured_costs,
        speculation,
        drafter,
        session.providers,
        session.isa,
        io_binding.kv_format,
        prompts,
        device,
        tuple(f"{node.name} ({node.operator})" for one in sessions for node in one.placement if node.is_on_cpu),
        verification,
        _open_embedder(opened) if manifest.pooling is not None else None,
        None if weights is None else weights.experts,
    )


def _require_same_text(device: ComputeDevice, op_profile: str) -> None:
    """Refuse a device whose text the CPU cannot go on with."""
    is_native = op_profile == NativeIOBinding.profile
    if not is_native or not device.has_cpu_bits:
        why = f"{device.text} has other bits" if is_native else f"The op profile {op_profile} has other bits there"
        raise ConfigError(
            "The CPU cannot go on with the text of this GPU.",
            f"{why} than the CPU.",
            f"Leave out on_device_error (--on-device-error), or use the device {CPU}.",
        )


def _map_weights(package: Package, load_plan: LoadPlan, options: LoadOptions, switch: StopSwitch) -> MappedWeights:
    """Map the weights, with a cache of experts if the plan has one."""
    weights = MappedWeights(package)
    weights.use_positions(load_plan.plan.choice.ctx)
    cache_bytes, sizes = load_plan.plan.choice.expert_bytes, load_plan.plan.shape.experts
    if cache_bytes is not None and sizes is not None:
        pools = [(pool.slot_bytes, count) for pool, count in zip(sizes.pools, sizes.slots(cache_bytes), strict=True)]
        weights.cache_experts(pools, expert_matrices(package), load_plan.plan.choice.ctx, options.expert_reader)
        assert weights.experts is not None
        switch.stops(weights.experts)
    return weights


def _lay_weights(package: Package, load_plan: LoadPlan, device: ComputeDevice) -> DeviceWeights | None:
    """Lay the weights into the memory of a GPU; None where ONNX Runtime's own provider does that."""
    manifest = package.manifest
    if device.library is None:
        return None
    graphs = list(manifest.graphs)
    if load_plan.drafts_itself and manifest.draft_graph is not None:
        graphs.append(manifest.draft_graph)
    if manifest.pooling is not None:
        graphs.append(manifest.pooling.graph)
    return DeviceWeights(package, device, graphs, load_plan.host_layers)


def _open_embedder(model: OpenedModel) -> Embedder:
    """Open the graph of states of a package over the model's cache.

    Its last norm is one of ONNX Runtime's operators: wherever passes run, the CPU computes that, with its bits.
    """
    manifest, load_plan, io_binding = model.package.manifest, model.load_plan, model.io_binding
    pooling, is_here = manifest.pooling, model.device is None
    constants = model.weights if is_here else model.laid
    assert pooling is not None
    assert model.weights is not None, manifest.op_profile
    assert isinstance(io_binding, NativeIOBinding), manifest.op_profile
    session = Session(
        model.package.file(pooling.graph),
        threads=load_plan.plan.device.threads,
        device=None if model.device is None else model.device.unrecorded(),
        profile=manifest.op_profile,
        isa=model.options.isa,
        memory=load_plan.pass_memory if is_here else None,
        initializers=None if constants is None else constants.constants(pooling.graph),
    )
    most = min(load_plan.plan.choice.prefill_chunk, model.cache.largest_pass)
    runner = ModelRunner(session, io_binding.of_states(most), model.switch)
    caches = io_binding.slots or (model.cache,)
    return Embedder(runner, pooling, caches, most_rows=most, pool=io_binding.pool)


def _open_prompts(
    package: Package, options: LoadOptions, io_binding: IOBinding, device: ComputeDevice | None
) -> PromptCache | None:
    """Return what reads and writes rows of prompts, in a folder if that is asked for; None where rows are not stored.

    Raises:
        StorageError: the folder cannot be used.
    """
    if device is not None or why_rows_are_not_stored(package.manifest) is not None:
        return None
    assert isinstance(io_binding, NativeIOBinding), package.manifest.op_profile
    key = rows_key(package.manifest, io_binding.kv_formats, io_binding.capacity)
    blocks = RowBlocks(key, io_binding.row_parts)
    states = RowStates(blocks, io_binding.kept_bytes) if io_binding.kept_bytes else None
    folder = None
    if options.prompt_cache is not None:
        limit = USUAL_SIZE if options.prompt_cache_size is None else parse_size(options.prompt_cache_size)
        about = {"model": package.manifest.model.name, "kv_format": io_binding.kv_format}
        of_state = 0 if states is None else states.size
        if io_binding.window is not None:
            io_binding.window.most_kept = CHECKPOINTS
        path = absolute_path(options.prompt_cache)
        folder = BlockFolder(path, key, about, size=blocks.size, limit=limit, state_size=of_state)
    prompts = PromptCache(blocks, folder, states)
    prompts.add_folder(package.path / PROMPTS_FOLDER)
    return prompts


def cache_device(device: ComputeDevice | None, sessions: Sequence[Session]) -> ComputeDevice | None:
    """Return the device whose memory holds the cache: where attention is computed, so that no pass copies it.

    Args:
        device: where passes run; None: on the CPU.
    """
    nodes = [node for session in sessions for node in session.placement if node.operator == _ATTENTION]
    return None if nodes and all(node.is_on_cpu for node in nodes) else device


def _open_sessions(
    package: Package,
    load_plan: LoadPlan,
    isa: str | None,
    more_outputs: Sequence[TensorSpec],
    device: ComputeDevice | None,
    weights: MappedWeights | DeviceWeights | None,
) -> list[Session]:
    """Open all graphs of a package; their passes run one after another, so one arena serves them all.

    Args:
        weights: what they read in place; None: ONNX Runtime copies them to a device, or packs them.
    """
    manifest = package.manifest
    # Hidden states are those of the last layer, whose graph is the last segment.
    last = manifest.segments[-1].graph
    begun = {segment.graph for segment in manifest.segments if segment.first_layer < load_plan.host_layers}
    # Passes on a device allocate there.
    with arena_of(load_plan.pass_memory if device is None else None) as arena:
        return [
            Session(
                package.file(graph),
                threads=load_plan.plan.device.threads,
                device=device if device is None or graph in begun else device.undivided(),
                profile=manifest.op_profile,
                isa=isa,
                memory=arena,
                more_outputs=more_outputs if graph == last else (),
                initializers=None if weights is None else weights.constants(graph),
            )
            for graph in manifest.graphs
        ]


def _open_runner(
    package: Package,
    load_plan: LoadPlan,
    sessions: list[Session],
    io_binding: IOBinding,
    cache: KVCache,
    switch: StopSwitch,
) -> Runner:
    if not package.manifest.exits:
        return ModelRunner(sessions[0], io_binding, switch)
    from edge_rt.runtime.forward.segmented_runner import SegmentedRunner

    assert isinstance(io_binding, NativeIOBinding), package.manifest.op_profile
    segments, most = package.manifest.segments, load_plan.largest_pass
    return SegmentedRunner(sessions, segments, io_binding, switch, cache.ahead, most)


def _open_io_binding(package: Package, load_plan: LoadPlan, device: ComputeDevice | None) -> IOBinding:
    choice = load_plan.plan.choice
    try:
        io_binding = open_io_binding(
            package.manifest,
            choice.ctx,
            choice.kv_format,
            largest_pass=load_plan.largest_pass,
            hidden=load_plan.hidden,
            stream=load_plan.drafts_ahead,
            sequences=choice.slots if choice.slots > 1 else 0,
            rows=choice.kv_rows or None,
            drafts=load_plan.drafts,
            checkpoints=choice.checkpoints,
            device=device,
            host_layers=load_plan.host_layers,
        )
    except (MemoryError, OSError, OverflowError) as error:
        raise MemoryBudgetExceeded(
            "The KV cache does not fit the memory.", f"{error}.", "Load the model with a smaller context."
        ) from error
    io_binding.outputs.plan(load_plan.logit_rows, load_plan.most_logit_rows)
    return io_binding


def _tell_nobody(loaded: str) -> None:
    del loaded
