"""Compile all GPU kernels for every architecture, and read what the compiler made of them.

    python -m tests.gpu.compile_kernels [--jobs 2] [75 80 ...]

Needs NVIDIA's run-time compiler, cuobjdump and nvdisasm: ``pip install nvidia-cuda-nvrtc nvidia-cuda-cuobjdump
nvidia-cuda-nvdisasm``. Takes half a minute of one CPU for each architecture; no GPU.

What is a fault, and ends the script with 1:

- memory for registers that were spilled, or a stack;
- a block that does not fit a multiprocessor: 65,536 registers, 48 KiB of shared memory;
- an approximate function: of the special-function unit a kernel may use the reciprocal, where a step of Newton follows,
  as in division, and the reciprocal square root, where one follows, as in square roots;
- that a product and a sum in the source become one operation, or that this script misses an approximate exponential:
  two small kernels of its own ask that.

It does not check that every FFMA is one that the source asks for: divisions are made of them, too.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from edge_rt.device.kernels import Nvrtc, include_folders, kernel_files

SOURCES = Path(__file__).parents[2] / "csrc"
COMPUTES = (75, 80, 86, 87, 89, 90, 110, 120)
REGISTERS, SHARED = 65536, 48 << 10
REACH = 80
"""Instructions behind a special function in which the step of Newton must lie: others are scheduled in between."""

PROBE = """
extern "C" __global__ void contracted(float* x) { x[0] = x[1] * x[2] + x[3]; }
extern "C" __global__ void approximate(float* x) { x[0] = __expf(x[1]); }
extern "C" __global__ void divided(float* x) { x[0] = __fdividef(x[1], x[2]); }
"""


@dataclass
class Kernel:
    """What a cubin says about a kernel.

    Attributes:
        threads: of its launch bounds.
        resources: registers of a thread, bytes of stack, of local and of static shared memory.
        code: its instructions.
    """

    name: str
    threads: int = 0
    resources: dict[str, int] = field(default_factory=dict)
    code: list[str] = field(default_factory=list)


def find_tool(name: str) -> str:
    """Return the path of one of CUDA's programs, out of a wheel or the PATH."""
    for folder in map(Path, sys.path):
        for found in sorted(folder.glob(f"nvidia/*/bin/{name}"), reverse=True):
            return str(found)
    if found := shutil.which(name):
        return found
    raise SystemExit(f"{name} is missing: pip install nvidia-cuda-{name}")


