"""Results of a generation: the same fields in Python and in every ``--json`` answer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from edge_rt.system.notebooks import shown_text
from edge_rt.text.tool_calls import ToolCall

FinishReason = Literal["stop", "length", "cancelled", "context_full", "repetition"]
"""Why an answer ended."""


@dataclass(frozen=True)
class LogProb:
    """A token that could follow.

    Attributes:
        text: of the token alone; bytes that are no whole character are U+FFFD.
        logprob: natural logarithm of its probability: of the model's own logits, at temperature 1, before penalties,
            bias, bans and everything else.
    """

    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class TokenLogProb(LogProb):
    """A token that followed.

    Attributes:
        top: the most likely tokens at its place, as many as were asked for, the most likely first.
    """

    top: tuple[LogProb, ...]


@dataclass(frozen=True)
class Event:
    """A piece of the answer.

    Attributes:
        text: new text, whole characters only; may be empty while a character or a stop text is incomplete.
        token_ids: tokens that came with it.
        reasoning: new text of the model's thoughts, which are no part of the answer.
        logprobs: of the tokens; empty unless they were asked for.
        num_accepted: how many of the tokens, the first ones, are accepted drafts.
        accepted_characters: how many characters of the text, the first ones, came with them.
    """

    text: str
    token_ids: tuple[int, ...]
    reasoning: str = ""
    logprobs: tuple[TokenLogProb, ...] = ()
    num_accepted: int = 0
    accepted_characters: int = 0


@dataclass(frozen=True)
class Usage:
    """Token counts.

    Attributes:
        prompt_tokens: tokens of the prompt.
        completion_tokens: tokens generated, the end token included.
        total_tokens: the sum of both.
        cached_tokens: tokens of the prompt that were already in the cache and were not computed.
        forced_tokens: tokens generated without asking the model, as the answer's format left no choice.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    forced_tokens: int = 0


@dataclass(frozen=True)
class Timings:
    """Where the time went; names as in llama.cpp's server, times in milliseconds.

    Attributes:
        cache_n: tokens of the prompt taken from the cache.
        prompt_n: tokens of the prompt that were computed.
        prompt_ms: time until the first token was chosen; what a format forces in front of it is not.
        prompt_per_second: ``prompt_n`` per second.
        predicted_n: tokens generated.
        predicted_ms: time from the first token that was chosen to the last token.
        predicted_per_second: tokens after the first one chosen per second; 0 with a single token.
        ttft_ms: time from the call to the first piece of the answer, encoding of the prompt included.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    ttft_ms: float


@dataclass(frozen=True)
class Memory:
    """Memory of the process.

    A peak above the plan means something only where one model was ever loaded in a process that holds nothing else.

    Attributes:
        peak_bytes: highest resident memory so far, of all that is in the process: other models, those that were closed,
            a GPU's driver, and what a program has loaded or allocated since.
        kv_bytes: bytes of the rows of the KV cache in use.
        planned_bytes: peak memory of the process according to the memory plan, of this model and what the process held
            before its first one; no other models.
        budget_bytes: the budget that was given; None without one.
    """

    peak_bytes: int
    kv_bytes: int
    planned_bytes: int | None = None
    budget_bytes: int | None = None


@dataclass(frozen=True)
class ExpertStats:
    """Experts of a layer and pass that a generation wanted, where they are read into a cache.

    With several slots these are those of all answers that were computed meanwhile.

    Attributes:
        cache_bytes: of the cache.
        hits: that were in the cache.
        misses: that were read.
        hit_share: hits over both.
        read_bytes: that were read.
        read_bytes_per_token: of them, behind the first token and per further one.
        waited_ms: time that passes waited for reads.
    """

    cache_bytes: int
    hits: int
    misses: int
    hit_share: float
    read_bytes: int
    read_bytes_per_token: float
    waited_ms: float


@dataclass(frozen=True)
class SpecStats:
    """Statistics of speculation, named as in llama.cpp's server.

    Attributes:
        mode: as asked for: ``"auto"`` or a drafter's name.
        steps: verification passes after the first token, those without a draft included.
        tokens_per_step: emitted tokens per step.
        draft_n: drafted tokens that were tested: their parents were accepted.
        draft_n_accepted: those that were accepted.
        acceptance: accepted over tested tokens; 0 if none was tested.
        rows_drafted: nodes of all drafts, tested or not.
        accepted_per_position: share of the steps that accepted at least 1, 2, ... drafted tokens.
        drafting_ms: time spent on drafting and learning.
        verifying_ms: time spent on passes and on choosing tokens.
        drafting_share: ``drafting_ms`` over the sum of both.
        choices: steps per drafter: ``"off"``, a drafter's name or ``"fusion"``.
        memory_bytes: memory of the drafters.
        beside: whether a second model drafts beside passes that verify: ``"on"``, or ``"off: "`` and why; None: there
            is no second model.
        beside_n: its passes beside others.
        beside_drafted: tokens that were drafted of what these gave, as the guess of what is accepted was right.
        hidden_ms: what passes for these tokens would have taken behind those that verify.
    """

    mode: str
    steps: int
    tokens_per_step: float
    draft_n: int
    draft_n_accepted: int
    acceptance: float
    rows_drafted: int
    accepted_per_position: tuple[float, ...]
    drafting_ms: float
    verifying_ms: float
    drafting_share: float
    choices: dict[str, int]
    memory_bytes: int
    beside: str | None = None
    beside_n: int = 0
    beside_drafted: int = 0
    hidden_ms: float = 0.0


@dataclass(frozen=True)
class Result:
    """A finished generation.

    Attributes:
        text: the answer, as the model wrote it; calls of tools are in it as well.
        token_ids: tokens generated, the end token included.
        finish_reason: ``"stop"`` (end token or stop text), ``"length"`` (``max_tokens``), ``"context_full"``,
            ``"repetition"`` (the guard found that it repeats itself, or counts, without end) or ``"cancelled"``.
        stop_string: the stop text that ended the answer, or None.
        usage: token counts.
        timings: durations and speeds.
        spec: statistics of speculation; None if it was off.
        memory: memory of the process.
        reasoning: the model's thoughts, between its own markers; empty if there are none, and for prompts that are not
            messages.
        tool_calls: calls of the tools that were given.
        logprobs: one for every token; None unless they were asked for. A token that the format forces has 0 and
            no others beside it.
        parsed: what a whole answer to ``response_format`` holds: plain data, or an object of the type that was given.
            None where the answer was cut, and without that option.
        experts: what was read of experts; None where they are resident, or there are none.
        warnings: what of the answer's format is not enforced, and what went wrong with a prompt cache.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_string: str | None
    usage: Usage
    timings: Timings
    spec: SpecStats | None
    memory: Memory
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogProb, ...] | None = None
    parsed: Any = None
    warnings: tuple[str, ...] = ()
    experts: ExpertStats | None = None

    def _repr_html_(self) -> str:
        return shown_text(self.text)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object; what follows ``memory`` only where there is something.

        What holds an object of a type of one's own is left out as well: its text is there.
        """
        document = dataclasses.asdict(dataclasses.replace(self, parsed=None))
        if _is_plain(self.parsed):
            document["parsed"] = self.parsed
        for name in ("reasoning", "tool_calls", "logprobs", "parsed", "warnings", "experts"):
            if document[name] in ("", (), None):
                del document[name]
        return document


def _is_plain(value: object) -> bool:
    """Return whether JSON can say a value."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(one) for name, one in value.items())
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, str | int | float | None)
