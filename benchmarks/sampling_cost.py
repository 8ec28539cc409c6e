"""What sampling costs: tokens per second at temperature 0.8 and top-p 0.95 against greedy, alternated in one process.

python benchmarks/sampling_cost.py PACKAGE [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import edge_rt
from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.decode.loop import Decoding, decode
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence

PROMPT = "Write a long story about a lighthouse keeper who finds a map in a bottle."
NUCLEUS = edge_rt.GenerationConfig(temperature=0.8, top_k=0, top_p=0.95, min_p=0.0, repetition_penalty=1.0, seed=1)
CONFIGS = {
    "greedy": edge_rt.GenerationConfig(temperature=0.0),
    "0.8/0.95": NUCLEUS,
    "top-k 40": NUCLEUS.with_options(top_k=40),
    "0.8/0.95, repetition 1.1": NUCLEUS.with_options(repetition_penalty=1.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("package")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=96)
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in CONFIGS}
    with edge_rt.load(arguments.package) as model:
        prompt = model.tokenizer.encode_rendered(model.render([{"role": "user", "content": PROMPT}]))
        size = model.package.manifest.model.vocab_size
        for round_ in range(arguments.rounds + 1):
            for name, config in CONFIGS.items():
                with model.passes() as (target, cache):
                    cache.truncate(0)
                    # No end token: every run generates the same number of tokens.
                    request = Sequence(prompt, capacity=2048, max_tokens=arguments.tokens, end_ids=())
                    steps = decode(Decoding(request, NullDrafter(), cache, Sampler(config, size, prompt)), target)
                    next(steps)
                    started = time.perf_counter()
                    for _ in steps:
                        pass
                    if round_:
                        seconds[name].append(time.perf_counter() - started)
    rng = np.random.default_rng(0)
    for name, times in seconds.items():
        ratios = np.array([own / greedy for own, greedy in zip(times, seconds["greedy"], strict=True)])
        medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
        low, high = np.quantile(medians, [0.025, 0.975])
        speed = (arguments.tokens - 1) / statistics.median(times)
        print(f"{name:>26}: {speed:6.1f} tok/s, time over greedy {np.median(ratios):.3f} ({low:.3f}-{high:.3f})")


if __name__ == "__main__":
    main()
