"""Speculation in long sessions: drafting's share behind a long document, and memory over many turns.

    python benchmarks/long_sessions.py --package PACKAGE --prompts question.jsonl --turns 200

The document is made of the prompts' own texts; questions about it are answered behind all of it. Then a chat goes on
for many turns, begun anew whenever the context is nearly full; what the drafters hold and the resident memory are
noted on the way.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import psutil

import edge_rt

ANSWER_TOKENS = 256
TURN_TOKENS = 48
SAMPLED = {"temperature": 0.8, "top_k": 0, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.0}
DOCUMENT_TOKENS = 7600


def document(model: edge_rt.Model, texts: list[str]) -> str:
    """Return texts that fill the context but for a question and its answer."""
    parts: list[str] = []
    size = 0
    for text in sorted(texts, key=len, reverse=True):
        size += len(model.tokenizer.encode_prompt(text))
        if size > DOCUMENT_TOKENS:
            break
        parts.append(text)
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    texts = [json.loads(line)["turns"][0] for line in args.prompts.read_text(encoding="utf-8").splitlines()]
    model = edge_rt.load(args.package, threads=args.threads, ctx=8192)

    text = document(model, texts)
    for question in ("Summarize the texts above.", "Which people are named above?", "What is the last text about?"):
        result = model.generate(
            [{"role": "user", "content": f"{text}\n\n{question}"}], temperature=0.0, max_tokens=ANSWER_TOKENS
        )
        assert result.spec is not None, "the package does not speculate"
        spec, usage = result.spec, result.usage
        print(
            f"document: {usage.prompt_tokens} prompt tokens, {usage.completion_tokens} answered, "
            f"{spec.tokens_per_step:.2f} tokens a step, drafting {100 * spec.drafting_share:.1f} % of it, "
            f"drafters hold {spec.memory_bytes / 2**20:.1f} MiB"
        )

    process = psutil.Process()
    chat = model.chat()
    held = 0
    for turn in range(1, args.turns + 1):
        if held > 7000:
            chat = model.chat()
        result = chat.send(texts[turn * 7 % len(texts)][:400], **SAMPLED, seed=turn, max_tokens=TURN_TOKENS)
        held = result.usage.total_tokens
        if turn in (1, 2, 5, 10, 20) or turn % 25 == 0:
            print(
                f"turn {turn}: drafters hold {model.speculation.memory_bytes / 2**20:.2f} MiB, "
                f"resident {process.memory_info().rss / 2**20:.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
