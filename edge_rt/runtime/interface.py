"""What a graph is bound to: inputs, outputs and the memory of both and of the KV cache, for each op profile.

The interfaces are described in ``docs/package-format.md``. Which one a package has is decided once, by
``open_interface``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError, InvalidPackage, UnsupportedModel
from edge_rt.kv_formats import KV_FORMAT
from edge_rt.package import KV_FORMATS, Manifest, ModelConfig
from edge_rt.runtime.outputs import OutputMemory, Outputs, give_back, untouched
from edge_rt.session import Binding, Session

Array = npt.NDArray[Any]
Specs = dict[str, tuple[tuple[int | str, ...], str]]

_FILLING: Final = 0x11
"""A byte that makes finite numbers in every cache format."""


class BoundPass(ABC):
    """Buffers of one shape of pass, tied to the graph.

    Args:
        binding: where they are tied.
        rows: tokens of the pass.
        outputs: what a run writes, for as many rows as want logits; runs of other shapes write it too.

    Attributes:
        outputs: likewise.
    """

    def __init__(self, binding: Binding, rows: int, outputs: Outputs) -> None:
        num_logits = len(outputs.logits)
        self.binding = binding
        self.outputs = outputs
        self._input_ids = np.zeros(rows, np.int64)
        self._logit_rows = np.zeros(num_logits, np.int64)
        self._last_rows = np.arange(rows - num_logits, rows, dtype=np.int64)
        binding.bind_input("input_ids", self._input_ids)
        binding.bind_input("logit_rows", self._logit_rows)
        binding.bind_output("logits", outputs.logits)
        if outputs.top is not None:
            binding.bind_output("top_ids", outputs.top.ids)
            binding.bind_output("top_logits", outputs.top.logits)
            binding.bind_output("log_sum_exp", outputs.top.log_sum_exp)

    def set(
        self, token_ids: Sequence[int], start: int, parents: Sequence[int] | None, logit_rows: Sequence[int] | None
    ) -> None:
        """Write the inputs of the next run; arguments as of ``ModelRunner.forward``."""
        self._input_ids[:] = token_ids
        self._logit_rows[:] = self._last_rows if logit_rows is None else logit_rows
        self._place(start, parents)

    @abstractmethod
    def _place(self, start: int, parents: Sequence[int] | None) -> None:
        """Write where the rows stand."""


class GraphInterface(ABC):
    """Inputs and outputs of one op profile's graph, and the memory of its cache.

    Args:
        config: numbers of the model.
        capacity: rows of the cache, one per token.
        kv_format: format of the cache.
        top_tokens: most likely tokens that the graph returns with every row of logits.

    Attributes:
        config, capacity, kv_format: likewise.
        outputs: memory of the outputs of all passes; one is bound only when there is room for its rows.
        row_bytes: bytes of one token in all layers.
        row_map: see ``KVCache``.
    """

    profile: ClassVar[str]

    def __init__(self, config: ModelConfig, capacity: int, kv_format: str, top_tokens: int) -> None:
        self.config = config
        self.capacity = capacity
        self.kv_format = kv_format
        self.outputs = OutputMemory(config.vocab_size, top_tokens)
        self.row_bytes = 0
        self.row_map: Array | None = None

    @abstractmethod
    def bind(self, session: Session, rows: int, num_logits: int) -> BoundPass:
        """Tie buffers for passes of one shape to the graph; there is room in ``outputs``."""

    @abstractmethod
    def release(self) -> None:
        """Let go of the memory of cache and outputs; no pass may run any more."""
        self.outputs.release()

    def fill(self, rows: int) -> None:
        """Write something into the first rows of the cache, so that passes behind them read memory as usual."""
        for buffer in self._cache_buffers():
            buffer[..., :rows, :] = _FILLING

    def forget(self) -> None:
        """Empty all rows of the cache and give their memory back."""
        # All of them are views of one piece of memory.
        for buffer in self._cache_buffers()[:1]:
            give_back(buffer)

    @abstractmethod
    def _cache_buffers(self) -> list[Array]:
        """Return the memory of the cache, ``[..., capacity, width]``."""

    @abstractmethod
    def _specs(self) -> Specs:
        """Return name -> shape and type of the inputs and outputs of this profile alone."""

    def check(self, session: Session) -> None:
        """Compare the graph with the manifest: a wrong shape would end in an error in the middle of an answer.

        Raises:
            InvalidPackage: the graph has other inputs or outputs.
        """
        wanted: Specs = {
            "input_ids": (("rows",), "tensor(int64)"),
            "logit_rows": (("logit_rows",), "tensor(int64)"),
            "logits": (("logit_rows", self.config.vocab_size), "tensor(float)"),
            **self._specs(),
        }
        found = {spec.name: (spec.shape, spec.type) for spec in (*session.inputs, *session.outputs)}
        if found != wanted:
            name = next(n for n in (*wanted, *found) if wanted.get(n) != found.get(n))
            raise InvalidPackage(
                "The graph of the package does not fit its manifest.",
                f"{name}: the manifest asks for {wanted.get(name)}, the graph has {found.get(name)}.",
                "Export or pull the model again.",
            )


class PortableInterface(GraphInterface):
    """GroupQueryAttention's cache: float32, every layer's keys and values bound as input and as output.

    Attributes:
        keys: per layer, float32 ``[1, kv_heads, capacity, head_dim]``; pages are touched only as rows are written.
        values: likewise.
    """

    profile = "portable"

    def __init__(self, config: ModelConfig, capacity: int, kv_format: str) -> None:
        super().__init__(config, capacity, kv_format, top_tokens=0)
        shape = (config.num_layers, 2, 1, config.num_kv_heads, capacity, config.head_dim)
        buffer = untouched(shape, np.float32)
        self.keys: list[Array] = [layer[0] for layer in buffer]
        self.values: list[Array] = [layer[1] for layer in buffer]
        self.row_bytes = buffer.nbytes // capacity

    def release(self) -> None:
        """Let go of the buffers."""
        super().release()
        self.keys, self.values = [], []

    def _cache_buffers(self) -> list[Array]:
        return [*self.keys, *self.values]

    def bind(self, session: Session, rows: int, num_logits: int) -> BoundPass:
        """Tie buffers for passes of one shape to the graph."""
        binding = session.binding()
        for layer, buffers in enumerate(zip(self.keys, self.values, strict=True)):
            for kind, buffer in zip(("key", "value"), buffers, strict=True):
                binding.bind_input(f"past.{layer}.{kind}", buffer)
                binding.bind_output(f"present.{layer}.{kind}", buffer)
        return _PortablePass(binding, rows, self.outputs.first(num_logits))

    def _specs(self) -> Specs:
        cache = (1, self.config.num_kv_heads, "capacity", self.config.head_dim)
        layers = [(i, kind) for i in range(self.config.num_layers) for kind in ("key", "value")]
        return {
            "seqlens_k": ((1,), "tensor(int32)"),
            "total_sequence_length": ((), "tensor(int32)"),
            **{f"past.{i}.{kind}": (cache, "tensor(float)") for i, kind in layers},
            **{f"present.{i}.{kind}": (cache, "tensor(float)") for i, kind in layers},
        }


class _PortablePass(BoundPass):
    def __init__(self, binding: Binding, rows: int, outputs: Outputs) -> None:
        super().__init__(binding, rows, outputs)
        self._rows = rows
        self._seqlens_k = np.zeros(1, np.int32)
        self._total_length = np.zeros((), np.int32)
        binding.bind_input("seqlens_k", self._seqlens_k)
        binding.bind_input("total_sequence_length", self._total_length)

    def _place(self, start: int, parents: Sequence[int] | None) -> None:
        if parents is not None and list(parents) != list(range(-1, self._rows - 1)):
            raise UnsupportedModel(
                "The package's op profile computes tokens in a chain only.",
                f"Got a tree of {self._rows} tokens with parents {list(parents)[:20]}.",
                "Export the model with --profile native.",
            )
        self._seqlens_k[0] = start + self._rows - 1
        self._total_length[...] = start + self._rows


class NativeInterface(GraphInterface):
    """SpecAttention's cache: bytes in one of several formats, written in place; rows are found through a map.

    Attributes:
        buffers: per layer, uint8 ``[2, kv_heads, capacity, bytes per row]``; pages are touched only as rows are
            written.
    """

    profile = "native"

    def __init__(self, config: ModelConfig, capacity: int, kv_format: str) -> None:
        super().__init__(config, capacity, kv_format, config.top_tokens)
        width = KV_FORMAT[kv_format].row_bytes(config.head_dim)
        buffer = untouched((config.num_layers, 2, config.num_kv_heads, capacity, width), np.uint8)
        self.buffers: list[Array] = list(buffer)
        self.row_bytes = buffer.nbytes // capacity
        self.row_map = np.arange(capacity, dtype=np.int32)
        self._formats = np.full(config.num_layers, KV_FORMAT[kv_format].id, np.int32)

    def release(self) -> None:
        """Let go of the buffers."""
        super().release()
        self.buffers = []

    def _cache_buffers(self) -> list[Array]:
        return self.buffers

    def bind(self, session: Session, rows: int, num_logits: int) -> BoundPass:
        """Tie buffers for passes of one shape to the graph."""
        binding = session.binding()
        assert self.row_map is not None
        binding.bind_input("row_map", self.row_map)
        binding.bind_input("kv_formats", self._formats)
        for layer, buffer in enumerate(self.buffers):
            binding.bind_input(f"cache.{layer}", buffer)
        return _NativePass(binding, rows, self.outputs.first(num_logits))

    def _specs(self) -> Specs:
        config = self.config
        cache = (2, config.num_kv_heads, "capacity", "row_bytes")
        return {
            "past_length": ((1,), "tensor(int32)"),
            "row_map": (("capacity",), "tensor(int32)"),
            "parents": (("rows",), "tensor(int32)"),
            "kv_formats": ((config.num_layers,), "tensor(int32)"),
            **{f"cache.{i}": (cache, "tensor(uint8)") for i in range(config.num_layers)},
            "top_ids": (("logit_rows", config.top_tokens), "tensor(int32)"),
            "top_logits": (("logit_rows", config.top_tokens), "tensor(float)"),
            "log_sum_exp": (("logit_rows",), "tensor(float)"),
        }


class _NativePass(BoundPass):
    def __init__(self, binding: Binding, rows: int, outputs: Outputs) -> None:
        super().__init__(binding, rows, outputs)
        self._past_length = np.zeros(1, np.int32)
        self._parents = np.zeros(rows, np.int32)
        self._chain = np.arange(-1, rows - 1, dtype=np.int32)
        binding.bind_input("past_length", self._past_length)
        binding.bind_input("parents", self._parents)

    def _place(self, start: int, parents: Sequence[int] | None) -> None:
        self._past_length[0] = start
        self._parents[:] = self._chain if parents is None else parents


def open_interface(manifest: Manifest, capacity: int, kv_format: str | None) -> GraphInterface:
    """Return the interface of a package's op profile, with the memory for ``capacity`` tokens.

    Args:
        manifest: of the package.
        capacity: rows of the cache.
        kv_format: format of the cache; None takes the one that the package prefers.

    Raises:
        ConfigError: the package has no such format.
        MemoryError, OSError, OverflowError: there is not so much address space.
    """
    usable = [name for name in manifest.kv_formats if name in KV_FORMATS[manifest.op_profile]]
    kv_format = usable[0] if kv_format is None else kv_format
    if kv_format not in usable:
        raise ConfigError(
            "The package's KV cache has no such format.",
            f"Got {kv_format!r:.40}; with the op profile {manifest.op_profile} it can be {', '.join(usable)}.",
            "Choose one of these, or leave it out.",
        )
    kind = {interface.profile: interface for interface in (PortableInterface, NativeInterface)}[manifest.op_profile]
    return kind(manifest.model, capacity, kv_format)
