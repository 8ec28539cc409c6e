"""The tokens of one request and the reason it ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence as TokenIds

from edge_rt.errors import ConfigError, ContextOverflow
from edge_rt.runtime.results import FinishReason


class Sequence:
    """Prompt and answer of one request.

    Args:
        max_tokens: most tokens of the answer, or None.
    """

    def __init__(
        self, prompt_ids: TokenIds[int], *, capacity: int, max_tokens: int | None, end_ids: Collection[int]
    ) -> None:
        self.token_ids: list[int] = list(prompt_ids)
        if not self.token_ids:
            raise ConfigError("The prompt is empty.", "It has 0 tokens.", "Give at least one character.")
        if len(prompt_ids) + (max_tokens or 1) > capacity:
            raise ContextOverflow(len(prompt_ids), max_tokens or 1, capacity)
        self.num_prompt_tokens = len(prompt_ids)
        self.end_ids = frozenset(end_ids)
        self.finish_reason: FinishReason | None = None
        self._capacity = capacity
        self._max_tokens = max_tokens

    @property
    def is_finished(self) -> bool:
        """True once there is a finish reason."""
        return self.finish_reason is not None

    @property
    def answer_ids(self) -> list[int]:
        """Tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_answer_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def room(self) -> int:
        """Tokens that may still be generated."""
        room = self._capacity - len(self.token_ids)
        return room if self._max_tokens is None else min(room, self._max_tokens - self.num_answer_tokens)

    @property
    def most_rows(self) -> int:
        """Rows of the cache that it may still come to need in all: those of all tokens but the last."""
        return len(self.token_ids) + self.room - 1

    def append(self, token_ids: TokenIds[int]) -> None:
        """Add emitted tokens (at most ``room``), and finish if one of them ends the answer or no more tokens fit."""
        assert len(token_ids) <= self.room, (len(token_ids), self.room)
        self.token_ids.extend(token_ids)
        if self.token_ids[-1] in self.end_ids:
            self.finish("stop")
        elif self._max_tokens is not None and self.num_answer_tokens >= self._max_tokens:
            self.finish("length")
        elif len(self.token_ids) >= self._capacity:
            self.finish("context_full")

    def end_after(self, num_answer_tokens: int, reason: FinishReason) -> None:
        """Keep only the first ``num_answer_tokens`` (at least 1) tokens of the answer, and finish for this reason."""
        assert 1 <= num_answer_tokens <= self.num_answer_tokens, (num_answer_tokens, self.num_answer_tokens)
        del self.token_ids[self.num_prompt_tokens + num_answer_tokens :]
        self.finish_reason = reason

    def finish(self, reason: FinishReason) -> None:
        """End the request; if it has ended already, the first reason is kept."""
        self.finish_reason = self.finish_reason or reason
