"""What exits cost and what drafts that end at them could gain, measured on a package with exits.

Passes of all kinds alternate inside one process, so that the machine's noise meets them alike. With ``--whole`` the
same checkpoint without exits runs beside it: one-row passes of both alternate, and fresh processes are compared by
their private memory::

    edge-rt export -m model.gguf -o cut --exits 6,10,15
    edge-rt export -m model.gguf -o whole
    python benchmarks/exit_costs.py cut --whole whole

The gains are *replayed*: the measured times of this machine at an acceptance from elsewhere, each token of a chain
staying with the same probability. One of them is that of Kangaroo (arXiv:2404.18911), of which only the speed-up is
known here (1.68 on Vicuna-7B, exit behind 2 of 32 layers, chains of up to 6): its acceptance is the one that gives this
speed-up by the parameters that its steps read. With a head of fewer rows the time of the head is scaled, not measured
(*modelled*). With ``--drafter`` its trained adapters guess at the exits in place of the model's head.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from alternating import bootstrap

import edge_rt
from edge_rt.measure.prompts import built_in_prompts
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.segmented_runner import SegmentedRunner
from edge_rt.runtime.model import Model
from edge_rt.system.machine import cpu_model
from edge_rt.system.process_memory import read_memory

ROWS = (1, 2, 3, 4, 5, 7, 9)
LENGTHS = range(1, 9)
BLOCK = 10
SMALL_HEAD = 16384
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
# Vicuna-7B: parameters of a layer, of the head, and of the adapter (four matrices of attention).
KANGAROO = {"speed_up": 1.68, "layers": 32, "exit": 2, "length": 6}
LAYER, HEAD, ADAPTER = 4 * 4096**2 + 3 * 4096 * 11008, 32000 * 4096, 4 * 4096**2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("cut", type=Path)
    parser.add_argument("--whole", type=Path, help="the same checkpoint without exits")
    parser.add_argument("--drafter", type=Path, help="folder of trained adapters")
    parser.add_argument("--depth", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--agreement", type=int, metavar="N", help="only: how often exits are right in answers of N")
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(json.dumps(private_memory(arguments.memory_of, arguments.threads)))
        return
    if arguments.agreement:
        print_agreement(arguments.cut, arguments.agreement, arguments.threads, arguments.drafter)
        return
    samples = measure(arguments)
    report(samples, open_package(arguments.cut).manifest.model.vocab_size, is_adapted=arguments.drafter is not None)
    if arguments.whole:
        for name, path in (("one graph", arguments.whole), ("with exits", arguments.cut)):
            command = [
                sys.executable,
                __file__,
                str(path),
                "--memory-of",
                str(path),
                "--threads",
                str(arguments.threads),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"private memory, {name}: {float(done.stdout) / 2**20:.2f} MiB")
    if arguments.json:
        arguments.json.write_text(json.dumps({"cpu": cpu_model(), "milliseconds": samples}, indent=1))


def load(path: Path, ctx: int, threads: int, drafter: Path | None = None) -> Model:
    return edge_rt.load(path, ctx=ctx, threads=threads, spec="exit" if drafter else "off", drafter=drafter)


def measure(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return milliseconds of every kind of pass, in rounds that run all of them."""
    models = {"cut": load(arguments.cut, arguments.depth + 64, arguments.threads, arguments.drafter)}
    if arguments.whole:
        models["whole"] = load(arguments.whole, arguments.depth + 64, arguments.threads)
    exits = models["cut"].package.manifest.exits
    print(f"{cpu_model()}, {arguments.threads} threads; {models['cut'].package.manifest.model.name}, exits {exits}")
    kinds: dict[str, Callable[[], object]] = {}
    held = [model.passes() for model in models.values()]
    opened = dict(zip(models, [one.__enter__() for one in held], strict=True))
    for name, (runner, cache) in opened.items():
        prompt = [1 + n % 250 for n in range(arguments.depth)]
        with cache.reserve(len(prompt)) as rows:
            runner.forward(prompt, rows.start, 1)
            rows.commit(prompt)

        def one_row(runner=runner, cache=cache, count=1):
            with cache.reserve(count) as rows:
                runner.forward([1] * count, rows.start, count)

        kinds[name] = one_row
    runner, cache = opened["cut"]
    assert isinstance(runner, SegmentedRunner)
    for segments, layers in enumerate(exits, start=1):

        def draft(segments=segments):
            cache.ahead.begin(cache.length, segments)
            cache.make_room(1)
            runner.draft(1, -1)
            cache.ahead.clear()

        kinds[f"draft {layers}"] = draft
        for count in ROWS:

            def deep(segments=segments, count=count):
                cache.ahead.begin(cache.length, segments)
                for node in range(count):
                    cache.ahead.add(1, node - 1)
                with cache.reserve(count) as rows:
                    runner.forward([1] * count, rows.start, count)

            kinds[f"deep {layers} x{count}"] = deep
    samples: dict[str, list[float]] = {name: [] for name in (*kinds, "cut beside whole")}
    if arguments.whole:
        whole = kinds.pop("whole")
        # In blocks, so that each finds its own weights near, as while a model decodes.
        for turn in range(arguments.rounds + 1):
            for name, run in (("whole", whole), ("cut beside whole", kinds["cut"])):
                found = [timed(run) for _ in range(BLOCK)]
                if turn:
                    samples[name].append(float(np.median(found[BLOCK // 2 :])))
    for turn in range(arguments.rounds + 1):
        for name, run in kinds.items():
            # As in decoding, where passes follow each other: the first one only brings its weights near.
            run()
            found = timed(run)
            if turn:
                samples[name].append(found)
    for one in held:
        one.__exit__(None, None, None)
    for model in models.values():
        model.close()
    return samples


def timed(run: Callable[[], object]) -> float:
    """Return the milliseconds of a run."""
    started = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - started)


def report(samples: dict[str, list[float]], vocabulary: int, *, is_adapted: bool) -> None:
    cut = np.array(samples["cut"])
    print(f"one row: min {cut.min():.3f}, median {np.median(cut):.3f} ms")
    if samples.get("whole"):
        beside, whole = np.array(samples["cut beside whole"]), np.array(samples["whole"])
        low, high = bootstrap(list(beside / whole))
        print(f"against one graph: {np.median(beside / whole):.4f} ({low:.4f}-{high:.4f}); {np.median(whole):.3f} ms")
    least = {name: min(values) / cut.min() for name, values in samples.items() if values}
    rate = kangaroo_acceptance()
    exits = [int(name.split()[1]) for name in samples if name.startswith("draft")]
    head = "adapter" if is_adapted else "head"
    for layers in exits:
        draft, first = least[f"draft {layers}"], 1.0 - least[f"deep {layers} x1"]
        rows = ", ".join(f"{count}: {least[f'deep {layers} x{count}']:.3f}" for count in ROWS)
        print(f"exit {layers}: a drafted token {draft:.3f} of a pass ({first:.3f} layers, {draft - first:.3f} {head})")
        print(f"  the layers behind it, by rows: {rows}")
        for acceptance in (*ACCEPTANCES, rate):
            speeds = {n: replayed(least, layers, acceptance, n) for n in LENGTHS}
            best = max(speeds, key=speeds.__getitem__)
            named = " (Kangaroo's, derived)" if acceptance == rate else ""
            print(f"  replayed at acceptance {acceptance:.2f}{named}: {speeds[best]:.2f}x with chains of {best}")
        if is_adapted:
            continue
        small = {**least, f"draft {layers}": first + (draft - first) * min(SMALL_HEAD / vocabulary, 1.0)}
        speeds = {n: replayed(small, layers, rate, n) for n in LENGTHS}
        best = max(speeds, key=speeds.__getitem__)
        print(
            f"  the same with a head of {SMALL_HEAD} rows, modelled: a token {small[f'draft {layers}']:.3f} of a pass, "
            f"{speeds[best]:.2f}x with chains of {best}"
        )


def replayed(least: dict[str, float], layers: int, acceptance: float, length: int) -> float:
    """Return the speed-up of chains of one length, by the measured times.

    The last token of a chain goes through the first layers when it is verified.
    """
    deep = np.interp(length + 1, ROWS, [least[f"deep {layers} x{count}"] for count in ROWS])
    last = 1.0 - least[f"deep {layers} x1"]
    expected = sum(acceptance**n for n in range(length + 1))
    return float(expected / (length * least[f"draft {layers}"] + last + deep))


def kangaroo_acceptance() -> float:
    """Return the acceptance that gives the published speed-up if a step takes as long as it reads parameters."""
    whole = KANGAROO["layers"] * LAYER + HEAD
    draft = KANGAROO["exit"] * LAYER + ADAPTER + HEAD
    rest = whole - KANGAROO["exit"] * LAYER

    def speed_up(rate: float) -> float:
        # Whole chains; the last token goes through the first layers as well.
        steps = KANGAROO["length"]
        spent = steps * draft + KANGAROO["exit"] * LAYER + rest
        return sum(rate**n for n in range(steps + 1)) * whole / spent

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if speed_up(middle) < KANGAROO["speed_up"] else (low, middle)
    return (low + high) / 2


def print_agreement(path: Path, tokens: int, threads: int, drafter: Path | None) -> None:
    """Print the share of tokens of greedy answers to the built-in prompts that are an exit's first guess."""
    with load(path, 2048, threads, drafter) as model:
        exits = model.package.manifest.exits
        right, seen = dict.fromkeys(exits, 0), 0
        for prompt in built_in_prompts():
            messages = [{"role": "user", "content": prompt.text}]
            answer = model.generate(messages, max_tokens=tokens, temperature=0.0, repetition_guard=False).token_ids
            with model.passes() as (runner, cache):
                assert isinstance(runner, SegmentedRunner)
                cache.truncate(cache.length - len(answer) + 1)
                for token, following in pairwise(answer):
                    for segments, layers in enumerate(exits, start=1):
                        cache.ahead.begin(cache.length, segments)
                        cache.make_room(1)
                        right[layers] += int(runner.draft(token, -1).ids[0, 0]) == following
                    with cache.reserve(1) as rows:
                        runner.forward([token], rows.start, 1)
                        rows.commit([token])
                    seen += 1
        for layers, count in right.items():
            print(f"exit {layers}: {count / seen:.3f} of {seen} tokens")


def private_memory(path: Path, threads: int) -> int:
    """Return the private bytes of this process after a prompt of several chunks and an answer."""
    with edge_rt.load(path, ctx=1024, threads=threads, spec="off") as model:
        ids = [1 + n % 250 for n in range(700)]
        model.generate(ids, max_tokens=48, temperature=0.0, repetition_guard=False)
        return read_memory().private_bytes


if __name__ == "__main__":
    main()
