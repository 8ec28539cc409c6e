"""Times passes for row_cost.py: one JSON request per line in, milliseconds out."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import edge_rt
from edge_rt.runtime.decode.loop import prefill
from edge_rt.runtime.decode.sequence import Sequence


def main() -> None:
    package, threads, kv, isa, context = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
    model = edge_rt.load(package, threads=threads, kv=kv or None, isa=isa or None, ctx=context + 1)
    facts = model.describe()
    print(json.dumps({name: facts[name] for name in ("op_profile", "isa", "kv_format", "threads")}), flush=True)
    rng = np.random.default_rng(0)

    def ids(count: int) -> list[int]:
        return [int(i) for i in rng.integers(17, model.package.manifest.model.vocab_size, count)]

    with model.passes() as (target, cache):
        for line in sys.stdin:
            request = json.loads(line)
            if "fill" in request:
                fill(ids(request["fill"]), target, cache, model.prefill_chunk)
                print(json.dumps({}), flush=True)
                continue
            # Time of this thread alone, where asked for: of a model with one thread it is all of the work.
            clock = time.thread_time if request.get("processor_time") else time.perf_counter
            found: list[list[float]] = [[] for _ in request["rows"]]
            for _ in range(request["rounds"]):
                for rows, values in zip(request["rows"], found, strict=True):
                    tokens = ids(rows)
                    started = clock()
                    target.forward(tokens, request["depth"], rows)
                    values.append(1e3 * (clock() - started))
            print(json.dumps({"milliseconds": found}), flush=True)


def fill(tokens: list[int], target, cache, chunk: int) -> None:
    cache.truncate(0)
    prefill(Sequence(tokens, capacity=len(tokens) + 2, max_tokens=1, end_ids=()), target, cache, chunk)
    rest = tokens[cache.length :]
    with cache.reserve(len(rest)) as rows:
        target.forward(rest, rows.start, 1)
        rows.commit(rest)


if __name__ == "__main__":
    main()
