"""``manifest.json`` as dataclasses: the description of a package, field by field as in ``docs/package-format.md``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.package.decoder import MAX_TOP_TOKENS, Decoder
from edge_rt.package.documents import FileInfo
from edge_rt.package.kv_formats import portable_head_dim
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.package.spec_modes import Drafts
from edge_rt.package.weights_info import TracedInfo, WeightsInfo

FORMAT_NAME: Final = "edge-rt package"
FORMAT_VERSION: Final = 1
"""Layout of the folder and of ``manifest.json``; raised when an older reader would misread a package."""
GRAPH_VERSIONS: Final[Mapping[str, int]] = {"native": 2, "portable": 1, "traced": 1}
"""Op profile -> version of the names and meaning of its graphs' inputs and outputs; raised when the runtime has to bind
them differently."""
WINDOW_GRAPH_VERSIONS: Final[Mapping[str, int]] = {"native": 3, "portable": 1, "traced": 1}
"""The same for models with a sliding window: a reader that does not support windows must not run them without one."""
CALIBRATED_GRAPH_VERSION: Final = 4
"""The same for native graphs, with or without a window, whose attention takes constants for 4-bit keys."""
FORMATS_GRAPH_VERSION: Final = 5
"""The same for all native graphs with matrices of types that are not among the first ones."""
DECODER_GRAPH_VERSION: Final = 6
"""The same for all graphs of a decoder that is described, in either op profile."""
SEGMENTED_GRAPH_VERSION: Final = 7
"""The same for all native graphs that are cut at exits: a pass runs several of them."""
NESTED_GRAPH_VERSION: Final = 8
"""The same for all native graphs with nested codes, described or not, cut at exits or not."""
PADDED_GRAPH_VERSION: Final = 9
"""The same for all portable graphs whose cache pads heads (``portable_head_dim``)."""
NESTED_TYPES: Final = frozenset({"W8N"})
"""Types of nested codes."""
FIRST_TYPES: Final = frozenset({"Q4_0", "Q4_1", "Q8_0", "F16", "F32"})
"""Types of matrices that every version of the native operators knows."""

MANIFEST_FILE: Final = "manifest.json"
WEIGHTS_FILE: Final = "weights.bin"
TOKENIZER_FILE: Final = "tokenizer.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
TOOL_TEMPLATE_FILE: Final = "chat_template.tool_use.jinja"
KV_FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "native": ("f16", "f32", "int8", "k8v4", "int4", "int4x2"),
    "portable": ("f32",),
    "traced": ("f32",),
}
"""Op profile -> cache formats that this version can run it with, preferred first."""
WEIGHT_LAYOUTS: Final[Mapping[str, str]] = {"native": "tile16", "portable": "matmulnbits", "traced": "initializers"}
"""Op profile -> name of the layout of its matrices in ``weights.bin``."""
OP_PROFILES: Final = tuple(KV_FORMATS)
"""Operators of a graph: those of ``ort.op_library``, ONNX Runtime's own, or those that another exporter writes."""

BUILT_IN_CALIBRATION: Final = "built-in"
"""Name of edge-rt's own calibration text."""

