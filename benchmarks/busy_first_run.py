"""Whether costs of passes that were learned on a busy machine heal: a first run beside others, then answers in quiet.

A first process answers one prompt while other processes compute without end; what it learned of the costs of passes is
stored. They are ended, and a second process with that store answers the prompts. Beside it, in turns, one answers whose
costs were measured at its start. The figure is the speed of the first against the second, by number of the answer. On
Linux; it needs a machine that is idle otherwise.

    python benchmarks/busy_first_run.py --package PACKAGE --prompts question.jsonl --every 12 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from alternating import Worker

PARTS = {"1": slice(0, 1), "2 to 9": slice(1, 9), "10 and later": slice(9, None)}


def answer(package: str, threads: int, is_measured: bool) -> None:
    """Answer prompts: a JSON request per line in, tokens and milliseconds of decoding out."""
    import edge_rt

    with edge_rt.load(package, threads=threads, ctx=2048) as model:
        if is_measured:
            model.calibrate()
        print(json.dumps({"mode": model.speculation.mode}), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            prompt = model.tokenizer.encode_rendered(model.render([{"role": "user", "content": request["prompt"]}]))
            made = model.generate(prompt, max_tokens=request["tokens"], temperature=0, repetition_guard=False)
            facts = {"tokens": made.timings.predicted_n - 1, "ms": made.timings.predicted_ms}
            print(json.dumps(facts), flush=True)


def speeds(args: argparse.Namespace, prompts: list[str], folder: Path) -> tuple[list[float], list[float]]:
    """Return milliseconds per token of every answer, behind a busy first run and behind a measurement."""

    def worker(name: str, cache: str, *options: str) -> Worker:
        command = [sys.executable, __file__, "--package", args.package, "--threads", str(args.threads), "--answer"]
        return Worker(name, ["env", f"XDG_CACHE_HOME={folder / cache}", *command, *options])

    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
    try:
        time.sleep(0.5)
        first = worker("first run", "busy")
        first.ask(prompt=prompts[0], tokens=args.max_tokens)
        first.close()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    learned, measured = worker("learned", "busy"), worker("measured", "idle", "--measured")
    times: dict[str, list[float]] = {"learned": [], "measured": []}
    for number, prompt in enumerate(prompts):
        for one in (learned, measured) if number % 2 else (measured, learned):
            made = one.ask(prompt=prompt, tokens=args.max_tokens)
            times[one.name].append(made["ms"] / max(made["tokens"], 1))
    learned.close()
    measured.close()
    return times["learned"], times["measured"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", required=True)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--every", type=int, default=12)
    parser.add_argument("--count", type=int, default=20, help="answers; prompts of more than 1,000 words are left out")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=2, help="processes beside the first run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measured", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        answer(args.package, args.threads, args.measured)
        return
    texts = [json.loads(line)["turns"][0] for line in args.prompts.read_text(encoding="utf-8").splitlines()]
    prompts = [text for text in texts[:: args.every] if len(text.split()) <= 1000][: args.count]
    ratios: dict[str, list[float]] = {part: [] for part in PARTS}
    sums: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            learned, measured = speeds(args, prompts, Path(folder))
        for part, which in PARTS.items():
            # An answer of one token has no time of its own.
            pairs = [pair for pair in zip(measured[which], learned[which], strict=True) if pair[0] > 0]
            ratios[part] += [one / other for one, other in pairs]
            sums[part].append(sum(one for one, _ in pairs) / sum(other for _, other in pairs))
    print(f"{len(prompts)} prompts, {args.rounds} rounds; speed behind a busy first run over that behind a measurement")
    for part, values in ratios.items():
        whole = " ".join(f"{value:.3f}" for value in sums[part])
        print(f"answers {part}: median {np.median(values):.3f} ({min(values):.3f}-{max(values):.3f}), rounds {whole}")


if __name__ == "__main__":
    main()
