"""The graph of a block that predicts one token further ahead (``edge_rt.package.ahead``), of the native operators.

Inputs besides those of a native graph of one layer, whose cache is ``cache.0``. M tokens can be guessed besides the
vocabulary of N:

=========================== ======= ========================== =============================================
name                        dtype   shape                      meaning
=========================== ======= ========================== =============================================
``input_ids``               int64   [S]                        the token behind each row's position
``hidden``                  float32 [S, hidden_size]           the stream at the position, before ``hidden_norm``
``hidden_norm``             float32 [hidden_size]              the model's final norm; behind a first step the block's
``more_head``               uint8   [M / 16, units, bytes]     tiles of the LM head; not if N is the whole vocabulary
``more_bias``               float32 [M]                        0, or far below for rows that stand for nothing
=========================== ======= ========================== =============================================

Outputs are those of a native graph, of N + M tokens, and ``hidden_out`` float32 ``[logit_rows, hidden_size]``, the
stream behind the block, before the norm.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_rt.export.graph.builder import Residual, as_output, graph_input
from edge_rt.export.graph.native import NativeBuilder
from edge_rt.export.graph.native_products import DOMAIN, NO_FINE_BLOCKS
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.native import tiles_of
from edge_rt.export.weights.tile_formats import FORMAT_OF_GGML, TILE_ROWS
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.ahead import AheadInfo, with_block
from edge_rt.package.decoder import Decoder


class AheadBuilder(NativeBuilder):
    """Builds the graph of a block.

    Attributes:
        number: of the block, behind the model's layers.
    """

    def __init__(self, layout: WeightsLayout, decoder: Decoder, info: AheadInfo) -> None:
        super().__init__(layout, with_block(decoder, info.layer), fine_blocks=NO_FINE_BLOCKS)
        self.number = decoder.num_layers
        self._info, self._model, width = info, decoder, decoder.hidden_size
        self._kv_formats = graph_input("kv_formats", ir.DataType.INT32, [1])
        attention = self.attention_of(self.number)
        shape = (2, attention.num_kv_heads, "capacity", "row_bytes")
        self._caches[self.number] = graph_input("cache.0", ir.DataType.UINT8, shape)
        self._hidden = graph_input("hidden", ir.DataType.FLOAT, ["rows", width])
        self._hidden_norm = graph_input("hidden_norm", ir.DataType.FLOAT, [width])
        self._more: list[ir.Value] = []
        self._out: ir.Value | None = None

    def joined(self, table: Linear, fc: Linear) -> Residual:
        """Begin the stream with embeddings and states, both normed, side by side."""
        embedded = self.embed(table, "embedding").settled
        states = self._normed(self._hidden, self._hidden_norm, "states")
        parts = [
            self._normed(embedded, self.stored("ahead.token_norm"), "embedding.normed"),
            self._normed(states, self.stored("ahead.state_norm"), "states.normed"),
        ]
        (both,) = self.node("Concat", parts, ["ahead.both"], attributes={"axis": -1})
        return Residual(self._quant_linear(both, fc, "ahead.joined"))

    def logits(self, x: Residual, head: Linear) -> ir.Value:
        """Return the logits of the tokens that can be guessed."""
        wanted = self.wanted(x.settled, "hidden_out")
        self._out = as_output(wanted, ir.DataType.FLOAT, ["logit_rows", self._decoder.hidden_size])
        count, more = self._info.vocabulary, self._info.more_rows(self._model)
        slot = self._layout.slots[tiles_of(head)]
        # The first tiles of the head are a head of the first tokens.
        tiles = self.stored(slot.name) if not more else self.beginning(slot.name, count // TILE_ROWS)
        first = self._head_product(wanted, tiles, head, count, "logits.first" if more else "logits")
        if not more:
            return first
        shape = (more // TILE_ROWS, *slot.shape[1:])
        self._more = [
            graph_input("more_head", ir.DataType.UINT8, shape),
            graph_input("more_bias", ir.DataType.FLOAT, [more]),
        ]
        second = self._head_product(wanted, self._more[0], head, more, "logits.more", bias=self._more[1])
        return self.node("Concat", [first, second], ["logits"], attributes={"axis": -1})[0]

    def model(self, logits: ir.Value, producer: str) -> ir.Model:
        """Return the finished model."""
        shape: list[int | str] = ["logit_rows", self._info.columns(self._model)]
        assert self._out is not None, "logits come first"
        outputs = [as_output(logits, ir.DataType.FLOAT, shape), *self._more_outputs(logits), self._out]
        return self._finished(outputs, producer)

    def _cache_inputs(self) -> Sequence[ir.Value]:
        rows = [self._past_length, self._row_map, self._parents, self._sequence_rows]
        return [*rows, self._kv_formats, self._caches[self.number], self._hidden, self._hidden_norm, *self._more]

    def _heads(self, layer: int) -> dict[str, int | float | str]:
        return super()._heads(layer) | {"layer": 0}

    def _normed(self, x: ir.Value, weight: ir.Value, name: str) -> ir.Value:
        attributes: dict[str, int | float | str] = {"axis": -1, "epsilon": self._decoder.norm_epsilon}
        return self.node("SimplifiedLayerNormalization", [x, weight], [name], attributes=attributes)[0]

    def _head_product(
        self, x: ir.Value, tiles: ir.Value, head: Linear, rows: int, name: str, bias: ir.Value | None = None
    ) -> ir.Value:
        attributes: dict[str, int | float | str] = {
            "format": FORMAT_OF_GGML[head.parts[0].type_name],
            "out_features": rows,
            "in_features": head.in_features,
            "epsilon": self._decoder.norm_epsilon,
            "activation": "none",
        }
        inputs = [x, tiles, self.stored("ahead.output_norm"), bias]
        return self.node("QuantLinear", inputs, [name], domain=DOMAIN, attributes=attributes)[0]
