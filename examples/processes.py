"""Several answers at the same time: a model runs one generation at a time, so every process loads one of its own.

Run: python examples/processes.py [MODEL]
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import edge_rt

PROCESSES = 2
QUESTIONS = ("Name a fruit.", "Name a colour.", "word " * 10_000, "Name an animal.")
loaded: list[edge_rt.Model] = []


def begin(name: str, memory: str) -> None:
    """Load the model of this process; the processes share the memory and the CPUs of the machine."""
    loaded.append(edge_rt.load(name, memory=memory, threads=max(1, multiprocessing.cpu_count() // PROCESSES)))


def ask(question: str) -> str:
    """Answer one question."""
    return loaded[0].generate([{"role": "user", "content": question}], max_tokens=20, temperature=0).text


def main() -> None:
    """Ask all questions; one that cannot be answered does not disturb the others."""
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
    # Not with "fork": a model cannot be used in a forked child.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, spawn, initializer=begin, initargs=(name, "400MiB")) as pool:
        for question, answer in [(question, pool.submit(ask, question)) for question in QUESTIONS]:
            try:
                print(f"{question[:20]!r}: {answer.result()!r}")
            except edge_rt.ContextOverflow as error:
                print(f"{question[:20]!r}: {error}")


if __name__ == "__main__":
    main()
