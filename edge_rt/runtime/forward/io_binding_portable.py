"""IO binding of portable packages: GroupQueryAttention's cache, in this process or on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_rt.errors import UnsupportedModel
from edge_rt.ort.binding import Binding
from edge_rt.ort.compute_device import DeviceArray
from edge_rt.ort.session import Session
from edge_rt.package.decoder import Decoder, Model
from edge_rt.package.kv_formats import portable_head_dim
from edge_rt.package.rope_tables import loaded_tables
from edge_rt.runtime.forward.io_binding_base import FILLING, Array, BoundPass, IOBinding, Part, Specs
from edge_rt.runtime.forward.outputs import BoundResults, untouched

Buffers = list[Array | DeviceArray]


class PortableIOBinding(IOBinding):
    """GroupQueryAttention's cache: float32, every layer's keys and values bound as input and as output.

    ``cache_bytes`` is layers x 2 x kv_heads x capacity x D x 4, also in layers with a sliding window; D is the size of
    a head, padded to a multiple of 8.

    Attributes:
        keys: per layer, float32 ``[1, kv_heads, capacity, D]``; a page takes memory only once a row in it is written.
    """

    profile = "portable"

    def __init__(self, model: Decoder, capacity: int, kv_format: str) -> None:
        super().__init__(model, capacity, kv_format, top_tokens=0)
        self._rope_tables = loaded_tables(model, capacity)
        self.keys: Buffers = []
        self.values: Buffers = []
        self._allocate(capacity)
        self.row_bytes = self.cache_bytes // capacity

    def _allocate(self, capacity: int) -> None:
        """Make ``keys`` and ``values``, and set ``cache_bytes``."""
        model = self.model
        shape = (model.num_layers, 2, 1, model.num_kv_heads, capacity, portable_head_dim(model.head_dim))
        buffer = untouched(shape, np.float32)
        self.keys = [layer[0] for layer in buffer]
        self.values = [layer[1] for layer in buffer]
        self.cache_bytes = buffer.nbytes

    def release(self) -> None:
        """Release the buffers."""
        super().release()
        self.keys, self.values = [], []

    def fill(self, rows: int) -> None:
        """Write the first rows of all layers."""
        for buffer in self._host_buffers():
            buffer.view(np.uint8)[..., :rows, :] = FILLING

    def _host_buffers(self) -> list[Array]:
        return [buffer for buffer in (*self.keys, *self.values) if not isinstance(buffer, DeviceArray)]

    def bind(self, session: Session, rows: int, num_logits: int, sequences: int = 0) -> BoundPass:
        """Bind buffers for passes of one shape to the graph."""
        assert not sequences, sequences
        binding = session.binding()
        self._bind_rope(binding)
        for layer, buffers in enumerate(zip(self.keys, self.values, strict=True)):
            for kind, buffer in zip(("key", "value"), buffers, strict=True):
                binding.bind_input(f"past.{layer}.{kind}", buffer)
                binding.bind_output(f"present.{layer}.{kind}", buffer)
        return _PortablePass(binding, rows, self.bind_results(binding, num_logits))

    def _specs(self) -> Specs:
        cache = (1, self.model.num_kv_heads, "capacity", portable_head_dim(self.model.head_dim))
        layers = [(i, kind) for i in range(self.model.num_layers) for kind in ("key", "value")]
        return {
            "seqlens_k": ((1,), "tensor(int32)"),
            "total_sequence_length": ((), "tensor(int32)"),
            **{f"past.{i}.{kind}": (cache, "tensor(float)") for i, kind in layers},
            **{f"present.{i}.{kind}": (cache, "tensor(float)") for i, kind in layers},
        }


class _PortablePass(BoundPass):
    def __init__(self, binding: Binding, rows: int, results: BoundResults) -> None:
        super().__init__(binding, rows, results)
        self._rows = rows
        self._seqlens_k = np.zeros(1, np.int32)
        self._total_length = np.zeros((), np.int32)
        binding.bind_input("seqlens_k", self._seqlens_k)
        binding.bind_input("total_sequence_length", self._total_length)

    def _place(self, parts: Sequence[Part]) -> None:
        ((_, start, _, parents, *_),) = parts
        if parents is not None and list(parents) != list(range(-1, self._rows - 1)):
            raise UnsupportedModel(
                "The package's op profile computes tokens in a chain only.",
                f"Got a tree of {self._rows} tokens with parents {list(parents)[:20]}.",
                "Export the model with the profile native.",
            )
        self._seqlens_k[0] = start + self._rows - 1
        self._total_length[...] = start + self._rows


class TracedIOBinding(IOBinding):
    """Float32 rows in the order of the tokens; each layer's rows before a pass are an input, its new ones an output.

    ``cache_bytes`` is layers x 2 x capacity x kv_heads x head_dim x 4.

    Attributes:
        buffers: name of a cache (``0.key``) -> float32 ``[capacity, kv_heads, head_dim]``; a page takes memory only
            once a row in it is written.
    """

    profile = "traced"

    def __init__(self, model: Model, capacity: int, kv_format: str) -> None:
        super().__init__(model, capacity, kv_format, top_tokens=0)
        kinds = [f"{layer}.{kind}" for layer in range(model.num_layers) for kind in ("key", "value")]
        memory = untouched((len(kinds), capacity, model.num_kv_heads, model.head_dim), np.float32)
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

    def bind(self, session: Session, rows: int, num_logits: int, sequences: int = 0) -> BoundPass:
        """Bind buffers for passes of one shape to the graph; those of the cache follow when it is known where."""
        assert not sequences, sequences
        binding = session.binding()
        return _TracedPass(binding, rows, self.bind_results(binding, num_logits), self.buffers)

    def _specs(self) -> Specs:
        heads = (self.model.num_kv_heads, self.model.head_dim)
        return {
            **{f"past.{name}": (("past", *heads), "tensor(float)") for name in self.buffers},
            **{f"new.{name}": (("rows", *heads), "tensor(float)") for name in self.buffers},
        }


class _TracedPass(BoundPass):
    def __init__(self, binding: Binding, rows: int, results: BoundResults, buffers: dict[str, Array]) -> None:
        super().__init__(binding, rows, results)
        self._rows = rows
        self._buffers = buffers

    def _place(self, parts: Sequence[Part]) -> None:
        ((_, start, _, parents, *_),) = parts
        if parents is not None and list(parents) != list(range(-1, self._rows - 1)):
            raise UnsupportedModel(
                "The package's op profile computes tokens in a chain only.",
                f"Got a tree of {self._rows} tokens with parents {list(parents)[:20]}.",
                "Export a model of a family that edge-rt describes.",
            )
        for name, buffer in self._buffers.items():
            self.binding.bind_input(f"past.{name}", buffer[:start])
            self.binding.bind_output(f"new.{name}", buffer[start : start + self._rows])
