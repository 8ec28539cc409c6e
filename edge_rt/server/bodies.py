"""Bodies of requests: JSON of a bounded size and depth, which may be compressed."""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import math
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import Request

from edge_rt.errors import kind_of
from edge_rt.server.failures import RETRY_SECONDS, HTTPFailure
from edge_rt.system.byte_size import show_at_least, show_size

MOST_BODY_BYTES: Final = 8 << 20
MOST_TEXT_BYTES: Final = 2 << 20
"""Of bodies whose texts become tokens, or the other way round, however many."""
MOST_DEPTH: Final = 64
_WINDOW_BITS: Final = 23
_ITEM_BYTES: Final = 64
"""Of an entry of a list with its value, and of a field's value."""
_OPEN_BYTES: Final = 128
"""Of a list or an object, and of the name of a field. Measured while they are read: 353 bytes for ``{"name": []},``,
with other names each time, where this makes 448; 131 of 192 for ``[1000],``; 43 of 64 for a token id.
"""
MOST_READ_BYTES: Final = 24 << 20
"""Of what one body may become."""
ALL_BODY_BYTES: Final = 32 << 20
"""Of all bodies in flight, and of what they have become."""
REQUESTS_BYTES: Final = 64 << 20
"""Of a budget: these, one body beside what it becomes while it is read, and answers that nobody has taken yet."""


class BodyRoom:
    """Bounds what the bodies of all requests take together."""

    def __init__(self, most: int = ALL_BODY_BYTES) -> None:
        self._most, self._held = most, 0
        # What takes long is read one after the other: meanwhile it takes memory twice.
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def read(self, request: Request, most: int = MOST_BODY_BYTES) -> AsyncGenerator[dict[str, Any]]:
        """Read a JSON object; what it has become counts until the block ends.

        Args:
            most: bytes that it may have.

        Raises:
            HTTPFailure: it is too large, there is no room for it now, or it is no JSON object.
        """
        held, parts = _Held(self), list[bytes]()
        is_compressed = request.headers.get("content-encoding", "").lower() == "zstd"
        try:
            async for part in request.stream():
                if held.bytes + len(part) > most:
                    raise _too_large(most)
                held.set(held.bytes + len(part))
                parts.append(part)
            data = b"".join(parts)
            parts.clear()
            if is_compressed:
                async with self._turn:
                    # The room that it may come to need, before it is known.
                    held.set(len(data) + most)
                    data = await asyncio.to_thread(decompressed, data, most)
                    held.set(len(data))
            # What takes longer than a step is read beside it.
            if len(data) > 1 << 16:
                async with self._turn:
                    held.set(max(len(data), await asyncio.to_thread(read_bytes, data)))
                    values = await asyncio.to_thread(parse_object, data)
            else:
                held.set(max(len(data), read_bytes(data)))
                values = parse_object(data)
            del data
            yield values
        finally:
            held.set(0)

    def change(self, count: int) -> None:
        """Take room, or give it back.

        Raises:
            HTTPFailure: there is none.
        """
        if count > 0 and self._held + count > self._most:
            what = "The server has no room for another large request now. Try again soon."
            raise HTTPFailure(503, what, code="overloaded", retry_after=RETRY_SECONDS)
        self._held += count


class _Held:
    """The room that one request holds."""

    def __init__(self, room: BodyRoom) -> None:
        self._room, self.bytes = room, 0

    def set(self, count: int) -> None:
        """Hold so many bytes from now on."""
        self._room.change(count - self.bytes)
        self.bytes = count


def _too_large(most: int) -> HTTPFailure:
    return HTTPFailure(413, f"The request is too large; the limit is {show_size(most)}.", code="too_large")


def read_bytes(data: bytes) -> int:
    """Return how many bytes the values of JSON take at most, before they are read.

    Raises:
        HTTPFailure: more than a request may.
    """
    # Texts with a character of four bytes take that for every one of theirs.
    width = 1 if data.isascii() and b"\\u" not in data else 4 if _WIDE.search(data) else 2
    texts = width * len(data)
    count = texts + _marks_bytes(data)
    if count > MOST_READ_BYTES:
        # Most marks may stand in texts; a quote that is none of theirs begins or ends one.
        bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes = bare.count(b'"')
        if texts + quotes // 2 * _ITEM_BYTES <= MOST_READ_BYTES:
            count = texts + _marks_bytes(b"".join(bare.split(b'"')[::2]))
    if count > MOST_READ_BYTES:
        what = "The request is too large: its texts, and its values, each of which takes memory of its own, would take"
        limit = show_size(MOST_READ_BYTES)
        raise HTTPFailure(413, f"{what} {show_at_least(count)}; the limit is {limit}.", code="too_large")
    return count


def _marks_bytes(data: bytes) -> int:
    """Return what the values between marks take: each stands behind a comma or a colon, or is the first of a list."""
    opens = data.count(b"[") + data.count(b"{") + data.count(b":")
    return opens * _OPEN_BYTES + data.count(b",") * _ITEM_BYTES


_WIDE: Final = re.compile(rb"[\xf0-\xf7]|\\u[dD]")


def decompressed(data: bytes, most: int = MOST_BODY_BYTES) -> bytes:
    """Return what was compressed with zstd.

    Raises:
        HTTPFailure: it is no zstd, or more than a body may be; or nothing here reads it.
    """
    try:
        result = _read_zstd(data, most + 1)
    except ImportError:
        what = "Bodies compressed with zstd need the package zstandard on the server. Send it as it is."
        raise HTTPFailure(415, what, code="unsupported_encoding") from None
    except Exception as error:  # of one library or the other
        raise HTTPFailure(400, f"The body is no zstd: {type(error).__name__}.", code="invalid_encoding") from None
    if len(result) > most:
        raise _too_large(most)
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
