"""Commands with groups of flags as commands of typer, which reads what is unusual, completes, and shows ``--help``."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from edge_rt.cli.options.spread import REQUIRED, Flag, Parameter, Spread

_MARKUP: Final = re.compile(r"\[(?=[a-z#/@])")


def literal(text: str) -> str:
    """Return a text whose brackets ``--help`` shows, instead of taking them for markup: ``edge-rt[cpu]``."""
    return _MARKUP.sub(r"\\[", text)


def typer_command(command: Callable[..., int]) -> Callable[..., int]:
    """Turn a function that takes groups of flags, see ``Spread``, into one whose parameters typer reads."""
    spread = Spread(command)

    @functools.wraps(command)
    def run(**values: Any) -> int:
        return spread(**values)

    parameters = [_typer_parameter(parameter) for parameter in spread.parameters.values()]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        # Required parameters come first, as in any signature.
        sorted(parameters, key=lambda parameter: parameter.default is not inspect.Parameter.empty),
        return_annotation=int,
    )
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _typer_parameter(parameter: Parameter) -> inspect.Parameter:
    default = inspect.Parameter.empty if parameter.default is REQUIRED else parameter.default
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[parameter.kind, _typer_declaration(parameter)],
    )


def _typer_declaration(parameter: Parameter) -> Any:
    """Return the typer option or argument of a parameter; paths have a parser, other types tell how they are read."""
    declaration = parameter.declaration
    parser = _path if parameter.value_kind is Path else None
    if not isinstance(declaration, Flag):
        return typer.Argument(
            metavar=declaration.metavar,
            help=literal(declaration.help),
            autocompletion=declaration.complete,
            parser=parser,
        )
    return typer.Option(
        *declaration.names,
        help=literal(declaration.help),
        metavar=declaration.metavar,
        show_default=False if declaration.shown is None else declaration.shown,
        rich_help_panel=declaration.panel,
        min=declaration.least,
        hidden=declaration.is_hidden,
        autocompletion=declaration.complete,
        parser=parser,
    )


def _path(text: str) -> Path:
    """Return a path; no text at all would be the present folder."""
    if not text:
        raise typer.BadParameter("the path is empty. Is a variable of the shell unset?")
    return Path(text)


class PlainCommand(TyperCommand):
    """A command whose ``--help`` shows no type behind switches and arguments."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, those of typer itself included."""
        return _without_types(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands whose ``--help`` shows no type behind switches."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, those of typer itself included."""
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            # Where it is None, newer versions of typer write <bool>, and a user types `--json true`.
            parameter.metavar = ""
        elif parameter.param_type_name == "argument":
            parameter.display_type_rich = _no_type
    return parameters


def _no_type(ctx: Any) -> None:
    del ctx
