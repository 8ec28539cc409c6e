"""Planned memory beside measured: a fresh process is driven to its plan's limits and looked at from outside.

The measured peak is the kernel's high-water mark of resident memory (``VmHWM``) of that process, mapped weights
included, read at its end. The parts are differences between stages, and the resident bytes of mappings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from edge_rt.memory.plan import Plan
from edge_rt.system.process_memory import ProcessMemory

TERM_OF_STAGE: Final = {
    "runtime": "runtime",
    "tokenizer": "tokenizer",
    "text": "tokenizer",
    "session": "session",
    "shapes": "session",
    "calibration": "activations",
    "prefill": "activations",
    "tree": "activations",
    "sampling": "sampling",
    "drafters": "drafters",
}
"""What a stage adds to memory belongs to this term; what other stages add is not accounted for."""
# Not the calibration: it gives the cache's memory back, which its peak held.
_HELD_FOR_A_WHILE: Final = ("prefill", "tree", "sampling", "drafters")


@dataclass(frozen=True, slots=True)
class Moment:
    """Memory of the process at one moment.

    Attributes:
        seconds: since its start.
        memory: what it held.
    """

    seconds: float
    memory: ProcessMemory


@dataclass(frozen=True, slots=True)
class Stage:
    """Memory of the process when it had finished a piece of work, and stood still.

    Attributes:
        name: of the work.
        seconds: since the start of the process.
        memory: what it held.
        weights_bytes, cache_bytes, logits_bytes, corpus_bytes: resident bytes of these mappings.
        facts: what the process told of the work beside.
    """

    name: str
    seconds: float
    memory: ProcessMemory
    weights_bytes: int
    cache_bytes: int
    logits_bytes: int
    facts: dict[str, Any]
    corpus_bytes: int = 0

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the parts that are mappings of their own."""
        return self.weights_bytes + self.cache_bytes + self.logits_bytes + self.corpus_bytes

    @property
    def other_bytes(self) -> int:
        """Resident bytes beside these parts."""
        return self.memory.resident_bytes - self.mapped_bytes


@dataclass(frozen=True)
class MemoryRun:
    """A process that was measured from its start to its end.

    Attributes:
        stages: in the order of time.
        moments: likewise, about twenty a second.
    """

    stages: tuple[Stage, ...]
    moments: tuple[Moment, ...]

    @property
    def peak_bytes(self) -> int:
        """The kernel's high-water mark of resident memory."""
        return self.stages[-1].memory.peak_bytes

    def highest(self) -> ProcessMemory:
        """Return the memory at the moment that was seen to hold most."""
        seen = [*(moment.memory for moment in self.moments), *(stage.memory for stage in self.stages)]
        return max(seen, key=lambda memory: memory.resident_bytes)


def measured_terms(stages: Iterable[Stage]) -> dict[str, int]:
    """Return the bytes of every term that stages show.

    Weights, KV cache, logits and corpus are mappings, whose resident bytes the kernel tells. The others are what
    resident memory beside these mappings grew by in their stages; where passes, sampling or drafters raised the
    high-water mark, what was held only in the midst of it counts too.
    """
    terms = dict.fromkeys(("runtime", "tokenizer", "weights", "session", "kv_cache"), 0)
    terms |= dict.fromkeys(("activations", "logits", "sampling", "drafters"), 0)
    other = peak = 0
    for stage in stages:
        terms["weights"] = max(terms["weights"], stage.weights_bytes)
        terms["kv_cache"] = max(terms["kv_cache"], stage.cache_bytes)
        terms["logits"] = max(terms["logits"], stage.logits_bytes)
        if stage.corpus_bytes:
            terms["corpus"] = max(terms.get("corpus", 0), stage.corpus_bytes)
        reached = stage.other_bytes
        if stage.memory.peak_bytes > peak and stage.name in _HELD_FOR_A_WHILE:
            reached = max(reached, stage.memory.peak_bytes - stage.mapped_bytes)
        if term := TERM_OF_STAGE.get(stage.name):
            terms[term] += max(0, reached - other)
        other, peak = stage.other_bytes, stage.memory.peak_bytes
    return terms


@dataclass(frozen=True)
class MemoryReport:
    """A plan and what became of it.

    Attributes:
        plan: what was planned, before the process was started.
        run: what was measured.
        chat: the same for a chat, if one was held.
    """

    plan: Plan
    run: MemoryRun
    chat: MemoryRun | None = None

    @property
    def relative_error(self) -> float:
        """By how much the plan was above the measured peak, as a share of that; negative if it was below."""
        return self.plan.total_bytes / self.run.peak_bytes - 1

    @property
    def exceeded(self) -> bool:
        """Whether more was taken than the budget allows."""
        return self.run.peak_bytes > self.plan.budget_bytes

    def terms(self) -> dict[str, dict[str, int]]:
        """Return planned and measured bytes of every term."""
        measured = measured_terms(self.run.stages)
        planned = {term.name: term.bytes for term in self.plan.terms}
        return {
            name: {"planned": planned.get(name, 0), "measured": measured.get(name, 0)}
            for name in dict.fromkeys([*planned, *measured])
        }

    @property
    def unaccounted_bytes(self) -> int:
        """Measured peak less all measured terms; negative if terms were at their largest at different times."""
        return self.run.peak_bytes - sum(term["measured"] for term in self.terms().values())

    def to_json(self) -> dict[str, Any]:
        """Return all of it as a JSON object."""
        highest = self.run.highest()
        return {
            "planned_peak_bytes": self.plan.total_bytes,
            "measured_peak_bytes": self.run.peak_bytes,
            "relative_error": self.relative_error,
            "budget_bytes": self.plan.budget_bytes,
            "exceeded": self.exceeded,
            "private_bytes": highest.private_bytes,
            "file_bytes": highest.file_bytes,
            "terms": self.terms(),
            "unaccounted_bytes": self.unaccounted_bytes,
            "choice": asdict(self.plan.choice),
            "stages": [_stage_json(stage) for stage in self.run.stages],
            "timeline": [_moment_json(moment) for moment in self.run.moments],
            "chat": None
            if self.chat is None
            else {
                "measured_peak_bytes": self.chat.peak_bytes,
                "stages": [_stage_json(stage) for stage in self.chat.stages],
                "timeline": [_moment_json(moment) for moment in self.chat.moments],
            },
        }


def _stage_json(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        **_moment_json(Moment(stage.seconds, stage.memory)),
        "peak_bytes": stage.memory.peak_bytes,
        "weights_bytes": stage.weights_bytes,
        "kv_cache_bytes": stage.cache_bytes,
        "logits_bytes": stage.logits_bytes,
        "corpus_bytes": stage.corpus_bytes,
        **stage.facts,
    }


def _moment_json(moment: Moment) -> dict[str, Any]:
    memory = moment.memory
    return {
        "seconds": round(moment.seconds, 3),
        "private_bytes": memory.private_bytes,
        "file_bytes": memory.file_bytes,
        "shmem_bytes": memory.shmem_bytes,
    }
