"""A decoder's matrices and vectors: which tensors of the checkpoint they consist of, and where they lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.export.decoder.tensors import kv_kinds
from edge_rt.export.graph.ahead import AheadBuilder
from edge_rt.export.graph.builder import GraphBuilder, Residual
from edge_rt.export.graph.native import NativeBuilder
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.op_profile import OpProfile
from edge_rt.export.sources.compound import CompoundTensor
from edge_rt.export.sources.gguf_types import TensorInfo
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.source import Source
from edge_rt.export.weights.blocks import float_rows, float_values, read_rows, unpermuted_rows
from edge_rt.export.weights.linear import Linear, Part
from edge_rt.export.weights.native import place_key_constants
from edge_rt.export.weights.tile_formats import TILE_ROWS
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout
from edge_rt.package.ahead import with_block
from edge_rt.package.decoder import Decoder, Rope, rope_names
from edge_rt.package.layers import FeedForward, QueryScaling

ROPE_PIECE_ROWS = 4096
_ROUTERS: Final = {
    "ffn_gate_inp.weight": "router",
    "ffn_gate_inp.bias": "router_bias",
    "exp_probs_b.bias": "choice_bias",
    "ffn_gate_inp_shexp.weight": "shared_gate",
    "ffn_gate_inp.scale": "router_norm",
    "ffn_down_exps.scale": "expert_scale",
}
"""Tensors of a layer with experts -> what they are called in the package."""
_DELTA_IN: Final = {"attn_qkv": "qkv", "attn_gate": "z", "ssm_beta": "b", "ssm_alpha": "a"}
"""Matrices before a delta rule -> what their products are in its operator."""
_OF_STATES: Final = {
    "ssm_conv1d.weight": "conv",
    "ssm_conv1d.bias": "conv_bias",
    "ssm_a.weight": "rates",
    "ssm_d.weight": "skip",
    "ssm_dt.bias": "dt_bias",
    "ssm_norm.weight": "state_norm",
}
"""Tensors of a layer with a state -> what they are called in the package."""

_AHEAD_NORMS: Final = {"enorm": "token_norm", "hnorm": "state_norm", "shared_head_norm": "output_norm"}
"""Norms of a block that predicts further ahead -> what they are called in the package."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Vector:
    """A vector of the package, or a matrix that nobody quantises.

    Attributes:
        is_turned: whether it is a convolution's, whose taps lie one behind the other.
        is_log: whether the package has minus the exponentials of the checkpoint's numbers.
        factor: on all elements.
        parts: tensors of the checkpoint that follow each other in it.
        orders: for each of them int64 ``[elements]``, the order of its elements; or None for the file's.
        alternates: whether elements of the two parts of a pair take turns, 16 of each; pairs follow each other.
    """

    parts: tuple[TensorInfo, ...]
    orders: tuple[Array | None, ...] = (None,)
    offset: float = 0.0
    alternates: bool = False
    is_turned: bool = False
    is_log: bool = False
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the package."""
        first = self.parts[0].shape
        if len(first) > 1:
            return first if self.is_turned else first[::-1]
        return (sum(part.elements for part in self.parts),)

    def read(self, source: TensorReader) -> Array:
        """Return the array, float32."""
        found = []
        for part, order in zip(self.parts, self.orders, strict=True):
            rows = _floats_of(source, part)
            values = (rows.T if self.is_turned else rows).reshape(-1)
            found.append(values if order is None else values[order])
        if self.alternates:
            pairs = zip(found[::2], found[1::2], strict=True)
            tiles = [np.stack([values.reshape(-1, TILE_ROWS) for values in pair], axis=1) for pair in pairs]
            joined: Array = np.concatenate(tiles).reshape(-1)
        else:
            joined = np.concatenate(found)
        joined = joined.reshape(self.shape)
        if self.is_log:
            return (-np.exp(joined.astype(np.float64))).astype(np.float32)
        joined = joined + np.float32(self.offset) if self.offset else joined
        return joined * np.float32(self.factor) if self.factor != 1.0 else joined


def _floats_of(source: TensorReader, tensor: TensorInfo) -> Array:
    """Return the rows of a tensor of floats, float32; a vector is one row."""
    if isinstance(tensor, CompoundTensor):
        return tensor.open(source).values(np.arange((*tensor.shape, 1)[1]))
    return float_values(float_rows(tensor, read_rows(source, tensor)))


@dataclass(frozen=True)
class LayerWeights:
    """Matrices of one layer, gate and up joined as the op profile wants them.

    Attributes:
        mixer_in: q, k, v, stacked; or what makes a short convolution's rows and gates; or what a delta rule reads:
            what is convolved, gates, shares and rates.
        mixer_out: what follows attention, the convolution or the state.
        gate_up: of experts one matrix of all, and so is ``down``.
        shared_gate_up: of the feed-forward beside experts, if there is one, and so is ``shared_down``.
        latent_in: what makes latent rows of experts, if they have them.
        latent_out: what makes rows of the stream of them.
        per_layer: of a model with further embeddings for each layer the gate on them, and what brings them back.
        beside_in: what a state space beside attention reads.
        beside_out: what follows it.
    """

    mixer_in: tuple[Linear, ...]
    mixer_out: tuple[Linear, ...]
    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]
    shared_gate_up: tuple[Linear, ...] = ()
    shared_down: tuple[Linear, ...] = ()
    latent_in: tuple[Linear, ...] = ()
    latent_out: tuple[Linear, ...] = ()
    per_layer: tuple[Linear, ...] = ()
    beside_in: tuple[Linear, ...] = ()
    beside_out: tuple[Linear, ...] = ()

    @property
    def mixers(self) -> tuple[Linear, ...]:
        """Matrices before and behind mixers."""
        return (*self.mixer_in, *self.mixer_out, *self.beside_in, *self.beside_out)

    @property
    def feed_forwards(self) -> tuple[Linear, ...]:
        """Matrices of feed-forwards and experts."""
        fed = (*self.gate_up, *self.down, *self.shared_gate_up, *self.shared_down)
        return (*self.latent_in, *fed, *self.latent_out)

    def linears(self) -> tuple[Linear, ...]:
        """Every matrix, in the order of the file."""
        return (*self.mixers, *self.feed_forwards, *self.per_layer)

    def groups(self) -> Iterator[tuple[Linear, ...]]:
        """Yield the matrices whose inputs have names, those that read one together."""
        groups = (self.mixer_in, self.mixer_out, self.beside_in, self.beside_out, self.gate_up, self.down)
        return (group for group in groups if group)


@dataclass(frozen=True)
class AheadWeights:
    """Matrices of a block that predicts further ahead (``edge_rt.package.ahead``)."""

    fc: Linear
    layer: LayerWeights

    def linears(self) -> tuple[Linear, ...]:
        """Every matrix, in the order of the file."""
        return (self.fc, *self.layer.linears())


@dataclass(frozen=True)
class DecoderWeights:
    """Everything that goes into ``weights.bin``.

    Attributes:
        embedding: the token embedding; also the head if ``head`` is the same object (stored once).
        per_layer: the table of further embeddings for each layer, and what the token embedding is multiplied by to be
            added to them; empty: there are none.
        ahead: of a block that predicts further ahead; None without one.
    """

    embedding: Linear
    head: Linear
    layers: tuple[LayerWeights, ...]
    vectors: dict[str, Vector]
    per_layer: tuple[Linear, ...] = ()
    ahead: AheadWeights | None = None

    def linears(self) -> Iterator[Linear]:
        """Every matrix once, in the order of the file."""
        yield self.embedding
        yield from self.per_layer
        for layer in self.layers:
            yield from layer.linears()
        if self.ahead is not None:
            yield from self.ahead.linears()
        if self.head is not self.embedding:
            yield self.head

    def per_layer_linears(self) -> tuple[Linear, ...]:
        """Return the matrices of further embeddings for each layer, the table first."""
        return (*self.per_layer, *(linear for layer in self.layers for linear in layer.per_layer))

    def by_input(self) -> dict[str, tuple[Linear, ...]]:
        """Return the matrices that read each input of linear layers, by the input's name."""
        found: dict[str, tuple[Linear, ...]] = {"head": (self.head,)}
        for layer in self.layers:
            for linears in layer.groups():
                found[input_of(linears[0])] = linears
        return found


