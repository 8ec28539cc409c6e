"""Which drafted tokens stay: sample and match."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import numpy.typing as npt

from edge_rt.runtime.draft import Accepted, Draft


class TokenChooser(Protocol):
    """What ``accept`` needs of a sampler."""

    def sample(self, logits: npt.NDArray[Any]) -> int:
        """Choose a token for one row of logits."""

    def observe(self, token_id: int) -> None:
        """Remember an emitted token."""


def accept(draft: Draft, logits: npt.NDArray[Any], sampler: TokenChooser, end_ids: Collection[int]) -> Accepted:
    """Emit tokens along the draft for as long as the sampler chooses what was drafted, and one more.

    Every token is drawn from the model's own distribution, so the text does not depend on the draft.

    Args:
        draft: the guessed tokens.
        logits: float32 ``[len(draft) + 1, vocabulary]``: behind the last known token, and behind every drafted one.
        sampler: chooses and remembers tokens.
        end_ids: tokens behind which nothing follows.
    """
    emitted: list[int] = []
    for row in range(len(draft) + 1):
        token = sampler.sample(logits[row])
        sampler.observe(token)
        emitted.append(token)
        if token in end_ids or row == len(draft) or draft.token_ids[row] != token:
            break
    return Accepted(tuple(emitted), len(draft))
