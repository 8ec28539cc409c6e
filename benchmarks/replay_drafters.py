"""Replays drafters over recorded answers, without a model, to tell what each policy would have cost.

A greedy answer does not depend on the draft, so once answers and the likely tokens at their positions are recorded, a
policy can be judged in seconds: its drafts are checked against the answer, and time is what a given curve of row costs
says plus a given time for drafting. Rows of rejected nodes were never computed here, so recycling learns a little less
than in earnest.

    python benchmarks/replay_drafters.py record --package PACKAGE --prompts question.jsonl --out traces.jsonl
    python benchmarks/replay_drafters.py replay traces.jsonl --policy suffix recycling cost

Policies: a drafter alone, or all together (``cost``), as many tokens as pay by the cost model.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edge_rt.runtime.decode.accept import accept
from edge_rt.runtime.decode.draft import Draft
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.speculation.adaptive import AdaptiveDrafter
from edge_rt.runtime.speculation.core import DraftCore
from edge_rt.runtime.speculation.cost_model import RowCosts
from edge_rt.runtime.speculation.library import DraftLibrary, draft_library
from edge_rt.runtime.speculation.ngram import NgramSource
from edge_rt.runtime.speculation.source import AnySource
from edge_rt.runtime.speculation.text_sources import NativeRecyclingSource, NativeSuffixSource

Tables = tuple[int, int]
SOURCES: dict[str, Callable[[DraftLibrary, Tables], AnySource]] = {
    "suffix": lambda library, tables: NativeSuffixSource(library, max_tokens=tables[0]),
    "recycling": lambda library, tables: NativeRecyclingSource(library, max_order=2, max_contexts=tables[1]),
    "ngram": lambda *_: NgramSource(),
}
TABLES = (1 << 16, 1 << 15)
"""Most tokens of the suffix automaton, most contexts of recycling of each order."""
# One Xeon with AVX-512 VNNI, 2 threads, SmolLM2-135M in 4 bits, depth 128.
CURVE = RowCosts((1, 2, 4, 8, 9, 16, 17, 24), (128,), ((3.2, 3.4, 3.75, 4.8, 5.6, 7.8, 8.7, 11.0),))
STRANGE = 1 << 30
"""Token of rows that were never recorded."""


def record(package: Path, prompts: Path, out: Path, max_tokens: int) -> None:
    """Write greedy answers with the likely tokens of every position."""
    import edge_rt

    model = edge_rt.load(package, spec="off")
    ends = set(model.tokenizer.eos_token_ids)
    with out.open("w") as file:
        for line in prompts.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            rendered = model.render([{"role": "user", "content": entry["turns"][0]}])
            prompt = model.tokenizer.encode_rendered(rendered)
            if len(prompt) + max_tokens > model.context_tokens:
                continue
            answer: list[int] = []
            tops: list[Any] = []
            with model.passes() as (runner, _):
                begin = 0
                while len(prompt) - begin > model.prefill_chunk:
                    runner.forward(prompt[begin : begin + model.prefill_chunk], begin, 1)
                    begin += model.prefill_chunk
                outputs = runner.forward(prompt[begin:], begin, 1)
                while True:
                    assert outputs.top is not None, "the package has no likely tokens: export it natively"
                    tops.append([outputs.top.ids[0].tolist(), outputs.top.probabilities()[0].round(4).tolist()])
                    answer.append(int(outputs.logits[0].argmax()))
                    if answer[-1] in ends or len(answer) >= max_tokens:
                        break
                    outputs = runner.forward(answer[-1:], len(prompt) + len(answer) - 1, 1)
            entry = {"cat": entry.get("category", ""), "prompt": prompt, "answer": answer, "tops": tops}
            file.write(json.dumps(entry) + "\n")


class Clock:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the moment."""
        return self.now


class Replay:
    """Rows of logits of a recorded answer, and the sampler that reads them."""

    def __init__(self, trace: dict[str, Any]) -> None:
        self._trace = trace
        self.position = 0

    def outputs(self, draft: Draft) -> Outputs:
        """Return what the model would compute, as far as it was recorded."""
        answer, tops = self._trace["answer"], self._trace["tops"]
        depths = [0]
        for parent, token in zip(draft.parents, draft.token_ids, strict=True):
            before = depths[parent + 1]
            at = self.position + before
            depths.append(before + 1 if before >= 0 and at < len(answer) and answer[at] == token else -1)
        known = [self.position + depth if depth >= 0 else -1 for depth in depths]
        known = [at if at < len(answer) else -1 for at in known]
        width = len(tops[0][0])
        ids = np.array([tops[at][0] if at >= 0 else [STRANGE] * width for at in known], np.int32)
        shares = np.array([tops[at][1] if at >= 0 else [0.0] * width for at in known], np.float32)
        logits = np.log(np.maximum(shares, 1e-9))
        choices = np.array([[answer[at] if at >= 0 else STRANGE] for at in known])
        return Outputs(choices, TopTokens(ids, logits, np.zeros(len(known), np.float32)))

    def sample(self, row: Any) -> int:
        """Return the recorded token."""
        return int(row[0])

    def observe(self, token_id: int) -> None:
        """Do nothing."""


def drafter_of(policy: str, clock: Clock, max_nodes: int, tables: Tables = TABLES) -> AdaptiveDrafter:
    """Return the drafter of a policy, empty."""
    names = [policy] if policy in SOURCES else ["suffix", "recycling"]
    library = draft_library()
    assert library is not None, "edge-rt is installed without its native library"
    sources = [SOURCES[name](library, tables) for name in names]
    core = DraftCore(library, sources)
    return AdaptiveDrafter(core, CURVE, None, max_nodes=max_nodes, clock=clock)


