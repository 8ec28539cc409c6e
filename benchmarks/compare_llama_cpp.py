"""Compare edge-rt with llama.cpp on the same GGUF file, pass by pass.

Each runtime lives in a process of its own, and the idle ones are stopped while one works. Rounds alternate; a round
does the same work on every runtime, and what is reported is the median over rounds of the ratio within a round, with a
bootstrap interval of 95 %.

Run it where both are installed, or name a second interpreter that has llama-cpp-python (0.3.36 was used)::

    pip install llama-cpp-python
    python benchmarks/compare_llama_cpp.py --gguf model.Q4_1.gguf --package native=my-package --rounds 15

``--package`` may be given several times; the first one is what the others and llama.cpp are compared with. ``--isa``
forces an instruction set of our kernels (build llama.cpp for the same one, then). llama.cpp is driven through
``llama_decode``, with the most likely token taken by numpy, on the file as it is and, with ``--requantise``, on its
requantisation to Q4_0, too (written into ``--work`` by llama.cpp itself).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from alternating import Worker, ratio_text

WORKERS = Path(__file__).parent / "workers"
TASKS = ("tg128", "pp512", "rows1", "rows2", "rows4", "rows8", "rows16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the checkpoint")
    parser.add_argument(
        "--package", action="append", required=True, metavar="NAME=PATH", help="an edge-rt package of it"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--isa", help="instruction set of edge-rt's kernels (native packages)")
    parser.add_argument("--llama-python", default=sys.executable, help="interpreter that has llama-cpp-python")
    parser.add_argument("--requantise", action="store_true", help="compare with llama.cpp on a Q4_0 file, too")
    parser.add_argument("--work", type=Path, help="folder for the requantised file (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        samples, about = measure(arguments, work)
    report(samples, about, arguments)


def start_workers(arguments: argparse.Namespace, work: Path) -> list[Worker]:
    threads = str(arguments.threads)
    llama = [arguments.llama_python, str(WORKERS / "llama_cpp_worker.py")]
    workers = []
    for package in arguments.package:
        name, _, path = package.rpartition("=")
        command = [sys.executable, str(WORKERS / "edge_rt_worker.py"), path, threads, "--isa", arguments.isa or ""]
        workers.append(Worker(f"edge-rt {name}".strip(), command))
    workers.append(Worker("llama.cpp", [*llama, str(arguments.gguf), threads]))
    if arguments.requantise:
        q4_0 = work / f"{arguments.gguf.stem}.requantised-Q4_0.gguf"
        if not q4_0.exists():
            command = [*llama, "--quantise", str(arguments.gguf), str(q4_0)]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        workers.append(Worker("llama.cpp Q4_0", [*llama, str(q4_0), threads]))
    return workers


def measure(arguments: argparse.Namespace, work: Path) -> tuple[dict, dict]:
    workers = start_workers(arguments, work)
    samples: dict[str, dict[str, list[float]]] = {t: {w.name: [] for w in workers} for t in arguments.tasks}
    try:
        for round_ in range(arguments.rounds + 1):
            for task in arguments.tasks:
                order = workers if round_ % 2 else workers[::-1]
                for worker in order:
                    seconds = worker.ask(task=task, seed=round_)["seconds"]
                    if round_:  # the first round warms up
                        samples[task][worker.name].append(seconds)
            print(f"round {round_}/{arguments.rounds}", file=sys.stderr)
    finally:
        for worker in workers:
            worker.close()
    return samples, {worker.name: worker.about for worker in workers}


def report(samples: dict, about: dict, arguments: argparse.Namespace) -> None:
    for name, facts in about.items():
        print(f"{name}: {facts}")
    ours, *others = about
    print(f"{arguments.rounds} rounds, {arguments.threads} threads; ratio above 1: {ours} is that many times faster")
    print(f"| task | {ours} | " + " | ".join(f"{name} | ratio (95 %)" for name in others) + " |")
    print("|---" * (2 + 2 * len(others)) + "|")
    for task, by_name in samples.items():
        cells = [task, shown(task, by_name[ours])]
        for name in others:
            cells += [shown(task, by_name[name]), ratio_text(by_name[name], by_name[ours])]
        print("| " + " | ".join(cells) + " |")
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": about, "seconds": samples}, indent=1))


def shown(task: str, seconds: list[float]) -> str:
    """Return tokens per second for prompts and generation, milliseconds per pass for rows."""
    median = statistics.median(seconds)
    if task.startswith("rows"):
        return f"{1e3 * median:.1f} ms"
    return f"{int(task[2:]) / median:.0f} tok/s"


if __name__ == "__main__":
    main()
