"""Does the tasks of compare_llama_cpp.py with edge-rt: one JSON request per line in, seconds out."""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

import edge_rt
from edge_rt.runtime.decode.loop import prefill
from edge_rt.runtime.decode.sequence import Sequence

DEPTH = 100
PASSES = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("threads", type=int)
    parser.add_argument("--isa")
    arguments = parser.parse_args()
    native = edge_rt.open_package(arguments.package).manifest.op_profile == "native"
    model = edge_rt.load(
        arguments.package, threads=arguments.threads, ctx=2048, isa=(arguments.isa or None) if native else None
    )
    facts = model.describe()
    names = ("op_profile", "isa", "activations", "threads", "onnxruntime")
    print(json.dumps({name: facts[name] for name in names}), flush=True)
    with model.passes() as (target, cache):
        for line in sys.stdin:
            request = json.loads(line)
            rng = np.random.default_rng(request["seed"])
            seconds = run(request["task"], rng, target, cache, model)
            print(json.dumps({"seconds": seconds}), flush=True)


def run(task: str, rng: np.random.Generator, target, cache, model) -> float:
    def ids(count: int) -> list[int]:
        return [int(i) for i in rng.integers(17, model.package.manifest.model.vocab_size, count)]

    def fill(tokens: list[int]) -> None:
        cache.truncate(0)
        prefill(Sequence(tokens, capacity=2048, max_tokens=1, end_ids=()), target, cache, model.prefill_chunk)
        rest = tokens[cache.length :]
        with cache.reserve(len(rest)) as rows:
            target.forward(rest, rows.start, 1).logits[0].argmax()
            rows.commit(rest)

    if task.startswith("pp"):
        tokens = ids(int(task[2:]))
        started = time.perf_counter()
        fill(tokens)
        return time.perf_counter() - started
    if task.startswith("tg"):
        token = ids(1)[0]
        started = time.perf_counter()
        for position in range(int(task[2:])):
            token = int(target.forward([token], position, 1).logits[0].argmax())
        return time.perf_counter() - started
    fill(ids(DEPTH))
    rows = int(task[4:])
    samples = []
    for _ in range(PASSES):
        tokens = ids(rows)
        started = time.perf_counter()
        target.forward(tokens, DEPTH, rows).logits.argmax(axis=-1)
        samples.append(time.perf_counter() - started)
    return float(np.median(samples))


if __name__ == "__main__":
    main()
