"""Answers prompts with llama.cpp for answer_speed.py, plainly or with its prompt lookup; needs llama-cpp-python."""

from __future__ import annotations

import json
import sys
import time

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

CONTEXT = 4096


def main() -> None:
    path, threads, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    draft = LlamaPromptLookupDecoding(num_pred_tokens=10) if mode == "lookup" else None
    llama = llama_cpp.Llama(path, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, draft_model=draft,
                            logits_all=draft is not None, verbose=False)  # fmt: skip
    print(json.dumps({"llama_cpp_python": llama_cpp.__version__, "mode": mode}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        llama.reset()
        ids: list[int] = []
        first = last = 0.0
        started = time.perf_counter()
        for token in llama.generate(request["prompt"], temp=0.0, top_k=1, repeat_penalty=1.0):
            last = time.perf_counter()
            first = first or last
            ids.append(token)
            if token in request["ends"] or len(ids) >= request["max_tokens"]:
                break
        print(json.dumps({"ids": ids, "first_ms": 1e3 * (first - started), "ms": 1e3 * (last - first)}), flush=True)


if __name__ == "__main__":
    main()
