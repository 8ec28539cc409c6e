"""How likely a model finds a text: the log probability of every token, and perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.errors import ConfigError
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.decode.logprobs import log_sum_exp
from edge_rt.runtime.decode.loop import Target

PASS_ROWS: Final = 64
"""Most tokens of a pass: each needs a row of logits."""


@dataclass(frozen=True)
class Score:
    """How likely a model finds a text.

    Attributes:
        token_ids: tokens of the text, with the one that starts a prompt if the model has such.
        logprobs: natural logarithms of the probabilities of all tokens but the first, which has nothing before it.
        log_probability: their sum.
        perplexity: ``exp(-log_probability / len(logprobs))``.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    log_probability: float
    perplexity: float

    def to_json(self) -> dict[str, Any]:
        """Return the score as a JSON object."""
        return {
            "tokens": len(self.logprobs),
            "log_probability": self.log_probability,
            "perplexity": self.perplexity,
            "token_ids": list(self.token_ids),
            "logprobs": list(self.logprobs),
        }


def windows_of(count: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield where windows over ``count`` tokens begin, where their first scored token is, and where they end.

    A text that fits is one window. Others begin half a window apart, so that every token but the first ones sees at
    least half a window before it; a token is scored in the first window that has it.
    """
    begin = scored = 0
    while scored < count:
        end = min(count, begin + size)
        yield begin, scored, end
        begin, scored = begin + size // 2, end


def score_tokens(
    token_ids: Sequence[int],
    target: Target,
    cache: KVCache,
    *,
    rows: int,
    chunk: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Score:
    """Compute the log probability of every token but the first; the cache is empty before and afterwards.

    Args:
        rows: most tokens of a pass that are scored.
        chunk: most tokens of a pass that another window has scored.
        on_progress: called with the tokens that are scored, and with all.
    """
    if len(token_ids) < 2:
        raise ConfigError(
            "The text is too short for a score.",
            f"It has {len(token_ids)} tokens; the first has nothing before it that could make it likely.",
            "Give a longer text.",
        )
    logprobs: list[float] = []
    try:
        for begin, scored, end in windows_of(len(token_ids), cache.capacity):
            cache.truncate(0)
            at = begin
            while at < end:
                is_known = at < scored - 1
                ids = list(token_ids[at : min(at + chunk, scored - 1) if is_known else min(at + rows, end)])
                with cache.reserve(len(ids)) as reserved:
                    outputs = target.forward(ids, reserved.start, 1 if is_known else len(ids))
                    # Row i says what follows token at + i.
                    for row in range(0 if is_known else min(len(ids), end - 1 - at)):
                        logit = float(outputs.logits[row, token_ids[at + row + 1]])
                        logprobs.append(logit - log_sum_exp(outputs, row))
                    reserved.commit(ids)
                at += len(ids)
                if on_progress is not None:
                    on_progress(len(logprobs) + 1, len(token_ids))
    finally:
        cache.truncate(0)
    total = math.fsum(logprobs)
    return Score(tuple(token_ids), tuple(logprobs), total, math.exp(-total / len(logprobs)))
