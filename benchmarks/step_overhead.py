"""Microseconds that a decoding step takes beside its pass, by part: the whole loop on a target that answers at once.

The target returns recorded answers (``replay_drafters.py record``), so nothing is computed, and process times of other
programs do not count: the medians are those of an idle machine with warm caches. ``--sweep`` reads some memory in every
pass, as a model reads its weights, and so empties the caches.

    python benchmarks/step_overhead.py traces.jsonl [--sweep MIB]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Generator, Sequence as TokenIds
from pathlib import Path
from typing import Any

import numpy as np
from replay_drafters import CURVE, TABLES, Clock, Replay, drafter_of

from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.detokenizer import TextStream
from edge_rt.runtime.decode.draft import Accepted, Draft, Drafter
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.generation import Generation, Held
from edge_rt.runtime.stream import Outcome

CAPACITY = 8192
MAX_NODES = 23


class Words:
    """Decodes every token to the same word."""

    def push(self, token_id: int) -> str:
        """Return a word."""
        del token_id
        return "word "

    def flush(self) -> str:
        """Return nothing."""
        return ""


class Target:
    """Returns what was recorded, and moves the drafter's clock on by what the pass would have taken.

    Attributes:
        spent: seconds of our own time in here.
    """

    def __init__(self, trace: dict[str, Any], clock: Clock, sweep: int) -> None:
        self._trace, self._clock = trace, clock
        self._swept = np.ones(sweep << 18, np.float32)
        self.spent = 0.0

    def forward(
        self, token_ids: TokenIds[int], start: int, num_logits: int, *, parents: TokenIds[int] | None = None
    ) -> Outputs:
        """Return the outputs of the last ``num_logits`` rows."""
        began = time.perf_counter()
        known = len(token_ids) - num_logits + 1
        tree = range(-1, num_logits - 2) if parents is None else [parent - known for parent in parents[known:]]
        draft = Draft(tuple(token_ids[known:]), tuple(max(parent, -1) for parent in tree))
        game = Replay(self._trace)
        game.position = start + known - len(self._trace["prompt"])
        found = game.outputs(draft)
        self._swept.sum()
        self._clock.now += 1e-3 * CURVE.curve(start, MAX_NODES + 1)[num_logits - 1]
        self.spent += time.perf_counter() - began
        return found


class Timed:
    """A drafter whose calls are timed; attributes: seconds of every ``propose`` and ``observe``."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.statistics = drafter.statistics
        self.propose_s: list[float] = []
        self.observe_s: list[float] = []

    def begin(self, sequence: Sequence) -> None:
        """Start an answer."""
        self._drafter.begin(sequence)

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """Draft."""
        began = time.perf_counter()
        draft = self._drafter.propose(sequence, limit)
        self.propose_s.append(time.perf_counter() - began)
        return draft

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs) -> None:
        """Learn."""
        began = time.perf_counter()
        self._drafter.observe(draft, accepted, outputs)
        self.observe_s.append(time.perf_counter() - began)


class MovingClock(Clock):
    """Seconds of this machine, and of the passes that were not computed."""

    def __call__(self) -> float:
        """Return the moment."""
        return time.perf_counter() + self.now


def answer(trace: dict[str, Any], drafter: Timed, clock: Clock, sweep: int) -> list[float]:
    """Return the seconds of every step but the first, without those in the target."""
    target = Target(trace, clock, sweep)
    sequence = Sequence(trace["prompt"], capacity=CAPACITY, max_tokens=len(trace["answer"]), end_ids=())
    cache = KVCache(CAPACITY, row_map=np.arange(CAPACITY, dtype=np.int32))

    @contextlib.contextmanager
    def hold(_: CancelToken) -> Generator[Held]:
        yield Held(target, drafter)

    sampler = Sampler(GenerationConfig(temperature=0.0), 1 << 16)
    generation = Generation(sequence, hold, cache, sampler, TextStream(Words(), ()), chunk=256, called=0.0)
    steps: list[float] = []
    last = spent = 0.0
    for _ in generation.events(Outcome(CancelToken(), None)):
        now = time.perf_counter()
        if last:
            steps.append(now - last - (target.spent - spent))
        spent, last = target.spent, time.perf_counter()
    assert sequence.answer_ids == trace["answer"], "the answer is another one"
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take every n-th answer")
    parser.add_argument("--sweep", type=int, default=0, help="MiB to read in every pass")
    args = parser.parse_args()
    traces = [json.loads(line) for line in args.traces.read_text().splitlines()][:: args.every]
    clock = MovingClock()
    drafter = Timed(drafter_of("ucb", clock, MAX_NODES, TABLES))
    steps = [step for trace in traces for step in answer(trace, drafter, clock, args.sweep)]
    facts = {"propose": drafter.propose_s, "observe": drafter.observe_s, "a step beside its pass": steps}
    print(f"{len(traces)} answers, {len(steps)} steps; microseconds, median and lowest tenth")
    for name, times in facts.items():
        print(f"{name:>24}: {1e6 * statistics.median(times):6.1f} {1e6 * statistics.quantiles(times, n=10)[0]:6.1f}")


if __name__ == "__main__":
    main()
