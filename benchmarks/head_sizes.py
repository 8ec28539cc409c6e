"""Passes of models whose attention heads alone differ in size: every size against the next multiple of 16.

Two packages are made of random weights, with the same number of heads. They run alternately, each in a process of its
own, on one thread. A round measures the smallest processor time of a few passes of each; the median of the rounds'
ratios and its 95 % interval are reported. Below 1 the smaller heads are faster::

    python benchmarks/head_sizes.py --sizes 40 72 --kv f16 int8 int4
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from alternating import Worker, ratio_text

from edge_rt.export import export_model

HERE = Path(__file__).parent
STEP = 16
PASSES_A_TURN = 4


def package_of(size: int, folder: Path, arguments: argparse.Namespace) -> Path:
    """Return a package whose heads have a size."""
    made, package = folder / f"{size}.gguf", folder / str(size)
    if package.exists():
        return package
    shape = ["--hidden", arguments.hidden, "--layers", arguments.layers, "--heads", arguments.heads]
    shape += ["--kv-heads", arguments.kv_heads, "--intermediate", 3 * arguments.hidden, "--vocabulary", 4096]
    shape += ["--context", max(arguments.depths) + max(arguments.rows) + 1]
    command = [sys.executable, str(HERE / "synthetic_gguf.py"), str(made), "--head-dim", str(size), *map(str, shape)]
    subprocess.run(command, check=True)
    export_model(made, package, profile=arguments.profile, calibration=None)
    made.unlink()
    return package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[24, 40, 72])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--profile", default="native")
    parser.add_argument("--kv", nargs="+", default=["f16"])
    parser.add_argument("--isa", default="")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 128])
    parser.add_argument("--depths", type=int, nargs="+", default=[128, 2048])
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for size in arguments.sizes:
            sizes = (size, -(-size // STEP) * STEP)
            packages = [package_of(one, Path(name), arguments) for one in sizes]
            for kv in arguments.kv:
                compare(sizes, packages, kv, arguments)


def compare(sizes: tuple[int, int], packages: list[Path], kv: str, arguments: argparse.Namespace) -> None:
    """Measure two packages at every depth."""
    context = str(max(arguments.depths) + max(arguments.rows))
    command = [sys.executable, str(HERE / "workers" / "row_cost_worker.py")]
    workers = [Worker(package.name, [*command, str(package), "1", kv, arguments.isa, context]) for package in packages]
    for depth in arguments.depths:
        samples: list[list[list[float]]] = [[[] for _ in arguments.rows] for _ in workers]
        for worker in workers:
            worker.ask(fill=depth)
        for turn in range(arguments.rounds):
            for which in (0, 1) if turn % 2 else (1, 0):
                found = workers[which].ask(rows=arguments.rows, depth=depth, rounds=PASSES_A_TURN, processor_time=True)
                for values, passes in zip(samples[which], found["milliseconds"], strict=True):
                    values.append(min(passes))
        for rows, ours, padded in zip(arguments.rows, *samples, strict=True):
            print(f"heads of {sizes[0]} over {sizes[1]}, {kv}, depth {depth}, {rows} rows: {ratio_text(ours, padded)}")
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
