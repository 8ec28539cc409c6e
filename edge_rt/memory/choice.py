"""The settings that a plan decides, and the device that it is made for."""

from __future__ import annotations

from dataclasses import dataclass

from edge_rt.device.names import CPU, DeviceName


@dataclass(frozen=True)
class Choice:
    """The settings that a plan decides.

    Attributes:
        ctx: capacity of the context in tokens.
        draft_max: most drafted tokens of a pass; 0 with speculation off.
        prefill_chunk: tokens of one prefill pass.
        suffix_tokens: tokens that the suffix drafter (or the n-gram table, or a reference) holds; 0 where none is used.
        recycling_contexts: contexts of each order that token recycling holds; 0 where it is not used.
        logit_rows: largest number of logit rows held at once.
        drafter: whether the trained drafter of the request, and the model that drafts, are loaded.
        gpu_layers: how many layers, the last ones, a GPU computes whose memory is too small for all; None: not divided.
    """

    ctx: int
    kv_format: str
    spec: str
    draft_max: int
    prefill_chunk: int
    suffix_tokens: int
    recycling_contexts: int
    logit_rows: int
    drafter: bool = False
    gpu_layers: int | None = None

    @property
    def tree_rows(self) -> int:
        """Rows of a pass that verifies the largest draft."""
        return self.draft_max + 1

    @property
    def largest_pass(self) -> int:
        """Rows of the largest pass."""
        return max(min(self.prefill_chunk, self.ctx), self.tree_rows)


@dataclass(frozen=True)
class DeviceChoice:
    """The device that a plan is for, never ``auto``.

    Attributes:
        hint: a sentence for the user about a GPU that is not used; None if there is nothing to say.
        failures: GPUs that were to compute and failed: name of each, and its error.
        is_named: whether the device was asked for by its name; nothing takes its place if it fails.
    """

    device: DeviceName
    hint: str | None = None
    failures: tuple[tuple[str, str], ...] = ()
    is_named: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether a GPU that was to compute has failed."""
        return bool(self.failures)

    @property
    def note(self) -> str | None:
        """What is to be said about the choice; None if nothing is."""
        if not self.failures:
            return self.hint
        (name, error), *others = self.failures
        who = "The CPU" if self.device.kind == CPU else f"The GPU {self.device}"
        others_too = (f"{one} failed, too: {why}" for one, why in others)
        return " ".join((f"{who} computes, because {name} failed: {error}", *others_too))
