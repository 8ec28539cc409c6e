"""Op profiles: what an export writes for one kind of machine; everything that differs between them is defined here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError, UnsupportedModel
from edge_rt.export.graph.builder import GraphBuilder
from edge_rt.export.graph.native import NativeBuilder
from edge_rt.export.graph.native_products import NO_FINE_BLOCKS, FineBlocks
from edge_rt.export.graph.portable import PortableBuilder
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights import native as native_weights, portable as portable_weights
from edge_rt.export.weights.linear import Linear, Part, stack
from edge_rt.export.weights.matrices import StoredRows
from edge_rt.export.weights.rows import RowReader
from edge_rt.export.weights.tile_formats import TILE_ROWS
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout
from edge_rt.ort.op_library import native_status, open_library
from edge_rt.package.decoder import Decoder
from edge_rt.package.kv_formats import KV_FORMAT, portable_head_dim
from edge_rt.package.manifest import ACTIVATIONS
from edge_rt.package.op_list import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_STATE_KEY_DIM,
    STATE_ROWS,
    STRIPE,
    native_part,
    not_carried,
    part_without_operator,
)
from edge_rt.package.rope_tables import loaded_tables
from edge_rt.package.states import state_sizes

Array = npt.NDArray[Any]
Feeds = dict[str, Array]


class OpProfile(ABC):
    """The layout of matrices in ``weights.bin``, and the graph that reads them.

    Attributes:
        opened_factor: memory that an open session takes for ``weights.bin``, pages read and weights packed again, over
            its size.
        half_factor: the same for F16 matrices, beyond ``opened_factor``.
        rounds_by_rule: whether activations are rounded as in the reference, so that a graph can be checked step by
            step.
        has_4_bit_keys: whether the cache can have 4-bit keys, and packages hold constants for them.
        has_tables: whether tables and codes of 5 and 6 bits take as many bits, not 8.
        has_short_convs: whether its operators compute short convolutions.
        has_states: whether they compute layers with a state.
        has_experts: whether they compute experts.
        has_all_parts: whether they compute ``native_part``.
        has_ahead: whether blocks that predict further ahead are packed.
        has_gates: whether they compute gates of attention, and limits of queries, keys and values.
    """

    name: ClassVar[str]
    opened_factor: ClassVar[float]
    half_factor: ClassVar[float]
    rounds_by_rule: ClassVar[bool]
    has_4_bit_keys: ClassVar[bool]
    has_tables: ClassVar[bool]
    has_short_convs: ClassVar[bool]
    has_states: ClassVar[bool]
    has_experts: ClassVar[bool]
    has_all_parts: ClassVar[bool]
    has_ahead: ClassVar[bool]
    has_gates: ClassVar[bool]

    def require_carried(self, decoder: Decoder) -> None:
        """Refuse a model with a part that no operator of the profile computes."""
        if (part := part_without_operator(decoder)) is not None:
            raise not_carried(decoder, part)
        if decoder.conv_layers and not self.has_short_convs:
            raise not_carried(decoder, "short convolutions")
        if decoder.recurrent_layers and not self.has_states:
            raise not_carried(decoder, "layers with a state")
        if not self.has_states and not all(layer.has_mixer and layer.feed_forwards for layer in decoder.kinds):
            raise not_carried(decoder, "layers of a mixer or a feed-forward alone")
        for delta in (layer.gated_delta for layer in decoder.kinds if layer.gated_delta is not None):
            if delta.key_dim % STRIPE or delta.value_dim % STRIPE or delta.key_dim > MAX_STATE_KEY_DIM:
                raise not_carried(decoder, f"a delta rule with heads of {delta.key_dim} and {delta.value_dim} features")
        for space in (layer.state_space for layer in decoder.kinds if layer.state_space is not None):
            rows = space.state_size
            if space.head_dim % STRIPE or rows % STATE_ROWS or rows > MAX_STATE_KEY_DIM:
                raise not_carried(
                    decoder, f"a state space with heads of {space.head_dim} features and states of {rows}"
                )
        if not self.has_all_parts and (part := native_part(decoder)) is not None:
            raise not_carried(decoder, part)
        for attention in (layer.attention for layer in decoder.kinds if layer.attention is not None):
            if attention.has_gate and not self.has_gates:
                raise not_carried(decoder, "gates of attention")
            if attention.clip and not self.has_gates:
                raise not_carried(decoder, "limits of queries, keys and values")
        for experts in (layer.experts for layer in decoder.kinds if layer.experts is not None):
            if not self.has_experts:
                raise not_carried(decoder, "experts")
            sizes = (decoder.hidden_size, experts.latent, experts.each.size)
            if any(size % TILE_ROWS for size in sizes):
                raise not_carried(decoder, f"experts of {' and '.join(str(size) for size in sizes if size)} features")

    @abstractmethod
    def stack(self, name: str, parts: Sequence[Part]) -> tuple[Linear, ...]:
        """Return the fewest matrices that hold parts one behind the other."""

    @abstractmethod
    def gate_up(self, name: str, gate: Part, up: Part) -> tuple[Linear, ...]:
        """Return the matrices of a gated feed-forward's first step."""

    @abstractmethod
    def place(self, linear: Linear, layout: WeightsLayout) -> None:
        """Add a matrix to the layout."""

    @abstractmethod
    def fill(
        self,
        linear: Linear,
        source: RowReader,
        layout: WeightsLayout,
        out: WeightsFile,
        on_bytes: Callable[[int], None],
    ) -> None:
        """Convert a matrix whose rows ``source`` gives and write it where it was placed."""

    @abstractmethod
    def verify(self, linear: Linear, source: TensorReader, layout: WeightsLayout, weights: Path) -> None:
        """Compare the written values with the checkpoint, unless the graphs of ``checked_activations`` check them."""

    @abstractmethod
    def stored(self, weights: Path, layout: WeightsLayout) -> StoredRows:
        """Return a reader of the matrices that were written to ``weights``."""

    @abstractmethod
    def checked_activations(self, activations: str) -> Sequence[str]:
        """Return the kinds of activations whose graphs are compared with the reference; the published one is last."""

    @abstractmethod
    def builder(
        self,
        layout: WeightsLayout,
        decoder: Decoder,
        activations: str,
        fine_blocks: FineBlocks = NO_FINE_BLOCKS,
        *,
        keeps_stream: bool = False,
    ) -> GraphBuilder:
        """Return the builder of a graph; ``keeps_stream``: as of ``NativeBuilder``."""

    @abstractmethod
    def feeds(self, decoder: Decoder, token_ids: Sequence[int]) -> tuple[Feeds, Feeds]:
        """Return inputs and outputs of a first pass that wants the logits of every row."""


