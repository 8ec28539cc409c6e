"""Who may ask at all: the Host, Origin and key of a request, and the type of its body, before anything is read of it.

A page of the internet can make a browser send requests to this machine. It cannot make it lie about where they come
from (Origin), nor, after its own name was pointed here (DNS rebinding), about whom they are for (Host); and what it can
send without asking first is no ``application/json``.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_rt.server.failures import HTTPFailure, path_of, response_of
from edge_rt.server.information import PAGE_PATHS

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
EVERY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104 -- compared, not bound
OPEN_PATHS: Final = frozenset({"/health", *PAGE_PATHS})
"""What needs no key: it tells nothing, and what asks for it often has none. The page asks for the key itself."""
MOST_HEADER_BYTES: Final = 32 << 10
"""Of a request's address and headers: what arrives at once is not bounded by what may arrive in parts."""
_METHODS: Final = "GET, POST, OPTIONS"
_ALLOWED_HEADERS: Final = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta"


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine alone."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str | None:
    """Return the name or address of a Host header, without its port; None if it is malformed."""
    text = header.strip().lower()
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        port = port.removeprefix(":") if port.startswith(":") or not port else "?"
        if not bracket:
            return None
    else:
        name, _, port = text.partition(":")
    is_port = not port or (port.isascii() and port.isdigit())
    return name.removesuffix(".") if name and is_port else None


class Guard:
    """Middleware that refuses what may not ask.

    Args:
        host: the address that the server listens on.
        key: what clients have to know; None: they are all from this machine.
        allowed_hosts: further names of this server.
        allowed_origins: origins of pages that may ask, such as ``http://localhost:3000``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str = "127.0.0.1",
        key: str | None = None,
        allowed_hosts: Collection[str] = (),
        allowed_origins: Collection[str] = (),
    ) -> None:
        self._app = app
        self._key = None if key is None else _digest(key)
        self._hosts = {*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in allowed_hosts)}
        self._origins = {origin.lower().rstrip("/") for origin in allowed_origins}
        # Listening on every address, it is known by all of them; a name that was pointed here is still none.
        self._takes_addresses = host in EVERY_ADDRESS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.setdefault("cache-control", "no-store")
                answer["x-content-type-options"] = "nosniff"
                answer.add_vary_header("Origin")
                if origin is not None and origin.lower() in self._origins:
                    answer["access-control-allow-origin"] = origin
            await send(message)

        try:
            self._check(scope, headers, origin)
        except HTTPFailure as failure:
            await response_of(failure, scope)(scope, receive, send_on)
            return
        if scope["method"] == "OPTIONS" and origin is not None and "access-control-request-method" in headers:
            await _preflight()(scope, receive, send_on)
            return
        await self._app(scope, receive, send_on)

    def _check(self, scope: Scope, headers: Headers, origin: str | None) -> None:
        """Refuse a request by its headers.

        Raises:
            HTTPFailure: it may not ask.
        """
        taken = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(k) + len(v) for k, v in headers.raw)
        if taken > MOST_HEADER_BYTES:
            what = f"The headers take {taken} bytes; the limit is {MOST_HEADER_BYTES}."
            raise HTTPFailure(431, what, code="headers_too_large")
        hosts = headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None or not self._is_known(name):
            shown = ", ".join(hosts)[:80] or "none"
            what = f"This server does not know the name {shown!r}. Start it with --allowed-host NAME to let it be one."
            raise HTTPFailure(403, what, code="host_not_allowed")
        if origin is not None and origin.lower() not in self._origins and not _is_same(origin, hosts[0]):
            what = f"Pages of {origin[:80]!r} may not ask. Start the server with --allow-origin ORIGIN to let them."
            raise HTTPFailure(403, what, code="origin_not_allowed")
        method, path = scope["method"], path_of(scope)
        if method == "OPTIONS" and origin is not None:
            return  # A browser asks, without the key, whether it may ask.
        if self._key is not None and path not in OPEN_PATHS and not self._knows_key(headers):
            what = "The API key is wrong or missing. Send it as 'Authorization: Bearer KEY', or as 'x-api-key: KEY'."
            raise HTTPFailure(401, what, code="invalid_api_key")
        if method in ("POST", "PUT", "PATCH"):
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                what = f"The body's type is {kind[:60]!r}. Send JSON with 'Content-Type: application/json'."
                raise HTTPFailure(415, what, code="unsupported_media_type")
            encoding = headers.get("content-encoding", "identity").lower()
            if encoding not in ("identity", "zstd"):
                what = f"Bodies compressed with {encoding[:40]!r} are not read. Send it as it is, or use zstd."
                raise HTTPFailure(415, what, code="unsupported_encoding")

    def _is_known(self, name: str) -> bool:
        if name in self._hosts or name.endswith(".localhost"):
            return True
        if not self._takes_addresses:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _knows_key(self, headers: Headers) -> bool:
        assert self._key is not None
        scheme, _, value = headers.get("authorization", "").partition(" ")
        given = value.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Of equal length, so that the time tells nothing.
        return hmac.compare_digest(_digest(given), self._key)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _is_same(origin: str, host: str) -> bool:
    """Return whether a page was loaded from this server."""
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _preflight() -> Response:
    headers = {
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": _ALLOWED_HEADERS,
        "access-control-max-age": "600",
    }
    return Response(status_code=204, headers=headers)