def input_of(linear: Linear) -> str:
    """Return the name of the input of a layer's matrix, which may be one of several that read it."""
    return ".".join(linear.name.split(".")[:2])


def collect_weights(
    source: Source, decoder: Decoder, profile: OpProfile, types: Mapping[str, str] | None = None
) -> DecoderWeights:
    """List every matrix and vector of the package; tensors that are not in ``types`` keep theirs."""
    profile.require_carried(decoder)
    count, types, ahead = decoder.num_layers, types or {}, None
    if source.ahead is not None and profile.has_ahead:
        decoder = with_block(decoder, source.ahead)
    tensors = source.tensors

    def part(name: str, order: Array | None = None) -> Part:
        return Part(tensors[name], order, types.get(name))

    def layer(i: int) -> LayerWeights:
        def of(kind: str, order: Array | None = None) -> Part:
            return part(f"blk.{i}.{kind}.weight", order)

        described = decoder.layers[i]
        mixer_in: tuple[Linear, ...] = ()
        mixer_out: tuple[Linear, ...] = ()
        if described.short_conv is not None:
            mixer_in = profile.stack(f"layer{i}.conv_in", [of("shortconv.in_proj")])
            mixer_out = profile.stack(f"layer{i}.conv_out", [of("shortconv.out_proj")])
        elif described.gated_delta is not None:
            mixer_in = tuple(Linear(f"layer{i}.state_in.{ours}", (of(theirs),)) for theirs, ours in _DELTA_IN.items())
            mixer_out = profile.stack(f"layer{i}.state_out", [of("ssm_out")])
        elif described.attention is not None:
            qkv = [of("attn_q", _order_of(i, source, decoder, is_key=False))]
            qkv += [
                of(kind, _order_of(i, source, decoder, is_key=True) if kind == "attn_k" else None)
                for kind in kv_kinds(decoder.attention_of(i))
            ]
            mixer_in = profile.stack(f"layer{i}.qkv", qkv)
            mixer_out = profile.stack(f"layer{i}.output", [of("attn_output")])
        more: dict[str, tuple[Linear, ...]] = {}
        if described.state_space is not None:
            space_in = profile.stack(f"layer{i}.state_in", [of("ssm_in")])
            space_out = profile.stack(f"layer{i}.state_out", [of("ssm_out")])
            if described.attention is None:
                mixer_in, mixer_out = space_in, space_out
            else:
                more |= {"beside_in": space_in, "beside_out": space_out}

        def fed(inner: FeedForward, name: str) -> tuple[tuple[Linear, ...], tuple[Linear, ...]]:
            """Return the matrices of a feed-forward, up to what is between them, and behind."""
            up = of("ffn_up")
            down = profile.stack(f"{name}down", [of("ffn_down")])
            if inner.is_gated:
                return profile.gate_up(f"{name}gate_up", of("ffn_gate"), up), down
            return profile.stack(f"{name}gate_up", [up]), down

        inner, experts = described.feed_forward, described.experts
        gate_up: tuple[Linear, ...] = ()
        down: tuple[Linear, ...] = ()
        if experts is not None:
            kinds = ("ffn_gate", "ffn_up") if experts.each.is_gated else ("ffn_up",)
            numbers = range(experts.count)
            all_of_them = [of(f"{kind}.{number}") for number in numbers for kind in kinds]
            gate_up = _of_experts(f"layer{i}.gate_up", all_of_them, interleaved=experts.each.is_gated)
            down = _of_experts(f"layer{i}.down", [of(f"ffn_down.{number}") for number in numbers])
            if inner is not None:
                more["shared_gate_up"], more["shared_down"] = fed(inner, f"layer{i}.shared_")
            if experts.latent:
                more["latent_in"] = profile.stack(f"layer{i}.latent_in", [of("ffn_latent_down")])
                more["latent_out"] = profile.stack(f"layer{i}.latent_out", [of("ffn_latent_up")])
        elif inner is not None:
            gate_up, down = fed(inner, f"layer{i}.")
        if decoder.per_layer_embedding:
            gate = Linear(f"layer{i}.per_layer_gate", (of("inp_gate"),))
            more["per_layer"] = (gate, Linear(f"layer{i}.per_layer_out", (of("proj"),)))
        return LayerWeights(mixer_in=mixer_in, mixer_out=mixer_out, gate_up=gate_up, down=down, **more)

    embedding = Linear("embedding", (part("token_embd.weight"),))
    layers = tuple(layer(i) for i in range(decoder.num_layers))
    per_layer: tuple[Linear, ...] = ()
    if decoder.per_layer_embedding:
        per_layer = (Linear("per_layer_table", (part("per_layer_token_embd.weight"),)),)
        per_layer += (Linear("per_layer_projection", (part("per_layer_model_proj.weight"),)),)
    vectors = _norms(source, decoder)
    if decoder.num_layers > count:
        prefix = f"blk.{count}.nextn"
        ahead = AheadWeights(Linear("ahead.fc", (part(f"{prefix}.eh_proj.weight"),)), layers[count])
        for theirs, ours in _AHEAD_NORMS.items():
            vectors[f"ahead.{ours}"] = Vector((tensors[f"{prefix}.{theirs}.weight"],), offset=source.norm_offset)
    for weights in layers:
        for linear in weights.linears():
            if (bias := _bias_of(linear, tensors)) is not None:
                vectors[f"{linear.name}.bias"] = bias
    return DecoderWeights(
        embedding=embedding,
        head=embedding if decoder.is_tied else Linear("head", (part("output.weight"),)),
        layers=layers[:count],
        vectors=vectors,
        per_layer=per_layer,
        ahead=ahead,
    )


