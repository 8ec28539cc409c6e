"""How often the guesses of a draft model are right: in float while it is trained, and of its package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from edge_rt.package.reader import Package
from edge_rt.train.acceptance import RANKS, Acceptance
from edge_rt.train.batch import BatchRunner
from edge_rt.train.draft_model.sequences import Dialogue, in_batches, join
from edge_rt.train.target import Target

MEASURED_ROWS: Final = 10_000
_TOKENS: Final = 3072
_LOGIT_ROWS: Final = 512
"""Rows whose logits over the whole vocabulary are computed at once."""


@torch.no_grad()
def model_acceptance(
    states: Callable[[Sequence[Dialogue]], Tensor], target: Target, held_out: Sequence[Dialogue], *, steps: int = 3
) -> Acceptance:
    """Measure a draft model on recorded answers, among all tokens: at every place against the token of the answer.

    Where the guesses before were right, the draft model has the answer's own tokens before it, so one pass over an
    answer tells how long its drafts would have been right.

    Args:
        states: computes the draft model's states before the final norm in the rows of dialogues, float32
            ``[rows, hidden_size]``.
        target: whose final norm and LM head it has, with the whole vocabulary.
        held_out: dialogues that it was not trained on.
        steps: positions that are measured.
    """
    first = torch.zeros(len(RANKS))
    right, tried, places = torch.zeros(steps), torch.zeros(steps), 0
    for dialogues in in_batches(held_out, _TOKENS):
        batch = join(dialogues)
        rows = states(dialogues).split(_LOGIT_ROWS)
        guesses = torch.cat([target.logits(some).topk(max(RANKS), -1).indices for some in rows])
        hits = guesses == batch.next_ids[:, None]
        first += torch.stack([hits[:, :rank].any(-1).sum() for rank in RANKS])
        places += len(hits)
        is_right = torch.ones(len(hits), dtype=torch.bool)
        for step in range(steps):
            is_right = is_right & (batch.left >= step)
            tried[step] += is_right.sum()
            is_right = is_right & hits[:, 0].roll(-step)
            right[step] += is_right.sum()
    shares = (right / tried.clamp(min=1)).tolist()
    return Acceptance(tuple((first / max(1, places)).tolist()), tuple(shares), places)


def package_acceptance(
    package: Package, target: Target, held_out: Sequence[Dialogue], *, kv_format: str, threads: int
) -> Acceptance:
    """Measure the package of a draft model through its own passes; the arguments are those of ``model_acceptance``.

    Args:
        package: of the draft model, native.
        target: whose final norm and LM head it has.
        held_out: dialogues that it was not trained on.
        kv_format: of the cache.
        threads: of the process's pool.
    """
    longest = max(len(one.token_ids) for one in held_out)
    with BatchRunner(
        package, sequences=1, capacity=longest, kv_format=kv_format, threads=threads, most_rows=longest
    ) as runner:

        def states(dialogues: Sequence[Dialogue]) -> Tensor:
            found = []
            for one in dialogues:
                runner.lengths[0] = 0
                (rows,) = runner.forward([one.token_ids.tolist()], [True])
                found.append(rows.hidden[-len(one.next_ids) :].copy())
            return torch.from_numpy(np.concatenate(found))

        found: Acceptance = model_acceptance(states, target, held_out)
        return found
