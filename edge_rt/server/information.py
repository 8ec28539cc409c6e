"""What a server tells about itself: its models, its settings, what it has done; and its page for people."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from edge_rt.server.failures import path_of
from edge_rt.server.shared import Server
from edge_rt.system.process_memory import own_bytes, peak_rss_bytes
from edge_rt.version import VERSION

_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/conversations.js": ("conversations.js", "text/javascript"),
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


async def health(server: Server, request: Request) -> Response:
    """Tell that the server is there."""
    del server, request
    return JSONResponse({"status": "ok"})


async def list_models(server: Server, request: Request) -> Response:
    """List the models."""
    del request
    names = await asyncio.to_thread(server.models.packages)
    return JSONResponse({"object": "list", "data": [_model(server, name, names) for name in sorted(names)]})


async def show_model(server: Server, request: Request) -> Response:
    """Show one model."""
    name = server.models.name_of(request.path_params["id"])
    return JSONResponse(_model(server, name, await asyncio.to_thread(server.models.packages)))


def _model(server: Server, name: str, packages: Mapping[str, Any]) -> dict[str, Any]:
    created = 0
    with suppress(OSError, KeyError):
        created = int(packages[name].stat().st_mtime)
    preset = server.models.preset_of(name)
    entry = server.models.loaded.get(name if preset is None else preset.model)
    own: dict[str, Any] = {"is_loaded": entry is not None}
    if entry is not None:
        model = entry.model
        own |= {"context_tokens": model.context_tokens, "slots": model.slots, "device": str(model.device_choice.device)}
    return {"id": name, "object": "model", "created": created, "owned_by": "edge-rt", "edge_rt": own}


async def show_props(server: Server, request: Request) -> Response:
    """Show the usual model's settings, as llama.cpp's server does."""
    del request
    async with server.models.using(None) as entry:
        model = entry.model
        facts = model.describe()
        names = ("architecture", "parameters", "quantisation", "kv_format", "device", "rotation")
        return JSONResponse(
            {
                "model": entry.name,
                "total_slots": model.slots,
                "default_generation_settings": {"n_ctx": model.context_tokens},
                "chat_template": model.template_source,
                "build_info": f"edge-rt {VERSION}",
                "edge_rt": {name: facts[name] for name in names},
            }
        )


def _waiting(server: Server) -> tuple[int, int]:
    """Return how many answers are computed, and how many wait for a slot."""
    answering = waiting = 0
    for entry in server.models.loaded.values():
        # Without slots requests take turns here.
        active, queued = entry.model.under_way or (min(entry.users, 1), max(entry.users - 1, 0))
        answering += active
        waiting += queued
    return answering, waiting


async def show_metrics(server: Server, request: Request) -> Response:
    """Write the sums as Prometheus reads them, with the suffixes of llama.cpp's server."""
    del request
    counters = server.counters
    answering, waiting = _waiting(server)
    lines = []
    for name, kind, value, text in (
        ("prompt_tokens_total", "counter", counters.prompt_tokens, "Tokens of prompts that were computed."),
        ("prompt_tokens_cached_total", "counter", counters.cached_tokens, "Tokens of prompts that were known."),
        ("prompt_seconds_total", "counter", counters.prompt_seconds, "Seconds until first tokens."),
        ("embedded_tokens_total", "counter", counters.embedded_tokens, "Tokens of embeddings."),
        ("tokens_predicted_total", "counter", counters.predicted_tokens, "Tokens of answers."),
        ("tokens_predicted_seconds_total", "counter", counters.predicted_seconds, "Seconds behind first tokens."),
        ("spec_decode_num_draft_tokens_total", "counter", counters.draft_tokens, "Drafted tokens that were tested."),
        ("spec_decode_num_accepted_tokens_total", "counter", counters.accepted_tokens, "Those that were accepted."),
        ("answers_total", "counter", counters.answers, "Answers that have ended."),
        ("requests_processing", "gauge", answering, "Answers that are computed."),
        ("requests_deferred", "gauge", waiting, "Answers that wait for a slot."),
        ("models_loaded", "gauge", len(server.models.loaded), "Models that are loaded."),
        ("process_resident_bytes", "gauge", own_bytes(), "Memory of the process."),
    ):
        lines += [f"# HELP edge_rt:{name} {text}", f"# TYPE edge_rt:{name} {kind}", f"edge_rt:{name} {value:g}"]
    lines += ["# HELP edge_rt:requests_total Requests, by route and status.", "# TYPE edge_rt:requests_total counter"]
    for (path, status), count in sorted(counters.requests.items()):
        lines.append(f'edge_rt:requests_total{{path="{path}",status="{status}"}} {count}')
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def show_status(server: Server, request: Request) -> Response:
    """Tell what is loaded and under way, and the memory that was planned and is used."""
    del request
    answering, waiting = _waiting(server)
    models = [
        {
            "name": entry.name,
            "slots": entry.model.slots,
            "device": str(entry.model.device_choice.device),
            "context_tokens": entry.model.context_tokens,
            "requests": entry.users,
            "planned_bytes": entry.model.plan.total_bytes,
        }
        for entry in server.models.loaded.values()
    ]
    budget = server.models.options.budget_bytes
    return JSONResponse(
        {
            "version": VERSION,
            "seconds": round(time.time() - server.counters.begun, 1),
            "answering": answering,
            "waiting": waiting,
            "models": models,
            "memory": {"resident_bytes": own_bytes(), "peak_bytes": peak_rss_bytes(), "budget_bytes": budget},
        }
    )


async def show_page(server: Server, request: Request) -> Response:
    """Send a file of the page, unless the browser has it."""
    del server
    name, media_type = _FILES[path_of(request.scope)]
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
