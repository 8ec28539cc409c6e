"""Log probabilities of tokens, from the rows of logits that decided them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.runtime.decode.draft import Accepted
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.results import LogProb, TokenLogProb


def log_sum_exp(outputs: Outputs, row: int) -> float:
    """Return the logarithm of the sum of a row's exponentials: what its logits are less as log probabilities."""
    if outputs.top is not None:
        return float(outputs.top.log_sum_exp[row])
    logits = outputs.logits[row].astype(np.float64)
    peak = float(logits.max())
    return peak + math.log(float(np.exp(logits - peak).sum()))


def best_tokens(outputs: Outputs, row: int, count: int) -> list[int]:
    """Return the most likely tokens of a row, the most likely first, equal ones by id."""
    if outputs.top is not None and count <= outputs.top.ids.shape[1]:
        return [int(token) for token in outputs.top.ids[row, :count]]
    logits: npt.NDArray[Any] = outputs.logits[row]
    count = min(count, len(logits))
    cut = np.partition(logits, len(logits) - count)[len(logits) - count] if count else np.inf
    likely = np.flatnonzero(logits >= cut)
    return [int(token) for token in likely[np.argsort(-logits[likely], kind="stable")][:count]]


class LogProbs:
    """The log probabilities of an answer's tokens: of the model's own row, before anything changes it.

    Args:
        count: most likely tokens that are kept beside every token.
        text_of: the text of a token.

    Attributes:
        tokens: one for every token so far.
    """

    def __init__(self, count: int, text_of: Callable[[int], str]) -> None:
        self._count = count
        self._text_of = text_of
        self.tokens: list[TokenLogProb] = []

    def add(self, accepted: Accepted, outputs: Outputs) -> None:
        """Read the rows that decided the tokens of a step, before the next pass overwrites them."""
        rows = (0, *(node + 1 for node in accepted.path))
        for index, token in enumerate(accepted.token_ids):
            if index in accepted.unasked:
                self.add_forced((token,))
                continue
            row = rows[index]
            logits, total = outputs.logits[row], log_sum_exp(outputs, row)
            likely = best_tokens(outputs, row, self._count)
            top = tuple(LogProb(one, self._text_of(one), float(logits[one]) - total) for one in likely)
            self.tokens.append(TokenLogProb(token, self._text_of(token), float(logits[token]) - total, top))

    def add_forced(self, token_ids: Iterable[int]) -> None:
        """Add tokens that a grammar forced: no row decided them."""
        self.tokens += (TokenLogProb(token, self._text_of(token), 0.0, ()) for token in token_ids)
