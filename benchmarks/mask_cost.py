"""What the mask of a grammar costs: steps with one and without, alternated in one process, greedy and with a seed.

::

    python benchmarks/synthetic_gguf.py 152k.gguf --words --hidden 576 --layers 30 --heads 9 --kv-heads 3 \
        --intermediate 1536 --vocabulary 152064
    edge-rt export 152k.gguf --out 152k
    python benchmarks/mask_cost.py PACKAGE [--depth 512] [--rounds 20]

No answer ends, and no token is forced: every step is one pass and one choice.
"""

from __future__ import annotations

import argparse
import statistics
import time

import edge_rt
from edge_rt.runtime.decode.answer_grammar import AnswerGrammar
from edge_rt.runtime.decode.draft import NullDrafter
from edge_rt.runtime.decode.loop import decode, prefill
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.decode.sequence import Sequence
from edge_rt.text.answer_format import AnswerFormat, answer_format
from edge_rt.text.grammar import TokenTable

FORMATS: dict[str, AnswerFormat | None] = {
    "none": None,
    "text": answer_format(regex=r"[\s\S]*"),
    "string": answer_format(regex=r'"[^"\\\x00-\x1f]*'),
    "counted": answer_format({"type": "string", "minLength": 20_000, "maxLength": 30_000}),
    "words": answer_format(regex="([a-z]{1,12} )*"),
}
CONFIGS = {
    "greedy": edge_rt.GenerationConfig(temperature=0.0),
    "0.8/0.95": edge_rt.GenerationConfig(
        temperature=0.8, top_k=0, top_p=0.95, min_p=0.0, repetition_penalty=1.0, seed=1
    ),
}


def main() -> None:
    """Measure, and print a line for every format and way to choose."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("package")
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=24)
    arguments = parser.parse_args()
    with edge_rt.load(arguments.package, spec="off") as model:
        tokenizer, size = model.tokenizer, model.package.manifest.model.vocab_size
        text = tokenizer.encode_text("A boat went out to sea in the morning, and nobody saw it again. " * 400)
        prompt = (text * arguments.depth)[: arguments.depth]
        table = TokenTable(tokenizer, size)
        seconds: dict[tuple[str, str], list[float]] = {}
        for round_ in range(arguments.rounds + 1):
            for choice, config in CONFIGS.items():
                for name, wanted in FORMATS.items():
                    grammar = None
                    if wanted is not None:
                        grammar = AnswerGrammar(table.matcher(wanted), tokenizer.eos_token_ids, size)
                    # End tokens are banned: every run has the same number of steps.
                    config = config.with_options(banned=tokenizer.eos_token_ids)
                    with model.passes() as (target, cache):
                        cache.truncate(cache.common_prefix(prompt[:-1]))
                        request = Sequence(prompt, capacity=cache.capacity, max_tokens=arguments.tokens, end_ids=())
                        prefill(request, target, cache, 64)
                        steps = decode(
                            request, NullDrafter(), target, cache, Sampler(config, size, prompt), grammar=grammar
                        )
                        # The first step computes the rest of the prompt, the first words of a grammar are new to it.
                        for _ in range(4):
                            next(steps)
                        begun = time.perf_counter()
                        for step in steps:
                            ended = time.perf_counter()
                            if round_ and len(step.token_ids) == 1:
                                seconds.setdefault((choice, name), []).append(ended - begun)
                            begun = ended
    for choice in CONFIGS:
        plain = seconds[choice, "none"]
        for name in FORMATS:
            ours = seconds.get((choice, name), [])
            if ours:
                least, middle = min(ours) / min(plain), statistics.median(ours) / statistics.median(plain)
                print(
                    f"{choice:>9} {name:>12}: least {1e3 * min(ours):.3f} ms ({100 * least - 100:+.1f} %),"
                    f" median {1e3 * statistics.median(ours):.3f} ms ({100 * middle - 100:+.1f} %), {len(ours)} steps"
                )


if __name__ == "__main__":
    main()
