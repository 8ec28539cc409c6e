"""Planned and measured memory: a fresh process runs up to its plan's limits while its parent measures its memory.

The measured peak is the kernel's high-water mark of resident memory (``VmHWM``) of that process, including mapped
weights, read at its end. The parts are differences between stages, and resident bytes of mappings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, TypedDict

from edge_rt.memory.plan import Plan
from edge_rt.memory.terms import drafts_ahead
from edge_rt.system.process_memory import ProcessMemory

TERM_OF_STAGE: Final = {
    "runtime": "runtime",
    "device": "runtime",
    "tokenizer": "tokenizer",
    "text": "tokenizer",
    "session": "session",
    "shapes": "session",
    "calibration": "activations",
    "prefill": "activations",
    "tree": "activations",
    "sampling": "sampling",
    "drafters": "drafters",
    "drafter": "drafter_head",
    "slots": "slots",
}
"""Stage -> term that the memory added in this stage belongs to; memory added in other stages is unaccounted."""
# Not the calibration, which frees the cache's memory that was part of its peak.
_HELD_FOR_A_WHILE: Final = ("prefill", "tree", "sampling", "drafters", "slots")


@dataclass(frozen=True, slots=True)
class Moment:
    """Memory of the process at one moment."""

    seconds: float
    memory: ProcessMemory


@dataclass(frozen=True, slots=True)
class Stage:
    """Memory of the process after it finished a stage, while it was paused.

    Attributes:
        weights_bytes, cache_bytes, logits_bytes, corpus_bytes, drafter_bytes: resident bytes of these mappings.
        facts: other facts about the stage that the process reported.
    """

    name: str
    seconds: float
    memory: ProcessMemory
    weights_bytes: int
    cache_bytes: int
    logits_bytes: int
    facts: dict[str, Any]
    corpus_bytes: int = 0
    drafter_bytes: int = 0

    @property
    def mapped_bytes(self) -> int:
        """Resident bytes of the parts that are separate mappings."""
        files = self.weights_bytes + self.corpus_bytes + self.drafter_bytes
        return files + self.cache_bytes + self.logits_bytes

    @property
    def other_bytes(self) -> int:
        """Resident bytes outside of these mappings."""
        return self.memory.resident_bytes - self.mapped_bytes


@dataclass(frozen=True)
class MemoryRun:
    """A process that was measured from its start to its end.

    Attributes:
        moments: memory samples, about twenty per second, in order of time.
    """

    stages: tuple[Stage, ...]
    moments: tuple[Moment, ...]

    @property
    def peak_bytes(self) -> int:
        """The kernel's high-water mark of resident memory."""
        return self.stages[-1].memory.peak_bytes

    @property
    def device_bytes(self) -> int | None:
        """Most bytes that were seen taken of a GPU's own memory, without the driver's part; None: not measured."""
        seen = [int(stage.facts["device_bytes"]) for stage in self.stages if "device_bytes" in stage.facts]
        return max(seen, default=None)

    def highest(self) -> ProcessMemory:
        """Return the memory sample with the most resident bytes."""
        seen = [*(moment.memory for moment in self.moments), *(stage.memory for stage in self.stages)]
        return max(seen, key=lambda memory: memory.resident_bytes)


