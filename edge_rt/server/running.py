"""A server on an address: its socket, its key, and its end."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from edge_rt.errors import ConfigError, EdgeRTError, StorageError
from edge_rt.server.app import make_app
from edge_rt.server.deadlines import BoundedProtocol
from edge_rt.server.guard import MOST_HEADER_BYTES, is_loopback
from edge_rt.server.shared import Server

DRAIN_SECONDS: Final = 30
"""How long answers under way may take when the server is asked to stop."""
KEY_VARIABLE: Final = "EDGE_RT_API_KEY"
SHORTEST_KEY: Final = 16
_LONGEST_KEY: Final = 1024
ENDING_SECONDS: Final = 3
"""How much of that is for what is ended to be told so."""
_POLL_SECONDS: Final = 0.05
_RESTING_SECONDS: Final = 15
_MAKE_KEY: Final = "head -c 24 /dev/urandom | base64 > api-key.txt"


def read_key(path: Path | None, variable: str | None, host: str) -> str | None:
    """Return the key that clients have to know: of a file, else of the variable; None: they need none.

    Raises:
        ConfigError: it is too short, or there is none and other machines reach the address.
    """
    key = variable
    if path is not None:
        try:
            with path.open(encoding="utf-8") as file:
                key = file.read(_LONGEST_KEY + 1)
        except (OSError, UnicodeError) as error:
            raise StorageError(f"{path} cannot be read.", f"{error}.", "It was given as --api-key-file.") from error
    key = None if key is None else key.strip()
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"Other machines reach {host}, and there is no key.",
            "Whoever reaches a server without a key can use it.",
            f"Make one ({_MAKE_KEY}) and give --api-key-file api-key.txt, or set {KEY_VARIABLE}; or leave out --host.",
        )
    is_key = key is None or (SHORTEST_KEY <= len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable())
    if not is_key or (key is not None and " " in key):
        raise ConfigError(
            "The API key is no good key.",
            f"It has {len(key or '')} characters; wanted are {SHORTEST_KEY} to {_LONGEST_KEY}, of ASCII, no spaces.",
            f"Make one: {_MAKE_KEY}",
        )
    return key


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; what connects before the server has started waits for it.

    Raises:
        ConfigError: the port is taken, or the address is not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{host} is no address.", f"{error.strerror}.", "Give --host an address.") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # What is bound and not listened on is taken as well, but tells it late.
        bound.listen(socket.SOMAXCONN)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port} is taken.",
                f"Another program listens on {host}:{port}.",
                f"Stop it, or choose another port: --port {port + 1}.",
            ) from error
        raise ConfigError(
            f"Nothing can listen on {host}:{port}.", f"{error.strerror}.", "Give another --host or --port."
        ) from error
    return bound


class _Uvicorn(uvicorn.Server):
    """uvicorn, which leaves signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class RunningServer:
    """A server on a socket.

    Args:
        bound: the socket.
        on_ready: called with the address when requests are answered.
    """

    def __init__(
        self,
        server: Server,
        bound: socket.socket,
        *,
        host: str,
        key: str | None = None,
        allowed_hosts: Collection[str] = (),
        allowed_origins: Collection[str] = (),
        on_ready: Callable[[str], None] = lambda _: None,
    ) -> None:
        app = make_app(server, host=host, key=key, allowed_hosts=allowed_hosts, allowed_origins=allowed_origins)
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            # What a stranger sends, such as no HTTP at all, is no news; of failures the application tells, and its
            # lines hold nothing that was asked.
            log_level="critical",
            access_log=False,
            server_header=False,
            # Whoever connects could write them.
            proxy_headers=False,
            timeout_keep_alive=_RESTING_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        )
        self._server, self._bound, self._on_ready = server, bound, on_ready
        self._uvicorn = _Uvicorn(config)
        self._must_leave = self._must_end = False
        name = f"[{host}]" if ":" in host else host
        self.address = f"http://{name}:{bound.getsockname()[1]}"

    def leave(self) -> None:
        """Stop when the answers under way have ended; end them if asked again. May be called from a signal handler."""
        self._must_end = self._must_leave
        self._must_leave = True
        self._uvicorn.should_exit = True
        self._server.models.stopping.cancel()

    async def run(self) -> None:
        """Load the usual model, and answer until ``leave``.

        Raises:
            EdgeRTError: the model cannot be loaded.
        """
        models = self._server.models
        try:
            await models.load(models.name_of(None))
        except EdgeRTError:
            self._bound.close()
            raise
        if self._must_leave:
            await models.close()
            return
        self._on_ready(self.address)
        ending = asyncio.create_task(self._end_answers())
        try:
            await self._uvicorn.serve(sockets=[self._bound])
        finally:
            ending.cancel()

    async def _end_answers(self) -> None:
        """End what is under way before uvicorn would cancel it, which tells clients nothing."""
        while not self._must_leave:
            await asyncio.sleep(_POLL_SECONDS)
        # By the clock: on a busy machine each wait is longer than was asked for.
        loop = asyncio.get_running_loop()
        latest = loop.time() + DRAIN_SECONDS - ENDING_SECONDS
        while not self._must_end and loop.time() < latest:
            await asyncio.sleep(_POLL_SECONDS)
        self._server.stop()
        await asyncio.sleep(ENDING_SECONDS - 1)
        for connection in tuple(self._uvicorn.server_state.connections):
            # Of clients that take nothing.
            if (transport := getattr(connection, "transport", None)) is not None:
                transport.abort()
