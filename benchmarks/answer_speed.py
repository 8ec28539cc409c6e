"""How fast whole answers come: edge-rt with and without speculation against llama.cpp, on the same prompts.

Every runtime has a process of its own, and only one works at a time; they take turns at every prompt. The figure is
tokens behind the first per second of decoding, over all prompts; the ratios have bootstrap intervals over prompts.
Answers are greedy; llama.cpp's differ from ours after some tokens, as its arithmetic does, so each runtime's own tokens
are counted.

    python benchmarks/answer_speed.py --package PACKAGE --gguf q4_1.gguf --prompts question.jsonl \
        --llama-python venv/bin/python --every 4
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from alternating import Worker

import edge_rt

WORKERS = Path(__file__).parent / "workers"


def prompts_of(package: Path, path: Path, every: int, longest: int) -> tuple[list[list[int]], list[int]]:
    """Return first turns as token ids, and the tokens that end answers."""
    with edge_rt.load(package, spec="off", ctx=64) as model:
        texts = [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").splitlines()][::every]
        rendered = [model.render([{"role": "user", "content": text}]) for text in texts]
        ids = [model.tokenizer.encode_rendered(prompt) for prompt in rendered]
        return [one for one in ids if len(one) <= longest], list(model.tokenizer.eos_token_ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--llama-python", required=True)
    parser.add_argument("--python", required=True, help="interpreter that has edge-rt")
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    prompts, ends = prompts_of(args.package, args.prompts, args.every, 4096 - args.max_tokens)
    with tempfile.TemporaryDirectory() as folder:
        q4_0 = Path(folder) / "q4_0.gguf"
        quantise = [args.llama_python, str(WORKERS / "llama_cpp_worker.py"), "--quantise", str(args.gguf), str(q4_0)]
        subprocess.run(quantise, check=True)
        threads = str(args.threads)
        ours = [args.python, str(WORKERS / "answer_worker.py"), str(args.package), threads]
        theirs = [args.llama_python, str(WORKERS / "llama_answer_worker.py")]
        workers = [
            Worker("edge-rt, auto", [*ours, "auto"]),
            Worker("edge-rt, plain", [*ours, "off"]),
            Worker("llama.cpp Q4_1", [*theirs, str(args.gguf), threads, "plain"]),
            Worker("llama.cpp Q4_0", [*theirs, str(q4_0), threads, "plain"]),
            Worker("llama.cpp Q4_1, prompt lookup", [*theirs, str(args.gguf), threads, "lookup"]),
        ]
        found: dict[str, list[tuple[int, float]]] = {worker.name: [] for worker in workers}
        for index, prompt in enumerate(prompts):
            for turn in range(len(workers)):
                worker = workers[(index + turn) % len(workers)]
                answer = worker.ask(prompt=prompt, max_tokens=args.max_tokens, ends=ends)
                found[worker.name].append((len(answer["ids"]) - 1, answer["ms"]))
        for worker in workers:
            worker.close()
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(prompts), (2000, len(prompts)))
    best = np.array(found[workers[0].name])
    print(f"{len(prompts)} prompts, {args.threads} threads, at most {args.max_tokens} tokens an answer")
    for name, pairs in found.items():
        sums = np.array(pairs)
        speed = 1e3 * sums[:, 0].sum() / sums[:, 1].sum()
        a, b = best[picks].sum(axis=1), sums[picks].sum(axis=1)
        ratios = (a[:, 0] / a[:, 1]) / (b[:, 0] / b[:, 1])
        low, high = np.percentile(ratios, [2.5, 97.5])
        share = f"{np.median(ratios):.2f} ({low:.2f}-{high:.2f})"
        print(f"{name:>30}: {speed:6.1f} tok/s; edge-rt, auto is {share} times as fast")


if __name__ == "__main__":
    main()
