"""The numbers of a model that drafts for another one, and the memory that it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_rt.memory.choice import Choice
from edge_rt.memory.shape import ModelShape
from edge_rt.spec_modes import OFF

LARGEST_CHUNK: Final = 64
"""Most tokens of a pass over a prompt by a model that drafts: it waits for the other one anyway."""


@dataclass(frozen=True)
class DraftModelShape:
    """Numbers of a model that drafts.

    Attributes:
        shape: of its package.
        path: folder of its package.
        known_tokens: ids below mean the same in both models.
    """

    shape: ModelShape
    path: str
    known_tokens: int

    def choice(self, other: Choice) -> Choice:
        """Return the settings that it runs with beside a model with these settings: one row of logits, no drafts."""
        shape = self.shape
        ctx = min(other.ctx, shape.context_length)
        kv = other.kv_format if other.kv_format in shape.kv_formats else shape.kv_formats[0]
        return Choice(ctx, kv, OFF, 0, min(other.prefill_chunk, LARGEST_CHUNK), 0, 0, 1)