class PortableProfile(OpProfile):
    """ONNX Runtime's own operators."""

    name = "portable"
    opened_factor = 2.0  # measured: 1.3 (F32) to 2.0 (Q8_0)
    half_factor = 2.2  # they are converted to float32; measured: 1.2, and once in ten exports 2.0
    rounds_by_rule = False
    has_4_bit_keys = False
    has_tables = False
    has_short_convs = False
    has_states = False
    has_experts = False
    has_all_parts = False
    has_ahead = False
    has_gates = False

    def gate_up(self, name: str, gate: Part, up: Part) -> tuple[Linear, ...]:
        """Stack gate and up: their product is split in two."""
        return stack(name, [gate, up])

    stack = staticmethod(stack)
    stored = staticmethod(portable_weights.StoredBlocks)
    # The float graph reads every value, but weights that were quantised it compares with themselves.
    verify = staticmethod(portable_weights.verify)
    place = staticmethod(portable_weights.place)
    fill = staticmethod(portable_weights.fill)

    def checked_activations(self, activations: str) -> Sequence[str]:
        """Return float, which shows faults in the weights, and the published kind."""
        return tuple(dict.fromkeys(("float", activations)))

    def builder(
        self,
        layout: WeightsLayout,
        decoder: Decoder,
        activations: str,
        fine_blocks: FineBlocks = NO_FINE_BLOCKS,
        *,
        keeps_stream: bool = False,
    ) -> GraphBuilder:
        """Return the builder of a graph; its operators have no fine blocks."""
        assert not fine_blocks, fine_blocks
        assert not keeps_stream, "its operators draft by no such block"
        return PortableBuilder(layout, decoder, activations)

    def feeds(self, decoder: Decoder, token_ids: Sequence[int]) -> tuple[Feeds, Feeds]:
        """Return inputs and outputs of a first pass; every layer's cache is both."""
        rows = len(token_ids)
        inputs: Feeds = {
            "input_ids": np.asarray(token_ids, np.int64),
            "logit_rows": np.arange(rows, dtype=np.int64),
            **loaded_tables(decoder, rows),
        }
        outputs: Feeds = {"logits": np.empty((rows, decoder.vocab_size), np.float32)}
        inputs["seqlens_k"] = np.asarray([rows - 1], np.int32)
        inputs["total_sequence_length"] = np.asarray(rows, np.int32)
        for layer in range(decoder.num_layers):
            for kind in ("key", "value"):
                shape = (1, decoder.num_kv_heads, rows, portable_head_dim(decoder.head_dim))
                cache = np.zeros(shape, np.float32)
                inputs[f"past.{layer}.{kind}"] = outputs[f"present.{layer}.{kind}"] = cache
        return inputs, outputs


