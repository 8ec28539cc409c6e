"""The native op profile: building blocks of a graph out of edge-rt's own operators (domain ``edge_rt``).

Norms, residual sums and the gate of the feed-forward are parts of ``QuantLinear``; rotation and the cache are parts of
``SpecAttention``. Inputs of the graph, for S rows of B sequences, of which R need logits, with P positions each in
a cache of C rows; layers with a sliding window have fewer rows, W, which positions share:

=========================== ======= ========================== =============================================
name                        dtype   shape                      meaning
=========================== ======= ========================== =============================================
``input_ids``               int64   [S]                        token ids
``logit_rows``              int64   [R]                        rows of this pass whose logits are wanted
``past_length``             int32   [B]                        a sequence's committed rows before this pass
``row_map``                 int32   [B, P]                     position -> row in the cache's memory
``window_row_map``          int32   [B, P]                     the same for layers with a window or a convolution
``parents``                 int32   [S]                        row of its sequence that a row follows; -1: the past
``sequence_rows``           int32   [B]                        rows of each sequence, in order
``kv_formats``              int32   [num_layers]               format of the layer's cache
``cache.{i}``               uint8   [2, kv_heads, C or W, row] keys and values of layer i, if it has its own
``cache.{i}``               float32 [W, hidden_size]           rows of layer i, if it has a short convolution
=========================== ======= ========================== =============================================

With states, of N sequences that are kept, A being the most drafts of a pass (``csrc/ops/recurrent/recurrent_check.h``
says what each means):

=========================== ======= ========================== =============================================
``state_index``             int32   [B]                        which of the N states a sequence has
``slot``                    int32   [B]                        which of its two slots is read
``advance``                 int32   [B, A]                     drafts of the last pass that became text; -1: none
``certain``                 int32   [B]                        rows that are text; those behind them are drafts
``conv.{i}``                float32 [N, 2, D]                  rows of the convolution before a state of layer i
``state.{i}``               float32 [N, 2, D]                  state of layer i
=========================== ======= ========================== =============================================

There is one row map for each kind of layer that the model has. Outputs, with the K = 8 most likely tokens of every row
(fewer, if the vocabulary is smaller):

=========================== ======= ========================== =============================================
name                        dtype   shape                      meaning
=========================== ======= ========================== =============================================
``logits``                  float32 [R, vocabulary]            of the wanted rows
``top_ids``                 int32   [R, K]                     ids of the largest logits; equal ones by id
``top_logits``              float32 [R, K]                     these logits
``log_sum_exp``             float32 [R]                        log of the sum of exp(logit) of the whole row
=========================== ======= ========================== =============================================
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_rt.export.graph.builder import LayerMatrices, Linears, Residual, as_output, graph_input
from edge_rt.export.graph.native_products import (
    DOMAIN,
    NO_FINE_BLOCKS,
    FineBlocks,
    NativeProducts,
    format_of,
    given,
    matrix_attributes,
    only,
)
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.native import key_constant_names, tiles_of
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.ahead import STREAM
from edge_rt.package.decoder import Decoder
from edge_rt.package.op_list import STATE_INPUTS


class NativeBuilder(NativeProducts):
    """Builds a graph from edge-rt's operators.

    Args:
        reads_upper, fine_blocks: as of ``NativeProducts``.
        keeps_stream: whether the stream behind the last layer is computed for all rows, as the value ``STREAM``.
    """

    def __init__(
        self,
        layout: WeightsLayout,
        decoder: Decoder,
        *,
        reads_upper: bool = False,
        fine_blocks: FineBlocks = NO_FINE_BLOCKS,
        keeps_stream: bool = False,
    ) -> None:
        super().__init__(layout, decoder, reads_upper=reads_upper, fine_blocks=fine_blocks)
        self._keeps_stream = keeps_stream
        self._past_length = graph_input("past_length", ir.DataType.INT32, ["sequences"])
        self._row_map = graph_input("row_map", ir.DataType.INT32, ["sequences", "positions"])
        self._window_row_map = graph_input("window_row_map", ir.DataType.INT32, ["sequences", "positions"])
        self._parents = graph_input("parents", ir.DataType.INT32, ["rows"])
        self._sequence_rows = graph_input("sequence_rows", ir.DataType.INT32, ["sequences"])
        self._kv_formats = graph_input("kv_formats", ir.DataType.INT32, [decoder.num_layers])
        self._windows = decoder.layer_windows
        self._caches = {i: self._cache(i) for i in decoder.cache_layers}
        self._of_pass = {
            name: graph_input(name, ir.DataType.INT32, shape)
            for name, shape in STATE_INPUTS.items()
            if decoder.recurrent_layers
        }
        self._states = {
            name: graph_input(name, ir.DataType.FLOAT, ("states", 2, f"{kind}_floats"))
            for i in decoder.recurrent_layers
            for kind in ("conv", "state")
            for name in (f"{kind}.{i}",)
        }
        self._per_layer: list[ir.Value] = []

    def _cache(self, layer: int) -> ir.Value:
        name, rows = f"cache.{layer}", "window_rows" if self._windows[layer] else "capacity"
        if self._decoder.layers[layer].short_conv is not None:
            return graph_input(name, ir.DataType.FLOAT, ("window_rows", self._decoder.hidden_size))
        kv_heads = self.attention_of(layer).num_kv_heads
        return graph_input(name, ir.DataType.UINT8, (2, kv_heads, rows, "row_bytes"))

    def _cache_inputs(self) -> Sequence[ir.Value]:
        wanted = ((self._row_map, 0 in self._windows), (self._window_row_map, any(self._windows)))
        maps = [row_map for row_map, is_wanted in wanted if is_wanted]
        caches = [*self._caches.values(), *self._of_pass.values(), *self._states.values()]
        return [self._past_length, *maps, self._parents, self._sequence_rows, self._kv_formats, *caches]

    def _more_outputs(self, logits: ir.Value) -> Sequence[ir.Value]:
        count = self._decoder.top_tokens
        names = ("top_ids", "top_logits", "log_sum_exp")
        found = self.node("RowTopK", [logits], names, domain=DOMAIN, attributes={"k": count})
        types = (ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.FLOAT)
        shapes: tuple[list[int | str], ...] = (["logit_rows", count], ["logit_rows", count], ["logit_rows"])
        return [as_output(value, dtype, shape) for value, dtype, shape in zip(found, types, shapes, strict=True)]

    def embed(self, table: Linear, name: str) -> Residual:
        """Begin the stream with the scaled embeddings of the input's tokens."""
        inputs = [self._ids, self.stored(tiles_of(table))]
        # Of a row or two, both halves cost nothing.
        attributes = matrix_attributes(table, format_of(table)) | given(scale=(self._decoder.embedding_scale, 1.0))
        return Residual(self.node("QuantEmbed", inputs, [name], domain=DOMAIN, attributes=attributes)[0])

    def embed_layers(self, x: Residual, tables: Linears) -> None:
        """Compute the further embeddings for each layer, ``Decoder.per_layer_embedding`` says how."""
        decoder, (table, projection) = self._decoder, tables
        attributes = matrix_attributes(table, format_of(table))
        attributes |= {"scale": (0.5 * decoder.per_layer_embedding) ** 0.5, "stays_in_file": 1}
        inputs = [self._ids, self.stored(tiles_of(table))]
        (rows,) = self.node("QuantEmbed", inputs, ["per_layer.rows"], domain=DOMAIN, attributes=attributes)
        more = {"output_scale": decoder.hidden_size**-0.5, "residual_scale": 0.5**0.5}
        embeddings = self._quant_linear(
            x.settled, projection, "per_layer.embeddings", residual=rows, post_norm="per_layer_norm", more=more
        )
        names = [f"per_layer.{layer}" for layer in range(decoder.num_layers)]
        split = {"axis": -1, "num_outputs": decoder.num_layers}
        self._per_layer = list(self.node("Split", [embeddings], names, attributes=split))

    def states(self, x: Residual) -> ir.Value:
        """Return the final norm of a stream, by ONNX Runtime's operators, which compute every row by itself."""
        inputs: list[ir.Value | None] = [x.settled, self.stored("final_norm")]
        attributes: dict[str, int | float | str] = {"axis": -1, "epsilon": self._decoder.norm_epsilon}
        if self._decoder.norm == "rms":
            return self.node("SimplifiedLayerNormalization", inputs, ["states"], attributes=attributes)[0]
        bias = self.optional("final_norm_bias")
        inputs += [] if bias is None else [bias]
        return self.node("LayerNormalization", inputs, ["states"], attributes=attributes)[0]

    def attention(self, qkv: ir.Value, layer: int) -> ir.Value:
        """Rotate, append to the cache and attend."""
        inputs: list[ir.Value | None] = [qkv, *self._cache_of(layer), *self._key_constants_of(layer)]
        inputs += [self._query_scale_of(layer), self._sequence_rows]
        attributes = self._heads(layer)
        return self.node("SpecAttention", inputs, [f"layer{layer}.attention"], domain=DOMAIN, attributes=attributes)[0]

    def short_conv(self, bcx: ir.Value, layer: int) -> ir.Value:
        """Append to the cache and convolve, between the gates."""
        inputs: list[ir.Value | None] = [
            bcx,
            *self._rows_of(layer),
            self.stored(f"layer{layer}.conv"),
            self.optional(f"layer{layer}.conv_bias"),
            self._sequence_rows,
        ]
        return self.node("ShortConv", inputs, [f"layer{layer}.conv.rows"], domain=DOMAIN)[0]

    def gated_delta(self, x: Residual, layers: Linears, layer: int, *, norm: str | None) -> ir.Value:
        """Multiply, convolve and go on with the states of a delta rule."""
        delta, name = self._decoder.layers[layer].gated_delta, f"layer{layer}"
        assert delta is not None, layer
        products = (self._quant_linear(x.settled, one, f"{one.name}.rows", norm=norm) for one in layers)
        qkv, z, b, a = products
        inputs: list[ir.Value | None] = [
            self._state_conv(qkv, layer),
            *self._state_of(f"state.{layer}"),
            z,
            b,
            a,
            *(self.stored(f"{name}.{vector}") for vector in ("rates", "dt_bias", "state_norm")),
        ]
        attributes: dict[str, int | float | str] = {
            "key_heads": delta.key_heads,
            "is_tiled": int(delta.is_tiled),
            "epsilon": self._decoder.norm_epsilon,
            "key_epsilon": delta.epsilon,
        }
        return self.node("GatedDelta", inputs, [f"{name}.state.rows"], domain=DOMAIN, attributes=attributes)[0]

    def state_space(self, x: Residual, layers: Linears, layer: int, *, norm: str | None) -> ir.Value:
        """Multiply, convolve and go on with the states of a state space."""
        space, name = self._decoder.layers[layer].state_space, f"layer{layer}"
        assert space is not None, layer
        # Gates, what is convolved, and steps.
        rows = self.linear(x, layers, f"{name}.state_in", norm=norm)
        inputs: list[ir.Value | None] = [
            self._state_conv(rows, layer, first=space.size),
            *self._state_of(f"state.{layer}"),
            rows,
            rows,
            *(self.stored(f"{name}.{vector}") for vector in ("rates", "skip", "dt_bias")),
            self.optional(f"{name}.state_norm"),
        ]
        attributes: dict[str, int | float | str] = {
            "head_dim": space.head_dim,
            "groups": space.groups,
            "norm_first": int(space.norm == "before"),
            "epsilon": self._decoder.norm_epsilon,
        }
        return self.node("SsmScan", inputs, [f"{name}.state.rows"], domain=DOMAIN, attributes=attributes)[0]

    def _state_conv(self, x: ir.Value, layer: int, first: int = 0) -> ir.Value:
        """Convolve the rows before a state, which begin at column ``first`` of ``x``."""
        name = f"layer{layer}"
        inputs = [x, *self._state_of(f"conv.{layer}"), self.stored(f"{name}.conv"), self.optional(f"{name}.conv_bias")]
        attributes = given(first=(first, 0))
        return self.node("StateConv", inputs, [f"{name}.conv.rows"], domain=DOMAIN, attributes=attributes)[0]

    def _state_of(self, name: str) -> list[ir.Value | None]:
        """Return a state, and what says which slot of it the pass reads and what it does to it."""
        index, slot, advance, certain = (self._of_pass[of_pass] for of_pass in STATE_INPUTS)
        return [
            self._states[name], self._past_length, index, slot, advance, certain, self._parents, self._sequence_rows
        ]  # fmt: skip

    def experts(self, x: Residual, weights: LayerMatrices, layer: int) -> Residual:
        """Return the stream plus the weighted sum of the experts that a router chooses for each row."""
        experts, name = self._decoder.layers[layer].experts, f"layer{layer}"
        assert experts is not None, layer
        gate_up, down, norm = only(weights.gate_up), only(weights.down), self.found(f"{name}.mlp_norm")
        shared = rows = None
        if weights.shared_down:
            between = self.hidden(x, weights.shared_gate_up, f"{name}.shared_hidden", norm=norm, layer=layer)
            if experts.latent:
                # What latent experts make is not added up with it: both are added to the stream.
                fed = self.add_linear(x, between, weights.shared_down, f"{name}.shared", post_norm=None)
            else:
                behind = self.found(f"{name}.shared_post_norm")
                shared = self._quant_linear(between, only(weights.shared_down), f"{name}.shared", post_norm=behind)
        if experts.latent:
            rows = self._product(x.settled, weights.latent_in, f"{name}.latent_in", norm=norm)
        # With norms of their own the layer's is that of the feed-forward beside them, and that behind it of the sum.
        is_own = experts.has_own_norms
        router_norm, post_norm = ("router_norm", "expert_post_norm") if is_own else ("mlp_norm", "mlp_post_norm")
        inputs: list[ir.Value | None] = [
            x.settled,
            self.stored(f"{name}.router"),
            self.stored(tiles_of(gate_up)),
            self.stored(tiles_of(down)),
            self.optional(f"{name}.{router_norm}"),
            self.optional(f"{name}.{router_norm}_bias"),
            self.optional(f"{name}.router_bias"),
            self.optional(f"{name}.choice_bias"),
            self.optional(f"{gate_up.name}.bias"),
            self.optional(f"{down.name}.bias"),
            None if experts.latent else x.settled,
            rows,
            shared,
            self.optional(f"{name}.shared_gate"),
            self.optional(f"{name}.expert_scale"),
            self.optional(f"{name}.{post_norm}"),
            self.optional(f"{name}.expert_norm"),
            self.optional(f"{name}.mlp_post_norm") if is_own else None,
        ]
        while inputs[-1] is None:
            inputs.pop()
        attributes: dict[str, int | float | str] = {
            "hidden": self._decoder.hidden_size,
            "intermediate": experts.each.size,
            "experts": experts.count,
            "chosen": experts.chosen,
            "gating": experts.gating,
            "normalise": int(experts.is_normalised),
            "weight_epsilon": experts.epsilon,
            "weight_scale": experts.scale,
            "activation": self._activation(experts.each),
            "gate_up_format": self._format(gate_up),
            "down_format": self._format(down),
            "epsilon": self._decoder.norm_epsilon,
            "norm": self._decoder.norm,
            "residual_scale": 1.0 if experts.latent else self._decoder.residual_scale,
            **given(
                limit=(experts.each.limit, 0.0),
                slope=(experts.each.slope, 1.0),
                up_offset=(experts.each.up_offset, 0.0),
                groups=(experts.groups, 1),
                chosen_groups=(experts.chosen_groups, 1),
                width=(experts.latent, 0),
            ),
        }
        # Behind the last layer the stream has this name, whatever its feed-forward is.
        output = f"{name}.latent" if experts.latent else f"{name}.down"
        made = self.node("Experts", inputs, [output], domain=DOMAIN, attributes=attributes)[0]
        if not experts.latent:
            return Residual(made)
        return self.add_linear(
            fed if weights.shared_down else x, made, weights.latent_out, f"{name}.down", post_norm=None
        )

    def layer(self, x: Residual, weights: LayerMatrices, index: int) -> Residual:
        """Return the stream after layer ``index``: a single operator if it attends and every step is one matrix."""
        groups = {
            "qkv": weights.mixer_in, "output": weights.mixer_out, "gate_up": weights.gate_up, "down": weights.down
        }  # fmt: skip
        described = self._decoder.layers[index]
        is_plain = described.attention is not None and described.experts is None and described.state_space is None
        if any(len(group) != 1 for group in groups.values()) or not is_plain:
            return super().layer(x, weights, index)
        matrices = {name: only(group) for name, group in groups.items()}
        tiles = {name: self.stored(tiles_of(matrix)) for name, matrix in matrices.items()}
        inputs: list[ir.Value | None] = [
            x.settled,
            *self._cache_of(index),
            self.optional(f"layer{index}.attention_norm"),
            tiles["qkv"],
            tiles["output"],
            self.optional(f"layer{index}.mlp_norm"),
            tiles["gate_up"],
            tiles["down"],
            *self._key_constants_of(index),
            *(self.optional(f"{matrix.name}.bias") for matrix in matrices.values()),
            self.optional(f"layer{index}.attention_post_norm"),
            self.optional(f"layer{index}.mlp_post_norm"),
            self._query_scale_of(index),
            self.optional(f"layer{index}.attention_norm_bias"),
            self.optional(f"layer{index}.mlp_norm_bias"),
            self._sequence_rows,
        ]
        attributes: dict[str, int | float | str] = {
            **self._heads(index),
            "hidden": matrices["qkv"].in_features,
            "intermediate": matrices["down"].in_features,
            "epsilon": self._decoder.norm_epsilon,
            **{f"{name}_format": self._format(matrix) for name, matrix in matrices.items()},
            **{
                f"{name}_{key}": blocks
                for name, matrix in matrices.items()
                for key, blocks in self._fine(matrix, f"layer{index}.{name}").items()
            },
            **given(
                activation=(self._activation(self._decoder.feed_forward_of(index)), "swiglu"),
                residual_scale=(self._decoder.residual_scale, 1.0),
                norm=(self._decoder.norm, "rms"),
            ),
        }
        (y,) = self.node("DecoderLayer", inputs, [f"layer{index}"], domain=DOMAIN, attributes=attributes)
        return self._ended(Residual(y), weights, index)

    def last_layer(self, x: Residual, weights: LayerMatrices, index: int) -> Residual:
        """Return the stream after the model's last layer, of the rows that need logits."""
        if self._keeps_stream:
            stream = self.layer(x, weights, index).settled
            stream.name = STREAM
            return Residual(self.wanted(stream, f"layer{index}.down"))
        if self._per_layer:
            self._per_layer[index] = self.wanted(self._per_layer[index], "per_layer.wanted")
        return super().last_layer(x, weights, index)

    def finish_layer(self, x: Residual, mixed: Sequence[ir.Value], weights: LayerMatrices, index: int) -> Residual:
        """Return the stream after the layer's steps that follow its mixers."""
        return self._ended(super().finish_layer(x, mixed, weights, index), weights, index)

    def _ended(self, x: Residual, weights: LayerMatrices, index: int) -> Residual:
        """Return the stream behind what follows a layer's feed-forward, under the name that it had before."""
        name, found = f"layer{index}", x.settled
        ending = found.name
        if weights.per_layer:
            gate, out = weights.per_layer
            further = self._per_layer[index]
            gated = self._quant_linear(found, gate, f"{name}.per_layer_gate", gate=further, activation="gelu_gate")
            norm = f"{name}.per_layer_norm"
            found = self._quant_linear(gated, out, f"{name}.per_layer_out", residual=found, post_norm=norm)
        if self._decoder.layers[index].has_scale:
            (found,) = self.node("Mul", [found, self.stored(f"{name}.scale")], [f"{name}.scaled"])
        if found is not x.settled:
            x.settled.name, found.name = f"{name}.fed", ending
        return Residual(found)

    def _cache_of(self, layer: int) -> list[ir.Value | None]:
        return [
            *self._rows_of(layer),
            self._kv_formats,
            *self.rope_of(layer),
            self.optional(f"layer{layer}.q_norm"),
            self.optional(f"layer{layer}.k_norm"),
            self.optional(f"layer{layer}.sinks"),
        ]

    def _rows_of(self, layer: int) -> list[ir.Value]:
        """Return a layer's cache, and what says where the pass's rows lie in it."""
        row_map = self._window_row_map if self._windows[layer] else self._row_map
        cache = self._caches[self._source_of(layer)]
        return [cache, self._past_length, row_map, self._parents]

    def _source_of(self, layer: int) -> int:
        """Return the layer whose cache a layer has."""
        has_heads = self._decoder.layers[layer].attention is not None
        return self._decoder.kv_layer_of(layer) if has_heads else layer

    def _key_constants_of(self, layer: int) -> list[ir.Value | None]:
        """Return the constants of 4-bit keys; None for each if the package does not have them."""
        return [self.optional(name) for name in key_constant_names(self._source_of(layer))]

    def _query_scale_of(self, layer: int) -> ir.Value | None:
        return self.stored("query_scale") if self.attention_of(layer).query_scaling is not None else None

    def _heads(self, layer: int) -> dict[str, int | float | str]:
        attention = self.attention_of(layer)
        has_norms = attention.qk_norm != "none" or attention.norms_values
        return {
            "num_heads": attention.num_heads,
            "num_kv_heads": attention.num_kv_heads,
            "head_dim": attention.head_dim,
            "layer": self._source_of(layer),
            "scale": attention.scale,
            **given(
                window=(attention.window, 0),
                softcap=(attention.softcap, 0.0),
                rotate=(int(attention.rope is not None), 1),
                norm_after_rotation=(int(attention.norm_after_rope), 0),
                norms_values=(int(attention.norms_values), 0),
                values_are_keys=(int(attention.values_are_keys), 0),
                shares_cache=(int(attention.kv_from is not None), 0),
                gated=(int(attention.has_gate), 0),
                clip=(attention.clip, 0.0),
            ),
            **({"epsilon": self._decoder.norm_epsilon} if has_norms else {}),
        }
