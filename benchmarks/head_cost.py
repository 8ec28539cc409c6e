"""What a step of a draft head costs against a pass over one row of its model.

The head has random weights, which cost what trained ones do: one block in w4m, the most frequent rows of the model's LM
head, and rows of a prompt. Passes and steps alternate in one process, on the same threads, as they do in an answer::

    python benchmarks/head_cost.py --package my-package --depth 320 --rounds 400
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from alternating import bootstrap

import edge_rt
from edge_rt.runtime.decode.loop import prefill
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.speculation.head_graph import HeadShape
from edge_rt.runtime.speculation.head_runner import HeadRunner, HeadWeights

TREES = ((8, 8, 1), (16, 8, 2), (24, 8, 3))
"""Limits of the trees that are measured: nodes, width, depth."""
W4M_BLOCK = 320


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--package", required=True, help="a native package")
    parser.add_argument("--depth", type=int, default=320, help="tokens in the cache")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--intermediate", type=int, default=1536)
    parser.add_argument("--head-rows", type=int, default=4096)
    parser.add_argument("--prompt-rows", type=int, default=300)
    parser.add_argument(
        "--processor-time", action="store_true", help="of one thread: what other programs take is left out"
    )
    arguments = parser.parse_args()
    if arguments.processor_time and arguments.threads != 1:
        parser.error("--processor-time needs --threads 1")
    model = edge_rt.load(arguments.package, threads=arguments.threads, ctx=arguments.depth + 64)
    rng = np.random.default_rng(0)
    vocabulary = model.package.manifest.model.vocab_size
    began = time.perf_counter()
    head = open_head(model, arguments, rng)
    print(f"{model.describe()['isa']}, {arguments.threads} threads; head opened in "
          f"{1e3 * (time.perf_counter() - began):.1f} ms, {head.memory_bytes / 2**20:.1f} MiB")  # fmt: skip
    prompt = rng.integers(vocabulary // 2, vocabulary, arguments.prompt_rows).tolist()
    began = time.perf_counter()
    head.add_tokens(prompt)
    print(f"{arguments.prompt_rows} rows of the prompt gathered in {1e6 * (time.perf_counter() - began):.0f} us")
    with model.passes() as (target, cache):
        fill(prompt, arguments.depth, target, cache, model.prefill_chunk)
        samples = measure(head, target, arguments, vocabulary, rng)
    model.close()
    report(samples)


def measure(head: HeadRunner, target: Any, arguments: argparse.Namespace, vocabulary: int, rng: Any) -> dict[str, list]:
    samples: dict[str, list] = {"pass": [], **{f"tree {limits}": [] for limits in TREES}}
    # Of a model with one thread, the time of this thread is all of the work.
    clock = time.thread_time if arguments.processor_time else time.perf_counter
    for _ in range(arguments.rounds):
        # Before every step a pass, so that each finds the caches as it does in an answer.
        for limits in TREES:
            state, token = rng.standard_normal(len(head.state)).astype(np.float32), int(rng.integers(vocabulary))
            started = clock()
            target.forward([token], arguments.depth, 1)
            passed = clock()
            head.grow(state, token, *limits)
            ended = clock()
            samples["pass"].append(1e3 * (passed - started))
            samples[f"tree {limits}"].append(1e3 * (ended - passed))
    return samples


def report(samples: dict[str, list]) -> None:
    passes = np.array(samples.pop("pass")).reshape(-1, len(samples))
    print(f"a pass over one row: min {passes.min():.2f}, median {np.median(passes):.2f} ms")
    for index, (name, values) in enumerate(samples.items()):
        ratios = list(np.array(values) / passes[:, index])
        low, high = bootstrap(ratios)
        print(f"{name}: min {min(values):.3f}, median {np.median(values):.3f} ms; against a pass: min "
              f"{min(values) / passes.min():.3f}, median {np.median(ratios):.3f} ({low:.3f}-{high:.3f})")  # fmt: skip


def open_head(model: Any, arguments: argparse.Namespace, rng: Any) -> HeadRunner:
    config = model.package.manifest.model
    form, tiles = lm_head_of(Path(arguments.package))
    shape = HeadShape(
        hidden=config.hidden_size, intermediate=arguments.intermediate, vocabulary=config.vocab_size, blocks=1,
        nodes=64, epsilon=1e-5, embedding=form, fc="w4m", gate_up="w4m", down="w4m", head=form,
    )  # fmt: skip
    hidden, inner = config.hidden_size, arguments.intermediate
    norms = [np.ones(hidden, np.float32) for _ in range(4)]
    weights = HeadWeights(
        tiles, tiles, w4m(rng, hidden, 2 * hidden), *norms[:3],
        ((norms[3], w4m(rng, 2 * inner, hidden), w4m(rng, hidden, inner)),),
        np.arange(arguments.head_rows, dtype=np.int32),
    )  # fmt: skip
    return HeadRunner(shape, weights, threads=arguments.threads)


def lm_head_of(package: Path) -> tuple[str, Any]:
    """Return format and tiles of the matrix that the logits come from, mapped from the file."""
    graph = ir.load(package / "model.onnx").graph
    node = next(node for node in graph if any(value.name == "logits" for value in node.outputs))
    tensor = node.inputs[1].const_value
    tiles = np.memmap(package / "weights.bin", np.uint8, "r", tensor.offset, tuple(tensor.shape.numpy()))
    return node.attributes["format"].as_string(), np.asarray(tiles)


def w4m(rng: Any, rows: int, columns: int) -> Any:
    """Return random tiles: any codes, scales of 2^-5 or so, no minima."""
    tiles = rng.integers(0, 256, (rows // 16, columns // 32, W4M_BLOCK), dtype=np.uint8)
    tiles[..., 256:] = 0
    tiles[..., 257:288:2] = 0x28
    return tiles


def fill(prompt: list[int], depth: int, target: Any, cache: Any, chunk: int) -> None:
    tokens = (prompt * (depth // len(prompt) + 1))[:depth]
    cache.truncate(0)
    prefill(Sequence(tokens, capacity=depth + 2, max_tokens=1, end_ids=()), target, cache, chunk)
    rest = tokens[cache.length :]
    with cache.reserve(len(rest)) as rows:
        target.forward(rest, rows.start, 1)
        rows.commit(rest)


if __name__ == "__main__":
    main()
