"""Answers prompts with onnxruntime-genai for answer_speed.py, plainly or with its n-gram drafts.

The model is a folder that genai_model.py wrote.
"""

from __future__ import annotations

import json
import sys
import time

import onnxruntime_genai as genai

CONTEXT = 4096
NGRAM, DRAFT = 3, 10
"""Tokens that have to come again, and the most drafted behind them: as many as llama.cpp's worker drafts."""


def answer(model: genai.Model, request: dict, mode: str) -> dict:
    """Return the tokens of an answer, its first end among them, and milliseconds to the first token and from there."""
    prompt = request["prompt"]
    parameters = genai.GeneratorParams(model)
    limit = len(prompt) + request["max_tokens"]
    parameters.set_search_options(do_sample=False, max_length=min(CONTEXT, limit), repetition_penalty=1.0)
    if mode == "lookup":
        parameters.set_speculative_options(ngram_size=NGRAM, max_draft_tokens=DRAFT)
    generator = genai.Generator(model, parameters)
    started = time.perf_counter()
    generator.append_tokens(prompt)
    ids: list[int] = []
    first = last = 0.0
    while not generator.is_done() and len(ids) < request["max_tokens"]:
        generator.generate_next_token()
        last = time.perf_counter()
        first = first or last
        ids.append(int(generator.get_next_tokens()[0]))
        if ids[-1] in request["ends"]:
            break
    return {"ids": ids, "first_ms": 1e3 * (first - started), "ms": 1e3 * (last - first)}


def main() -> None:
    folder, threads, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    config = genai.Config(folder)
    options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = genai.Model(config)
    print(json.dumps({"onnxruntime_genai": genai.__version__, "mode": mode}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(model, json.loads(line), mode)), flush=True)


if __name__ == "__main__":
    main()