def replay(
    traces: list[dict[str, Any]],
    policy: str,
    max_nodes: int,
    drafting_ms: float,
    cold: bool,
    tables: Tables = TABLES,
) -> Iterator[Any]:
    """Yield category, tokens, steps, rows and milliseconds of every answer, and microseconds spent in our own code."""
    clock = Clock()
    drafter = drafter_of(policy, clock, max_nodes, tables)
    curve = CURVE.curve(128, max_nodes + 1)
    for trace in traces:
        if cold:
            drafter = drafter_of(policy, clock, max_nodes, tables)
        answer = trace["answer"]
        sequence = Sequence(trace["prompt"], capacity=1 << 20, max_tokens=len(answer), end_ids=())
        game = Replay(trace)
        drafter.begin(sequence)
        steps, rows, ms, own = 0, 0, 0.0, 0.0
        while not sequence.is_finished:
            began = time.perf_counter()
            draft = drafter.propose(sequence, sequence.room - 1).first(sequence.room - 1)
            own += time.perf_counter() - began
            first = not game.position
            outputs = game.outputs(draft)
            accepted = accept(draft, outputs.logits, game, ())
            cost = 0.0 if first else curve[len(draft)] + drafting_ms
            clock.now += 1e-3 * cost
            sequence.append(accepted.token_ids)
            game.position += len(accepted.token_ids)
            began = time.perf_counter()
            drafter.observe(draft, accepted, outputs)
            own += time.perf_counter() - began
            if not first:
                steps += 1
                rows += len(draft) + 1
                ms += cost
        yield trace["cat"], len(answer) - 1, steps, rows, ms, 1e6 * own


def more_repetitive_half(traces: list[dict[str, Any]], max_nodes: int) -> set[int]:
    """Return the numbers of the half of the answers that suffixes of their own prompt and answer speed up most.

    Every answer starts with empty tables, and Python drafts, so that the halves are the same whatever is measured.
    """
    speeds = [tokens / max(ms, 1e-9) for _, tokens, _, _, ms, _ in replay(traces, "suffix", max_nodes, 0.15, True)]
    order = sorted(range(len(traces)), key=lambda number: -speeds[number])
    return set(order[: len(traces) // 2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("--package", type=Path, required=True)
    recorder.add_argument("--prompts", type=Path, required=True)
    recorder.add_argument("--out", type=Path, required=True)
    recorder.add_argument("--max-tokens", type=int, default=256)
    player = commands.add_parser("replay")
    player.add_argument("traces", type=Path)
    player.add_argument("--policy", nargs="+", default=["suffix", "recycling", "cost"])
    player.add_argument("--max-nodes", type=int, default=15)
    player.add_argument("--drafting-ms", type=float, default=0.03)
    player.add_argument("--every", type=int, default=1, help="take every n-th answer")
    player.add_argument("--cold", action="store_true", help="forget everything between answers")
    player.add_argument("--suffix-tokens", type=int, default=TABLES[0])
    player.add_argument("--contexts", type=int, default=TABLES[1], help="of token recycling, of each order")
    player.add_argument("--json", action="store_true", help="print one line of JSON for every policy")
    args = parser.parse_args()
    if args.command == "record":
        record(args.package, args.prompts, args.out, args.max_tokens)
        return
    traces = [json.loads(line) for line in args.traces.read_text().splitlines()][:: args.every]
    tables = (args.suffix_tokens, args.contexts)
    repetitive = more_repetitive_half(traces, args.max_nodes)
    if not args.json:
        print(f"{len(traces)} answers, tables {'cold' if args.cold else 'warm'}, at most {args.max_nodes} nodes")
    plain = CURVE.ms[0][0]
    for policy in args.policy:
        by: dict[str, list[float]] = defaultdict(lambda: [0.0] * 5)
        halves = [[0.0] * 5, [0.0] * 5]
        played = replay(traces, policy, args.max_nodes, args.drafting_ms, args.cold, tables)
        for number, (category, *numbers) in enumerate(played):
            by[category] = [a + b for a, b in zip(by[category], numbers, strict=True)]
            half = number in repetitive
            halves[half] = [a + b for a, b in zip(halves[half], numbers, strict=True)]
        tokens, steps, rows, ms, own = (sum(values) for values in zip(*halves, strict=True))
        speeds = [plain * half[0] / half[3] for half in halves]
        if args.json:
            facts = {"policy": policy, "max_nodes": args.max_nodes, "suffix_tokens": tables[0], "contexts": tables[1]}
            means = {"tokens_per_step": tokens / steps, "rows_per_step": rows / steps}
            both = {"speedup": plain * tokens / ms, "speedup_less_repetitive": speeds[0]}
            print(json.dumps({**facts, **means, **both}), flush=True)
            continue
        print(f"{policy:>10}: {plain * tokens / ms:.3f}x, {tokens / steps:.2f} tokens a step, {own / steps:.0f} us own")
        each = [f"{speed:.3f}x, {half[0] / half[1]:.2f} tokens" for speed, half in zip(speeds, halves, strict=True)]
        print(f"   less repetitive half {each[0]}; more repetitive half {each[1]}")
        print("   " + ", ".join(f"{name} {plain * n / t:.2f}x" for name, (n, _, _, t, _) in sorted(by.items())))


if __name__ == "__main__":
    main()
