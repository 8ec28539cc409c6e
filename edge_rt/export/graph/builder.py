"""Base of the graph builders of both op profiles: nodes, initializers, and the steps of a transformer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.decoder import Decoder, rope_names
from edge_rt.package.layers import Attention
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.op_list import not_carried

IR_VERSION: Final = 10
Linears = Sequence[Linear]


@dataclass
class Residual:
    """The residual stream ``[rows, hidden_size]``.

    Attributes:
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
    def mixer_in(self) -> Linears:
        """Queries, keys and values, stacked; or what a short convolution or a state reads."""

    @property
    def mixer_out(self) -> Linears:
        """What follows attention, the convolution or the state."""

    @property
    def beside_in(self) -> Linears:
        """What a state space beside attention reads; of others nothing."""

    @property
    def beside_out(self) -> Linears:
        """What follows it."""

    @property
    def gate_up(self) -> Linears:
        """Gate and up projections, in the profile's order."""

    @property
    def down(self) -> Linears:
        """Down projection."""

    @property
    def shared_gate_up(self) -> Linears:
        """The same of a feed-forward beside experts; of others nothing."""

    @property
    def shared_down(self) -> Linears:
        """The same of its down projection."""

    @property
    def latent_in(self) -> Linears:
        """What makes latent rows of experts; of others nothing."""

    @property
    def latent_out(self) -> Linears:
        """What makes rows of the stream of them."""

    @property
    def per_layer(self) -> Linears:
        """The gate on a layer's further embedding, and what brings it back; empty: there is none."""


