"""Processes that are killed while they write: what is left is whole lines of answers, and whole blocks of prompts.

By hand: ``python -m tests.kill_writers batch PACKAGE`` kills ``edge-rt batch`` at random moments and goes on with it;
``python -m tests.kill_writers cache PACKAGE`` kills processes that write a prompt cache, and compares what the next one
reads of it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import edge_rt

PROGRAM = (sys.executable, "-m", "edge_rt")
OPTIONS = ("--temp", "0.8", "--seed", "3", "-n", "24", "-c", "512", "-q")
TEXT = "The keeper of the lighthouse counted the boats, wrote {0} of them down, and went to bed. " * 30


def kill_batches(package: Path, folder: Path, times: int) -> None:
    """Kill a batch at random moments, go on with it, and compare its answers with those of one that was left alone."""
    source, whole, out = (folder / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
    lines = [
        {"prompt": f"Tell me about the number {index}.", "max_tokens": 8 + index % 40} for index in range(16 * times)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    subprocess.run([*PROGRAM, "batch", source, whole, "-m", package, *OPTIONS], check=True)
    seen = [0]
    for _ in range(times):
        process = subprocess.Popen([*PROGRAM, "batch", source, out, "-m", package, *OPTIONS])
        # Not while it loads the model: it would never get anywhere.
        while process.poll() is None and (not out.exists() or out.read_bytes().count(b"\n") == seen[-1]):
            time.sleep(0.01)
        _kill_after(process, random.uniform(0.0, 1.0))
        seen.append(out.read_bytes().count(b"\n"))
    is_cut = out.read_bytes()[-1:] != b"\n"
    print(f"killed with {seen} lines; the last one is {'cut' if is_cut else 'whole'}")
    subprocess.run([*PROGRAM, "batch", source, out, "-m", package, *OPTIONS], check=True)
    answers = {path: sorted(_answers(path)) for path in (whole, out)}
    assert answers[whole] == answers[out], "an answer is missing, double or another one"
    assert len(answers[out]) == len(lines)
    print(f"killed {times} times; {len(lines)} answers, each once and as if it was never stopped")


def _answers(path: Path) -> list[tuple[str, str, str]]:
    data = path.read_bytes()
    assert data.endswith(b"\n")
    documents = [json.loads(line) for line in data.splitlines()]
    return [(one["id"], json.dumps(one["result"]["token_ids"]), one["result"]["finish_reason"]) for one in documents]


def kill_caches(package: Path, folder: Path, times: int) -> None:
    """Kill processes that store prompts at random moments; every answer behind what they leave is as without."""
    cache = folder / "prompts"
    prompts = [TEXT.format(index) for index in range(2)]
    program = [sys.executable, "-m", "tests.kill_writers", "write", str(package), "--folder", str(cache)]
    cached, unfinished = [], 0
    with edge_rt.load(package, ctx=2048) as plain, edge_rt.load(package, ctx=2048, prompt_cache=cache) as model:
        expected = [plain.generate(text, max_tokens=8, temperature=0.0).token_ids for text in prompts]
        for _ in range(times):
            process = subprocess.Popen(program)
            while process.poll() is None and not list(cache.glob("*/*.rows")):
                time.sleep(0.01)
            _kill_after(process, random.uniform(0.0, 0.7))
            unfinished += len(list(cache.glob("*/.*.tmp")))
            model.reset()
            for text, token_ids in zip(prompts, expected, strict=True):
                result = model.generate(text, max_tokens=8, temperature=0.0)
                assert (result.token_ids, result.warnings) == (token_ids, ())
                cached.append(result.usage.cached_tokens)
            for path in cache.glob("*/*.rows"):
                path.unlink()
    print(f"killed {times} times, {unfinished} unfinished files; {len(cached)} answers, {sum(cached)} tokens read")


def write_on(package: Path, cache: Path) -> None:
    """Store prompts until the process is killed."""
    with edge_rt.load(package, ctx=2048, prompt_cache=cache) as model:
        model.generate(TEXT.format(0), max_tokens=1)
        assert model._prompts is not None
        while True:
            for path in random.sample(sorted(cache.glob("*/*.rows")), 5):
                path.unlink(missing_ok=True)
            # Again and again what follows an answer, so that most moments are those of writing.
            model._prompts.store(model._cache)


def _kill_after(process: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    process.wait()


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("batch", "cache", "write"))
    parser.add_argument("package", type=Path)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    if asked.what == "write":
        write_on(asked.package, asked.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        (kill_batches if asked.what == "batch" else kill_caches)(asked.package, Path(folder), asked.times)


if __name__ == "__main__":
    main()
