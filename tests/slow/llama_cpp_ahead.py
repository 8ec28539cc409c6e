"""Logits of blocks that predict ahead, by llama.cpp: ``python llama_cpp_ahead.py FOLDER``.

Reads every ``*.gguf`` of the folder with the token ids in its ``.tokens.npy`` and those of further steps in its
``.drafted.npy``, and writes ``.ahead.npy``, float32 [1 + further steps, vocabulary]: the model reads all tokens but the
last one, the block each state and the token behind it, all in float32 and without flash attention. Needs
llama-cpp-python (0.3.36 was used) and numpy, nothing of this repository. What states are asked with is in llama.cpp's
headers for extensions, without names of C.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as c

CONTEXT = 256
library = c._lib
keep_states = library._Z26llama_set_embeddings_nextnP13llama_contextbb
keep_states.argtypes, keep_states.restype = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool], None
state_at = library._Z30llama_get_embeddings_nextn_ithP13llama_contexti
state_at.argtypes, state_at.restype = [ctypes.c_void_p, ctypes.c_int32], ctypes.POINTER(ctypes.c_float)


def opened(model, kind):
    settings = c.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = CONTEXT
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = 0
    settings.flash_attn_type = c.LLAMA_FLASH_ATTN_TYPE_DISABLED
    settings.ctx_type = kind
    context = c.llama_init_from_model(model, settings)
    if not context:
        raise SystemExit("llama.cpp opens no such context")
    keep_states(context, True, kind == c.LLAMA_CONTEXT_TYPE_MTP)
    return context


def decoded(context, token_ids, first, states=None, *, logits=True):
    """Run tokens at positions from ``first`` on, with the states before them; the last one may have logits."""
    batch = c.llama_batch_init(len(token_ids), 0, 1)
    if states is not None:
        held = np.ascontiguousarray(states, np.float32)
        batch.embd = held.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    for row, token in enumerate(token_ids):
        batch.token[row], batch.pos[row] = token, first + row
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
        batch.logits[row] = logits and row == len(token_ids) - 1
    batch.n_tokens = len(token_ids)
    code = c.llama_decode(context, batch)
    # It is not llama.cpp's.
    batch.embd = None
    c.llama_batch_free(batch)
    if code:
        raise SystemExit(f"llama_decode: {code}")


llama_cpp.llama_backend_init()
for path in sorted(Path(sys.argv[1]).glob("*.gguf")):
    settings = c.llama_model_default_params()
    settings.load_mtp = True
    model = c.llama_model_load_from_file(str(path).encode(), settings)
    if not model:
        print(f"{path.name}: not loaded", file=sys.stderr)
        continue
    width, size = c.llama_model_n_embd_out(model), c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    tokens, drafted = (np.load(path.with_suffix(f".{kind}.npy")).tolist() for kind in ("tokens", "drafted"))
    target, block = (opened(model, kind) for kind in (c.LLAMA_CONTEXT_TYPE_DEFAULT, c.LLAMA_CONTEXT_TYPE_MTP))
    count, found = len(tokens) - 1, []
    decoded(target, tokens[:-1], 0)
    states = np.array([np.ctypeslib.as_array(state_at(target, row), (width,)) for row in range(count)])
    # As in its own drafts, a row whose logits and state are wanted is alone.
    decoded(block, tokens[1:-1], 0, states[:-1], logits=False)
    states = states[-1:]
    for step, token in enumerate((tokens[-1], *drafted)):
        decoded(block, [token], count - 1 + step, states)
        found.append(np.ctypeslib.as_array(c.llama_get_logits_ith(block, -1), (size,)).copy())
        states = np.ctypeslib.as_array(state_at(block, 0), (1, width)).copy()
    np.save(path.with_suffix(".ahead.npy"), np.array(found, np.float32))