def _of_experts(name: str, parts: Sequence[Part], *, interleaved: bool = False) -> tuple[Linear, ...]:
    """Return the one matrix that holds those of all experts."""
    matrix = Linear(name, tuple(parts), interleaved=interleaved)
    if matrix.is_mixed:
        types = sorted({part.type_name for part in parts})
        raise UnsupportedModel(
            "The experts of a layer have matrices of several types.",
            f"Those of '{name}' are {', '.join(types)}.",
            "Export with --weights int4 or int8 from floats, or choose a file whose experts have one type.",
        )
    return (matrix,)


def _norms(source: Source, decoder: Decoder) -> dict[str, Vector]:
    """Return the weights and biases of all norms, the sinks, the taps of convolutions and the routers of experts."""
    tensors, found = source.tensors, {}
    names = {"output_norm": "final_norm", "per_layer_proj_norm": "per_layer_norm"}
    for i in range(decoder.num_layers):
        names |= {
            f"blk.{i}.attn_norm": f"layer{i}.attention_norm",
            f"blk.{i}.ffn_norm": f"layer{i}.mlp_norm",
            f"blk.{i}.post_attention_norm": f"layer{i}.attention_post_norm",
            f"blk.{i}.post_ffw_norm": f"layer{i}.mlp_post_norm",
            f"blk.{i}.attn_q_norm": f"layer{i}.q_norm",
            f"blk.{i}.attn_k_norm": f"layer{i}.k_norm",
            f"blk.{i}.post_norm": f"layer{i}.per_layer_norm",
            f"blk.{i}.layer_output_scale": f"layer{i}.scale",
            f"blk.{i}.pre_ffw_norm_2": f"layer{i}.expert_norm",
            f"blk.{i}.post_ffw_norm_2": f"layer{i}.expert_post_norm",
            f"blk.{i}.post_ffw_norm_1": f"layer{i}.shared_post_norm",
        }
    for theirs, ours in names.items():
        if f"{theirs}.weight" in tensors:
            order = _norm_order(ours, source, decoder)
            found[ours] = Vector((tensors[f"{theirs}.weight"],), (order,), source.norm_offset)
        if f"{theirs}.bias" in tensors:
            found[f"{ours}_bias"] = Vector((tensors[f"{theirs}.bias"],))
    for i in range(decoder.num_layers):
        if f"blk.{i}.attn_sinks.weight" in tensors:
            found[f"layer{i}.sinks"] = Vector((tensors[f"blk.{i}.attn_sinks.weight"],))
    for i in decoder.conv_layers:
        for theirs, ours in (("weight", f"layer{i}.conv"), ("bias", f"layer{i}.conv_bias")):
            if (name := f"blk.{i}.shortconv.conv.{theirs}") in tensors:
                found[ours] = Vector((tensors[name],), is_turned=theirs == "weight")
    for i in decoder.recurrent_layers:
        for theirs, ours in _OF_STATES.items():
            if (name := f"blk.{i}.{theirs}") in tensors:
                is_log = ours == "rates" and source.has_log_decays
                found[f"layer{i}.{ours}"] = Vector((tensors[name],), is_turned=ours == "conv", is_log=is_log)
    for i, layer in enumerate(decoder.layers):
        for theirs, ours in _ROUTERS.items() if layer.experts is not None else ():
            if (name := f"blk.{i}.{theirs}") in tensors:
                # A router with a norm of its own divides what this gives by the root of the stream's features.
                factor = decoder.hidden_size**-0.5 if ours == "router_norm" else 1.0
                found[f"layer{i}.{ours}"] = Vector((tensors[name],), factor=factor)
    return found


