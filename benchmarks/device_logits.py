"""Compares a portable package's logits on a device with those on the CPU, and says which nodes the CPU computes.

    python benchmarks/device_logits.py PACKAGE [--device webgpu] [--rows 7]

The exit code is 1 if the error is above the limit, or a node is left to the CPU.
On a machine without a GPU: SwiftShader,
as ``docs/devices.md`` says.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import edge_rt
from edge_rt.ort.providers import placement
from edge_rt.package.reader import open_package
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.system.process_memory import read_memory

LIMITS = {"int8": 0.08, "float": 1e-4}
"""Kind of activations -> largest error of the logits, relative to their root mean square."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("--device", default="webgpu")
    parser.add_argument("--rows", type=int, default=7, help="tokens of the first pass; two more passes follow")
    given = parser.parse_args()
    package = open_package(given.package)
    nodes = placement(package, LoadOptions(device=given.device).device_name).nodes
    left = [f"{node.name} ({node.operator})" for node in nodes if node.is_on_cpu]
    print(f"{len(nodes)} nodes, on the CPU: {', '.join(left) or 'none'}")
    found = {device: _logits(given.package, device, given.rows) for device in ("cpu", given.device)}
    expected, other = found["cpu"], found[given.device]
    error = float(np.sqrt(((other - expected) ** 2).mean() / (expected**2).mean()))
    same = int((other.argmax(1) == expected.argmax(1)).sum())
    print(f"error of the logits {100 * error:.3f} %, the same likeliest token in {same} of {len(expected)} rows")
    return int(bool(left) or error > LIMITS[package.manifest.activations])


def _logits(package: Path, device: str, rows: int) -> np.ndarray:
    """Return float32 ``[rows + 3, vocabulary]``: a first pass, and two behind it."""
    with edge_rt.load(package, device=device, ctx=128, spec="off") as model:
        vocabulary = model.package.manifest.model.vocab_size
        ids = [(5 + 4001 * place) % vocabulary for place in range(rows + 3)]
        result = []
        with model.passes() as (runner, _):
            for start, end in ((0, rows), (rows, rows + 1), (rows + 1, rows + 3)):
                result.append(runner.forward(ids[start:end], start, end - start).logits.copy())
        memory = read_memory()
        print(f"{device}: {memory.private_bytes >> 20} MiB private, {memory.file_bytes >> 20} MiB of mapped files")
    return np.concatenate(result)


if __name__ == "__main__":
    sys.exit(main())
