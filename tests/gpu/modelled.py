"""Arithmetic and traffic of a pass on two AMD chips, modelled from what a driver made of the kernels. Nothing ran.

    python -m tests.gpu.modelled --spirv FOLDER [--write]

The loop of a kernel that holds its products says how many instructions a multiply-add takes; the model, how many there
are, and what they read. The chip has so many lanes at so many hertz, and so many bytes a second. What is left out: time
between kernels, waiting for memory, caches, all other operators (norms, rounding, sampling). So a pass takes at least
the longer of both times. ``--write`` puts the table into ``docs/vulkan-kernels.md``.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_rt.package.kv_formats import KV_FORMAT
from tests.gpu.compile_spirv import (
    ATTENTION,
    CACHES,
    CHOICES,
    MENDED,
    MENDS_OTHERS,
    WEIGHTS,
    Folder,
    table,
    weight_sizes,
    write,
)
from tests.gpu.radv import Work, compile_for

FORMAT, CACHE, DEPTH = "w4", "int8", 1024
SLOW = re.compile(r"v_(mul_lo|mul_hi|mad_[iu]64|rcp|rsq|sqrt|exp|log|sin|cos|\w+_f64)")
"""Instructions that take four times as long as others."""
KERNELS = {1: "quant_linear_rows_2", 8: "quant_linear_rows_8", 64: "quant_linear_rows_many"}
"""Rows of a pass -> the kernel of its products."""


@dataclass(frozen=True)
class Chip:
    """What a maker says of a chip, and which family of RADV's it is compiled for.

    Attributes:
        lanes: that begin an instruction in each cycle.
    """

    name: str
    family: str
    lanes: int
    hertz: float
    bytes_per_second: float


CHIPS = (
    # 8 compute units of 64 lanes at 1.6 GHz; LPDDR5-5500, 128 bits (Valve).
    Chip("Steam Deck", "vangogh", 8 * 64, 1.6e9, 88e9),
    # 16 compute units at 2.9 GHz; LPDDR5X-7500, 128 bits (AMD: Ryzen AI 9 HX 370). Compiled for RDNA 3, it is 3.5.
    Chip("Radeon 890M", "gfx1103_r1", 16 * 64, 2.9e9, 120e9),
)


@dataclass(frozen=True)
class Model:
    """Shapes of a dense model with tied embeddings."""

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def weights(self) -> int:
        """Those that a pass multiplies with: one multiply-add a row each."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner) + self.vocabulary * self.hidden

    def attended(self, rows: int) -> int:
        """Multiply-adds of attention with keys and values."""
        return 2 * rows * self.layers * self.heads * self.head_dim * DEPTH

    def cache_bytes(self) -> int:
        return DEPTH * self.layers * KV_FORMAT[CACHE].token_bytes(self.kv_heads, self.head_dim)


MODEL = Model("Llama 3.2 1B", 16, 2048, 8192, 32, 8, 64, 128256)


def loops_of(code: list[str]) -> Iterator[list[str]]:
    """Return the loops of a kernel's code, each with its inner ones."""
    lines = [line.partition(";")[0].strip() for line in code]
    places = {line[:-1]: place for place, line in enumerate(lines) if line.endswith(":")}
    ends: dict[int, int] = {}
    for place, line in enumerate(lines):
        if (jump := re.match(r"s_c?branch\w*\s+(\w+)", line)) and places.get(jump[1], place + 1) <= place:
            ends[places[jump[1]]] = place
    for begin, end in ends.items():
        yield lines[begin : end + 1]


def cycles(loop: list[str]) -> int:
    """Return how many instructions of a lane a loop begins, each inner one once; slow ones count four times."""
    return sum(4 if SLOW.match(line) else 1 for line in loop if line.startswith("v_"))


def products(loop: list[str], of_floats: bool) -> int:
    """Return the multiply-adds of a lane in a loop."""
    dots = 4 * sum(line.startswith("v_dot4") for line in loop)
    return dots + (sum(bool(re.match(r"v_(dual_)?fmac?_f32|v_fma_f32", line)) for line in loop) if of_floats else 0)


def cost(code: list[str], of_floats: bool) -> float:
    """Return the instructions that a multiply-add takes in the smallest loop that has all products.

    Args:
        of_floats: multiply-adds of floats are products, too, and no part of scaling.
    """
    found = list(loops_of(code))
    most = max(products(loop, of_floats) for loop in found)
    loop = min((one for one in found if products(one, of_floats) == most), key=len)
    return cycles(loop) / most


def rows_of(chip: Chip, folder: Folder, spirv: Path) -> Iterator[list[str]]:
    """Return the table's rows of a chip."""
    names = [*KERNELS.values(), ATTENTION]
    cases = [1 << WEIGHTS.index(FORMAT)] * len(KERNELS) + [1 << CACHES.index(CACHE)]
    works = [
        Work(folder.put(image), folder.put(dots) if dots.is_file() else "", {CHOICES: choices, MENDED: MENDS_OTHERS})
        for name, choices in zip(names, cases, strict=True)
        for image, dots in [(spirv / f"{name}.spv", spirv / f"{name}.dots.spv")]
    ]
    _, compiled = compile_for(chip.family, works)
    *linear, attention = compiled
    of_attention = cost(attention.code, True)
    read = MODEL.weights * float(weight_sizes()[FORMAT]) / 32 + MODEL.cache_bytes()
    for rows, kernel in zip(KERNELS, linear, strict=True):
        of_product = cost(kernel.code, False)
        # A kernel of two rows takes no less for one.
        multiplied = MODEL.weights * max(rows, 2) * of_product + MODEL.attended(rows) * of_attention
        arithmetic, traffic = multiplied / (chip.lanes * chip.hertz), read / chip.bytes_per_second
        longer = "memory" if traffic > arithmetic else "arithmetic"
        yield [chip.name, str(rows), f"{of_product:.2f}", f"{of_attention:.2f}", f"{read / 1e6:.0f}",
               f"{1e3 * arithmetic:.1f}", f"{1e3 * traffic:.1f}", longer]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Model the arithmetic and traffic of a pass on AMD chips.")
    parser.add_argument("--spirv", type=Path, required=True, help="folder of what tools/spirv.py made")
    parser.add_argument("--write", action="store_true", help="put the table into docs/vulkan-kernels.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        rows = [row for chip in CHIPS for row in rows_of(chip, Folder(path), options.spirv)]
    header = ["chip", "rows", "instructions a multiply-add of products", "of attention", "MB read", "ms of arithmetic",
              "ms of memory", "limit"]  # fmt: skip
    made = f"{MODEL.name}, `{FORMAT}`, `{CACHE}` cache of {DEPTH} positions:\n\n{table(header, rows)}"
    if options.write:
        write({"modelled": made})
    else:
        print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
