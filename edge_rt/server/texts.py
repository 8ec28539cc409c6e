"""Texts and tokens: what a model's tokenizer and chat template make of each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from starlette.responses import JSONResponse, Response

from edge_rt.runtime.model import Model
from edge_rt.server.answer_fields import json_text, written_rows
from edge_rt.server.bodies import MOST_TEXT_BYTES
from edge_rt.server.failures import HTTPFailure, wrong_field
from edge_rt.server.fields import FLAG, TEXT, Fields, Table, listed, needed, objects, whole
from edge_rt.server.request_fields import (
    CHAT,
    MESSAGE,
    MOST_MESSAGES,
    TEMPLATE,
    chat_messages,
    chat_tools,
    template_arguments,
    with_system,
)
from edge_rt.server.shared import Post, Server
from edge_rt.system.byte_size import show_at_least, show_size
from edge_rt.text.template_text import RenderedPrompt

T = TypeVar("T")
MOST_IDS: Final = 1 << 18
_MOST_TOKENS: Final = 1 << 17
"""That are counted or listed, where a model's context is no longer."""


def most_tokens(model: Model) -> int:
    """Return how many tokens of a text are counted or listed."""
    return max(_MOST_TOKENS, model.context_tokens)


def token_ids(value: object, name: str, vocabulary: int = 1 << 31) -> list[int]:
    """Return token ids of a request.

    Raises:
        HTTPFailure: it is no list of ids.
    """
    if not isinstance(value, list) or len(value) > MOST_IDS:
        raise wrong_field(name, f"a list of at most {MOST_IDS} token ids", value)
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise wrong_field(name, f"a list of token ids from 0 to {vocabulary - 1}", token)
    return value


TOKENIZE: Final[Table] = {
    **CHAT,
    **TEMPLATE,
    "messages": objects(MESSAGE, MOST_MESSAGES),
    "add_generation_prompt": FLAG,
    "content": TEXT,
    "prompt": TEXT,
    "add_special": FLAG,
    "with_pieces": FLAG,
}
DETOKENIZE: Final[Table] = {"model": TEXT, "tokens": needed(listed(whole(0, (1 << 31) - 1), MOST_IDS))}
APPLY_TEMPLATE: Final[Table] = {**CHAT, **TEMPLATE, "add_generation_prompt": FLAG}


async def _done(server: Server, post: Post, work: Callable[[Model], T]) -> T:
    """Do some work with the model that a request names, beside the event loop."""
    async with server.models.using(post.fields.text("model")) as entry:
        return await server.encoded(partial(work, entry.model))
    raise AssertionError("nothing swallows errors")


async def tokenize(server: Server, post: Post) -> Response:
    """Return the tokens of a text, or of messages as the template writes them."""
    fields = post.fields

    def work(model: Model) -> Response:
        texts, most = model.texts, most_tokens(model)
        assert texts is not None, "the model is open"
        if "messages" in fields:
            ids = texts.encoded_within(_rendered(server, model, fields), most)
        else:
            name = "content" if "content" in fields or "prompt" not in fields else "prompt"
            fields.required(name)
            ids = texts.encoded_within(fields.text(name) or "", most)
            if not fields.flag("add_special", default=name == "prompt") and ids[:1] == [model.tokenizer.bos_token_id]:
                ids = ids[1:]
        rows = map(str, ids)
        if fields.flag("with_pieces"):
            pieces = ({"id": token, "piece": model.decode([token], skip_special=False)} for token in ids)
            rows = map(json_text, pieces)
        return written_rows({"count": len(ids), "max_model_len": model.context_tokens}, "tokens", rows)

    return await _done(server, post, work)


async def detokenize(server: Server, post: Post) -> Response:
    """Return the text of tokens."""

    def work(model: Model) -> Response:
        ids = token_ids(post.fields.required("tokens"), "tokens", model.tokenizer.vocab_size)
        if (size := sum(len(model.tokenizer.token_bytes(token)) for token in ids)) > MOST_TEXT_BYTES:
            what = f"The text of these tokens has {show_at_least(size)}; the limit is {show_size(MOST_TEXT_BYTES)}."
            raise HTTPFailure(400, f"{what} Send some at a time.", param="tokens")
        text = model.decode(ids, skip_special=False)
        return JSONResponse({"content": text, "prompt": text})

    return await _done(server, post, work)


async def apply_template(server: Server, post: Post) -> Response:
    """Return messages as the template writes them."""
    return await _done(server, post, lambda model: JSONResponse({"prompt": _rendered(server, model, post.fields).text}))


def _rendered(server: Server, model: Model, fields: Fields) -> RenderedPrompt:
    """Return messages as the template writes them, behind the system message of a preset if they have none."""
    messages = with_system(chat_messages(fields), server.models.preset_of(fields.text("model")))
    tools, arguments = chat_tools(fields), template_arguments(fields)
    begins = fields.flag("add_generation_prompt", default=True)
    return model.render(messages, add_generation_prompt=begins, tools=tools, template_args=arguments)
