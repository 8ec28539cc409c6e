"""Loads a package for load_memory.py and tells what memory it took; then runs passes on request."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy  # noqa: F401
import onnxruntime  # noqa: F401

KIB = 1024


def sizes(*fields: str, of: str | None = None, at: int | None = None) -> list[int]:
    """Return sums of fields over this process's mappings, in bytes.

    Args:
        *fields: names as in ``smaps``.
        of: end of the mapped file's name; None takes every mapping.
        at: an address in the one mapping that is meant.
    """
    totals, counts = dict.fromkeys(fields, 0), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            start, end = (int(address, 16) for address in name.split("-"))
            path = rest[4] if len(rest) > 4 else ""
            counts = start <= at < end if at is not None else of is None or path.endswith(of)
        elif counts and name[:-1] in totals:
            totals[name[:-1]] += int(rest[0]) * KIB
    return list(totals.values())


def main() -> None:
    package, context, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    (before,) = sizes("Anonymous")

    import edge_rt
    import edge_rt.runtime.model  # what `load` would import

    (imported,) = sizes("Anonymous")
    started = time.perf_counter()
    model = edge_rt.load(package, ctx=context, threads=threads)
    seconds = time.perf_counter() - started
    with model.passes() as (runner, _):
        # All layers lie in one mapping.
        cache_address = runner._io_binding.buffers[0].ctypes.data

    def facts() -> dict[str, float]:
        # Python's anonymous maps are shared ones, which `Anonymous` leaves out.
        (kv,) = sizes("Rss", at=cache_address)
        anonymous, resident = sizes("Anonymous", "Rss")
        weights_rss, weights_pss = sizes("Rss", "Pss", of="/weights.bin")
        return {
            "load_seconds": seconds,
            "imports": imported - before,
            "private": anonymous - before,
            "kv": kv,
            "resident": resident,
            "weights_rss": weights_rss,
            "weights_pss": weights_pss,
        }

    print(json.dumps(facts()), flush=True)
    for line in sys.stdin:
        with model.passes() as (runner, _):
            for rows in json.loads(line)["passes"]:
                runner.forward([1] * rows, 0, 1)
        print(json.dumps(facts()), flush=True)


if __name__ == "__main__":
    main()
