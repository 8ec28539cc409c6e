"""Makes what Vulkan devices run: every kernel of csrc/**/vulkan/*.comp becomes SPIR-V.

    python tools/spirv.py                          into the folder spirv beside each kernel, which is committed
    python tools/spirv.py --out build/spirv        all into one folder
    python tools/spirv.py --check                  are the committed files what the sources give?
    python tools/spirv.py quant_embed_rows         only kernels of these names

A file `<kernel>.spv` runs everywhere; `<kernel>.dots.spv`, made with PACKED_DOTS, on devices with products of packed
signed bytes, and is there for kernels that have such products. glslang compiles; then every float operation is marked
NoContraction, which GLSL's `precise` marks in part only: what is written as a product and a sum stays these two, and
a `fma` stays one operation. Arguments of kernels are marked NonWritable, so that they are read once, for all threads
together. Both tools are packages of Linux distributions (glslang-tools and spirv-tools of Debian).
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CSRC = Path(__file__).resolve().parent.parent / "csrc"
TARGET = "vulkan1.2"
VERSION = "#version 460\n"  # the first line of a kernel
INCLUDES = "#extension GL_GOOGLE_include_directive : require\n"

# Of the SPIR-V specification: opcodes, the decoration, and which instructions compute with floats.
NAME, EXT_INST, TYPE_FLOAT, TYPE_VECTOR, DECORATE, MEMBER_DECORATE = 5, 12, 22, 23, 71, 72
NON_WRITABLE, NO_CONTRACTION = 24, 42
SIGNED_DOT = 4450  # of packed bytes
ARGS_BLOCK = b"ArgsOfKernel"  # of gpu/vulkan/kernel.glsl
CONVERSIONS = frozenset({109, 110, 111, 112, 115, 116})
ARITHMETIC = frozenset({127, 129, 131, 133, 136, 140, 141, 142, 143, 144, 145, 146, 147, 148})
COMPARISONS = frozenset({156, 157, *range(180, 192)})
FLOAT_OPERATIONS = CONVERSIONS | ARITHMETIC | COMPARISONS


class BuildError(Exception):
    """A kernel or a tool that is not as it has to be; the text is for whoever runs this."""


def instructions(code: bytes) -> list[tuple[int, ...]]:
    """The instructions of a SPIR-V module, each as its words."""
    words = struct.unpack(f"<{len(code) // 4}I", code)
    found, place = [], 5
    while place < len(words):
        count = words[place] >> 16
        found.append(words[place : place + count])
        place += count
    return found


def marked(code: bytes) -> bytes:
    """The same module with every float operation marked NoContraction, and the kernel's arguments NonWritable."""
    all_of = instructions(code)
    floats: set[int] = set()
    has_mark: set[int] = set()
    blocks: list[int] = []
    wanted: list[int] = []
    last_decoration = 0
    for i, words in enumerate(all_of):
        opcode = words[0] & 0xFFFF
        if opcode == TYPE_FLOAT or (opcode == TYPE_VECTOR and words[2] in floats):
            floats.add(words[1])
        elif opcode in (DECORATE, MEMBER_DECORATE):
            last_decoration = i
            if opcode == DECORATE and words[2] == NO_CONTRACTION:
                has_mark.add(words[1])
        elif opcode == NAME and struct.pack(f"<{len(words) - 2}I", *words[2:]).rstrip(b"\0") == ARGS_BLOCK:
            blocks.append(words[1])
        elif opcode in FLOAT_OPERATIONS or (opcode == EXT_INST and words[1] in floats):
            wanted.append(words[2])
    if not last_decoration:
        raise BuildError("The module has no decorations, so it is no kernel.")
    new = [(3 << 16 | DECORATE, result, NO_CONTRACTION) for result in wanted if result not in has_mark]
    new += [(4 << 16 | MEMBER_DECORATE, block, 0, NON_WRITABLE) for block in blocks]
    all_of[last_decoration + 1 : last_decoration + 1] = new
    words = [word for one in all_of for word in one]
    return code[:20] + struct.pack(f"<{len(words)}I", *words)


def run_tool(*command: str) -> None:
    """Runs glslang or a tool of SPIR-V; a BuildError has what it printed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        package = "glslang-tools" if command[0].startswith("glslang") else "spirv-tools"
        raise BuildError(
            f"The program {command[0]} is missing. It makes SPIR-V of Vulkan kernels. Install {package}."
        ) from None
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def sources_of(kernel: Path) -> set[Path]:
    """A kernel's file and all that it includes."""
    found: set[Path] = set()
    left = [kernel]
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            place = next((folder / name for folder in (path.parent, CSRC) if (folder / name).is_file()), None)
            if place is None:
                raise BuildError(f"{path} includes {name}, which is neither beside it nor in csrc.")
            left.append(place.resolve())
    return found


