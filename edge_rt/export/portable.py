"""The portable op profile: building blocks of a graph out of ONNX Runtime's own operators.

Activations are float32 and two-dimensional, ``[rows, features]``. ``com.microsoft`` operators used:
MatMulNBits, GatherBlockQuantized, GroupQueryAttention, SkipSimplifiedLayerNormalization, QuickGelu.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from edge_rt.export.blocks import BLOCK, CODE_BITS
from edge_rt.export.linear import Linear
from edge_rt.export.weights import WeightsLayout
from edge_rt.package import WEIGHTS_FILE, ModelConfig

MICROSOFT: Final = "com.microsoft"
OPSETS: Final = {"": 21, MICROSOFT: 1}
IR_VERSION: Final = 10
ACCURACY_LEVEL: Final = {"int8": 4, "float": 1}
"""MatMulNBits' ``accuracy_level``: 4 computes with int8 activations, 1 with float32."""


class PortableBuilder:
    """Adds nodes to one graph; every method returns the value it computes.

    Args:
        layout: tensors of ``weights.bin``.
        config: numbers of the model.
        activations: ``"int8"`` or ``"float"``.
    """

    def __init__(self, layout: WeightsLayout, config: ModelConfig, activations: str) -> None:
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self._layout = layout
        self._config = config
        self._accuracy = ACCURACY_LEVEL[activations]

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[str],
        *,
        domain: str = "",
        attributes: dict[str, int | float | str] | None = None,
    ) -> tuple[ir.Value, ...]:
        """Add a node whose outputs carry the given names; an empty name leaves an optional output out."""
        values = [ir.Value(name=name) for name in outputs]
        self.nodes.append(
            ir.node(op_type, inputs, attributes or {}, domain=domain, outputs=values, name=f"{outputs[0]}/{op_type}")
        )
        return tuple(values)

    def stored(self, slot_name: str, shape: Sequence[int] | None = None) -> ir.Value:
        """Return an initializer over a slot of ``weights.bin``; ``shape`` views the same bytes in another shape."""
        slot = self._layout.slots[slot_name]
        name = slot_name if shape is None else f"{slot_name}.view"
        if name not in self.initializers:
            tensor = ir.ExternalTensor(
                WEIGHTS_FILE,
                slot.offset,
                slot.nbytes,
                ir.DataType.from_numpy(slot.dtype),
                shape=ir.Shape(shape or slot.shape),
                name=name,
            )
            self.initializers[name] = _initializer(name, tensor)
        return self.initializers[name]

    def constant(self, name: str, values: Sequence[int]) -> ir.Value:
        """Return a small int64 vector that is kept inside the graph."""
        if name not in self.initializers:
            self.initializers[name] = _initializer(name, ir.tensor(np.asarray(values, np.int64), name=name))
        return self.initializers[name]

    def linear(self, x: ir.Value, layers: Sequence[Linear], name: str) -> ir.Value:
        """Multiply ``x [rows, in]`` by stacked matrices: ``[rows, sum of out]``."""
        parts = [self._matrix(x, layer, name if len(layers) == 1 else layer.name) for layer in layers]
        if len(parts) == 1:
            return parts[0]
        return self.node("Concat", parts, [name], attributes={"axis": -1})[0]

    def _matrix(self, x: ir.Value, layer: Linear, name: str) -> ir.Value:
        if not layer.is_quantised:
            weight = self._as_float(self.stored(layer.weight), layer.weight)
            return self.node("Gemm", [x, weight], [name], attributes={"transB": 1})[0]
        product = f"{name}.product" if layer.has_minimum else name
        (y,) = self.node(
            "MatMulNBits",
            [x, self.stored(layer.codes), self.stored(layer.scale)],
            [product],
            domain=MICROSOFT,
            attributes={
                "K": layer.in_features,
                "N": layer.out_features,
                "bits": CODE_BITS[layer.type_name],
                "block_size": BLOCK,
                "accuracy_level": self._accuracy,
            },
        )
        return self._add_minimum(x, layer, y, name) if layer.has_minimum else y

    def _add_minimum(self, x: ir.Value, layer: Linear, y: ir.Value, name: str) -> ir.Value:
        """Add ``blocksum(x) @ minimum^T``, in float32 whatever the activations are."""
        blocks = layer.in_features // BLOCK
        shape = self.constant(f"shape.blocks{blocks}", [0, blocks, BLOCK])
        (blocked,) = self.node("Reshape", [x, shape], [f"{name}.blocks"])
        (sums,) = self.node(
            "ReduceSum",
            [blocked, self.constant("axes.last", [-1])],
            [f"{name}.blocksum"],
            attributes={"keepdims": 0},
        )
        return self.node("Gemm", [sums, self.stored(layer.minimum), y], [name], attributes={"transB": 1})[0]

    def _as_float(self, weight: ir.Value, name: str) -> ir.Value:
        if weight.dtype != ir.DataType.FLOAT16:
            return weight
        return self.node("Cast", [weight], [f"{name}.float"], attributes={"to": int(ir.DataType.FLOAT)})[0]

    def embed(self, ids: ir.Value, layer: Linear, name: str) -> ir.Value:
        """Gather rows ``ids [rows]`` (int64) of a matrix: float32 ``[rows, in_features]``."""
        if not layer.is_quantised:
            (rows,) = self.node("Gather", [self.stored(layer.weight), ids], [f"{name}.rows"], attributes={"axis": 0})
            return self.node("Cast", [rows], [name], attributes={"to": int(ir.DataType.FLOAT)})[0]
        slot = self._layout.slots[layer.codes]
        flat = self.stored(layer.codes, (slot.shape[0], slot.shape[1] * slot.shape[2]))
        (rows,) = self.node(
            "GatherBlockQuantized",
            [flat, ids, self.stored(layer.scale)],
            [f"{name}.scaled" if layer.has_minimum else name],
            domain=MICROSOFT,
            attributes={
                "bits": CODE_BITS[layer.type_name],
                "block_size": BLOCK,
                "gather_axis": 0,
                "quantize_axis": 1,
            },
        )
        return self._add_gathered_minimum(ids, layer, rows, name) if layer.has_minimum else rows

    def _add_gathered_minimum(self, ids: ir.Value, layer: Linear, rows: ir.Value, name: str) -> ir.Value:
        blocks = layer.in_features // BLOCK
        stored = self.stored(layer.minimum)
        (minimum,) = self.node("Gather", [stored, ids], [f"{name}.minimum_rows"], attributes={"axis": 0})
        (column,) = self.node("Unsqueeze", [minimum, self.constant("axes.last", [-1])], [f"{name}.column"])
        shape = self.constant(f"shape.blocks{blocks}", [0, blocks, BLOCK])
        (blocked,) = self.node("Reshape", [rows, shape], [f"{name}.blocks"])
        (summed,) = self.node("Add", [blocked, column], [f"{name}.summed"])
        flat = self.constant(f"shape.row{layer.in_features}", [0, layer.in_features])
        return self.node("Reshape", [summed, flat], [name])[0]

    def norm(self, x: ir.Value, weight: str, name: str) -> ir.Value:
        """RMSNorm of ``x [rows, features]``."""
        return self.node(
            "SimplifiedLayerNormalization",
            [x, self.stored(weight)],
            [name],
            attributes={"axis": -1, "epsilon": self._config.rms_norm_eps},
        )[0]

    def add_norm(self, x: ir.Value, residual: ir.Value, weight: str, name: str) -> tuple[ir.Value, ir.Value]:
        """Return RMSNorm of ``x + residual``, and the sum itself."""
        outputs = self.node(
            "SkipSimplifiedLayerNormalization",
            [x, residual, self.stored(weight)],
            [name, "", "", f"{name}.sum"],
            domain=MICROSOFT,
            attributes={"epsilon": self._config.rms_norm_eps},
        )
        return outputs[0], outputs[3]

    def attention(
        self, qkv: ir.Value, cache: tuple[ir.Value, ir.Value], lengths: tuple[ir.Value, ir.Value], layer: int
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Rotate, append to the cache and attend.

        Args:
            qkv: ``[rows, (heads + 2 kv_heads) * head_dim]``.
            cache: keys and values, ``[1, kv_heads, capacity, head_dim]``.
            lengths: ``seqlens_k`` and ``total_sequence_length`` of GroupQueryAttention.
            layer: index of the layer.

        Returns:
            Attention result ``[rows, heads * head_dim]``, keys and values (bind them to the same buffers as ``cache``).
        """
        config = self._config
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        (batched,) = self.node(
            "Reshape", [qkv, self.constant("shape.qkv", [1, -1, width])], [f"layer{layer}.qkv.batched"]
        )
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
            },
        )
        flat = self.constant("shape.attention", [-1, config.num_heads * config.head_dim])
        (result,) = self.node("Reshape", [outputs[0], flat], [f"layer{layer}.attention"])
        return result, outputs[1], outputs[2]

    def swiglu(self, gate_up: ir.Value, name: str) -> ir.Value:
        """Return ``silu(gate) * up`` for ``gate_up [rows, 2 * features]``."""
        gate, up = self.node(
            "Split", [gate_up], [f"{name}.gate", f"{name}.up"], attributes={"axis": -1, "num_outputs": 2}
        )
        # QuickGelu with alpha 1 is x * sigmoid(x).
        (activated,) = self.node("QuickGelu", [gate], [f"{name}.silu"], domain=MICROSOFT, attributes={"alpha": 1.0})
        return self.node("Mul", [activated, up], [name])[0]

    def rows(self, x: ir.Value, indices: ir.Value, name: str) -> ir.Value:
        """Take rows ``indices [n]`` (int64) of ``x``."""
        return self.node("Gather", [x, indices], [name], attributes={"axis": 0})[0]

    def model(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], producer: str) -> ir.Model:
        """Return the finished model."""
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self.nodes,
            initializers=list(self.initializers.values()),
            opset_imports=dict(OPSETS),
            name="model",
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name=producer)


def _initializer(name: str, tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(
        name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
    )


def graph_input(name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
    """Return an input of the graph."""
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def as_output(value: ir.Value, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
    """Give a value the type and shape that a graph output must state, and return it."""
    value.shape, value.type = ir.Shape(shape), ir.TensorType(dtype)
    return value
