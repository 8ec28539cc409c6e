"""Compare edge-rt with llama.cpp on the same GGUF file, pass by pass.

Each runtime lives in a process of its own, and the idle one is stopped (SIGSTOP) while the other works: thread pools
that spin beside each other would falsify both figures. Rounds alternate; a round does the same work on every runtime,
and what is reported is the median over rounds of the ratio within a round, with a bootstrap interval of 95 %.

Run it where both are installed, or name a second interpreter that has llama-cpp-python (0.3.36 was used)::

    pip install llama-cpp-python
    python benchmarks/compare_llama_cpp.py --gguf model.Q4_1.gguf --package my-package --rounds 15

llama.cpp is driven through ``llama_decode``, with the most likely token taken by numpy, on the file as it is and on its
requantisation to Q4_0 (written beside ``--work``, by llama.cpp itself).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WORKERS = Path(__file__).parent / "workers"
TASKS = ("tg128", "pp512", "rows1", "rows2", "rows4", "rows8", "rows16")
VOCABULARY = 49152


class Worker:
    """A runtime in a process of its own, stopped except while it works."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._read()
        self._pause()

    def run(self, task: str, seed: int) -> float:
        """Do a task and return its seconds."""
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.stdin.write(json.dumps({"task": task, "seed": seed}) + "\n")
        self.process.stdin.flush()
        seconds = self._read()["seconds"]
        self._pause()
        return seconds

    def _read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended early with exit code {self.process.wait()}")
        return json.loads(line)

    def _pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.stdin.close()
            self.process.wait()


def bootstrap(ratios: list[float], draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval of the median."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (draws, len(ratios))), axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the checkpoint")
    parser.add_argument("--package", type=Path, required=True, help="its edge-rt package")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--llama-python", default=sys.executable, help="interpreter that has llama-cpp-python")
    parser.add_argument("--work", type=Path, help="folder for the requantised file (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        samples, about = measure(arguments, work)
    report(samples, about, arguments)


def measure(arguments: argparse.Namespace, work: Path) -> tuple[dict, dict]:
    threads = str(arguments.threads)
    llama = [arguments.llama_python, str(WORKERS / "llama_cpp_worker.py")]
    edge = [sys.executable, str(WORKERS / "edge_rt_worker.py")]
    q4_0 = work / f"{arguments.gguf.stem}.requantised-Q4_0.gguf"
    if not q4_0.exists():
        subprocess.run([*llama, "--quantise", str(arguments.gguf), str(q4_0)], check=True, stderr=subprocess.DEVNULL)
    workers = [
        Worker("edge-rt", [*edge, str(arguments.package), threads]),
        Worker("llama.cpp", [*llama, str(arguments.gguf), threads]),
        Worker("llama.cpp Q4_0", [*llama, str(q4_0), threads]),
    ]
    samples: dict[str, dict[str, list[float]]] = {t: {w.name: [] for w in workers} for t in arguments.tasks}
    try:
        for round_ in range(arguments.rounds + 1):
            for task in arguments.tasks:
                order = workers if round_ % 2 else workers[::-1]
                for worker in order:
                    seconds = worker.run(task, seed=round_)
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
    print(f"{arguments.rounds} rounds, {arguments.threads} threads; ratio above 1: edge-rt is that many times faster")
    print("| task | edge-rt | llama.cpp | ratio (95 %) | llama.cpp Q4_0 | ratio (95 %) |")
    print("|---|---|---|---|---|---|")
    for task, by_name in samples.items():
        ours = by_name["edge-rt"]
        cells = [task, shown(task, ours)]
        for peer in ("llama.cpp", "llama.cpp Q4_0"):
            ratios = [theirs / mine for theirs, mine in zip(by_name[peer], ours, strict=True)]
            low, high = bootstrap(ratios)
            cells += [shown(task, by_name[peer]), f"{statistics.median(ratios):.2f} ({low:.2f}-{high:.2f})"]
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
