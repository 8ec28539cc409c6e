"""Answers a file of prompts with actors of Ray Data, each with a model of its own.

    python ray_prompts.py smollm2-135m-instruct prompts.jsonl answers/ 2 482344960 1024

The last three are the actors, the bytes of one, and its context, as `edge-rt plan --machines` gives them.

Every line of the file is {"prompt": "..."}; the answers are JSON lines again, in the folder.
"""

from __future__ import annotations

import sys

import ray

from edge_rt.ray_workers import SLOTS, Answerer

CPUS = 1
"""Of an actor, from the same plan."""


def main(model: str, prompts: str, answers: str, actors: str, memory: str = "629145600", ctx: str = "") -> None:
    """Read, answer, write."""
    load = {"ctx": int(ctx)} if ctx else {}
    # The actors may take every CPU, so that what reads and writes must do without one of its own.
    dataset = ray.data.read_json(prompts, lines=True, num_cpus=0)
    dataset.map_batches(
        Answerer,
        fn_constructor_kwargs={"model": model, "options": {"max_tokens": 64, "temperature": 0}, "load": load},
        compute=ray.data.ActorPoolStrategy(size=int(actors)),
        num_cpus=CPUS,
        memory=int(memory),
        # The last answers of a batch leave slots empty, and a worker that dies takes its batch with it.
        batch_size=8 * SLOTS,
    ).write_json(answers, ray_remote_args={"num_cpus": 0})


if __name__ == "__main__":
    main(*sys.argv[1:])
