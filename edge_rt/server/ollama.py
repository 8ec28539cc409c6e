"""Ollama's routes: chats, texts, and what its clients ask before they speak to a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_rt.runtime.results import Result
from edge_rt.server.answer_fields import json_text, own_fields
from edge_rt.server.answers import AnswerRequest, Answers, Piece
from edge_rt.server.failures import HTTPFailure, unsupported
from edge_rt.server.fields import (
    FLAG,
    TEXT,
    Fields,
    Table,
    either,
    inner,
    listed,
    needed,
    number,
    objects,
    one_of,
    refused,
    whole,
)
from edge_rt.server.models import LoadedModel
from edge_rt.server.request_fields import (
    CHAT,
    MESSAGE,
    MOST_MESSAGES,
    MOST_TOKENS,
    SAMPLING,
    chat_messages,
    chat_tools,
    sampling_options,
)
from edge_rt.server.shared import Post, Server

Answering = Callable[[Server, Post], Awaitable[Response]]

if TYPE_CHECKING:
    from edge_rt.package.reader import Package

API_VERSION: Final = "0.13.3"
"""Of Ollama, whose routes these are: clients refuse older ones."""


_ASKED: Final[Table] = {
    "model": TEXT,
    "options": inner({**SAMPLING, "num_predict": whole(-2, MOST_TOKENS)}),
    "format": either(one_of("json", ""), inner({})),
    "think": either(FLAG, TEXT),
    "stream": FLAG,
    "keep_alive": either(TEXT, number(-1e12, 1e12)),
}
_IMAGES: Final = listed(TEXT, 16)
OLLAMA_CHAT: Final[Table] = {
    **_ASKED,
    **CHAT,
    "messages": needed(objects({**MESSAGE, "images": _IMAGES}, MOST_MESSAGES)),
}
OLLAMA_TEXT: Final[Table] = {
    **_ASKED,
    "prompt": TEXT,
    "suffix": TEXT,
    "system": TEXT,
    "raw": FLAG,
    "images": _IMAGES,
    "template": refused("Send messages to /api/chat."),
    "context": refused("Send messages to /api/chat."),
}
OLLAMA_MODEL: Final[Table] = {"model": TEXT, "name": TEXT}
OLLAMA_ELSEWHERE: Final = {
    "/api/pull": "This server fetches no models. Run 'edge-rt pull NAME' on its machine: it serves them from then on.",
    "/api/delete": "This server removes no models. Run 'edge-rt rm NAME' on its machine.",
    "/api/create": "This server makes no models. Write a preset into the configuration file of its machine.",
    "/api/copy": "This server copies no models. Presets of its machine's configuration file give them further names.",
    "/api/push": "This server sends models nowhere. Copy the package's folder from its machine.",
}
"""Routes that change which models there are, and how that is done here."""


def read_ollama_chat(fields: Fields) -> AnswerRequest:
    """Return what a request for a chat asks for.

    Raises:
        HTTPFailure: a field is wrong, or asks for what this server cannot do.
    """
    messages = chat_messages(fields)
    for index, message in enumerate(messages):
        if message.pop("images", None):
            raise unsupported(f"messages[{index}].images", "Models get text alone here.")
    return AnswerRequest(ollama_name(fields), messages, _options(fields), chat_tools(fields), _thoughts(fields))


def read_ollama_text(fields: Fields) -> AnswerRequest:
    """Return what a request for the answer to one text asks for; raises as ``read_ollama_chat``."""
    if fields.items("images"):
        raise unsupported("images", "Models get text alone here.")
    prompt = fields.text("prompt") or ""
    if suffix := fields.text("suffix"):
        return AnswerRequest(ollama_name(fields), prompt, _options(fields), infill=(prompt, suffix))
    if fields.flag("raw"):
        return AnswerRequest(ollama_name(fields), prompt, _options(fields))
    system = fields.text("system")
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": prompt})
    return AnswerRequest(ollama_name(fields), messages, _options(fields), template_args=_thoughts(fields))


def ollama_name(fields: Fields) -> str | None:
    """Return the model that a request names, without the tag that every model has there."""
    name = fields.text("model")
    return None if name is None else name.removesuffix(":latest")


def unless_empty(answer: Answering, *, is_chat: bool) -> Answering:
    """Return what answers requests; those without a message or a prompt load their model, or unload it."""

    async def begin(server: Server, post: Post) -> Response:
        fields, models = post.fields, server.models
        if fields.raw("messages") != [] if is_chat else any(fields.raw(one) for one in ("prompt", "suffix", "images")):
            return await answer(server, post)
        asked, reason = ollama_name(fields), "load"
        if str(fields.value("keep_alive")).rstrip("smh") in ("0", "0.0"):
            await models.unload(models.name_of(asked))
            reason = "unload"
        else:
            async with models.using(asked):
                pass
        said = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
        head = {"model": fields.text("model") or models.shown(asked), "created_at": _time(time.time())}
        return JSONResponse({**head, **said, "done": True, "done_reason": reason})

    return begin


def _thoughts(fields: Fields) -> dict[str, Any]:
    think = fields.value("think")
    return {} if think is None else {"enable_thinking": think not in (False, "none")}


def _options(fields: Fields) -> dict[str, Any]:
    """Return the options of a generation; how a model is loaded is the server's business, not a request's."""
    options: dict[str, Any] = {}
    if (given := fields.inner("options")) is not None:
        options = sampling_options(given)
        most = given.whole("num_predict")
        if most is not None and most > 0:
            options["max_tokens"] = most
    wanted = fields.value("format")
    if wanted == "json":
        options["response_format"] = {"type": "json_object"}
    elif wanted:
        options["response_format"] = {"type": "json_schema", "json_schema": {"schema": wanted}}
    return options


class OllamaWriter:
    """Writes answers as lines of JSON; ``is_chat`` tells those to messages from those to a text."""

    media_type = "application/x-ndjson"
    ping: bytes | None = None
    is_chat = True

    def __init__(self, fields: Fields, entry: LoadedModel, name: str) -> None:
        del entry
        self._name = fields.text("model") or name
        self._begun = time.perf_counter()

    def whole(self, answers: Answers) -> dict[str, Any]:
        """Return the answer."""
        answer = answers.whole[0]
        result = answer.ended
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in result.tool_calls]
        return {
            **self._line(answer.text.strip() if calls else answer.text, answer.reasoning, calls),
            **self._end(result),
        }

    def begin(self, answers: Answers) -> Iterable[bytes]:
        """Tell nothing."""
        del answers
        return ()

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Tell what has come; calls when they are whole."""
        calls: list[dict[str, Any]] = []
        if piece.result is not None:
            calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in piece.result.tool_calls]
        if piece.text or piece.reasoning or calls:
            yield self._written({**self._line(piece.text, piece.reasoning, calls), "done": False})

    def end(self, answers: Answers) -> Iterator[bytes]:
        """Tell why it ended, and the counts."""
        yield self._written({**self._line("", "", []), **self._end(answers.whole[0].ended)})

    def failure(self, failure: HTTPFailure) -> Iterator[bytes]:
        """Tell that the answer failed."""
        yield self._written({"error": failure.message})

    def _written(self, value: Mapping[str, Any]) -> bytes:
        return f"{json_text(value)}\n".encode("utf-8", "replace")

    def _line(self, text: str, thoughts: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"model": self._name, "created_at": _time(time.time())}
        if not self.is_chat:
            return {**head, "response": text, **({"thinking": thoughts} if thoughts else {})}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        message |= {"thinking": thoughts} if thoughts else {}
        return {**head, "message": {**message, "tool_calls": calls} if calls else message}

    def _end(self, result: Result) -> dict[str, Any]:
        timings = result.timings
        return {
            "done": True,
            "done_reason": "length" if result.finish_reason in ("length", "context_full") else "stop",
            "total_duration": int(1e9 * (time.perf_counter() - self._begun)),
            "load_duration": 0,
            "prompt_eval_count": result.usage.prompt_tokens,
            "prompt_eval_duration": int(1e6 * timings.prompt_ms),
            "eval_count": result.usage.completion_tokens,
            "eval_duration": int(1e6 * timings.predicted_ms),
            "edge_rt": own_fields(result)["edge_rt"],
        }


