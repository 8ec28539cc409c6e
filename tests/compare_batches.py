"""By hand: answers in batches of 1 to 8 against those alone, with random arrivals and cancels.

    python -m tests.compare_batches PACKAGE [--isa avx512_vnni avx2 scalar] [--prompts 240] [--seed 0]

Greedy and seeded answers of all lengths, some in a format, some to prompts that begin alike, with every format of the
cache and every way to draft in turn. Each runs alone, without drafts, in a process of its own; then in a batch, in one
that keeps rows of prompts in a folder; then in one that is started anew and finds them there. On every instruction set,
token ids, finish reason, text and log probabilities must be those of the first one alone, to the last bit. Prints how
many differ; the exit code is 1 if any does. PACKAGE may be ``small``: the tests' own model of random weights, or the
name of a case of ``tests.helpers.family_cases``: one of the small models of many families.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import edge_rt
from edge_rt.export import export_model
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.facts import why_rows_are_not_stored
from tests.helpers.family_cases import CASES, load_case, write_folder
from tests.helpers.gguf_factory import write_llama_gguf

TEXTS = (
    "The capital of France is", "Once upon a time there was a", "def fibonacci(n):\n", "List three colours:",
    "Dear Sir or Madam, I am writing to you because", "In 1969, for the first time,", "SELECT name FROM users WHERE",
    "The little boat left the harbour at dawn, and the sea was calm. ",
)  # fmt: skip
BEGINNING = "You are a helpful assistant. You answer in one sentence, and never say that you do not know. " * 8
MOST_PROMPT = 280
CONTEXT = 384
LESS_EVEN = {"granite_h": {"logits_scaling": 0.1}, "falcon_h1": {"lm_head_multiplier": 3.0}}
"""Case -> what differs in its config.json, so that more of what is drafted stays."""
SETTINGS = (
    ("f16", 8, "off"), ("int8", 4, "auto"), ("k8v4", 6, "off"), ("int4", 2, "suffix"), ("f16", 3, "auto"),
    ("int8", 8, "auto"), ("f32", 5, "ngram"), ("int4x2", 7, "recycling"), ("int8", 1, "auto"), ("int8", 8, "off"),
    ("k8v4", 8, "auto"), ("f16", 4, "suffix"),
)  # fmt: skip


def requests(rng, count):
    """Return texts with the options of their answers, and whether they begin like others."""
    chosen = []
    for number in range(count):
        words = [TEXTS[int(i)] for i in rng.integers(0, len(TEXTS), int(rng.choice([1, 1, 2, 6, 20, 40])))]
        is_alike = number % 4 == 0
        text = (BEGINNING if is_alike else f"{number}. ") + " ".join(words)
        options = {"max_tokens": int(rng.integers(1, 48)), "temperature": 0.0}
        if number % 2:
            options |= {"temperature": 0.8, "seed": number, "repetition_penalty": 1.1}
        if number % 3:
            options["logprobs"] = 3
        if number % 10 == 7:
            options |= {"regex": "(yes|no|perhaps), because [a-z ]{4,30}\\."}
        chosen.append((text, options, is_alike))
    return chosen


def facts(result):
    """Return what must be equal."""
    return result.token_ids, result.finish_reason, result.text, result.logprobs


def prompts_of(model, chosen):
    """Return the tokens of requests, with their options."""
    return [(model.tokenizer.encode_text(text)[:MOST_PROMPT], options) for text, options, _ in chosen]


def alone(load, chosen):
    """Answer one after the other, without drafts."""
    with edge_rt.load(spec="off", **load) as model:
        return [facts(model.generate(prompt, **options)) for prompt, options in prompts_of(model, chosen)]


def drafting(number, spec, text):
    """Return who drafts for an answer of a batch where ``auto`` does for the others."""
    if spec == "auto" and number % 4 == 1:
        return {"spec": ("reference", "auto")[number % 8 // 4], "reference": text}
    return {"spec": ("suffix", "ngram", "recycling")[number % 3]} if spec == "auto" and number % 4 == 2 else {}


def together(load, chosen, seed):
    """Answer in a batch, with arrivals and cancels at random; check the invariants whenever an answer ends.

    Returns:
        The answers, and how many drafted tokens stayed.
    """
    rng, answers, accepted = np.random.default_rng(seed), [None] * len(chosen), 0
    with edge_rt.load(**load) as model:
        # A model with one slot makes nobody wait: a second answer is refused.
        most, asked = (model.slots + 2 if model.slots > 1 else 1), prompts_of(model, chosen)
        waiting, under_way = list(range(len(chosen))), {}
        while waiting or under_way:
            if waiting and (not under_way or (len(under_way) < most and rng.random() < 0.3)):
                number = waiting.pop(0)
                prompt, options = asked[number]
                stream = model.stream(prompt, **options, **drafting(number, load["spec"], chosen[number][0]))
                under_way[number] = stream, iter(stream)
            number = int(rng.choice(list(under_way)))
            stream, events = under_way[number]
            if next(events, None) is not None:
                if rng.random() > 0.005:
                    continue
                stream.cancel()
                for _ in events:
                    pass
            answers[number] = facts(stream.result())
            accepted += 0 if stream.result().spec is None else stream.result().spec.draft_n_accepted
            del under_way[number]
            if model._batch is not None:
                model._batch.check()
    return answers, accepted


def again(load, chosen):
    """Answer in a process that finds rows in a folder; return also how many tokens of each prompt were there."""
    with edge_rt.load(**load) as model:
        results = list(model.generate_many(prompts_of(model, chosen)))
        return [facts(result) for result in results], [result.usage.cached_tokens for result in results]


def in_process(function, *arguments):
    """Call a function in a process of its own: there is one instruction set for a process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def differing(answers, expected, counts):
    """Count answers that differ; a cancelled one is the beginning of the expected one."""
    for answer, whole in zip(answers, expected, strict=True):
        if answer[1] == "cancelled" != whole[1]:
            counts["cancelled"] += 1
            counts["differ"] += answer[0] != whole[0][: len(answer[0])]
        else:
            counts["whole"] += 1
            counts["log probabilities"] += len(whole[3] or ())
            counts["differ"] += answer != whole


