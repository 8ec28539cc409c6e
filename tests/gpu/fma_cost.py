"""What fused multiply-adds cost that are computed in integers, as a ratio: passes with them, and with the driver's own.

    python -m tests.gpu.fma_cost LIBRARY OPS SPIRV

Runs on the first Vulkan device. Where its ``fma`` is the CPU's there is nothing to compare. Two processes take turns,
one with the kernels as they are, one with kernels that are told that nothing is wrong with the device's operations, and
so give other bits. Time is that of the processors, of all threads: kernels of a software device run there, and it says
the same on a machine that is busy. The median of the rounds.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from tools import spirv

ROUNDS = 5
SHAPE = {"layers": 1, "hidden": 512, "heads": 8, "kv_heads": 2, "ffn": 1024}
TYPES = {"codes": "Q4_0", "floats": "F16"}  # of which products are sums of integers, and of floats
PASSES = {"a row behind 200": (1, 200), "16 rows behind 200": (16, 200)}
KV_FORMAT = "int8"
DECORATE, SPEC_ID, MENDED, NOBODY = 71, 1, 1, 99  # of the SPIR-V specification; a constant that no host sets


def trusting(code: bytes) -> bytes:
    """Return a kernel whose ``mended`` is what the source says: nothing."""
    made = [
        (*words[:3], NOBODY) if words[0] & 0xFFFF == DECORATE and words[2:] == (SPEC_ID, MENDED) else words
        for words in spirv.instructions(code)
    ]
    words = [word for one in made for word in one]
    return code[:20] + struct.pack(f"<{len(words)}I", *words)


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def case_answer(gpu) -> None:
    """For every line of standard input, a number of runs, print the processor's seconds of each pass."""
    from tests.gpu.package_worker import Model, built

    with contextlib.ExitStack() as kept:
        runs = {}
        for weights, kind in TYPES.items():
            model = Model(gpu, kept.enter_context(built(**SHAPE, weight_type=kind)), KV_FORMAT)
            for name, (rows, past) in PASSES.items():
                runs[f"{weights}, {name}"] = partial(model.run, [1] * rows, past, range(-1, rows - 1), [0])
        for run in runs.values():
            run()
        for line in sys.stdin:
            found = {}
            for name, run in runs.items():
                before = processor_seconds()
                for _ in range(int(line)):
                    run()
                found[name] = (processor_seconds() - before) / int(line)
            print(json.dumps(found), flush=True)


class Child:
    """A process with kernels of its own."""

    def __init__(self, library: str, ops: str, kernels: Path):
        command = [sys.executable, "-m", "tests.gpu.fma_cost", "answer", library, ops, str(kernels)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, runs: int) -> dict[str, float]:
        self._process.stdin.write(f"{runs}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    library, ops, kernels = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for path in Path(kernels).glob("*.spv"):
            code = path.read_bytes()
            Path(folder, path.name).write_bytes(code if path.stem.startswith("self_test") else trusting(code))
        children = Child(library, ops, Path(kernels)), Child(library, ops, Path(folder))
        found = [[child.measure(10) for child in children] for _ in range(ROUNDS)]
        for child in children:
            child.end()
    for name in found[0][0]:
        mended, plain = (np.array([one[i][name] for one in found]) for i in (0, 1))
        ratio = mended / plain
        times = f"{statistics.median(mended) * 1000:.1f} and {statistics.median(plain) * 1000:.1f} ms of processors"
        print(f"{name}: {times}, {statistics.median(ratio):.2f} times ({min(ratio):.2f} to {max(ratio):.2f})")
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "answer":
        from tests.gpu.emulated import main as run_cases

        run_cases(globals())
    else:
        sys.exit(main())
