"""Answers a file of prompts with actors of Ray Data, each with a model of its own.

    python ray_prompts.py smollm2-135m-instruct prompts.jsonl answers/ 2

Every line of the file is {"prompt": "..."}; the answers are JSON lines again, in the folder.
"""

from __future__ import annotations

import sys

import ray

from edge_rt.ray_workers import SLOTS, Answerer

CPUS, MEMORY = 1, 600 << 20
"""Of an actor, as `edge-rt plan --machines` gives them for your machines."""


def main(model: str, prompts: str, answers: str, actors: str) -> None:
    """Read, answer, write."""
    # The actors may take every CPU, so that what reads and writes must do without one of its own.
    dataset = ray.data.read_json(prompts, lines=True, num_cpus=0)
    dataset.map_batches(
        Answerer,
        fn_constructor_kwargs={"model": model, "options": {"max_tokens": 64, "temperature": 0}},
        compute=ray.data.ActorPoolStrategy(size=int(actors)),
        num_cpus=CPUS,
        memory=MEMORY,
        # The last answers of a batch leave slots empty, and a worker that dies takes its batch with it.
        batch_size=8 * SLOTS,
    ).write_json(answers, ray_remote_args={"num_cpus": 0})


if __name__ == "__main__":
    main(*sys.argv[1:])