MAX_MANIFEST_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions of the architecture; sizes count elements, ``context_length`` and ``sliding_window`` count tokens.

    ``sliding_window`` is how many tokens attention sees, the token itself included, in every layer but ``full_layers``;
    0: all of them.
    """

    name: str
    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: str
    tied_embedding: bool
    num_parameters: int
    sliding_window: int = 0
    full_layers: tuple[int, ...] = ()

    @property
    def top_tokens(self) -> int:
        """Most likely tokens that a native graph returns with every row of logits."""
        return min(MAX_TOP_TOKENS, self.vocab_size)

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """Sliding window of every layer; 0: none."""
        full = frozenset(self.full_layers)
        return tuple(0 if layer in full else self.sliding_window for layer in range(self.num_layers))


@dataclass(frozen=True)
class Segment:
    """One graph and the layers it computes, ``[first_layer, end_layer)``.

    The last segment computes logits. Where there are several, they are cut at the package's exits, and the others
    compute hidden states; the graph ``Manifest.exit_head`` makes logits of them, too.
    """

    name: str
    graph: str
    first_layer: int
    end_layer: int


@dataclass(frozen=True)
class TokenizerInfo:
    """File of the tokenizer, and the token ids that the engine needs."""

    file: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool


@dataclass(frozen=True)
class AdapterInfo:
    """A LoRA adapter that was merged into the weights.

    Attributes:
        kind: ``"peft"`` or ``"gguf"``.
        name: of its folder or file.
        scale: that was asked for, besides the adapter's own.
        size: their bytes.
        license: licence identifier given by the adapter, or None.
        model: that it was trained on, as it says; None if it does not.
    """

    kind: str
    name: str
    scale: float
    sha256: str
    size: int
    license: str | None
    model: str | None


@dataclass(frozen=True)
class SourceInfo:
    """The checkpoint that the package was made from, and the adapters that were merged into it, in their order."""

    kind: str
    name: str
    sha256: str
    size: int
    adapters: tuple[AdapterInfo, ...] = ()


@dataclass(frozen=True)
class KeyCalibration:
    """The text that the constants of 4-bit keys were computed from.

    Attributes:
        tokens: number of tokens of the text that were used.
        source: ``BUILT_IN_CALIBRATION``, or the name of a file.
    """

    tokens: int
    source: str


@dataclass(frozen=True)
class Manifest:
    """Contents of ``manifest.json``.

    Attributes:
        format_version: see ``FORMAT_VERSION``.
        graph_version: see ``graph_version``.
        producer: program and version that wrote the package.
        op_profile: ``"native"`` (edge-rt's operators), ``"portable"`` (ONNX Runtime's own) or ``"traced"`` (the graph
            of another exporter).
        activations: ``"int8"`` (linear layers quantise their input per block) or ``"float"``.
        quantisation: tensor class -> stored type, for example ``{"embedding": "Q8_0"}``.
        kv_formats: cache formats that the graph can be run with, preferred first.
        segments: graphs in the order they run.
        drafters: names of the folders under ``drafters/``.
        chat_template: file of the template, or None.
        tool_template: file of a second template, for requests with tools; None without one.
        license: licence identifier given by the checkpoint, or None.
        key_calibration: calibration text of the constants of 4-bit keys; None for a package without them.
        sampling: recommended sampling values; None if there are none.
        weights: how weights were quantised for the package; None if they are the checkpoint's.
        decoder: what the graphs compute; None for a plain llama, and for a traced graph.
        traced: what is known of a traced graph; None for the other op profiles.
        exit_head: graph that makes logits of the hidden states at exits, in packages with several segments; else None.
        draft_graph: file of a second graph over the same weights, which reads the upper halves of nested codes alone;
            None without one.
    """

    format_version: int
    graph_version: int
    producer: str
    model: ModelConfig
    op_profile: str
    activations: str
    quantisation: Mapping[str, str]
    kv_formats: tuple[str, ...]
    segments: tuple[Segment, ...]
    drafters: tuple[str, ...]
    tokenizer: TokenizerInfo
    chat_template: str | None
    source: SourceInfo
    license: str | None
    key_calibration: KeyCalibration | None = dataclasses.field(default=None, kw_only=True)
    tool_template: str | None = dataclasses.field(default=None, kw_only=True)
    sampling: SamplingAdvice | None = dataclasses.field(default=None, kw_only=True)
    weights: WeightsInfo | None = dataclasses.field(default=None, kw_only=True)
    decoder: Decoder | None = dataclasses.field(default=None, kw_only=True)
    traced: TracedInfo | None = dataclasses.field(default=None, kw_only=True)
    exit_head: str | None = dataclasses.field(default=None, kw_only=True)
    draft_graph: str | None = dataclasses.field(default=None, kw_only=True)
    files: Mapping[str, FileInfo]

    @property
    def weight_layout(self) -> str:
        """Name of the layout of the matrices in ``weights.bin``; it follows from the op profile."""
        return WEIGHT_LAYOUTS[self.op_profile]

    @property
    def drafts(self) -> Drafts:
        """What speculation may draft with this package."""
        return drafts_of(self.op_profile, self.traced)

    @property
    def exits(self) -> tuple[int, ...]:
        """The layers behind which a draft can end; none in packages with one segment."""
        return tuple(segment.end_layer for segment in self.segments[:-1])

    @property
    def graphs(self) -> tuple[str, ...]:
        """Files of the graphs, in the order they run."""
        return (*(segment.graph for segment in self.segments), *filter(None, [self.exit_head]))

    def to_bytes(self) -> bytes:
        """Return the canonical form of this manifest: UTF-8 JSON, keys in field order, two spaces, final newline."""
        document: dict[str, Any] = {"format": FORMAT_NAME, **dataclasses.asdict(self)}
        if not self.model.sliding_window:
            # Left out if there is none: such packages are the same as those of versions without windows.
            del document["model"]["sliding_window"]
        if not self.model.full_layers:
            del document["model"]["full_layers"]
        if not self.source.adapters:
            del document["source"]["adapters"]
        if self.decoder is None:
            del document["decoder"]
        if self.traced is None:
            del document["traced"]
        if self.exit_head is None:
            del document["exit_head"]
        if self.draft_graph is None:
            del document["draft_graph"]
        if self.tool_template is None:
            del document["tool_template"]
        if self.key_calibration is None:
            del document["key_calibration"]
        if self.sampling is None:
            del document["sampling"]
        else:
            document["sampling"] = self.sampling.given
        if self.weights is None:
            del document["weights"]
        else:
            for found in document["weights"]["classes"].values():
                if found["upper_error"] is None:
                    del found["upper_error"]
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def drafts_of(op_profile: str, traced: TracedInfo | None) -> Drafts:
    """Return what speculation may draft with a package of an op profile; ``traced`` as in its manifest."""
    if traced is not None:
        return Drafts.CHAINS if traced.exact_rows > 1 else Drafts.NOTHING
    return Drafts.TREES if op_profile == "native" else Drafts.ASKED_CHAINS


def graph_version(
    op_profile: str,
    sliding_window: int,
    *,
    head_dim: int = 0,
    is_calibrated: bool = False,
    types: Collection[str] = (),
    is_described: bool = False,
    is_segmented: bool = False,
) -> int:
    """Return the version of the graphs of an op profile.

    See ``GRAPH_VERSIONS``, ``WINDOW_GRAPH_VERSIONS``, ``CALIBRATED_GRAPH_VERSION``, ``FORMATS_GRAPH_VERSION``,
    ``DECODER_GRAPH_VERSION``, ``SEGMENTED_GRAPH_VERSION``, ``NESTED_GRAPH_VERSION`` and ``PADDED_GRAPH_VERSION``.

    Args:
        is_calibrated: whether the package has constants for 4-bit keys.
        types: of its matrices, as in ``quantisation``; several are joined by ``+``.
        is_described: whether the manifest describes the decoder.
        is_segmented: whether there are several segments.
    """
    if op_profile == "portable" and portable_head_dim(head_dim) != head_dim:
        return PADDED_GRAPH_VERSION
    used = {name for joined in types for name in joined.split("+")}
    if used & NESTED_TYPES:
        return NESTED_GRAPH_VERSION
    if is_segmented:
        return SEGMENTED_GRAPH_VERSION
    if is_described:
        return DECODER_GRAPH_VERSION
    if op_profile == "native" and not used <= FIRST_TYPES:
        return FORMATS_GRAPH_VERSION
    if is_calibrated and op_profile == "native":
        return CALIBRATED_GRAPH_VERSION
    return (WINDOW_GRAPH_VERSIONS if sliding_window else GRAPH_VERSIONS)[op_profile]


def config_of(decoder: Decoder, num_parameters: int) -> ModelConfig:
    """Return the dimensions of a described model that are written into the package's manifest."""
    windows, rope = decoder.layer_windows, decoder.ropes[0]
    return ModelConfig(
        name=decoder.name,
        architecture=decoder.family,
        hidden_size=decoder.hidden_size,
        num_layers=decoder.num_layers,
        num_heads=decoder.num_heads,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        intermediate_size=decoder.intermediate_size,
        vocab_size=decoder.vocab_size,
        context_length=decoder.context_length,
        rms_norm_eps=decoder.norm_epsilon,
        rope_theta=rope.base,
        rope_scaling=_rope_scaling(decoder),
        tied_embedding=decoder.is_tied,
        num_parameters=num_parameters,
        sliding_window=decoder.sliding_window,
        full_layers=tuple(i for i, window in enumerate(windows) if not window) if any(windows) else (),
    )


def _rope_scaling(decoder: Decoder) -> str:
    """Return the name of how the first rotation is scaled; divisors of frequencies have none in plain manifests."""
    kind = decoder.ropes[0].kind
    return "none" if kind == "default" or (decoder.is_plain and kind not in ("linear", "yarn")) else kind
