"""Runs a traced graph over a cache of its own, for the checks of an export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.binding import StopSwitch
from edge_rt.export.traced.rewrite import new_name, past_name
from edge_rt.package.manifest import ModelConfig
from edge_rt.session import Session, pool_size
from edge_rt.system.machine import usable_cpus

Array = npt.NDArray[Any]


class TracedPasses:
    """A graph of the op profile ``traced``, opened, with a cache.

    Args:
        graph: the graph; its weights lie beside it.
        config: dimensions of the model.
        capacity: tokens of the cache.

    Attributes:
        length: tokens in the cache; lowering it rolls back.
    """

    def __init__(self, graph: Path, config: ModelConfig, capacity: int) -> None:
        self._session = Session(graph, threads=pool_size() or usable_cpus(), profile="traced")
        self._vocab_size = config.vocab_size
        shape = (capacity, config.num_kv_heads, config.head_dim)
        keys = [(layer, kind) for layer in range(config.num_layers) for kind in ("key", "value")]
        self._caches = {key: np.zeros(shape, np.float32) for key in keys}
        self.length = 0

    def run(self, token_ids: Sequence[int]) -> Array:
        """Compute tokens behind those in the cache; return the logits of all of them, ``[tokens, vocabulary]``."""
        rows = len(token_ids)
        logits = np.empty((rows, self._vocab_size), np.float32)
        binding = self._session.binding()
        binding.bind_input("input_ids", np.asarray(token_ids, np.int64))
        binding.bind_input("logit_rows", np.arange(rows, dtype=np.int64))
        binding.bind_output("logits", logits)
        for key, cache in self._caches.items():
            binding.bind_input(past_name(*key), cache[: self.length])
            binding.bind_output(new_name(*key), cache[self.length : self.length + rows])
        binding.run(StopSwitch())
        self.length += rows
        return logits

    @contextmanager
    def from_here(self) -> Iterator[None]:
        """Context manager: what is computed inside is rolled back at its end."""
        length = self.length
        try:
            yield
        finally:
            self.length = length

    def newest(self, rows: int) -> bytes:
        """Return the bytes of the last rows of all caches."""
        return b"".join(cache[self.length - rows : self.length].tobytes() for cache in self._caches.values())
