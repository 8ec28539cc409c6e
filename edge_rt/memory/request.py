"""What is asked of a plan."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

from edge_rt.byte_size import exact_size, parse_size
from edge_rt.memory.choice import Choice
from edge_rt.memory.shape import ModelShape
from edge_rt.spec_modes import AUTO, OFF


@dataclass(frozen=True)
class Request:
    """What is asked for; None leaves it to the plan.

    Attributes:
        budget_bytes: None: the device's available memory.
        ctx: tokens; pinned.
        kv: None: the package's first, given up under pressure; ``"auto"``: the fastest that fits; a name: pinned.
        spec: None: ``"auto"``, given up under pressure unless ``draft_max`` or a corpus is pinned; a mode: pinned,
            though its tables and drafts may be smaller.
        draft_max: most drafted tokens; pinned.
        prefill_chunk: tokens of a pass over a prompt; pinned.
        resident_bytes: what the process holds already, as of ``terms.runtime_bytes``.
        corpus: file of texts that drafts are looked up in; pinned.
        corpus_bytes: of that file.
    """

    budget_bytes: int | None = None
    ctx: int | None = None
    kv: str | None = None
    spec: str | None = None
    draft_max: int | None = None
    prefill_chunk: int | None = None
    resident_bytes: int | None = None
    corpus: str | None = None
    corpus_bytes: int = 0

    @property
    def wants_drafts(self) -> bool:
        """Whether something that is pinned makes sense with speculation only."""
        return self.draft_max is not None or self.corpus is not None or self.spec not in (None, OFF)

    def without_drafts(self, spec: str | None) -> Request:
        """Return the request with nothing pinned of speculation but the mode."""
        return replace(self, spec=spec, draft_max=None, corpus=None, corpus_bytes=0)

    def used_by(self, shape: ModelShape) -> Request:
        """Return the request without what changes nothing for a model.

        Where passes are not exact nothing is drafted unless a drafter is named.
        """
        drafts_by_itself = shape.op_profile == "native"
        return self if drafts_by_itself or self.spec not in (None, AUTO) else self.without_drafts(self.spec)

    @property
    def flags(self) -> tuple[str, ...]:
        """What is typed for it, after the model."""
        given: list[tuple[str, object]] = [
            ("--memory", None if self.budget_bytes is None else exact_size(self.budget_bytes)),
            ("--ctx", self.ctx),
            ("--kv-type", self.kv),
            ("--spec", self.spec),
            ("--draft-max", self.draft_max),
            ("--corpus", self.corpus),
        ]
        return tuple(part for name, value in given if value is not None for part in (name, str(value)))


ARGUMENTS: Final = {
    "--memory": "memory", "--ctx": "ctx", "--kv-type": "kv", "--spec": "spec", "--draft-max": "draft_max",
    "--corpus": "corpus",
}  # fmt: skip
"""Flag of the command line -> argument of ``edge_rt.load``."""


def as_arguments(flags: tuple[str, ...], *, budget: int | None = None, shared_bytes: int = 0) -> str:
    """Return flags as a program writes them for ``edge_rt.load``, for example ``memory="259MiB", kv="f32"``.

    Args:
        flags: of ``Request.flags``.
        budget: bytes of the budget there is, where it is a ``Budget`` object that others may share: it is named only
            where it has to be larger.
        shared_bytes: what others hold of that.
    """
    result = []
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        if flag == "--memory" and budget is not None:
            wanted = parse_size(value)
            if wanted > budget:
                result.append(f'memory=Budget("{exact_size(wanted + shared_bytes)}")')
        else:
            result.append(f"{ARGUMENTS[flag]}={value if value.isdecimal() else json.dumps(value, ensure_ascii=False)}")
    return ", ".join(result)


@dataclass(frozen=True)
class Alternative:
    """Another setting that fits.

    Attributes:
        choice: what is then decided.
        total_bytes: what it takes.
        tokens_per_second: expected.
        flags: to be typed, for example ``("--memory", "600MiB", "--ctx", "2048")``.
    """

    choice: Choice
    total_bytes: int
    tokens_per_second: float
    flags: tuple[str, ...]
