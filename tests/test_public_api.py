"""The public names are those of `__all__`, and importing the package costs nothing."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import edge_rt

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", edge_rt.__all__)
def test_every_public_name_exists_and_is_documented(name):
    value = getattr(edge_rt, name)
    assert name == "__version__" or value.__doc__


def test_type_checkers_see_the_same_names_as_programs():
    tree = ast.parse((ROOT / "edge_rt" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert declared | {"__version__"} == set(edge_rt.__all__)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = edge_rt.nothing_like_this


def test_import_loads_no_library():
    code = "import sys, edge_rt; print([m for m in ('numpy', 'onnxruntime', 'tokenizers', 'onnx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version_and_changelog_agree():
    # Of what is installed: the build reads it from version.py.
    assert importlib.metadata.version("edge-rt") == edge_rt.__version__
    assert f"## {edge_rt.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_oldest_versions_are_the_stated_floors():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = {}
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *extras["cpu"], *extras["plot"]]:
        name, floor = requirement.split(">=")
        stated[name] = floor
    tested = dict(line.split("==") for line in (ROOT / ".ci" / "oldest.txt").read_text().split())
    assert tested.keys() == stated.keys()
    for name, version in tested.items():
        assert version.startswith(stated[name]), name


def test_engine_without_onnxruntime_names_the_extra():
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "import edge_rt\n"
        "try: edge_rt.load('x')\n"
        "except edge_rt.RuntimeUnavailable as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "edge-rt[cpu]" in done.stdout