class OllamaTextWriter(OllamaWriter):
    """Writes answers to a text."""

    is_chat = False


async def show_version(server: Server, request: Request) -> Response:
    """Tell the version of the API."""
    del server, request
    return JSONResponse({"version": API_VERSION})


async def list_tags(server: Server, request: Request) -> Response:
    """List the models."""
    del request
    packages = await asyncio.to_thread(server.models.packages)
    listed = await asyncio.to_thread(lambda: [_tag(name, packages[name]) for name in sorted(packages)])
    return JSONResponse({"models": [one for one in listed if one is not None]})


async def list_loaded(server: Server, request: Request) -> Response:
    """List the models that are loaded, with the memory that is planned for them."""
    del request

    def of(entry: LoadedModel) -> dict[str, Any]:
        plan = entry.model.plan
        on_gpu = plan.device_bytes
        sizes = {"size": plan.process_bytes + on_gpu, "size_vram": on_gpu}
        tag = _tag_of(entry.name, entry.model.package)
        return {**tag, **sizes, "context_length": entry.model.context_tokens}

    return JSONResponse({"models": [of(entry) for entry in server.models.loaded.values()]})


def _tag(name: str, path: Path) -> dict[str, Any] | None:
    from edge_rt.errors import EdgeRTError
    from edge_rt.package.reader import open_package

    try:
        package = open_package(path)
    except (EdgeRTError, OSError):
        return None
    return {**_tag_of(name, package), "modified_at": _modified(path)}


