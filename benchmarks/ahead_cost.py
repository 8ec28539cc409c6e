"""What a draft of a block that predicts ahead costs against a pass over one row of its model, and what drafts promise.

Passes over one row and more, and steps of the block, alternate in one process::

    python benchmarks/synthetic_families.py qwen3.5-0.8b Q4_0 model.gguf
    edge-rt export -m model.gguf --calibration none --weights keep -o my-package
    python benchmarks/ahead_cost.py --package my-package --threads 1 --processor-time

The gains are *modelled*: measured times, and each token of a chain right with the same probability.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from alternating import bootstrap

import edge_rt
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.mapped_weights import MappedWeights
from edge_rt.ort.session import Session
from edge_rt.package.reader import Package, open_package
from edge_rt.runtime.speculation.ahead_model import OpenedAhead, open_ahead_model

ROWS = (1, 2, 3, 4)
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--package", required=True, help="a native package with such a block")
    parser.add_argument("--depth", type=int, default=320, help="tokens in the caches")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--processor-time", action="store_true", help="of one thread: what other programs take is left out"
    )
    arguments = parser.parse_args()
    if arguments.processor_time and arguments.threads != 1:
        parser.error("--processor-time needs --threads 1")
    package = open_package(arguments.package)
    block = open_block(package, arguments.depth + 64, arguments.threads)
    samples = measure(block, arguments, package.manifest.model.vocab_size)
    report(samples, block.io_binding.result_size, package.manifest.model.vocab_size)


def open_block(package: Package, positions: int, threads: int) -> OpenedAhead:
    weights, info = MappedWeights(package), package.manifest.ahead
    assert info is not None, "the package has no block that predicts ahead"
    session = Session(
        package.file(info.graph), threads=threads, profile="native", initializers=weights.initializers(info.graph)
    )
    return open_ahead_model(package, weights, session, positions, StopSwitch())


def measure(block: OpenedAhead, arguments: argparse.Namespace, vocabulary: int) -> dict[str, list[float]]:
    rng, depth = np.random.default_rng(0), arguments.depth
    samples: dict[str, list[float]] = {f"{rows}": [] for rows in ROWS} | {"step": []}
    # Of a model with one thread, the time of this thread is all of the work.
    clock = time.thread_time if arguments.processor_time else time.perf_counter
    model = edge_rt.load(arguments.package, threads=arguments.threads, ctx=depth + 64, spec="ngram")
    with model.passes() as (target, cache):
        with cache.reserve(depth) as rows:
            tokens = rng.integers(vocabulary, size=depth).tolist()
            target.forward(tokens, 0, 1)
            rows.commit(tokens)
        block.io_binding.fill(depth)
        block.cache.pretend(depth)

        def took(runner, held, count: int) -> float:
            tokens = rng.integers(vocabulary, size=count).tolist()
            with held.reserve(count, certain=1) as rows:
                started = clock()
                runner.forward(tokens, rows.start, count)
                return 1e3 * (clock() - started)

        for number in range(arguments.rounds + 2):
            found = {f"{count}": took(target, cache, count) for count in ROWS}
            found["step"] = took(block.runner, block.cache, 1)
            # The first ones allocate.
            for name, milliseconds in found.items() if number > 1 else ():
                samples[name].append(milliseconds)
    model.close()
    return samples


def report(samples: dict[str, list[float]], columns: int, vocabulary: int) -> None:
    one = np.array(samples["1"])
    print(f"a pass over one row: min {one.min():.2f}, median {np.median(one):.2f} ms")
    for name, values in samples.items():
        ratios = (np.array(values) / one).tolist()
        low, high = bootstrap(ratios)
        what = f"a step over {columns} of {vocabulary} tokens" if name == "step" else f"a pass over {name} rows"
        print(f"{what}: {np.median(ratios):.3f} of a pass ({low:.3f}-{high:.3f}); of least times "
              f"{min(values) / one.min():.3f}")  # fmt: skip
    costs = {name: np.median(np.array(values) / one) for name, values in samples.items()}
    for share in ACCEPTANCES:
        gains = []
        for length in range(1, ROWS[-1]):
            tokens = sum(share**count for count in range(length + 1))
            gains.append(tokens / (costs[f"{length + 1}"] + length * costs["step"]))
        print(f"acceptance {share}: {', '.join(f'{gain:.2f}x' for gain in gains)} with 1, 2, 3 drafts (modelled)")


if __name__ == "__main__":
    main()
