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
``past.{i}.key``/``value``  float32 [1, kv_heads, C, D]    the cache of layer i; D: size of a head, padded
=========================== ======= ====================== =================================================

Outputs: ``logits`` float32 [R, vocabulary], and ``present.{i}.key``/``value``, to be bound to the same buffers as
``past``: the cache is then updated in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge_rt.export.graph.builder import (
    GraphBuilder,
    Linears,
    Residual,
    as_output,
    graph_input,
)
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.portable import (
    block_size,
    code_bits,
    codes_of,
    has_minimum,
    has_zeros,
    minimum_of,
    scale_of,
    weight_of,
    zeros_of,
)
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.decoder import Decoder
from edge_rt.package.kv_formats import portable_head_dim
from edge_rt.package.op_list import not_carried

MICROSOFT: Final = "com.microsoft"
OPSETS: Final = {"": 21, MICROSOFT: 1}
ROTATED_STEP: Final = 16
"""GroupQueryAttention rotates heads whose size is a multiple of it."""
ACCURACY_LEVEL: Final = {"int8": 4, "float": 1}
"""MatMulNBits' ``accuracy_level``: 4 computes with int8 activations, 1 with float32."""


class PortableBuilder(GraphBuilder):
    """Builds a graph from ONNX Runtime's operators; a sum is left to the next norm, as one operator computes both."""

    def __init__(self, layout: WeightsLayout, decoder: Decoder, activations: str) -> None:
        super().__init__(layout, decoder, OPSETS)
        self._accuracy = ACCURACY_LEVEL[activations]
        self._seqlens_k = graph_input("seqlens_k", ir.DataType.INT32, [1])
        self._total = graph_input("total_sequence_length", ir.DataType.INT32, [])
        self._head_dim = portable_head_dim(decoder.head_dim)
        self._cache_shape: list[int | str] = [1, decoder.num_kv_heads, "capacity", self._head_dim]
        self._pasts = [
            graph_input(f"past.{i}.{kind}", ir.DataType.FLOAT, self._cache_shape)
            for i in range(decoder.num_layers)
            for kind in ("key", "value")
        ]
        self._presents: list[ir.Value] = []
        self._row_positions: ir.Value | None = None

    def _cache_inputs(self) -> Sequence[ir.Value]:
        return [self._seqlens_k, self._total, *self._pasts]

    def _more_outputs(self, logits: ir.Value) -> Sequence[ir.Value]:
        del logits
        return self._presents

    def linear(self, x: Residual, layers: Linears, name: str, *, norm: str | None) -> ir.Value:
        """Multiply the norm of ``x`` by stacked matrices, and add biases."""
        return self._product(self._norm(x, norm), layers, name)

    def logits(self, x: Residual, head: Linear) -> ir.Value:
        """Return the logits of a stream."""
        scale, cap = self._decoder.logit_scale, self._decoder.logit_softcap
        # The last step gives the output its name.
        scaled = "logits.scaled" if cap else "logits"
        found = self._product(self._norm(x, "final_norm"), [head], "logits.product" if scale != 1.0 else scaled)
        found = self._scaled(found, scale, scaled)
        if not cap:
            return found
        (narrow,) = self.node("Div", [found, self._number(cap)], ["logits.narrow"])
        (bent,) = self.node("Tanh", [narrow], ["logits.bent"])
        return self._scaled(bent, cap, "logits")

    def hidden(self, x: Residual, layers: Linears, name: str, *, norm: str | None, layer: int) -> ir.Value:
        """Return what a feed-forward has between its matrices."""
        feed_forward = self._decoder.feed_forward_of(layer)
        product = self._product(self._norm(x, norm), layers, f"{name}.gate_up")
        if not feed_forward.is_gated:
            return self._activated(product, feed_forward.activation, name)
        gate, up = self.node(
            "Split", [product], [f"{name}.gate", f"{name}.up"], attributes={"axis": -1, "num_outputs": 2}
        )
        activated = self._activated(gate, feed_forward.activation, f"{name}.{feed_forward.activation}")
        return self.node("Mul", [activated, up], [name])[0]

    def _activated(self, x: ir.Value, activation: str, name: str) -> ir.Value:
        if activation == "silu":
            # QuickGelu with alpha 1 is x * sigmoid(x).
            return self.node("QuickGelu", [x], [name], domain=MICROSOFT, attributes={"alpha": 1.0})[0]
        if activation == "gelu":
            return self.node("Gelu", [x], [name], attributes={"approximate": "tanh"})[0]
        (positive,) = self.node("Relu", [x], [f"{name}.positive"])
        return self.node("Mul", [positive, positive], [name])[0]

    def add_linear(self, x: Residual, y: ir.Value, layers: Linears, name: str, *, post_norm: str | None) -> Residual:
        """Return the stream ``x`` plus ``y`` multiplied by stacked matrices."""
        product = self._product(y, layers, name)
        if post_norm is not None:
            product = self._normed(product, post_norm, f"{post_norm}.rows")
        return Residual(x.settled, added=self._scaled(product, self._decoder.residual_scale, f"{name}.scaled"))

    def _scaled(self, x: ir.Value, factor: float, name: str = "") -> ir.Value:
        """Return ``x`` times a number; ``x`` itself if that is 1."""
        if factor == 1.0:
            return x
        return self.node("Mul", [x, self._number(factor)], [name or f"{x.name}.scaled"])[0]

    def _norm(self, x: Residual, weight: str | None) -> ir.Value:
        """Return the norm of the stream; the operator of RMSNorm also adds what was left to be added."""
        if weight is None or self._decoder.norm != "rms":
            if x.added is not None:
                (x.value,) = self.node("Add", [x.value, x.added], [f"{x.added.name}.sum"])
                x.added = None
            return x.value if weight is None else self._normed(x.value, weight, f"{weight}.rows")
        if x.added is None:
            return self._normed(x.value, weight, f"{weight}.rows")
        outputs = self.node(
            "SkipSimplifiedLayerNormalization",
            [x.value, x.added, self.stored(weight)],
            [f"{weight}.rows", "", "", f"{weight}.rows.sum"],
            domain=MICROSOFT,
            attributes={"epsilon": self._decoder.norm_epsilon},
        )
        x.value, x.added = outputs[3], None
        return outputs[0]

    def _normed(self, x: ir.Value, weight: str, name: str, *, is_rms: bool | None = None) -> ir.Value:
        """Return the norm of rows."""
        is_rms = self._decoder.norm == "rms" if is_rms is None else is_rms
        attributes = {"axis": -1, "epsilon": self._decoder.norm_epsilon}
        inputs = [x, self.stored(weight)]
        if is_rms:
            return self.node("SimplifiedLayerNormalization", inputs, [name], attributes=attributes)[0]
        if (bias := self.optional(f"{weight}_bias")) is not None:
            inputs.append(bias)
        return self.node("LayerNormalization", inputs, [name], attributes=attributes)[0]

    def _product(self, x: ir.Value, layers: Linears, name: str) -> ir.Value:
        parts = [self._matrix(x, layer, name if len(layers) == 1 else layer.name) for layer in layers]
        if len(parts) == 1:
            return parts[0]
        return self.node("Concat", parts, [name], attributes={"axis": -1})[0]

    def _matrix(self, x: ir.Value, layer: Linear, name: str) -> ir.Value:
        bias = self.optional(f"{layer.name}.bias")
        product = self._weighted(x, layer, name if bias is None else f"{name}.unbiased")
        return product if bias is None else self.node("Add", [product, bias], [name])[0]

    def _weighted(self, x: ir.Value, layer: Linear, name: str) -> ir.Value:
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

    def embed(self, table: Linear, name: str) -> Residual:
        """Begin the stream with the scaled embeddings of the input's tokens."""
        scale = self._decoder.embedding_scale
        rows = self._gathered(self._ids, table, name if scale == 1.0 else f"{name}.unscaled")
        return Residual(self._scaled(rows, scale, name))

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
        attention = self.attention_of(layer)
        if attention.has_sinks:
            raise not_carried(self._decoder, "sinks of attention, which the portable op profile does not have")
        width = attention.query_size + 2 * attention.key_size
        name = f"layer{layer}"
        rotates_itself = self._is_rotated_by_attention(layer)
        batched: list[ir.Value | None]
        is_padded = attention.head_dim != self._head_dim
        if attention.qk_norm == "none" and rotates_itself and attention.query_scaling is None and not is_padded:
            shape = self.constant("shape.qkv", [1, -1, width])
            batched = [*self.node("Reshape", [qkv, shape], [f"{name}.qkv.batched"]), None, None]
        else:
            batched = self._prepared_heads(qkv, layer, rotates=not rotates_itself)
        cache = self._pasts[2 * layer : 2 * layer + 2]
        lengths = (self._seqlens_k, self._total)
        tables = self.rope_of(layer) if rotates_itself and attention.rope is not None else []
        outputs = self.node(
            "GroupQueryAttention",
            [*batched, *cache, *lengths, *tables],
            [f"{name}.attention.batched", f"present.{layer}.key", f"present.{layer}.value"],
            domain=MICROSOFT,
            attributes={
                "num_heads": attention.num_heads,
                "kv_num_heads": attention.num_kv_heads,
                "do_rotary": int(bool(tables)),
                "scale": attention.scale,
                **({"local_window_size": attention.window} if attention.window else {}),
                **({"softcap": attention.softcap} if attention.softcap else {}),
            },
        )
        self._presents += [as_output(value, ir.DataType.FLOAT, self._cache_shape) for value in outputs[1:]]
        flat = self.constant("shape.attention", [-1, attention.query_size])
        attended = outputs[0]
        if is_padded:
            heads = self.constant("shape.padded.heads", [-1, attention.num_heads, self._head_dim])
            (padded,) = self.node("Reshape", [attended, heads], [f"{name}.attention.padded"])
            begin, end = self.constant("axes.first", [0]), self.constant("head.end", [attention.head_dim])
            last = self.constant("axes.last", [-1])
            (attended,) = self.node("Slice", [padded, begin, end, last], [f"{name}.attention.heads"])
        return self.node("Reshape", [attended, flat], [f"{name}.attention"])[0]

    def _is_rotated_by_attention(self, layer: int) -> bool:
        """Return whether GroupQueryAttention rotates: whole heads, of a size that it takes, last of all."""
        attention = self.attention_of(layer)
        if attention.rope is None:
            return True
        is_whole = self._decoder.ropes[attention.rope].dimensions == attention.head_dim
        is_whole = is_whole and attention.head_dim % ROTATED_STEP == 0
        # A factor on queries may come before the rotation as well as behind it.
        return is_whole and not attention.norm_after_rope

    def _prepared_heads(self, qkv: ir.Value, layer: int, *, rotates: bool) -> list[ir.Value | None]:
        """Return queries and keys, normed, rotated unless attention does, scaled; and values: ``[1, rows, n]``."""
        attention, name = self.attention_of(layer), f"layer{layer}"
        sizes = {"q": attention.query_size, "k": attention.key_size, "v": attention.key_size}
        split = self.constant("split.qkv", list(sizes.values()))
        parts = self.node("Split", [qkv, split], [f"{name}.{part}" for part in sizes], attributes={"axis": -1})
        found: list[ir.Value | None] = []
        for (kind, size), part in zip(sizes.items(), parts, strict=True):
            steps = (
                [] if kind == "v" else [self._head_normed] * (attention.qk_norm != "none") + [self._rotated] * rotates
            )
            if attention.norm_after_rope:
                steps.reverse()
            rows = part
            for step in steps:
                rows = step(rows, kind, layer)
            if kind == "q" and attention.query_scaling is not None:
                (growth,) = self.node("Gather", [self.stored("query_scale"), self._positions()], [f"{name}.growth"])
                (column,) = self.node(
                    "Unsqueeze", [growth, self.constant("axes.last", [-1])], [f"{name}.growth.column"]
                )
                (rows,) = self.node("Mul", [rows, column], [f"{name}.q.grown"])
            shape = self.constant(f"shape.{kind}", [1, -1, size])
            if attention.head_dim != self._head_dim:
                rows = self._padded(rows, f"{name}.{kind}")
                whole = size // attention.head_dim * self._head_dim
                shape = self.constant(f"shape.{kind}.padded", [1, -1, whole])
            found += self.node("Reshape", [rows, shape], [f"{name}.{kind}.batched"])
        return found

    def _padded(self, rows: ir.Value, name: str) -> ir.Value:
        """Return heads ``[rows * heads, padded size]`` with zeros behind their elements."""
        head_dim = self._decoder.head_dim
        (heads,) = self.node("Reshape", [rows, self.constant("shape.heads", [-1, head_dim])], [f"{name}.unpadded"])
        missing = self.constant("head.padding", [0, 0, 0, self._head_dim - head_dim])
        return self.node("Pad", [heads, missing], [f"{name}.padded"])[0]

    def _head_normed(self, rows: ir.Value, kind: str, layer: int) -> ir.Value:
        """Return queries or keys ``[rows, features]`` normed, by heads or as whole rows."""
        attention, name = self.attention_of(layer), f"layer{layer}.{kind}"
        if attention.qk_norm == "head":
            heads = self.constant("shape.heads", [-1, attention.head_dim])
            (rows,) = self.node("Reshape", [rows, heads], [f"{name}.heads"])
        rows = self._normed(rows, f"{name}_norm", f"{name}.normed", is_rms=True)
        if attention.qk_norm == "head":
            size = attention.query_size if kind == "q" else attention.key_size
            flat = self.constant(f"shape.{kind}.rows", [-1, size])
            (rows,) = self.node("Reshape", [rows, flat], [f"{name}.normed.rows"])
        return rows

    def _rotated(self, rows: ir.Value, kind: str, layer: int) -> ir.Value:
        """Return queries or keys ``[rows, features]`` rotated."""
        attention, name = self.attention_of(layer), f"layer{layer}.{kind}"
        size = attention.query_size if kind == "q" else attention.key_size
        (batched,) = self.node("Reshape", [rows, self.constant(f"shape.{kind}", [1, -1, size])], [f"{name}.whole"])
        (positions,) = self.node(
            "Unsqueeze", [self._positions(), self.constant("axes.first", [0])], [f"{name}.positions"]
        )
        rotated = self._decoder.ropes[attention.rope or 0].dimensions
        (turned,) = self.node(
            "RotaryEmbedding",
            [batched, positions, *self.rope_of(layer)],
            [f"{name}.turned"],
            domain=MICROSOFT,
            attributes={
                "num_heads": attention.num_heads if kind == "q" else attention.num_kv_heads,
                **({"rotary_embedding_dim": rotated} if rotated != attention.head_dim else {}),
            },
        )
        flat = self.constant(f"shape.{kind}.rows", [-1, size])
        return self.node("Reshape", [turned, flat], [f"{name}.rotated"])[0]

    def _positions(self) -> ir.Value:
        """Return the positions of the pass's rows, int64 ``[rows]``."""
        if self._row_positions is None:
            to_int64 = {"to": int(ir.DataType.INT64)}
            (total,) = self.node("Cast", [self._total], ["positions.end"], attributes=to_int64)
            (size,) = self.node("Size", [self._ids], ["positions.count"])
            (first,) = self.node("Sub", [total, size], ["positions.begin"])
            (self._row_positions,) = self.node("Range", [first, total, self.constant("one", 1)], ["positions"])
        return self._row_positions

    def _number(self, value: float) -> ir.Value:
        """Return a float32 number that is stored inside the graph."""
        return self.constant(f"number.{value!r}", value)
