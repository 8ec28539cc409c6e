"""Guesses of a block of the model's checkpoint that predicts further ahead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence as Items

from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.ahead_model import AheadModel
from edge_rt.runtime.speculation.model_source import ModelSource, Way


class AheadSource(ModelSource):
    """Drafts with such a block, as many tokens as pay; arguments as of ``ModelSource``."""

    def __init__(
        self,
        model: AheadModel,
        ways: Items[Way],
        *,
        name: str,
        most: int,
        end_ids: Collection[int] = (),
        held_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(ways, name=name, most=most, end_ids=end_ids, held_bytes=held_bytes)
        self._ahead = model

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Learn which guesses were right, and take in the states behind the accepted tokens."""
        super().observe(draft, accepted, outputs, context)
        self._ahead.observe(accepted, outputs)
