"""Answers a question about files: as many of their paragraphs as the context has room for, counted in tokens.

Run: python examples/fit_documents.py MODEL QUESTION FILE...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import edge_rt

ANSWER_TOKENS = 100


def relevant(paragraph: str, question: str) -> int:
    """Return how many words of a question a paragraph has: a stand-in for a search that deserves the name."""
    return len(set(paragraph.lower().split()) & set(question.lower().split()))


def messages_of(question: str, paragraphs: Sequence[str]) -> list[edge_rt.Message]:
    """Return the prompt."""
    text = "\n\n".join(paragraphs)
    return [{"role": "user", "content": f"{text}\n\nAnswer from the text above: {question}"}]


def fitted(model: edge_rt.Model, question: str, paragraphs: Sequence[str]) -> list[edge_rt.Message]:
    """Return the prompt with the best paragraphs that leave room for an answer."""
    room = model.context_tokens - ANSWER_TOKENS - model.count_tokens(messages_of(question, []))
    taken: list[str] = []
    for paragraph in sorted(paragraphs, key=lambda text: relevant(text, question), reverse=True):
        tokens = len(model.encode(f"{paragraph}\n\n"))
        if tokens <= room:
            taken.append(paragraph)
            room -= tokens
    # Cut at other places, a text may have a few tokens more than its parts have together: the whole decides.
    while taken and model.count_tokens(messages_of(question, taken)) + ANSWER_TOKENS > model.context_tokens:
        taken.pop()
    return messages_of(question, taken)


def main() -> None:
    """Read the files, choose, ask."""
    name, question, *files = sys.argv[1:]
    paragraphs = [part for file in files for part in Path(file).read_text(encoding="utf-8").split("\n\n") if part]
    with edge_rt.load(name, pull=True) as model:
        messages = fitted(model, question, paragraphs)
        print(f"{model.count_tokens(messages)} of {model.context_tokens} tokens", file=sys.stderr)
        for event in model.stream(messages, max_tokens=ANSWER_TOKENS, temperature=0):
            print(event.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
