"""The numbers of a model that a plan is computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from edge_rt.memory.drafter_shapes import AheadShape, ahead_shape
from edge_rt.memory.figures import Choice, Device
from edge_rt.package.decoder import Decoder, Model
from edge_rt.package.expert_sizes import ExpertSizes
from edge_rt.package.kv_formats import KV_FORMAT, portable_head_dim
from edge_rt.package.layer_sizes import TILE_ROWS, LayerSizes, layer_sizes, row_bytes
from edge_rt.package.layers import FeedForward, Recurrence
from edge_rt.package.manifest import KV_FORMATS, PER_LAYER, WEIGHTS_FILE, KvLosses, Manifest
from edge_rt.package.reader import Package
from edge_rt.package.spec_modes import OFF, Drafts, drafts_of
from edge_rt.package.weights_info import TracedInfo


@dataclass(frozen=True)
class ModelShape:
    """A model, and the numbers of its package, or of the one that a checkpoint would become.

    Attributes:
        read_bytes: bytes of weights that a pass over one row reads.
        kv_formats: cache formats that it can run with, preferred first.
        package_id: identity of the package; None if the numbers are estimated from a checkpoint.
        kv_losses: what the first of these formats was chosen by; None if nothing was measured.
        activations: ``"int8"`` or ``"float"``.
        fine_blocks: blocks of one linear layer's input, at most, that have 16 bits.
        traced: what is known of a traced graph; None for the other op profiles.
        segments: graphs that the layers are cut into; with several the head is a graph of its own as well.
        has_upper_halves: whether its weights are nested, so that it can draft with fewer bits.
        has_states_graph: whether it has a graph of its own for embeddings.
        table_bytes: of ``weights.bin``, those of a table of which few rows are read, and which is given back behind.
        largest_tensor_bytes: of ``weights.bin``, at most; None: not known.
        ahead: of a block that predicts further ahead; None without one.
        layers: what each layer takes, if they may be divided between the CPU and a GPU (``gpu_layer_counts`` says how);
            None: they may not.
        experts: what experts take, if they may be read while the model runs; None: they may not, or there are none.
        called: the name of the package's folder, which is that in the store; empty: there is no package.
    """

    model: Model
    op_profile: str
    weights_bytes: int
    read_bytes: int
    tokenizer_bytes: int
    kv_formats: tuple[str, ...]
    package_id: str | None
    kv_losses: KvLosses | None = None
    activations: str = "int8"
    fine_blocks: int = 0
    traced: TracedInfo | None = None
    segments: int = 1
    has_upper_halves: bool = False
    has_states_graph: bool = False
    table_bytes: int = 0
    largest_tensor_bytes: int | None = None
    layers: LayerSizes | None = None
    experts: ExpertSizes | None = None
    ahead: AheadShape | None = None
    called: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """What users call the model: its package's name, else the one that its file gives it."""
        return self.called or self.model.name

    @property
    def graphs(self) -> int:
        """Graphs of the package, without one for drafts."""
        return (self.segments + 1 if self.segments > 1 else 1) + self.has_states_graph

    @property
    def qkv_size(self) -> int:
        """Features of the queries, keys and values of a token, gates included."""
        return self.model.qkv_size

    @cached_property
    def known_passes(self) -> dict[tuple[int, int, int], int]:
        """What ``terms.passes_bytes`` has computed, by its arguments: a plan asks for a few of them a hundred times."""
        return {}

    @cached_property
    def window_layers(self) -> int:
        """Layers whose cache holds a sliding window or a convolution's rows; that of traced graphs holds all tokens."""
        return 0 if self.traced is not None else sum(window > 0 for window in self.model.layer_windows)

    @cached_property
    def conv_layers(self) -> int:
        """Those of them that are short convolutions."""
        return 0 if self.traced is not None else len(self.model.conv_layers)

    @cached_property
    def full_layers(self) -> int:
        """Layers whose cache holds keys and values of all tokens."""
        if self.traced is not None or not isinstance(self.model, Decoder):
            return self.model.num_layers
        return sum(not self.model.attention_of(layer).window for layer in self.model.attention_layers)

    @cached_property
    def window_attentions(self) -> int:
        """Layers whose cache holds keys and values of a sliding window."""
        return self.window_layers - self.conv_layers

    @cached_property
    def recurrent_layers(self) -> int:
        """Layers that have a state."""
        return len(self.model.recurrent_layers)

    @cached_property
    def recurrences(self) -> tuple[Recurrence, ...]:
        """The different mixers with a state."""
        kinds = self.model.kinds if isinstance(self.model, Decoder) else ()
        return tuple(layer.recurrence for layer in kinds if layer.recurrence is not None)

    @cached_property
    def expert_layers(self) -> int:
        """Layers that have experts."""
        return len(self.model.expert_layers) if isinstance(self.model, Decoder) else 0

    @cached_property
    def gpu_layer_counts(self) -> tuple[int, ...]:
        """How many layers, the last ones, a GPU may compute while the CPU computes the others, ascending."""
        if self.layers is None:
            return ()
        count, model = self.model.num_layers, self.model
        divisions = model.divisions if isinstance(model, Decoder) else range(1, count)
        return tuple(count - first for first in reversed(divisions))

    @property
    def conv_row_bytes(self) -> int:
        """Bytes of a row of a short convolution."""
        return 4 * self.model.hidden_size

    @property
    def rotation_bytes(self) -> int:
        """Bytes of the rotary embedding tables in ``weights.bin``: cosine and sine of every position, float32."""
        return _rotation_bytes(self.model, self.traced)

    @property
    def loaded_rope_bytes(self) -> int:
        """Bytes of such tables per token of context, where they are computed when the package is loaded."""
        if self.traced is not None or not isinstance(self.model, Decoder) or not self.model.loads_rope:
            return 0
        return self.model.rope_bytes(1)

    @property
    def short_context(self) -> int:
        """Tokens of the longest context of the first rotation, where longer contexts have another; else 0."""
        return self.model.short_context if isinstance(self.model, Decoder) else 0

    @property
    def drafts(self) -> Drafts:
        """What speculation may draft."""
        return drafts_of(self.op_profile, self.traced)

    @property
    def is_estimate(self) -> bool:
        """Whether the numbers are estimated, not those of a package."""
        return self.package_id is None

    def cache_bytes(self, kv_format: str, full: int, windowed: int, *, is_read: bool = False) -> int:
        """Return the bytes of so many tokens in the KV cache of layers that keep all, and of those with a window.

        Args:
            is_read: of all layers that read them, which may be others than those that keep them.
        """
        model, row = self.model, KV_FORMAT[kv_format]
        if self.op_profile != "native" or not isinstance(model, Decoder):
            return (self.full_layers * full + self.window_attentions * windowed) * self.token_bytes(kv_format)
        return sum(
            layers * (windowed if one.window else full) * row.token_bytes(one.num_kv_heads, one.head_dim)
            for one, layers in model.attention_kinds
            if is_read or one.kv_from is None
        )

    def layer_bytes(self, kv_format: str, full: int, windowed: int) -> Mapping[int, int]:
        """Return layer -> bytes of so many tokens in the KV cache, of layers of a native package that keep any."""
        model, row = self.model, KV_FORMAT[kv_format]
        if not isinstance(model, Decoder):
            return dict.fromkeys(range(model.num_layers), full * self.token_bytes(kv_format))
        heads = {layer: model.attention_of(layer) for layer in model.kv_layers}
        return {
            layer: (windowed if one.window else full) * row.token_bytes(one.num_kv_heads, one.head_dim)
            for layer, one in heads.items()
        }

    def token_bytes(self, kv_format: str) -> int:
        """Return the bytes of one token in the KV cache of one layer, at most."""
        heads, size = self.model.num_kv_heads, self.model.head_dim
        if self.op_profile != "native":
            return 2 * heads * (portable_head_dim(size) if self.op_profile == "portable" else size) * 4
        return KV_FORMAT[kv_format].token_bytes(heads, size)


