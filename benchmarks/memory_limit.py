"""Does the plan hold where the system enforces it? Commands inside a memory cgroup a little above their plan.

For every request: plan, make a cgroup that allows 5 % more than the plan's total, and run the command in it with the
plan's total as its budget. The page cache is emptied first, so that every page of weights and libraries that the
command touches is charged to it. A process that takes more is killed by the kernel. Then the smallest budget less 1 MiB
is tried, which has to be refused with exit code 4, and each alternative that the plan offers is typed as it stands.

Needs Linux, root, and a writable memory controller (cgroup v1 or v2)::

    python benchmarks/memory_limit.py --package my-package
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edge_rt.system.byte_size import parse_size

MIB = 1 << 20
TEXT = "Write a long story about a lighthouse keeper who finds a bottle with a letter in it."
REQUESTS = (
    "--ctx 512 --kv-type f16 --spec off",
    "--ctx 2048 --kv-type f16",
    "--ctx 2048 --kv-type int8",
    "--ctx 8192 --kv-type int4",
    "",
)


class MemoryCgroup:
    """A memory controller's group, v1 or v2, that processes can be started in."""

    def __init__(self, name: str) -> None:
        first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        self.version = 1 if first.is_dir() else 2
        self.path = (first if self.version == 1 else second) / name
        self.path.mkdir()

    def limit(self, limit: int) -> None:
        """Allow that many bytes, page cache included."""
        name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        (self.path / name).write_text(str(limit))

    def highest(self) -> int:
        """Return the most bytes that were charged so far."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return int((self.path / name).read_text())

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the group."""
        shell = f"echo $$ > {shlex.quote(str(self.path / 'cgroup.procs'))} && exec {shlex.join(command)}"
        return subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)


@contextmanager
def memory_cgroup(limit: int) -> Iterator[MemoryCgroup]:
    """Make a group that allows ``limit`` bytes; it is removed at the end."""
    group = MemoryCgroup(f"edge-rt-{os.getpid()}")
    try:
        group.limit(limit)
        yield group
    finally:
        group.path.rmdir()


def edge_rt(*words: str) -> list[str]:
    """Return the command line of edge-rt in this environment."""
    return [str(Path(sys.executable).parent / "edge-rt"), *words]


def empty_page_cache() -> None:
    """Let every process pay for the pages that it reads."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def plan_of(package: Path, flags: list[str]) -> dict[str, Any]:
    """Return what ``edge-rt plan --json`` says."""
    done = subprocess.run(
        edge_rt("plan", "-m", str(package), *flags, "--json"), capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 4), done.stderr
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def generate(package: Path, flags: list[str], tokens: int) -> list[str]:
    """Return the command that answers with up to ``tokens`` tokens."""
    return edge_rt("generate", "-m", str(package), *flags, "-n", str(tokens), "--temp", "0.7", "--seed", "1", "--json",
                   "-p", TEXT)  # fmt: skip


def peak_of(done: subprocess.CompletedProcess[str]) -> float:
    """Return the peak of resident memory that an answer reports, in MiB."""
    return float(json.loads(done.stdout)["memory"]["peak_bytes"]) / MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=400, help="of an answer")
    arguments = parser.parse_args()
    failures = 0
    print("| request | plan | cgroup allows | exit | resident peak | charged peak |\n|---|---|---|---|---|---|")
    for request in REQUESTS:
        flags = shlex.split(request)
        total = plan_of(arguments.package, flags)["total_bytes"]
        flags += ["--memory", str(total)]
        with memory_cgroup(int(1.05 * total)) as group:
            empty_page_cache()
            done = group.run(generate(arguments.package, flags, arguments.tokens))
            failures += done.returncode != 0
            peak = f"{peak_of(done):.1f}" if done.returncode == 0 else done.stderr.strip()[-200:]
            charged = group.highest() / MIB
        print(
            f"| {request or '(defaults)'} | {total / MIB:.1f} | {1.05 * total / MIB:.1f} | {done.returncode} | {peak} "
            f"| {charged:.1f} |",
            flush=True,
        )
    for request in REQUESTS:
        failures += too_small(arguments.package, shlex.split(request), arguments.tokens)
    sys.exit(min(failures, 1))


def too_small(package: Path, flags: list[str], tokens: int) -> int:
    """Try 1 MiB less than the least budget, and what is offered instead; return the number of surprises."""
    budget = plan_of(package, flags)["minimum_bytes"] - MIB
    flags = [*flags, "--memory", str(budget)]
    refused = subprocess.run(generate(package, flags, tokens), capture_output=True, text=True, check=False)
    print(f"\n{shlex.join(flags)}: exit {refused.returncode}")
    failures = int(refused.returncode != 4)
    alternatives = plan_of(package, flags)["alternatives"]
    failures += not alternatives
    for alternative in alternatives:
        words = alternative["flags"]
        allowed = parse_size(words[words.index("--memory") + 1]) if "--memory" in words else budget
        with memory_cgroup(int(1.05 * allowed)) as group:
            empty_page_cache()
            done = group.run(generate(package, words, tokens))
        failures += done.returncode != 0
        print(f"  {shlex.join(words)}: exit {done.returncode}", flush=True)
    return failures


if __name__ == "__main__":
    main()
