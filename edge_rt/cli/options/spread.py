"""Commands with groups of flags: dataclasses whose fields become typer parameters."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from edge_rt.errors import StorageError

_MARKUP: Final = re.compile(r"\[(?=[a-z#/@])")


@dataclass(frozen=True)
class Flag:
    """One flag of the command line.

    Attributes:
        names: its names, for example ``("-n", "--max-tokens")``.
        help: one sentence for ``--help``.
        metavar: placeholder of its value in ``--help``.
        shown: default that ``--help`` shows; None shows nothing.
        panel: heading in ``--help`` under which it is listed.
        least: smallest value of a number.
        is_hidden: whether ``--help`` omits it.
    """

    names: tuple[str, ...]
    help: str
    metavar: str | None = None
    shown: str | None = None
    panel: str | None = None
    least: int | None = None
    is_hidden: bool = False
    complete: Callable[[str], list[str]] | None = None

    def but(self, **changes: Any) -> Flag:
        """Return the flag with changes for one group: another text, default or panel."""
        return dataclasses.replace(self, **changes)

    def parameter(self, parser: Callable[[str], Any] | None = None) -> Any:
        """Return the typer option; ``parser`` reads its value, if its type does not tell how."""
        return typer.Option(
            *self.names,
            help=literal(self.help),
            metavar=self.metavar,
            show_default=False if self.shown is None else self.shown,
            rich_help_panel=self.panel,
            min=self.least,
            hidden=self.is_hidden,
            autocompletion=self.complete,
            parser=parser,
        )


def literal(text: str) -> str:
    """Return a text whose brackets ``--help`` shows, instead of taking them for markup: ``edge-rt[cpu]``."""
    return _MARKUP.sub(r"\\[", text)


@dataclass(frozen=True)
class Argument:
    """One positional argument of a command line.

    Attributes:
        metavar: its name in ``--help``.
        help: one sentence for ``--help``.
    """

    metavar: str
    help: str
    complete: Callable[[str], list[str]] | None = None

    def parameter(self, parser: Callable[[str], Any] | None = None) -> Any:
        """Return the typer argument; ``parser`` reads it, if its type does not tell how."""
        return typer.Argument(
            metavar=self.metavar, help=literal(self.help), autocompletion=self.complete, parser=parser
        )


@dataclass(frozen=True)
class Only:
    """Selects some flags of a group; the others keep their defaults."""

    names: tuple[str, ...]


def only(*names: str) -> Only:
    """Select only these flags of a group: an annotation of its type, ``Annotated[LoadFlags, only("model")]``."""  # noqa: D402
    return Only(names)


def spread(command: Callable[..., int]) -> Callable[..., int]:
    """Turn a function that takes groups of flags into a typer command.

    A parameter whose type is a dataclass is a group: typer sees the group's flags, in their order, and the function
    gets the dataclass. Every other parameter is a single flag or argument. Fields that are not flags keep their
    defaults. Groups are created when the command starts, in the order of the parameters; one with a method
    ``completed`` is replaced by what that makes of all groups.
    """
    groups: dict[str, tuple[Any, tuple[str, ...]]] = {}
    parameters: dict[str, inspect.Parameter] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, marks = _unwrap(hints[name])
        if dataclasses.is_dataclass(kind):
            flags = dict(_flags(kind, marks))
            groups[name] = (kind, tuple(flags))
        else:
            flags = {name: _declared(hints[name], parameter.default, name)}
        if twice := parameters.keys() & flags.keys():
            raise TypeError(f"{command.__name__} takes {min(twice)} twice")
        parameters |= flags

    @functools.wraps(command)
    def run(**values: Any) -> int:
        made = {name: kind(**{flag: values.pop(flag) for flag in flags}) for name, (kind, flags) in groups.items()}
        others = tuple(made.values())
        for name, group in made.items():
            if hasattr(group, "completed"):
                made[name] = group.completed(others)
        return command(**made, **values)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        # Required parameters come first, as in any signature.
        sorted(parameters.values(), key=lambda parameter: parameter.default is not inspect.Parameter.empty),
        return_annotation=int,
    )
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return run


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        kind, *marks = get_args(hint)
        return kind, tuple(marks)
    return hint, ()


def _flags(group: Any, marks: tuple[Any, ...]) -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield the flags of a group, or the selected ones."""
    taken = next((mark.names for mark in marks if isinstance(mark, Only)), None)
    hints: Mapping[str, Any] = get_type_hints(group, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(group) if _declaration(hints[field.name]) is not None}
    for name in fields if taken is None else taken:
        default = fields[name].default
        empty = inspect.Parameter.empty
        yield name, _declared(hints[name], empty if default is dataclasses.MISSING else default, name)


def _declaration(hint: Any) -> Flag | Argument | None:
    return next((mark for mark in _unwrap(hint)[1] if isinstance(mark, Flag | Argument)), None)


def _path(text: str) -> Path:
    """Return a path; no text at all would be the present folder."""
    if not text:
        raise typer.BadParameter("the path is empty. Is a variable of the shell unset?")
    return Path(text)


def _declared(hint: Any, default: Any, name: str) -> inspect.Parameter:
    """Return a parameter for typer."""
    declaration = _declaration(hint)
    if declaration is None:
        raise TypeError(f"{name} is neither a flag nor an argument")
    kind: Any = _unwrap(hint)[0]
    annotation = Annotated[kind, declaration.parameter(_path if Path in (kind, *get_args(kind)) else None)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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


def path_of(argument: str) -> Path:
    """Return the path that a command's argument means: quotes around it are removed, ``~`` is expanded."""
    is_quoted = len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "\"'"
    path = Path(argument[1:-1] if is_quoted else argument)
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise StorageError(f"{path} names an unknown user.", f"{error}.", "Write the path out.") from error
