"""How fast whole answers come: edge-rt with and without speculation against other runtimes, on the same prompts.

Every runtime has a process of its own, and only one works at a time; they take turns at every prompt. The figure is
tokens behind the first per second of decoding, over all prompts; the ratios have bootstrap intervals over prompts.
Answers are greedy, and every runtime reads the same token ids; answers of others differ from ours after some tokens, as
their arithmetic does, so each runtime's own tokens are counted. The fastest of the others is marked.

A peer takes part if its interpreter is named:

    python benchmarks/answer_speed.py --package PACKAGE --gguf q4_1.gguf --prompts question.jsonl --every 4 \
        --llama-python llama/bin/python --openvino-python openvino/bin/python \
        --genai-python genai/bin/python --genai-model FOLDER

FOLDER is what ``workers/genai_model.py`` writes from the same GGUF file. ``--first 128 512 2048`` also measures the
time to the first token behind prompts of so many random tokens, in ``--rounds`` rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from alternating import Worker, ratio_text

import edge_rt

WORKERS = Path(__file__).parent / "workers"


def prompts_of(package: Path, path: Path, every: int, longest: int) -> tuple[list[list[int]], list[int]]:
    """Return first turns as token ids, and the tokens that end answers."""
    with edge_rt.load(package, spec="off", ctx=64) as model:
        texts = [json.loads(line)["turns"][0] for line in path.read_text(encoding="utf-8").splitlines()][::every]
        rendered = [model.render([{"role": "user", "content": text}]) for text in texts]
        ids = [model.tokenizer.encode_rendered(prompt) for prompt in rendered]
        return [one for one in ids if len(one) <= longest], list(model.tokenizer.eos_token_ids)


def peers(args: argparse.Namespace, work: Path) -> dict[str, list[str]]:
    """Return the commands of the runtimes whose interpreters were named, by what the output calls them."""
    threads, gguf = str(args.threads), str(args.gguf)
    commands: dict[str, list[str]] = {}
    if args.llama_python:
        llama = [args.llama_python, str(WORKERS / "llama_answer_worker.py")]
        commands["llama.cpp Q4_1"] = [*llama, gguf, threads, "plain"]
        commands["llama.cpp Q4_0"] = [*llama, str(work / "q4_0.gguf"), threads, "plain"]
        commands["llama.cpp Q4_1, prompt lookup"] = [*llama, gguf, threads, "lookup"]
    if args.genai_python:
        genai = [args.genai_python, str(WORKERS / "genai_answer_worker.py"), str(args.genai_model), threads]
        commands["onnxruntime-genai"] = [*genai, "plain"]
        commands["onnxruntime-genai, n-gram drafts"] = [*genai, "lookup"]
    if args.openvino_python:
        openvino = [args.openvino_python, str(WORKERS / "openvino_answer_worker.py"), gguf, threads]
        commands["OpenVINO GenAI"] = [*openvino, "plain"]
        commands["OpenVINO GenAI, prompt lookup"] = [*openvino, "lookup"]
    return commands


def speed(pairs: list[tuple[int, float]]) -> float:
    """Return tokens per second of answers, each given as its tokens behind the first and their milliseconds."""
    return 1e3 * sum(tokens for tokens, _ in pairs) / sum(ms for _, ms in pairs)


def first_tokens(workers: list[Worker], lengths: list[int], rounds: int) -> list[str]:
    """Return lines on the milliseconds to a first token; all read the same new tokens in a round, so no cache helps."""
    rng = np.random.default_rng(0)
    lines = []
    for length in lengths:
        ms: dict[str, list[float]] = {worker.name: [] for worker in workers}
        for round_ in range(rounds + 1):
            prompt = rng.integers(17, 10_000, length).tolist()
            for worker in workers if round_ % 2 else workers[::-1]:
                ms[worker.name].append(worker.ask(prompt=prompt, max_tokens=1, ends=[])["first_ms"])
        ms = {name: values[1:] for name, values in ms.items()}  # the first round warms up
        auto = ms[workers[0].name]
        for name, values in ms.items():
            share = f"edge-rt, auto is {ratio_text(values, auto)} times as fast"
            lines.append(f"{name:>32}: {np.median(values):6.1f} ms behind {length} tokens; {share}")
    return lines


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--package", type=Path, required=True)
    options.add_argument("--gguf", type=Path, required=True)
    options.add_argument("--prompts", type=Path, required=True)
    options.add_argument("--python", default=sys.executable, help="interpreter that has edge-rt (default: this one)")
    options.add_argument("--llama-python", help="interpreter that has llama-cpp-python")
    options.add_argument("--genai-python", help="interpreter that has onnxruntime-genai; needs --genai-model")
    options.add_argument("--genai-model", type=Path, help="folder that workers/genai_model.py wrote")
    options.add_argument("--openvino-python", help="interpreter that has openvino-genai")
    options.add_argument("--every", type=int, default=4)
    options.add_argument("--max-tokens", type=int, default=256)
    options.add_argument("--first", type=int, nargs="*", default=[], help="lengths of prompts to a first token")
    options.add_argument("--rounds", type=int, default=7, help="rounds of --first")
    options.add_argument("--threads", type=int, default=2)
    return options


def main() -> None:
    options = parser()
    args = options.parse_args()
    if args.genai_python and not args.genai_model:
        options.error("--genai-python needs --genai-model, a folder that workers/genai_model.py wrote")
    prompts, ends = prompts_of(args.package, args.prompts, args.every, 4096 - args.max_tokens)
    with tempfile.TemporaryDirectory() as folder:
        if args.llama_python:
            q4_0 = str(Path(folder) / "q4_0.gguf")
            quantise = [args.llama_python, str(WORKERS / "llama_cpp_worker.py"), "--quantise", str(args.gguf), q4_0]
            subprocess.run(quantise, check=True)
        ours = [args.python, str(WORKERS / "answer_worker.py"), str(args.package), str(args.threads)]
        others = peers(args, Path(folder))
        commands = {"edge-rt, auto": [*ours, "auto"], "edge-rt, plain": [*ours, "off"], **others}
        workers = [Worker(name, command) for name, command in commands.items()]
        samples: dict[str, list[tuple[int, float]]] = {worker.name: [] for worker in workers}
        for index, prompt in enumerate(prompts):
            for turn in range(len(workers)):
                worker = workers[(index + turn) % len(workers)]
                answer = worker.ask(prompt=prompt, max_tokens=args.max_tokens, ends=ends)
                samples[worker.name].append((len(answer["ids"]) - 1, answer["ms"]))
        firsts = first_tokens(workers, args.first, args.rounds)
        for worker in workers:
            print(f"{worker.name}: {worker.about}")
            worker.close()
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(prompts), (2000, len(prompts)))
    auto = np.array(samples["edge-rt, auto"])
    best = max(others, key=lambda name: speed(samples[name]), default=None)
    print(f"{len(prompts)} prompts, {args.threads} threads, at most {args.max_tokens} tokens an answer")
    for name, pairs in samples.items():
        sums = np.array(pairs)
        a, b = auto[picks].sum(axis=1), sums[picks].sum(axis=1)
        ratios = (a[:, 0] / a[:, 1]) / (b[:, 0] / b[:, 1])
        low, high = np.percentile(ratios, [2.5, 97.5])
        share = f"{np.median(ratios):.2f} ({low:.2f}-{high:.2f})"
        mark = " (best peer)" if name == best else ""
        print(f"{name:>32}: {speed(pairs):6.1f} tok/s; edge-rt, auto is {share} times as fast{mark}")
    print(*firsts, sep="\n")


if __name__ == "__main__":
    main()
