"""The public names are those of `__all__`, and importing the package costs nothing."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import edge_rt

ROOT = Path(__file__).parents[1]
TYPING = Path("tests", "data", "typing")


@pytest.mark.parametrize("name", edge_rt.__all__)
def test_every_public_name_exists_and_is_documented(name):
    value = getattr(edge_rt, name)
    # A literal type has no text of its own.
    assert name in ("__version__", "FinishReason") or value.__doc__


def test_type_checkers_see_the_same_names_as_programs():
    tree = ast.parse((ROOT / "edge_rt" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert declared | {"__version__"} == set(edge_rt.__all__)


def test_the_program_for_type_checkers_uses_every_name_and_option():
    program = (ROOT / TYPING / "right.py").read_text()
    assert not {name for name in edge_rt.__all__ if not re.search(rf"edge_rt\.{name}\b", program)}
    public = [getattr(edge_rt, name) for name in edge_rt.__all__]
    calls = [call for call in public if inspect.isfunction(call)]
    for kind in (edge_rt.Model, edge_rt.Chat):
        # What chats are made of is no interface of programs.
        methods = inspect.getmembers(kind, inspect.isfunction)
        calls += [call for name, call in methods if not name.startswith("_") and name != "stream_ids"]
    options = {
        parameter.name
        for call in calls
        for parameter in inspect.signature(call).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    used = options | set(edge_rt.GenerationOptions.__annotations__)
    assert not {name for name in used if not re.search(rf"\b{name}=", program)}


def imports_of(file: Path) -> set[str]:
    """Return the packages that a program imports at its top."""
    body = ast.parse(file.read_text()).body
    names = {name.name for node in body if isinstance(node, ast.Import) for name in node.names}
    names |= {node.module or "" for node in body if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


@pytest.mark.slow  # a minute without mypy's cache; `.ci/run lint` runs it behind mypy
def test_type_checkers_accept_what_is_right_and_nothing_else(tmp_path):
    """Of all public names and options, examples and documentation; misspelt ones are found where it is said so."""
    pytest.importorskip("mypy", reason="types are checked where mypy is installed")
    right, wrong = TYPING / "right.py", TYPING / "wrong.py"
    examples = sorted((ROOT / "examples").glob("*.py"))
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for number, program in enumerate(
            re.findall(r"```python\n(import edge_rt\n.*?)```", page.read_text(), re.DOTALL)
        ):
            examples.append(tmp_path / f"{page.stem.replace('-', '_')}_{number}.py")
            examples[-1].write_text(program)
    # Those with other libraries are checked where these are.
    examples = [file for file in examples if all(map(find_spec, imports_of(file)))]
    # In the root, where the configuration is, and where a developer's own run has left its cache.
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--hide-error-context",
            right,
            wrong,
            *examples,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    found = {line.split(" ")[0] for line in done.stdout.splitlines() if " error: " in line}
    lines = enumerate((ROOT / wrong).read_text().splitlines(), 1)
    assert found == {f"{wrong}:{number}:" for number, line in lines if line.endswith("# no")}, done.stdout + done.stderr


@pytest.mark.parametrize("call", ["load", "plan", "pull", "export_model", "list_models", "LoadOptions"])
def test_unknown_options_are_told_from_known_ones(call):
    known = next(iter(inspect.signature(getattr(edge_rt, call)).parameters))
    with pytest.raises(edge_rt.ConfigError, match=f"{call} has no option '{known}z'.*Did you mean '{known}'"):
        getattr(edge_rt, call)(**{f"{known}z": 1})


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
        name, floor = requirement.partition(";")[0].split(">=")
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
    assert "onnxruntime>=" in done.stdout
