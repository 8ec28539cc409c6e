"""Whether answers to a newcomer's first prompts end, or go round in circles until the context is full.

Every prompt is answered once per seed and setting, through the chat template, without a limit of tokens, in a context
of 2,048 tokens: the default context is four times as long, and to fill it would take as much longer and tell no more.

An answer *loops* if it filled the context, or if its end repeats itself. The end is the last 120 words, with digits
replaced, so that a counter hides nothing; it repeats itself if there are at least 40 words and 60 % of them lie in runs
of 6 words that occur at least 4 times in the answer. The measure looks at words and was not made from the rule of the
repetition guard, which looks at tokens.

    python benchmarks/first_answers.py answer --model MODEL --out answers.jsonl --setting default \
        --setting '{"temperature": 0.2, "top_p": 0.9}'
    python benchmarks/first_answers.py report answers.jsonl [--samples 5]

``default`` is what the model and this version of edge-rt do without options, with the repetition guard;
``"repetition_guard": false`` in a setting switches it off. Answers that the file holds already are not made again.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

PROMPTS: Final = Path(__file__).parent / "first_prompts.jsonl"
CONTEXT: Final = 2048
TAIL_WORDS: Final = 120
LEAST_WORDS: Final = 40
RUN_WORDS: Final = 6
LEAST_COPIES: Final = 4
LEAST_SHARE: Final = 0.6

Record = dict[str, Any]


def repeats_itself(text: str) -> bool:
    """Tell whether the end of a text is made of runs of words that occur again and again."""
    words = re.sub(r"\d+", "0", text).split()
    runs = [tuple(words[at : at + RUN_WORDS]) for at in range(len(words) - RUN_WORDS + 1)]
    copies = Counter(runs)
    begin = max(0, len(words) - TAIL_WORDS)
    covered = {
        at + offset
        for at, run in enumerate(runs)
        if copies[run] >= LEAST_COPIES
        for offset in range(RUN_WORDS)
        if at + offset >= begin
    }
    length = len(words) - begin
    return length >= LEAST_WORDS and len(covered) >= LEAST_SHARE * length


def loops(record: Record) -> bool:
    """Tell whether an answer loops, as defined above."""
    return record["finish_reason"] == "context_full" or repeats_itself(record["text"])


def read_records(path: Path) -> list[Record]:
    """Return the answers in a file; none if there is none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def answer(model_name: str, prompts: Path, out: Path, settings: list[str], seeds: int, threads: int | None) -> None:
    """Answer every prompt that the file has no answer for yet."""
    import edge_rt

    known = {(one["setting"], one["prompt"], one["seed"]) for one in read_records(out)}
    questions = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
    with edge_rt.load(model_name, ctx=CONTEXT, threads=threads) as model, out.open("a", encoding="utf-8") as stream:
        for setting in settings:
            options = {} if setting == "default" else json.loads(setting)
            for question in questions:
                for seed in range(seeds):
                    if (setting, question["prompt"], seed) in known:
                        continue
                    result = model.generate([{"role": "user", "content": question["prompt"]}], seed=seed, **options)
                    record = {
                        "setting": setting,
                        **question,
                        "seed": seed,
                        "finish_reason": result.finish_reason,
                        "token_ids": result.token_ids,
                        "text": result.text,
                    }
                    stream.write(json.dumps(record, ensure_ascii=False) + "\n")
                    stream.flush()


def report(path: Path, samples: int) -> None:
    """Print a table of settings, and the first answers of each that loop, cut to their ends."""
    records = read_records(path)
    columns = ("answers", "loop", "share", "context full", "cut", "tokens")
    print(f"| setting | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for setting in dict.fromkeys(one["setting"] for one in records):
        mine = [one for one in records if one["setting"] == setting]
        ends = Counter(one["finish_reason"] for one in mine)
        looping = [one for one in mine if loops(one)]
        tokens = sum(len(one["token_ids"]) for one in mine) / len(mine)
        cells = [len(mine), len(looping), f"{len(looping) / len(mine):.1%}", ends["context_full"], ends["repetition"]]
        print(f"| {setting} | {' | '.join(map(str, cells))} | {tokens:.0f} |")
        for one in looping[:samples]:
            print(f"\n  {one['prompt']} (seed {one['seed']}, {one['finish_reason']}): ...{one['text'][-160:]!r}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    answering = verbs.add_parser("answer")
    answering.add_argument("--model", default="smollm2-135m-instruct")
    answering.add_argument("--prompts", type=Path, default=PROMPTS)
    answering.add_argument("--out", type=Path, required=True)
    answering.add_argument("--setting", action="append", default=[], help="default, or a JSON object of options")
    answering.add_argument("--seeds", type=int, default=3)
    answering.add_argument("--threads", type=int, help="the answers are the same with any number")
    reporting = verbs.add_parser("report")
    reporting.add_argument("answers", type=Path)
    reporting.add_argument("--samples", type=int, default=0)
    args = parser.parse_args()
    if args.verb == "answer":
        answer(args.model, args.prompts, args.out, args.setting or ["default"], args.seeds, args.threads)
    else:
        report(args.answers, args.samples)


if __name__ == "__main__":
    main()
