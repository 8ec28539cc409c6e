"""Fields of requests: tables say what may be in them; requests are read by these, and the API is described by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final

from edge_rt.package.sampling import is_int, is_number
from edge_rt.server.failures import HTTPFailure, unsupported, wrong_field


@dataclass(frozen=True)
class Kind:
    """What the value of a field may be.

    Attributes:
        schema: the same as a JSON schema.
        wanted: the same in words.
        most: entries of a list or an object.
        table: the fields of an object, or of each object of a list.
        instead: what to do without it, if nobody can have it.
    """

    schema: Mapping[str, Any]
    wanted: str
    fits: Callable[[Any], bool]
    most: int | None = None
    table: Table | None = None
    is_required: bool = False
    instead: str = ""


Table = Mapping[str, Kind]
"""The fields of a request or of an object in it; others are ignored, unless they are slips."""
_SHORTEST: Final = 6
"""Letters of a field's name of which another one may be a slip: ``tool`` and ``top_a`` are names that clients have."""
_MOST_UNKNOWN: Final = 64
"""Names that are looked at of those that the table does not have."""


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


TEXT: Final = Kind({"type": "string"}, "a text", _is(str))
FLAG: Final = Kind({"type": "boolean"}, "true or false", _is(bool))
ANYTHING: Final = Kind({}, "anything", lambda _: True)


def refused(instead: str) -> Kind:
    """Return the kind of what this server cannot do.

    Args:
        instead: what to do, in a sentence.
    """
    return Kind({"type": "null"}, "not supported", lambda _: False, instead=instead)


def whole(least: int, most: int) -> Kind:
    """Return the kind of whole numbers within bounds, both inclusive."""
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Kind(schema, f"a whole number from {least} to {most}", partial(is_int, minimum=least, maximum=most))


def number(least: float, most: float, *, below: bool = False) -> Kind:
    """Return the kind of numbers within bounds, both inclusive; or below the upper one."""
    schema = {"type": "number", "minimum": least, "exclusiveMaximum" if below else "maximum": most}
    wanted = f"a number from {least:g} to {'below ' * below}{most:g}"
    return Kind(schema, wanted, lambda value: is_number(value, least, most) and not (below and value == most))


def one_of(*texts: str) -> Kind:
    """Return the kind of some texts."""
    return Kind({"type": "string", "enum": [*texts]}, " or ".join(f"'{text}'" for text in texts), texts.__contains__)


def listed(of: Kind, most: int) -> Kind:
    """Return the kind of lists; their entries are looked at by whoever reads them."""
    return Kind({"type": "array", "items": of.schema, "maxItems": most}, "a list", _is(list), most)


def inner(table: Table) -> Kind:
    """Return the kind of objects with such fields."""
    return Kind(schema_of(table), "an object", _is(dict), table=table)


def objects(table: Table, most: int) -> Kind:
    """Return the kind of lists of objects with such fields."""
    return replace(listed(inner(table), most), table=table)


def mapping(of: Kind, most: int) -> Kind:
    """Return the kind of objects whose fields have names of the client's own; values as with ``listed``."""
    schema = {"type": "object", "additionalProperties": of.schema, "maxProperties": most}
    return Kind(schema, "an object", _is(dict), most, table={})


def either(*kinds: Kind) -> Kind:
    """Return what is one of some kinds."""
    most = next((kind.most for kind in kinds if kind.most is not None), None)
    table = next((kind.table for kind in kinds if kind.table is not None), None)
    wanted = " or ".join(kind.wanted for kind in kinds)
    schema = {"anyOf": [kind.schema for kind in kinds]}
    return Kind(schema, wanted, lambda value: any(kind.fits(value) for kind in kinds), most, table)


def needed(kind: Kind) -> Kind:
    """Return the kind of a field that has to be there."""
    return replace(kind, is_required=True)


def schema_of(table: Table) -> dict[str, Any]:
    """Return the JSON schema of an object with such fields."""
    schema: dict[str, Any] = {"type": "object", "properties": {name: _schema(kind) for name, kind in table.items()}}
    if required := [name for name, kind in table.items() if kind.is_required]:
        schema["required"] = required
    return schema


def _schema(kind: Kind) -> Mapping[str, Any]:
    """Return the schema of a field: null is as if it were not there."""
    if kind.is_required or kind.instead or not kind.schema:
        return kind.schema
    return {"anyOf": [kind.schema, {"type": "null"}]}