def _norm_order(name: str, source: Source, decoder: Decoder) -> Array | None:
    """Return the order of a norm's weights: those of queries and keys are reordered as their rows are."""
    if source.has_halves or not name.endswith(("q_norm", "k_norm")):
        return None
    attention = decoder.attention_of(int(name.removeprefix("layer").split(".")[0]))
    heads = 1
    if attention.qk_norm == "row":
        heads = attention.num_heads if name.endswith("q_norm") else attention.num_kv_heads
    return unpermuted_rows(heads, attention.head_dim)


def _order_of(layer: int, source: Source, decoder: Decoder, *, is_key: bool) -> Array | None:
    """Return the order in which the rows of a layer's queries or keys are read; None for the file's."""
    if source.has_halves:
        return None
    attention = decoder.attention_of(layer)
    return unpermuted_rows(attention.num_kv_heads if is_key else attention.num_heads, attention.head_dim)


def _bias_of(linear: Linear, tensors: Mapping[str, TensorInfo]) -> Vector | None:
    names = [f"{part.tensor.name.removesuffix('weight')}bias" for part in linear.parts]
    if names[0] not in tensors:
        return None
    orders = tuple(part.row_order for part in linear.parts)
    return Vector(tuple(tensors[name] for name in names), orders, alternates=linear.interleaved)


