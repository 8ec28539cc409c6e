"""What it costs that passes over one row return hidden states: two sessions of a process, whose passes alternate.

Blocks of passes of both sessions take turns, each first as often as the other. Reported are the ratio of the fastest
passes of every pair of blocks (median over the pairs, and a 95 % interval from resampling them)::

    python benchmarks/hidden_state_cost.py --package my-package --depth 256 --blocks 400 --threads 1
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session
from edge_rt.package.reader import open_package
from edge_rt.runtime.forward.io_binding import open_io_binding
from edge_rt.runtime.forward.runner import ModelRunner

PASSES = 8
CHUNK = 128


def opened(path: Path, capacity: int, threads: int, *, hidden: bool) -> ModelRunner:
    package = open_package(path)
    binding = open_io_binding(package.manifest, capacity, None, hidden=hidden)
    graph = package.file(package.manifest.segments[0].graph)
    session = Session(graph, threads=threads, profile="native", more_outputs=binding.more_outputs)
    return ModelRunner(session, binding, StopSwitch())


def fastest(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the milliseconds of the fastest of a block of passes."""
    times = []
    for _ in range(PASSES):
        started = clock()
        run()
        times.append(1e3 * (clock() - started))
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="time of the CPU, which other programs disturb less")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu else time.perf_counter
    depth, token_ids = arguments.depth, [5 + 41 * i % 400 for i in range(arguments.depth + 1)]
    runners = [opened(arguments.package, depth + 1, arguments.threads, hidden=hidden) for hidden in (False, True)]
    for runner in runners:
        for start in range(0, depth, CHUNK):
            chunk = token_ids[start : min(start + CHUNK, depth)]
            runner.forward(chunk, start, 1)

    def block(place: int) -> float:
        return fastest(lambda: runners[place].forward(token_ids[depth:], depth, 1), clock)

    pairs = np.empty((arguments.blocks, 2))
    for index in range(arguments.blocks):
        for place in (0, 1) if index % 2 else (1, 0):
            pairs[index, place] = block(place)
    ratios = pairs[:, 1] / pairs[:, 0]
    random = np.random.default_rng(0)
    medians = [np.median(random.choice(ratios, len(ratios))) for _ in range(1000)]
    found = {
        "plain_ms": float(pairs[:, 0].min()),
        "hidden_ms": float(pairs[:, 1].min()),
        "ratio": float(np.median(ratios)),
        "interval": np.quantile(medians, [0.025, 0.975]).round(5).tolist(),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
