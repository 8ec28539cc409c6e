"""What conversations with one system prompt take: seconds to the first token of each, and rows of the cache.

    python benchmarks/shared_prompts.py PACKAGE [--slots 8] [--system 1000] [--question 24] [--kv int8] [--rounds 5]

As many conversations as there are slots arrive at once, in threads. In every other round nothing is shared: each has
another system prompt of the same length. Reported are the medians of the rounds, and the rows that answers hold then.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import edge_rt
from edge_rt.package.kv_formats import ROW_BLOCK

ANSWER = 16


def first_tokens(model, prompts) -> tuple[float, float, int]:
    """Return the seconds until the first and until the last answer has its first token, and the rows taken then."""
    model.reset()
    streams = [
        model.stream(
            prompt, max_tokens=ANSWER, temperature=0.0, logit_bias=dict.fromkeys(model.tokenizer.eos_token_ids, -1e4)
        )
        for prompt in prompts
    ]
    events, times = [iter(stream) for stream in streams], []

    def read(one):
        next(one)
        times.append(time.perf_counter() - started)

    threads = [threading.Thread(target=read, args=(one,)) for one in events]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = model.cached_tokens
    for stream in streams:
        stream.result()
    return min(times), max(times), rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--system", type=int, default=1000)
    parser.add_argument("--question", type=int, default=24)
    parser.add_argument("--kv", default="int8")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    context = -(-(arguments.system + arguments.question + ANSWER) // ROW_BLOCK) * ROW_BLOCK
    with edge_rt.load(arguments.package, ctx=context, kv=arguments.kv, spec="off", slots=arguments.slots) as model:
        vocabulary = model.package.manifest.model.vocab_size

        def text(number: int, length: int) -> list[int]:
            return [
                (7919 * (number + 31 * place) + place * place) % (vocabulary - 500) + 300 for place in range(length)
            ]

        for name, is_shared in (("one system prompt", True), ("one each", False)):
            found = []
            for turn in range(arguments.rounds + 1):
                prompts = [
                    text(1000 * turn + (0 if is_shared else number), arguments.system)
                    + text(17 + number, arguments.question)
                    for number in range(arguments.slots)
                ]
                found.append(first_tokens(model, prompts))
            first, last, rows = (statistics.median(figures) for figures in zip(*found[1:], strict=True))
            print(f"{name}: first tokens after {first:.2f} to {last:.2f} s, {rows:.0f} rows")


if __name__ == "__main__":
    main()
