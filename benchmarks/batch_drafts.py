"""What drafts give to several answers at once: tokens per second with them over those without, on prompts of a file.

    python benchmarks/batch_drafts.py PACKAGE PROMPTS.jsonl [--slots 2 4 8] [--groups 6] [--temperature 0.7]

A line has `turns` or `prompt`. Groups of two prompts a slot are answered with and without drafts in turn, prompts
included; what drafters have learned stays, as in a process that goes on. Reported are the ratios of the groups: their
geometric mean, with an interval by resampling, and the tokens per second of the medians.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from pathlib import Path

import edge_rt


def messages(line: dict[str, object]) -> object:
    """Return a prompt of a line."""
    turns = line.get("turns")
    return [{"role": "user", "content": turns[0]}] if isinstance(turns, list) else line["prompt"]


def speed(model, prompts, **options) -> tuple[float, list[tuple[int, ...]], float]:
    """Return tokens per second, the texts, and the tokens per step of those that drafted."""
    model.reset()
    started, results = time.perf_counter(), list(model.generate_many(prompts, **options))
    seconds = time.perf_counter() - started
    steps = [result.spec.tokens_per_step for result in results if result.spec is not None]
    texts = [result.token_ids for result in results]
    return sum(map(len, texts)) / seconds, texts, statistics.fmean(steps) if steps else 1.0


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean and a 95 % interval by resampling."""
    logs, rng = [math.log(ratio) for ratio in ratios], random.Random(1)
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(2000))
    return math.exp(statistics.fmean(logs)), math.exp(means[50]), math.exp(means[1949])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--slots", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--groups", type=int, default=6)
    parser.add_argument("--skip", type=int, default=0, help="prompts at the beginning that are left out")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--kv", default="int8")
    parser.add_argument("--spec", default="auto")
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in arguments.prompts.read_text().splitlines()][arguments.skip :]
    prompts = [messages(line) for line in lines]
    options = {"max_tokens": arguments.tokens, "temperature": arguments.temperature, "repetition_guard": False}
    if arguments.temperature:
        options["seed"] = 1
    for slots in arguments.slots:
        ratios, on, off, steps = [], [], [], []
        loading = {"ctx": arguments.ctx, "kv": arguments.kv, "spec": arguments.spec}
        with edge_rt.load(arguments.package, slots=slots, **loading) as model:
            speed(model, prompts[-2 * slots :], **options)
            for group in range(arguments.groups):
                few = [prompts[(2 * slots * group + place) % len(prompts)] for place in range(2 * slots)]
                found = {}
                for mode in ("off", arguments.spec) if group % 2 else (arguments.spec, "off"):
                    found[mode] = speed(model, few, **options, spec=mode)
                assert found["off"][1] == found[arguments.spec][1], "drafts changed a text"
                off.append(found["off"][0])
                on.append(found[arguments.spec][0])
                steps.append(found[arguments.spec][2])
                ratios.append(on[-1] / off[-1])
        mean, low, high = interval(ratios)
        print(
            f"{slots} slots: {statistics.median(off):6.1f} -> {statistics.median(on):6.1f} tokens/s, {mean:.3f} "
            f"({low:.3f} to {high:.3f}) of those without; {statistics.fmean(steps):.2f} tokens a step; groups "
            f"{[round(ratio, 2) for ratio in ratios]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
