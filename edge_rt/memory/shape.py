"""The numbers of a model that a plan is computed from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_rt.kv_formats import KV_FORMAT, portable_head_dim
from edge_rt.memory.figures import Device
from edge_rt.package.decoder import Decoder
from edge_rt.package.layer_sizes import LayerSizes, layer_sizes
from edge_rt.package.manifest import KV_FORMATS, WEIGHTS_FILE, Manifest, ModelConfig, drafts_of
from edge_rt.package.reader import Package
from edge_rt.package.tile_units import TILE_ROWS, row_bytes
from edge_rt.package.traced_info import TracedInfo
from edge_rt.spec_modes import Drafts


@dataclass(frozen=True)
class ModelShape:
    """Numbers of a model, from a package or estimated from a checkpoint.

    Attributes:
        name: name of the model.
        architecture: as in the manifest.
        op_profile: ``"native"``, ``"portable"`` or ``"traced"``.
        num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size, context_length: as
            in ``ModelConfig``.
        sliding_window: tokens in the sliding window; 0 if no layer has one.
        window_layers: number of layers with a sliding window.
        weights_bytes: size of ``weights.bin``, as it is mapped.
        read_bytes: bytes of weights that a pass over one row reads.
        tokenizer_bytes: size of ``tokenizer.json``.
        kv_formats: cache formats that it can run with, preferred first.
        package_id: identity of the package; None if the numbers are estimated from a checkpoint.
        activations: ``"int8"`` or ``"float"``.
        stored_rope_bytes: of the rotary embedding tables in ``weights.bin``; None: of one table of whole heads.
        loaded_rope_bytes: of such tables per token of context, where they are computed when the package is loaded.
        short_context: tokens of the longest context of the first rotation, where longer contexts have another; else 0.
        traced: what is known of a traced graph; None for the other op profiles.
        segments: graphs that the layers are cut into; with several the head is a graph of its own as well.
        twice_mapped_bytes: of ``weights.bin``, what two segments map: a table that is embedding and head.
        exit_head_bytes: of ``weights.bin``, what the head's own graph maps, which drafts at exits run; a GPU holds it
            once more.
        has_upper_halves: whether its weights are nested, so that it can draft with fewer bits.
        largest_tensor_bytes: of ``weights.bin``, at most; None: not known.
        layers: what each layer takes, if they may be divided between the CPU and a GPU; None: they may not.
    """

    name: str
    architecture: str
    op_profile: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    sliding_window: int
    window_layers: int
    weights_bytes: int
    read_bytes: int
    tokenizer_bytes: int
    kv_formats: tuple[str, ...]
    package_id: str | None
    activations: str = "int8"
    stored_rope_bytes: int | None = None
    loaded_rope_bytes: int = 0
    short_context: int = 0
    traced: TracedInfo | None = None
    segments: int = 1
    twice_mapped_bytes: int = 0
    exit_head_bytes: int = 0
    has_upper_halves: bool = False
    largest_tensor_bytes: int | None = None
    layers: LayerSizes | None = None

    @property
    def graphs(self) -> int:
        """Graphs of the package."""
        return self.segments + 1 if self.segments > 1 else 1

    @property
    def qkv_size(self) -> int:
        """Features of the queries, keys and values of a token."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def rotation_bytes(self) -> int:
        """Bytes of the rotary embedding tables in ``weights.bin``: cosine and sine of every position, float32."""
        if self.stored_rope_bytes is not None:
            return self.stored_rope_bytes
        return _rotation_bytes(self.context_length, self.head_dim)

    @property
    def drafts(self) -> Drafts:
        """What speculation may draft."""
        return drafts_of(self.op_profile, self.traced)

    @property
    def is_estimate(self) -> bool:
        """Whether the numbers are estimated, not those of a package."""
        return self.package_id is None

    def token_bytes(self, kv_format: str) -> int:
        """Return the bytes of one token in the KV cache of one layer."""
        if self.op_profile != "native":
            stored = portable_head_dim(self.head_dim) if self.op_profile == "portable" else self.head_dim
            return 2 * self.num_kv_heads * stored * 4
        return KV_FORMAT[kv_format].token_bytes(self.num_kv_heads, self.head_dim)


