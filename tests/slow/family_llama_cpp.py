"""Compares the GGUF files of the family cases with what llama.cpp computes from them.

``--python`` is the interpreter of an environment that has llama-cpp-python::

    python -m tests.slow.family_llama_cpp --python llama-venv/bin/python --only qwen3 llama
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from tests.helpers.family_cases import CASES, load_case, write_gguf

WORKER = Path(__file__).with_name("llama_cpp_logits.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--python", required=True, help="interpreter that has llama-cpp-python")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--limit", type=float, default=1e-3, help="largest difference over the largest logit")
    parser.add_argument("--type", default="F32", help="ggml type of the matrices")
    arguments = parser.parse_args()
    cases = {name: load_case(name) for name in arguments.only}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases.values():
            if case.gguf is None:
                write_gguf(folder / f"{case.name}.gguf", case, weight_type=arguments.type)
                np.save(folder / f"{case.name}.tokens.npy", case.tokens)
        subprocess.run([arguments.python, str(WORKER), str(folder)], check=True)
        found = {path.name.split(".")[0]: np.load(path) for path in folder.glob("*.logits.npy")}
    failed = []
    for case in cases.values():
        if case.gguf is not None:
            print(f"{case.name:22} no file: {case.gguf}")
            continue
        if case.name not in found:
            print(f"{case.name:22} not loaded")
            failed.append(case.name)
            continue
        error = float(np.abs(found[case.name] - case.logits).max() / np.abs(case.logits).max())
        print(f"{case.name:22} {error:.1e}")
        if not error <= arguments.limit:
            failed.append(case.name)
    if failed:
        raise SystemExit(f"beyond {arguments.limit:.0e}: {', '.join(failed)}")


if __name__ == "__main__":
    main()
