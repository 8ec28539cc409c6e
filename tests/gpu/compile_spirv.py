"""Compile all Vulkan kernels for generations of AMD GPUs, and read what their driver made of them.

    python -m tests.gpu.compile_spirv [--spirv FOLDER] [--families navi21 ...] [--all] [--write] [KERNEL ...]

Needs no GPU: Mesa's driver compiles for devices that are not there (``tests/gpu/radv.py``). A kernel is compiled once
for the cases that its launches may choose (``Kernel::choices``: formats of weights, or of the KV cache), as the backend
does; without ``--all`` for seven of the 22 formats of weights, and for those always in experts. All generations take
an hour of two CPUs.
``--write`` puts the tables into ``docs/vulkan-kernels.md``: with ``--all`` that of products, which may be the only
kernels, else the others.

What is a fault, and ends the script with 1:

- registers that were spilled, or scratch memory; of scalar ones, which are kept in others, in products and attention
  alone;
- more than 16 KiB of shared memory, or more than 128 threads a block;
- a product and a sum that are apart in the source and one operation in the code: a small kernel of this script asks
  that, and whether ``fma`` is one operation; where it is not, kernels are compiled with its emulation.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edge_rt.export.weights.tile_formats import TILE_FORMATS, TILE_ROWS
from edge_rt.package.kv_formats import KV_FORMAT, UPPER_HALVES
from tests.gpu.radv import FAMILIES, Compiled, Work, compile_for
from tools import spirv

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "csrc"
PAGE = ROOT / "docs" / "vulkan-kernels.md"
LINEAR, FLOATS_OF, ATTENTION = (
    "quant_linear_rows_2",
    "quant_linear_floats",
    "attention_span",
)  # whose cases have tables of their own
SHARED_BYTES, THREADS = 16 << 10, 128
CHOICES, MENDED = 0, 1  # numbers of specialisation constants
MENDS_FMA, MENDS_OTHERS = 1, 2 | 4 | 8
"""What a device does not do as the CPU does (float_exact.glsl); the others: division, square roots, halves."""
ALL = 0xFFFFFFFF
FEW_WEIGHTS = ("w4", "w4m", "w8", "w4k", "w6k", "mx4", "f16")
FLOATS = {name for name, form in TILE_FORMATS.items() if form.is_float}
WITHOUT_SPILLS = ("quant_linear", "quant_embed", "spec_attention")
OF_WEIGHTS = ("quant_linear", "quant_embed", "experts")  # operators whose cases are formats of weights
NAME, ENTRY_POINT, EXECUTION_MODE, CAPABILITY, DECORATE = 5, 15, 16, 17, 71  # of the SPIR-V specification
SPEC_ID, LOCAL_SIZE, DENORM_PRESERVE, DENORM_PRESERVE_CAPABILITY = 1, 17, 4459, 4464

PROBE = """#version 460
#define THREADS 64
#include "gpu/vulkan/kernel.glsl"
struct ProbeArgs { Floats x; };
KERNEL(ProbeArgs)
void main() {
  const int i = thread();
  args.x.at[i] = PRODUCT;
}
"""
PRODUCTS = {"apart": "args.x.at[i] * args.x.at[i + 64] + args.x.at[i + 128]",
            "fused": "fused(args.x.at[i], args.x.at[i + 64], args.x.at[i + 128])"}  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """A kernel's images, and what its module says.

    Attributes:
        op: the folder of its operator.
        threads: of a block.
        cases: name -> choices that a launch may make.
    """

    name: str
    op: str
    image: Path
    dots: Path | None
    threads: int
    cases: dict[str, int]


def names_in(header: str, pattern: str) -> list[str]:
    return re.findall(pattern, (SOURCES / header).read_text(), re.MULTILINE)


WEIGHTS = names_in("ops/quant_linear/weight_format.h", r'^    \{"(\w+)", CodeKind')
CACHES = names_in("ops/spec_attention/spec_attention.h", r'^    \{"(\w+)", \d')


def read_module(code: bytes) -> tuple[int, bool]:
    """Return the threads of a block, and whether the module uses the constant of choices."""
    threads, constant, uses = 0, None, 0
    for words in spirv.instructions(code):
        opcode = words[0] & 0xFFFF
        if opcode == EXECUTION_MODE and words[2] == LOCAL_SIZE:
            threads = words[3] * words[4] * words[5]
        elif opcode == DECORATE and words[2:] == (SPEC_ID, CHOICES):
            constant = words[1]
        elif constant is not None and opcode != NAME:
            uses += words[2:].count(constant)  # the first two: opcode, and what it makes or names
    return threads, uses > 1


def cases_of(name: str, op: str, is_whole: bool) -> dict[str, int]:
    """Return the cases of a kernel that looks at its choices."""
    if op == "spec_attention":
        return {case: 1 << number for number, case in enumerate(CACHES)}
    if op not in OF_WEIGHTS:
        return {str(choices): choices for choices in (1, 2, 4)}
    wanted = set(WEIGHTS if is_whole and op != "experts" else FEW_WEIGHTS)
    if op == "quant_linear":  # its kernels are for the ones, or for the others
        wanted = wanted & FLOATS if name == "quant_linear_floats" else wanted - FLOATS
    return {case: 1 << number for number, case in enumerate(WEIGHTS) if case in wanted}


def find_kernels(folder: Path, wanted: list[str], is_whole: bool) -> Iterator[Kernel]:
    """Return the kernels of the sources whose SPIR-V lies in a folder."""
    for source in sorted(SOURCES.glob("ops/*/vulkan/*.comp")):
        name, op = source.stem, source.parts[-3]
        if wanted and name not in wanted:
            continue
        image, dots = folder / f"{name}.spv", folder / f"{name}.dots.spv"
        threads, has_choices = read_module(image.read_bytes())
        cases = cases_of(name, op, is_whole) if has_choices else {"": ALL}
        yield Kernel(name, op, image, dots if dots.is_file() else None, threads, cases)


def preserving(code: bytes) -> bytes:
    """Return a module whose small numbers are not taken for zero, as the backend changes it where a device can."""
    instructions = spirv.instructions(code)
    entry = next(words[2] for words in instructions if words[0] & 0xFFFF == ENTRY_POINT)
    place = next(i for i, words in enumerate(instructions) if words[0] & 0xFFFF == EXECUTION_MODE)
    instructions.insert(place, (4 << 16 | EXECUTION_MODE, entry, DENORM_PRESERVE, 32))
    instructions.insert(0, (2 << 16 | CAPABILITY, DENORM_PRESERVE_CAPABILITY))
    words = [word for one in instructions for word in one]
    return code[:20] + struct.pack(f"<{len(words)}I", *words)


class Folder:
    """A folder of modules as the backend gives them to the driver."""

    def __init__(self, path: str):
        self._path = Path(path)

    def put(self, image: Path) -> str:
        path = self._path / image.name
        path.write_bytes(preserving(image.read_bytes()))
        return str(path)


def probe(family: str, folder: Folder) -> tuple[bool, bool]:
    """Return whether a product and a sum stay two operations, and whether ``fma`` is one."""
    works = []
    with tempfile.TemporaryDirectory() as sources:
        for name, product in PRODUCTS.items():
            source = Path(sources, f"probe_{name}_{family}.comp")
            source.write_text(PROBE.replace("PRODUCT", product))
            image = source.with_suffix(".spv")
            image.write_bytes(spirv.compiled(source))
            works.append(Work(folder.put(image), "", {}))
    apart, fused = (" ".join(one.code) for one in compile_for(family, works)[1])
    one_operation = re.compile(r"\bv_(fma|fmac|mad|mac|pk_fma|dual_fmac)\w*_f32")
    return not one_operation.search(apart), bool(one_operation.search(fused))


@dataclass(frozen=True)
class Family:
    """What was made for a family of GPUs.

    Attributes:
        mesa: version of the driver.
        is_apart, has_fma: see ``probe``.
        compiled: (kernel, case) -> what the driver says.
    """

    name: str
    mesa: str
    is_apart: bool
    has_fma: bool
    compiled: dict[tuple[str, str], Compiled]


def compile_all(kernels: list[Kernel], families: list[str]) -> list[Family]:
    keys = [(kernel.name, case) for kernel in kernels for case in kernel.cases]
    with tempfile.TemporaryDirectory() as path, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Folder(path)
        paths = {
            kernel.name: (folder.put(kernel.image), folder.put(kernel.dots) if kernel.dots else "")
            for kernel in kernels
        }

        def compile_family(name: str) -> Family:
            is_apart, has_fma = probe(name, folder)
            mends = MENDS_OTHERS | (0 if has_fma else MENDS_FMA)
            works = [
                Work(*paths[kernel.name], {CHOICES: choices, MENDED: mends})
                for kernel in kernels
                for choices in kernel.cases.values()
            ]
            mesa, compiled = compile_for(name, works)
            return Family(name, mesa, is_apart, has_fma, dict(zip(keys, compiled, strict=True)))

        return list(pool.map(compile_family, families))


def faults(kernel: Kernel, case: str, compiled: Compiled) -> Iterator[str]:
    """Return what is wrong with a compiled kernel."""
    numbers = compiled.statistics
    name = f"{kernel.name} {case}".strip()
    for what in ("Spilled VGPRs", "Spilled SGPRs", "Scratch size"):
        if numbers[what] and (what != "Spilled SGPRs" or kernel.op in WITHOUT_SPILLS):
            yield f"{name}: {what} {numbers[what]:.0f}"
    if numbers["LDS size"] > SHARED_BYTES:
        yield f"{name}: {numbers['LDS size']:.0f} bytes of shared memory"
    if not 0 < kernel.threads <= THREADS:
        yield f"{name}: {kernel.threads} threads"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---", *["---:"] * (len(header) - 1)], *rows)]
    return "\n".join(lines)


def kernel_table(kernels: list[Kernel], families: list[Family]) -> str:
    """Return a row a kernel, of the case that takes most registers."""
    rows = []
    for kernel in kernels:
        cells = []
        for family in families:
            own = [family.compiled[kernel.name, case].statistics for case in kernel.cases]
            most = max(own, key=lambda numbers: numbers["VGPRs"])
            cells.append(f"{most['VGPRs']:.0f}, {most['Subgroups per SIMD']:.0f}, {most['Instructions']:.0f}")
        made = [family.compiled[kernel.name, case] for family in families for case in kernel.cases]
        shared = max(one.statistics["LDS size"] for one in made)
        distinct = len({tuple(one.code) for one in made[: len(kernel.cases)]})
        rows.append([f"`{kernel.name}`", str(distinct), str(kernel.threads), f"{shared:.0f}", *cells])
    return table(["kernel", "cases", "threads", "shared bytes", *(family.name for family in families)], rows)


def case_table(kernel: Kernel, families: list[Family], sizes: dict[str, str], size: str) -> str:
    """Return a row a case of one kernel, with what it reads."""
    rows = []
    for case in kernel.cases:
        found = [family.compiled[kernel.name, case].statistics for family in families]
        rows.append([f"`{case}`", sizes[case], *(f"{one['VGPRs']:.0f}, {one['Instructions']:.0f}" for one in found)])
    return table([f"`{kernel.name}`", size, *(family.name for family in families)], rows)


def weight_sizes() -> dict[str, str]:
    """Return the bytes that a product reads for every 32 weights of an output row, by format."""
    read_as = {"w8n_upper": "w4m"}  # the half of a matrix that is one of another format
    forms = {name: TILE_FORMATS[read_as.get(name, name)] for name in WEIGHTS}
    return {name: f"{form.unit_bytes * 32 / (form.unit_inputs * TILE_ROWS):g}" for name, form in forms.items()}


def cache_sizes() -> dict[str, str]:
    """Return the bytes that attention reads for every 32 elements of a key and of a value, by format."""
    upper = {f"{name}_upper": KV_FORMAT[name] for name in UPPER_HALVES}
    sizes = {}
    for name in CACHES:
        # The lower halves of codes are not read.
        lower = 16 if name in upper else 0
        form = KV_FORMAT.get(name) or upper[name]
        sizes[name] = f"{form.key.bytes(32) - lower} + {form.value.bytes(32) - lower}"
    return sizes


def tables(kernels: list[Kernel], families: list[Family], is_whole: bool) -> dict[str, str]:
    """Return the tables of the page that kernels are enough for, by the names of their places."""
    by_name = {kernel.name: kernel for kernel in kernels}
    weights = "\n\n".join(
        case_table(by_name[one], families, weight_sizes(), "bytes") for one in (LINEAR, FLOATS_OF) if one in by_name
    )
    if is_whole:
        return {"weights": weights}
    if ATTENTION not in by_name:
        return {"kernels": kernel_table(kernels, families)}
    generations = table(
        ["RADV's name", "a device", "a fused multiply-add"],
        [[f"`{one.name}`", FAMILIES[one.name], "an instruction" if one.has_fma else "emulated"] for one in families],
    )
    return {
        "generations": f"Mesa {families[0].mesa}:\n\n{generations}",
        "kernels": kernel_table(kernels, families),
        "few_weights": weights,
        "caches": case_table(by_name[ATTENTION], families, cache_sizes(), "bytes"),
    }


def write(made: dict[str, str]) -> None:
    """Put tables into their places in the page."""
    text = PAGE.read_text()
    for name, lines in made.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = place.subn(lambda found, lines=lines: f"{found[1]}{lines}\n{found[2]}", text)
        assert count == 1, name
    PAGE.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile all Vulkan kernels and read what a driver made of them.")
    parser.add_argument("kernels", nargs="*", help="names; all")
    parser.add_argument("--spirv", type=Path, help="folder of what tools/spirv.py made; makes it anew")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), help="what RADV calls generations")
    parser.add_argument("--all", action="store_true", help="all formats of weights")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if options.write and options.kernels and not (options.all and {LINEAR, FLOATS_OF} <= set(options.kernels)):
        parser.error("a table of the page has more kernels than are named")
    with tempfile.TemporaryDirectory() as made_here:
        folder = options.spirv or Path(made_here)
        if options.spirv is None:
            subprocess.run([sys.executable, str(ROOT / "tools" / "spirv.py"), "--out", made_here], check=True)
        kernels = list(find_kernels(folder, options.kernels, options.all))
        families = compile_all(kernels, options.families)
    wrong = [
        f"{family.name}: a product and a sum became one operation" for family in families if not family.is_apart
    ] + [
        f"{family.name}: {what}"
        for family in families
        for kernel in kernels
        for case in kernel.cases
        for what in faults(kernel, case, family.compiled[kernel.name, case])
    ]
    made = tables(kernels, families, options.all)
    if options.write:
        write(made)
    print("\n\n".join(made.values()))
    print("\n".join(wrong) if wrong else "no fault")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