def package_of(name, folder):
    """Return the package of a name; ``small``, or that of a case, is made in a folder."""
    made = Path(folder) / "package"
    if name == "small":
        write_llama_gguf(Path(folder) / "small.gguf", context=512)
        export_model(Path(folder) / "small.gguf", made, profile="native")
    elif name in CASES:
        source = write_folder(Path(folder) / "model", load_case(name), config=LESS_EVEN.get(name))
        export_model(source, made, profile="native", calibration=None, accept_loss=True, weights="int8")
    else:
        return name
    return str(made)


def compare(package, isas, setting, chosen, seed):
    """Return the counts of one setting."""
    kv, slots, spec = setting
    counts = Counter()
    expected = None
    for isa in isas:
        load = {"model": package, "ctx": CONTEXT, "kv": kv, "isa": isa}
        answers = in_process(alone, load, chosen)
        expected = expected or answers
        differing(answers, expected, counts)
        with tempfile.TemporaryDirectory() as folder:
            load |= {"slots": slots, "spec": spec, "prefill_chunk": 32 << seed % 3}
            if why_rows_are_not_stored(open_package(Path(package)).manifest) is None:
                load["prompt_cache"] = folder
            answers, accepted = in_process(together, load, chosen, seed)
            differing(answers, expected, counts)
            counts["drafted tokens that stayed"] += accepted
            answers, found = in_process(again, load, chosen)
        differing(answers, expected, counts)
        # Those that begin like others find them in memory, too.
        counts["read after a restart"] += sum(
            not is_alike and tokens >= 64 for (_, _, is_alike), tokens in zip(chosen, found, strict=True)
        )
    return counts


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--isa", nargs="+", default=[None], help="instruction sets; the best one unless given")
    parser.add_argument("--prompts", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    each = -(-arguments.prompts // len(SETTINGS))
    total = Counter()
    with tempfile.TemporaryDirectory() as folder:
        package = package_of(arguments.package, folder)
        for number, setting in enumerate(SETTINGS):
            counts = compare(package, arguments.isa, setting, requests(rng, each), arguments.seed + number)
            print("{}, {} slots, drafts {}".format(*setting), dict(counts), flush=True)
            total.update(counts)
    print("in all", dict(total))
    return int(total["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