def read_cubin(cubin: bytes, cuobjdump: str) -> list[Kernel]:
    """Return the kernels of a cubin, in order of their names."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, elf, sass = (
            subprocess.run([cuobjdump, option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("--dump-resource-usage", "-elf", "-sass")
        )
    kernels: dict[str, Kernel] = {}
    for name, line in re.findall(r"Function (\w+):\s*\n(.*)", usage):
        numbers = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", line)}
        kernels[name] = Kernel(name, resources=numbers)
    for name, section in re.findall(r"^\.nv\.info\.(\w+)\n(.*?)(?=^\.\w|\Z)", elf, re.MULTILINE | re.DOTALL):
        if bounds := re.search(r"EIATTR_MAX_THREADS\s.*?Value:\s*(0x[0-9a-f]+)", section, re.DOTALL):
            kernels[name].threads = int(bounds[1], 16)
    for section in sass.split("Function : ")[1:]:
        name, _, rest = section.partition("\n")
        kernels[name.strip()].code = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", rest)
    return [kernels[name] for name in sorted(kernels)]


def _names(instruction: str, operand: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(operand)}(?!\w)", instruction) is not None


def _is_refined(kind: str, register: str, source: str, behind: list[str]) -> bool:
    """Tell whether what follows makes an approximate result exact, or takes it for an integer."""
    for instruction in behind:
        opcode = instruction.split()[1 if instruction.startswith("@") else 0]
        # The upper half of a pair, which goes by the name of the lower one.
        if kind == "RCP64H" and opcode.startswith("DFMA") and _names(instruction, f"R{int(register[1:]) - 1}"):
            return True
        if not _names(instruction, register):
            continue
        # What the product of both lacks of 1.
        if kind == "RCP" and opcode.startswith("FFMA") and (_names(instruction, source) or instruction.endswith(", 1")):
            return True
        # Of integers: the estimate becomes one, and is put right by multiplying back.
        if kind == "RCP" and re.search(r"0x1?f+e\b", instruction) and opcode.startswith(("IADD", "VIADD", "IMAD")):
            return True
        if kind == "RSQ" and opcode.startswith("FMUL.FTZ") and instruction.endswith(", 0.5"):
            return True
    return False


def approximate(code: list[str]) -> Iterator[str]:
    """Return the approximate instructions that are no step of a division or a square root."""
    for index, instruction in enumerate(code):
        found = re.search(r"MUFU\.(\w+)\s+(R\d+), (.*)", instruction)
        if found is None:
            continue
        kind, register, source = found.groups()
        # A root of a negative number is made as that of this constant.
        if kind == "RSQ" and source.endswith("QNAN"):
            continue
        if kind not in ("RCP", "RCP64H", "RSQ") or not _is_refined(
            kind, register, source.lstrip("-|"), code[index + 1 : index + REACH]
        ):
            yield instruction


def faults(kernel: Kernel) -> Iterator[str]:
    """Return what is wrong with a kernel."""
    spills = [line for line in kernel.code if re.search(r"\b(STL|LDL)\b", line)]
    if spills or kernel.resources["STACK"] or kernel.resources["LOCAL"]:
        yield f"{len(spills)} accesses to spilled registers, {kernel.resources['STACK']} bytes of stack"
    if kernel.threads == 0:
        yield "no launch bounds"
    if kernel.threads * kernel.resources["REG"] > REGISTERS or kernel.resources["SHARED"] > SHARED:
        yield "a block does not fit a multiprocessor"
    wrong = Counter(approximate(kernel.code))
    for instruction, count in wrong.items():
        yield f"{count} times {instruction}"


def check_probe(nvrtc: Nvrtc, compute: int, cuobjdump: str) -> Iterator[str]:
    """Return what is wrong with the compiler's options, or with this script."""
    kernels = {kernel.name: kernel for kernel in read_cubin(nvrtc.compile("probe.cu", PROBE, compute, ()), cuobjdump)}
    if any("FFMA" in line for line in kernels["contracted"].code):
        yield "a product and a sum became one operation"
    for name in ("approximate", "divided"):
        if not list(approximate(kernels[name].code)):
            yield f"the kernel {name} was not found to be"


def row_of(compute: int, kernel: Kernel) -> str:
    resources = kernel.resources
    blocks = min(REGISTERS // (max(1, resources["REG"]) * max(32, kernel.threads)), 32)
    return (
        f"sm_{compute:<4} {kernel.name:24} {kernel.threads:7} {resources['REG']:9} {resources['SHARED']:7} "
        f"{resources['LOCAL'] + resources['STACK']:7} {len(kernel.code):12} {blocks:6}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile all GPU kernels and read what the compiler made of them.")
    parser.add_argument("computes", nargs="*", type=int, default=COMPUTES, help="architectures, such as 87; all")
    parser.add_argument("--jobs", type=int, default=2, help="files that are compiled at once")
    options = parser.parse_args()
    nvrtc, cuobjdump = Nvrtc(), find_tool("cuobjdump")
    find_tool("nvdisasm")  # cuobjdump runs it
    print(f"NVRTC {nvrtc.version[0]}.{nvrtc.version[1]}")
    print(f"{'':7} {'kernel':24} threads registers  shared spilled instructions blocks by registers")

    def compile_file(work: tuple[int, Path]) -> list[Kernel]:
        compute, path = work
        return read_cubin(nvrtc.compile(path.name, path.read_text(), compute, include_folders(SOURCES)), cuobjdump)

    works = [(compute, path) for compute in options.computes for path in kernel_files(SOURCES)]
    wrong = [f"sm_{compute}: {what}" for compute in options.computes for what in check_probe(nvrtc, compute, cuobjdump)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for (compute, _), kernels in zip(works, pool.map(compile_file, works), strict=True):
            for kernel in kernels:
                print(row_of(compute, kernel), flush=True)
                wrong += [f"sm_{compute}, {kernel.name}: {what}" for what in faults(kernel)]
    print("\n".join(wrong) if wrong else "no fault")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
