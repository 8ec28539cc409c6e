"""Verifies draft trees made up at random, wrong drafts planted among right ones; 100,000 unless told otherwise.

Whatever is drafted, the answer must be that of plain decoding, and the cache whole after every step. Trees of all
shapes are verified on small models with one graph, with exits, with sliding windows and with nested weights, in every
cache format, greedy and sampled. A tree follows the answer for a random length, and has wrong tokens beside
it, before it and behind it. Not part of CI, where ``tests/runtime/decode`` runs fewer::

    python -m tests.fuzz_trees [--trees N] [--seed N]
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from edge_rt.export import export_model
from edge_rt.package.manifest import KV_FORMATS
from edge_rt.runtime.decode.draft import ROOT, Draft, NullDrafter
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.segmented import CutPasses, answer, make_agreeing_pair, make_window_pair, whole_passes

VOCABULARY = 419
TOKENS = 120
MOST_NODES = 40
SAMPLING = ({"temperature": 0.0}, {"temperature": 1.0, "seed": 4})


def planted(rng, truth, most):
    """Return a tree: part of the true answer, and wrong tokens everywhere around it."""
    count = rng.randint(0, most) if rng.random() < 0.8 else rng.randint(0, min(most, 3))
    right = rng.randint(0, min(count, len(truth), 12))
    tokens, parents, taken = [], [], set()
    on_path = ROOT
    kept = 0
    while len(tokens) < count:
        if kept < right and rng.random() < 0.5:
            parent, token = on_path, truth[kept]
        else:
            parent = rng.randrange(ROOT, len(tokens)) if rng.random() < 0.7 else len(tokens) - 1
            token = rng.randrange(VOCABULARY)
            # Tokens that are right, but at another place.
            if truth and rng.random() < 0.3:
                token = rng.choice(truth[: 2 * MOST_NODES])
        if (parent, token) in taken:
            continue
        taken.add((parent, token))
        tokens.append(token)
        parents.append(parent)
        if parent == on_path and kept < len(truth) and token == truth[kept]:
            on_path, kept = len(tokens) - 1, kept + 1
    return Draft(tuple(tokens), tuple(parents))


class PlantedDrafter(NullDrafter):
    """Drafts trees around a known answer.

    Attributes:
        seen: how many trees, nodes and accepted tokens there were.
    """

    def __init__(self, rng, truth):
        self._rng, self._truth = rng, truth
        self.seen = Counter()

    def propose(self, sequence, limit):
        done = len(sequence.answer_ids)
        draft = planted(self._rng, self._truth[done:], min(limit, MOST_NODES))
        draft.check()
        self.seen.update(trees=bool(len(draft)), nodes=len(draft))
        return draft

    def observe(self, draft, accepted, outputs):
        del draft, outputs
        self.seen.update(accepted=accepted.num_accepted)


def targets(folder):
    """Yield names and passes: the whole model for plain decoding, and what verifies trees."""
    make_agreeing_pair(folder / "exits")
    make_window_pair(folder / "window")
    gguf = folder / "nested.gguf"
    write_llama_gguf(gguf, weight_type="F32", embedding_type="F32", output_type="F32", context=512)
    export_model(gguf, folder / "nested", profile="native", weights="nested8")
    for kv_format in KV_FORMATS["native"]:
        for name in ("exits", "window"):
            whole = folder / name / "whole"
            yield f"{name}, one graph, {kv_format}", whole_passes(whole, kv_format), whole_passes(whole, kv_format)
            yield (
                f"{name}, cut, {kv_format}",
                whole_passes(whole, kv_format),
                CutPasses(folder / name / "cut", kv_format),
            )
        nested = folder / "nested"
        yield f"nested, {kv_format}", whole_passes(nested, kv_format), whole_passes(nested, kv_format)


def plain_answer(passes, prompt, options):
    """Return the answer of plain decoding."""
    passes.cache.truncate(0)
    return answer(passes, NullDrafter(), prompt, TOKENS, **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trees", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, seen, begun = random.Random(args.seed), Counter(), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        found = list(targets(Path(name)))
        share = -(-args.trees // len(found))
        for what, plain, passes in found:
            here = Counter()
            for number in itertools.count():
                if here["trees"] >= share:
                    break
                prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 60))]
                options = SAMPLING[number % 2]
                truth = plain_answer(plain, prompt, options)
                for _ in range(6):
                    drafter = PlantedDrafter(rng, truth)
                    if answer(passes, drafter, prompt, TOKENS, **options) != truth:
                        sys.exit(f"{what}: the answer differs from plain decoding, seed {args.seed}, prompt {prompt}")
                    here += drafter.seen
            seen += here
            print(
                f"{what:34s} {here['trees']:7,} trees, {here['nodes']:9,} nodes, {here['accepted']:8,} accepted",
                flush=True,
            )
    counts = f"{seen['trees']:,} trees, {seen['accepted']:,} tokens accepted"
    print(f"{counts}, {time.monotonic() - begun:.0f} s: all answers are those of plain decoding")


if __name__ == "__main__":
    main()
