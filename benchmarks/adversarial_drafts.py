"""What speculation costs where drafts are always wrong.

Two ways to make them so: drafters that are forced to lie, sure of themselves, and random prompts answered at a high
temperature, which nothing can foresee. Plain and speculative answers alternate; the figure is plain decoding time over
speculative decoding time, with a bootstrap interval over prompts. 1.00 is plain decoding's speed.

    python benchmarks/adversarial_drafts.py --package PACKAGE --prompts 24 --max-tokens 128
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import numpy as np

import edge_rt
from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.source import Guess

RESAMPLES = 2000


class Liar:
    """Guesses four tokens at every place with a good conscience; that they are right is one chance in thousands."""

    num_kinds = 1

    def __init__(self, name: str, vocab_size: int) -> None:
        self.name = name
        self._state = 1
        self._vocab_size = vocab_size

    def prior(self, kind: int) -> float:
        """Claim to be nearly always right."""
        del kind
        return 0.95

    def begin(self, token_ids: Items[int]) -> None:
        """Do nothing."""

    def extend(self, token_ids: Items[int]) -> None:
        """Do nothing."""

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Do nothing."""

    def root(self) -> Any:
        """Return a cursor that means nothing."""
        return 0

    def children(self, cursor: Any) -> list[Guess]:
        """Return random tokens."""
        del cursor
        self._state = (self._state * 1103515245 + 12345) % (1 << 31)
        return [Guess((self._state + step) % self._vocab_size, 0, 0) for step in range(4)]

    @property
    def memory_bytes(self) -> int:
        """Nothing is kept."""
        return 0


WHOLE = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""What a model or the defaults may advise instead would make the text easier to foresee."""


def ratios(model: edge_rt.Model, prompts: list[list[int]], options: dict[str, Any]) -> list[tuple[float, float]]:
    """Return (plain, speculative) milliseconds of every prompt."""
    result = []
    for index, prompt in enumerate(prompts):
        found = {}
        for mode in ("off", "auto") if index % 2 else ("auto", "off"):
            found[mode] = model.generate(prompt, spec=mode, seed=index, **options)
        if found["off"].token_ids != found["auto"].token_ids:
            raise SystemExit(f"prompt {index}: the texts differ")
        result.append((found["off"].timings.predicted_ms, found["auto"].timings.predicted_ms))
    return result


def report(name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Print and return the ratio of the sums with its interval."""
    times = np.array(pairs)
    rng = np.random.default_rng(1)
    picks = rng.integers(0, len(times), (RESAMPLES, len(times)))
    sums = times[picks].sum(axis=1)
    low, high = np.percentile(sums[:, 0] / sums[:, 1], [2.5, 97.5])
    ratio = times[:, 0].sum() / times[:, 1].sum()
    print(f"{name}: {ratio:.3f} ({low:.3f}-{high:.3f}) of plain decoding's speed, {len(times)} prompts")
    return {"name": name, "ratio": ratio, "interval": [low, high], "prompts": len(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = edge_rt.load(args.package, threads=args.threads, ctx=1024)
    vocab_size = model.package.manifest.model.vocab_size
    rng = np.random.default_rng(2)
    prompts = [rng.integers(17, vocab_size, 64).tolist() for _ in range(args.prompts)]
    bias = dict.fromkeys(model.tokenizer.eos_token_ids, -10000.0)
    options = {"max_tokens": args.max_tokens, "logit_bias": bias, "repetition_guard": False}
    model.generate(prompts[0], max_tokens=32)
    found = [report("random text", ratios(model, prompts, {**options, **WHOLE, "temperature": 2.0, "top_p": 1.0}))]
    model.speculation.forget()
    for name in ("suffix", "recycling"):
        model.speculation.replace(name, Liar(name, vocab_size))
    found.append(
        report("drafters that lie", ratios(model, prompts, {**options, **WHOLE, "temperature": 0.8, "top_p": 0.95}))
    )
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
