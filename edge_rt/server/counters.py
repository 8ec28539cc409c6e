"""What a server counts: requests, tokens and time, for its log, ``/metrics`` and its status."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from edge_rt.runtime.results import Result


@dataclass
class Counters:
    """Sums since the server began.

    Attributes:
        requests: by path of the route and status.
        active: requests that are being answered.
        answers: that have ended.
    """

    begun: float = field(default_factory=time.time)
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    active: int = 0
    answers: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_tokens: int = 0
    prompt_seconds: float = 0.0
    predicted_seconds: float = 0.0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def add(self, result: Result) -> None:
        """Count an answer that has ended."""
        self.answers += 1
        self.prompt_tokens += result.timings.prompt_n
        self.cached_tokens += result.timings.cache_n
        self.predicted_tokens += result.timings.predicted_n
        self.prompt_seconds += result.timings.prompt_ms / 1e3
        self.predicted_seconds += result.timings.predicted_ms / 1e3
        if result.spec is not None:
            self.draft_tokens += result.spec.draft_n
            self.accepted_tokens += result.spec.draft_n_accepted
