"""Breaks the product in places that a seed draws, in a copy of the tree, and says which test notices.

Operators are flipped, bounds are off by one, conditions turned and branches dropped, in kernels, acceptance, rollback,
plans, readers and writers. Not part of CI: kernels are compiled again for every fault in them::

    python -m tests.draw_faults [--seed N] [--each N] [--write FILE]
    python -m tests.draw_faults --replay FILE       the faults of a file, found again by the text of their lines

A fault that changes nothing that anybody could see (one more byte of a buffer, say) is printed as missed as well.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutations import HANGS_AFTER, ROOT, Copy

AREAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kernels": (
        ("csrc/kernels/*.inl", "csrc/ops/spec_attention/*_cpu.inl", "csrc/ops/quant_linear/*.inl"),
        ("tests/ops",),
    ),
    "acceptance": (("edge_rt/runtime/decode/*.py",), ("tests/runtime/decode", "tests/runtime/test_generation.py")),
    "rollback": (
        ("edge_rt/runtime/cache/*.py", "edge_rt/runtime/forward/runner.py", "edge_rt/runtime/chat.py"),
        (
            "tests/runtime/cache",
            "tests/runtime/forward",
            "tests/runtime/test_window_model.py",
            "tests/runtime/test_chat.py",
        ),
    ),
    "plan": (("edge_rt/memory/*.py",), ("tests/memory", "tests/runtime/load")),
    "readers": (
        ("edge_rt/package/*reader.py", "edge_rt/package/graph_check.py", "edge_rt/export/sources/*.py"),
        ("tests/package", "tests/export/sources"),
    ),
    "writers": (
        ("edge_rt/package/*writer.py", "edge_rt/system/files.py", "edge_rt/store/staging.py"),
        ("tests/package", "tests/store", "tests/system"),
    ),
}
"""Files of an area, and the tests that should notice."""

FLIPPED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
COUNTER = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*"}
IN_CPP = (
    (re.compile(r"(?<=\w) < (?=\w)"), " <= "),
    (re.compile(r" \+ 1\b"), " + 2"),
    (re.compile(r" \+ (?=[a-z])"), " - "),
    (re.compile(r"\bif \("), "if (false && "),
)


@dataclass(frozen=True)
class Fault:
    """A line that is replaced by another."""

    area: str
    file: str
    old: str
    new: str


def faults_of(area: str, path: Path) -> Iterator[Fault]:
    """Yield what could be broken in a file; only lines that occur once in it."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    name = path.relative_to(ROOT).as_posix()
    changes = _in_python(ast.parse(text), lines) if path.suffix == ".py" else _in_cpp(lines)
    for number, new in changes:
        if lines.count(lines[number]) == 1:
            yield Fault(area, name, lines[number], new)


def _in_cpp(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines):
        if line.startswith(" ") and "//" not in line and "static_assert" not in line and "template" not in line:
            for pattern, new in IN_CPP:
                if pattern.search(line):
                    yield number, pattern.sub(new, line, count=1)


