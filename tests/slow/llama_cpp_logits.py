"""Logits of GGUF files by llama.cpp: ``python llama_cpp_logits.py FOLDER``.

Reads every ``*.gguf`` of the folder with the token ids in its ``.tokens.npy``, and writes ``.logits.npy``, float32
[positions, vocabulary]: one batch, in float32, with a float32 cache and without flash attention. Needs
llama-cpp-python (0.3.36 was used) and numpy, nothing of this repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

import llama_cpp
import numpy as np

CONTEXT = 256  # llama.cpp rounds up to this
GGML_TYPE_F32 = 0
OF_THE_FILE = -1.0  # the wrapper's defaults would replace what the file says

for path in sorted(Path(sys.argv[1]).glob("*.gguf")):
    try:
        model = llama_cpp.Llama(
            str(path), n_ctx=CONTEXT, logits_all=True, type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32, flash_attn=False,
            n_threads=1, n_batch=CONTEXT, n_ubatch=CONTEXT,
            yarn_beta_fast=OF_THE_FILE, yarn_beta_slow=OF_THE_FILE, yarn_attn_factor=OF_THE_FILE,
            verbose="--verbose" in sys.argv,
        )  # fmt: skip
    except ValueError as error:
        print(f"{path.name}: {error}", file=sys.stderr)
        continue
    tokens = np.load(path.with_suffix(".tokens.npy"))
    model.eval(tokens.tolist())
    np.save(path.with_suffix(".logits.npy"), np.array(model.scores[: len(tokens)], np.float32))
