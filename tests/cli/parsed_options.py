"""Every option that the command line parses, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer


def describe(app: typer.Typer) -> list[str]:
    """Return a line for every option and argument of every command: spelling, kind, default, what help shows of it."""
    return list(_commands(typer.main.get_command(app), "edge-rt"))


def _commands(command: Any, path: str) -> Iterator[str]:
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(inner, f"{path} {name}")
    for line in sorted(_line(parameter) for parameter in command.params):
        yield f"{path}: {line}"


def _line(parameter: Any) -> str:
    # Where the range of a number is kept differs between versions of typer.
    least = getattr(parameter, "min", None)
    if least is None:
        least = getattr(getattr(parameter, "type", None), "min", None)
    shown = getattr(parameter, "show_default", None)
    facts = {
        "flag": getattr(parameter, "is_flag", False) or None,
        "repeatable": getattr(parameter, "multiple", False) or parameter.nargs == -1 or None,
        "required": parameter.required or None,
        "hidden": getattr(parameter, "hidden", False) or None,
        "metavar": parameter.metavar,
        "least": least,
        "default": parameter.default if isinstance(parameter.default, int | float | str) else None,
        "shown": shown if isinstance(shown, str) else None,
    }
    given = [name if value is True else f"{name}={value}" for name, value in facts.items() if value is not None]
    return " ".join([" ".join([*parameter.opts, *parameter.secondary_opts]), *given])


if __name__ == "__main__":
    from edge_rt.cli.command_line import command_line

    print("\n".join(line for line in describe(command_line()) if "-completion" not in line))
