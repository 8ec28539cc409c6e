"""The page for people: its files, and what browsers may do with them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from edge_rt.server.shared import Server

_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/text.js": ("text.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
PAGE_PATHS: Final = tuple(_FILES)
_HEADERS: Final = {
    # Scripts and styles are the server's own files, and texts of models load nothing from anywhere.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Asked for again each time, and sent again only after an update.
    "cache-control": "no-cache",
}


async def show_page(server: Server, request: Request) -> Response:
    """Send a file of the page, unless the browser has it."""
    del server
    name, media_type = _FILES[request.scope["path"]]
    content, etag = _read(name)
    headers = {**_HEADERS, "etag": etag}
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if etag in known:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)


@cache
def _read(name: str) -> tuple[bytes, str]:
    """Return a file, and the tag that changes with it."""
    content = (Path(__file__).parent / "page" / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
