"""How long a package takes to load, how much memory of its own that needs, and what two processes share.

Two fresh processes load the same package, one after the other, and stay. Each tells, from ``/proc/self``:

- private: ``Anonymous`` of all mappings, memory that no file backs and that nobody else can use, above what the
  process had once numpy and ONNX Runtime were imported. The KV cache is told apart: ``Rss`` of its own
  mapping.
- weights.bin: ``Rss`` and ``Pss`` of its mappings. Pss counts a page that n processes map as 1/n, so with everything
  shared the two of them add up to one Rss.

The file is read once beforehand, so loading is warm. Linux only::

    python benchmarks/load_memory.py --package my-package
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from alternating import Worker

WORKER = Path(__file__).parent / "workers" / "load_memory_worker.py"
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loads", type=int, default=5, help="processes whose load is timed, one after the other")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    weights = arguments.package / "weights.bin"
    size = len(weights.read_bytes())

    def start(name: str) -> Worker:
        command = [sys.executable, str(WORKER), str(arguments.package), str(arguments.ctx), str(arguments.threads)]
        return Worker(name, command)

    seconds = []
    for _ in range(arguments.loads):
        worker = start("one process")
        seconds.append(worker.about["load_seconds"])
        loaded, alone = worker.about, worker.ask(passes=[1, 64])
        worker.close()
    both = [start("first"), start("second")]
    for worker in both:
        worker.ask(passes=[1, 64])
    shared = [worker.ask(passes=[]) for worker in both]
    for worker in both:
        worker.close()
    report = {"load_seconds": seconds, "loaded": loaded, "used": alone, "two_at_once": shared, "weights_bytes": size}
    if arguments.json:
        print(json.dumps(report))
        return
    print(
        f"load: median {statistics.median(seconds):.2f} s of {', '.join(f'{s:.2f}' for s in seconds)} (after imports)"
    )
    for state, facts in (("loaded", loaded), ("after passes of 1 and 64 tokens", alone)):
        print(
            f"{state}: {facts['private'] / MIB:.1f} MiB private, of which {facts['imports'] / MIB:.1f} by imports of "
            f"edge-rt; KV cache {facts['kv'] / MIB:.1f}; resident {facts['resident'] / MIB:.1f}; weights.bin resident "
            f"{facts['weights_rss'] / MIB:.1f} of {size / MIB:.1f}"
        )
    for index, facts in enumerate(shared):
        print(
            f"process {index + 1} of 2 at once: weights.bin resident {facts['weights_rss'] / MIB:.1f} MiB, "
            f"its share (Pss) {facts['weights_pss'] / MIB:.1f} MiB, private {facts['private'] / MIB:.1f} MiB"
        )


if __name__ == "__main__":
    main()
