"""Opens what drafts with the upper halves of a model's own weights and cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from edge_rt.binding import StopSwitch
from edge_rt.compute_device import ComputeDevice
from edge_rt.package.reader import Package
from edge_rt.runtime.decode.draft import Drafter
from edge_rt.runtime.drafters.model import ModelSource, UpperHalves, Way
from edge_rt.runtime.drafters.source import Source
from edge_rt.runtime.graph.cache import KVCache
from edge_rt.runtime.graph.io_binding_base import IOBinding
from edge_rt.runtime.graph.io_binding_native import NativeIOBinding
from edge_rt.runtime.graph.runner import ModelRunner
from edge_rt.runtime.load.load_plan import LoadPlan
from edge_rt.runtime.speculation.chain_costs import ChainCosts
from edge_rt.runtime.speculation.cost_measurement import MeasuredCosts
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.self_drafter import MOST_DRAFTED, SelfDrafter, View
from edge_rt.session import Session, pool_size
from edge_rt.spec_modes import SELF
from edge_rt.system.machine import usable_cpus

LEAST_GAIN: Final = 1.05
"""Speed over plain decoding that drafts must promise before ``auto`` takes them."""


def open_self_drafting(
    package: Package,
    load_plan: LoadPlan,
    io_binding: IOBinding,
    cache: KVCache,
    device: ComputeDevice | None,
    facts: dict[str, Any],
    switch: StopSwitch,
) -> tuple[Callable[[RowCosts], Drafter], Callable[[RowCosts], Source]]:
    """Open the draft graph of a package over the cache of its model.

    Args:
        package: the package, which has one.
        load_plan: what was decided.
        io_binding: of the model; its cache has upper halves.
        cache: its bookkeeping.
        device: where passes run, which then holds the weights twice; None: on the CPU.
        facts: what costs of passes depend on.
        switch: stops passes.

    Returns:
        What makes the drafter of the mode ``self``, and the source of the same guesses for ``auto``, given the costs of
        the model's own passes; those of draft passes are measured then, unless they are stored.

    Raises:
        EdgeRTError: the graph cannot be opened.
    """
    manifest, options = package.manifest, load_plan.options
    assert manifest.draft_graph is not None
    assert isinstance(io_binding, NativeIOBinding)
    session = Session(
        package.file(manifest.draft_graph),
        threads=options.threads if options.threads is not None else pool_size() or usable_cpus(),
        device=device,
        profile=manifest.op_profile,
        isa=options.isa,
        memory=load_plan.pass_memory if device is None else None,
    )
    most = min(load_plan.draft_max, MOST_DRAFTED)
    made = []
    for name, reads_upper in (("whole cache", False), ("upper cache", True)):
        binding = io_binding.sharing(reads_upper=reads_upper)
        binding.outputs.plan(1, 1)
        own_facts = facts | {"graph": manifest.draft_graph, "reads": name}
        measured = MeasuredCosts(own_facts, binding, cache, options.costs)
        measured.on_measure = options.on_measuring(f"drafts with fewer bits ({name})")
        made.append((name, ModelRunner(session, binding, switch), measured))

    def drafter(whole: RowCosts) -> Drafter:
        # A measurement empties the cache: only between generations, as that of the model's own passes.
        views = [View(name, runner, ChainCosts(whole, measured.get(runner), most)) for name, runner, measured in made]
        return SelfDrafter(views, cache, max_nodes=most, trace=options.spec_trace)

    def source(whole: RowCosts) -> Source:
        size, ends = manifest.model.vocab_size, manifest.tokenizer.eos_token_ids
        ways = [
            Way(UpperHalves(runner, cache, size), ChainCosts(whole, measured.get(runner), most))
            for _, runner, measured in made
        ]
        return ModelSource(ways, name=SELF, least_gain=LEAST_GAIN, most=most, end_ids=ends)

    return drafter, source
