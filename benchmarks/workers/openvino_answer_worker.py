"""Answers prompts with OpenVINO GenAI for answer_speed.py, plainly or with its prompt lookup.

It opens the GGUF file itself.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai

NGRAM, DRAFT = 3, 5
"""Tokens that have to come again at most, and the most drafted behind them."""


class Times(openvino_genai.StreamerBase):
    """Notes the tokens of an answer and the moments of its first and its last."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[int] = []
        self.first = self.last = 0.0

    def write(self, token: int | list[int]) -> openvino_genai.StreamingStatus:
        """Take the next tokens; drafts that were right come together."""
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.ids += token if isinstance(token, list) else [token]
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Do nothing: every token was written."""


def answer(pipeline: openvino_genai.LLMPipeline, request: dict, mode: str) -> dict:
    """Return the tokens of an answer and milliseconds to its first and from there."""
    options = {"max_new_tokens": request["max_tokens"], "do_sample": False, "stop_token_ids": set(request["ends"])}
    if mode == "lookup":
        options |= {"max_ngram_size": NGRAM, "num_assistant_tokens": DRAFT}
    times = Times()
    ids = openvino.Tensor(np.array([request["prompt"]], np.int64))
    started = time.perf_counter()
    pipeline.generate(ids, openvino_genai.GenerationConfig(**options), times)
    return {"ids": times.ids, "first_ms": 1e3 * (times.first - started), "ms": 1e3 * (times.last - times.first)}


def main() -> None:
    path, threads, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    properties = {"INFERENCE_NUM_THREADS": threads, **({"prompt_lookup": True} if mode == "lookup" else {})}
    pipeline = openvino_genai.LLMPipeline(path, "CPU", **properties)
    print(json.dumps({"openvino_genai": openvino_genai.__version__, "mode": mode}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(pipeline, json.loads(line), mode)), flush=True)


if __name__ == "__main__":
    main()
