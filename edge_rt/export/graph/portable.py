"""The portable op profile: building blocks of a graph out of ONNX Runtime's own operators.

``com.microsoft`` operators used: MatMulNBits, GatherBlockQuantized, GroupQueryAttention,
SkipSimplifiedLayerNormalization, QuickGelu. Inputs of the graph, for S rows of which R need logits, in a cache of C
rows:

=========================== ======= ====================== =================================================
name                        dtype   shape                  meaning
=========================== ======= ====================== =================================================
``input_ids``               int64   [S]                    token ids
``logit_rows``              int64   [R]                    rows of this pass whose logits are wanted, at least 1
``seqlens_k``               int32   [1]                    rows in the cache after this pass, minus 1
``total_sequence_length``   int32   []                     rows in the cache after this pass
``past.{i}.key``/``value``  float32 [1, kv_heads, C, D]    the cache of layer i
=========================== ======= ====================== =================================================

Outputs: ``logits`` float32 [R, vocabulary], and ``present.{i}.key``/``value``, to be bound to the same buffers as
``past``: the cache is then updated in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import onnx_ir as ir

from edge_rt.export.graph.builder import GraphBuilder, Linears, Stream, as_output, graph_input
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.matmul_nbits import block_size, code_bits
from edge_rt.export.weights.portable import (
    codes_of,
    has_minimum,
    has_zeros,
    minimum_of,
    scale_of,
    weight_of,
    zeros_of,
)
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.manifest import ModelConfig

MICROSOFT: Final = "com.microsoft"
OPSETS: Final = {"": 21, MICROSOFT: 1}
ACCURACY_LEVEL: Final = {"int8": 4, "float": 1}
"""MatMulNBits' ``accuracy_level``: 4 computes with int8 activations, 1 with float32."""


