"""A tiny server on 127.0.0.1 that speaks as much of the hub's protocol as listing and downloading need."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """What is served, and what was asked.

    Attributes:
        repos: repository id -> file name -> content.
        gated: repository ids that answer 403 with the hub's marker.
        tags: tags of every repository.
        truncate: file names of which only half is sent.
        requests: method and path of every request.
        announced: file name -> sha256 in the listing, where it should differ from the content's.
        sizes: file name -> size in the listing, where it should differ from the content's.
        endpoint: base URL.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    tags: list[str] = field(default_factory=lambda: ["gguf", "license:apache-2.0"])
    truncate: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    announced: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    endpoint: str = ""

    def listing(self, repo):
        files = self.repos[repo]
        return {
            "id": repo,
            "sha": COMMIT,
            "tags": self.tags,
            "siblings": [self._sibling(name, data) for name, data in files.items()],
        }

    def _sibling(self, name, data):
        size = self.sizes.get(name, len(data))
        entry = {"rfilename": name, "size": size, "blobId": hashlib.sha1(data).hexdigest()}
        if name.endswith((".gguf", ".safetensors", ".bin")):
            sha256 = self.announced.get(name, hashlib.sha256(data).hexdigest())
            entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 130}
        return entry

    def downloads(self):
        return [line for line in self.requests if line.startswith("GET") and "/resolve/" in line]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # one request per connection: nothing is left open when a test ends

    def log_message(self, *args):
        """Keep quiet."""

    def do_HEAD(self):
        self._serve(with_body=False)

    def do_GET(self):
        self._serve(with_body=True)

    def _serve(self, *, with_body):
        hub = self.server.hub
        path = unquote(self.path.split("?")[0])
        hub.requests.append(f"{self.command} {path}")
        parts = path.removeprefix("/api/models").strip("/").split("/")
        repo = "/".join(parts[:2])
        if repo in hub.gated:
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"}, with_body)
        elif repo not in hub.repos:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
        elif path.startswith("/api/models/"):
            self._answer(200, json.dumps(hub.listing(repo)).encode(), {"Content-Type": "application/json"}, with_body)
        else:
            self._file(hub, hub.repos[repo], "/".join(parts[4:]), with_body)

    def _file(self, hub, files, name, with_body):
        if name not in files:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, with_body)
            return
        data = files[name]
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        sent = data[: len(data) // 2] if name in hub.truncate and with_body else data
        self._answer(200, sent, headers, with_body)

    def _answer(self, status, body, headers, with_body):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@contextmanager
def serve_fake_hub(**kwargs):
    """Serve a `FakeHub` made from ``kwargs`` and yield it."""
    hub = FakeHub(**kwargs)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub = hub
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
