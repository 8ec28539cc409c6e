"""IO binding of traced packages: a cache of tokens, of which a pass reads the first rows and writes the next ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_rt.binding import Binding
from edge_rt.errors import UnsupportedModel
from edge_rt.package.manifest import ModelConfig
from edge_rt.runtime.graph.bound_results import BoundResults
from edge_rt.runtime.graph.io_binding_base import FILLING, Array, BoundPass, IOBinding, Specs
from edge_rt.runtime.graph.outputs import untouched
from edge_rt.session import Session


class TracedIOBinding(IOBinding):
    """Float32 rows in the order of the tokens; each layer's rows before a pass are an input, its new ones an output.

    ``cache_bytes`` is layers x 2 x capacity x kv_heads x head_dim x 4.

    Attributes:
        buffers: name of a cache (``0.key``) -> float32 ``[capacity, kv_heads, head_dim]``; a page takes memory only
            once a row in it is written.
    """

    profile = "traced"

    def __init__(self, config: ModelConfig, capacity: int, kv_format: str) -> None:
        super().__init__(config, capacity, kv_format, top_tokens=0, decoder=None)
        kinds = [f"{layer}.{kind}" for layer in range(config.num_layers) for kind in ("key", "value")]
        memory = untouched((len(kinds), capacity, config.num_kv_heads, config.head_dim), np.float32)
        self.buffers: dict[str, Array] = dict(zip(kinds, memory, strict=True))
        self.row_bytes = memory.nbytes // capacity
        self.cache_bytes = memory.nbytes

    def release(self) -> None:
        """Release the buffers."""
        super().release()
        self.buffers = {}

    def fill(self, rows: int) -> None:
        """Write the first rows of all layers."""
        for buffer in self.buffers.values():
            buffer.view(np.uint8)[:rows] = FILLING

    def _host_buffers(self) -> list[Array]:
        return list(self.buffers.values())

    def bind(self, session: Session, rows: int, num_logits: int) -> BoundPass:
        """Bind buffers for passes of one shape to the graph; those of the cache follow when it is known where."""
        binding = session.binding()
        return _TracedPass(binding, rows, self.bind_results(binding, num_logits), self.buffers)

    def _specs(self) -> Specs:
        heads = (self.config.num_kv_heads, self.config.head_dim)
        return {
            **{f"past.{name}": (("past", *heads), "tensor(float)") for name in self.buffers},
            **{f"new.{name}": (("rows", *heads), "tensor(float)") for name in self.buffers},
        }


class _TracedPass(BoundPass):
    def __init__(self, binding: Binding, rows: int, results: BoundResults, buffers: dict[str, Array]) -> None:
        super().__init__(binding, rows, results)
        self._rows = rows
        self._buffers = buffers

    def _place(self, start: int, parents: Sequence[int] | None) -> None:
        if parents is not None and list(parents) != list(range(-1, self._rows - 1)):
            raise UnsupportedModel(
                "The package's op profile computes tokens in a chain only.",
                f"Got a tree of {self._rows} tokens with parents {list(parents)[:20]}.",
                "Export a model of a family that edge-rt describes.",
            )
        for name, buffer in self._buffers.items():
            self.binding.bind_input(f"past.{name}", buffer[:start])
            self.binding.bind_output(f"new.{name}", buffer[start : start + self._rows])
