"""Measure whether the plan of a model with experts larger than its budget holds: in memory, reads and speed.

The page cache is emptied of the package first. A process loads the package with a budget, in a memory cgroup of that
size, and answers with tokens drawn at temperature 1; what it took is compared with the plan. With ``--llama-python``
llama.cpp generates on the GGUF file, mapped, in a cgroup of the same size::

    python benchmarks/synthetic_experts.py even.gguf
    edge-rt export -m even.gguf --out even --calibration none
    python benchmarks/expert_memory.py --package even --memory 3GB
    python benchmarks/expert_memory.py --package even --memory 3GB --gguf even.gguf --llama-python llama/bin/python

Needs Linux; a cgroup needs root and a writable memory controller. Exit code 1 if the plan does not hold: a peak above
it or more than 4 % below it, more than 10 major faults a token, or a speed that is not within 25 % of what was
expected.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from memory_limit import memory_cgroup

MIB = 1 << 20
MOST_FAULTS = 10
MOST_OFF = 0.25
WORKERS = Path(__file__).parent / "workers"
# Its repacked weights would not fit: without them it reads the mapped file.
LLAMA = """
import json, random, resource, sys, time
from llama_cpp_worker import Llama
path, threads, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = Llama(path, threads, is_repacked=False)
tokens = random.Random(0)
ids = [tokens.randrange(300, model.vocabulary) for _ in range(count + 16)]
model.decode(ids[:16], 0, 1)
before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_majflt, time.perf_counter()
for position, one in enumerate(ids[16:], 16):
    model.decode([one], position, 1)
seconds = time.perf_counter() - begun
faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
print(json.dumps({"tokens_per_second": count / seconds, "major_faults": faults / count}))
"""


def forget(path: Path) -> None:
    """Let the system drop the pages of a file, or of a folder's files."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            number = os.open(file, os.O_RDONLY)
            os.fdatasync(number)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(number)


def work(arguments: argparse.Namespace) -> None:
    """Load the package and answer; print what it took, as JSON."""
    import edge_rt
    from edge_rt import GenerationConfig
    from edge_rt.memory.speed import plain_tokens_per_second
    from edge_rt.system.process_memory import peak_rss_bytes

    options: dict[str, Any] = {"ctx": arguments.ctx, "spec": arguments.spec, "threads": arguments.threads}
    options |= {} if arguments.experts is None else {"experts": arguments.experts}
    with edge_rt.load(arguments.package, memory=arguments.memory, **options) as model:
        plan = model.plan
        faults: list[int] = []
        ids = random.Random(0)
        prompt = [ids.randrange(300, plan.shape.model.vocab_size) for _ in range(arguments.prompt)]
        # Any token may follow.
        drawn = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1, "repetition_guard": False}
        stream = model.stream_ids(prompt, GenerationConfig(max_tokens=arguments.tokens, **drawn))
        times: list[float] = []
        for event in stream:
            times += [time.perf_counter()] * bool(event.token_ids)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_majflt)
        result = stream.result()
        experts = plan.shape.experts
        assert experts is not None
        cache = plan.choice.expert_bytes or 0
        found = {
            "planned_bytes": plan.total_bytes,
            "peak_bytes": peak_rss_bytes(),
            "cache_bytes": cache,
            "tokens": result.usage.completion_tokens,
            "tokens_per_second": (result.usage.completion_tokens - 1) / (times[-1] - times[0]),
            "expected_tokens_per_second": plain_tokens_per_second(plan.shape, plan.device, plan.choice),
            "read_bandwidth": plan.device.read_bandwidth,
            "expected_hit_share": experts.hit_share(cache),
            "expected_read_bytes": experts.missed_bytes(cache),
            "major_faults": (faults[-1] - faults[0]) / max(1, result.usage.completion_tokens - 1),
            "experts": None if result.experts is None else result.experts.__dict__,
            "rows_drafted": 0 if result.spec is None else result.spec.rows_drafted,
        }
    print(json.dumps(found))


def run(command: list[str], limit: int, *, in_cgroup: bool) -> tuple[dict[str, Any], int | None]:
    """Run a command within a cgroup; return the JSON that it prints, and the most bytes that were charged."""
    with memory_cgroup(limit) if in_cgroup else nullcontext() as group:
        if group is None:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        else:
            done = group.run(command)
        charged = None if group is None else group.highest()
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document, charged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--memory", default="3GB")
    parser.add_argument("--experts", help="as --experts of edge-rt")
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=256, help="its tokens; those of a few hundred fill the cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--spec", default="off")
    parser.add_argument("--no-cgroup", action="store_true")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--llama-python", type=Path)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments)
        return
    from edge_rt.system.byte_size import parse_size

    limit = parse_size(arguments.memory)
    forget(arguments.package)
    found, charged = run([sys.executable, *sys.argv, "--work"], limit, in_cgroup=not arguments.no_cgroup)
    reads = found["experts"] or {"hit_share": 1.0, "read_bytes_per_token": 0.0, "waited_ms": 0.0}
    over = found["planned_bytes"] / found["peak_bytes"] - 1
    off = found["tokens_per_second"] / found["expected_tokens_per_second"] - 1
    print(f"planned {found['planned_bytes'] / MIB:.0f} MiB, peak {found['peak_bytes'] / MIB:.0f}: {100 * over:+.1f} %")
    if charged is not None:
        print(f"charged to the cgroup of {limit / MIB:.0f} MiB at most {charged / MIB:.0f} MiB")
    print(f"cache {found['cache_bytes'] / MIB:.0f} MiB, hits {100 * reads['hit_share']:.0f} %, "
          f"foretold {100 * found['expected_hit_share']:.0f} %")  # fmt: skip
    print(f"read per token {reads['read_bytes_per_token'] / MIB:.0f} MiB, foretold "
          f"{found['expected_read_bytes'] / MIB:.0f}, at {found['read_bandwidth'] / MIB:.0f} MiB a second")  # fmt: skip
    print(f"{found['tokens_per_second']:.2f} tokens a second, expected {found['expected_tokens_per_second']:.2f}: "
          f"{100 * off:+.0f} %; drafted rows {found['rows_drafted']}")  # fmt: skip
    print(f"major faults a token: {found['major_faults']:.2f}")
    if arguments.llama_python is not None and arguments.gguf is not None:
        forget(arguments.gguf)
        program = f"import sys; sys.path.insert(0, {str(WORKERS)!r}){LLAMA}"
        options = [str(arguments.gguf), str(arguments.threads), str(min(arguments.tokens, 24))]
        command = [str(arguments.llama_python), "-c", program, *options]
        other, charged = run(command, limit, in_cgroup=not arguments.no_cgroup)
        print(f"llama.cpp, mapped: {other['tokens_per_second']:.2f} tokens a second, major faults a token "
              f"{other['major_faults']:.0f}; edge-rt is "
              f"{found['tokens_per_second'] / other['tokens_per_second']:.2f} times as fast")  # fmt: skip
    holds = 0 <= over <= 0.04 and found["major_faults"] <= MOST_FAULTS and abs(off) <= MOST_OFF
    raise SystemExit(0 if holds else 1)


if __name__ == "__main__":
    main()