def measured_terms(stages: Iterable[Stage]) -> dict[str, int]:
    """Return the measured bytes of every term.

    Weights, KV cache, logits, corpus and the weights of a drafter are mappings, whose resident bytes the kernel
    reports. The other terms are the growth of resident memory outside of these mappings in their stages. Where passes,
    sampling or drafters raised the high-water mark, memory that was held only during the stage counts too.
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
        if stage.drafter_bytes:
            terms["drafter"] = max(terms.get("drafter", 0), stage.drafter_bytes)
        reached = stage.other_bytes
        if stage.memory.peak_bytes > peak and stage.name in _HELD_FOR_A_WHILE:
            reached = max(reached, stage.memory.peak_bytes - stage.mapped_bytes)
        if term := TERM_OF_STAGE.get(stage.name):
            terms[term] = terms.get(term, 0) + max(0, reached - other)
        other, peak = stage.other_bytes, stage.memory.peak_bytes
    return terms


class TermSizes(TypedDict):
    """Planned and measured bytes of a term; ``measured`` is None where it was not measured alone."""

    planned: int
    measured: int | None


def _not_alone(plan: Plan) -> set[str]:
    """Return the terms of which stages and mappings show a part at most."""
    found = set()
    if plan.choice.expert_bytes is not None:
        found.add("weights")  # copied, beside what a session takes
    if drafts_ahead(plan.shape, plan.choice):
        found.add("drafters")  # the block's cache and graph are there when the model is loaded
    return found


@dataclass(frozen=True)
class MemoryReport:
    """A plan and its measurement.

    Attributes:
        chat: the measurement of a chat, if there was one.
    """

    plan: Plan
    run: MemoryRun
    chat: MemoryRun | None = None

    @property
    def planned_bytes(self) -> int:
        """What is planned of the memory that is measured: the process's, with that of a program that acts as a GPU."""
        gpu = self.plan.device.gpu
        return self.plan.total_bytes if gpu is not None and gpu.is_software else self.plan.process_bytes

    @property
    def unmeasured_bytes(self) -> int:
        """What is planned of the same budget and is not measured: of a GPU that shares the machine's memory."""
        return self.plan.total_bytes - self.planned_bytes

    @property
    def relative_error(self) -> float:
        """Error of the plan relative to the measured peak; positive if the plan was higher."""
        return self.planned_bytes / self.run.peak_bytes - 1

    @property
    def is_above_plan(self) -> bool:
        """Whether the measured peak of the process is above what was planned."""
        return self.run.peak_bytes > self.planned_bytes

    @property
    def exceeded(self) -> bool:
        """Whether the measured peak is above the budget, in the process or on a GPU."""
        held, gpu = self.run.device_bytes, self.plan.sizes.gpu
        is_over = held is not None and gpu is not None and held + gpu.context > self.plan.budget.gpu
        return is_over or self.run.peak_bytes + self.unmeasured_bytes > self.plan.budget_bytes

    def terms(self) -> dict[str, TermSizes]:
        """Return planned and measured bytes of every term; what is not measured alone counts in others, or in none."""
        measured = measured_terms(self.run.stages)
        planned = {term.name: term.bytes for term in self.plan.terms}
        unknown = _not_alone(self.plan)
        return {
            name: {"planned": planned.get(name, 0), "measured": None if name in unknown else measured.get(name)}
            for name in dict.fromkeys([*planned, *measured])
        }

    def device_json(self) -> dict[str, Any] | None:
        """Return planned and measured bytes of a GPU, and its budget; None for a plan for the CPU."""
        gpu = self.plan.sizes.gpu
        if gpu is None:
            return None
        return {
            "planned_bytes": gpu.total,
            "planned_without_context_bytes": gpu.total - gpu.context,
            "measured_without_context_bytes": self.run.device_bytes,
            "budget_bytes": self.plan.device_budget_bytes,
            "terms": {term.name: term.device_bytes for term in self.plan.terms if term.device_bytes},
        }

    @property
    def unaccounted_bytes(self) -> int:
        """Measured peak minus all measured terms; negative if terms were at their largest at different times."""
        return self.run.peak_bytes - sum(term["measured"] or 0 for term in self.terms().values())

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        highest = self.run.highest()
        return {
            "planned_peak_bytes": self.planned_bytes,
            "measured_peak_bytes": self.run.peak_bytes,
            "relative_error": self.relative_error,
            "budget_bytes": self.plan.budget_bytes,
            "exceeded": self.exceeded,
            "is_above_plan": self.is_above_plan,
            "private_bytes": highest.private_bytes,
            "file_bytes": highest.file_bytes,
            "terms": self.terms(),
            "device": self.device_json(),
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
        "drafter_bytes": stage.drafter_bytes,
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
