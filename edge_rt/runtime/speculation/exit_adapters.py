"""Loads the trained adapters of early exits: for each exit a head, which guesses from the exit's hidden state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Items
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.package.drafter_tensors import exit_prefix
from edge_rt.runtime.forward.outputs import TopTokens
from edge_rt.runtime.speculation.head_runner import DrafterJob, HeadRunner, head_shape, head_weights, mapped_tensors
from edge_rt.runtime.speculation.source import RANKS

Array = npt.NDArray[Any]
_GUESSES = 1 + RANKS


class ExitAdapters:
    """Adapters for the exits that a package and a drafter have in common, loaded.

    They share one graph, and one reduced head with the vocabulary and the tokens of the prompt.

    Attributes:
        by_layer: layers before an exit -> its adapter, see ``ExitAdapter`` in ``edge_rt.runtime.forward.segments``.
    """

    def __init__(self, job: DrafterJob) -> None:
        drafter, shape, own = job.drafter, head_shape(job, _GUESSES), mapped_tensors(job.drafter)
        self._runners: list[HeadRunner] = []
        self.by_layer: Mapping[int, _Adapter] = {}
        for layer in drafter.info.layers:
            if layer in job.package.manifest.exits:
                runner = HeadRunner(
                    shape,
                    head_weights(drafter, job.target, own, exit_prefix(layer)),
                    threads=job.threads,
                    prompt_rows=job.prompt_rows,
                    isa=job.isa,
                    beside=self._runners[0] if self._runners else None,
                )
                self._runners.append(runner)
                self.by_layer = {**self.by_layer, layer: _Adapter(runner)}
        self.drafter_id = drafter.id

    def add_tokens(self, token_ids: Items[int]) -> None:
        """Let the adapters guess these tokens, too, instead of those added before."""
        first, *others = self._runners
        first.add_tokens(token_ids)
        for runner in others:
            runner.take_tokens()

    @property
    def memory_bytes(self) -> int:
        """Bytes that they hold, mapped weights of their own included."""
        first, *others = self._runners
        return first.memory_bytes + sum(runner.weights_bytes for runner in others)


class _Adapter:
    def __init__(self, runner: HeadRunner) -> None:
        self._runner = runner

    def likely(self, hidden: Array, token_id: int) -> TopTokens:
        """Return the likely tokens behind a row; see ``ExitAdapter``."""
        found = self._runner.grow(hidden[0], token_id, _GUESSES, _GUESSES, 1)
        logs = np.asarray([found.log_probs], np.float32)
        return TopTokens(np.asarray([found.ids], np.int32), logs, np.zeros(1, np.float32))
