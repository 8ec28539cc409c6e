"""A decoder as a chain of graphs, cut at its exits, and a graph of the head."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from edge_rt.export.decoder.weights import DecoderWeights
from edge_rt.export.graph.builder import Stream
from edge_rt.export.graph.segments import SegmentBuilder
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.decoder import Decoder


def build_segments(
    weights: DecoderWeights, layout: WeightsLayout, decoder: Decoder, exits: Sequence[int], producer: str
) -> list[tuple[int, int, ir.Model]]:
    """Return first layer, end layer and graph of every segment, and last the head's, which has no layers.

    Every node is one of the whole graph, so that a pass through all of them has its bits.

    Args:
        weights: matrices of the model.
        layout: their positions in ``weights.bin``.
        decoder: the model.
        exits: layers behind which the graph is cut, see ``edge_rt.package.exits``.
        producer: program name written into the graphs.
    """
    layers = decoder.num_layers
    segments = []
    for first, end in zip([0, *exits], [*exits, layers], strict=True):
        build = SegmentBuilder(layout, decoder, first, end)
        x = _layers(build, weights, first, end)
        model = build.head(x, weights.head, producer) if build.is_last else build.leave(x, producer)
        segments.append((first, end, model))
    head = SegmentBuilder(layout, decoder, layers, layers)
    return [*segments, (layers, layers, head.head(head.enter(), weights.head, producer))]


def _layers(build: SegmentBuilder, weights: DecoderWeights, first: int, end: int) -> Stream:
    x = build.embed(weights.embedding, "embedding") if build.is_first else build.enter()
    whole = end - 1 if build.is_last else end
    for index in range(first, whole):
        x = build.layer(x, weights.layers[index], index)
    return build.last_layer(x, weights.layers[whole], whole) if build.is_last else x
