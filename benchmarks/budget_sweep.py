"""Whether budgets are kept: every command with ``--memory`` at its smallest budget, and in steps above it.

Each line is one process, whose highest resident memory the kernel reports::

    python benchmarks/budget_sweep.py --package PACKAGE --commands profile generate
    python benchmarks/budget_sweep.py --package PACKAGE --commands export --checkpoints llama f32-gguf

``profile`` is driven to the limits of its plan; ``generate`` fills a short context. Exports are of the checkpoints of
``budget_checkpoints.py``, within the budget that a dry run calls enough. The exit code is 1 if anything took more than
its plan or its budget.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budget_checkpoints import SKETCHES, write

MIB = 1 << 20
PROGRAM = [sys.executable, "-c", "import sys; from edge_rt.cli.main import main; sys.exit(main())"]
GENERATE = ["-p", "word " * 300, "--raw", "-n", "200", "--ctx", "512", "--temp", "1", "--repeat-penalty", "1.1"]
OPTIONS = {"profile": [], "generate": GENERATE}
MODES = {"plain": ["--spec", "off"], "drafting": ["--spec", "auto"], "free": []}


@dataclass(frozen=True)
class Line:
    """One run: its budget, what was planned and what it took, in bytes."""

    name: str
    budget: int
    planned: int
    measured: int

    @property
    def is_over(self) -> bool:
        """Whether it took more than its plan or its budget."""
        return self.measured > min(self.planned, self.budget)


def call(*arguments: object) -> dict[str, Any]:
    """Run a command with ``--json`` and return what it prints, errors included."""
    command = [*PROGRAM, *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        sys.exit(f"{' '.join(command[3:])} ended with {done.returncode}: {done.stderr[-500:]}")


def of_loads(command: str, package: Path, steps: range) -> Iterator[Line]:
    """Yield runs of a command that loads a package, at its smallest budget and above."""
    for mode, flags in MODES.items():
        pinned = [*flags, *(("--ctx", 512) if command == "generate" else ())]
        least = call("plan", "-m", package, *pinned, "--memory", "64GiB")["minimum_bytes"]
        for more in steps:
            # Processes of the same command differ by less than this, which plans leave in what they suggest, too.
            budget = least + MIB // 2 + more * MIB
            own = OPTIONS[command] + [str(flag) for flag in flags]
            found = call(command, "-m", package, *own, "--memory", budget)
            name = f"{command} {mode} +{more}"
            if "error" in found:
                sys.exit(f"{name}: {found['error']}")
            memory = found if command == "profile" else found["memory"]
            planned, measured = (
                (memory["planned_peak_bytes"], memory["measured_peak_bytes"])
                if command == "profile"
                else (memory["planned_bytes"], memory["peak_bytes"])
            )
            yield Line(name, budget, planned, measured)


def of_exports(package: Path, names: list[str]) -> Iterator[Line]:
    """Yield exports of checkpoints, within what is predicted for them."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            source, out = write(SKETCHES[name], package, Path(folder) / name), Path(folder) / "out"
            weights = ["--weights", "int4"] if name == "f32-gguf" else []
            asked = ["-m", source, "--out", out, *weights, "--accept-loss"]
            ahead = call("export", *asked, "--dry-run")["peak_memory_bytes"]
            # What a process holds before it exports differs by less than this.
            budget = ahead + 4 * MIB
            found = call("export", *asked, "--memory", budget)
            if "error" in found:
                sys.exit(f"export {name}: {found['error']}")
            yield Line(f"export {name}", budget, found["predicted_peak_bytes"], found["peak_bytes"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--commands", nargs="+", choices=["profile", "generate", "export"], default=["profile"])
    parser.add_argument("--checkpoints", nargs="+", choices=list(SKETCHES), default=list(SKETCHES))
    parser.add_argument("--step", type=int, default=5, help="MiB between budgets")
    parser.add_argument("--most", type=int, default=80, help="MiB above the smallest budget")
    args = parser.parse_args()
    over = 0
    print(f"{'':32}{'budget':>9}{'planned':>9}{'measured':>9}{'ratio':>8}")
    for command in args.commands:
        steps = range(0, args.most + 1, args.step)
        lines = (
            of_exports(args.package, args.checkpoints)
            if command == "export"
            else of_loads(command, args.package, steps)
        )
        for line in lines:
            sizes = "".join(f"{size / MIB:9.1f}" for size in (line.budget, line.planned, line.measured))
            ratio = line.planned / line.measured
            print(f"{line.name:32}{sizes}{ratio:8.3f}{'  OVER' if line.is_over else ''}", flush=True)
            over += line.is_over
    print(f"{over} over")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
