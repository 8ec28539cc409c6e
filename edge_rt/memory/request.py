"""The request that a plan is made for."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

from edge_rt.memory.drafter_shapes import DrafterShape
from edge_rt.memory.figures import Amounts, Choice, Device
from edge_rt.memory.shape import DraftModelShape, ModelShape
from edge_rt.package.spec_modes import AUTO, NO_DRAFTER, OFF, Drafts
from edge_rt.system.byte_size import exact_size, parse_size, round_up


@dataclass(frozen=True)
class Request:
    """The requested settings; with None the plan chooses, and any other value is pinned, so the plan keeps it.

    Attributes:
        budget_bytes: memory budget; None: the device's available memory.
        device_budget_bytes: budget of the memory of a GPU that has its own; None: what it has available.
        kv: format of the KV cache. None: the package's default, or a smaller one if memory is short; ``"auto"``: the
            fastest that fits; a name: pinned.
        spec: mode of speculation. None: ``"auto"``, turned off if memory is short unless ``draft_max`` or a corpus is
            pinned; a mode: pinned, but its tables and drafts may be smaller.
        resident_bytes: memory that the process already holds, as in ``terms.runtime_bytes``; without a GPU's driver.
        driver_bytes: memory of the process for the driver of GPUs; None: its ``host_bytes`` if a GPU computes.
        corpus: file of texts that drafts are looked up in.
        drafter: the trained drafter that fits the model, if the mode may use one.
        drafter_folder: folder of the drafter, if it was named: it is then pinned; ``NO_DRAFTER``: none is used.
        draft_model: a second model that drafts, if the mode uses one.
        slots: answers that are computed at once, at most.
        kv_rows: rows of the KV cache that several slots share.
        formats: whether there is room for the tables of answers in a format.
        prompt_cache: whether rows of stored prompts are read and written.
        experts: None: resident, if they fit, else in a cache; ``"resident"``; or bytes of a cache.
    """

    budget_bytes: int | None = None
    ctx: int | None = None
    kv: str | None = None
    spec: str | None = None
    draft_max: int | None = None
    prefill_chunk: int | None = None
    resident_bytes: int | None = None
    driver_bytes: int | None = None
    corpus: str | None = None
    corpus_bytes: int = 0
    hidden: bool = False
    formats: bool = False
    prompt_cache: bool = False
    drafter: DrafterShape | None = None
    drafter_folder: str | None = None
    draft_model: DraftModelShape | None = None
    slots: int = 1
    kv_rows: int | None = None
    device_budget_bytes: int | None = None
    experts: int | str | None = None

    @property
    def wants_drafts(self) -> bool:
        """Whether a pinned setting has an effect only with speculation."""
        pinned = self.draft_max is not None or self.corpus is not None or self.names_drafter
        return pinned or self.spec not in (None, OFF)

    @property
    def names_drafter(self) -> bool:
        """Whether a drafter was named, which is then kept."""
        return self.drafter_folder not in (None, NO_DRAFTER)

    def returns_hidden(self, choice: Choice) -> bool:
        """Return whether passes return hidden states with a choice: where they are wanted, and where a head drafts."""
        return self.hidden or (choice.drafter and self.drafter is not None and self.drafter.needs_hidden)

    def budget(self, device: Device) -> Amounts:
        """Return what a plan for a device may take: what was given, else what is available."""
        host = device.available_bytes if self.budget_bytes is None else self.budget_bytes
        if device.gpu is None:
            return Amounts(host)
        if device.gpu.is_unified:
            return Amounts(host, heap=device.gpu.total_bytes)
        given = self.device_budget_bytes
        return Amounts(host, device.gpu.available_bytes if given is None else given)

    def without_drafts(self, spec: str | None) -> Request:
        """Return the request with a mode of speculation and no other speculation settings pinned."""
        drafter, folder = (None, None) if self.names_drafter else (self.drafter, self.drafter_folder)
        return replace(
            self, spec=spec, draft_max=None, corpus=None, corpus_bytes=0,
            drafter=drafter, drafter_folder=folder, draft_model=None,
        )  # fmt: skip

    def used_by(self, shape: ModelShape) -> Request:
        """Return the request without settings that have no effect for a model.

        If passes are not exact, nothing is drafted unless a drafter is named, and with some packages not even then.
        """
        is_asked = self.spec not in (None, AUTO) and shape.drafts is not Drafts.NOTHING
        return self if shape.drafts.are_exact or is_asked else self.without_drafts(self.spec)

    @property
    def flags(self) -> tuple[str, ...]:
        """The command-line flags of the request, after the model."""
        given: list[tuple[str, object]] = [
            ("--memory", None if self.budget_bytes is None else exact_size(self.budget_bytes)),
            ("--device-memory", None if self.device_budget_bytes is None else exact_size(self.device_budget_bytes)),
            ("--ctx", self.ctx),
            ("--kv-type", self.kv),
            ("--spec", self.spec),
            ("--draft-max", self.draft_max),
            ("--slots", self.slots if self.slots > 1 else None),
            ("--kv-rows", self.kv_rows),
            ("--experts", exact_size(self.experts) if isinstance(self.experts, int) else self.experts),
            ("--corpus", self.corpus),
            # With --spec off it is not used, and refused.
            ("--drafter", None if self.spec == OFF else self.drafter_folder),
        ]
        return tuple(part for name, value in given if value is not None for part in (name, str(value)))


ARGUMENTS: Final = {
    "--memory": "memory", "--device-memory": "device_memory", "--ctx": "ctx", "--kv-type": "kv", "--spec": "spec",
    "--draft-max": "draft_max", "--slots": "slots", "--kv-rows": "kv_rows", "--corpus": "corpus",
    "--drafter": "drafter", "--experts": "experts",
}  # fmt: skip
"""Flag of the command line -> argument of ``edge_rt.load``."""


def as_arguments(flags: tuple[str, ...], *, budget: int | None = None, shared_bytes: int = 0) -> str:
    """Return flags as arguments of ``edge_rt.load``, for example ``memory="259MiB", kv="f32"``.

    Args:
        budget: bytes of the budget, if it is a ``Budget`` object that other models may share; it is written only if it
            must be larger.
        shared_bytes: bytes that other models hold of it.
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


def with_more_memory(flags: tuple[str, ...], more_bytes: int) -> tuple[str, ...]:
    """Return flags with a budget that is so much larger, for what else it has to hold."""
    return tuple(
        exact_size(round_up(parse_size(value) + more_bytes)) if before == "--memory" else value
        for before, value in zip(("", *flags), flags, strict=False)
    )


@dataclass(frozen=True)
class Alternative:
    """Another setting that fits.

    Attributes:
        total_bytes: bytes that it needs.
        tokens_per_second: as ``Plan.tokens_per_second``.
        device_bytes: bytes of the memory of a GPU that has its own.
        flags: command-line flags, for example ``("--memory", "600MiB", "--ctx", "2048")``.
    """

    choice: Choice
    total_bytes: int
    tokens_per_second: float | None
    flags: tuple[str, ...]
    device_bytes: int = 0
