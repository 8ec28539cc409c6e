"""Does the tasks of compare_llama_cpp.py with llama.cpp's low-level calls; needs llama-cpp-python, not edge-rt."""

from __future__ import annotations

import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np

DEPTH = 100
PASSES = 20
BATCH = 512


class Llama:
    """A model and a context of 2048 tokens; weights that are not packed anew stay in the mapped file."""

    def __init__(self, path: str, threads: int, *, is_repacked: bool = True) -> None:
        options = llama_cpp.llama_model_default_params()
        options.use_extra_bufts = is_repacked
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), options)
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 2048, BATCH, BATCH
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, tokens: list[int], start: int, wanted: int) -> np.ndarray:
        """Compute tokens and return the most likely token behind each of the last ``wanted``."""
        count = len(tokens)
        self.batch.n_tokens = count
        for i, token in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i] = token, start + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
            self.batch.logits[i] = int(i >= count - wanted)
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            sys.exit("llama_decode failed")
        return np.array([self._logits(i).argmax() for i in range(count - wanted, count)])

    def _logits(self, index: int) -> np.ndarray:
        pointer = llama_cpp.llama_get_logits_ith(self.context, index)
        return np.ctypeslib.as_array(pointer, (self.vocabulary,))

    def clear(self) -> None:
        """Forget all tokens."""
        llama_cpp.llama_memory_clear(self.memory, True)

    def keeps(self, count: int) -> bool:
        """Forget all but the first ``count`` tokens; False: the model has a state that cannot be cut back."""
        return bool(llama_cpp.llama_memory_seq_rm(self.memory, 0, count, -1))


def run(task: str, rng: np.random.Generator, llama: Llama) -> float:
    def ids(count: int) -> list[int]:
        return [int(i) for i in rng.integers(17, llama.vocabulary, count)]

    llama.clear()
    if task.startswith("pp"):
        tokens = ids(int(task[2:]))
        started = time.perf_counter()
        llama.decode(tokens, 0, 1)
        return time.perf_counter() - started
    if task.startswith("tg"):
        token = ids(1)[0]
        started = time.perf_counter()
        for position in range(int(task[2:])):
            token = int(llama.decode([token], position, 1)[0])
        return time.perf_counter() - started
    prompt = ids(DEPTH)
    llama.decode(prompt, 0, 1)
    rows = int(task[4:])
    samples = []
    for _ in range(PASSES):
        if not llama.keeps(DEPTH):
            llama.clear()
            llama.decode(prompt, 0, 1)
        tokens = ids(rows)
        started = time.perf_counter()
        llama.decode(tokens, DEPTH, rows)
        samples.append(time.perf_counter() - started)
    return float(np.median(samples))


def quantise(source: str, target: str) -> None:
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    parameters.allow_requantize = True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)) != 0:
        sys.exit("llama_model_quantize failed")


def main() -> None:
    silence = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    if sys.argv[1] == "--quantise":
        quantise(sys.argv[2], sys.argv[3])
        return
    llama = Llama(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"llama_cpp_python": llama_cpp.__version__, "threads": int(sys.argv[2])}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        rng = np.random.default_rng(request["seed"])
        print(json.dumps({"seconds": run(request["task"], rng, llama)}), flush=True)


if __name__ == "__main__":
    main()
