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

OPTIONS = {"max_tokens", "temperature", "top_p", "seed", "stop"}
"""What a client may set; all that a generation takes is for a program, not for its clients."""
MOST_BYTES = 1 << 20
"""Longest request."""


def read_request(body: bytes) -> dict[str, Any]:
    """Return the messages and options of a request."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise edge_rt.ConfigError("The request is not JSON.", f"{error}.", "Send a JSON object.") from error
    if not isinstance(asked, dict) or "messages" not in asked or asked.keys() - OPTIONS - {"messages"}:
        taken = ", ".join(sorted(OPTIONS))
        way = f"Send a JSON object with messages, and of options only {taken}."
        raise edge_rt.ConfigError("The request is not understood.", f"Got {asked!r:.60}.", way)
    return asked


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
        length = self.headers["Content-Length"] or ""
        if not length.isdecimal():
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
            return
        if len(length) > len(str(MOST_BYTES)) or int(length) > MOST_BYTES:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        try:
            asked = read_request(self.rfile.read(int(length)))
            # What is wrong with the request is raised here ...
            events = iter(self.model.stream(asked.pop("messages"), **asked))
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
