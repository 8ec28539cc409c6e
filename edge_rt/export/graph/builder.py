"""Base of the graph builders of both op profiles: nodes, initializers, and the steps of a transformer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import onnx_ir as ir

from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.manifest import WEIGHTS_FILE, ModelConfig

IR_VERSION: Final = 10
Linears = Sequence[Linear]


@dataclass
class Stream:
    """The residual stream ``[rows, hidden_size]``.

    Attributes:
        value: name of the computed rows.
        added: name of a value that is still to be added to them, which a profile may leave to the next norm.
    """

    value: ir.Value
    added: ir.Value | None = None

    @property
    def settled(self) -> ir.Value:
        """The rows, when nothing is left to be added."""
        assert self.added is None, self.value.name
        return self.value


class LayerMatrices(Protocol):
    """Matrices of one layer."""

    @property
    def qkv(self) -> Linears:
        """Queries, keys and values, stacked."""

    @property
    def output(self) -> Linears:
        """Output of attention."""

    @property
    def gate_up(self) -> Linears:
        """Gate and up projections, in the profile's order."""

    @property
    def down(self) -> Linears:
        """Down projection."""


class GraphBuilder(ABC):
    """Adds nodes to one graph. Activations are float32 and two-dimensional, ``[rows, features]``.

    Args:
        layout: tensors of ``weights.bin``.
        config: dimensions of the model.
        opsets: domain -> version of its operators.
    """

    def __init__(self, layout: WeightsLayout, config: ModelConfig, opsets: Mapping[str, int]) -> None:
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}
        self._layout = layout
        self._config = config
        self._opsets = opsets
        self._ids = graph_input("input_ids", ir.DataType.INT64, ["rows"])
        self._logit_rows = graph_input("logit_rows", ir.DataType.INT64, ["logit_rows"])

    # --- the steps of a transformer ---

    @abstractmethod
    def embed(self, table: Linear, name: str) -> Stream:
        """Begin the stream with the embeddings of the input's tokens."""

    @abstractmethod
    def linear(self, x: Stream, layers: Linears, name: str, *, norm: str) -> ir.Value:
        """Multiply RMSNorm of ``x`` by stacked matrices: ``[rows, sum of out]``; ``norm`` names the norm's weight."""

    @abstractmethod
    def gated(self, x: Stream, layers: Linears, name: str, *, norm: str) -> ir.Value:
        """Return ``silu(gate) * up`` of RMSNorm of ``x``; ``layers`` are the profile's ``gate_up``."""

    @abstractmethod
    def add_linear(self, x: Stream, y: ir.Value, layers: Linears, name: str) -> Stream:
        """Return the stream ``x`` plus ``y`` multiplied by stacked matrices."""

    @abstractmethod
    def attention(self, qkv: ir.Value, layer: int) -> ir.Value:
        """Rotate ``qkv [rows, (heads + 2 kv_heads) * head_dim]``, append to the cache, attend."""

    def layer(self, x: Stream, weights: LayerMatrices, index: int) -> Stream:
        """Return the stream after layer ``index``."""
        qkv = self.linear(x, weights.qkv, f"layer{index}.qkv", norm=f"layer{index}.attention_norm")
        return self.finish_layer(x, self.attention(qkv, index), weights, index)

    def finish_layer(self, x: Stream, attended: ir.Value, weights: LayerMatrices, index: int) -> Stream:
        """Return the stream after the layer's steps that follow attention."""
        x = self.add_linear(x, attended, weights.output, f"layer{index}.output")
        hidden = self.gated(x, weights.gate_up, f"layer{index}.hidden", norm=f"layer{index}.mlp_norm")
        return self.add_linear(x, hidden, weights.down, f"layer{index}.down")

    @abstractmethod
    def _cache_inputs(self) -> Sequence[ir.Value]:
        """Return the inputs other than token ids and logit rows."""

    @abstractmethod
    def _more_outputs(self, logits: ir.Value) -> Sequence[ir.Value]:
        """Return the outputs other than the logits ``[logit_rows, vocabulary]``, adding the nodes that compute them."""

    def wanted(self, x: ir.Value, name: str) -> ir.Value:
        """Select the rows whose logits are needed."""
        return self.node("Gather", [x, self._logit_rows], [name], attributes={"axis": 0})[0]

    def model(self, logits: ir.Value, producer: str) -> ir.Model:
        """Return the finished model."""
        shape: list[int | str] = ["logit_rows", self._config.vocab_size]
        graph = ir.Graph(
            [self._ids, self._logit_rows, *self._cache_inputs()],
            [as_output(logits, ir.DataType.FLOAT, shape), *self._more_outputs(logits)],
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports=dict(self._opsets),
            name="model",
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name=producer)

    # --- parts ---

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[str],
        *,
        domain: str = "",
        attributes: Mapping[str, int | float | str] | None = None,
    ) -> tuple[ir.Value, ...]:
        """Add a node whose outputs carry the given names; an empty name leaves an optional output out."""
        values = [ir.Value(name=name) for name in outputs]
        name = f"{outputs[0]}/{op_type}"
        self._nodes.append(ir.node(op_type, inputs, dict(attributes or {}), domain=domain, outputs=values, name=name))
        return tuple(values)

    def stored(self, slot_name: str, shape: Sequence[int] | None = None) -> ir.Value:
        """Return an initializer over a slot of ``weights.bin``; ``shape`` views the same bytes in another shape."""
        slot = self._layout.slots[slot_name]
        name = slot_name if shape is None else f"{slot_name}.view"
        if name not in self._initializers:
            tensor = ir.ExternalTensor(
                WEIGHTS_FILE,
                slot.offset,
                slot.nbytes,
                # numpy has no bfloat16; nothing else is stored in unsigned words of 16 bits.
                ir.DataType.BFLOAT16 if slot.dtype == np.uint16 else ir.DataType.from_numpy(slot.dtype),
                shape=ir.Shape(shape or slot.shape),
                name=name,
            )
            self._initializers[name] = _initializer(name, tensor)
        return self._initializers[name]

    def constant(self, name: str, values: Sequence[int]) -> ir.Value:
        """Return a small int64 vector that is stored inside the graph."""
        if name not in self._initializers:
            self._initializers[name] = _initializer(name, ir.tensor(np.asarray(values, np.int64), name=name))
        return self._initializers[name]


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