def compiled(kernel: Path, *options: str) -> bytes:
    """A kernel's SPIR-V, checked."""
    text = kernel.read_text()
    if not text.startswith(VERSION):
        raise BuildError(f"The first line of {kernel} is not {VERSION.strip()}.")
    with tempfile.TemporaryDirectory() as folder:
        source, raw, done = Path(folder, kernel.name), Path(folder, "raw.spv"), Path(folder, "done.spv")
        # What allows #include has to stand before the first.
        source.write_text(f'{VERSION}{INCLUDES}#line 2 "{kernel}"\n{text.removeprefix(VERSION)}')
        head = ("glslangValidator", "--quiet", "--target-env", TARGET, "-S", "comp", f"-I{CSRC}", f"-I{kernel.parent}")
        run_tool(*head, *options, "-o", str(raw), str(source))
        code = marked(raw.read_bytes())
        done.write_bytes(code)
        run_tool("spirv-val", "--target-env", TARGET, "--scalar-block-layout", str(done))
    return code


def images_of(kernel: Path, sources: set[Path], *options: str) -> dict[str, bytes]:
    """File names and contents that a kernel becomes."""
    plain = compiled(kernel, *options)
    images = {f"{kernel.stem}.spv": plain}
    if any(re.search(r"\bdot4\(", path.read_text()) for path in sources if path.name != "kernel.glsl"):
        dots = compiled(kernel, *options, "-DPACKED_DOTS")
        if any(words[0] & 0xFFFF == SIGNED_DOT for words in instructions(dots)):
            images[f"{kernel.stem}.dots.spv"] = dots
    return images


def is_current(image: Path, sources: set[Path]) -> bool:
    """Whether a file is newer than all that it is made of."""
    made_of = [*sources, Path(__file__)]
    return image.is_file() and image.stat().st_mtime > max(path.stat().st_mtime for path in made_of)


def build(kernel: Path, folder: Path, *options: str) -> str:
    """Writes a kernel's files; returns what was done, in words."""
    sources = sources_of(kernel)
    plain, dots = folder / f"{kernel.stem}.spv", folder / f"{kernel.stem}.dots.spv"
    if is_current(plain, sources):
        return ""
    images = images_of(kernel, sources, *options)
    folder.mkdir(parents=True, exist_ok=True)
    if dots.name not in images:
        dots.unlink(missing_ok=True)
    for name in sorted(images):  # the plain one last: its time says that all are made
        part = folder / f"{name}.{os.getpid()}"
        part.write_bytes(images[name])
        part.replace(folder / name)
    return f"{kernel.stem}: {', '.join(f'{len(code)} bytes' for code in images.values())}"


def differences(kernel: Path, folder: Path) -> str:
    """What committed files of a kernel lack, in words."""
    images = images_of(kernel, sources_of(kernel))
    there = {path.name: path.read_bytes() for path in folder.glob("*.spv") if path.name.split(".")[0] == kernel.stem}
    wrong = sorted(name for name in {*images, *there} if images.get(name) != there.get(name))
    return f"{', '.join(wrong)} of {folder} are not what {kernel.name} gives." if wrong else ""


def find_kernels(names: list[str]) -> list[Path]:
    """The kernels of these names, or all."""
    found = {path.stem: path for path in sorted(CSRC.glob("**/vulkan/*.comp"))}
    if len(found) != len(list(CSRC.glob("**/vulkan/*.comp"))):
        raise BuildError("Two kernels have the same name. Kernels are known by their names alone. Rename one.")
    if unknown := sorted({*names} - {*found}):
        raise BuildError(f"There are no kernels {', '.join(unknown)} in csrc/**/vulkan.")
    return [found[name] for name in names] if names else list(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes SPIR-V of Vulkan kernels.")
    parser.add_argument("names", nargs="*", help="kernels; all without any")
    parser.add_argument("--out", type=Path, help="one folder for all, instead of those beside the sources")
    parser.add_argument("--define", metavar="NAME", help="a macro of tests; its files want a folder of their own")
    parser.add_argument("--check", action="store_true", help="only say which files are not what the sources give")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once (all CPUs)")
    options = parser.parse_args()

    def work(kernel: Path) -> tuple[bool, str]:
        folder = options.out or kernel.parent / "spirv"
        try:
            if options.check:
                wrong = differences(kernel, folder)
                return not wrong, wrong
            return True, build(kernel, folder, *([f"-D{options.define}"] if options.define else []))
        except BuildError as error:
            return False, str(error)

    try:
        kernels = find_kernels(options.names)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    is_right = True
    with ThreadPoolExecutor(options.jobs) as pool:
        for is_well, said in pool.map(work, kernels):
            is_right = is_right and is_well
            if said:
                print(said, file=sys.stdout if is_well else sys.stderr)
    if not is_right and options.check:
        print("Run python tools/spirv.py and commit what it made.", file=sys.stderr)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
