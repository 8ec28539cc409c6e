"""Bodies of requests: JSON of a bounded size and depth."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import Request

from edge_rt.errors import kind_of
from edge_rt.server.failures import RETRY_SECONDS, HTTPFailure
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
    async def read(self, request: Request) -> AsyncGenerator[dict[str, Any]]:
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
            yield await asyncio.to_thread(parse_object, data) if is_long else parse_object(data)
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
