"""What became of drafts: rates of hits that are learned, and the statistics of an answer."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.results import SpecStats

if TYPE_CHECKING:
    from edge_rt.runtime.decode.sequence import Sequence


_KEEP: Final = 0.998
"""Factor on a count at every new trial of the same kind: about 500 trials are remembered."""


class Rates:
    """Discounted hit rates with priors."""

    def __init__(self, priors: Items[float], trials: float) -> None:
        self._priors = list(priors)
        self._prior_trials = trials
        self._hits = [prior * trials for prior in priors]
        self._trials = [trials] * len(priors)
        self._is_learned = [False] * len(priors)
        self.value = list(priors)

    def learn(self, index: int, hit: bool) -> None:
        """Learn the outcome of a trial."""
        trials = self._trials[index] * _KEEP + 1.0
        hits = self._hits[index] * _KEEP + hit
        self._trials[index], self._hits[index] = trials, hits
        self._is_learned[index] = True
        self.value[index] = hits / trials

    def relax(self, keep: float) -> None:
        """Move part of the way back to the priors."""
        first = self._prior_trials
        for index, is_learned in enumerate(self._is_learned):
            if is_learned:
                prior = self._priors[index]
                trials = first + keep * (self._trials[index] - first)
                hits = prior * first + keep * (self._hits[index] - prior * first)
                self._trials[index], self._hits[index] = trials, hits
                self.value[index] = hits / trials


@dataclass
class BesideCounts:
    """What became of passes beside others, in an answer.

    Attributes:
        passes: that were computed.
        drafted: tokens that were drafted of what they gave.
        hidden_ms: what passes for these would have taken behind the others.
    """

    passes: int = 0
    drafted: int = 0
    hidden_ms: float = 0.0


@dataclass
class SpecCounter:
    """Counts while an answer is generated; the attributes are sums of those of ``SpecStats``."""

    steps: int = 0
    emitted: int = 0
    tested: int = 0
    accepted: int = 0
    drafted: int = 0
    drafting_ms: float = 0.0
    verifying_ms: float = 0.0
    lengths: list[int] = field(default_factory=list)
    choices: dict[str, int] = field(default_factory=dict)
    beside: str | None = None
    beside_counts: BesideCounts = field(default_factory=BesideCounts)

    def add(
        self,
        draft: Draft,
        accepted: Accepted,
        tested: int,
        drafting_ms: float,
        verifying_ms: float,
        choice: str,
        *,
        is_first: bool,
    ) -> None:
        """Count a step with ``tested`` tested nodes.

        Of the first step, which computes the prompt, only the drafting time counts.
        """
        self.drafting_ms += drafting_ms
        if is_first:
            return
        self.steps += 1
        self.emitted += len(accepted.token_ids)
        self.tested += tested
        self.accepted += accepted.num_accepted
        self.drafted += len(draft)
        self.verifying_ms += verifying_ms
        self.choices[choice] = self.choices.get(choice, 0) + 1
        while len(self.lengths) < accepted.num_accepted:
            self.lengths.append(0)
        for position in range(accepted.num_accepted):
            self.lengths[position] += 1

    def stats(self, mode: str, memory_bytes: int, taken_back: int = 0) -> SpecStats:
        """Return the statistics so far, without accepted tokens of the last step that were taken back."""
        accepted = max(self.accepted - taken_back, 0)
        tested = max(self.tested - taken_back, 0)
        emitted = self.emitted - taken_back
        whole = self.drafting_ms + self.verifying_ms
        return SpecStats(
            mode=mode,
            steps=self.steps,
            tokens_per_step=emitted / self.steps if self.steps else 0.0,
            draft_n=tested,
            draft_n_accepted=accepted,
            acceptance=accepted / tested if tested else 0.0,
            rows_drafted=self.drafted,
            accepted_per_position=tuple(count / self.steps for count in self.lengths),
            drafting_ms=self.drafting_ms,
            verifying_ms=self.verifying_ms,
            drafting_share=self.drafting_ms / whole if whole else 0.0,
            choices=dict(self.choices),
            memory_bytes=memory_bytes,
            beside=self.beside,
            beside_n=self.beside_counts.passes,
            beside_drafted=self.beside_counts.drafted,
            hidden_ms=self.beside_counts.hidden_ms,
        )


def decision(
    sequence: Sequence,
    arm: str,
    draft: Draft,
    accepted: Accepted,
    expected: float,
    drafting_ms: float,
    verifying_ms: float,
) -> dict[str, Any]:
    """Return the trace record of a step; its fields are listed in ``docs/decoding.md``."""
    emitted = len(accepted.token_ids)
    return {
        "position": len(sequence.token_ids) - emitted,
        "arm": arm,
        "drafted": len(draft),
        "expected": 1.0 + expected,
        "emitted": emitted,
        "drafting_ms": drafting_ms,
        "verifying_ms": verifying_ms,
    }