def place_weights(
    weights: DecoderWeights, decoder: Decoder, profile: OpProfile, *, is_calibrated: bool = False
) -> WeightsLayout:
    """Return the layout of ``weights.bin``, with room for constants of 4-bit keys if it is calibrated."""
    layout = WeightsLayout()
    for linear in weights.linears():
        profile.place(linear, layout)
    for name, vector in weights.vectors.items():
        layout.add(name, np.float32, vector.shape)
    for index, rope in enumerate(() if decoder.loads_rope else decoder.tables):
        for table in rope_names(index):
            layout.add(table, np.float32, (decoder.context_length, len(rope.frequencies)))
    if _query_scaling(decoder) is not None:
        layout.add("query_scale", np.float32, (decoder.context_length,))
    if is_calibrated:
        for layer in calibrated_layers(decoder):
            attention = decoder.attention_of(layer)
            place_key_constants(layout, layer, attention.num_kv_heads, attention.head_dim)
    return layout


def calibrated_layers(decoder: Decoder) -> Sequence[int]:
    """Return the layers that have constants for 4-bit keys: those whose softmax does not see what they take away."""
    attentions = ((i, decoder.attention_of(i)) for i in decoder.kv_layers)
    return [i for i, attention in attentions if not attention.softcap and not attention.has_sinks]


