"""Descriptions on disk: JSON of bounded size, turned into dataclasses with every field checked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from edge_rt.errors import InputError, kind_of
from edge_rt.system.byte_size import show_size

Refusal = Callable[[str, str], InputError]
"""Makes the error of a folder from its first two sentences: what is wrong, and the numbers."""

T = TypeVar("T")


def is_text(text: str) -> bool:
    """Return whether a text can be written as UTF-8: names of files and JSON may have lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_bounded(file: Path, limit: int, refuse: Refusal, *, name: str) -> bytes:
    """Return the content of a description.

    Args:
        limit: most bytes that it may have.
    """
    with file.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise refuse(f"the {name} is too large.", f"The limit is {show_size(limit)}.")
    return data


def parse_document(
    data: bytes, format_name: str, refuse: Refusal, *, name: str, owner: str, strict: bool = False
) -> dict[str, Any]:
    """Return a JSON object of a known format.

    Args:
        format_name: value of its field ``format``.
        owner: whose it should be, such as ``"an edge-rt package's"``.
        strict: refuse fields that are named twice, and numbers that JSON does not know, such as ``NaN``.

    Raises:
        InputError: it is not JSON, or of another format.
    """
    try:
        document = (
            json.loads(data, object_pairs_hook=_unique, parse_constant=_no_number) if strict else json.loads(data)
        )
    except (ValueError, RecursionError) as error:
        raise refuse(f"the {name} is not JSON.", f"{error}.") from error
    if not isinstance(document, dict) or document.get("format") != format_name:
        raise refuse(f"the {name} is not {owner}.", f"'format' must be '{format_name}'.")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"An object has the field {name!r:.80} twice")
        result[name] = value
    return result


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def build(kind: type[T], value: Any, where: str, refuse: Refusal) -> T:
    """Turn JSON into a dataclass; every missing, unknown or mistyped field is an error that names it.

    A field that has a default may be missing.

    Args:
        kind: the dataclass; its fields are dataclasses, tuples, mappings from texts, or plain values.
    """
    if not isinstance(value, dict):
        raise refuse(f"'{where}' must be an object.", f"Found {kind_of(value)}.")
    hints = get_type_hints(kind)
    entries = dataclasses.fields(cast("Any", kind))
    required = {entry.name for entry in entries if entry.default is dataclasses.MISSING}
    unknown = sorted(set(value) - set(hints))
    missing = sorted(required - set(value))
    if unknown or missing:
        raise refuse(
            f"'{where}' has the wrong fields.",
            f"Missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}.",
        )
    given = {name: hint for name, hint in hints.items() if name in value}
    return kind(**{name: _convert(hint, value[name], f"{where}.{name}", refuse) for name, hint in given.items()})


def _convert(hint: Any, value: Any, where: str, refuse: Refusal) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, where, refuse)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, list):
        return tuple(_convert(arguments[0], item, f"{where}[{i}]", refuse) for i, item in enumerate(value))
    is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
    if is_mapping and isinstance(value, dict):
        return {key: _convert(arguments[1], item, f"{where}.{key}", refuse) for key, item in value.items()}
    # What is left are plain values, and unions of them.
    allowed = (hint,) if origin is None or origin is tuple or is_mapping else arguments
    if isinstance(value, dict):
        for option in allowed:
            if dataclasses.is_dataclass(option) and isinstance(option, type):
                return build(option, value, where, refuse)
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise refuse(f"'{where}' is out of range.", f"It has {len(str(abs(value)))} digits.") from error
    if any(type(value) is option for option in allowed):
        return value
    raise refuse(f"'{where}' has the wrong type.", f"Found {kind_of(value)}, wanted {_in_words(allowed)}.")


def _in_words(allowed: tuple[Any, ...]) -> str:
    """Return the types that a value may have, in words."""
    kinds = {type(None): "null", bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    kinds |= {tuple: "an array", list: "an array"}
    return " or ".join(dict.fromkeys(kinds.get(get_origin(one) or one, "an object") for one in allowed))
