"""How ``--help`` shows switches and arguments: without a type behind them."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


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
