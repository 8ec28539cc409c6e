"""Texts and tokens: what a model's tokenizer and chat template make of each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from starlette.responses import JSONResponse, Response

from edge_rt.runtime.model import Model
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
from edge_rt.text.template_text import RenderedPrompt

T = TypeVar("T")
MOST_IDS: Final = 1 << 20


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

    def work(model: Model) -> dict[str, Any]:
        if "messages" in fields:
            ids = model.tokenizer.encode_rendered(_rendered(server, model, fields))
        else:
            name = "content" if "content" in fields or "prompt" not in fields else "prompt"
            fields.required(name)
            texts = model.texts
            assert texts is not None, "the model is open"
            ids = texts.whole_text(fields.text(name) or "")
            if not fields.flag("add_special", default=name == "prompt") and ids[:1] == [model.tokenizer.bos_token_id]:
                ids = ids[1:]
        answer: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": model.context_tokens}
        if fields.flag("with_pieces"):
            answer["tokens"] = [{"id": token, "piece": model.decode([token], skip_special=False)} for token in ids]
        return answer

    return JSONResponse(await _done(server, post, work))


async def detokenize(server: Server, post: Post) -> Response:
    """Return the text of tokens."""

    def work(model: Model) -> dict[str, Any]:
        ids = token_ids(post.fields.required("tokens"), "tokens", model.tokenizer.vocab_size)
        text = model.decode(ids, skip_special=False)
        return {"content": text, "prompt": text}

    return JSONResponse(await _done(server, post, work))


async def apply_template(server: Server, post: Post) -> Response:
    """Return messages as the template writes them."""
    rendered = await _done(server, post, lambda model: _rendered(server, model, post.fields))
    return JSONResponse({"prompt": rendered.text})


def _rendered(server: Server, model: Model, fields: Fields) -> RenderedPrompt:
    """Return messages as the template writes them, behind the system message of a preset if they have none."""
    messages = with_system(chat_messages(fields), server.models.preset_of(fields.text("model")))
    tools, arguments = chat_tools(fields), template_arguments(fields)
    begins = fields.flag("add_generation_prompt", default=True)
    return model.render(messages, add_generation_prompt=begins, tools=tools, template_args=arguments)


INFILL_TOKENS: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 -- so they are written
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
)
"""Tokens in front of what comes before the text that is wanted, of what comes behind it, and of that text."""


def infill_prompt(model: Model, before: str, behind: str) -> list[int]:
    """Return the prompt for a text between two others.

    Raises:
        HTTPFailure: the model has no tokens for that.
    """
    tokenizer = model.tokenizer
    for names in INFILL_TOKENS:
        ids = [tokenizer.token_to_id(name) for name in names]
        prefix, suffix, middle = ids
        if prefix is None or suffix is None or middle is None:
            continue
        start = [tokenizer.bos_token_id] if tokenizer.add_bos and tokenizer.bos_token_id is not None else []
        inner = (prefix, *tokenizer.encode_text(before), suffix, *tokenizer.encode_text(behind), middle)
        return [*start, *inner]
    what = "This model has no tokens for texts between two others. Use one for code, or continue one text."
    raise HTTPFailure(400, what, param="suffix", code="unsupported")
