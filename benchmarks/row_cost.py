"""What a pass over M rows costs against a pass over one, and against merely reading the weights.

Passes of all sizes alternate inside one process, so that the machine's noise meets them alike; minimum and median over
all rounds are reported. With ``--probe`` a program that prints ``{"read": [median, minimum], ...}`` in milliseconds
(what reading the same bytes costs) runs between the rounds, while our process is stopped::

    python benchmarks/row_cost.py --package my-package --depths 128 2048 --rounds 240 --kv f32 int8
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from alternating import Worker, bootstrap

WORKER = Path(__file__).parent / "workers" / "row_cost_worker.py"
ROWS = (1, 2, 4, 8, 16)
ROUNDS_BETWEEN_PROBES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--package", required=True)
    parser.add_argument("--depths", type=int, nargs="+", default=[128, 2048])
    parser.add_argument("--kv", nargs="+", default=[""], help="formats of the cache; the package's default if left out")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=240)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="")
    parser.add_argument("--probe", nargs="+", help="command that prints what reading the weights costs")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    arguments = parser.parse_args()
    everything = {}
    for kv in arguments.kv:
        command = [sys.executable, str(WORKER), arguments.package, str(arguments.threads), kv, arguments.isa]
        worker = Worker(f"edge-rt {kv}", [*command, str(max(arguments.depths) + max(arguments.rows))])
        name = worker.about["kv_format"]
        print(f"{name}: {worker.about}")
        for depth in arguments.depths:
            samples, reads = measure(worker, depth, arguments)
            report(samples, reads, depth)
            everything[f"{name}@{depth}"] = {"milliseconds": samples, "read": reads}
        worker.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))


def measure(worker: Worker, depth: int, arguments: argparse.Namespace) -> tuple[dict[int, list[float]], list]:
    worker.ask(fill=depth)
    samples: dict[int, list[float]] = {rows: [] for rows in arguments.rows}
    reads = []
    for _ in range(0, arguments.rounds, ROUNDS_BETWEEN_PROBES):
        found = worker.ask(rows=arguments.rows, depth=depth, rounds=ROUNDS_BETWEEN_PROBES)["milliseconds"]
        for rows, values in zip(arguments.rows, found, strict=True):
            samples[rows] += values
        if arguments.probe:
            done = subprocess.run(arguments.probe, capture_output=True, text=True, check=True)
            reads.append(json.loads(done.stdout)["read"])
    return samples, reads


def report(samples: dict[int, list[float]], reads: list, depth: int) -> None:
    one = np.array(samples[min(samples)])
    for rows, values in samples.items():
        ratios = np.array(values) / one
        low, high = bootstrap(list(ratios))
        print(
            f"depth {depth}, {rows:2d} rows: min {min(values):.2f} median {np.median(values):.2f} ms; against 1 row: "
            f"min {min(values) / one.min():.2f}, median {np.median(ratios):.2f} ({low:.2f}-{high:.2f})"
        )
    if reads:
        medians, minima = np.array(reads).T
        print(
            f"bare read: min {minima.min():.2f} median {np.median(medians):.2f} ms; one row: "
            f"min {one.min() / minima.min():.2f}, median {np.median(one) / np.median(medians):.2f} times that"
        )


if __name__ == "__main__":
    main()
