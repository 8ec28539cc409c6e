"""Opens a second model that drafts, with a graph and a cache of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_rt.binding import StopSwitch
from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.memory.draft_model import DraftModelShape
from edge_rt.memory.terms import pass_memory_bytes
from edge_rt.package.reader import open_package
from edge_rt.pass_memory import PassMemory
from edge_rt.runtime.drafters.chain import MAX_CHAIN
from edge_rt.runtime.drafters.model import DraftModel, ModelSource, Way
from edge_rt.runtime.drafters.source import Source
from edge_rt.runtime.graph.io_binding import open_io_binding
from edge_rt.runtime.graph.runner import ModelRunner
from edge_rt.runtime.load.load_plan import LoadPlan
from edge_rt.runtime.speculation.chain_costs import ChainCosts
from edge_rt.runtime.speculation.cost_measurement import MeasuredCosts
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.session import Session, check_window_support, pool_size
from edge_rt.system.machine import usable_cpus

_PRIOR = 0.6
"""Share of its tokens that is taken to be right before any is known."""


def open_draft_model(
    second: DraftModelShape,
    load_plan: LoadPlan,
    facts: dict[str, Any],
    switch: StopSwitch,
    end_ids: tuple[int, ...],
) -> Callable[[RowCosts], Source]:
    """Open a second model as the plan has decided.

    Args:
        second: the model.
        load_plan: what was decided for the first one.
        facts: what costs of passes depend on, besides the package.
        switch: stops passes of both.
        end_ids: tokens that end an answer of the first model.

    Returns:
        Makes the source of its guesses, given the costs of the first model's passes; those of its own are measured
        then, unless they are stored.

    Raises:
        EdgeRTError: the package cannot be opened, or its cache does not fit the memory.
    """
    package, options = open_package(Path(second.path)), load_plan.options
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
        threads=options.threads if options.threads is not None else pool_size() or usable_cpus(),
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
