"""Which drafted tokens are accepted: those that sampling chooses as well."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import numpy.typing as npt

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft


class TokenChooser(Protocol):
    """What ``accept`` needs of a sampler."""

    def sample(self, logits: npt.NDArray[Any]) -> int:
        """Choose a token for one row of logits."""

    def observe(self, token_id: int) -> None:
        """Remember an emitted token."""


def accept(draft: Draft, logits: npt.NDArray[Any], sampler: TokenChooser, end_ids: Collection[int]) -> Accepted:
    """Accept drafted tokens as long as the sampler chooses them, and emit one token more.

    Every token is drawn from the model's own distribution, one draw per emitted token. So the text does not depend on
    the draft: it is the same as that of plain decoding with the same seed.

    Args:
        draft: the drafted tokens.
        logits: float32 ``[len(draft) + 1, vocabulary]``: after the last known token, and after every node.
        sampler: chooses and remembers tokens.
        end_ids: tokens that end the answer.
    """
    children = {edge: node for node, edge in enumerate(zip(draft.parents, draft.token_ids, strict=True))}
    emitted: list[int] = []
    path: list[int] = []
    node: int | None = ROOT
    while node is not None:
        token = sampler.sample(logits[node + 1])
        sampler.observe(token)
        emitted.append(token)
        node = None if token in end_ids else children.get((node, token))
        if node is not None:
            path.append(node)
    return Accepted(tuple(emitted), tuple(path), len(draft))
