"""OpenAI's completions of plain texts, and llama.cpp's between two texts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from edge_rt.runtime.results import TokenLogProb
from edge_rt.server.answer_fields import DONE, PING, finish_reason, new_id, own_fields, sse, usage
from edge_rt.server.answers import AnswerRequest, Answers, Piece
from edge_rt.server.failures import HTTPFailure, openai_error, unsupported, wrong_field
from edge_rt.server.fields import FLAG, TEXT, Fields, Table, either, inner, listed, needed, objects, whole
from edge_rt.server.models import LoadedModel
from edge_rt.server.request_fields import MOST_TOKENS, SAMPLING, STREAM, response_format, sampling_options
from edge_rt.server.texts import MOST_IDS, token_ids

MOST_PROMPTS: Final = 16
MOST_ANSWERS: Final = 16
_USUAL_TOKENS: Final = 16
"""OpenAI's default."""
_TOKEN_IDS: Final = listed(whole(0, (1 << 31) - 1), MOST_IDS)
COMPLETION: Final[Table] = {
    "model": TEXT,
    "prompt": needed(either(TEXT, listed(either(TEXT, whole(0, (1 << 31) - 1), _TOKEN_IDS), MOST_IDS))),
    "suffix": TEXT,
    **SAMPLING,
    **STREAM,
    "max_tokens": whole(1, MOST_TOKENS),
    "logprobs": whole(0, 20),
    "response_format": inner({}),
    "n": whole(1, MOST_ANSWERS),
    "best_of": whole(1, MOST_ANSWERS),
    "echo": FLAG,
}
INFILL: Final[Table] = {
    "model": TEXT,
    "input_prefix": TEXT,
    "input_suffix": TEXT,
    "prompt": TEXT,
    "input_extra": objects({"text": needed(TEXT)}, 256),
    "n_predict": whole(-1, MOST_TOKENS),
    **STREAM,
    **SAMPLING,
}


def read_completion(fields: Fields) -> AnswerRequest:
    """Return what a request for a completion asks for.

    Raises:
        HTTPFailure: a field is wrong, or asks for what this server cannot do.
    """
    prompts = _prompts(fields)
    options = sampling_options(fields)
    if (most := fields.whole("max_tokens")) is not None:
        options["max_tokens"] = most
    if (count := fields.whole("logprobs")) is not None:
        options["logprobs"] = count
    if (wanted := response_format(fields)) is not None:
        options["response_format"] = wanted
    if fields.flag("echo"):
        raise unsupported("echo", "The prompt is not repeated. Leave out 'echo', and put it in front yourself.")
    count = fields.whole("n") or 1
    if (fields.whole("best_of") or count) != count:
        raise unsupported("best_of", "All answers are returned: 'best_of' is 'n'.")
    if count * len(prompts) > MOST_ANSWERS:
        what = f"{len(prompts)} prompts with {count} answers each are too many; the limit is {MOST_ANSWERS} answers."
        raise HTTPFailure(400, what, param="n")
    infill = None
    if suffix := fields.text("suffix"):
        if len(prompts) > 1 or not isinstance(prompts[0], str):
            raise wrong_field("prompt", "one text, as there is a suffix", fields.raw("prompt"))
        infill = (prompts[0], suffix)
    asked = AnswerRequest(fields.text("model"), prompts[0], options, more=prompts[1:], count=count, infill=infill)
    return replace(asked, usual={"max_tokens": _USUAL_TOKENS})


def _prompts(fields: Fields) -> tuple[Any, ...]:
    value = fields.required("prompt")
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        return (token_ids(value, "prompt"),)
    if not isinstance(value, list) or not value or len(value) > MOST_PROMPTS:
        raise wrong_field("prompt", f"a text, token ids, or a list of at most {MOST_PROMPTS} of them", value)
    return tuple(one if isinstance(one, str) else token_ids(one, "prompt") for one in value)


def read_infill(fields: Fields) -> AnswerRequest:
    """Return what a request for a text between two others asks for, in llama.cpp's words."""
    before, behind = fields.text("input_prefix"), fields.text("input_suffix")
    if before is None and behind is None:
        fields.required("input_prefix")
    # What the editor has elsewhere comes in front, as one more beginning.
    context = "".join(f"{one.required('text')}\n" for one in fields.objects("input_extra"))
    prefix = context + (before or "") + (fields.text("prompt") or "")
    options = sampling_options(fields)
    most = fields.whole("n_predict")
    if most is not None and most >= 0:
        # With 0 the prompt alone is computed, for a later request: the one token behind it is not told.
        options["max_tokens"] = max(most, 1)
    return AnswerRequest(fields.text("model"), prefix, options, infill=(prefix, behind or ""))


