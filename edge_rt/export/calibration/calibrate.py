"""Runs the written weights on a calibration text: constants of 4-bit keys, and which experts its rows have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import StorageError
from edge_rt.export.calibration.key_constants import (
    KeyConstants,
    better_constants,
    key_constants,
    key_statistics,
    statistics_bytes,
)
from edge_rt.export.decoder.weights import DecoderWeights, build_graph, calibrated_layers
from edge_rt.export.graph.builder import GraphBuilder, LayerMatrices, Residual, as_output
from edge_rt.export.graph.native import NativeBuilder
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.op_profile import native_caches, native_feeds
from edge_rt.export.reference.expert_hits import Routing
from edge_rt.export.weights.native import key_constant_names
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session
from edge_rt.package.decoder import Decoder, rope_names
from edge_rt.package.expert_hits import ExpertHits
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.layers import Experts
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.rope_tables import loaded_tables
from edge_rt.package.states import states_bytes
from edge_rt.system.machine import usable_cpus

STRIDE: Final = 4
"""The query of one in this many tokens is used; the keys of all tokens are."""
PASS_ROWS: Final = 128

_GRAPH_FILE: Final = "calibrate.onnx"
_FORMAT: Final = "f16"

Array = npt.NDArray[Any]


class CalibrationBuilder(NativeBuilder):
    """Builds the graph with queries, keys and numbers of experts as outputs; its attention does not use the constants.

    Layers are built from single operators: the operator for a whole layer does not output its queries.
    """

    def __init__(self, layout: WeightsLayout, decoder: Decoder) -> None:
        super().__init__(layout, decoder)
        self._qkv: list[ir.Value] = []
        self._numbers: list[ir.Value] = []

    def node(
        self, op_type: str, inputs: Sequence[ir.Value | None], outputs: Sequence[str], **more: Any
    ) -> tuple[ir.Value, ...]:
        """Add a node; of experts their numbers become an output, but for the last layer, which has few rows."""
        layers = routed_layers(self._decoder)
        if op_type != "Experts" or len(self._numbers) == len(layers):
            return super().node(op_type, inputs, outputs, **more)
        layer, experts = layers[len(self._numbers)]
        names = [*outputs, _numbers_of(layer)]
        *made, numbers = super().node(op_type, inputs, names, **more)
        self._numbers.append(as_output(numbers, ir.DataType.INT32, ["rows", experts.chosen]))
        return tuple(made)

    def layer(self, x: Residual, weights: LayerMatrices, index: int) -> Residual:
        """Return the residual stream after layer ``index``."""
        return GraphBuilder.layer(self, x, weights, index)

    def attention(self, qkv: ir.Value, layer: int) -> ir.Value:
        """Rotate, append to the cache and attend; ``qkv`` becomes an output."""
        if self._decoder.attention_of(layer).kv_from is None:
            width = self._decoder.attention_of(layer).qkv_size
            self._qkv.append(as_output(qkv, ir.DataType.FLOAT, ["rows", width]))
        return super().attention(qkv, layer)

    def _more_outputs(self, logits: ir.Value) -> Sequence[ir.Value]:
        return [*super()._more_outputs(logits), *self._qkv, *self._numbers]

    def _key_constants_of(self, layer: int) -> list[ir.Value | None]:  # noqa: ARG002 - no layer has any
        return [None] * 3


def routed_layers(decoder: Decoder) -> list[tuple[int, Experts]]:
    """Return the layers whose experts are counted, and these."""
    return [(number, layer.experts) for number, layer in enumerate(decoder.layers[:-1]) if layer.experts is not None]


def _numbers_of(layer: int) -> str:
    return f"layer{layer}.experts"


def calibration_bytes(decoder: Decoder, tokens: int) -> int:
    """Predict the memory of ``calibrate`` in addition to the weights: cache, queries, one pass, and statistics."""
    attentions = [decoder.attention_of(layer) for layer in decoder.kv_layers]
    # Who has which expert, and what is counted of a layer.
    routing = 2 * tokens * sum(experts.count for _, experts in routed_layers(decoder))
    convs = 4 * decoder.hidden_size * len(decoder.conv_layers) * tokens + states_bytes(decoder, 0)
    form, taken = KV_FORMAT[_FORMAT], -(-tokens // STRIDE)
    cache = tokens * sum(form.token_bytes(one.num_kv_heads, one.head_dim) for one in attentions) + convs
    queries = 2 * taken * sum(one.query_size for one in attentions)
    width = max(decoder.hidden_size, decoder.intermediate_size, decoder.query_size)
    one_pass = 4 * PASS_ROWS * (sum(one.qkv_size for one in attentions) + 4 * width) + 8 * decoder.vocab_size
    head = max(
        statistics_bytes(tokens, taken * (one.num_heads // one.num_kv_heads), one.head_dim) for one in attentions
    )
    return cache + queries + routing + max(one_pass, usable_cpus() * head)


def calibrate(
    folder: Path,
    weights: DecoderWeights,
    layout: WeightsLayout,
    decoder: Decoder,
    token_ids: Sequence[int],
    on_progress: Callable[[int, int], None],
) -> tuple[ExpertHits | None, tuple[str, ...]]:
    """Compute the constants of 4-bit keys and write them into ``weights.bin``.

    A kv head whose keys would lose more precision with its constants than without gets neutral ones. This is checked
    here, and not by running the published graph with a 4-bit cache: the error of a 4-bit format is larger than the
    effect of a fault. A head whose keys or queries do not fit half precision gets neutral ones as well.

    Returns:
        How often experts would have been in a cache, None without experts; and a sentence about the heads that do not
        fit half precision, if there are any.
    """
    routing = Routing()
    passes = -(-len(token_ids) // PASS_ROWS)
    steps = passes + len(decoder.kv_layers)
    caches, queries = _run(folder, weights, layout, decoder, token_ids, routing, lambda done: on_progress(done, steps))
    hits = routing.hits()
    unfit: dict[int, int] = {}
    with WeightsFile(folder / WEIGHTS_FILE, layout, is_new=False) as out:
        calibrated = frozenset(calibrated_layers(decoder))
        for done, (layer, heads) in enumerate(_constants(caches, queries, decoder), start=passes + 1):
            if layer not in calibrated:
                continue
            if missing := heads.count(None):
                unfit[layer] = missing
            neutral = KeyConstants.neutral(1, decoder.attention_of(layer).head_dim)
            constants = KeyConstants.joined([neutral if head is None else head for head in heads])
            for name, array in zip(key_constant_names(layer), constants.arrays, strict=True):
                out.write(layout.slots[name], 0, array)
            on_progress(done, steps)
    return hits, (_warning(unfit, decoder),) if unfit else ()


def _warning(unfit: Mapping[int, int], decoder: Decoder) -> str:
    """Return a sentence about heads without constants; ``unfit``: layer -> kv heads beyond half precision."""
    heads = sum(decoder.attention_of(layer).num_kv_heads for layer in decoder.kv_layers)
    return (
        f"{sum(unfit.values())} of {heads} kv heads, the first in layer {min(unfit)}, have keys or queries that do not "
        "fit half precision: they have no constants for 4-bit keys, and int4 and int4x2 caches lose more there."
    )


def _run(
    folder: Path,
    weights: DecoderWeights,
    layout: WeightsLayout,
    decoder: Decoder,
    token_ids: Sequence[int],
    routing: Routing,
    on_pass: Callable[[int], None],
) -> tuple[list[Array], list[Array]]:
    """Compute keys and queries of the text, and tell ``routing`` which experts its rows have.

    Returns:
        Keys of every layer that has its own, float16 ``[kv_heads, tokens, head_dim]``, and the rotated queries of every
        ``STRIDE``-th token there, float16 ``[tokens / STRIDE, heads, head_dim]``.
    """
    graph = folder / _GRAPH_FILE
    model = build_graph(CalibrationBuilder(layout, decoder), weights, decoder, "edge-rt")
    try:
        graph.write_bytes(ir.to_proto(model).SerializeToString())
    except OSError as error:
        raise StorageError("The graph could not be written.", f"{error.strerror}.", "Free some space.") from error
    try:
        session = Session(graph, profile="native")
        tokens = len(token_ids)
        caches = native_caches(decoder, tokens, _FORMAT)
        taken = -(-tokens // STRIDE)
        layers = decoder.kv_layers
        attentions = [decoder.attention_of(layer) for layer in layers]
        queries = [np.empty((taken, one.num_heads, one.head_dim), np.float16) for one in attentions]
        loaded = loaded_tables(decoder, tokens)
        tables = {name: _table(folder, layout, name) for name in layout.slots if name.startswith("rope")} | loaded
        prepare = [_QueryPreparation(folder, layout, decoder, layer, tables) for layer in layers]
        # One array for all passes: the memory prediction has no room for a second one.
        room = [np.empty((min(tokens, PASS_ROWS), one.qkv_size), np.float32) for one in attentions]
        routed = routed_layers(decoder)
        for begin in range(0, tokens, PASS_ROWS):
            on_pass(begin // PASS_ROWS)
            products = [rows[: tokens - begin] for rows in room]
            count = min(tokens - begin, PASS_ROWS)
            numbers = {layer: np.empty((count, experts.chosen), np.int32) for layer, experts in routed}
            _pass(session, decoder, caches, token_ids[begin : begin + PASS_ROWS], begin, products, numbers, loaded)
            for layer, experts in routed:
                has = np.zeros((count, experts.count), bool)
                np.put_along_axis(has, numbers[layer], values=True, axis=1)
                routing.add(layer, has)
            # PASS_ROWS is a multiple of STRIDE.
            rows = slice(begin // STRIDE, begin // STRIDE + len(products[0][::STRIDE]))
            for number, qkv in enumerate(products):
                with np.errstate(over="ignore", invalid="ignore"):
                    queries[number][rows] = prepare[number](qkv[::STRIDE], begin)
    finally:
        graph.unlink()
    # The planes of keys come first, as half precision.
    return [caches[f"cache.{layer}"][0].view(np.float16) for layer in layers], queries


def _pass(
    session: Session,
    decoder: Decoder,
    caches: Mapping[str, Array],
    token_ids: Sequence[int],
    begin: int,
    products: Sequence[Array],
    numbers: Mapping[int, Array],
    loaded: Mapping[str, Array],
) -> None:
    """Compute tokens after ``begin`` others; write queries, keys and values to ``products``, experts to ``numbers``."""
    last = np.asarray([len(token_ids) - 1])
    inputs, outputs = native_feeds(decoder, token_ids, last, begin, caches, _FORMAT, loaded, begin // PASS_ROWS)
    outputs |= {f"layer{layer}.qkv": product for layer, product in zip(decoder.kv_layers, products, strict=True)}
    outputs |= {_numbers_of(layer): array for layer, array in numbers.items()}
    binding = session.binding()
    binding.bind(inputs, outputs)
    binding.run(StopSwitch())


def _table(folder: Path, layout: WeightsLayout, name: str) -> Array:
    slot = layout.slots[name]
    return np.memmap(folder / WEIGHTS_FILE, slot.dtype, "r", offset=slot.offset, shape=slot.shape)


class _QueryPreparation:
    """What ``SpecAttention`` does to the queries of a layer before it multiplies them by keys."""

    def __init__(
        self, folder: Path, layout: WeightsLayout, decoder: Decoder, layer: int, tables: Mapping[str, Array]
    ) -> None:
        self._attention = attention = decoder.attention_of(layer)
        self._epsilon = decoder.norm_epsilon
        names = () if attention.rope is None else rope_names(attention.rope)
        self._tables = [tables[name] for name in names]
        norm = f"layer{layer}.q_norm"
        self._norm = _table(folder, layout, norm) if norm in layout.slots else None

    def __call__(self, rows: Array, begin: int) -> Array:
        """Return the queries ``[rows, heads, head_dim]`` of every ``STRIDE``-th row from position ``begin`` on."""
        attention = self._attention
        # Gates lie behind the queries of each head.
        heads = rows[:, : attention.query_rows].reshape(len(rows), attention.num_heads, -1)
        queries = heads[..., : attention.head_dim]
        steps = [self._normed, self._clipped, lambda found: self._rotated(found, begin)]
        for step in reversed(steps) if attention.norm_after_rope else steps:
            queries = step(queries)
        return queries

    def _normed(self, rows: Array) -> Array:
        if self._norm is None:
            return rows
        axes = (-1,) if self._attention.qk_norm == "head" else (-2, -1)
        normed = rows / np.sqrt(np.square(rows).mean(axis=axes, keepdims=True) + np.float32(self._epsilon))
        weighted: Array = normed * self._norm.reshape(-1, self._attention.head_dim)
        return weighted

    def _clipped(self, rows: Array) -> Array:
        clip = self._attention.clip
        return np.clip(rows, -clip, clip) if clip else rows

    def _rotated(self, rows: Array, begin: int) -> Array:
        """Rotate element j with element j + half of the rotated dimensions."""
        if not self._tables:
            return rows
        cos, sin = (table[begin : begin + STRIDE * len(rows) : STRIDE, None] for table in self._tables)
        half = cos.shape[-1]
        first, second = rows[..., :half], rows[..., half : 2 * half]
        turned = [first * cos - second * sin, second * cos + first * sin, rows[..., 2 * half :]]
        return np.concatenate(turned, axis=-1)


def _constants(
    caches: Sequence[Array], queries: Sequence[Array], decoder: Decoder
) -> Iterator[tuple[int, list[KeyConstants | None]]]:
    """Yield every layer with keys of its own and its constants, per kv head; several heads are computed at once."""
    with ThreadPoolExecutor(usable_cpus()) as workers:
        for layer, keys, rows in zip(decoder.kv_layers, caches, queries, strict=True):
            attention = decoder.attention_of(layer)
            found = rows.reshape(len(rows), attention.num_kv_heads, -1, attention.head_dim).swapaxes(0, 1)
            of_head = functools.partial(_of_head, scale=attention.scale, window=decoder.layer_windows[layer])
            yield layer, list(workers.map(of_head, keys, found))


def _of_head(keys: Array, queries: Array, *, scale: float, window: int) -> KeyConstants | None:
    """Return the constants of a kv head; None if its keys or queries do not fit half precision."""
    # The cache stores keys that are too large as the largest half; the comparison is false for NaN as well.
    if not all(np.abs(rows).max() < np.finfo(np.float16).max for rows in (keys, queries)):
        return None
    positions = STRIDE * np.arange(len(queries))
    statistics = key_statistics(keys, queries, positions, scale=scale, window=window)
    return better_constants(keys, statistics, key_constants(statistics))
