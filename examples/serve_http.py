"""A web server that streams answers, with the standard library alone: what is refused has a status that says so.

Run: python examples/serve_http.py [MODEL]
Ask: curl -N localhost:8080 -d '{"messages": [{"role": "user", "content": "What is a haiku?"}], "max_tokens": 60}'
"""

from __future__ import annotations

import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import edge_rt


def status_of(error: edge_rt.EdgeRTError) -> HTTPStatus:
    """Return whose fault an error is: that of the request, or of the moment, or of this server."""
    if isinstance(error, edge_rt.ConfigError | edge_rt.InputError):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, edge_rt.Busy) else HTTPStatus.INTERNAL_SERVER_ERROR


class Handler(BaseHTTPRequestHandler):
    """Answers POST requests: messages and options of a generation, as JSON."""

    model: edge_rt.Model

    def do_POST(self) -> None:
        """Stream the text of an answer."""
        try:
            asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            # What is wrong with the request is raised here ...
            events = iter(self.model.stream(asked.pop("messages", None), **asked))
            # ... and here that the model is busy. Only then a status is sent.
            event = next(events, None)
        except edge_rt.EdgeRTError as error:
            self.begin(status_of(error), "application/json")
            self.wfile.write(json.dumps({"error": error.to_json()}).encode())
            return
        self.begin(HTTPStatus.OK, "text/plain; charset=utf-8")
        while event is not None:
            # A client that has gone raises here; leaving the loop ends the generation.
            self.wfile.write(event.text.encode())
            event = next(events, None)

    def begin(self, status: HTTPStatus, kind: str) -> None:
        """Send the status and the headers; the answer ends with the connection."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def serve(model: edge_rt.Model, port: int = 8080) -> ThreadingHTTPServer:
    """Return a server on this machine; with port 0 on a free one."""
    return ThreadingHTTPServer(("localhost", port), type("OneModel", (Handler,), {"model": model}))


if __name__ == "__main__":
    with edge_rt.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct", pull=True) as model:
        print(f"{model} answers at http://localhost:8080")
        serve(model).serve_forever()
