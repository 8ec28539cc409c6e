"""Tokens per second of several answers at once against one: greedy, no drafts.

    python benchmarks/batch_speed.py PACKAGE [--slots 4 8] [--tokens 128] [--prompt 256] [--kv int8] [--rounds 3]

One model, loaded with the most slots, answers with one and with several generations in turn; prompts differ and are
computed before the clock starts, which stops when the first answer ends. Reported are medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import edge_rt


def speed(model, count: int, arguments, seed: int) -> float:
    """Return the tokens per second of ``count`` answers together."""
    vocabulary = model.package.manifest.model.vocab_size
    prompts = [
        [
            (7919 * (seed + 31 * number + place) + place * place) % (vocabulary - 500) + 300
            for place in range(arguments.prompt)
        ]
        for number in range(count)
    ]
    options = {
        "temperature": 0.0,
        "repetition_guard": False,
        "logit_bias": dict.fromkeys(model.tokenizer.eos_token_ids, -1e4),
    }
    model.reset()
    streams = [model.stream(prompt, max_tokens=arguments.tokens, **options) for prompt in prompts]
    events = [iter(stream) for stream in streams]
    for one in events:
        next(one)
    batch = model._batch
    assert batch is not None
    sequences = [ticket.generation.sequence for ticket in batch._active]
    assert len(sequences) == count, "an answer has ended before the last prompt was computed"
    begun, started = sum(one.num_answer_tokens for one in sequences), time.perf_counter()
    while not any(one.is_finished for one in sequences):
        batch.step()
    seconds, given = time.perf_counter() - started, sum(one.num_answer_tokens for one in sequences) - begun
    for one in events:
        one.close()
    return given / seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--kv", default="int8")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    counts = [1, *arguments.slots]
    context = arguments.prompt + arguments.tokens + 8
    with edge_rt.load(arguments.package, ctx=context, kv=arguments.kv, spec="off", slots=max(counts)) as model:
        speeds: dict[int, list[float]] = {count: [] for count in counts}
        for turn in range(arguments.rounds + 1):
            for count in counts:
                found = speed(model, count, arguments, turn)
                if turn:
                    speeds[count].append(found)
    one = statistics.median(speeds[1])
    for count in counts:
        middle = statistics.median(speeds[count])
        print(
            f"{count} at once: {middle:7.1f} tokens/s, {middle / one:.2f} of one  ({sorted(map(round, speeds[count]))})"
        )


if __name__ == "__main__":
    main()
