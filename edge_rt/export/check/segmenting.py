"""Cuts the graph of a package at its exits, and compares the parts with the whole, bit by bit."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPackage
from edge_rt.export.check.compare import CHECK_ROWS, check_token_ids, run_graph
from edge_rt.export.checkpoint import Checkpoint
from edge_rt.export.decoder.weights import DecoderWeights
from edge_rt.export.graph.builder import IR_VERSION, Residual, as_output, graph_input
from edge_rt.export.graph.native import NativeBuilder
from edge_rt.export.graph.native_products import NO_FINE_BLOCKS, OPSETS, FineBlocks
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.export.writing import GRAPH_FILE, PRODUCER, save_graph
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session
from edge_rt.package.decoder import Decoder
from edge_rt.package.manifest import Segment

HEAD_FILE: Final = "head.onnx"

Array = npt.NDArray[Any]


class SegmentBuilder(NativeBuilder):
    """Builds the graph of layers ``[first_layer, end_layer)``, or of the head if there are none."""

    def __init__(
        self, layout: WeightsLayout, decoder: Decoder, first_layer: int, end_layer: int, fine_blocks: FineBlocks
    ) -> None:
        super().__init__(layout, decoder, fine_blocks=fine_blocks)
        self._range = range(first_layer, end_layer)
        self._is_head = first_layer == end_layer
        rows = "logit_rows" if self._is_head else "rows"
        self._hidden = graph_input("hidden", ir.DataType.FLOAT, [rows, decoder.hidden_size])
        self._parents = graph_input("parents", ir.DataType.INT32, ["nodes"])

    @property
    def is_first(self) -> bool:
        """Whether the graph begins with the tokens' embeddings."""
        return not self._is_head and self._range.start == 0

    @property
    def is_last(self) -> bool:
        """Whether the graph ends with the model's last layer."""
        return not self._is_head and self._range.stop == self._decoder.num_layers

    def enter(self) -> Residual:
        """Return the stream that an earlier graph gives."""
        return Residual(self._hidden)

    def leave(self, x: Residual, producer: str) -> ir.Model:
        """Return the finished graph of layers, whose output is a stream."""
        x.settled.name = "hidden_out"
        return self._finished([as_output(x.settled, ir.DataType.FLOAT, ["rows", self._decoder.hidden_size])], producer)

    def head(self, x: Residual, weights: Linear, producer: str) -> ir.Model:
        """Return the finished graph that ends with the head."""
        logits = self.logits(x, weights)
        shape: list[int | str] = ["logit_rows", self._decoder.vocab_size]
        outputs = [as_output(logits, ir.DataType.FLOAT, shape), *self._more_outputs(logits)]
        return self._finished(outputs, producer)

    def _finished(self, outputs: Sequence[ir.Value], producer: str) -> ir.Model:
        inputs = [self._ids if self.is_first else self._hidden]
        if self._per_layer and not self.is_first:
            inputs.append(self._ids)
        if self.is_last:
            inputs.append(self._logit_rows)
        if not self._is_head:
            inputs += self._layer_inputs()
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports=dict(OPSETS),
            name="segment",
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name=producer)

    def _layer_inputs(self) -> list[ir.Value]:
        """Return the inputs of the layers, in the order of the whole graph; rotations only if a layer reads them."""
        windows = [self._windows[layer] for layer in self._range]
        maps = [(self._row_map, 0 in windows), (self._window_row_map, any(windows))]
        sources = dict.fromkeys(self._source_of(layer) for layer in self._range)
        caches = [self._caches[layer] for layer in sources if layer in self._caches]
        attending = set(self._range) & set(self._decoder.attention_layers)
        ropes = {id(value) for layer in attending for value in self.rope_of(layer)}
        return [
            self._past_length,
            *(row_map for row_map, is_wanted in maps if is_wanted),
            self._parents,
            self._sequence_rows,
            self._kv_formats,
            *caches,
            *(table for table in self._rope_tables.values() if id(table) in ropes),
        ]