def write_rope_tables(out: WeightsFile, layout: WeightsLayout, decoder: Decoder) -> None:
    """Write cosines and sines of every position, computed in float64 and rounded once."""
    for index, rope in enumerate(() if decoder.loads_rope else decoder.tables):
        slots = [layout.slots[name] for name in rope_names(index)]
        for first in range(0, decoder.context_length, ROPE_PIECE_ROWS):
            positions = range(first, min(first + ROPE_PIECE_ROWS, decoder.context_length))
            for slot, table in zip(slots, rope_rows(rope, positions), strict=True):
                out.write(slot, first, table.astype(np.float32))
    if (scaling := _query_scaling(decoder)) is not None:
        growth = query_growth(scaling, range(decoder.context_length))
        out.write(layout.slots["query_scale"], 0, growth.astype(np.float32))


def _query_scaling(decoder: Decoder) -> QueryScaling | None:
    """Return the factor on queries, which all layers that have one share."""
    attentions = map(decoder.attention_of, decoder.attention_layers)
    return next((s for attention in attentions if (s := attention.query_scaling) is not None), None)


def rope_rows(rope: Rope, positions: range) -> tuple[Array, Array]:
    """Return cosines and sines of some positions, float64 ``[positions, pairs]``."""
    rates = np.asarray(rope.frequencies, np.float64)
    angles = np.arange(positions.start, positions.stop, dtype=np.float64)[:, None] * rates[None, :]
    return np.cos(angles) * rope.magnitude, np.sin(angles) * rope.magnitude


def query_growth(scaling: QueryScaling, positions: range) -> Array:
    """Return the factor on queries of some positions, float64 ``[positions]``."""
    whole = np.arange(positions.start, positions.stop) // scaling.original_context
    growth: Array = 1.0 + scaling.beta * np.log1p(whole.astype(np.float64))
    return growth


def build_graph(build: GraphBuilder, weights: DecoderWeights, decoder: Decoder, producer: str) -> ir.Model:
    """Build the whole model as one segment with an empty builder of either op profile."""
    return build.model(build.logits(_stream(build, weights, decoder), weights.head), producer)


def build_ahead_graph(build: AheadBuilder, weights: DecoderWeights, producer: str) -> ir.Model:
    """Build the block that predicts further ahead."""
    assert weights.ahead is not None
    x = build.joined(weights.embedding, weights.ahead.fc)
    x = build.layer(x, weights.ahead.layer, build.number)
    return build.model(build.logits(x, weights.head), producer)


def build_states_graph(build: NativeBuilder, weights: DecoderWeights, decoder: Decoder, producer: str) -> ir.Model:
    """Build the whole model without its head."""
    return build.model_of_states(build.states(_stream(build, weights, decoder)), producer)


def _stream(build: GraphBuilder, weights: DecoderWeights, decoder: Decoder) -> Residual:
    """Build all layers; return the stream behind them, of the rows that are wanted."""
    x = build.embed(weights.embedding, "embedding")
    if weights.per_layer:
        build.embed_layers(x, weights.per_layer)
    last = decoder.num_layers - 1
    for i, layer in enumerate(weights.layers[:last]):
        x = build.layer(x, layer, i)
    return build.last_layer(x, weights.layers[last], last)
