"""A model inside a FastAPI application of your own: a route of yours that streams, and all routes of the server.

::

    pip install fastapi uvicorn
    python examples/fastapi_app.py
    curl http://127.0.0.1:8000/ask -H "Content-Type: application/json" -d '{"question": "What is a haiku?"}'

Clients of OpenAI's API take http://127.0.0.1:8000/llm/v1 as their base URL, and a browser shows the page at /llm/.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

import edge_rt


class Question(BaseModel):
    """What is asked."""

    question: str
    max_tokens: int = Field(default=200, ge=1, le=2000)


def make_app(package: str) -> FastAPI:
    """Return an application that loads the model when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with edge_rt.load(package, slots=4, max_queue=16) as app.state.model:
            app.mount("/llm", edge_rt.asgi_app({Path(package).name: app.state.model}))
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/ask")
    async def ask(asked: Question) -> StreamingResponse:
        messages = [{"role": "user", "content": asked.question}]
        events = aiter(app.state.model.astream(messages, max_tokens=asked.max_tokens, temperature=0))
        try:
            # What is wrong with a question comes with the first event: before the status is sent.
            first = await anext(events)
        except edge_rt.QueueFull as error:
            raise HTTPException(503, str(error), {"Retry-After": str(round(error.retry_after))}) from error
        except edge_rt.InputError as error:
            raise HTTPException(400, str(error)) from error

        async def pieces() -> AsyncIterator[str]:
            try:
                yield first.text
                async for event in events:
                    yield event.text
            finally:
                await events.aclose()  # a client that leaves ends its answer

        return StreamingResponse(pieces(), media_type="text/plain")

    return app


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(make_app(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"), host="127.0.0.1", port=8000)
