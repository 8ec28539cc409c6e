"""Schemas of requests become grammars in few threads, each within a time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.helpers.served import models_of

pytest.importorskip("starlette")

from edge_rt.server.failures import HTTPFailure
from edge_rt.server.shared import COMPILING_THREADS, Server


def test_a_schema_that_takes_too_long_is_refused_and_those_behind_it_are_told_to_come_again(tmp_path):
    over = threading.Event()

    async def run():
        server = Server(models_of({"none": tmp_path}), compiling_seconds=0.05, compiling_wait=0.05)
        try:
            for _ in range(COMPILING_THREADS):
                with pytest.raises(HTTPFailure) as refused:
                    await server.compiled(over.wait)
                assert (refused.value.status, refused.value.code) == (400, "schema_too_costly")
            # Its threads are still at it; prompts become tokens in others.
            with pytest.raises(HTTPFailure) as refused:
                await server.compiled(lambda: 7)
            assert (refused.value.status, refused.value.headers["x-should-retry"]) == (503, "true")
            assert await server.encoded(lambda: 7) == 7
            over.set()
            server.compiling_seconds = server.compiling_wait = 20.0
            assert await server.compiled(lambda: 7) == 7
            with pytest.raises(ZeroDivisionError):
                await server.compiled(lambda: 1 / 0)
        finally:
            over.set()

    asyncio.run(run())
