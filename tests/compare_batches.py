"""By hand: answers of a real model in batches of 1 to 8 against those alone, with random arrivals and cancels.

    python -m tests.compare_batches PACKAGE [--prompts 240] [--seed 0]

Greedy and seeded answers of all lengths, some in a format, with every format of the cache in turn. Prints how many
differ in token ids, finish reason or log probabilities; the exit code is 1 if any does.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import edge_rt

TEXTS = (
    "The capital of France is", "Once upon a time there was a", "def fibonacci(n):\n", "List three colours:",
    "Dear Sir or Madam, I am writing to you because", "In 1969, for the first time,", "SELECT name FROM users WHERE",
    "The little boat left the harbour at dawn, and the sea was calm. ",
)  # fmt: skip


def requests(rng, count):
    """Return prompts with the options of their answers."""
    found = []
    for number in range(count):
        prompt = " ".join([TEXTS[int(i)] for i in rng.integers(0, len(TEXTS), int(rng.choice([1, 1, 2, 6, 20])))])
        options = {"max_tokens": int(rng.integers(1, 48)), "temperature": 0.0}
        if number % 2:
            options |= {"temperature": 0.8, "seed": number, "repetition_penalty": 1.1}
        if number % 3 == 0:
            options["logprobs"] = 3
        if number % 10 == 7:
            options |= {"regex": "(yes|no|perhaps), because [a-z ]{4,30}\\."}
        found.append((prompt, options))
    return found


def compare(package, kv, slots, chosen, rng):
    """Return (different, whole, cancelled) answers."""
    with edge_rt.load(package, ctx=640, kv=kv, spec="off") as model:
        alone = [model.generate(prompt, **options) for prompt, options in chosen]
    different = whole = cancelled = 0
    with edge_rt.load(package, ctx=640, kv=kv, slots=slots) as model:
        waiting, under_way = list(range(len(chosen))), {}
        while waiting or under_way:
            if waiting and (not under_way or (len(under_way) < slots + 2 and rng.random() < 0.3)):
                number = waiting.pop(0)
                stream = model.stream(chosen[number][0], **chosen[number][1])
                under_way[number] = stream, iter(stream)
            number = int(rng.choice(list(under_way)))
            stream, events = under_way[number]
            if next(events, None) is not None:
                if rng.random() > 0.005:
                    continue
                stream.cancel()
                for _ in events:
                    pass
            result, expected = stream.result(), alone[number]
            del under_way[number]
            if result.finish_reason == "cancelled":
                cancelled += 1
                different += result.token_ids != expected.token_ids[: len(result.token_ids)]
            else:
                whole += 1
                same = (result.token_ids, result.finish_reason, result.text, result.logprobs) == (
                    expected.token_ids, expected.finish_reason, expected.text, expected.logprobs,
                )  # fmt: skip
                different += not same
    return different, whole, cancelled


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--prompts", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    settings = [("f16", 8), ("int8", 4), ("k8v4", 6), ("int4", 2), ("f16", 1 + 2), ("int8", 8)]
    each = -(-arguments.prompts // len(settings))
    total = 0
    for kv, slots in settings:
        different, whole, cancelled = compare(arguments.package, kv, slots, requests(rng, each), rng)
        print(f"{kv}, {slots} slots: {different} differ of {whole} whole and {cancelled} cancelled ones", flush=True)
        total += different
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
