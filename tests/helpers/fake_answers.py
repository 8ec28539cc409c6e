"""A model whose answers and times are made up: for what compares and measures answers."""

from __future__ import annotations

from types import SimpleNamespace

from edge_rt.errors import ContextOverflow
from edge_rt.runtime.results import Memory, Result, SpecStats, Timings, Usage


def spec_stats(mode="auto", **changes):
    """Return statistics of a speculation: 10 steps that emitted 30 tokens."""
    numbers = {
        "mode": mode, "steps": 10, "tokens_per_step": 3.0, "draft_n": 40, "draft_n_accepted": 20, "acceptance": 0.5,
        "rows_drafted": 50, "accepted_per_position": (0.8, 0.6), "drafting_ms": 1.0, "verifying_ms": 19.0,
        "choices": {}, "drafting_share": 0.05, "memory_bytes": 0,
    }  # fmt: skip
    return SpecStats(**(numbers | changes))


def result(token_ids, *, spec=None, predicted_ms=20.0, ttft_ms=5.0, finish_reason="length"):
    """Return a result with these tokens."""
    count = len(token_ids)
    return Result(
        text="",
        token_ids=tuple(token_ids),
        finish_reason=finish_reason,
        stop_string=None,
        usage=Usage(1, count, count + 1, 0),
        timings=Timings(0, 1, ttft_ms, 0.0, count, predicted_ms, 0.0, ttft_ms),
        spec=spec,
        memory=Memory(0, 0),
    )


class FakeAnswers:
    """Answers as a function says; prompts longer than the context overflow.

    Args:
        answer: (text of the prompt, config) -> result.
        context_tokens: characters that a prompt may have.

    Attributes:
        log: what was asked for, in order: "forget", "reset", or (prompt, mode, max_tokens).
        configs: the options of every generation.
    """

    def __init__(self, answer, *, context_tokens=1000):
        self._answer = answer
        self._context_tokens = context_tokens
        self.log = []
        self.configs = []
        self.speculation = SimpleNamespace(forget=lambda: self.log.append("forget"))

    def reset(self):
        self.log.append("reset")

    def generate(self, prompt, config=None, *, cancel):
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        if len(text) + config.max_tokens > self._context_tokens:
            raise ContextOverflow(len(text), config.max_tokens, self._context_tokens)
        self.log.append((text, config.spec, config.max_tokens))
        self.configs.append(config)
        return self._answer(text, config)