class NativeProfile(OpProfile):
    """edge-rt's own operators."""

    name = "native"
    opened_factor = 1.0  # the kernels read the mapped file in place
    half_factor = 0.0
    rounds_by_rule = True
    has_4_bit_keys = True
    has_tables = True
    has_short_convs = True
    has_states = True
    has_experts = True
    has_all_parts = True
    has_ahead = True
    has_gates = True

    stack = staticmethod(native_weights.stack)
    gate_up = staticmethod(native_weights.gate_up)
    stored = staticmethod(native_weights.StoredTiles)
    place = staticmethod(native_weights.place)
    fill = staticmethod(native_weights.fill)
    # The graph rounds activations, which would hide small faults.
    verify = staticmethod(native_weights.verify)

    def checked_activations(self, activations: str) -> Sequence[str]:
        """Return the published kind."""
        return (activations,)

    def builder(
        self,
        layout: WeightsLayout,
        decoder: Decoder,
        activations: str,
        fine_blocks: FineBlocks = NO_FINE_BLOCKS,
        *,
        keeps_stream: bool = False,
    ) -> GraphBuilder:
        """Return the builder of a graph."""
        assert activations == "int8", activations
        return NativeBuilder(layout, decoder, fine_blocks=fine_blocks, keeps_stream=keeps_stream)

    def feeds(self, decoder: Decoder, token_ids: Sequence[int]) -> tuple[Feeds, Feeds]:
        """Return inputs and outputs of a first pass; the caches hold float32."""
        rows = len(token_ids)
        caches = native_caches(decoder, rows, "f32")
        return native_feeds(decoder, token_ids, np.arange(rows), 0, caches, "f32", loaded_tables(decoder, rows))


def native_caches(decoder: Decoder, capacity: int, kv_format: str) -> Feeds:
    """Return empty caches of every layer for so many positions, by input; windows have room for all of them as well.

    States have no room for drafts.
    """

    def cache(layer: int) -> Array:
        if layer in decoder.conv_layers:
            return np.zeros((capacity, decoder.hidden_size), np.float32)
        attention = decoder.attention_of(layer)
        row_bytes = KV_FORMAT[kv_format].row_bytes(attention.head_dim)
        return np.zeros((2, attention.num_kv_heads, capacity, row_bytes), np.uint8)

    caches: Feeds = {f"cache.{layer}": cache(layer) for layer in decoder.cache_layers}
    return caches | {name: np.zeros((1, 2, size), np.float32) for name, size in state_sizes(decoder, 0).items()}


