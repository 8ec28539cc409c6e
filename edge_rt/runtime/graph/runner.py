"""Runs the graph of a package over a KV cache: arrays in, logits out, nothing decided."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from edge_rt.errors import Cancelled
from edge_rt.runtime.graph.io_binding_base import BoundPass, IOBinding
from edge_rt.runtime.graph.outputs import Outputs
from edge_rt.session import Session, StopSwitch

MAX_KEPT_SHAPES: Final = 72
"""Bindings kept for later passes of the same shape; binding anew costs about 40 microseconds."""


class ModelRunner:
    """One graph, one cache, one pass at a time.

    Args:
        session: the opened graph.
        io_binding: what it is bound to, the cache's memory included.
        switch: stops a pass.

    Raises:
        InvalidPackage: the graph has other inputs or outputs than the binding asks for.
    """

    def __init__(self, session: Session, io_binding: IOBinding, switch: StopSwitch) -> None:
        io_binding.check(session)
        self._session: Session | None = session
        self._io_binding = io_binding
        self._switch = switch
        self._passes: dict[tuple[int, int], BoundPass] = {}
        # Reentrant: a signal handler may close the model in the thread that runs it.
        self._running = threading.RLock()

    def forward(
        self,
        token_ids: Sequence[int],
        start: int,
        num_logits: int,
        *,
        parents: Sequence[int] | None = None,
        logit_rows: Sequence[int] | None = None,
    ) -> Outputs:
        """Compute tokens into cache rows ``start`` to ``start + len(token_ids)``.

        Args:
            token_ids: at least one.
            start: rows before it are the context.
            num_logits: how many of the tokens want logits, at least 1: the last ones.
            parents: for every token the earlier one of this pass that it follows, or -1 for the context's last; None
                for a chain. Only packages of the native op profile compute trees.
            logit_rows: which ``num_logits`` tokens want logits instead of the last ones.

        Returns:
            What was computed for these rows. The memory is the runner's: any later pass overwrites it, of whatever
            shape, so what is to be kept longer has to be copied.

        Raises:
            Cancelled: the pass was stopped, or the runner was closed.
            UnsupportedModel: ``parents`` is a tree, and the package computes chains only.
            InferenceError, MemoryBudgetExceeded: ONNX Runtime failed.
        """
        with self._running:
            bound = self._pass(len(token_ids), num_logits)
            bound.set(token_ids, start, parents, logit_rows)
            bound.binding.run(self._switch)
            return bound.outputs

    @property
    def cache_address(self) -> int:
        """An address in the mapping that is the memory of the cache, which holds nothing else."""
        return self._io_binding.cache_address

    def close(self) -> None:
        """Wait for the pass under way and let go of graph and cache; later passes raise ``Cancelled``."""
        with self._running:
            self._session = None
            self._passes.clear()
            self._io_binding.release()

    def _pass(self, rows: int, num_logits: int) -> BoundPass:
        if self._session is None:
            raise Cancelled("The model was closed.")
        key = (rows, num_logits)
        if key not in self._passes:
            if self._io_binding.outputs.reserve(num_logits):
                # They would write to the memory before, and keep it.
                self._passes.clear()
            if len(self._passes) >= MAX_KEPT_SHAPES:
                del self._passes[next(iter(self._passes))]
            self._passes[key] = self._io_binding.bind(self._session, rows, num_logits)
        return self._passes[key]
