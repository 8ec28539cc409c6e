"""The command line as typer knows it: for unusual words, for errors, for ``--help`` of commands, for completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from edge_rt.cli.options.typer_commands import PlainCommand, PlainGroup, typer_command
from edge_rt.cli.overview import ABOUT, COMMANDS, EXIT_CODES, overview
from edge_rt.cli.render.console import OutputClosed, Terminal
from edge_rt.version import VERSION


def run(arguments: list[str]) -> int:
    """Run one command line.

    Raises:
        Exception: what the command raises, and typer's own errors about the arguments.
    """
    command = typer.main.get_command(command_line(arguments))
    try:
        code = command.main(args=arguments, prog_name="edge-rt", standalone_mode=False)
    except SystemExit as stop:
        # The libraries that write a page of help end the process themselves where nobody reads it.
        if isinstance(stop.__context__, BrokenPipeError):
            raise OutputClosed from stop
        raise
    return code if isinstance(code, int) else 0


class _Program(PlainGroup):
    """All commands; its ``--help`` is the overview."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the overview."""
        del ctx, formatter
        Terminal().page(overview)


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the command line for these arguments.

    It has all commands, unless the arguments name one: importing the others would take a quarter of a second.
    """
    word = next((argument for argument in arguments if not argument.startswith("-")), "")
    app = typer.Typer(
        name="edge-rt",
        cls=_Program,
        no_args_is_help=True,
        # Old versions of typer show the marks that keep brackets from being markup, unless they are told that it is.
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=ABOUT,
        epilog=EXIT_CODES,
    )
    app.callback()(_root)
    for name in [word] if word in COMMANDS else COMMANDS:
        command, panel = COMMANDS[name].load(), COMMANDS[name].panel
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name=name, cls=PlainCommand, rich_help_panel=panel)(typer_command(command))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        Terminal().line(f"edge-rt {VERSION}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version
