"""Passes with two installations of edge-rt, which differ in how their library was compiled.

They run alternately, each with the Python that it is installed for, on one thread. A round measures the smallest
processor time of a few passes of each; the median of the rounds' ratios and its 95 % interval are reported::

    python benchmarks/builds.py wheel/bin/python source/bin/python --package my-package --isas avx512_vnni avx2
"""

from __future__ import annotations

import argparse
from pathlib import Path

from alternating import Worker, ratio_text

WORKER = Path(__file__).parent / "workers" / "row_cost_worker.py"
PASSES_A_TURN = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("pythons", nargs=2, help="the ratio is that of the first to the second")
    parser.add_argument("--package", required=True)
    parser.add_argument("--isas", nargs="+", required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    for isa in arguments.isas:
        compare(isa, arguments)


def compare(isa: str, arguments: argparse.Namespace) -> None:
    context = str(arguments.depth + max(arguments.rows))
    workers = [
        Worker(python, [python, str(WORKER), arguments.package, "1", arguments.kv, isa, context])
        for python in arguments.pythons
    ]
    samples: list[list[list[float]]] = [[[] for _ in arguments.rows] for _ in workers]
    for worker in workers:
        worker.ask(fill=arguments.depth)
    for turn in range(arguments.rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            found = workers[which].ask(
                rows=arguments.rows, depth=arguments.depth, rounds=PASSES_A_TURN, processor_time=True
            )
            for values, passes in zip(samples[which], found["milliseconds"], strict=True):
                values.append(min(passes))
    for worker in workers:
        worker.close()
    for rows, above, below in zip(arguments.rows, *samples, strict=True):
        print(f"{isa}, {rows} rows: {ratio_text(above, below)}")


if __name__ == "__main__":
    main()
