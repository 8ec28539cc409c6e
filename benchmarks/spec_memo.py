"""What speculation loses in the smallest budget that its plan calls sufficient, and what memory that saves.

The question is SpecMemo's (Yildirim and Chen, arXiv 2506.01986): how little memory keeps nearly all of speculation's
gain? Three settings are planned, and driven to their limits in fresh processes:

- small: the budget is the plan's ``speculation_bytes``, with the context that the prompts need;
- large: the model's full context, an f16 cache and a tree of 64 rows, without a budget;
- equal: context and cache of small with the tree of large, so that the context alone does not win.

Generation memory is cache, tree, logits, activations and drafters: as planned, and as measured (peak less what the
process holds once model and weights are in memory). Then both small and a model without any budget answer the prompts
greedily, each in a process of its own, one at a time, taking turns at every prompt. Ratios have bootstrap intervals
over prompts::

    python benchmarks/spec_memo.py --package my-package --prompts question.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from alternating import Worker

import edge_rt
from edge_rt.measure.memory_report import MemoryReport
from edge_rt.measure.memory_watch import MeasuredProcess
from edge_rt.memory.device import this_device
from edge_rt.memory.plan import Plan, Request, make_plan
from edge_rt.memory.shape import ModelShape, shape_of
from edge_rt.package.reader import open_package
from edge_rt.package.spec_modes import MAX_DRAFT

MIB = 1 << 20
WORKER = Path(__file__).parent / "workers" / "memo_worker.py"
PARTS = ("kv_cache", "logits", "activations", "drafters")
TREE_PARTS = ("logits", "activations")
KEPT_SPEED, SAVED_MEMORY = 0.96, 0.65
UNLIMITED = 1 << 40


def planned(plan: Plan, parts: tuple[str, ...] = PARTS) -> int:
    """Return the planned bytes of some terms."""
    return sum(term.bytes for term in plan.terms if term.name in parts)


def measured(profile: MemoryReport, parts: tuple[str, ...] | None = None) -> int:
    """Return the measured bytes of some terms; None: all that was held beyond the loaded model and its weights."""
    if parts is not None:
        return sum(term["measured"] or 0 for name, term in profile.terms().items() if name in parts)
    loaded = next(stage for stage in profile.run.stages if stage.name == "loaded")
    return profile.run.peak_bytes - loaded.other_bytes - max(stage.weights_bytes for stage in profile.run.stages)


def make_plans(shape: ModelShape, ctx: int, kv: str) -> dict[str, Plan]:
    """Return the three plans."""
    device = this_device()

    def plan(budget: int, ctx: int, draft_max: int | None) -> Plan:
        spec = None if draft_max is None else "auto"
        request = Request(budget_bytes=budget, ctx=ctx, kv=kv, spec=spec, draft_max=draft_max)
        return make_plan(shape, device, request)

    enough = plan(UNLIMITED, ctx, None).speculation_bytes
    if enough is None:
        sys.exit("the plan knows no budget at which speculation pays")
    return {
        "small": plan(enough, ctx, None),
        "large": plan(UNLIMITED, shape.model.context_length, MAX_DRAFT),
        "equal": plan(UNLIMITED, ctx, MAX_DRAFT),
    }


def prompts_of(package: Path, path: Path, every: int, longest: int) -> list[list[int]]:
    """Return first turns as token ids; those that do not fit are left out."""
    with edge_rt.load(package, spec="off", ctx=64) as model:
        texts = [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").splitlines()][::every]
        rendered = [model.render([{"role": "user", "content": text}]) for text in texts]
        ids = [model.tokenizer.encode_rendered(prompt) for prompt in rendered]
    kept = [one for one in ids if len(one) <= longest]
    print(f"{len(kept)} prompts; {len(ids) - len(kept)} are too long for the context and left out")
    return kept


def speeds(args: argparse.Namespace, prompts: list[list[int]], options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Let workers answer the prompts alternately; returns (tokens behind the first, milliseconds) per prompt."""
    workers = [
        Worker(name, [sys.executable, str(WORKER), str(args.package), json.dumps(chosen)])
        for name, chosen in options.items()
    ]
    found: dict[str, list[tuple[int, float]]] = {worker.name: [] for worker in workers}
    answers: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        for turn in range(len(workers)):
            worker = workers[(index + turn) % len(workers)]
            answer = worker.ask(prompt=prompt, max_tokens=args.max_tokens)
            if answers.setdefault(index, answer["ids"]) != answer["ids"]:
                sys.exit(f"prompt {index}: the answers differ")
            found[worker.name].append((len(answer["ids"]) - 1, answer["ms"]))
    for worker in workers:
        worker.close()
    return found


