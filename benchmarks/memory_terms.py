"""What the parts of a running model take of the memory: the coefficients of ``edge_rt/memory/terms.py``.

Every figure comes from a fresh process that goes through the stages of a model's life and reads ``/proc/self`` after
each: its resident memory by kind (``RssAnon``, ``RssFile``, ``RssShmem``) and of ``weights.bin`` alone. What a stage
adds is shown in MiB. Linux only::

    python benchmarks/memory_terms.py --package PACKAGE [PACKAGE ...]

Printed per package: the stages of loading; passes of each size in a process of its own, as an arena keeps what it once
had; sampling; and, once, the tables of drafters, filled and rebuilt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parent / "workers" / "memory_terms_worker.py"
MIB = 1 << 20
KINDS = ("resident", "anon", "file", "shared", "weights", "peak")
CHUNKS = (64, 128, 256, 512)
TREE = 24


def measure(order: dict[str, Any]) -> list[tuple[str, dict[str, int]]]:
    """Return the stages that a worker went through."""
    done = subprocess.run([sys.executable, str(WORKER), json.dumps(order)], capture_output=True, text=True, check=True)
    return [(name, facts) for name, facts in json.loads(done.stdout)]


def show(title: str, stages: list[tuple[str, dict[str, int]]]) -> None:
    """Print what every stage added."""
    print(f"\n{title}")
    print(f"{'':44}" + "".join(f"{kind:>10}" for kind in KINDS))
    before = dict.fromkeys(KINDS, 0)
    for name, facts in stages:
        print(f"{name:44}" + "".join(f"{(facts[kind] - before[kind]) / MIB:10.2f}" for kind in KINDS))
        before = facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", type=Path, nargs="+", required=True)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--kv", help="format of the cache; the package's first if left out")
    parser.add_argument("--no-drafters", action="store_true", help="leave out the tables, which take a minute")
    args = parser.parse_args()
    for package in args.package:
        base = {"package": str(package.absolute()), "ctx": args.ctx, "kv": args.kv}
        show(f"{package}: tokenizer", measure({**base, "tokenizer": True}))
        for chunk in CHUNKS:
            passes = [[chunk, 0, 1], [chunk, args.ctx - chunk, 1], [TREE, args.ctx - TREE, TREE]]
            show(
                f"{package}: passes of {chunk} rows",
                measure({**base, "passes": passes, "sampling": chunk == CHUNKS[-1]}),
            )
    if args.no_drafters:
        return
    base = {"package": str(args.package[0].absolute()), "ctx": 512, "passes": []}
    for name, counts in (("suffix", (4096, 16384, 65536)), ("recycling", (1024, 4096, 32768))):
        for count in counts:
            step = {"name": name, "count": count, "times": 3}
            show(f"{name}, {count}", measure({**base, "drafters": [step]})[-2:])


if __name__ == "__main__":
    main()