def build_segments(
    weights: DecoderWeights,
    layout: WeightsLayout,
    decoder: Decoder,
    exits: Sequence[int],
    producer: str,
    fine_blocks: FineBlocks = NO_FINE_BLOCKS,
) -> list[tuple[int, int, ir.Model]]:
    """Return first layer, end layer and graph of every segment, and last the head's, which has no layers.

    Every node is one of the whole graph, so that a pass through all of them has its bits.
    """
    layers = decoder.num_layers
    segments = []
    for first, end in zip([0, *exits], [*exits, layers], strict=True):
        build = SegmentBuilder(layout, decoder, first, end, fine_blocks)
        x = _layers(build, weights, first, end)
        model = build.head(x, weights.head, producer) if build.is_last else build.leave(x, producer)
        segments.append((first, end, model))
    head = SegmentBuilder(layout, decoder, layers, layers, fine_blocks)
    return [*segments, (layers, layers, head.head(head.enter(), weights.head, producer))]


def _layers(build: SegmentBuilder, weights: DecoderWeights, first: int, end: int) -> Residual:
    x = build.embed(weights.embedding, "embedding") if build.is_first else build.enter()
    if weights.per_layer:
        # Of later segments' layers, too: they are not part of the stream.
        build.embed_layers(x if build.is_first else build.embed(weights.embedding, "embedding"), weights.per_layer)
    whole = end - 1 if build.is_last else end
    for index in range(first, whole):
        x = build.layer(x, weights.layers[index], index)
    return build.last_layer(x, weights.layers[whole], whole) if build.is_last else x


def cut_graph(
    checkpoint: Checkpoint,
    layout: WeightsLayout,
    exits: Sequence[int],
    folder: Path,
    fine_blocks: FineBlocks = NO_FINE_BLOCKS,
) -> tuple[tuple[Segment, ...], str | None]:
    """Replace the whole graph by segments with the same bits; return them, and the head's file if there are any."""
    decoder = checkpoint.decoder
    if not exits:
        return (Segment("model", GRAPH_FILE, 0, decoder.num_layers),), None
    segments = []
    for index, (first, end, model) in enumerate(
        build_segments(checkpoint.weights, layout, decoder, exits, PRODUCER, fine_blocks)
    ):
        is_head = first == end
        name = "head" if is_head else f"layers {first}-{end - 1}"
        segments.append(Segment(name, HEAD_FILE if is_head else f"model.{index}.onnx", first, end))
        save_graph(model, folder / segments[-1].graph)
    ids = check_token_ids(decoder.vocab_size, min(CHECK_ROWS, decoder.context_length))
    whole = run_graph(folder / GRAPH_FILE, decoder, ids, checkpoint.profile)
    gc.collect()
    _require_same(whole, _run_segments(checkpoint, segments[:-1], folder, ids))
    (folder / GRAPH_FILE).unlink()
    return tuple(segments[:-1]), segments[-1].graph


def _run_segments(checkpoint: Checkpoint, segments: Sequence[Segment], folder: Path, ids: Sequence[int]) -> Array:
    """Return the logits of a whole sequence; never more than one session is open."""
    decoder, profile = checkpoint.decoder, checkpoint.profile
    inputs, outputs = profile.feeds(decoder, ids)
    for segment in segments:
        session = Session(folder / segment.graph, profile=profile.name)
        binding = session.binding()
        for spec in session.inputs:
            binding.bind_input(spec.name, inputs[spec.name])
        hidden = np.empty((len(ids), decoder.hidden_size), np.float32)
        for spec in session.outputs:
            binding.bind_output(spec.name, hidden if spec.name == "hidden_out" else outputs[spec.name])
        binding.run(StopSwitch())
        inputs["hidden"] = hidden
        del session, binding
        gc.collect()
    return outputs["logits"]


def _require_same(whole: Array, parts: Array) -> None:
    """Raise ``InvalidPackage`` unless two sets of logits have the same bits."""
    differing = int((whole.view(np.uint32) != parts.view(np.uint32)).sum())
    if differing:
        raise InvalidPackage(
            "The graphs that were cut at the exits do not compute what the whole graph does.",
            f"{differing} of {whole.size} logits have other bits.",
            "Report this with the name of the checkpoint, or leave out --exits.",
        )
