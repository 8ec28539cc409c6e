"""What is read without typer is what typer would read."""

from __future__ import annotations

from functools import cache
from types import FunctionType

import pytest
import typer
from hypothesis import given, settings, strategies as st

from edge_rt.cli.options.plain_reading import read_plainly
from edge_rt.cli.options.spread import Flag, Spread
from edge_rt.cli.options.typer_commands import PlainCommand, typer_command
from edge_rt.cli.overview import COMMANDS
from tests.helpers.examples import share_of

VALUES = (
    "5",
    "0",
    "-1",
    "0.7",
    "1e3",
    " 7",
    "007",
    "1_0",
    "nan",
    ".5",
    "x",
    "a=b",
    "two words\n",
    "ä",
    "",
    "-",
    "--",
    "\ud800",
)


@cache
def functions() -> dict[str, FunctionType]:
    loaded = {name: command.load() for name, command in COMMANDS.items()}
    return {name: function for name, function in loaded.items() if isinstance(function, FunctionType)}


@cache
def by_typer(name: str):
    """The command as typer reads it, which returns what it has read."""
    command = typer_command(functions()[name])

    def told(**values):
        return values

    told.__signature__, told.__annotations__ = command.__signature__, command.__annotations__
    program = typer.Typer()
    program.command(cls=PlainCommand)(told)
    return typer.main.get_command(program)


def typer_reads(name, words):
    """Values of the parameters; None for an error, and where ``--help`` is shown."""
    try:
        values = by_typer(name).main(args=list(words), prog_name="edge-rt", standalone_mode=False)
    except Exception as error:
        # Of usage errors; the module of their class differs between versions of typer.
        if not hasattr(error, "format_message"):
            raise
        return None
    return values if isinstance(values, dict) else None


@st.composite
def command_lines(draw):
    name = draw(st.sampled_from(sorted(functions())))
    parameters = Spread(functions()[name]).parameters.values()
    spelled = {part for one in parameters if isinstance(one.declaration, Flag) for part in one.declaration.names}
    flags = st.sampled_from(sorted(half for part in spelled for half in part.split("/")))
    values = st.sampled_from(VALUES)
    word = flags | values | st.builds("{}={}".format, flags, values) | st.builds("{}{}".format, flags, values)
    pair = st.tuples(flags, values)
    groups = draw(st.lists(pair | st.tuples(word), max_size=6))
    return name, [word for group in groups for word in group]


@settings(max_examples=share_of(400), deadline=None)
@given(command_lines())
def test_a_line_is_read_as_by_typer_or_left_to_it(line):
    name, words = line
    values = read_plainly(Spread(functions()[name]), words)
    if values is not None:
        assert {key: repr(value) for key, value in values.items()} == {
            key: repr(value) for key, value in (typer_reads(name, words) or {}).items()
        }


@pytest.mark.parametrize(
    "line",
    [
        "generate hi -n 1",
        "generate -p hi -m org/name --temp 0.7 --top-k 40 --spec off --stop a --stop b --json",
        "chat smollm2 --ctx=4096 --no-stats",
        "bench -m x --pp 128 --pp 512",
        "list --store /tmp/store",
        "export -m x --out y --force",
    ],
)
def test_usual_lines_need_no_typer(line):
    name, *words = line.split()
    values = read_plainly(Spread(functions()[name]), words)
    assert values == typer_reads(name, words) != None  # noqa: E711


@pytest.mark.parametrize(
    "line", ["generate --help", "generate -qv hi", "generate -n one", "generate -n 1.5", "generate a b", "export -m x"]
)
def test_unusual_and_wrong_lines_are_left_to_typer(line):
    name, *words = line.split()
    assert read_plainly(Spread(functions()[name]), words) is None
