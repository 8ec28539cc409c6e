"""The documentation names what exists: its links, its files, the flags in its commands; so does a list of changes."""

from __future__ import annotations

import functools
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer.main

from edge_rt.cli.command_line import command_line
from tests.mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted(
    page for pages in ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/*.md") for page in ROOT.glob(pages)
)
OLD = {"CHANGELOG.md"}
"""They tell what was."""


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as hosts of repositories make them."""
    headings = re.findall(r"^#+ (.*)$", _outside_code(path.read_text(encoding="utf-8")), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return frozenset(re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain)


def _outside_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", DOCS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = _outside_code(page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


@pytest.mark.parametrize(
    "page", [path for path in DOCS if path.name not in OLD], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_files_that_are_named_exist(page):
    """A name in backticks with a folder in it is a path from the root, ``edge_rt/``, ``csrc/`` or the page."""
    text = _outside_code(page.read_text(encoding="utf-8"))
    for name in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|cc|h|inl|cu|cmake))`", text):
        assert any((base / name).exists() for base in (ROOT, ROOT / "edge_rt", ROOT / "csrc", page.parent)), name


def commands(page: Path) -> list[list[str]]:
    """Return the ``edge-rt`` commands of a page's blocks that are typed at a prompt."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```(?:console|sh|bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    typed = [part for line in lines if line.startswith("$ ") for part in re.split(r" \| | && |; ", line[2:])]
    ours = [match[1] for part in typed if (match := re.match(r"\s*edge-rt (.*)", part)) and "..." not in part]
    return [shlex.split(re.split(r"#| > | < ", command)[0]) for command in ours]


@functools.cache
def every_command():
    """Return the whole command line as typer reads it."""
    return typer.main.get_command(command_line())


@pytest.mark.parametrize("page", [path for path in DOCS if commands(path)], ids=lambda path: path.name)
def test_flags_of_commands_exist(page):
    for words in commands(page):
        command = every_command()
        rest = list(words)
        while rest and rest[0] in getattr(command, "commands", ()):
            command = command.commands[rest.pop(0)]
        flags = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        for word in rest:
            if re.match(r"--?[a-z]", word):
                assert word.split("=")[0] in flags, f"{' '.join(words)}: {word}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{Path(mutation.file).name}: {mutation.new:.30}")
def test_changes_that_tests_must_find_can_be_made(mutation):
    assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.old) == 1
