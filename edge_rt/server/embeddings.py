"""Embeddings as OpenAI's API and Ollama's have them: texts or token ids in, vectors out."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from starlette.responses import JSONResponse, Response

from edge_rt.errors import ConfigError, ContextOverflow, QueueFull
from edge_rt.runtime.embedding import Array, embedding_ids, require_pooling
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.model import Model
from edge_rt.server.answer_fields import json_text, written_rows
from edge_rt.server.failures import RETRY_SECONDS, HTTPFailure, too_long, unsupported
from edge_rt.server.fields import FLAG, TEXT, Fields, Table, either, listed, needed, one_of, whole
from edge_rt.server.models import LoadedModel
from edge_rt.server.ollama import ollama_name
from edge_rt.server.responding import unless_gone
from edge_rt.server.shared import Post, Server
from edge_rt.server.texts import MOST_IDS, token_ids

MOST_INPUTS: Final = 2048
TOGETHER: Final = 32
"""Texts that are computed before others of the model have their turn."""
_ID: Final = whole(0, (1 << 31) - 1)
_DIMENSIONS: Final = whole(1, 1 << 16)
EMBEDDINGS: Final[Table] = {
    "model": TEXT,
    "input": needed(either(TEXT, listed(either(TEXT, _ID, listed(_ID, MOST_IDS)), MOST_IDS))),
    "encoding_format": one_of("float", "base64"),
    "dimensions": _DIMENSIONS,
    "prompt_name": TEXT,
    "truncate": FLAG,
}
OLLAMA_EMBED: Final[Table] = {
    "model": TEXT,
    "input": needed(either(TEXT, listed(TEXT, MOST_INPUTS))),
    "truncate": FLAG,
    "dimensions": _DIMENSIONS,
}
OLLAMA_EMBEDDINGS: Final[Table] = {"model": TEXT, "prompt": needed(TEXT), "dimensions": _DIMENSIONS}


async def answer_openai(server: Server, post: Post) -> Response:
    """Return embeddings, as numbers or as the bytes of float32."""
    fields = post.fields
    asked = _Asked(fields.text("model"), _inputs(fields), fields.text("prompt_name"), fields.flag("truncate"))
    vectors, count = await _embedded(server, post, asked)
    is_bytes = fields.value("encoding_format") == "base64"

    def row(index: int) -> str:
        values: Any = vectors[index].tolist()
        if is_bytes:
            values = base64.b64encode(vectors[index].astype("<f4").tobytes()).decode()
        return f'{{"object":"embedding","index":{index},"embedding":{json_text(values)}}}'

    usage = {"prompt_tokens": count, "total_tokens": count}
    head = {"object": "list", "model": server.models.shown(asked.model), "usage": usage}
    return await asyncio.to_thread(written_rows, head, "data", map(row, range(len(vectors))))


async def answer_ollama(server: Server, post: Post) -> Response:
    """Return embeddings as Ollama does, but for texts that are too long: they are cut only if the request says so."""
    begun, fields = time.perf_counter(), post.fields
    asked = _Asked(ollama_name(fields), _inputs(fields), truncate=fields.flag("truncate"))
    vectors, count = await _embedded(server, post, asked)
    took = int(1e9 * (time.perf_counter() - begun))
    head = {"model": fields.text("model") or server.models.shown(None), "total_duration": took, "load_duration": 0}
    rows = (json_text(vector.tolist()) for vector in vectors)
    return await asyncio.to_thread(written_rows, {**head, "prompt_eval_count": count}, "embeddings", rows)


async def answer_old_ollama(server: Server, post: Post) -> Response:
    """Return one embedding, as Ollama did at first."""
    asked = _Asked(ollama_name(post.fields), [post.fields.required("prompt")])
    vectors, _ = await _embedded(server, post, asked)
    return JSONResponse({"embedding": vectors[0].tolist()})


@dataclass(frozen=True)
class _Asked:
    """What is asked for; ``prompt`` names one of the package's."""

    model: str | None
    inputs: Sequence[str | Sequence[int]]
    prompt: str | None = None
    truncate: bool = False


def _inputs(fields: Fields) -> Sequence[str | Sequence[int]]:
    """Return texts or lists of token ids."""
    value = fields.required("input")
    if isinstance(value, str):
        return [value]
    if value and all(isinstance(one, int) for one in value):
        return [token_ids(value, "input")]
    if not 0 < len(value) <= MOST_INPUTS:
        what = f"The field 'input' has {len(value)} entries; wanted are 1 to {MOST_INPUTS}."
        raise HTTPFailure(400, what, param="input")
    return [one if isinstance(one, str) else token_ids(one, f"input[{index}]") for index, one in enumerate(value)]


async def _embedded(server: Server, post: Post, asked: _Asked) -> tuple[Array, int]:
    """Return embeddings, and of how many tokens they are."""
    async with server.models.using(asked.model) as entry:
        size = entry.model.package.manifest.model.hidden_size

        def encoded() -> list[list[int]]:
            try:
                pooling = require_pooling(entry.model.package.manifest)
            except ConfigError as error:
                raise unsupported("model", str(error)) from error
            most, tokenizer = entry.model.context_tokens, entry.model.tokenizer
            try:
                return embedding_ids(asked.inputs, tokenizer, pooling, asked.prompt, most, truncate=asked.truncate)
            except ContextOverflow as error:
                raise too_long(error, "input") from error

        texts = await server.encoded(encoded)
        if post.fields.whole("dimensions") not in (None, size):
            what = f"Embeddings of {asked.model or entry.name} have {size} dimensions, and cannot be shortened."
            raise unsupported("dimensions", f"{what} Leave out 'dimensions'.")
        vectors = await unless_gone(post.request.receive, _computed(server, entry, texts))
        count = sum(map(len, texts))
        server.counters.embedded_tokens += count
        return vectors, count
    raise AssertionError("nothing swallows errors")


async def _computed(server: Server, entry: LoadedModel, texts: Sequence[Sequence[int]]) -> Array:
    """Compute embeddings, some at a time: others of the model have their turn in between."""
    most_waiting = server.models.options.max_queue
    if most_waiting is not None and entry.embedding > most_waiting:
        raise QueueFull(entry.embedding - 1, RETRY_SECONDS)
    entry.embedding += 1
    try:
        parts = []
        for first in range(0, len(texts), TOGETHER):
            async with entry.turn or entry.embedding_turn:
                parts.append(await _in_thread(server, entry.model, texts[first : first + TOGETHER]))
        return np.concatenate(parts)
    finally:
        entry.embedding -= 1


async def _in_thread(server: Server, model: Model, texts: Sequence[Sequence[int]]) -> Array:
    cancel = CancelToken()
    task = asyncio.ensure_future(asyncio.to_thread(model.embed, texts, cancel=cancel))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        cancel.cancel()
        await server.settle(task)
        raise
