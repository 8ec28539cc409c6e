"""Why a server cannot be reached, out of what pip or the hub library say of it."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from edge_rt.errors import DownloadError

_REASONS: Final = {
    "the name cannot be resolved": (
        r"name resolution|name or service not known|getaddrinfo|nodename nor servname|no address associated"
    ),
    "the proxy lets nothing through": r"proxyerror|cannot connect to proxy|tunnel connection failed",
    "the certificate is not trusted": r"certificate",
    "there is no way to it": r"network is unreachable|no route to host",
    "the connection was refused": r"connection refused",
    "there was no answer in time": r"timed? ?out",
    "the connection was broken": r"connection reset|disconnected|connection broken|connection aborted",
}
"""What is said -> the words by which it is known, the clearest first."""
_ADDRESS: Final = re.compile(r"https?://\S+", re.IGNORECASE)
"""Names in it may be any words."""


def reason_of(text: str) -> str | None:
    """Return why a server cannot be reached; None if a text tells of another failure."""
    said = _ADDRESS.sub("", text)
    return next((reason for reason, words in _REASONS.items() if re.search(words, said, re.IGNORECASE)), None)


def host_of(url: str) -> str:
    """Return the host of an address, without the login that it may hold; empty if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def unreachable(host: str, reason: str, action: str) -> DownloadError:
    """Return the error for a server that cannot be reached."""
    proxy = getproxies().get("https")
    way = f" through the proxy {host_of(proxy)}" if proxy else ""
    return DownloadError(f"{host} cannot be reached{way}.", f"{reason[0].upper()}{reason[1:]}.", action)
