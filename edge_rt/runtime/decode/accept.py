"""Which drafted tokens are accepted: those that sampling chooses as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, Protocol

import numpy.typing as npt

from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs, TopTokens


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
        logits: float32 ``[len(draft) + 1, vocabulary]``: after the last known token, and after every node.
    """

    def choose(row: int) -> int:
        token = sampler.sample(logits[row])
        sampler.observe(token)
        return token

    return _walk(draft, choose, end_ids)


def accept_best(
    draft: Draft, outputs: Outputs, top: TopTokens, sampler: TokenChooser, end_ids: Collection[int]
) -> Accepted:
    """Accept drafted tokens as long as they are the most likely ones: ``accept`` for a sampler that takes those.

    The graph has found them already, so the rows of logits are not read again, which takes some 10 us each, nor copied
    from a device.

    Args:
        sampler: takes the token of the largest logit, and keeps no count of tokens.
    """
    best, peak = top.ids.item, top.logits.item

    def choose(row: int) -> int:
        # A row without numbers is the sampler's error.
        return best(row, 0) if math.isfinite(peak(row, 0)) else sampler.sample(outputs.logits[row])

    return _walk(draft, choose, end_ids)


def _walk(draft: Draft, choose: Callable[[int], int], end_ids: Collection[int]) -> Accepted:
    children = {edge: node for node, edge in enumerate(zip(draft.parents, draft.token_ids, strict=True))}
    emitted: list[int] = []
    path: list[int] = []
    node: int | None = ROOT
    while node is not None:
        token = choose(node + 1)
        emitted.append(token)
        node = None if token in end_ids else children.get((node, token))
        if node is not None:
            path.append(node)
    return Accepted(tuple(emitted), tuple(path), len(draft))