def _rotation_bytes(positions: int, head_dim: int) -> int:
    return 2 * positions * (head_dim // 2) * 4


def shape_of(manifest: Manifest, package_id: str | None) -> ModelShape:
    """Return the numbers of a package.

    Args:
        manifest: manifest of the package.
        package_id: identity of the package; None if there is no package yet.
    """
    usable = tuple(name for name in manifest.kv_formats if name in KV_FORMATS[manifest.op_profile])
    return shape_of_config(
        manifest.model,
        op_profile=manifest.op_profile,
        weights_bytes=manifest.files[WEIGHTS_FILE].size,
        tokenizer_bytes=manifest.files[manifest.tokenizer.file].size,
        kv_formats=usable,
        package_id=package_id,
        activations=manifest.activations,
        decoder=manifest.decoder,
        traced=manifest.traced,
        segments=len(manifest.segments),
        has_upper_halves=manifest.draft_graph is not None,
        largest_tensor_bytes=_largest_tensor(manifest),
        head_bytes=_head(manifest),
    )


def shape_on(shape: ModelShape, package: Package, device: Device) -> ModelShape:
    """Return the numbers of a package, with those of its layers where these may be divided.

    That is where a GPU has memory of its own.

    Args:
        shape: the numbers.
        package: the package.
        device: the machine.

    Raises:
        StorageError: the graph cannot be read.
    """
    return replace(shape, layers=layer_sizes(package)) if device.has_own_gpu_memory else shape


def _head(manifest: Manifest) -> int | None:
    """Return the bytes of the head's matrix, at most; None if its type is not named."""
    model, types = manifest.model, manifest.quantisation
    found = types.get("head", types.get("embedding"))
    return None if found is None else _matrix_bytes(model.vocab_size, model.hidden_size, found)


def _matrix_bytes(rows: int, inputs: int, types: str) -> int:
    return -(-rows // TILE_ROWS) * TILE_ROWS * row_bytes(inputs, types)


def _largest_tensor(manifest: Manifest) -> int:
    """Return the bytes of the largest matrix, at most; a type that is not known counts as floats."""
    model, types = manifest.model, manifest.quantisation
    hidden, inner = model.hidden_size, model.intermediate_size
    queries = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    matrices = (
        ("embedding", model.vocab_size, hidden),
        ("head", model.vocab_size, hidden),
        ("feed_forward", 2 * inner, hidden),
        ("feed_forward", hidden, inner),
        ("attention", queries, hidden),
        ("attention", hidden, model.num_heads * model.head_dim),
    )
    # A class of matrices that is not named is another one's.
    found = (_matrix_bytes(rows, inputs, types[kind]) for kind, rows, inputs in matrices if kind in types)
    size = manifest.files[WEIGHTS_FILE].size
    return min(size, max(found, default=size))


def shape_of_config(
    config: ModelConfig,
    *,
    op_profile: str,
    weights_bytes: int,
    tokenizer_bytes: int,
    kv_formats: tuple[str, ...],
    package_id: str | None = None,
    embedding_bytes: int | None = None,
    activations: str = "int8",
    window_layers: int | None = None,
    decoder: Decoder | None = None,
    traced: TracedInfo | None = None,
    segments: int = 1,
    has_upper_halves: bool = False,
    largest_tensor_bytes: int | None = None,
    head_bytes: int | None = None,
) -> ModelShape:
    """Return the numbers of a model whose file sizes are known or estimated.

    Args:
        config: numbers of the architecture.
        op_profile: ``"native"``, ``"portable"`` or ``"traced"``.
        weights_bytes: size of ``weights.bin``.
        tokenizer_bytes: size of ``tokenizer.json``.
        kv_formats: cache formats that it can run with, preferred first.
        package_id: identity of the package; None if there is no package yet.
        embedding_bytes: bytes of an embedding table that is not shared with the head; None assumes 8 bits per element.
        activations: ``"int8"`` or ``"float"``.
        window_layers: number of layers with a sliding window; None: those of ``config``.
        decoder: the description, if there is one.
        traced: what is known of a traced graph; None for the other op profiles.
        segments: graphs that the layers are cut into.
        has_upper_halves: whether its weights are nested.
        largest_tensor_bytes: of ``weights.bin``, at most; None: not known.
        head_bytes: bytes of the head's matrix; None assumes those of the embedding.
    """
    if embedding_bytes is None:
        embedding_bytes = config.vocab_size * (config.hidden_size + 2 * -(-config.hidden_size // 32))
    # A pass over one row reads only one row of these tables.
    unread = 0 if config.tied_embedding else min(embedding_bytes, weights_bytes // 2)
    stored, loaded = _rotation_bytes(config.context_length, config.head_dim), 0
    if decoder is not None:
        stored = decoder.rope_bytes(config.context_length)
        if decoder.loads_rope:
            stored, loaded = 0, decoder.rope_bytes(1)
    if traced is not None:
        # Such graphs compute rotations, and have no table of them.
        stored = 0
    unread += min(stored, weights_bytes // 4)
    table = min(embedding_bytes if head_bytes is None else head_bytes, weights_bytes)
    windows = sum(window > 0 for window in config.layer_windows) if window_layers is None else window_layers
    return ModelShape(
        name=config.name,
        architecture=config.architecture,
        op_profile=op_profile,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        sliding_window=config.sliding_window,
        window_layers=windows if config.sliding_window else 0,
        weights_bytes=weights_bytes,
        read_bytes=weights_bytes - unread,
        tokenizer_bytes=tokenizer_bytes,
        kv_formats=kv_formats,
        package_id=package_id,
        activations=activations,
        stored_rope_bytes=stored,
        loaded_rope_bytes=loaded,
        short_context=0 if decoder is None else decoder.short_context,
        traced=traced,
        segments=segments,
        twice_mapped_bytes=table if segments > 1 and config.tied_embedding else 0,
        exit_head_bytes=table if segments > 1 else 0,
        has_upper_halves=has_upper_halves,
        largest_tensor_bytes=largest_tensor_bytes,
    )
