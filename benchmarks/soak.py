"""Does memory grow in a long chat? Thousands of turns of random lengths, with cancellations and context resets.

Every turn is a message of random words and a sampled answer of random length. Some answers are cancelled after a few
pieces, some before the first one, some streams are simply dropped; now and then the chat is cleared, an answer is taken
back or made again, and whenever the context is full the chat begins anew. Resident memory after every turn goes to a
file of JSON lines. The run fails if it grows after the first turns by more than 1 % or 8 MiB, whichever is more::

    python benchmarks/soak.py --package my-package --memory 260MiB --turns 2000 --log turns.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from pathlib import Path

import edge_rt
from edge_rt.errors import ContextOverflow
from edge_rt.system.process_memory import read_memory

MIB = 1 << 20
ALLOWED_SHARE = 0.01
ALLOWED_BYTES = 8 * MIB
WORDS = """
the a one of to in on and but with without where when why how what river bridge harbour letter winter garden train
teacher market number window machine story water colour music question answer list name city island mountain
explain describe compare repeat write tell count change shorten translate read copy 17 204 3.5 1999
""".split()  # noqa: SIM905


class Soak:
    """A chat that is used in every way.

    Args:
        model: the model.
        seed: of all choices.
        most_tokens: of an answer.
        most_words: of a message.
    """

    def __init__(self, model: edge_rt.Model, seed: int, most_tokens: int, most_words: int) -> None:
        self._model = model
        self._random = random.Random(seed)
        self._most_tokens = most_tokens
        self._most_words = most_words
        self._chat = model.chat()

    def turn(self, number: int) -> tuple[str, int]:
        """Do one turn; returns what it was, and the tokens that were answered."""
        choice = self._random.random()
        if choice < 0.03:
            self._chat.clear()
            return "cleared", 0
        if choice < 0.05 and self._chat.messages:
            self._chat.undo()
            return "undone", 0
        if choice < 0.07:
            self._model.reset()
        options = {
            "temperature": self._random.choice((0.0, 0.7, 1.0)),
            "repetition_penalty": self._random.choice((1.0, 1.1)),
            "seed": number,
            "max_tokens": self._random.randint(1, self._most_tokens),
        }
        if 0.07 <= choice < 0.1 and self._chat.messages:
            return self._answer("regenerated", lambda: self._chat.regenerate(**options), None)
        text = " ".join(self._random.choices(WORDS, k=self._random.randint(1, self._most_words)))
        stop_after = None if choice < 0.8 else self._random.randint(0, 8)
        return self._answer("sent", lambda: self._chat.stream(text, **options), stop_after)

    def _answer(self, kind, start, stop_after: int | None) -> tuple[str, int]:
        try:
            stream = start()
        except ContextOverflow:
            self._chat = self._model.chat()
            return "begun anew", 0
        if stop_after is None:
            for _ in stream:
                pass
            return kind, stream.result().usage.completion_tokens
        is_dropped = self._random.random() < 0.3
        with contextlib.closing(stream):
            if stop_after == 0 and not is_dropped:
                stream.cancel()
            for pieces, _ in enumerate(stream, start=1):
                if pieces >= stop_after:
                    if is_dropped:
                        break
                    stream.cancel()
        return ("dropped" if is_dropped else "cancelled"), stop_after


def growth(resident: list[int], first: int) -> tuple[int, int]:
    """Return the growth of memory after the first turns, and how much is allowed, in bytes."""
    before = max(resident[:first])
    return max(resident[first:]) - before, max(ALLOWED_BYTES, round(ALLOWED_SHARE * before))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--memory", help="budget of the plan, such as 260MiB; what is available unless given")
    parser.add_argument("--ctx", type=int)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--first", type=int, default=100, help="turns after which memory may not grow any more")
    parser.add_argument("--most-tokens", type=int, default=40, help="of an answer")
    parser.add_argument("--most-words", type=int, default=60, help="of a message")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True, help="file of JSON lines, one a turn")
    args = parser.parse_args()
    if not 0 < args.first < args.turns:
        parser.error("--first must be less than --turns")
    options = {} if args.memory is None else {"memory": args.memory}
    resident: list[int] = []
    started = time.perf_counter()
    with edge_rt.load(args.package, ctx=args.ctx, threads=args.threads, **options) as model, args.log.open("w") as log:
        soak = Soak(model, args.seed, args.most_tokens, args.most_words)
        for number in range(1, args.turns + 1):
            kind, tokens = soak.turn(number)
            memory = read_memory()
            resident.append(memory.resident_bytes)
            entry = {
                "turn": number,
                "kind": kind,
                "tokens": tokens,
                "cached_tokens": model.cached_tokens,
                "resident_bytes": memory.resident_bytes,
                "private_bytes": memory.private_bytes,
                "file_bytes": memory.file_bytes,
                "peak_bytes": memory.peak_bytes,
                "drafter_bytes": model.speculation.memory_bytes,
            }
            log.write(json.dumps(entry) + "\n")
            if number in (1, 10, args.first) or number % 100 == 0:
                log.flush()
                print(
                    f"turn {number}: resident {memory.resident_bytes / MIB:.1f} MiB, drafters hold "
                    f"{entry['drafter_bytes'] / MIB:.1f} MiB, {time.perf_counter() - started:.0f} s",
                    flush=True,
                )
    grown, allowed = growth(resident, args.first)
    print(
        f"{args.turns} turns: after the first {args.first} memory grew by {grown / MIB:.2f} MiB "
        f"(allowed {allowed / MIB:.1f}), peak {memory.peak_bytes / MIB:.1f} MiB"
    )
    if grown > allowed:
        sys.exit("memory grows")


if __name__ == "__main__":
    main()
