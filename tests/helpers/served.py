"""Servers on loopback for tests, with models of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from edge_rt.runtime.load.options import LoadOptions
from edge_rt.server.models import Models
from edge_rt.server.running import RunningServer, open_socket
from edge_rt.server.shared import Server
from edge_rt.store.config import Preset


def models_of(packages: Mapping[str, Path], presets: Mapping[str, Preset] | None = None, **options: Any) -> Models:
    """Return the models of packages by name, and of presets; the first is the usual one."""
    return Models(lambda: packages, next(iter(packages)), LoadOptions(**options), presets=presets or {})


@contextmanager
def served(models: Models, **address: Any) -> Generator[tuple[Server, httpx.Client]]:
    """Run a server in a thread; yield it, and a client of it."""
    with ran(models, **address) as (_, server, client):
        yield server, client


@contextmanager
def ran(models: Models, **address: Any) -> Generator[tuple[RunningServer, Server, httpx.Client]]:
    """Run a server in a thread; yield what runs it as well."""
    server = Server(models)
    ready = threading.Event()
    running = RunningServer(
        server, open_socket("127.0.0.1", 0), host="127.0.0.1", on_ready=lambda _: ready.set(), **address
    )
    thread = threading.Thread(target=lambda: asyncio.run(running.run()), name="server")
    thread.start()
    try:
        assert ready.wait(60)
        with httpx.Client(base_url=running.address, timeout=60) as client:
            yield running, server, client
    finally:
        running.leave()
        thread.join(60)
    assert not thread.is_alive()


def until(is_reached: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not is_reached():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)
