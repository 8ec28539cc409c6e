"""Tokens per second of several answers at once against one, without drafts; and beside llama.cpp on the same file.

    python benchmarks/batch_speed.py PACKAGE [--slots 4 8] [--tokens 128] [--prompt 256] [--kv int8] [--temperature 0]
    python benchmarks/batch_speed.py PACKAGE --gguf model.Q4_1.gguf model.Q4_0.gguf [--texts prompts.jsonl]

One model, loaded with the most slots, answers with one and with several generations in turn; prompts differ and are
computed before the clock starts, which runs for so many passes. Reported are medians of the rounds.

``--gguf`` names files that llama.cpp decodes (``--llama-python`` is an interpreter with llama-cpp-python), in a process
that is stopped while edge-rt works. With ``--texts`` both answer the first message of every line (``turns``); printed
is how many answers of several at once are not those of one at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from alternating import Worker, ratio_text

import edge_rt
from edge_rt.runtime.pass_rows import LEAST_PIECE

WORKER = Path(__file__).parent / "workers" / "llama_cpp_batches.py"


def prompts_of(model, count: int, tokens: int, seed: int) -> list[list[int]]:
    """Return prompts that differ."""
    vocabulary = model.package.manifest.model.vocab_size
    return [
        [(7919 * (seed + 31 * number + i) + i * i) % (vocabulary - 500) + 300 for i in range(tokens)]
        for number in range(count)
    ]


def beside(prompt: int, count: int) -> int:
    """Return how many passes may have pieces of prompts beside answers."""
    return (count - 1) * (-(-prompt // LEAST_PIECE) + 1)


def speed(model, prompts: list[list[int]], tokens: int, temperature: float = 0.0) -> float:
    """Return the tokens per second of answers together."""
    options = {"temperature": temperature, "repetition_guard": False}
    model.reset()
    # The first answers have begun before the last prompt is computed, of which a pass takes a piece.
    most = tokens + beside(len(prompts[0]), len(prompts)) + 2
    streams = [model.stream(prompt, max_tokens=most, **options) for prompt in prompts]
    events = [iter(stream) for stream in streams]
    for one in events:
        next(one)
        batch = model._batch
        assert batch is not None
        # No token ends an answer; a bias against those that do would let the sampler choose greedy tokens, too.
        for ticket in batch._active:
            ticket.generation.sequence.end_ids = frozenset()
    sequences = [ticket.generation.sequence for ticket in batch._active]
    assert len(sequences) == len(prompts), "an answer has ended before the last prompt was computed"
    begun, started = sum(one.num_answer_tokens for one in sequences), time.perf_counter()
    for _ in range(tokens - 1):
        batch.step()
    assert not any(one.is_finished for one in sequences)
    seconds, given = time.perf_counter() - started, sum(one.num_answer_tokens for one in sequences) - begun
    for one in events:
        one.close()
    return given / seconds


def measure_speeds(load: dict, peers: dict[str, Worker], counts: list[int], arguments) -> None:
    """Print tokens per second by how many answers there are at once."""
    speeds: dict[str, dict[int, list[float]]] = {name: {count: [] for count in counts} for name in ("edge-rt", *peers)}
    with edge_rt.load(arguments.package, slots=max(counts), **load) as model:
        for turn in range(arguments.rounds + 1):
            for count in counts:
                prompts = prompts_of(model, count, arguments.prompt, turn)
                values = {"edge-rt": speed(model, prompts, arguments.tokens, arguments.temperature)}
                for name, peer in peers.items():
                    values[name] = peer.ask(prompts=prompts, tokens=arguments.tokens)["speed"]
                for name, value in values.items():
                    if turn:
                        speeds[name][count].append(value)
    for name, by_count in speeds.items():
        one = statistics.median(by_count[1])
        for count, samples in by_count.items():
            middle = statistics.median(samples)
            more = ""
            if name != "edge-rt":
                more = f"; edge-rt is faster {ratio_text(speeds['edge-rt'][count], samples)}"
            print(
                f"{name}, {count} at once: {middle:7.1f} tokens/s, {middle / one:.2f} of one"
                f"  ({sorted(map(round, samples))}){more}"
            )


def compare_texts(load: dict, peers: dict[str, Worker], counts: list[int], arguments) -> None:
    """Print how many answers are other ones in a batch."""
    messages = [json.loads(line)["turns"][0] for line in arguments.texts.read_text(encoding="utf-8").splitlines()]
    options = {"temperature": 0.0, "repetition_penalty": 1.0, "repetition_guard": False, "max_tokens": arguments.tokens}
    alone: dict[str, list[list[int]]] = {}
    for count in counts:
        with edge_rt.load(arguments.package, slots=count, **load) as model:
            ends = list(model.tokenizer.eos_token_ids)
            rendered = [model.render([{"role": "user", "content": text}]) for text in messages]
            prompts = [model.tokenizer.encode_rendered(prompt)[: arguments.longest] for prompt in rendered]
            answers = {"edge-rt": [list(answer.token_ids) for answer in model.generate_many(prompts, **options)]}
        for name, peer in peers.items():
            answers[name] = peer.ask(prompts=prompts, tokens=arguments.tokens, ends=ends, count=count)["answers"]
        for name, given in answers.items():
            expected = alone.setdefault(name, given)
            different = sum(a != b for a, b in zip(given, expected, strict=True))
            print(f"{name}: of {len(prompts)} answers, {count} at a time, {different} differ", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--kv", default="int8")
    parser.add_argument("--temperature", type=float, default=0.0, help="of edge-rt; llama.cpp's answers are greedy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gguf", type=Path, nargs="*", default=[], help="files for llama.cpp")
    parser.add_argument("--llama-python", default=sys.executable, help="interpreter that has llama-cpp-python")
    parser.add_argument("--texts", type=Path, help="compare answers to these prompts instead of measuring")
    parser.add_argument("--longest", type=int, default=400, help="tokens of a prompt of --texts; the rest is cut off")
    arguments = parser.parse_args()
    counts = [1, *arguments.slots]
    context = arguments.longest if arguments.texts else arguments.prompt + beside(arguments.prompt, max(counts))
    context += arguments.tokens + 8
    context += -context % 256
    peers = {
        f"llama.cpp {path.stem}": Worker(
            path.name,
            [arguments.llama_python, str(WORKER), str(path), str(arguments.threads), str(max(counts)), str(context)],
        )
        for path in arguments.gguf
    }
    load = {"ctx": context, "kv": arguments.kv, "spec": "off", "threads": arguments.threads}
    try:
        measure = compare_texts if arguments.texts else measure_speeds
        measure(load, peers, counts, arguments)
    finally:
        for peer in peers.values():
            peer.close()


if __name__ == "__main__":
    main()
