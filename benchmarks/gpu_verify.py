"""Whether a GPU answers prompts with the CPU's tokens, plain and drafted, with all layers there and with half."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_target import Results, Target, fail

from edge_rt.measure.prompts import PLAIN, built_in_prompts, read_prompts
from edge_rt.measure.verify import Answer, answers, summary
from edge_rt.memory.sizes import sizes_of
from edge_rt.package.reader import Package
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from edge_rt.runtime.model import Model
from edge_rt.runtime.speculation.cost_model import RowCosts

MODES = (PLAIN, "suffix", "recycling")
# Drafts are made whatever they cost: texts are compared here, not times.
FREE_ROWS = RowCosts((1, 64), (0,), ((1.0, 1.001),))


@dataclass(frozen=True)
class Asked:
    """What is compared.

    Attributes:
        prompts: a file of prompts; None: a few built-in ones.
        limit: how many of them.
        tokens: most tokens of an answer.
    """

    prompts: Path | None
    limit: int
    tokens: int


def run_verify(target: Target, package: Package, asked: Asked) -> None:
    """Answer prompts greedily on the CPU, and on the GPU with every mode; exit code 1 if an answer differs.

    Then with half of the layers on the GPU and the others on the CPU, if the package can be divided.

    Args:
        target: where.
        package: a native package.
        asked: the prompts.
    """
    given = built_in_prompts() if asked.prompts is None else read_prompts(asked.prompts)
    config = GenerationConfig(max_tokens=asked.tokens, temperature=0.0, repetition_penalty=1.0, repetition_guard=False)
    manifest = package.manifest
    kv, is_raw = manifest.kv_formats[0], manifest.chat_template is None
    results, found, compared = Results(target, "verify"), [], []
    usual = LoadOptions(gpu_providers=target.providers, kv=kv)
    for device, modes, options in _places(package, target, usual):
        with Model(package, options) as model:
            assert (model.plan.choice.gpu_layers is not None) == (device == "half"), model.plan.choice
            model.speculation.costs = FREE_ROWS
            for mode in modes:
                own = list(answers(model, given[: asked.limit], config, mode, kv=kv, raw=is_raw))
                if device != "cpu":
                    compared.append(f"{device} {mode}")
                    own = [replace(answer, mode=compared[-1]) for answer in own]
                _keep(results, own)
                found += own
    by_mode = summary(found, compared)["by_drafter"]
    for name, counts in by_mode.items():
        same = f"{counts['identical']} of {counts['prompts']} answers are the CPU's"
        results.add(f"{name}: {same}, {counts['drafted']} rows drafted", name=name, **counts)
    fail(_wrong(by_mode))


def _places(
    package: Package, target: Target, options: LoadOptions
) -> Iterator[tuple[str, tuple[str, ...], LoadOptions]]:
    """Yield name, modes and options of each load; the last one is planned when the GPU is open, as a load finds it."""
    yield "cpu", (PLAIN,), options.but(device="cpu")
    on_gpu = options.but(device=str(target.device))
    yield str(target.device), MODES, on_gpu
    # Of memory that it shares there is no part to divide by.
    if not target.gpu.is_unified and (divided := _divided(package, on_gpu)) is not None:
        yield "half", (PLAIN, "suffix"), divided


def _divided(package: Package, options: LoadOptions) -> LoadOptions | None:
    """Return options with room on the GPU for half of the layers; None if they cannot be divided."""
    # With every setting pinned nothing else is given up.
    context = min(2048, package.manifest.model.context_length)
    asked = options.but(ctx=context, spec="auto", draft_max=8, prefill_chunk=64)
    # A budget that is given counts what the driver takes, too, whatever this process has opened.
    plan = plan_package(package, asked.but(device_memory=1 << 40))
    if plan.shape.layers is None or plan.shape.model.num_layers < 2:
        return None
    choice = replace(plan.choice, gpu_layers=plan.shape.model.num_layers // 2)
    return asked.but(device_memory=sizes_of(plan.shape, plan.device, choice, plan.request).needs.gpu)


def _keep(results: Results, own: list[Answer]) -> None:
    for answer in own:
        results.keep(answer=answer.to_json())


def _wrong(by_mode):
    for name, counts in by_mode.items():
        if counts["prompts"] == 0 or counts["identical"] != counts["prompts"]:
            yield f"{name}: other answers than the CPU's, or none"
    if not any(counts["drafted"] for counts in by_mode.values()):
        yield "nothing was drafted"