class GraphBuilder(ABC):
    """Adds nodes to one graph. Activations are float32 and two-dimensional, ``[rows, features]``."""

    def __init__(self, layout: WeightsLayout, decoder: Decoder, opsets: Mapping[str, int]) -> None:
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}
        self._layout = layout
        self._decoder = decoder
        self._opsets = opsets
        self._ids = graph_input("input_ids", ir.DataType.INT64, ["rows"])
        self._logit_rows = graph_input("logit_rows", ir.DataType.INT64, ["logit_rows"])
        self._rope_tables = {
            name: graph_input(name, ir.DataType.FLOAT, ["rope_positions", len(rope.frequencies)])
            for index, rope in enumerate(decoder.tables if decoder.loads_rope else ())
            for name in rope_names(index)
        }

    # --- the steps of a transformer ---

    @abstractmethod
    def embed(self, table: Linear, name: str) -> Residual:
        """Begin the stream with the scaled embeddings of the input's tokens."""

    def embed_layers(self, x: Residual, tables: Linears) -> None:  # noqa: ARG002 - of no model
        """Compute the further embeddings for each layer, given the scaled embeddings of the input's tokens."""
        raise not_carried(self._decoder, "a further embedding for each layer")

    @abstractmethod
    def linear(self, x: Residual, layers: Linears, name: str, *, norm: str | None) -> ir.Value:
        """Multiply ``x``, normed if there is a norm, by stacked matrices, and add biases: ``[rows, sum of out]``."""

    @abstractmethod
    def hidden(self, x: Residual, layers: Linears, name: str, *, norm: str | None, layer: int) -> ir.Value:
        """Return what a feed-forward has between its matrices; ``layers`` are the profile's ``gate_up``."""

    @abstractmethod
    def add_linear(self, x: Residual, y: ir.Value, layers: Linears, name: str, *, post_norm: str | None) -> Residual:
        """Return the stream ``x`` plus ``y`` multiplied by stacked matrices, normed if ``post_norm`` names a norm."""

    @abstractmethod
    def attention(self, qkv: ir.Value, layer: int) -> ir.Value:
        """Rotate ``qkv [rows, (heads + 2 kv_heads) * head_dim]``, append to the cache, attend."""

    def short_conv(self, bcx: ir.Value, layer: int) -> ir.Value:  # noqa: ARG002 - of no layer
        """Append ``b * x`` of ``bcx [rows, 3 * hidden_size]`` to the cache and convolve, between the gates b and c."""
        raise not_carried(self._decoder, "short convolutions")

    def gated_delta(self, x: Residual, layers: Linears, layer: int, *, norm: str | None) -> ir.Value:  # noqa: ARG002 - of no layer
        """Return what a delta rule gives for the norm of ``x``; ``layers``: what makes its inputs."""
        raise not_carried(self._decoder, "a gated delta rule")

    def state_space(self, x: Residual, layers: Linears, layer: int, *, norm: str | None) -> ir.Value:  # noqa: ARG002 - of no layer
        """Return what a state space gives for the norm of ``x``; ``layers``: the matrix that makes its inputs."""
        raise not_carried(self._decoder, "a state space")

    def experts(self, x: Residual, weights: LayerMatrices, layer: int) -> Residual:  # noqa: ARG002 - of no layer
        """Return the stream plus the weighted sum of the experts that a router chooses for each row."""
        raise not_carried(self._decoder, "experts")

    @abstractmethod
    def logits(self, x: Residual, head: Linear) -> ir.Value:
        """Return the logits of a stream."""

    def layer(self, x: Residual, weights: LayerMatrices, index: int) -> Residual:
        """Return the stream after layer ``index``."""
        return self.finish_layer(x, self.mixed(x, weights, index), weights, index)

    def last_layer(self, x: Residual, weights: LayerMatrices, index: int) -> Residual:
        """Return the stream after the model's last layer, of the rows that need logits."""
        # Behind the last mixer rows are independent of each other: only those that need logits continue.
        names = ("attention.wanted", "beside.wanted")
        mixed = [self.wanted(rows, name) for rows, name in zip(self.mixed(x, weights, index), names, strict=False)]
        return self.finish_layer(Residual(self.wanted(x.settled, "residual.wanted")), mixed, weights, index)

    def mixed(self, x: Residual, weights: LayerMatrices, index: int) -> Sequence[ir.Value]:
        """Return what a layer's mixers give, before the matrices behind them."""
        described, norm = self._decoder.layers[index], self.found(f"layer{index}.attention_norm")
        if not described.has_mixer:
            return ()
        if described.gated_delta is not None:
            return (self.gated_delta(x, weights.mixer_in, index, norm=norm),)
        if described.attention is None and described.short_conv is None:
            return (self.state_space(x, weights.mixer_in, index, norm=norm),)
        is_conv = described.short_conv is not None
        rows = self.linear(x, weights.mixer_in, f"layer{index}.{'conv_in' if is_conv else 'qkv'}", norm=norm)
        mixed = self.short_conv(rows, index) if is_conv else self.attention(rows, index)
        if described.state_space is None:
            return (mixed,)
        return mixed, self.state_space(x, weights.beside_in, index, norm=norm)

    def finish_layer(self, x: Residual, mixed: Sequence[ir.Value], weights: LayerMatrices, index: int) -> Residual:
        """Return the stream after the layer's steps that follow its mixers."""
        name, described = f"layer{index}", self._decoder.layers[index]
        steps = list(zip(mixed, (weights.mixer_out, weights.beside_out), ("output", "beside"), strict=False))
        for number, (rows, matrices, output) in enumerate(steps, start=1):
            # Behind the last step of a layer the stream has one name, whatever the step is.
            output = output if described.feed_forwards or number < len(steps) else "down"
            x = self.add_linear(
                x, rows, matrices, f"{name}.{output}", post_norm=self.found(f"{name}.attention_post_norm")
            )
        if not described.feed_forwards:
            return x
        if described.experts is not None:
            return self.experts(x, weights, index)
        hidden = self.hidden(x, weights.gate_up, f"{name}.hidden", norm=self.found(f"{name}.mlp_norm"), layer=index)
        return self.add_linear(x, hidden, weights.down, f"{name}.down", post_norm=self.found(f"{name}.mlp_post_norm"))

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
        shape: list[int | str] = ["logit_rows", self._decoder.vocab_size]
        return self._finished([as_output(logits, ir.DataType.FLOAT, shape), *self._more_outputs(logits)], producer)

    def model_of_states(self, states: ir.Value, producer: str) -> ir.Model:
        """Return the finished model that gives states instead of logits."""
        return self._finished(
            [as_output(states, ir.DataType.FLOAT, ["logit_rows", self._decoder.hidden_size])], producer
        )

    def _finished(self, outputs: Sequence[ir.Value], producer: str) -> ir.Model:
        graph = ir.Graph(
            [self._ids, self._logit_rows, *self._cache_inputs(), *self._rope_tables.values()],
            outputs,
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports=dict(self._opsets),
            name="model",
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name=producer)

    # --- parts ---

    def found(self, slot_name: str) -> str | None:
        """Return the name of a slot if ``weights.bin`` has it, else None."""
        return slot_name if slot_name in self._layout.slots else None

    def optional(self, slot_name: str | None) -> ir.Value | None:
        """Return an initializer over a slot; None if ``weights.bin`` does not have it."""
        return self.stored(slot_name) if slot_name is not None and slot_name in self._layout.slots else None

    def rope_of(self, layer: int) -> list[ir.Value]:
        """Return the cosines and sines of a layer; of one without rotation those of the first."""
        names = rope_names(self.attention_of(layer).rope or 0)
        return [self._rope_tables[name] if name in self._rope_tables else self.stored(name) for name in names]

    def attention_of(self, layer: int) -> Attention:
        """Return the description of a layer's attention."""
        return self._decoder.attention_of(layer)

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

    def beginning(self, slot_name: str, count: int) -> ir.Value:
        """Return an initializer over the first ``count`` of a slot's first axis."""
        slot, name = self._layout.slots[slot_name], f"{slot_name}.first"
        if name not in self._initializers:
            shape = ir.Shape((count, *slot.shape[1:]))
            kind = ir.DataType.from_numpy(slot.dtype)
            tensor = ir.ExternalTensor(WEIGHTS_FILE, slot.offset, count * slot.row_bytes, kind, shape=shape, name=name)
            self._initializers[name] = _initializer(name, tensor)
        return self._initializers[name]

    def constant(self, name: str, values: Sequence[int] | float) -> ir.Value:
        """Return a small int64 vector or number, or a float32 number, that is stored inside the graph."""
        if name not in self._initializers:
            dtype = np.float32 if isinstance(values, float) else np.int64
            self._initializers[name] = _initializer(name, ir.tensor(np.asarray(values, dtype), name=name))
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
