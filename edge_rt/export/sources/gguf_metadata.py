"""Values of a tokenizer in the metadata of a GGUF file, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from edge_rt.errors import InvalidTokenizer, kind_of

Metadata = Mapping[str, object]


def inconsistent(what: str, numbers: str) -> InvalidTokenizer:
    """Return the error for metadata that contradict themselves."""
    return InvalidTokenizer(what, numbers, "Fetch the file again, or convert the model again.")


def array(metadata: Metadata, key: str, limit: int) -> Sequence[object]:
    """Return an array of at most ``limit`` values."""
    if key not in metadata:
        raise inconsistent("The tokenizer is incomplete.", f"The key '{key}' is missing.")
    value = metadata[key]
    if not isinstance(value, list | tuple):
        raise inconsistent(f"'{key}' is not an array.", f"It is {kind_of(value)}.")
    if len(value) > limit:
        raise inconsistent(f"'{key}' is too long.", f"{len(value)} elements of at most {limit}.")
    return value


def strings(metadata: Metadata, key: str, limit: int) -> list[str]:
    """Return an array of texts."""
    result: list[str] = []
    for index, value in enumerate(array(metadata, key, limit)):
        if not isinstance(value, str):
            raise inconsistent(f"'{key}' holds an item that is not text.", f"Element {index} is {kind_of(value)}.")
        result.append(value)
    return result


def floats(metadata: Metadata, key: str, count: int) -> list[float]:
    """Return an array of ``count`` numbers."""
    values = array(metadata, key, count)
    if len(values) != count:
        raise inconsistent(f"'{key}' has the wrong length.", f"{len(values)} values for {count} tokens.")
    result: list[float] = []
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise inconsistent(f"'{key}' holds an item that is no number.", f"Element {index}: {repr(value)[:40]}.")
        result.append(float(value))
    return result


def text(metadata: Metadata, key: str) -> str | None:
    """Return a text, or None if there is none."""
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise inconsistent(f"'{key}' is not text.", f"It is {kind_of(value)}.")
    return value


def flag(metadata: Metadata, key: str, *, default: bool) -> bool:
    """Return a boolean."""
    value = metadata.get(key, default)
    if not isinstance(value, bool):
        raise inconsistent(f"'{key}' is not a boolean.", f"It is {kind_of(value)}.")
    return value


def token_id(metadata: Metadata, name: str, count: int) -> tuple[int | None, str | None]:
    """Return the id of a special token, and a warning if it names no token.

    Converters write 4294967295 where a model has no such token, for example.
    """
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None, None
    if isinstance(value, bool) or not isinstance(value, int):
        raise inconsistent(f"'{key}' is not a token.", f"It is {repr(value)[:40]}, tokens are 0 to {count - 1}.")
    if not 0 <= value < count:
        return None, f"'{key}' is {value}, which is no token (they are 0 to {count - 1}): it is ignored."
    return value, None
