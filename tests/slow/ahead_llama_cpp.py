"""Compares the first steps of blocks that predict ahead, of GGUF files, with what llama.cpp computes from them.

``--python`` is the interpreter of an environment that has llama-cpp-python::

    python -m tests.slow.ahead_llama_cpp --python llama-venv/bin/python
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_rt.export import export_model
from tests.helpers.ahead_models import OpenedPair, write_ahead_gguf
from tests.helpers.family_cases import load_case

WORKER = Path(__file__).with_name("llama_cpp_ahead.py")
CASES = ("qwen3_5_epsilon", "qwen3_5_moe", "qwen3_next")
"""Their epsilon of keys and queries is that of norms, as llama.cpp has it, which also ends without layers of states."""
TOKENS, DRAFTED = 31, [17, 5, 90]


def as_it_reads(case):
    """Return a case as llama.cpp reads it: heads of one size in a delta rule, and experts in all layers if in any."""
    config = case.config
    keys, heads, size, old = (config[f"linear_{key}"] for key in
                              ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))  # fmt: skip
    keys, values, before = 2 * keys * size, heads * size, heads * old
    changed = {before: values, keys + before: keys + values, keys + 2 * before: keys + 2 * values, old: size}
    shapes = {
        name: tuple(changed.get(rows, rows) for rows in shape) if "linear_attn" in name else shape
        for name, shape in case.shapes.items()
    }
    changes = {"linear_value_head_dim": size}
    if case.name == "qwen3_next":
        like, plain = "model.layers.0.mlp.", "model.layers.1.mlp."
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith(plain)}
        shapes |= {name.replace(like, plain): shape for name, shape in shapes.items() if name.startswith(like)}
        changes["mlp_only_layers"] = []
    return replace(case, shapes=shapes, config={**config, **changes})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--python", required=True, help="interpreter that has llama-cpp-python")
    parser.add_argument("--limit", type=float, default=1e-4, help="largest difference over the largest logit")
    arguments = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as name:
        folder, tokens = Path(name), np.random.default_rng(0).integers(3, 264, TOKENS)
        for case in CASES:
            write_ahead_gguf(folder / f"{case}.gguf", as_it_reads(load_case(case)))
            np.save(folder / f"{case}.tokens.npy", tokens)
            np.save(folder / f"{case}.drafted.npy", np.array(DRAFTED))
        subprocess.run([arguments.python, str(WORKER), str(folder)], check=True)
        for case in CASES:
            theirs = folder / f"{case}.ahead.npy"
            if not theirs.exists():
                print(f"{case:20} not loaded")
                failed.append(case)
                continue
            package = folder / case
            export_model(folder / f"{case}.gguf", package, profile="native", weights="f32", calibration=None)
            opened, wanted = OpenedPair(package, "f32"), np.load(theirs)
            opened.know(tokens.tolist())
            ours = np.array([opened.logits(DRAFTED[:count]) for count in range(1 + len(DRAFTED))])
            errors = np.abs(ours - wanted).max(axis=1) / np.abs(wanted).max(axis=1)
            print(f"{case:20} {' '.join(f'{error:.1e}' for error in errors)}")
            if not errors.max() <= arguments.limit:
                failed.append(case)
    if failed:
        raise SystemExit(f"beyond {arguments.limit:.0e}: {', '.join(failed)}")


if __name__ == "__main__":
    main()
