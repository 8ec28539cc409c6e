"""Several sequences at once with llama.cpp's low-level calls, for batch_speed.py; needs llama-cpp-python, not edge-rt.

    python llama_cpp_batches.py MODEL.gguf THREADS SEQUENCES CONTEXT

CONTEXT is what one sequence has room for. The most likely token is taken by numpy.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np

BATCH = 512


class Llama:
    """A model and a context with room for so many sequences, each of which has keys and values of its own."""

    def __init__(self, path: str, threads: int, sequences: int, context: int) -> None:
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = context * sequences, sequences
        parameters.n_batch = parameters.n_ubatch = BATCH
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """Compute rows (token, position, sequence, whether logits are wanted); return the best token by sequence."""
        self.batch.n_tokens = len(rows)
        for i, (token, position, sequence, is_wanted) in enumerate(rows):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            self.batch.logits[i] = int(is_wanted)
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            sys.exit("llama_decode failed")
        return {sequence: self._best(i) for i, (_, _, sequence, is_wanted) in enumerate(rows) if is_wanted}

    def _best(self, row: int) -> int:
        pointer = llama_cpp.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(pointer, (self.vocabulary,)).argmax())

    def forget(self, sequence: int = -1) -> None:
        """Empty a sequence, or all."""
        llama_cpp.llama_memory_seq_rm(self.memory, sequence, -1, -1)


def speed(llama: Llama, prompts: list[list[int]], tokens: int) -> float:
    """Return tokens per second of answers together, behind their prompts."""
    llama.forget()
    last = {}
    for sequence, prompt in enumerate(prompts):
        for begin in range(0, len(prompt), BATCH):
            piece = prompt[begin : begin + BATCH]
            last |= llama.decode(
                [(token, begin + i, sequence, begin + i == len(prompt) - 1) for i, token in enumerate(piece)]
            )
    started = time.perf_counter()
    for step in range(tokens):
        last = llama.decode([(last[s], len(prompt) + step, s, True) for s, prompt in enumerate(prompts)])
    return tokens * len(prompts) / (time.perf_counter() - started)


def answers(llama: Llama, prompts: list[list[int]], tokens: int, ends: list[int], count: int) -> list[list[int]]:
    """Return the answers, so many at a time; the next prompt is computed beside the answers when one has ended."""
    llama.forget()
    given: list[list[int]] = [[] for _ in prompts]
    waiting, under_way = list(range(len(prompts))), {}
    while waiting or under_way:
        rows = [
            (given[number][-1], len(prompts[number]) + len(given[number]) - 1, sequence, True)
            for sequence, number in under_way.items()
        ]
        # As many prompts as there is room for in a pass.
        for sequence in range(count):
            if waiting and sequence not in under_way and len(prompts[waiting[0]]) <= BATCH - len(rows):
                number = waiting.pop(0)
                llama.forget(sequence)
                under_way[sequence] = number
                prompt = prompts[number]
                rows += [(token, i, sequence, i == len(prompt) - 1) for i, token in enumerate(prompt)]
        for sequence, token in llama.decode(rows).items():
            answer = given[under_way[sequence]]
            answer.append(token)
            if len(answer) == tokens or token in ends:
                del under_way[sequence]
    return given


def main() -> None:
    silence = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    path, threads, sequences, context = sys.argv[1], *map(int, sys.argv[2:])
    llama = Llama(path, threads, sequences, context)
    print(json.dumps({"llama_cpp_python": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "count" in request:
            answer = answers(llama, request["prompts"], request["tokens"], request["ends"], request["count"])
            print(json.dumps({"answers": answer}), flush=True)
        else:
            print(json.dumps({"speed": speed(llama, request["prompts"], request["tokens"])}), flush=True)


if __name__ == "__main__":
    main()
