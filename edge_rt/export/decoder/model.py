"""A decoder as a graph, built from the steps of either op profile."""

from __future__ import annotations

import onnx_ir as ir

from edge_rt.export.decoder.weights import DecoderWeights
from edge_rt.export.graph.builder import GraphBuilder
from edge_rt.export.op_profile import OpProfile
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.decoder import Decoder


def build_graph(
    weights: DecoderWeights,
    layout: WeightsLayout,
    decoder: Decoder,
    *,
    profile: OpProfile,
    activations: str,
    producer: str,
) -> ir.Model:
    """Build the whole model as one segment."""
    return assemble(profile.builder(layout, decoder, activations), weights, decoder, producer)


def assemble(build: GraphBuilder, weights: DecoderWeights, decoder: Decoder, producer: str) -> ir.Model:
    """Build the whole model with an empty builder; see ``build_graph`` for the other arguments."""
    x = build.embed(weights.embedding, "embedding")
    last = decoder.num_layers - 1
    for i, layer in enumerate(weights.layers[:last]):
        x = build.layer(x, layer, i)
    return build.model(build.logits(build.last_layer(x, weights.layers[last], last), weights.head), producer)
