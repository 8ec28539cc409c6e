"""Bodies of requests: JSON of a bounded size and depth, which may be compressed."""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import math
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import Request

from edge_rt.errors import kind_of
from edge_rt.server.failures import RETRY_SECONDS, HTTPFailure
from edge_rt.system.byte_size import show_size

MOST_BODY_BYTES: Final = 8 << 20
MOST_DEPTH: Final = 64
_WINDOW_BITS: Final = 23
ALL_BODY_BYTES: Final = 32 << 20
"""Of all bodies in flight; what a body becomes takes about as much again."""
REQUESTS_BYTES: Final = 64 << 20
"""Of a budget: bodies of requests, what is read of them, and answers that nobody has taken yet."""


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
        is_compressed = request.headers.get("content-encoding", "").lower() == "zstd"
        try:
            async for part in request.stream():
                if taken + len(part) > MOST_BODY_BYTES:
                    raise _too_large()
                self._take(len(part))
                taken += len(part)
                parts.append(part)
            data = b"".join(parts)
            parts.clear()
            if is_compressed:
                # The room that it may come to need, before it is known.
                self._take(MOST_BODY_BYTES)
                taken += MOST_BODY_BYTES
                data = await asyncio.to_thread(decompressed, data)
            # What takes longer than a step is parsed beside it.
            is_long = len(data) > 1 << 16
            yield await asyncio.to_thread(parse_object, data) if is_long else parse_object(data)
        finally:
            self._held -= taken

    def _take(self, count: int) -> None:
        if self._held + count > self._most:
            what = "The server has no room for another large request now. Try again soon."
            raise HTTPFailure(503, what, code="overloaded", retry_after=RETRY_SECONDS)
        self._held += count


def _too_large() -> HTTPFailure:
    limit = show_size(MOST_BODY_BYTES)
    return HTTPFailure(413, f"The request is too large; the limit is {limit}.", code="too_large")


def decompressed(data: bytes) -> bytes:
    """Return what was compressed with zstd.

    Raises:
        HTTPFailure: it is no zstd, or more than a body may be; or nothing here reads it.
    """
    try:
        result = _read_zstd(data, MOST_BODY_BYTES + 1)
    except ImportError:
        what = "Bodies compressed with zstd need the package zstandard on the server. Send it as it is."
        raise HTTPFailure(415, what, code="unsupported_encoding") from None
    except Exception as error:  # of one library or the other
        raise HTTPFailure(400, f"The body is no zstd: {type(error).__name__}.", code="invalid_encoding") from None
    if len(result) > MOST_BODY_BYTES:
        raise _too_large()
    return result


def _read_zstd(data: bytes, most: int) -> bytes:
    """Return what was compressed, at most so many bytes of it; what a frame needs of memory is bounded as well."""
    if sys.version_info >= (3, 14):
        zstd: Any = importlib.import_module("compression.zstd")
        options = {zstd.DecompressionParameter.window_log_max: _WINDOW_BITS}
        return bytes(zstd.ZstdDecompressor(options=options).decompress(data, max_length=most))
    library: Any = importlib.import_module("zstandard")
    reader = library.ZstdDecompressor(max_window_size=1 << _WINDOW_BITS).stream_reader(io.BytesIO(data))
    return bytes(reader.read(most))


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
