"""The settings that a plan decides, and the device that it is made for."""

from __future__ import annotations

from dataclasses import dataclass

from edge_rt.device.names import CPU


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
    """The device that a load computes on.

    Attributes:
        device: its name, never ``"auto"``.
        note: a sentence for the user about what was not chosen; None if there is nothing to say.
        has_failed: whether a GPU that was chosen first failed.
        is_named: whether the device was asked for by its name; nothing takes its place if it fails.
    """

    device: str
    note: str | None = None
    has_failed: bool = False
    is_named: bool = False

    @property
    def replaces_gpu(self) -> bool:
        """Whether the CPU computes because a GPU failed; a budget of its memory has then no meaning."""
        return self.has_failed and self.device == CPU
