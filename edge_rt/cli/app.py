"""The subcommands of ``edge-rt``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from edge_rt.cli.commands.bench import bench
from edge_rt.cli.commands.chat import chat
from edge_rt.cli.commands.corpus import corpus_app
from edge_rt.cli.commands.doctor import doctor
from edge_rt.cli.commands.export import export
from edge_rt.cli.commands.generate import generate
from edge_rt.cli.commands.inspect import inspect
from edge_rt.cli.commands.models import list_models, pull, rm
from edge_rt.cli.commands.plan import plan
from edge_rt.cli.commands.profile import profile
from edge_rt.cli.commands.train import train_app
from edge_rt.cli.commands.verify import verify
from edge_rt.cli.options.shown import PlainCommand, PlainGroup
from edge_rt.cli.options.spread import spread
from edge_rt.cli.render.console import Terminal
from edge_rt.version import VERSION

app = typer.Typer(
    name="edge-rt",
    cls=PlainGroup,
    no_args_is_help=True,
    # Old versions of typer show the marks that keep brackets from being markup, unless they are told that it is.
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run language models on your own device.",
    epilog="Exit codes: 0 success, 1 unexpected, 2 usage, 3 input, 4 memory, 5 runtime, 6 storage, "
    "129 lost terminal, 130 Ctrl-C, 141 output pipe closed, 143 SIGTERM.",
)
_PANELS: Final = {
    "Answers": (chat, generate),
    "Models": (pull, list_models, rm, inspect, export),
    "Memory and speed": (plan, profile, bench, verify, doctor),
}
for panel, commands in _PANELS.items():
    for command in commands:
        name = "list" if command is list_models else None
        app.command(name=name, cls=PlainCommand, rich_help_panel=panel)(spread(command))
app.add_typer(corpus_app, name="corpus", rich_help_panel="Faster answers")
app.add_typer(train_app, name="train", rich_help_panel="Faster answers")


def _print_version(wanted: bool) -> None:
    if wanted:
        Terminal().line(f"edge-rt {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version
