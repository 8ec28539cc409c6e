"""Parts of a native model as graphs of their own: layers between two exits, and the head.

Such a graph has the inputs of the whole one (``native.py``) that its layers need. ``parents`` may be longer than the
pass: its first entries are then nodes that earlier passes have appended. Besides, for S rows of which R are wanted:

=========================== ======= ============================ ==========================================
name                        dtype   shape                        meaning
=========================== ======= ============================ ==========================================
``hidden``                  float32 [S, hidden_size]             the stream before the first layer; in the
                                                                 first graph ``input_ids`` instead, in the
                                                                 head's [R, hidden_size]
output ``hidden_out``       float32 [S, hidden_size]             the stream behind the last layer
=========================== ======= ============================ ==========================================

The graph with the model's last layer ends with the head. It and the graph of the head alone, which makes logits of what
any of the others gives, have the outputs of the whole graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from edge_rt.export.graph.builder import IR_VERSION, Stream, as_output, graph_input
from edge_rt.export.graph.native import OPSETS, NativeBuilder
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.decoder import Decoder


class SegmentBuilder(NativeBuilder):
    """Builds the graph of layers ``[first_layer, end_layer)``, or of the head if there are none."""

    def __init__(self, layout: WeightsLayout, decoder: Decoder, first_layer: int, end_layer: int) -> None:
        super().__init__(layout, decoder)
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

    def enter(self) -> Stream:
        """Return the stream that an earlier graph gives."""
        return Stream(self._hidden)

    def leave(self, x: Stream, producer: str) -> ir.Model:
        """Return the finished graph of layers, whose output is a stream."""
        x.settled.name = "hidden_out"
        return self._finished([as_output(x.settled, ir.DataType.FLOAT, ["rows", self._decoder.hidden_size])], producer)

    def head(self, x: Stream, weights: Linear, producer: str) -> ir.Model:
        """Return the finished graph that ends with the head."""
        logits = self.logits(x, weights)
        shape: list[int | str] = ["logit_rows", self._decoder.vocab_size]
        outputs = [as_output(logits, ir.DataType.FLOAT, shape), *self._more_outputs(logits)]
        return self._finished(outputs, producer)

    def _finished(self, outputs: Sequence[ir.Value], producer: str) -> ir.Model:
        inputs = [self._ids if self.is_first else self._hidden]
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
        caches = [self._caches[layer] for layer in self._range]
        ropes = {id(value) for layer in self._range for value in self.rope_of(layer)}
        return [
            self._past_length,
            *(row_map for row_map, is_wanted in maps if is_wanted),
            self._parents,
            self._kv_formats,
            *caches,
            *(table for table in self._rope_tables.values() if id(table) in ropes),
        ]
