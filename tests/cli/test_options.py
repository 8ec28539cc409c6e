"""Flags: what is parsed stays what it was, and each stands in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from edge_rt.cli.command_line import command_line
from edge_rt.cli.main import main
from edge_rt.cli.options import answer_flags, flags, making_flags
from edge_rt.cli.options.generation import SamplingFlags
from edge_rt.cli.options.groups import ModelFlags
from edge_rt.cli.options.spread import Argument, Flag, Spread, only
from edge_rt.cli.options.typer_commands import typer_command
from edge_rt.errors import ConfigError
from tests.cli.flag_places import CLI, declarations
from tests.cli.parsed_options import describe

SNAPSHOT = Path(__file__).with_name("options.txt")


def test_what_is_parsed_is_what_it_was():
    """To change it on purpose: python -m tests.cli.parsed_options > tests/cli/options.txt."""
    ours = [line for line in describe(command_line()) if "-completion" not in line]
    assert ours == SNAPSHOT.read_text(encoding="utf-8").splitlines()


def test_every_flag_is_declared_once():
    places = declarations()
    assert [(flag, where) for flag, where in places.items() if len(where) > 1] == []
    lines = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    flags = {word for line in lines for word in line.split(": ")[1].split() if word.startswith("-")}
    # The version is typer's own callback.
    assert flags - places.keys() == {"--version"}


def test_typer_options_are_made_in_one_place():
    strays = [
        str(path.relative_to(CLI)) for path in CLI.rglob("*.py") if "typer.Option(" in path.read_text(encoding="utf-8")
    ]
    assert sorted(strays) == ["command_line.py", "options/typer_commands.py"]


SIZE = Flag(("-s", "--size"), "How large.", shown="3", least=1)
WORD = Argument("WORD", "A word.")
LOUD = Flag(("--loud",), "Louder: edge-rt[loud].")


@dataclass(frozen=True)
class Group:
    size: Annotated[int, SIZE] = 3
    loud: Annotated[bool, LOUD] = False
    made: str = "by the dataclass"


def call(command, *arguments):
    program = typer.Typer(rich_markup_mode="rich")
    program.command()(typer_command(command))
    return CliRunner().invoke(program, arguments)


def test_a_group_arrives_as_its_dataclass():
    got = []

    def command(group: Group, word: Annotated[str, WORD]) -> int:
        got.append((group, word))
        return 0

    assert call(command, "hello", "-s", "7", "--loud").exit_code == 0
    assert call(command, "hello").exit_code == 0
    assert got == [(Group(7, loud=True), "hello"), (Group(), "hello")]


def test_a_part_of_a_group_takes_no_other_flags():
    got = []

    def command(group: Annotated[Group, only("loud")]) -> int:
        got.append(group)
        return 0

    assert call(command, "--loud").exit_code == 0
    assert got == [Group(loud=True)]
    assert call(command, "--size", "7").exit_code == 2


def test_limits_and_help_reach_typer():
    def command(group: Group) -> int:
        return group.size

    assert call(command, "--size", "0").exit_code == 2
    told = call(command, "--help").output
    assert "How large." in told
    # Brackets are no markup.
    assert "Louder: edge-rt[loud]." in told


def test_help_shows_no_python_types(capsys):
    for command in ("chat", "pull", "train"):
        assert main([command, "--help"]) == 0
        told = capsys.readouterr().out
        assert "--help" in told
        assert re.findall(r"<(?:bool|str|int|float|list.*)>", told) == []


def test_a_flag_that_two_groups_have_is_refused():
    def command(one: Group, two: Group) -> int:
        return one.size + two.size

    with pytest.raises(TypeError, match="takes loud twice"):
        Spread(command)


def test_a_parameter_that_is_no_flag_is_refused():
    def command(size: int) -> int:
        return size

    with pytest.raises(TypeError, match="neither a flag nor an argument"):
        Spread(command)


def test_what_the_table_for_users_of_other_programs_names_exists():
    table = (CLI.parents[1] / "docs" / "coming-from.md").read_text(encoding="utf-8")
    ours = " ".join(row.rsplit("|", 2)[1] for row in table.splitlines() if row.startswith("| "))
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", ours))
    known = {word for line in SNAPSHOT.read_text(encoding="utf-8").splitlines() for word in line.split()}
    assert len(named) > 20
    assert named - known == set()
    verbs = set(re.findall(r"edge-rt ([a-z]+)", ours))
    assert verbs <= {line.split()[1].rstrip(":") for line in SNAPSHOT.read_text(encoding="utf-8").splitlines()}


@pytest.mark.parametrize(
    ("flag", "typed", "names"),
    [
        (flags.KV_TYPE, "int", ["int8", "int4", "int4x2"]),
        (flags.DEVICE, "c", ["cpu", "cuda"]),
        (flags.ISA, "scal", ["scalar"]),
        (making_flags.WEIGHTS, "int", ["int4", "int8"]),
        (answer_flags.ACCEPT, "", ["match", "ratio"]),
        (flags.SPEC, "s", ["suffix", "self"]),
    ],
)
def test_fixed_names_are_completed(flag, typed, names):
    assert flag.complete(typed) == names


def test_plan_completes_other_machines_too():
    assert flags.planned_devices("rpi5") == ["rpi5-8gb"]
    assert set(flags.planned_devices("")) > {"cpu", "list", "rpi5-8gb"}


def test_minus_one_token_is_no_limit():
    assert SamplingFlags(max_tokens=-1).config().max_tokens is None
    with pytest.raises(ConfigError, match="at least 1"):
        SamplingFlags(max_tokens=-2).config()
    with pytest.raises(ConfigError, match=r"The option -n is out of range. Got 0, wanted .* or -1 for no limit"):
        SamplingFlags(max_tokens=0).config()


def test_a_model_is_given_once_and_is_no_prompt():
    assert ModelFlags(named="org/name").reference == ModelFlags(model="org/name").reference == "org/name"
    with pytest.raises(ConfigError, match="given twice"):
        _ = ModelFlags(named="a", model="b").reference
    with pytest.raises(ConfigError, match="A prompt goes to edge-rt generate"):
        _ = ModelFlags(named="Hello there").reference


def test_names_of_this_machine_are_completed_first(tmp_path, monkeypatch):
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    complete, stored = flags.MODEL.complete, flags.NAME_ARGUMENT.complete
    catalogue = complete("")
    assert stored("") == []
    (tmp_path / "edge-rt").mkdir()
    (tmp_path / "edge-rt" / "config.toml").write_text('[presets.smart]\nmodel = "qwen3-0.6b"\n', encoding="utf-8")
    assert complete("") == stored("") == ["smart"]
    assert complete("s") == ["smart", *(name for name in catalogue if name.startswith("s"))]
    assert len(complete("s")) > 1
    assert complete("qwen3") == [name for name in catalogue if name.startswith("qwen3")]


@pytest.mark.parametrize("flag", [flags.KV_TYPE, flags.SPEC, flags.DEVICE], ids=lambda flag: flag.names[0])
def test_a_name_is_completed_once(flag):
    found = flag.complete("")
    assert len(found) == len(set(found)) > 1
