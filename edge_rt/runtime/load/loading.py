"""Loads the parts of a model as a memory plan has decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.package.drafter import Drafter
from edge_rt.package.drafter_search import open_fitting
from edge_rt.package.reader import Package
from edge_rt.runtime.drafters.corpus import Corpus
from edge_rt.runtime.drafters.provider import DrafterJob, DrafterProvider
from edge_rt.runtime.graph.cache import KVCache
from edge_rt.runtime.graph.exact_rows import rows_are_exact
from edge_rt.runtime.graph.io_binding import open_io_binding
from edge_rt.runtime.graph.io_binding_base import IOBinding
from edge_rt.runtime.graph.runner import ModelRunner
from edge_rt.runtime.load.drafters import require_maker
from edge_rt.runtime.load.planning import LoadPlan
from edge_rt.runtime.prompt.encoding import PromptEncoder
from edge_rt.runtime.speculation.cost_measurement import MeasuredCosts
from edge_rt.runtime.speculation.speculation import Speculation
from edge_rt.session import Session, StopSwitch, check_window_support, onnxruntime_version, pool_size
from edge_rt.spec_modes import OFF, Drafts
from edge_rt.system.machine import usable_cpus


@dataclass
class Parts:
    """The parts of a loaded model.

    Attributes:
        texts: tokenizer and chat template.
        cache: bookkeeping of the KV cache.
        runner: runs passes; owns the graph and the cache's memory.
        measured_costs: measured costs of passes.
        speculation: the drafters.
        providers: ONNX Runtime's execution providers in use.
        drafter: the trained drafter that is loaded; None if none is.
        isa: instruction set of the native operators; None for a portable package.
        kv_format: format of the cache.
    """

    texts: PromptEncoder
    cache: KVCache
    runner: ModelRunner
    measured_costs: MeasuredCosts
    speculation: Speculation
    drafter: Drafter | None
    providers: list[str]
    isa: str | None
    kv_format: str


def load_parts(
    package: Package,
    load_plan: LoadPlan,
    *,
    switch: StopSwitch,
    runner: Callable[[], ModelRunner],
) -> Parts:
    """Load what a plan has decided: tokenizer, memory of the cache, graph, drafters.

    Args:
        package: the opened package.
        load_plan: the plan.
        switch: stops passes.
        runner: returns the runner as long as the model is open.

    Raises:
        VersionMismatch: ONNX Runtime is too old for the package.
        EdgeRTError: a part of the package cannot be used, or the system has less memory than it reported.
    """
    manifest, choice, options = package.manifest, load_plan.plan.choice, load_plan.options
    check_window_support(manifest.op_profile, manifest.model.sliding_window)
    tell = options.on_load or _tell_nobody
    texts = PromptEncoder(package, choice.ctx, options.share_tokenizer_with, budget=load_plan.encoding_budget)
    tell("tokenizer")
    io_binding = _open_io_binding(package, load_plan)
    tell("cache")
    corpus = None
    if options.corpus is not None:
        corpus = Corpus.open(Path(options.corpus), tokenizer=manifest.files[manifest.tokenizer.file].sha256)
    session = Session(
        package.file(manifest.segments[0].graph),
        threads=options.threads if options.threads is not None else pool_size() or usable_cpus(),
        profile=manifest.op_profile,
        isa=options.isa,
        memory=load_plan.pass_memory,
        more_outputs=io_binding.more_outputs,
    )
    tell("session")
    cache = io_binding.open_cache()
    facts = {
        "package_id": package.id,
        "op_profile": manifest.op_profile,
        "isa": session.isa,
        "kv_format": io_binding.kv_format,
        "threads": pool_size(),
        "onnxruntime": onnxruntime_version(),
    }
    measured_costs = MeasuredCosts(facts, io_binding, cache, options.costs)
    measured_costs.on_measure = options.on_calibrate
    made = ModelRunner(session, io_binding, switch)
    drafter = None if load_plan.drafter_folder is None else open_fitting(load_plan.drafter_folder, package)
    providers = {} if drafter is None else _providers(package, load_plan, drafter, session.isa)
    if drafter is not None:
        tell("drafter")
    speculation = Speculation(
        load_plan.spec_mode,
        load_plan.draft_max,
        trace=options.spec_trace,
        drafts=_drafts(package, load_plan, made, io_binding),
        costs=lambda: measured_costs.get(runner()),
        corpus=corpus,
        bounds=load_plan.table_bounds,
        providers=providers,
    )
    return Parts(
        texts,
        cache,
        made,
        measured_costs,
        speculation,
        drafter,
        session.providers,
        session.isa,
        io_binding.kv_format,
    )


def _providers(package: Package, load_plan: LoadPlan, drafter: Drafter, isa: str | None) -> dict[str, DrafterProvider]:
    """Return the loaded drafter under its mode of speculation."""
    numbers, ctx = load_plan.plan.request.drafter, load_plan.plan.choice.ctx
    job = DrafterJob(
        package=package,
        drafter=drafter,
        draft_max=load_plan.draft_max,
        prompt_rows=0 if numbers is None else numbers.prompt_rows(ctx),
        threads=pool_size() or usable_cpus(),
        isa=isa,
    )
    kind = drafter.info.kind
    require_maker(kind, load_plan.options.makers)
    return {kind: load_plan.options.makers[kind](job)}


def _drafts(package: Package, load_plan: LoadPlan, runner: ModelRunner, io_binding: IOBinding) -> Drafts:
    """Return what may be drafted: what the package states, if rows of a traced graph are exact here as well."""
    drafts = package.manifest.drafts
    if drafts is not Drafts.CHAINS or load_plan.spec_mode == OFF:
        return drafts
    is_exact = rows_are_exact(
        runner,
        vocab_size=package.manifest.model.vocab_size,
        capacity=io_binding.capacity,
        most_rows=load_plan.logit_rows,
    )
    io_binding.forget()
    return drafts if is_exact else Drafts.NOTHING


def _open_io_binding(package: Package, load_plan: LoadPlan) -> IOBinding:
    choice = load_plan.plan.choice
    try:
        io_binding = open_io_binding(
            package.manifest,
            choice.ctx,
            choice.kv_format,
            largest_pass=load_plan.largest_pass,
            hidden=load_plan.hidden,
        )
    except (MemoryError, OSError, OverflowError) as error:
        raise MemoryBudgetExceeded(
            "The KV cache does not fit the memory.", f"{error}.", "Load the model with a smaller context."
        ) from error
    io_binding.outputs.plan(load_plan.logit_rows, load_plan.most_logit_rows)
    return io_binding


def _tell_nobody(loaded: str) -> None:
    del loaded
