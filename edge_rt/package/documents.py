"""Descriptions of folders: JSON of bounded size, turned into dataclasses, every field and every listed file checked."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

from edge_rt.errors import InputError, kind_of
from edge_rt.system.checkpoint_names import is_portable_path
from edge_rt.system.files import sha256_file
from edge_rt.system.json_files import parse_json, read_bytes

Refusal = Callable[[str, str], InputError]
"""Makes the error of a folder from its first two sentences: what is wrong, and the numbers."""

T = TypeVar("T")

RARE: Final[Mapping[str, bool]] = {"is_rare": True}
"""Metadata of fields that a document has only where they differ from their defaults."""


def is_text(text: str) -> bool:
    """Return whether a text can be written as UTF-8: names of files and JSON may have lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_bounded(file: Path, limit: int, refuse: Refusal, *, name: str) -> bytes:
    """Return the content of a description of at most ``limit`` bytes."""
    return read_bytes(file, limit, functools.partial(refuse, f"the {name} is too large."))


def parse_document(data: bytes, format_name: str, refuse: Refusal, *, name: str, owner: str) -> dict[str, Any]:
    """Return a JSON object whose field ``format`` is ``format_name``."""
    document = parse_json(data, functools.partial(refuse, f"the {name} is not JSON."))
    if not isinstance(document, dict) or document.get("format") != format_name:
        raise refuse(f"the {name} is not {owner}.", f"'format' must be '{format_name}'.")
    return document


def to_document(value: Any) -> Any:
    """Return what JSON has of a dataclass, and of what it holds; ``build`` is the way back."""
    if dataclasses.is_dataclass(value):
        return {
            entry.name: to_document(found)
            for entry in dataclasses.fields(value)
            if (found := getattr(value, entry.name)) != entry.default or "is_rare" not in entry.metadata
        }
    if isinstance(value, Mapping):
        return {key: to_document(found) for key, found in value.items()}
    return [to_document(found) for found in value] if isinstance(value, list | tuple) else value


def build(kind: type[T], value: Any, where: str, refuse: Refusal) -> T:
    """Turn JSON into a dataclass; every missing, unknown or mistyped field is an error that names it.

    A field that has a default may be missing.

    Args:
        kind: the dataclass; its fields are dataclasses, tuples, mappings from texts, or plain values.
    """
    if not isinstance(value, dict):
        raise refuse(f"'{where}' must be an object.", f"Found {kind_of(value)}.")
    of_any = cast("Any", kind)
    hints, entries = _types_of(of_any), dataclasses.fields(of_any)
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


@functools.cache  # evaluating them takes longer than all else here, and a document has many objects of one kind
def _types_of(kind: type[Any]) -> Mapping[str, Any]:
    """Return name -> type of the fields of a dataclass."""
    return get_type_hints(kind)


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


@dataclass(frozen=True)
class FileInfo:
    """Size in bytes and SHA-256 (lower-case hexadecimal) of one file."""

    size: int
    sha256: str


_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


def is_file_name(name: str) -> bool:
    """Return whether a listed file may have that name: inside the folder, and valid on every system."""
    return _SAFE_NAME.fullmatch(name) is not None and is_portable_path(name)


def check_files(path: Path, files: Mapping[str, FileInfo], refuse: Refusal, *, noun: str = "package") -> None:
    """Check the names of the listed files, and that each is a regular file of the listed size."""
    if len({name.lower() for name in files}) < len(files):
        numbers = f"Files: {', '.join(sorted(files))!s:.200}."
        raise refuse("the manifest lists files whose names differ in case alone.", numbers)
    for name, info in files.items():
        if not is_file_name(name):
            what = f"the manifest lists a path that leaves the {noun}, or that is not valid on every system."
            raise refuse(what, f"{name!r:.100} is not allowed.")
        file = path / name
        # Parent folders are checked as well: a link there would lead out of the folder.
        linked = any(part.is_symlink() for part in (file, *file.parents[: name.count("/")]))
        if linked or not file.is_file():
            raise refuse(f"file '{name}' is missing or not a regular file.", f"Expected {info.size} bytes.")
        size = file.stat().st_size
        if size != info.size:
            raise refuse(f"file '{name}' has the wrong size.", f"Found {size} bytes, expected {info.size}.")


def verify_files(path: Path, files: Mapping[str, FileInfo], refuse: Refusal) -> None:
    """Read every listed file and compare its hash."""
    for name, info in files.items():
        sha256 = sha256_file(path / name)
        if sha256 != info.sha256:
            raise refuse(f"file '{name}' is damaged.", f"Its SHA-256 is {sha256}, the manifest says {info.sha256}.")
