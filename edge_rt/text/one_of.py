"""Whether the branches of ``oneOf`` exclude each other: then no value fits two, and ``anyOf`` says the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

_TYPES: Final = frozenset(("null", "boolean", "number", "string", "array", "object"))
_Values = set[str] | None
"""The only values that fit, as JSON; None where that is not said. Numbers that are equal are one."""
_ValuesOf = Callable[[Mapping[str, Any]], tuple[_Values, set[str]]]

_MOST_COMPARED: Final = 100_000
"""Pairs of branches, their required properties, and schemas that they combine; as many take half a second."""
_MOST_VIEWS: Final = 64
"""Of one branch: a reference may lead back to where it stands."""


class Branches:
    """Compares branches of all ``oneOf`` of a schema.

    Args:
        root: the schema, which references lead into.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._compared = 0
        # By the identity of schemas, which are kept so that it stays theirs.
        self._known: dict[int, tuple[Mapping[str, Any], _Values, set[str]]] = {}

    def overlap_of(self, branches: Sequence[Any], outside: Mapping[str, Any], *, follows: bool) -> str | None:
        """Return why two branches may fit the same value; None if no two do.

        Args:
            outside: what stands beside the branches: it holds in all of them.
            follows: whether references of the branches start from the root.
        """
        root = self._root if follows else None
        all_of: list[_Branch] = []
        for branch in branches:
            all_of.append(_Branch([outside, *_views(branch, root)], self._values_of))
            self._compared += all_of[-1].cost
            if self._compared > _MOST_COMPARED:
                return "its branches are too large to compare"
        if _have_values_of_their_own(all_of):
            return None
        for second, other in enumerate(all_of):
            for first, one in enumerate(all_of[:second]):
                self._compared += 1 + len(one.required) + len(other.required)
                if self._compared > _MOST_COMPARED:
                    return "its branches are too many to compare each with each"
                if not _are_disjoint(one, other):
                    return f"branches {first} and {second} may both fit the same value"
        return None

    def _values_of(self, view: Mapping[str, Any]) -> tuple[_Values, set[str]]:
        """Return the only values that fit one schema, and the types of values that do."""
        if id(view) not in self._known:
            types = set(_TYPES)
            if (named := view.get("type")) is not None:
                names = {named} if isinstance(named, str) else set(texts_in(named))
                types &= {"number" if name == "integer" else name for name in names}
            listed = [view["const"]] if "const" in view else view.get("enum")
            values = {_spelled(value) for value in listed} if isinstance(listed, list) else None
            if values is not None:
                types &= {_type_of(value) for value in values}
            self._known[id(view)] = view, values, types
        return self._known[id(view)][1:]


def may_occur(schema: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return whether an object may have a property, as far as its own keywords say."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return lambda name: known[name] is not False if name in known else not is_closed


def texts_in(value: Any) -> list[str]:
    """Return the texts of a list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def is_resource(schema: Mapping[str, Any]) -> bool:
    """Return whether references within a schema start from itself, not from the root."""
    return any(isinstance(schema.get(name), str) for name in ("$id", "id"))


def _views(branch: Any, root: Any) -> Iterator[Mapping[str, Any]]:
    """Yield schemas that a value of a branch has to fit all of."""
    waiting, steps = [(branch, root)], 0
    while waiting and steps < _MOST_VIEWS:
        steps += 1
        one, base = waiting.pop()
        if one is False:
            yield {"enum": []}
        if not isinstance(one, dict):
            continue
        yield one
        if one is not root and is_resource(one):
            base = None
        if (target := target_of(one.get("$ref"), base)) is not None:
            waiting.append((target, base))
        if isinstance(parts := one.get("allOf"), list):
            waiting.extend((part, base) for part in parts)


def target_of(reference: Any, root: Any) -> Any:
    """Return what a reference names; None for an anchor, another document, and what lies in a resource of its own."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    target = root
    for part in reference[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
        if isinstance(target, dict) and is_resource(target):
            return None
    return target


class _Branch:
    """What the schemas say that a value has to fit all of.

    Attributes:
        types: of values that fit.
        required: properties that an object must have.
        cost: how much was looked at.
    """

    def __init__(self, views: Sequence[Mapping[str, Any]], values_of: _ValuesOf) -> None:
        self._views = views
        self._values_of = values_of
        self._properties: dict[str, _Branch] = {}
        self.required = {name for view in views for name in texts_in(view.get("required"))}
        self.values: _Values = None
        self.types = set(_TYPES)
        self.cost = len(views)
        for view in views:
            values, types = values_of(view)
            self.types &= types
            if self.values is None:
                self.values = values
            elif values is not None:
                self.cost += min(len(values), len(self.values)) // 16
                self.values = self.values & values

    def property(self, name: str) -> _Branch:
        """Return what they say of a property."""
        if name not in self._properties:
            properties = (view.get("properties") for view in self._views)
            views = [one[name] for one in properties if isinstance(one, dict) and isinstance(one.get(name), dict)]
            self._properties[name] = _Branch(views, self._values_of)
        return self._properties[name]

    def lacks(self, name: str) -> bool:
        """Return whether an object that fits cannot have a property."""
        return any(not may_occur(view)(name) for view in self._views)


def _have_values_of_their_own(branches: Sequence[_Branch]) -> bool:
    """Return whether all branches differ in their values, or in those of one property; it does not compare pairs."""
    if _are_apart([branch.values for branch in branches]):
        return True
    if any(branch.types != {"object"} for branch in branches):
        return False
    shared = set.intersection(*(branch.required for branch in branches))
    return any(_are_apart([branch.property(name).values for branch in branches]) for name in shared)


def _are_apart(values: Sequence[_Values]) -> bool:
    known: set[str] = set()
    for one in values:
        if one is None or not known.isdisjoint(one):
            return False
        known |= one
    return True


def _are_disjoint(one: _Branch, other: _Branch) -> bool:
    """Return whether no value can fit both; False where that is not certain."""
    if _differ(one, other):
        return True
    if one.types & other.types != {"object"}:
        return False
    if any(_differ(one.property(name), other.property(name)) for name in one.required & other.required):
        return True
    return any(one.lacks(name) for name in other.required) or any(other.lacks(name) for name in one.required)


def _differ(one: _Branch, other: _Branch) -> bool:
    if not one.types & other.types:
        return True
    return one.values is not None and other.values is not None and one.values.isdisjoint(other.values)


def _type_of(value: str) -> str:
    kinds = {'"': "string", "[": "array", "{": "object", "t": "boolean", "f": "boolean", "n": "null"}
    return kinds.get(value[0], "number")


def _spelled(value: Any) -> str:
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_whole_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
