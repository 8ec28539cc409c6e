"""Commands that take groups of flags, dataclasses whose fields are flags; what reads them stands beside."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from edge_rt.errors import StorageError


@dataclass(frozen=True)
class Flag:
    """One flag of the command line.

    Attributes:
        shown: default that ``--help`` shows; None shows nothing.
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


@dataclass(frozen=True)
class Argument:
    """One positional argument of a command line."""

    metavar: str
    help: str
    complete: Callable[[str], list[str]] | None = None


@dataclass(frozen=True)
class Only:
    """Selects some flags of a group; the others keep their defaults."""

    names: tuple[str, ...]


def only(*names: str) -> Only:
    """Select only these flags of a group: an annotation of its type, ``Annotated[LoadFlags, only("model")]``."""  # noqa: D402
    return Only(names)


REQUIRED: Final = dataclasses.MISSING
"""Default of a parameter that has to be given."""


@dataclass(frozen=True)
class Parameter:
    """A flag or an argument of a command.

    Attributes:
        kind: type of its value, such as ``list[int] | None``.
        default: value where it is not given; ``REQUIRED``: it has to be.
    """

    name: str
    declaration: Flag | Argument
    kind: Any
    default: Any

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return any(get_origin(kind) is list for kind in self._kinds)

    @property
    def value_kind(self) -> Any:
        """Type of one value: ``int`` for ``list[int] | None``."""
        kind = next(kind for kind in self._kinds if kind is not type(None))
        return get_args(kind)[0] if self.is_list else kind

    @property
    def _kinds(self) -> tuple[Any, ...]:
        return get_args(self.kind) if isinstance(self.kind, UnionType) else (self.kind,)


class Spread:
    """A function that takes groups of flags, as a command with parameters.

    A parameter of the function whose type is a dataclass is a group: the command has the group's flags, in their order,
    and the function gets the dataclass. Every other parameter is a single flag or argument. Fields that are not flags
    keep their defaults. Groups are created when the command starts, in the order of the parameters; one with a method
    ``completed`` is replaced by what that makes of all groups.
    """

    def __init__(self, command: Callable[..., int]) -> None:
        self.command = command
        self.parameters: dict[str, Parameter] = {}
        self._groups: dict[str, tuple[Any, tuple[str, ...]]] = {}
        hints = get_type_hints(command, include_extras=True)
        for name, given in inspect.signature(command).parameters.items():
            kind, marks = _unwrap(hints[name])
            if dataclasses.is_dataclass(kind):
                flags = dict(_flags(kind, marks))
                self._groups[name] = (kind, tuple(flags))
            else:
                default = REQUIRED if given.default is given.empty else given.default
                flags = {name: _declared(hints[name], default, name)}
            if twice := self.parameters.keys() & flags.keys():
                raise TypeError(f"{command.__name__} takes {min(twice)} twice")
            self.parameters |= flags

    def __call__(self, **values: Any) -> int:
        """Run the command with a value for every parameter."""
        groups = self._groups.items()
        made = {name: kind(**{flag: values.pop(flag) for flag in flags}) for name, (kind, flags) in groups}
        others = tuple(made.values())
        for name, group in made.items():
            if hasattr(group, "completed"):
                made[name] = group.completed(others)
        return self.command(**made, **values)


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        kind, *marks = get_args(hint)
        return kind, tuple(marks)
    return hint, ()


def _flags(group: Any, marks: tuple[Any, ...]) -> Iterator[tuple[str, Parameter]]:
    """Yield the flags of a group, or the selected ones."""
    taken = next((mark.names for mark in marks if isinstance(mark, Only)), None)
    hints: Mapping[str, Any] = get_type_hints(group, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(group) if _declaration(hints[field.name]) is not None}
    for name in fields if taken is None else taken:
        yield name, _declared(hints[name], fields[name].default, name)


def _declaration(hint: Any) -> Flag | Argument | None:
    return next((mark for mark in _unwrap(hint)[1] if isinstance(mark, Flag | Argument)), None)


def _declared(hint: Any, default: Any, name: str) -> Parameter:
    declaration = _declaration(hint)
    if declaration is None:
        raise TypeError(f"{name} is neither a flag nor an argument")
    return Parameter(name, declaration, _unwrap(hint)[0], default)


def path_of(argument: str) -> Path:
    """Return the path that a command's argument means: quotes around it are removed, ``~`` is expanded."""
    is_quoted = len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "\"'"
    path = Path(argument[1:-1] if is_quoted else argument)
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise StorageError(f"{path} names an unknown user.", f"{error}.", "Write the path out.") from error
