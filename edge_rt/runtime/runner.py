"""Runs the graph of a package over a KV cache: arrays in, logits out, nothing decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.package import ModelConfig
from edge_rt.runtime.cache import KVCache
from edge_rt.session import Binding, Session, StopSwitch

MAX_KEPT_SHAPES: Final = 32
"""Bindings kept for later passes of the same shape; binding anew costs about 40 microseconds."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _BoundPass:
    """Buffers of one shape of pass, tied to the graph."""

    binding: Binding
    input_ids: Array
    logit_rows: Array
    seqlens_k: Array
    total_length: Array
    logits: Array


class ModelRunner:
    """One graph, one cache, one pass at a time.

    Args:
        session: the opened graph (version 1 of its interface).
        config: numbers of the model.
        cache: buffers that the graph updates in place.
        switch: stops a pass.
    """

    def __init__(self, session: Session, config: ModelConfig, cache: KVCache, switch: StopSwitch) -> None:
        self._session = session
        self._config = config
        self._cache = cache
        self._switch = switch
        self._passes: dict[tuple[int, int], _BoundPass] = {}

    def forward(self, token_ids: Sequence[int], start: int, num_logits: int) -> Array:
        """Compute tokens into cache rows ``start`` to ``start + len(token_ids)``.

        Args:
            token_ids: at least one.
            start: rows before it are the context.
            num_logits: how many of the last tokens want logits, at least 1.

        Returns:
            float32 ``[num_logits, vocabulary]``, overwritten by the next pass of the same shape.

        Raises:
            Cancelled: the pass was stopped.
            InferenceError, MemoryBudgetExceeded: ONNX Runtime failed.
        """
        count = len(token_ids)
        bound = self._pass(count, num_logits)
        bound.input_ids[:] = token_ids
        bound.seqlens_k[0] = start + count - 1
        bound.total_length[...] = start + count
        bound.binding.run(self._switch)
        return bound.logits

    def _pass(self, rows: int, num_logits: int) -> _BoundPass:
        key = (rows, num_logits)
        if key not in self._passes:
            if len(self._passes) >= MAX_KEPT_SHAPES:
                del self._passes[next(iter(self._passes))]
            self._passes[key] = self._bind(rows, num_logits)
        return self._passes[key]

    def _bind(self, rows: int, num_logits: int) -> _BoundPass:
        bound = _BoundPass(
            binding=self._session.binding(),
            input_ids=np.zeros(rows, np.int64),
            logit_rows=np.arange(rows - num_logits, rows, dtype=np.int64),
            seqlens_k=np.zeros(1, np.int32),
            total_length=np.zeros((), np.int32),
            logits=np.empty((num_logits, self._config.vocab_size), np.float32),
        )
        bound.binding.bind_input("input_ids", bound.input_ids)
        bound.binding.bind_input("logit_rows", bound.logit_rows)
        bound.binding.bind_input("seqlens_k", bound.seqlens_k)
        bound.binding.bind_input("total_sequence_length", bound.total_length)
        bound.binding.bind_output("logits", bound.logits)
        for layer, (keys, values) in enumerate(zip(self._cache.keys, self._cache.values, strict=True)):
            for kind, buffer in (("key", keys), ("value", values)):
                bound.binding.bind_input(f"past.{layer}.{kind}", buffer)
                bound.binding.bind_output(f"present.{layer}.{kind}", buffer)
        return bound