class PortableBuilder(GraphBuilder):
    """Builds a graph from ONNX Runtime's operators.

    A sum of the residual stream is left to the next norm: one operator computes both.

    Args:
        layout: tensors of ``weights.bin``.
        config: dimensions of the model.
        activations: ``"int8"`` or ``"float"``.
    """

    def __init__(self, layout: WeightsLayout, config: ModelConfig, activations: str) -> None:
        super().__init__(layout, config, OPSETS)
        self._accuracy = ACCURACY_LEVEL[activations]
        self._seqlens_k = graph_input("seqlens_k", ir.DataType.INT32, [1])
        self._total = graph_input("total_sequence_length", ir.DataType.INT32, [])
        self._cache_shape: list[int | str] = [1, config.num_kv_heads, "capacity", config.head_dim]
        self._pasts = [
            graph_input(f"past.{i}.{kind}", ir.DataType.FLOAT, self._cache_shape)
            for i in range(config.num_layers)
            for kind in ("key", "value")
        ]
        self._presents: list[ir.Value] = []

    def _cache_inputs(self) -> Sequence[ir.Value]:
        return [self._seqlens_k, self._total, *self._pasts]

    def _more_outputs(self, logits: ir.Value) -> Sequence[ir.Value]:
        del logits
        return self._presents

    def linear(self, x: Stream, layers: Linears, name: str, *, norm: str) -> ir.Value:
        """Multiply RMSNorm of ``x`` by stacked matrices."""
        return self._product(self._norm(x, norm), layers, name)

    def gated(self, x: Stream, layers: Linears, name: str, *, norm: str) -> ir.Value:
        """Return ``silu(gate) * up`` of RMSNorm of ``x``."""
        gate_up = self._product(self._norm(x, norm), layers, f"{name}.gate_up")
        gate, up = self.node(
            "Split", [gate_up], [f"{name}.gate", f"{name}.up"], attributes={"axis": -1, "num_outputs": 2}
        )
        # QuickGelu with alpha 1 is x * sigmoid(x).
        (activated,) = self.node("QuickGelu", [gate], [f"{name}.silu"], domain=MICROSOFT, attributes={"alpha": 1.0})
        return self.node("Mul", [activated, up], [name])[0]

    def add_linear(self, x: Stream, y: ir.Value, layers: Linears, name: str) -> Stream:
        """Return the stream ``x`` plus ``y`` multiplied by stacked matrices."""
        return Stream(x.settled, added=self._product(y, layers, name))

    def _norm(self, x: Stream, weight: str) -> ir.Value:
        """Return RMSNorm of the stream; the operator also adds what was left to be added."""
        epsilon, name = self._config.rms_norm_eps, f"{weight}.rows"
        if x.added is None:
            attributes = {"axis": -1, "epsilon": epsilon}
            return self.node(
                "SimplifiedLayerNormalization", [x.value, self.stored(weight)], [name], attributes=attributes
            )[0]
        outputs = self.node(
            "SkipSimplifiedLayerNormalization",
            [x.value, x.added, self.stored(weight)],
            [name, "", "", f"{name}.sum"],
            domain=MICROSOFT,
            attributes={"epsilon": epsilon},
        )
        x.value, x.added = outputs[3], None
        return outputs[0]

    def _product(self, x: ir.Value, layers: Linears, name: str) -> ir.Value:
        parts = [self._matrix(x, layer, name if len(layers) == 1 else layer.name) for layer in layers]
        if len(parts) == 1:
            return parts[0]
        return self.node("Concat", parts, [name], attributes={"axis": -1})[0]

    def _matrix(self, x: ir.Value, layer: Linear, name: str) -> ir.Value:
        if not layer.is_quantised:
            weight = self._as_float(self.stored(weight_of(layer)), weight_of(layer))
            return self.node("Gemm", [x, weight], [name], attributes={"transB": 1})[0]
        product = f"{name}.product" if has_minimum(layer) else name
        zeros = [self.stored(zeros_of(layer))] if has_zeros(layer) else []
        (y,) = self.node(
            "MatMulNBits",
            [x, self.stored(codes_of(layer)), self.stored(scale_of(layer)), *zeros],
            [product],
            domain=MICROSOFT,
            attributes={
                "K": layer.in_features,
                "N": layer.out_features,
                "bits": code_bits(layer.form),
                "block_size": block_size(layer.form),
                "accuracy_level": self._accuracy,
            },
        )
        return self._add_minimum(x, layer, y, name) if has_minimum(layer) else y

    def _add_minimum(self, x: ir.Value, layer: Linear, y: ir.Value, name: str) -> ir.Value:
        """Add ``blocksum(x) @ minimum^T``, in float32 whatever the activations are."""
        size = block_size(layer.form)
        blocks = layer.in_features // size
        shape = self.constant(f"shape.blocks{blocks}x{size}", [0, blocks, size])
        (blocked,) = self.node("Reshape", [x, shape], [f"{name}.blocks"])
        (sums,) = self.node(
            "ReduceSum",
            [blocked, self.constant("axes.last", [-1])],
            [f"{name}.blocksum"],
            attributes={"keepdims": 0},
        )
        return self.node("Gemm", [sums, self.stored(minimum_of(layer)), y], [name], attributes={"transB": 1})[0]

    def _as_float(self, weight: ir.Value, name: str) -> ir.Value:
        if weight.dtype == ir.DataType.FLOAT:
            return weight
        return self.node("Cast", [weight], [f"{name}.float"], attributes={"to": int(ir.DataType.FLOAT)})[0]

    def embed(self, table: Linear, name: str) -> Stream:
        """Begin the stream with the embeddings of the input's tokens."""
        return Stream(self._gathered(self._ids, table, name))

    def _gathered(self, ids: ir.Value, layer: Linear, name: str) -> ir.Value:
        if not layer.is_quantised:
            (rows,) = self.node(
                "Gather", [self.stored(weight_of(layer)), ids], [f"{name}.rows"], attributes={"axis": 0}
            )
            return self.node("Cast", [rows], [name], attributes={"to": int(ir.DataType.FLOAT)})[0]
        slot = self._layout.slots[codes_of(layer)]
        flat = self.stored(codes_of(layer), (slot.shape[0], slot.shape[1] * slot.shape[2]))
        zeros = [self.stored(zeros_of(layer))] if has_zeros(layer) else []
        (rows,) = self.node(
            "GatherBlockQuantized",
            [flat, ids, self.stored(scale_of(layer)), *zeros],
            [f"{name}.scaled" if has_minimum(layer) else name],
            domain=MICROSOFT,
            attributes={
                "bits": code_bits(layer.form),
                "block_size": block_size(layer.form),
                "gather_axis": 0,
                "quantize_axis": 1,
            },
        )
        return self._add_gathered_minimum(ids, layer, rows, name) if has_minimum(layer) else rows

    def _add_gathered_minimum(self, ids: ir.Value, layer: Linear, rows: ir.Value, name: str) -> ir.Value:
        size = block_size(layer.form)
        blocks = layer.in_features // size
        stored = self.stored(minimum_of(layer))
        (minimum,) = self.node("Gather", [stored, ids], [f"{name}.minimum_rows"], attributes={"axis": 0})
        (column,) = self.node("Unsqueeze", [minimum, self.constant("axes.last", [-1])], [f"{name}.column"])
        shape = self.constant(f"shape.blocks{blocks}x{size}", [0, blocks, size])
        (blocked,) = self.node("Reshape", [rows, shape], [f"{name}.blocks"])
        (summed,) = self.node("Add", [blocked, column], [f"{name}.summed"])
        flat = self.constant(f"shape.row{layer.in_features}", [0, layer.in_features])
        return self.node("Reshape", [summed, flat], [name])[0]

    def attention(self, qkv: ir.Value, layer: int) -> ir.Value:
        """Rotate, append to the cache and attend."""
        config, window = self._config, self._config.layer_windows[layer]
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        (batched,) = self.node(
            "Reshape", [qkv, self.constant("shape.qkv", [1, -1, width])], [f"layer{layer}.qkv.batched"]
        )
        cache = self._pasts[2 * layer : 2 * layer + 2]
        lengths = (self._seqlens_k, self._total)
        outputs = self.node(
            "GroupQueryAttention",
            [batched, None, None, *cache, *lengths, self.stored("rope.cos"), self.stored("rope.sin")],
            [f"layer{layer}.attention.batched", f"present.{layer}.key", f"present.{layer}.value"],
            domain=MICROSOFT,
            attributes={
                "num_heads": config.num_heads,
                "kv_num_heads": config.num_kv_heads,
                "do_rotary": 1,
                "scale": config.head_dim**-0.5,
                **({"local_window_size": window} if window else {}),
            },
        )
        self._presents += [as_output(value, ir.DataType.FLOAT, self._cache_shape) for value in outputs[1:]]
        flat = self.constant("shape.attention", [-1, config.num_heads * config.head_dim])
        return self.node("Reshape", [outputs[0], flat], [f"layer{layer}.attention"])[0]
