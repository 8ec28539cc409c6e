"""By hand: a model with slots for hours: random arrivals, cancels, budgets, slow readers and readers that leave.

    nice python -m tests.soak_batches PACKAGE [--hours 0.67] [--slots 8] [--memory 600MiB] [--log soak.jsonl]

More clients than slots and places to wait, each in a thread, ask at random for requests of ``tests.compare_batches``
whose answers alone are known: greedy, sampled and in formats, some to prompts that begin alike, with any budget of
tokens; some score a prompt, or forget the rows that rest. What each gets must be the answer alone, or as much of it as
its budget or its cancel left; between steps the batch's invariants hold; memory stays below the plan. Drafters' tables
fill for long and say how large they are; everything else grows by 1 % or 8 MiB at most, whichever is more, once every
request was asked. The exit code is 1 otherwise, also if the time was too short for that. PACKAGE may be ``small``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np

import edge_rt
from edge_rt.system.process_memory import read_memory
from tests.compare_batches import CONTEXT, alone, facts, in_process, package_of, prompts_of, requests

MIB = 1 << 20


class Clients:
    """Threads that ask.

    Args:
        model: the model.
        asked: prompts with options.
        expected: what each gets alone.
    """

    def __init__(self, model, asked, expected):
        self.model, self.asked, self.expected = model, asked, expected
        self.counts = Counter()
        self.mistakes = []
        self.scores = {}
        self.seen = set()
        self.ends = threading.Event()
        self._lock = threading.Lock()

    def run(self, seed):
        """Ask until the end, or until something is wrong."""
        rng = random.Random(seed)
        while not self.ends.is_set():
            try:
                number = rng.randrange(len(self.asked))
                kind, tokens, mistake = self.ask(rng, number)
            except edge_rt.QueueFull as error:
                kind, tokens, mistake = "refused", 0, ""
                self.ends.wait(min(error.retry_after, 1.0))
            except Exception:
                kind, tokens, mistake = "failed", 0, traceback.format_exc()
            with self._lock:
                self.counts[kind] += 1
                self.counts["tokens"] += tokens
                if kind != "refused":
                    self.seen.add(number)
                if mistake:
                    self.mistakes.append(f"request {number}, {kind}: {mistake}")
            if rng.random() < 0.3:
                self.ends.wait(rng.expovariate(2.0))

    def ask(self, rng, number):
        """Ask for one answer; return what became of it, its tokens and what is wrong with it."""
        prompt, options = self.asked[number]
        whole = self.expected[number]
        if (other := rng.random()) < 0.01:
            self.model.reset()
            return "forgot", 0, ""
        if other < 0.015:
            score = self.model.score(prompt)
            first = self.scores.setdefault(number, score)
            return "scored", 0, "" if score == first else f"{score}, not {first}"
        budget = options["max_tokens"]
        if "regex" not in options and rng.random() < 0.3:
            budget = rng.randint(1, budget)  # a format that is complete ends an answer without its end token
        stream = self.model.stream(prompt, **options | {"max_tokens": budget})
        choice = rng.random()
        leaves_after = rng.randrange(12) if choice < 0.2 else None
        is_slow = choice > 0.9
        events = iter(stream)
        for given, _ in enumerate(events):
            if is_slow:
                time.sleep(rng.random() / 20)
            if given == leaves_after:
                if choice < 0.1:
                    events.close()
                    return "left", 0, ""
                stream.cancel()
        answer = facts(stream.result())
        if answer[1] == "cancelled":
            return "cancelled", len(answer[0]), compared(answer, whole, len(answer[0]))
        if budget < len(whole[0]):
            is_right = len(answer[0]) == budget and answer[1] == "length"
            return "cut short", budget, compared(answer, whole, budget) if is_right else f"{answer}, not {whole}"
        return "whole", len(answer[0]), "" if answer == whole else f"{answer}, not {whole}"


def compared(answer, whole, tokens):
    """Return what is wrong with so many tokens of an answer."""
    is_right = answer[0] == whole[0][:tokens] and (answer[3] or ()) == (whole[3] or ())[: len(answer[3] or ())]
    return "" if is_right else f"{answer}, not the beginning of {whole}"


def soak(model, clients, arguments, log):
    """Let the clients ask; return resident bytes without those of tables, by the second, from the last new request."""
    threads = [threading.Thread(target=clients.run, args=(arguments.seed + i,)) for i in range(arguments.clients)]
    started, others = time.monotonic(), []
    end = started + 3600 * arguments.hours
    for thread in threads:
        thread.start()
    try:
        # On a busy machine a short run has not asked everything yet.
        while (time.monotonic() < end or not (others and clients.counts["whole"])) and not clients.mistakes:
            time.sleep(1)
            model._batch.check()
            with model._batch._turns.take():
                tables = model.speculation.memory_bytes
            memory = read_memory()
            if len(clients.seen) == len(clients.asked):
                others.append(memory.resident_bytes - tables)
            entry = {
                "seconds": round(time.monotonic() - started), "resident_bytes": memory.resident_bytes,
                "peak_bytes": memory.peak_bytes, "table_bytes": tables, "asked": len(clients.seen), **clients.counts,
            }  # fmt: skip
            print(json.dumps(entry), file=log, flush=True)
    finally:
        clients.ends.set()
        for thread in threads:
            thread.join()
    return others


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument(
        "--hours", type=float, default=0.67, help="at least; everything is asked once, however long it takes"
    )
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--clients", type=int, default=11)
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--kv", default="int8")
    parser.add_argument("--spec")
    parser.add_argument("--kv-rows", type=int, help="rows that the slots share; a context for each unless given")
    parser.add_argument("--memory", help="budget of the plan; what is available unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("soak.jsonl"))
    arguments = parser.parse_args()
    chosen = requests(np.random.default_rng(arguments.seed), arguments.requests)
    with tempfile.TemporaryDirectory() as folder, arguments.log.open("w") as log:
        load = {"model": package_of(arguments.package, folder), "ctx": CONTEXT, "kv": arguments.kv}
        expected = in_process(alone, load, chosen)
        more = {"slots": arguments.slots, "max_queue": 2, "kv_rows": arguments.kv_rows}
        more |= {"spec": arguments.spec, "memory": arguments.memory, "formats": True}
        with edge_rt.load(**load, **more) as model:
            planned = model.plan.total_bytes
            clients = Clients(model, prompts_of(model, chosen), expected)
            others = soak(model, clients, arguments, log)
            model._batch.check()
    peak = read_memory().peak_bytes
    first = others[0] if others else 0
    grown, allowed = max(others, default=0) - first, max(8 * MIB, first // 100)
    print(
        f"{arguments.hours} h, {arguments.slots} slots, {arguments.clients} clients: {dict(clients.counts)}\n"
        f"wrong: {len(clients.mistakes)}; peak {peak / MIB:.1f} MiB, planned {planned / MIB:.1f}; "
        f"memory without tables grew by {grown / MIB:.1f} MiB (allowed {allowed / MIB:.1f})"
    )
    for mistake in clients.mistakes[:5]:
        print(mistake[:2000])
    return int(bool(clients.mistakes) or grown > allowed or peak > planned)


if __name__ == "__main__":
    sys.exit(main())
