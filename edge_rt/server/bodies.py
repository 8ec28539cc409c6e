"""Bodies of requests: JSON of a bounded size and depth, and fields of the right kind."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import Request

from edge_rt.errors import kind_of
from edge_rt.package.sampling import is_int, is_number
from edge_rt.server.failures import RETRY_SECONDS, HTTPFailure, wrong_field
from edge_rt.system.byte_size import show_size

MOST_BODY_BYTES: Final = 8 << 20
MOST_DEPTH: Final = 64
ALL_BODY_BYTES: Final = 32 << 20
"""Of all bodies in flight; what a body becomes takes about as much again."""


class BodyRoom:
    """Bounds what the bodies of all requests take together."""

    def __init__(self, most: int = ALL_BODY_BYTES) -> None:
        self._most, self._held = most, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncGenerator[Fields]:
        """Read a JSON object; its bytes count until the block ends.

        Raises:
            HTTPFailure: it is too large, there is no room for it now, or it is no JSON object.
        """
        taken, parts = 0, []
        try:
            async for part in request.stream():
                if taken + len(part) > MOST_BODY_BYTES:
                    limit = show_size(MOST_BODY_BYTES)
                    raise HTTPFailure(413, f"The request is too large; the limit is {limit}.", code="too_large")
                if self._held + len(part) > self._most:
                    what = "The server has no room for another large request now. Try again soon."
                    raise HTTPFailure(503, what, code="overloaded", retry_after=RETRY_SECONDS)
                taken += len(part)
                self._held += len(part)
                parts.append(part)
            data = b"".join(parts)
            parts.clear()
            # What takes longer than a step is parsed beside it.
            is_long = len(data) > 1 << 16
            yield Fields(await asyncio.to_thread(parse_object, data) if is_long else parse_object(data))
        finally:
            self._held -= taken


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the object that a body holds.

    Raises:
        HTTPFailure: it is no JSON object, nested too deeply, or has numbers that are not finite.
    """
    try:
        value = json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
    except HTTPFailure:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise HTTPFailure(400, f"The request is no JSON: {str(error)[:120]}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise HTTPFailure(400, f"The request is no JSON object, but {kind_of(value)}.", code="invalid_json")
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return value
    raise _too_deep()


def _too_deep() -> HTTPFailure:
    return HTTPFailure(400, f"The request is nested too deeply; the limit is {MOST_DEPTH} levels.", code="invalid_json")


def _refuse_constant(text: str) -> None:
    raise HTTPFailure(400, f"The request has the number {text}, which JSON has not.", code="invalid_json")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise HTTPFailure(400, f"The request has the number {text[:40]}, which is too large.", code="invalid_json")
    return value


class Fields:
    """The fields of a JSON object; a value of null is as if the field were not there.

    Args:
        values: the object.
        where: the field that holds it, for messages; empty: it is the request.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values, self._where = values, where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def name_of(self, name: str) -> str:
        """Return a field's name as messages have it."""
        return f"{self._where}.{name}" if self._where else name

    def raw(self, name: str) -> Any:
        """Return a value as it is; None if it is not there."""
        return self.values.get(name)

    def text(self, name: str) -> str | None:
        """Return a text, or None."""
        value: str | None = self._of(name, lambda one: isinstance(one, str), "a text")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return true or false."""
        value = self._of(name, lambda one: isinstance(one, bool), "true or false")
        return default if value is None else bool(value)

    def whole(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number, or None."""
        wanted = f"a whole number from {least} to {most}"
        value: int | None = self._of(name, lambda one: is_int(one, least, most), wanted)
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number, or None."""
        wanted = f"a number from {least:g} to {most:g}"
        value: float | None = self._of(name, lambda one: is_number(one, least, most), wanted)
        return value

    def items(self, name: str, most: int) -> list[Any] | None:
        """Return a list, or None."""
        value: list[Any] | None = self._of(name, lambda one: isinstance(one, list), "a list")
        if value is not None and len(value) > most:
            raise HTTPFailure(
                400, f"The field '{self.name_of(name)}' has {len(value)} entries; the limit is {most}.", param=name
            )
        return value

    def objects(self, name: str, most: int) -> list[dict[str, Any]] | None:
        """Return a list of objects, or None."""
        value = self.items(name, most)
        for number, one in enumerate(value or ()):
            if not isinstance(one, dict):
                raise wrong_field(f"{self.name_of(name)}[{number}]", "an object", one)
        return value

    def inner(self, name: str) -> Fields | None:
        """Return the fields of an object, or None."""
        value = self._of(name, lambda one: isinstance(one, dict), "an object")
        return None if value is None else Fields(value, self.name_of(name))

    def required(self, name: str) -> Any:
        """Return a value that has to be there."""
        value = self.values.get(name)
        if value is None:
            what = f"The request has no field '{self.name_of(name)}'."
            raise HTTPFailure(400, what, param=self.name_of(name), code="missing_required_parameter")
        return value

    def _of(self, name: str, fits: Any, wanted: str) -> Any:
        value = self.values.get(name)
        if value is not None and not fits(value):
            raise wrong_field(self.name_of(name), wanted, value)
        return value
