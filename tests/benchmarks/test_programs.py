"""Programs that measure are run seldom: what they take from the package is there, whether they are run or not."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_program_imports_names_that_the_package_has(path):
    taken = [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "edge_rt"
        for alias in node.names
    ]
    for module, name in taken:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if str(error.name).startswith("edge_rt"):
                raise
            continue  # an extra is not installed
        if not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
