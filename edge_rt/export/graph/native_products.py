"""The native op profile's products of matrices: ``QuantLinear``, with norms, residual sums and gates as parts of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from edge_rt.export.graph.builder import GraphBuilder, Linears, Residual
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.native import tiles_of
from edge_rt.export.weights.tile_formats import FORMAT_OF_GGML, UPPER_FORMAT
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import FeedForward
from edge_rt.package.op_list import not_carried

DOMAIN: Final = "edge_rt"
OPSETS: Final = {"": 21, DOMAIN: 1}
_ACTIVATIONS: Final = {("silu", True): "swiglu", ("gelu", True): "geglu", ("relu2", False): "relu2"}
"""Activation, and whether there is a gate -> the operators' name."""


FineBlocks = Mapping[str, Sequence[int]]
"""Name of an input of matrices, such as ``"layer3.down"`` or ``"head"`` -> blocks of it that are rounded to 16 bits."""
NO_FINE_BLOCKS: Final[FineBlocks] = MappingProxyType({})


class NativeProducts(GraphBuilder):
    """Adds products to a graph.

    Args:
        reads_upper: whether it reads the upper halves of nested codes alone.
        fine_blocks: blocks of matrices that are rounded to 16 bits.
    """

    def __init__(
        self,
        layout: WeightsLayout,
        decoder: Decoder,
        *,
        reads_upper: bool = False,
        fine_blocks: FineBlocks = NO_FINE_BLOCKS,
    ) -> None:
        super().__init__(layout, decoder, OPSETS)
        self._reads_upper = reads_upper
        self._fine_blocks = fine_blocks

    def linear(self, x: Residual, layers: Linears, name: str, *, norm: str | None) -> ir.Value:
        """Multiply the norm of ``x`` by stacked matrices, and add biases."""
        return self._product(x.settled, layers, name, norm=norm)

    def hidden(self, x: Residual, layers: Linears, name: str, *, norm: str | None, layer: int) -> ir.Value:
        """Return what a feed-forward has between its matrices."""
        activation = self._activation(self._decoder.feed_forward_of(layer))
        if len(layers) == 1:
            return self._quant_linear(x.settled, layers[0], name, norm=norm, activation=activation)
        first, second = layers
        gate = self._quant_linear(x.settled, first, f"{name}.gate", norm=norm)
        return self._quant_linear(x.settled, second, name, norm=norm, gate=gate, activation=activation)

    def _activation(self, feed_forward: FeedForward) -> str:
        """Return the operators' name of a feed-forward's activation."""
        key = (feed_forward.activation, feed_forward.is_gated)
        if key not in _ACTIVATIONS:
            raise not_carried(self._decoder, f"{key[0]} {'with' if key[1] else 'without'} a gate")
        return _ACTIVATIONS[key]

    def add_linear(self, x: Residual, y: ir.Value, layers: Linears, name: str, *, post_norm: str | None) -> Residual:
        """Return the stream ``x`` plus ``y`` multiplied by stacked matrices."""
        more = given(residual_scale=(self._decoder.residual_scale, 1.0))
        matrix = only(layers)
        return Residual(self._quant_linear(y, matrix, name, residual=x.settled, post_norm=post_norm, more=more))

    def logits(self, x: Residual, head: Linear) -> ir.Value:
        """Return the logits of a stream."""
        decoder = self._decoder
        more = given(output_scale=(decoder.logit_scale, 1.0), softcap=(decoder.logit_softcap, 0.0))
        # An error of the head meets the choice of a token directly, and nothing behind it makes up for it.
        return self._quant_linear(
            x.settled, head, "logits", norm="final_norm", more={**more, "format": format_of(head)}, fine="head"
        )

    def _format(self, layer: Linear) -> str:
        """Return the format in which a product reads a matrix, or those of its parts."""
        names = format_of(layer).split(",")
        return ",".join(UPPER_FORMAT.get(name, name) if self._reads_upper else name for name in names)

    def _fine(self, matrix: Linear, input_name: str) -> dict[str, str]:
        """Return the attribute that names the fine blocks of a matrix's input, if there are any."""
        blocks = self._fine_blocks.get(input_name, ())
        return {"fine_blocks": ",".join(map(str, blocks))} if blocks and matrix.is_quantised else {}

    def _product(self, x: ir.Value, layers: Linears, name: str, *, norm: str | None) -> ir.Value:
        if len(layers) == 1:
            return self._quant_linear(x, layers[0], name, norm=norm)
        parts = [self._quant_linear(x, layer, layer.name, norm=norm) for layer in layers]
        return self.node("Concat", parts, [name], attributes={"axis": -1})[0]

    def _quant_linear(
        self,
        x: ir.Value,
        layer: Linear,
        name: str,
        *,
        norm: str | None = None,
        residual: ir.Value | None = None,
        gate: ir.Value | None = None,
        activation: str = "none",
        post_norm: str | None = None,
        more: Mapping[str, int | float | str] | None = None,
        fine: str | None = None,
    ) -> ir.Value:
        """Add one QuantLinear.

        Args:
            norm, post_norm: names of the weights of the norms before and behind it.
            fine: name of its input; None: that of the matrix, or of what it is a part of.
        """
        norm_weight, norm_bias = self.optional(norm), None if norm is None else self.optional(f"{norm}_bias")
        inputs = [
            x,
            self.stored(tiles_of(layer)),
            norm_weight,
            self.optional(f"{layer.name}.bias"),
            residual,
            gate,
            self.optional(post_norm),
            norm_bias,
        ]
        while inputs[-1] is None:
            inputs.pop()
        attributes = {
            **matrix_attributes(layer, self._format(layer)),
            **self._fine(layer, fine or ".".join(layer.name.split(".")[:2])),
            "epsilon": self._decoder.norm_epsilon,
            "activation": activation,
            **(more or {}),
        }
        if norm is not None:
            attributes |= given(norm=(self._decoder.norm, "rms"))
        return self.node("QuantLinear", inputs, [name], domain=DOMAIN, attributes=attributes)[0]


def given(**values: tuple[int | float | str, int | float | str]) -> dict[str, int | float | str]:
    """Return the attributes whose values are not the operators' defaults, which older operators do not know."""
    return {name: value for name, (value, default) in values.items() if value != default}


def matrix_attributes(layer: Linear, form: str) -> dict[str, int | float | str]:
    """Return the attributes that describe a packed matrix that is read in a format."""
    attributes: dict[str, int | float | str] = {
        "format": form,
        "out_features": layer.out_features,
        "in_features": layer.in_features,
    }
    if layer.is_mixed:
        attributes["part_rows"] = ",".join(str(part.tensor.shape[1]) for part in layer.parts)
    return attributes


def format_of(layer: Linear) -> str:
    """Return the format of a matrix, or those of its parts."""
    parts = layer.parts if layer.is_mixed else layer.parts[:1]
    return ",".join(FORMAT_OF_GGML[part.type_name] for part in parts)


def only(layers: Linears) -> Linear:
    """Return the only matrix of a step that is never split."""
    (layer,) = layers
    return layer
