"""Whether the branches of ``oneOf`` exclude each other: then no value fits two, and ``anyOf`` says the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

_MOST_VIEWS: Final = 64
"""Of one branch: a reference may lead back to where it stands."""


def overlap_of(branches: Sequence[Any], outside: Mapping[str, Any], root: Any) -> tuple[int, int] | None:
    """Return the numbers of two branches that may fit the same value; None if no two do.

    Args:
        outside: what stands beside the branches: it holds in all of them.
        root: the schema that references lead into; None: they lead elsewhere.
    """
    views = [list(_views(branch, root)) for branch in branches]
    for second in range(len(views)):
        for first in range(second):
            if not _are_disjoint(views[first], views[second], outside):
                return first, second
    return None


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
        if (target := _target(one.get("$ref"), base)) is not None:
            waiting.append((target, base))
        if isinstance(parts := one.get("allOf"), list):
            waiting.extend((part, base) for part in parts)


def _target(reference: Any, root: Any) -> Any:
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


_TYPES: Final = frozenset(("null", "boolean", "number", "string", "array", "object"))


def _are_disjoint(
    first: Iterable[Mapping[str, Any]], second: Iterable[Mapping[str, Any]], outside: Mapping[str, Any]
) -> bool:
    """Return whether no value can fit both; False where that is not certain."""
    one, other = [outside, *first], [outside, *second]
    types = _types_of(one) & _types_of(other)
    if not types:
        return True
    values, others = _values_of(one), _values_of(other)
    if values is not None and others is not None and not values & others:
        return True
    if types != {"object"}:
        return False
    shared = _required_of(one) & _required_of(other)
    if any(_differ(_property(one, name), _property(other, name)) for name in shared):
        return True
    return any(_is_missing(one, name) for name in _required_of(other)) or any(
        _is_missing(other, name) for name in _required_of(one)
    )


def _differ(first: list[Mapping[str, Any]], second: list[Mapping[str, Any]]) -> bool:
    if not (_types_of(first) & _types_of(second)):
        return True
    values, others = _values_of(first), _values_of(second)
    return values is not None and others is not None and not values & others


def _property(views: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    found = (view.get("properties") for view in views)
    return [one[name] for one in found if isinstance(one, dict) and isinstance(one.get(name), dict)]


def _is_missing(views: Iterable[Mapping[str, Any]], name: str) -> bool:
    """Return whether an object that fits cannot have a property."""
    return any(not may_occur(view)(name) for view in views)


def _required_of(views: Iterable[Mapping[str, Any]]) -> set[str]:
    return {name for view in views for name in texts_in(view.get("required"))}


def _types_of(views: Iterable[Mapping[str, Any]]) -> set[str]:
    result = set(_TYPES)
    for view in views:
        if (named := view.get("type")) is not None:
            names = {named} if isinstance(named, str) else set(texts_in(named))
            result &= {"number" if name == "integer" else name for name in names}
        if (values := _values_of([view])) is not None:
            result &= {_type_of(json.loads(value)) for value in values}
    return result


def _type_of(value: Any) -> str:
    names = {bool: "boolean", type(None): "null", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "number")


def _values_of(views: Iterable[Mapping[str, Any]]) -> set[str] | None:
    """Return the only values that fit, as JSON; None where that is not said. Numbers that are equal are one."""
    result: set[str] | None = None
    for view in views:
        listed = [view["const"]] if "const" in view else view.get("enum")
        if isinstance(listed, list):
            values = {_spelled(value) for value in listed}
            result = values if result is None else result & values
    return result


def _spelled(value: Any) -> str:
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_whole_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
