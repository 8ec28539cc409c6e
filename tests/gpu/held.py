"""Make kernels that look, before each access to memory, whether somebody holds what they reach for.

    python -m tests.gpu.held --out FOLDER [KERNEL ...]

A test that has a heap of its own for the device's memory (csrc/tests/gpu_pinned_heap.h) then knows to the byte of
every load, store and atomic operation whether it lies within one allocation: a layer between program and driver knows
buffers alone, and that heap is one buffer. What is not looked at: a kernel's arguments, whose offsets a C++ compiler
has compared.
Needs what ``tools/spirv.py`` needs.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools import spirv

MEMBERS_BEHIND = range(1, 6)
BEHIND_ARGS = "layout(align = 16) uvec2 heap; uvec2 held; uvec2 report; uint heap_bytes, args_bytes;"
LARGEST = 16  # bytes that check_held looks at in one go

# Of the SPIR-V specification.
NAME, LINE, TYPE_INT, TYPE_FLOAT, TYPE_VECTOR, TYPE_ARRAY, TYPE_STRUCT, TYPE_POINTER = 5, 8, 21, 22, 23, 28, 30, 32
CONSTANT, FUNCTION, FUNCTION_END, FUNCTION_CALL, VARIABLE, LOAD, STORE = 43, 54, 56, 57, 59, 61, 62
COPY_MEMORY, COPY_MEMORY_SIZED, BITCAST, MEMBER_DECORATE, DECORATE = 63, 64, 124, 72, 71
ACCESS_CHAINS = frozenset({65, 66, 67, 70})
ATOMICS = frozenset(range(227, 243))
ATOMIC_STORE = 228
OFFSET, ARRAY_STRIDE = 35, 6
CAPABILITY, INT16 = 17, 22
ADDRESSED = 5349  # storage class of buffer references


def text_of(words: tuple[int, ...]) -> str:
    return struct.pack(f"<{len(words)}I", *words).split(b"\0")[0].decode()


class Module:
    """What a module says of its types, and where each pointer comes from."""

    def __init__(self, code: bytes):
        self.bound = struct.unpack_from("<I", code, 12)[0]
        self.instructions = spirv.instructions(code)
        self.names: dict[int, str] = {}
        self.types: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.values: dict[int, int] = {}  # of constants
        self.type_of: dict[int, int] = {}
        self.root: dict[int, int] = {}  # an access chain's first pointer
        self.offsets: dict[tuple[int, int], int] = {}
        self.strides: dict[int, int] = {}
        for words in self.instructions:
            opcode = words[0] & 0xFFFF
            if opcode == NAME:
                self.names[words[1]] = text_of(words[2:])
            elif TYPE_INT - 2 <= opcode <= TYPE_POINTER + 1:
                self.types[words[1]] = opcode, words[2:]
            elif opcode == MEMBER_DECORATE and words[3] == OFFSET:
                self.offsets[words[1], words[2]] = words[4]
            elif opcode == DECORATE and words[2] == ARRAY_STRIDE:
                self.strides[words[1]] = words[3]
            elif opcode not in (STORE, LINE, ATOMIC_STORE) and len(words) > 2 and words[1] in self.types:
                self.type_of[words[2]] = words[1]
                if opcode == CONSTANT:
                    self.values[words[2]] = words[3]
                elif opcode in ACCESS_CHAINS:
                    self.root[words[2]] = self.root.get(words[3], words[3])

    def pointee(self, pointer: int) -> int | None:
        """Return the type behind a buffer reference; None for a pointer of another kind."""
        opcode, rest = self.types[self.type_of[pointer]]
        assert opcode == TYPE_POINTER, pointer
        return rest[1] if rest[0] == ADDRESSED else None

    def is_of_arguments(self, pointer: int) -> bool:
        root = self.pointee(self.root.get(pointer, pointer))
        return root is not None and self.names.get(root, "").encode() == spirv.ARGS_BLOCK

    def bytes_of(self, kind: int) -> int:
        opcode, rest = self.types[kind]
        if opcode in (TYPE_INT, TYPE_FLOAT):
            return rest[0] // 8
        if opcode == TYPE_VECTOR:
            return rest[1] * self.bytes_of(rest[0])
        if opcode == TYPE_ARRAY:
            return self.strides[kind] * self.values[rest[1]]
        if opcode == TYPE_STRUCT:
            return self.offsets[kind, len(rest) - 1] + self.bytes_of(rest[-1])
        assert opcode == TYPE_POINTER, opcode
        return 8

    def type_that_is(self, opcode: int, *rest: int) -> int:
        return next(name for name, made in self.types.items() if made == (opcode, rest))


def pointers_of(words: tuple[int, ...]) -> list[int]:
    """Return the pointers that an instruction reads or writes through."""
    opcode = words[0] & 0xFFFF
    if opcode == LOAD:
        return [words[3]]
    if opcode in (STORE, ATOMIC_STORE):
        return [words[1]]
    if opcode in (COPY_MEMORY, COPY_MEMORY_SIZED):
        return [words[1], words[2]]
    return [words[3]] if opcode in ATOMICS else []


def looking(code: bytes) -> tuple[bytes, int]:
    """Return a module that calls check_held before each access, and how many these are."""
    module = Module(code)
    check = next(name for name, text in module.names.items() if text.startswith("check_held("))
    number = module.type_that_is(TYPE_INT, 32, 0)
    pair = module.type_that_is(TYPE_VECTOR, number, 2)
    nothing = next(name for name, (opcode, _) in module.types.items() if opcode == TYPE_INT - 2)
    bound, constants, found = module.bound, {}, 0

    def fresh() -> int:
        nonlocal bound
        bound += 1
        return bound - 1

    def constant(value: int) -> int:
        if value not in constants:
            constants[value] = fresh()
        return constants[value]

    made: list[tuple[int, ...]] = []
    function, line, first_function = 0, 0, -1
    for words in module.instructions:
        opcode = words[0] & 0xFFFF
        if opcode == FUNCTION:
            function = words[2]
            if first_function < 0:  # in front of the line that it may be told to be on
                first_function = len(made) - (1 if made[-1][0] & 0xFFFF == LINE else 0)
        elif opcode == LINE:
            line = words[2]
        for pointer in pointers_of(words) if function not in (0, check) else []:
            kind = module.pointee(pointer)
            if kind is None or module.is_of_arguments(pointer):
                continue
            found += 1
            address, size = fresh(), module.bytes_of(kind)
            made.append((4 << 16 | BITCAST, pair, address, pointer))
            # Of what is larger, both ends: allocations are further apart than a struct is long.
            for begin, count in [(0, size)] if size <= LARGEST else [(0, LARGEST), (size - LARGEST, LARGEST)]:
                asked = address, constant(begin), constant(count), constant(line)
                made.append((8 << 16 | FUNCTION_CALL, nothing, fresh(), check, *asked))
        made.append(words)
        if opcode == MEMBER_DECORATE and words[2:] == (0, spirv.NON_WRITABLE):  # of the arguments
            made += [(*words[:2], member, spirv.NON_WRITABLE) for member in MEMBERS_BEHIND]
    made[first_function:first_function] = [
        (4 << 16 | CONSTANT, number, name, value) for value, name in constants.items()
    ]
    words = [word for one in made for word in one]
    header = code[:12] + struct.pack("<I", bound) + code[16:20]
    return header + struct.pack(f"<{len(words)}I", *words), found


def build(kernel: Path, folder: Path) -> str:
    """Write a kernel's modules; return its name and how many accesses it has, as text."""
    if kernel.parts[-4] != "ops":  # the backend's own, or of a test that has no arguments behind others
        for name, code in spirv.images_of(kernel, spirv.sources_of(kernel)).items():
            (folder / name).write_bytes(code)
        return f"{kernel.stem}: not looked at"
    with tempfile.TemporaryDirectory() as sources:
        source = Path(sources, kernel.name)
        text = kernel.read_text().removeprefix(spirv.VERSION)
        source.write_text(
            f'{spirv.VERSION}#define BEHIND_ARGS {BEHIND_ARGS}\n#line 2\n{text}\n#include "tests/vulkan/held.glsl"\n'
        )
        images = spirv.images_of(source, spirv.sources_of(kernel), f"-I{kernel.parent}", "--keep-uncalled", "-g")
    for name, plain in images.items():
        code, found = looking(plain)
        (folder / name).write_bytes(code)
        with tempfile.NamedTemporaryFile(suffix=name) as checked:
            # The validator takes the address of a small number for arithmetic on it.
            checked.write(code[:20] + struct.pack("<2I", 2 << 16 | CAPABILITY, INT16) + code[20:])
            checked.flush()
            spirv.run_tool("spirv-val", "--target-env", spirv.TARGET, "--scalar-block-layout", checked.name)
    return f"{kernel.stem}: {found}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make kernels that look whether memory is held before they reach it.")
    parser.add_argument("names", nargs="*", help="kernels; all without any")
    parser.add_argument("--out", type=Path, required=True, help="a folder for all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = list(pool.map(lambda kernel: build(kernel, options.out), spirv.find_kernels(options.names)))
    print("accesses:", ", ".join(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