def _num_alike(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _is_slip(name: str, known: str) -> bool:
    """Return whether a name is a known one in another case or with one letter wrong, missing, too many or swapped."""
    one, other = (text.lower().replace("_", "").replace("-", "") for text in (name[: len(known) + 8], known))
    start = _num_alike(one, other)
    one, other = one[start:], other[start:]
    end = _num_alike(one[::-1], other[::-1])
    one, other = one[: len(one) - end], other[: len(other) - end]
    return len(one) <= 1 >= len(other) or (len(one) == 2 and one == other[::-1])


class Fields:
    """The fields of a JSON object; a value of null is as if the field were not there.

    Args:
        values: the object.
        table: its fields; no other is read.
        where: the field that holds it, for messages; empty: it is the request.
    """

    def __init__(self, values: Mapping[str, Any], table: Table, where: str = "") -> None:
        self.values, self._table, self._where = values, table, where

    def __contains__(self, name: str) -> bool:
        return self.raw(name) is not None

    def name_of(self, name: str) -> str:
        """Return a field's name as messages have it."""
        return f"{self._where}.{name}" if self._where else name

    def raw(self, name: str) -> Any:
        """Return a value as it is; None if it is not there."""
        assert name in self._table, f"the table has no field {name}"
        return self.values.get(name)

    def value(self, name: str) -> Any:
        """Return a value of the field's kind, or None.

        Raises:
            HTTPFailure: it is of another kind, or has too many entries.
        """
        value, kind = self.raw(name), self._table[name]
        if value is None:
            return None
        if kind.instead:
            raise unsupported(self.name_of(name), f"The field '{name}' is not supported. {kind.instead}")
        if not kind.fits(value):
            raise wrong_field(self.name_of(name), kind.wanted, value)
        if kind.most is not None and not isinstance(value, str) and len(value) > kind.most:
            what = f"The field '{self.name_of(name)}' has {len(value)} entries; the limit is {kind.most}."
            raise HTTPFailure(400, what, param=self.name_of(name))
        return value

    @property
    def unknown(self) -> list[str]:
        """Names that the table does not have; the first ones, of very many."""
        names = (name for name, value in self.values.items() if value is not None and name not in self._table)
        return list(islice(names, _MOST_UNKNOWN))

    def check(self) -> None:
        """Refuse a field of another kind than the table's, also where nothing comes to read it, and slips.

        Raises:
            HTTPFailure: as ``value``; or a name is one slip away from a field that is not there.
        """
        for name in self._table:
            self.value(name)
        self._check_names()
        for name, kind in self._table.items():
            # Not of lists: messages carry what other programs have written into them.
            if kind.table and kind.most is None and isinstance(self.raw(name), dict):
                self._inner(name)._check_names()

    def _check_names(self) -> None:
        for name in self.unknown:
            for meant, kind in self._table.items():
                is_to_have = not kind.instead and len(meant) >= _SHORTEST and meant not in self
                if is_to_have and _is_slip(name, meant):
                    what = f"There is no field '{self.name_of(name)}'. Did you mean '{meant}'?"
                    raise HTTPFailure(400, what, param=self.name_of(name), code="unknown_parameter")

    def text(self, name: str) -> str | None:
        """Return a text, or None."""
        value: str | None = self.value(name)
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return true or false."""
        value: bool | None = self.value(name)
        return default if value is None else value

    def whole(self, name: str) -> int | None:
        """Return a whole number, or None."""
        value: int | None = self.value(name)
        return value

    def items(self, name: str) -> Sequence[Any]:
        """Return the entries of a list, which may be of any kind."""
        value: Sequence[Any] | None = self.value(name)
        return value or ()

    def objects(self, name: str) -> list[Fields]:
        """Return the fields of each object of a list."""
        entries = []
        for index, one in enumerate(self.items(name)):
            where = f"{self.name_of(name)}[{index}]"
            if not isinstance(one, dict):
                raise wrong_field(where, "an object", one)
            entries.append(Fields(one, self._table[name].table or {}, where))
        return entries

    def inner(self, name: str) -> Fields | None:
        """Return the fields of an object, or None."""
        return None if self.value(name) is None else self._inner(name)

    def _inner(self, name: str) -> Fields:
        return Fields(self.raw(name), self._table[name].table or {}, self.name_of(name))

    def required(self, name: str) -> Any:
        """Return a value that has to be there."""
        if (value := self.value(name)) is None:
            what = f"The request has no field '{self.name_of(name)}'."
            raise HTTPFailure(400, what, param=self.name_of(name), code="missing_required_parameter")
        return value