def _in_python(tree: ast.Module, lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in (inner for function in functions for statement in function.body for inner in _computed(statement)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in FLIPPED:
            change = _between(node.left, node.comparators[0], FLIPPED[type(node.ops[0])], lines)
        elif isinstance(node, ast.BinOp) and type(node.op) in COUNTER:
            change = _between(node.left, node.right, COUNTER[type(node.op)], lines)
        elif isinstance(node, ast.Constant) and type(node.value) is int and node.lineno == node.end_lineno:
            change = _cut(node.lineno, node.col_offset, node.end_col_offset or 0, str(node.value + 1), lines)
        elif isinstance(node, ast.If) and node.test.lineno == node.test.end_lineno:
            test = node.test
            begin, end = test.col_offset, test.end_col_offset or 0
            change = _cut(test.lineno, begin, begin, "False and ", lines) if end else None
        else:
            change = None
        if change is not None:
            yield change


def _computed(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what is computed: no errors, texts and types."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.AnnAssign, ast.Assert, ast.FunctionDef, ast.ClassDef)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _computed(child)


def _between(left: ast.expr, right: ast.expr, new: str, lines: Sequence[str]) -> tuple[int, str] | None:
    if left.end_lineno != right.lineno:
        return None
    line = lines[right.lineno - 1]
    between = line[left.end_col_offset : right.col_offset]
    match = re.fullmatch(r"(\)*\s*)([^\s()]+(?: [a-z]+)?)(\s*\(*)", between)
    if match is None or not line.isascii():
        return None
    return _cut(right.lineno, left.end_col_offset or 0, right.col_offset, match[1] + new + match[3], lines)


def _cut(number: int, begin: int, end: int, new: str, lines: Sequence[str]) -> tuple[int, str] | None:
    line = lines[number - 1]
    return (number - 1, line[:begin] + new + line[end:]) if line.isascii() else None


def draw(seed: int, each: int) -> list[Fault]:
    """Draw as many faults of every area, each in a line of its own."""
    drawn = random.Random(seed)
    chosen = []
    for area, (patterns, _) in AREAS.items():
        paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
        possible = [fault for path in paths for fault in faults_of(area, path)]
        chosen += drawn.sample(possible, each)
    return chosen


def locate(fault: Fault) -> Fault | None:
    """Return a fault where its line is now, which may be another file; None: the line is gone."""
    home = "csrc" if fault.file.startswith("csrc/") else "edge_rt"
    paths = sorted(path for path in (ROOT / home).rglob(f"*{Path(fault.file).suffix}"))
    here = [path for path in paths if path.read_text(encoding="utf-8").splitlines().count(fault.old) == 1]
    exact = [path for path in here if path == ROOT / fault.file]
    chosen = exact or (here if len(here) == 1 else [])
    return Fault(fault.area, chosen[0].relative_to(ROOT).as_posix(), fault.old, fault.new) if chosen else None


def notice(copy: Copy, fault: Fault) -> str | None:
    """Return the first test that fails once something is broken, or None; it is whole again afterwards."""
    path = copy.root / fault.file
    whole = path.read_text(encoding="utf-8")
    tests = [name for name in AREAS[fault.area][1] if (copy.root / name).exists()]
    command = [
        copy.python,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not model",
    ]
    try:
        path.write_text(whole.replace(fault.old + "\n", fault.new + "\n", 1), encoding="utf-8")
        if fault.file.startswith("csrc/"):
            try:
                copy.install()
            except subprocess.CalledProcessError:
                return "the compiler"
        run = subprocess.run(
            [*command, *tests], cwd=copy.root, capture_output=True, text=True, timeout=HANGS_AFTER, check=False
        )
    except subprocess.TimeoutExpired:
        return "the time"
    finally:
        path.write_text(whole, encoding="utf-8")
    if run.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    return failed[1] if failed else f"exit {run.returncode}"


def main() -> int:
    """Draw or read faults and try them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=5, help="faults of every area")
    parser.add_argument("--write", type=Path, help="keep the faults in a file")
    parser.add_argument("--replay", type=Path, help="faults of such a file")
    parser.add_argument("--keep", type=Path, help="where to copy the tree to; it stays")
    arguments = parser.parse_args()
    if arguments.replay:
        faults = [Fault(**entry) for entry in json.loads(arguments.replay.read_text(encoding="utf-8"))]
    else:
        faults = draw(arguments.seed, arguments.each)
    if arguments.write:
        arguments.write.write_text(json.dumps([asdict(fault) for fault in faults], indent=1), encoding="utf-8")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(arguments.keep or Path(folder))
        for fault in faults:
            here = locate(fault)
            by = "the line is gone" if here is None else notice(copy, here)
            missed += by is None
            print(f"{by or 'MISSED'}\t{fault.area}\t{fault.file}: {' '.join(fault.new.split())}", flush=True)
    print(f"{len(faults) - missed} of {len(faults)} faults noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
