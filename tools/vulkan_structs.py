"""Writes what C++ compilers check of the structs that Vulkan kernels read: every field lies where C++ has it.

    python tools/vulkan_structs.py csrc/ops/*/vulkan/spirv/*.spv > structs.cc

SPIR-V has the names of structs and fields and their offsets. Of each a static_assert is written: the struct of C++ has
a field of this name, at this offset, and so large; arrays of structs have the same stride. Names that GLSL keeps for
itself end with `_` there and not in C++; fields whose names begin with `pad` are GLSL's own. Blocks are not compared:
they are what GLSL needs around a struct.
"""

from __future__ import annotations

import struct
import sys
from collections import defaultdict
from pathlib import Path

from spirv import instructions

# Of the SPIR-V specification.
NAME, MEMBER_NAME, DECORATE, MEMBER_DECORATE = 5, 6, 71, 72
TYPE_INT, TYPE_FLOAT, TYPE_VECTOR, TYPE_ARRAY, TYPE_STRUCT, TYPE_POINTER, CONSTANT = 21, 22, 23, 28, 30, 32, 43
BLOCK, ARRAY_STRIDE, OFFSET = 2, 6, 35
ADDRESS_BYTES = 8


class Module:
    """What a module says of its structs."""

    def __init__(self, code: bytes) -> None:
        self.names: dict[int, str] = {}
        self.fields: dict[tuple[int, int], str] = {}
        self.offsets: dict[tuple[int, int], int] = {}
        self.strides: dict[int, int] = {}
        self.blocks: set[int] = set()
        self.types: dict[int, tuple[int, ...]] = {}
        self.constants: dict[int, int] = {}
        for words in instructions(code):
            opcode = words[0] & 0xFFFF
            if opcode == NAME:
                self.names[words[1]] = text(words[2:])
            elif opcode == MEMBER_NAME:
                self.fields[words[1], words[2]] = text(words[3:])
            elif opcode == MEMBER_DECORATE and words[3] == OFFSET:
                self.offsets[words[1], words[2]] = words[4]
            elif opcode == DECORATE and words[2] == ARRAY_STRIDE:
                self.strides[words[1]] = words[3]
            elif opcode == DECORATE and words[2] == BLOCK:
                self.blocks.add(words[1])
            elif TYPE_INT <= opcode <= TYPE_POINTER:
                self.types[words[1]] = (opcode, *words[2:])
            elif opcode == CONSTANT:
                self.constants[words[2]] = words[3]

    def size(self, kind: int) -> int | None:
        """Bytes of a value in memory; None: of a struct, whose end C++ may pad."""
        opcode, *rest = self.types[kind]
        if opcode in (TYPE_INT, TYPE_FLOAT):
            return rest[0] // 8
        if opcode == TYPE_VECTOR:
            part = self.size(rest[0])
            return None if part is None else part * rest[1]
        if opcode == TYPE_ARRAY:
            return self.strides[kind] * self.constants[rest[1]]
        return ADDRESS_BYTES if opcode == TYPE_POINTER else None

    def checks(self) -> list[str]:
        """Every static_assert of the module."""
        found = []
        for (kind, number), offset in self.offsets.items():
            field = self.fields[kind, number]
            if kind in self.blocks or field.startswith("pad"):
                continue
            name, field = self.names[kind], field.removesuffix("_")
            of_field = self.types[kind][1 + number]
            found.append(f"static_assert(offsetof({name}, {field}) == {offset});")
            size = self.size(of_field)
            if size is not None:
                found.append(f"static_assert(sizeof({name}::{field}) == {size});")
        return found


def text(words: tuple[int, ...]) -> str:
    """Decode a string of a module."""
    return struct.pack(f"<{len(words)}I", *words).split(b"\0")[0].decode()


def main() -> int:
    by_check: dict[str, list[str]] = defaultdict(list)
    for path in map(Path, sys.argv[1:]):
        for check in Module(path.read_bytes()).checks():
            by_check[check].append(path.stem)
    if not by_check:
        print("No file given has a struct.", file=sys.stderr)
        return 1
    for check, kernels in sorted(by_check.items()):
        print(f"{check}  // {kernels[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
