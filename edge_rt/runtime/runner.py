"""Runs the graph of a package over a KV cache: arrays in, logits out, nothing decided."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import Cancelled, InvalidPackage
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

    Raises:
        InvalidPackage: the graph has other inputs or outputs than ``config`` asks for.
    """

    def __init__(self, session: Session, config: ModelConfig, cache: KVCache, switch: StopSwitch) -> None:
        _check_interface(session, config)
        self._session: Session | None = session
        self._config = config
        self._cache = cache
        self._switch = switch
        self._passes: dict[tuple[int, int], _BoundPass] = {}
        # Reentrant: a signal handler may close the model in the thread that runs it.
        self._running = threading.RLock()

    def forward(self, token_ids: Sequence[int], start: int, num_logits: int) -> Array:
        """Compute tokens into cache rows ``start`` to ``start + len(token_ids)``.

        Args:
            token_ids: at least one.
            start: rows before it are the context.
            num_logits: how many of the last tokens want logits, at least 1.

        Returns:
            float32 ``[num_logits, vocabulary]``, overwritten by the next pass of the same shape.

        Raises:
            Cancelled: the pass was stopped, or the runner was closed.
            InferenceError, MemoryBudgetExceeded: ONNX Runtime failed.
        """
        count = len(token_ids)
        with self._running:
            bound = self._pass(count, num_logits)
            bound.input_ids[:] = token_ids
            bound.seqlens_k[0] = start + count - 1
            bound.total_length[...] = start + count
            bound.binding.run(self._switch)
            return bound.logits

    def close(self) -> None:
        """Wait for the pass under way and let go of the graph; later passes raise ``Cancelled``."""
        with self._running:
            self._session = None
            self._passes.clear()

    def _pass(self, rows: int, num_logits: int) -> _BoundPass:
        key = (rows, num_logits)
        if key not in self._passes:
            if len(self._passes) >= MAX_KEPT_SHAPES:
                del self._passes[next(iter(self._passes))]
            self._passes[key] = self._bind(rows, num_logits)
        return self._passes[key]

    def _bind(self, rows: int, num_logits: int) -> _BoundPass:
        if self._session is None:
            raise Cancelled("The model was closed.")
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


def _check_interface(session: Session, config: ModelConfig) -> None:
    """Compare the graph with the manifest: a wrong shape would end in an error in the middle of an answer."""
    cache = (1, config.num_kv_heads, "capacity", config.head_dim)
    layers = [(i, kind) for i in range(config.num_layers) for kind in ("key", "value")]
    wanted: dict[str, tuple[tuple[int | str, ...], str]] = {
        "input_ids": (("rows",), "tensor(int64)"),
        "logit_rows": (("logit_rows",), "tensor(int64)"),
        "seqlens_k": ((1,), "tensor(int32)"),
        "total_sequence_length": ((), "tensor(int32)"),
        **{f"past.{i}.{kind}": (cache, "tensor(float)") for i, kind in layers},
        "logits": (("logit_rows", config.vocab_size), "tensor(float)"),
        **{f"present.{i}.{kind}": (cache, "tensor(float)") for i, kind in layers},
    }
    found = {spec.name: (spec.shape, spec.type) for spec in (*session.inputs, *session.outputs)}
    if found != wanted:
        name = next(n for n in (*wanted, *found) if wanted.get(n) != found.get(n))
        raise InvalidPackage(
            "The graph of the package does not fit its manifest.",
            f"{name}: the manifest asks for {wanted.get(name)}, the graph has {found.get(name)}.",
            "Export or pull the model again.",
        )