def _modified(path: Path) -> str:
    """Return when a package was made."""
    modified = 0.0
    with suppress(OSError):
        modified = path.stat().st_mtime
    return _time(modified)


def _tag_of(name: str, package: Package) -> dict[str, Any]:
    details = _details(package.manifest)
    return {"name": name, "model": name, "size": package.size_bytes, "digest": package.id, "details": details}


def _details(manifest: Any) -> dict[str, Any]:
    kinds = sorted(set(manifest.quantisation.values()))
    millions = manifest.num_parameters / 1e6
    return {
        "format": "edge-rt",
        "family": manifest.model.family,
        "families": [manifest.model.family],
        "parameter_size": f"{millions / 1e3:.1f}B" if millions >= 1e3 else f"{millions:.0f}M",
        "quantization_level": ", ".join(kinds),
    }


async def show_details(server: Server, post: Post) -> Response:
    """Show one model: context, template, what it can do."""
    from edge_rt.package.reader import open_package

    asked = post.fields.text("model") or post.fields.text("name")
    name = server.models.name_of(None if asked is None else asked.removesuffix(":latest"))
    packages = await asyncio.to_thread(server.models.packages)
    package = await asyncio.to_thread(open_package, packages[name])
    manifest = package.manifest
    template = ""
    if manifest.chat_template is not None:
        template = await asyncio.to_thread(package.file(manifest.chat_template).read_text, "utf-8")
    entry = server.models.loaded.get(name)
    context = manifest.model.context_length if entry is None else entry.model.context_tokens
    able = ["completion", *(["tools"] if "tools" in template else [])]
    able += ["embedding"] if manifest.pooling is not None else []
    family = manifest.model.family
    info = {"general.architecture": family, "general.parameter_count": manifest.num_parameters}
    info[f"{family}.context_length"] = context
    facts = {"details": _details(manifest), "model_info": info, "capabilities": able, "template": template}
    modified = await asyncio.to_thread(_modified, packages[name])
    return JSONResponse({**facts, "parameters": "", "license": manifest.license or "", "modified_at": modified})


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