def _rotation_bytes(model: Model, traced: TracedInfo | None) -> int:
    if traced is not None:
        # Such graphs compute rotations, and have no table of them.
        return 0
    if isinstance(model, Decoder):
        return 0 if model.loads_rope else model.rope_bytes(model.context_length)
    return 2 * model.context_length * (model.head_dim // 2) * 4


def _feed_forward_weights(inner: FeedForward, width: int) -> int:
    return (3 if inner.is_gated else 2) * width * inner.size


def _idle_share(model: Model) -> float:
    """Return how much of a model's matrices a row does not read: those of experts that it has not, of as many bits."""
    if not isinstance(model, Decoder) or not model.expert_layers:
        return 0.0
    hidden, idle = model.hidden_size, 0
    whole = model.vocab_size * hidden
    for layer in model.layers:
        attention, experts = layer.attention, layer.experts
        if attention is None:
            whole += 4 * hidden**2
        else:
            whole += hidden * (attention.query_rows + attention.query_size + 2 * attention.key_size)
        whole += 0 if layer.feed_forward is None else _feed_forward_weights(layer.feed_forward, hidden)
        if experts is not None:
            each = _feed_forward_weights(experts.each, experts.latent or hidden)
            whole += experts.count * each + 2 * hidden * experts.latent
            idle += (experts.count - experts.chosen) * each
    return idle / whole


def shape_of(manifest: Manifest, package_id: str | None) -> ModelShape:
    """Return the numbers of a package.

    Args:
        package_id: identity of the package; None if there is no package yet.
    """
    usable = tuple(name for name in manifest.kv_formats if name in KV_FORMATS[manifest.op_profile])
    found = shape_of_model(
        manifest.model,
        op_profile=manifest.op_profile,
        weights_bytes=manifest.files[WEIGHTS_FILE].size,
        tokenizer_bytes=manifest.files[manifest.tokenizer.file].size,
        kv_formats=usable,
        package_id=package_id,
        kv_losses=manifest.kv_losses,
        activations=manifest.activations,
        fine_blocks=0 if manifest.rounding is None else manifest.rounding.most_blocks,
        traced=manifest.traced,
        segments=len(manifest.segments),
        has_upper_halves=manifest.draft_graph is not None,
        has_states_graph=manifest.pooling is not None,
        table_bytes=_table(manifest),
        largest_tensor_bytes=_largest_tensor(manifest),
    )
    return replace(found, ahead=ahead_shape(manifest))


def shape_of_package(package: Package) -> ModelShape:
    """Return the numbers of an opened package, with the name that its folder has."""
    return replace(shape_of(package.manifest, package.id), called=package.path.name)


def shape_on(shape: ModelShape, package: Package, device: Device) -> ModelShape:
    """Return the numbers of a package for a device: on a GPU with what a block that predicts ahead reads beside it.

    And with those of its layers where these may be divided, which is where a GPU has memory of its own.
    """
    ahead = package.manifest.ahead
    if shape.ahead is not None and ahead is not None and device.gpu is not None:
        tensors = package.tensors
        read = {place.offset: place.length for place in tensors[ahead.graph].values()}
        others = {place.offset for graph in tensors if graph != ahead.graph for place in tensors[graph].values()}
        own = sum(length for offset, length in read.items() if offset not in others)
        shape = replace(shape, ahead=replace(shape.ahead, weights_bytes=sum(read.values()), own_bytes=own))
    return replace(shape, layers=layer_sizes(package)) if device.has_own_gpu_memory else shape


def _table(manifest: Manifest) -> int:
    """Return the bytes of the table of further embeddings for each layer."""
    model, types = manifest.model, manifest.quantisation.get(PER_LAYER)
    if types is None or not isinstance(model, Decoder) or manifest.op_profile != "native":
        return 0
    return table_bytes(model, types)


def table_bytes(decoder: Decoder, types: str) -> int:
    """Return the bytes of that table in a type, as in ``quantisation``."""
    return _matrix_bytes(decoder.vocab_size, decoder.per_layer_embedding * decoder.num_layers, types)


def _matrix_bytes(rows: int, inputs: int, types: str) -> int:
    return -(-rows // TILE_ROWS) * TILE_ROWS * row_bytes(inputs, types)


def _largest_tensor(manifest: Manifest) -> int:
    """Return the bytes of the largest matrix, at most; a type that is not known counts as floats.

    The table of further embeddings is none of them: where layers are divided the process reads rows of it in place.
    """
    model, types = manifest.model, manifest.quantisation
    hidden, inner = model.hidden_size, model.intermediate_size
    further = model.per_layer_embedding * model.num_layers if isinstance(model, Decoder) else 0
    queries = model.qkv_size
    matrices = (
        ("embedding", model.vocab_size, hidden),
        ("head", model.vocab_size, hidden),
        ("feed_forward", 2 * inner, hidden),
        ("feed_forward", hidden, inner),
        ("attention", queries, hidden),
        ("attention", hidden, model.query_size),
        (PER_LAYER, further, hidden),
    )
    # A class of matrices that is not named is another one's.
    found = (_matrix_bytes(rows, inputs, types[kind]) for kind, rows, inputs in matrices if kind in types)
    size = manifest.files[WEIGHTS_FILE].size
    return min(size, max(found, default=size))


def likely_fine_blocks(model: Model) -> int:
    """Return the blocks of 16 bits that count for a checkpoint, whose export chooses them: a quarter, as in SmolLM2."""
    return -(-max(model.hidden_size, model.intermediate_size) // (4 * 32))


def shape_of_model(
    model: Model,
    *,
    op_profile: str,
    weights_bytes: int,
    tokenizer_bytes: int,
    kv_formats: tuple[str, ...],
    package_id: str | None = None,
    kv_losses: KvLosses | None = None,
    embedding_bytes: int | None = None,
    activations: str = "int8",
    fine_blocks: int = 0,
    traced: TracedInfo | None = None,
    segments: int = 1,
    has_upper_halves: bool = False,
    has_states_graph: bool = False,
    table_bytes: int = 0,
    largest_tensor_bytes: int | None = None,
) -> ModelShape:
    """Return the numbers of a model whose file sizes are known or estimated; the others are as in ``ModelShape``.

    Args:
        embedding_bytes: bytes of an embedding table that is not shared with the head; None assumes 8 bits per element.
        table_bytes: as in ``ModelShape``.
    """
    if embedding_bytes is None:
        embedding_bytes = model.vocab_size * (model.hidden_size + 2 * -(-model.hidden_size // 32))
    # A pass over one row reads only one row of these tables.
    unread = 0 if model.is_tied else min(embedding_bytes, weights_bytes // 2)
    unread += min(_rotation_bytes(model, traced), weights_bytes // 4) + table_bytes
    unread += int(_idle_share(model) * (weights_bytes - unread))
    return ModelShape(
        model=model,
        op_profile=op_profile,
        weights_bytes=weights_bytes,
        read_bytes=weights_bytes - unread,
        tokenizer_bytes=tokenizer_bytes,
        kv_formats=kv_formats,
        package_id=package_id,
        kv_losses=kv_losses,
        activations=activations,
        fine_blocks=fine_blocks,
        traced=traced,
        segments=segments,
        has_upper_halves=has_upper_halves,
        has_states_graph=has_states_graph,
        table_bytes=table_bytes,
        largest_tensor_bytes=largest_tensor_bytes,
    )


LARGEST_CHUNK: Final = 64
"""Most tokens of a pass over a prompt by a model that drafts: it waits for the other one anyway."""


@dataclass(frozen=True)
class DraftModelShape:
    """Numbers of a model that drafts."""

    shape: ModelShape
    path: str
    known_tokens: int

    def choice(self, other: Choice) -> Choice:
        """Return the settings that it runs with beside a model with these settings: one row of logits, no drafts."""
        shape = self.shape
        ctx = min(other.ctx, shape.model.context_length)
        kv = other.kv_format if other.kv_format in shape.kv_formats else shape.kv_formats[0]
        return Choice(ctx, kv, OFF, 0, min(other.prefill_chunk, LARGEST_CHUNK), 0, 0, 1)