def native_feeds(
    decoder: Decoder,
    token_ids: Sequence[int],
    logit_rows: npt.NDArray[Any],
    begin: int,
    caches: Mapping[str, Array],
    kv_format: str,
    loaded: Mapping[str, Array],
    passes: int = 0,
) -> tuple[Feeds, Feeds]:
    """Return inputs and outputs of a native pass over tokens behind ``begin`` others.

    Args:
        passes: that have computed those.
        caches: of ``native_caches``.
        loaded: tables that are computed at a load.
    """
    rows, wanted = len(token_ids), len(logit_rows)
    capacity = caches[f"cache.{decoder.cache_layers[0]}"].shape[-2]
    inputs: Feeds = {
        "input_ids": np.asarray(token_ids, np.int64),
        "logit_rows": np.asarray(logit_rows, np.int64),
        "past_length": np.asarray([begin], np.int32),
        "parents": np.arange(-1, rows - 1, dtype=np.int32),
        "sequence_rows": np.asarray([rows], np.int32),
        "kv_formats": np.full(decoder.num_layers, KV_FORMAT[kv_format].id, np.int32),
        **caches,
        **loaded,
    }
    maps = (("row_map", 0 in decoder.layer_windows), ("window_row_map", any(decoder.layer_windows)))
    inputs |= {name: np.arange(capacity, dtype=np.int32)[None] for name, is_wanted in maps if is_wanted}
    if decoder.recurrent_layers:
        # Every pass writes the slot that the next one reads.
        inputs |= {
            "state_index": np.zeros(1, np.int32),
            "slot": np.asarray([passes % 2], np.int32),
            "advance": np.full((1, 1), -1, np.int32),
            "certain": np.asarray([rows], np.int32),
        }
    outputs: Feeds = {
        "logits": np.empty((wanted, decoder.vocab_size), np.float32),
        "top_ids": np.empty((wanted, decoder.top_tokens), np.int32),
        "top_logits": np.empty((wanted, decoder.top_tokens), np.float32),
        "log_sum_exp": np.empty(wanted, np.float32),
    }
    return inputs, outputs


class Heads(Protocol):
    """Attention heads of a model."""

    @property
    def num_heads(self) -> int:
        """Heads of the queries."""

    @property
    def head_dim(self) -> int:
        """Elements of a head."""


PROFILES: Final[dict[str, OpProfile]] = {p.name: p for p in (NativeProfile(), PortableProfile())}


def choose_profile(name: str | None, activations: str, library: Path | None, config: Heads) -> OpProfile:
    """Return the profile of an export; this machine must be able to run it, as the last stage does."""
    if activations not in ACTIVATIONS:
        raise ConfigError(
            "The kind of activations is unknown.",
            f"Got {activations!r:.40}.",
            f"Choose one of {', '.join(ACTIVATIONS)}.",
        )
    if name is None:
        runs_native = activations != "float" and _fits_native(config) and native_status(library).reason is None
        return PROFILES["native" if runs_native else "portable"]
    if name not in PROFILES:
        raise ConfigError("The op profile is unknown.", f"Got {name!r:.40}.", f"Choose one of {', '.join(PROFILES)}.")
    if name == "native":
        if activations == "float":
            raise ConfigError(
                "The native op profile has no float activations.",
                f"Got profile {name!r} with activations {activations!r}.",
                "Leave one of them out, or choose the portable profile.",
            )
        open_library(library)
        if not _fits_native(config):
            raise UnsupportedModel(
                "The native operators do not support the model's attention heads.",
                f"It has {config.num_heads} heads of {config.head_dim}; at most {MAX_HEADS} of {MAX_HEAD_DIM}, "
                "and even sizes, are taken.",
                "Export it with --profile portable.",
            )
    return PROFILES[name]


def _fits_native(config: Heads) -> bool:
    return config.head_dim <= MAX_HEAD_DIM and config.head_dim % 2 == 0 and config.num_heads <= MAX_HEADS
