"""Writes what a GGUF file's predictions lose on windows of text, as llama.cpp runs it; needs llama-cpp-python.

    python llama_cpp_losses.py MODEL.gguf WINDOWS.json LOSSES.npz

WINDOWS is a list of lists of token ids. LOSSES holds, by number of the window, the negative log-likelihood of every
token behind the first, float64 in nats.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

THREADS = 2


def main() -> None:
    path, windows, out = sys.argv[1:]
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    texts = json.loads(Path(windows).read_text(encoding="utf-8"))
    longest = max(map(len, texts))
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = longest
    parameters.n_threads = parameters.n_threads_batch = THREADS
    context = llama_cpp.llama_init_from_model(model, parameters)
    memory = llama_cpp.llama_get_memory(context)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(longest, 0, 1)
    found = {}
    for number, ids in enumerate(texts):
        llama_cpp.llama_memory_clear(memory, True)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
        if llama_cpp.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
        pointer = llama_cpp.llama_get_logits(context)
        logits = np.ctypeslib.as_array(pointer, (len(ids), vocabulary))[:-1].astype(np.float64)
        largest = logits.max(axis=1)
        total = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
        found[str(number)] = total - logits[np.arange(len(logits)), ids[1:]]
    np.savez(out, **found)


if __name__ == "__main__":
    main()