def ratio(a: list[tuple[int, float]], b: list[tuple[int, float]]) -> tuple[float, float, float]:
    """Return the ratio of two speeds with its 95 % interval over prompts: (median, low, high)."""
    first, second = np.array(a), np.array(b)
    picks = np.random.default_rng(0).integers(0, len(first), (2000, len(first)))
    x, y = first[picks].sum(axis=1), second[picks].sum(axis=1)
    ratios = (x[:, 0] / x[:, 1]) / (y[:, 0] / y[:, 1])
    return float(np.median(ratios)), float(np.quantile(ratios, 0.025)), float(np.quantile(ratios, 0.975))


def tell_memory(profiles: dict[str, MemoryReport]) -> float:
    """Print what the settings take, and return the share of measured generation memory that small saves over large."""
    print("| setting | context | cache | rows of a tree | cache, MiB | logits | activations | drafters | generation |")
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|")
    for name, profile in profiles.items():
        choice = profile.plan.choice
        terms = profile.terms()
        cells = [f"{terms[part]['planned'] / MIB:.1f} / {terms[part]['measured'] / MIB:.1f}" for part in PARTS]
        whole = f"{planned(profile.plan) / MIB:.1f} / {measured(profile) / MIB:.1f}"
        print(
            f"| {name} | {choice.ctx} | {choice.kv_format} | {choice.draft_max + 1} | {' | '.join([*cells, whole])} |"
        )
    print("(planned / measured)")
    small, large, equal = (profiles[name] for name in ("small", "large", "equal"))
    saved = 1 - measured(small) / measured(large)
    print(
        f"generation memory against large: planned -{100 * (1 - planned(small.plan) / planned(large.plan)):.1f} %, "
        f"measured -{100 * saved:.1f} %"
    )
    for about, parts in (("logits and activations", TREE_PARTS), ("... and drafters", (*TREE_PARTS, "drafters"))):
        plan_share = 1 - planned(small.plan, parts) / planned(equal.plan, parts)
        share = 1 - measured(small, parts) / measured(equal, parts)
        print(f"{about} at equal context and cache: planned -{100 * plan_share:.1f} %, measured -{100 * share:.1f} %")
    whole = 1 - measured(small) / measured(equal)
    print(f"all generation memory at equal context and cache: measured -{100 * whole:.1f} %")
    return saved


def tell_speed(args: argparse.Namespace, budget: int) -> float:
    """Print how fast the settings answer, and return the share of the speed without a budget that is kept."""
    common = {"threads": args.threads, "kv": args.kv}
    found = speeds(
        args,
        prompts_of(args.package, args.prompts, args.every, args.ctx - args.max_tokens),
        {
            "small": {**common, "ctx": args.ctx, "memory": budget},
            "no budget": common,
            "no speculation": {**common, "spec": "off"},
        },
    )
    for name, pairs in found.items():
        sums = np.array(pairs).sum(axis=0)
        print(f"{name}: {1e3 * sums[0] / sums[1]:.1f} tokens per second")
    kept, low, high = ratio(found["small"], found["no budget"])
    gain = ratio(found["no budget"], found["no speculation"])
    print(f"small keeps {100 * kept:.1f} % ({100 * low:.1f}-{100 * high:.1f}) of the speed without a budget,")
    print(f"which is {gain[0]:.2f} ({gain[1]:.2f}-{gain[2]:.2f}) times that of plain decoding")
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--ctx", type=int, default=2048, help="context of the small setting")
    parser.add_argument("--kv", default="f16", help="cache format of all settings")
    parser.add_argument("--every", type=int, default=4, help="take every Nth prompt")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", nargs="+", choices=("memory", "speed"), default=["memory", "speed"])
    args = parser.parse_args()
    opened = open_package(args.package)
    plans = make_plans(shape_of(opened.manifest, opened.id), args.ctx, args.kv)
    small = plans["small"]
    print(
        f"smallest budget at which speculation keeps its gain: {small.budget_bytes / MIB:.1f} MiB: drafts of "
        f"{small.choice.draft_max} with {small.choice.spec}, {small.choice.suffix_tokens} tokens and "
        f"{small.choice.recycling_contexts} contexts remembered"
    )
    failures = []
    if "memory" in args.parts:
        profiles = {}
        for name, plan in plans.items():
            with MeasuredProcess() as process:
                profiles[name] = MemoryReport(plan, process.run(args.package, plan, threads=args.threads))
        if tell_memory(profiles) < SAVED_MEMORY:
            failures.append(f"less than {100 * SAVED_MEMORY:.0f} % of the memory is saved")
    if "speed" in args.parts and tell_speed(args, small.budget_bytes) < KEPT_SPEED:
        failures.append(f"less than {100 * KEPT_SPEED:.0f} % of the speed is kept")
    if failures:
        sys.exit("; ".join(failures))


if __name__ == "__main__":
    main()