class CompletionWriter:
    """Writes completions."""

    media_type = "text/event-stream"
    ping: bytes | None = PING

    def __init__(self, fields: Fields, entry: LoadedModel, name: str) -> None:
        del entry
        stream_options = fields.inner("stream_options")
        self._has_usage = stream_options is not None and stream_options.flag("include_usage")
        self._name = name
        self._id, self._created = new_id("cmpl-"), int(time.time())
        self._offsets: dict[int, int] = {}

    def whole(self, answers: Answers) -> dict[str, Any]:
        """Return the completions."""
        choices = []
        for index, answer in enumerate(answers.whole):
            result = answer.ended
            logprobs = None if result.logprobs is None else self._logprobs(index, result.logprobs)
            reason = finish_reason(result, 0)
            choices.append({"index": index, "text": answer.text, "logprobs": logprobs, "finish_reason": reason})
        return {**self._head(), "choices": choices, "usage": usage(answers), **own_fields(answers.whole[0].ended)}

    def begin(self, answers: Answers) -> Iterable[bytes]:
        """Tell nothing: the first piece does."""
        del answers
        return ()

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Tell the text that has come, and the end of an answer."""
        reason = None if piece.result is None else finish_reason(piece.result, 0)
        logprobs = self._logprobs(piece.index, piece.logprobs) if piece.logprobs else None
        if piece.text or logprobs or reason:
            choice = {"index": piece.index, "text": piece.text, "logprobs": logprobs, "finish_reason": reason}
            counts = {"usage": None} if self._has_usage else {}
            own = {} if piece.result is None else own_fields(piece.result)
            yield sse({**self._head(), "choices": [choice], **counts, **own})

    def end(self, answers: Answers) -> Iterator[bytes]:
        """Tell the counts if they were asked for, and that no more comes."""
        if self._has_usage:
            yield sse({**self._head(), "choices": [], "usage": usage(answers)})
        yield DONE

    def failure(self, failure: HTTPFailure) -> Iterable[bytes]:
        """Tell that the answer failed."""
        return (sse({"error": openai_error(failure)}),)

    def _head(self) -> dict[str, Any]:
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": self._name}

    def _logprobs(self, index: int, tokens: Sequence[TokenLogProb]) -> dict[str, Any]:
        """Return log probabilities as completions have them, with the place of each token in the text."""
        offsets = []
        for token in tokens:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [max(token.logprob, -9999.0) for token in tokens],
            "top_logprobs": [{other.text: max(other.logprob, -9999.0) for other in token.top} for token in tokens],
            "text_offset": offsets,
        }


class InfillWriter(CompletionWriter):
    """Writes texts between two others as llama.cpp's server does."""

    def __init__(self, fields: Fields, entry: LoadedModel, name: str) -> None:
        super().__init__(fields, entry, name)
        self._has_text = fields.whole("n_predict") != 0

    def whole(self, answers: Answers) -> dict[str, Any]:
        """Return the text."""
        answer = answers.whole[0]
        return {"content": answer.text if self._has_text else "", **self._end(answers)}

    def piece(self, piece: Piece) -> Iterator[bytes]:
        """Tell the text that has come."""
        if piece.text and self._has_text:
            yield sse({"index": 0, "content": piece.text, "stop": False})

    def end(self, answers: Answers) -> Iterator[bytes]:
        """Tell the counts."""
        yield sse({"index": 0, "content": "", **self._end(answers)})

    def _end(self, answers: Answers) -> dict[str, Any]:
        result = answers.whole[0].ended
        kinds = {"stop": "word" if result.stop_string is not None else "eos", "repetition": "eos"}
        return {
            "stop": True,
            "model": self._name,
            "stop_type": kinds.get(result.finish_reason, "limit") if self._has_text else "limit",
            "stopping_word": result.stop_string or "",
            "tokens_predicted": result.usage.completion_tokens if self._has_text else 0,
            "tokens_evaluated": result.usage.prompt_tokens,
            "truncated": False,
            **own_fields(result),
        }
