"""Requests made at random from the server's own description, over every route: none may fail the server or hang.

    python -m tests.fuzz_routes [examples of a route and mode]

Needs schemathesis. Half of the requests fit the description, half do not. Prints how often each status was answered.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode

from edge_rt.export import export_model
from tests.helpers.embedding_folder import write_embedding_folder
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.served import models_of, served

MODELS = ("small", "embeds")
NAMES = {
    "model": ["small", "embeds", None], "role": ["user", "assistant"], "type": ["text", "function", "json_object"],
    "chat_template_kwargs": [{}, None], "response_format": [{"type": "json_object"}, {"type": "text"}, None],
    "logit_bias": [{"5": 1}, None], "prompt_name": ["query", None], "dimensions": [None], "best_of": [None],
    "tool_calls": [None], "format": ["json", "", {"type": "object"}, None],
}  # fmt: skip
SLOWEST = 30.0


def packages(root: Path) -> dict[str, Path]:
    """Make a model that answers and one that embeds."""
    write_llama_gguf(root / "small.gguf")
    export_model(root / "small.gguf", root / "small", profile="native")
    export_model(write_embedding_folder(root / "m"), root / "embeds", weights="f32", accept_loss=True, profile="native")
    return {name: root / name for name in MODELS}


def described(client: httpx.Client) -> dict:
    """Return the description, with the names of models that there are, so that requests get further than those."""
    document = client.get("/openapi.json").json()
    for methods in document["paths"].values():
        for operation in methods.values():
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                _narrow(schema)
            for one in operation.get("parameters", ()):
                one["schema"] = {"type": "string", "minLength": 1}
    return document


def _narrow(schema) -> None:
    """Let names be those that mean something."""
    if isinstance(schema, dict):
        for name, names in NAMES.items():
            if name in schema.get("properties", {}):
                schema["properties"][name] = {"enum": names}
        for inner in schema.values():
            _narrow(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _narrow(inner)


def fuzz(operation, mode: GenerationMode, client: httpx.Client, examples: int, statuses: Counter) -> tuple[int, float]:
    """Ask one route; return how often the server failed, and the seconds of the slowest answer."""
    failures, slowest = 0, 0.0

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        nonlocal failures, slowest
        given = case.as_transport_kwargs(base_url=str(client.base_url))
        body = {"json": given["json"]} if "json" in given else {"content": given.get("data")}
        started = time.monotonic()
        try:
            response = client.request(given["method"], given["url"], headers=dict(given.get("headers") or {}), **body)
        except (ValueError, httpx.InvalidURL, httpx.LocalProtocolError):
            return  # no client can send it
        slowest = max(slowest, time.monotonic() - started)
        statuses[response.status_code] += 1
        if response.status_code >= 500 and response.status_code != 503:
            failures += 1
            print(operation.label, case.body, response.text[:300])

    ask()
    return failures, slowest


def main() -> int:
    examples = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    failures, sums = 0, Counter()
    with tempfile.TemporaryDirectory() as root:
        models = models_of(packages(Path(root)), slots=2, ctx=128)
        with served(models) as (_, client):
            for found in schemathesis.openapi.from_dict(described(client)).get_all_operations():
                operation, statuses, slowest = found.ok(), Counter(), 0.0
                modes = [*GenerationMode] if operation.method.upper() == "POST" else [GenerationMode.POSITIVE]
                for mode in modes:
                    failed, seconds = fuzz(operation, mode, client, examples, statuses)
                    failures += failed + (seconds > SLOWEST)
                    slowest = max(slowest, seconds)
                sums += statuses
                counts = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
                print(f"{operation.label:30} {counts:50} slowest {slowest:.2f} s", flush=True)
            assert client.get("/health").status_code == 200
    print(f"{sum(sums.values())} requests, {failures} failures; {dict(sorted(sums.items()))}")
    return bool(failures)


if __name__ == "__main__":
    raise SystemExit(main())
