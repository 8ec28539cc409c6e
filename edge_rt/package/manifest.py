"""``manifest.json`` as dataclasses: the description of a package, field by field as in ``docs/package-format.md``."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.package.ahead import AheadInfo
from edge_rt.package.decoder import Decoder, Dimensions, Model
from edge_rt.package.documents import FileInfo, to_document
from edge_rt.package.expert_hits import ExpertHits
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.package.spec_modes import Drafts, drafts_of
from edge_rt.package.weights_info import TracedInfo, WeightsInfo

FORMAT_NAME: Final = "edge-rt package"
FORMAT_VERSION: Final = 3
"""Layout of the folder and of ``manifest.json``, and what graphs take and return; raised when any of it changes."""
NESTED_TYPES: Final = frozenset({"W8N"})
"""Types of nested codes."""

MANIFEST_FILE: Final = "manifest.json"
WEIGHTS_FILE: Final = "weights.bin"
TOKENIZER_FILE: Final = "tokenizer.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
PROMPTS_FOLDER: Final = "prompts"
"""Folder in a package, outside of the manifest, with what was computed of prompts that come with it."""
TOOL_TEMPLATE_FILE: Final = "chat_template.tool_use.jinja"
KV_FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "native": ("f16", "f32", "int8", "k8v4", "int4", "int4x2"),
    "portable": ("f32",),
    "traced": ("f32",),
}
"""Op profile -> cache formats that this version can run it with; the first is preferred where nothing is measured."""
WEIGHT_LAYOUTS: Final[Mapping[str, str]] = {"native": "tile16", "portable": "matmulnbits", "traced": "initializers"}
"""Op profile -> name of the layout of its matrices in ``weights.bin``."""
OP_PROFILES: Final = tuple(KV_FORMATS)
"""Operators of a graph: those of ``ort.op_library``, ONNX Runtime's own, or those that another exporter writes."""

ACTIVATIONS: Final = ("auto", "int8", "float")
"""Values of the option ``activations`` of an export."""
INPUT_BLOCK: Final = 32
"""Numbers of a linear layer's input that are rounded with one scale."""
_LAYER_INPUTS: Final = ("qkv", "output", "conv_in", "conv_out", "gate_up", "down")
PER_LAYER: Final = "per_layer_embedding"
"""Class of the matrices of further embeddings for each layer, in ``quantisation``."""
BUILT_IN_CALIBRATION: Final = "built-in"
"""Name of edge-rt's own calibration text."""

MAX_MANIFEST_BYTES: Final = 16 << 20


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
    """

    tokens: int
    source: str


@dataclass(frozen=True)
class KvLoss:
    """What a cache in one format loses.

    Attributes:
        kl: mean Kullback-Leibler divergence of the predictions with an f32 cache from those with this one, in nats a
            token.
        same_best: share of tokens at which the most likely token is that of an f32 cache.
    """

    kl: float
    same_best: float


@dataclass(frozen=True)
class KvLosses:
    """What caches lose that could be preferred, as the export measured it on its calibration text.

    Attributes:
        tokens: number of tokens of the text that were used.
        bound: by how many nats a token int8 may lose more than f16 to be preferred.
        formats: cache format -> what it loses.
    """

    source: str
    tokens: int
    bound: float
    formats: Mapping[str, KvLoss]

    def faults(self) -> Iterator[tuple[str, object, str]]:
        """Yield the fields that are out of range: name, value, and what is wanted, in words."""
        if self.tokens < 1:
            yield "tokens", self.tokens, "a number above 0"
        if not (math.isfinite(self.bound) and self.bound >= 0):
            yield "bound", self.bound, "a finite number, 0 or more"
        for name, loss in self.formats.items():
            if not math.isfinite(loss.kl):
                # Rounding may leave a divergence of nearly 0 below 0.
                yield f"formats.{name}.kl", loss.kl, "a finite number"
            if not 0 <= loss.same_best <= 1:
                yield f"formats.{name}.same_best", loss.same_best, "a number from 0 to 1"


@dataclass(frozen=True)
class ChosenOptions:
    """Options of an export as far as they were given; what is None was measured, or is the usual."""

    activations: str | None = None
    kv_type: str | None = None


@dataclass(frozen=True)
class Rounding:
    """Which blocks of the linear layers' inputs have 16 bits where others have 8, and what that was measured to give.

    Attributes:
        tokens: of the calibration text that predictions were compared on.
        int8_kl: mean Kullback-Leibler divergence of predictions with float activations from those with 8 bits
            everywhere, in nats a token.
        kl: the same with these blocks.
        fine_blocks: name of an input, such as ``"layer3.down"`` or ``"head"`` -> numbers of its blocks of 32, rising.
    """

    tokens: int
    int8_kl: float
    kl: float
    fine_blocks: Mapping[str, tuple[int, ...]]

    @property
    def most_blocks(self) -> int:
        """Fine blocks of one input, at most."""
        return max(map(len, self.fine_blocks.values()), default=0)

    def faults(self, model: Model) -> Iterator[tuple[str, object, str]]:
        """Yield the fields that are out of range: name, value, and what is wanted, in words."""
        if self.tokens < 1:
            yield "tokens", self.tokens, "a number above 0"
        for name, kl in (("int8_kl", self.int8_kl), ("kl", self.kl)):
            if not math.isfinite(kl):
                yield name, kl, "a finite number"
        widest = max(model.hidden_size, model.query_size, model.intermediate_size)
        names = {"head", *(f"layer{layer}.{kind}" for layer in range(model.num_layers) for kind in _LAYER_INPUTS)}
        for name, blocks in self.fine_blocks.items():
            if name not in names:
                wanted = f"head, or layerN.{{{','.join(_LAYER_INPUTS)}}} with N below {model.num_layers}"
                yield "fine_blocks", f"{name!r:.40}", wanted
            follow = all(before < block for before, block in itertools.pairwise((-1, *blocks)))
            if not blocks or not follow or blocks[-1] >= widest // INPUT_BLOCK:
                yield f"fine_blocks.{name:.40}", list(blocks[:8]), f"rising numbers below {widest // INPUT_BLOCK}"


LAST: Final = "last"
MEAN: Final = "mean"
MAX_PROMPTS: Final = 64
MAX_PROMPT_CHARACTERS: Final = 4096


@dataclass(frozen=True)
class Pooling:
    """How texts become embeddings, in packages of checkpoints that are made for that.

    Attributes:
        graph: file of a graph over the same weights that gives the states behind the final norm, and no logits.
        mode: ``last``: the state of the last token; ``mean``: the mean of all.
        normalises: whether embeddings have the length 1.
        prompts: name -> what may be put before a text.
        end_token_id: token behind every text; None: there is none.
    """

    graph: str
    mode: str
    normalises: bool
    prompts: Mapping[str, str]
    end_token_id: int | None = None

    def faults(self, model: Model) -> Iterator[tuple[str, object, str]]:
        """Yield the fields that are out of range: name, value, and what is wanted, in words."""
        if self.mode not in (LAST, MEAN):
            yield "mode", f"{self.mode!r:.40}", f"{LAST} or {MEAN}"
        if self.end_token_id is not None and not 0 <= self.end_token_id < model.vocab_size:
            yield "end_token_id", self.end_token_id, f"a token below {model.vocab_size}"
        longest = max((len(part) for prompt in self.prompts.items() for part in prompt), default=0)
        if len(self.prompts) > MAX_PROMPTS or longest > MAX_PROMPT_CHARACTERS:
            yield (
                "prompts",
                f"{len(self.prompts)} of up to {longest} characters",
                f"{MAX_PROMPTS} of {MAX_PROMPT_CHARACTERS}",
            )


@dataclass(frozen=True)
class Manifest:
    """Contents of ``manifest.json``.

    Attributes:
        op_profile: ``"native"`` (edge-rt's operators), ``"portable"`` (ONNX Runtime's own) or ``"traced"`` (the graph
            of another exporter).
        activations: ``"int8"`` (linear layers quantise their input per block) or ``"float"``.
        chosen: None if no option of these was given.
        quantisation: tensor class -> stored type, for example ``{"embedding": "Q8_0"}``.
        kv_formats: cache formats that the graph can be run with; a model is loaded with the first, if nothing else is
            asked for.
        chat_template: file of the template, or None.
        tool_template: file of a second template, for requests with tools; None without one.
        license: licence identifier given by the checkpoint, or None.
        rounding: of a package whose activations are mostly of 8 bits and of 16 where that was measured to matter; else
            None.
        key_calibration: calibration text of the constants of 4-bit keys; None for a package without them.
        kv_losses: what the first was chosen by; None if nothing was measured.
        sampling: recommended sampling values; None if there are none.
        weights: how weights were quantised for the package; None if they are the checkpoint's.
        decoder: what the graphs compute; None for a traced graph of a family that edge-rt does not know.
        dimensions: of such a model; None beside a decoder.
        traced: what is known of a traced graph; None for the other op profiles.
        exit_head: graph that makes logits of the hidden states at exits, in packages with several segments; else None.
        draft_graph: file of a second graph over the same weights, which reads the upper halves of nested codes alone;
            None without one.
        pooling: how texts become embeddings; None where the checkpoint does not say.
        expert_hits: how often experts of the calibration text would have been in a cache; None where it was not run
            through the float model.
        ahead: a block that predicts further ahead; None without one.
    """

    format_version: int
    producer: str
    num_parameters: int
    op_profile: str
    activations: str
    quantisation: Mapping[str, str]
    kv_formats: tuple[str, ...]
    segments: tuple[Segment, ...]
    tokenizer: TokenizerInfo
    chat_template: str | None
    source: SourceInfo
    license: str | None
    chosen: ChosenOptions | None = dataclasses.field(default=None, kw_only=True)
    rounding: Rounding | None = dataclasses.field(default=None, kw_only=True)
    key_calibration: KeyCalibration | None = dataclasses.field(default=None, kw_only=True)
    kv_losses: KvLosses | None = dataclasses.field(default=None, kw_only=True)
    tool_template: str | None = dataclasses.field(default=None, kw_only=True)
    sampling: SamplingAdvice | None = dataclasses.field(default=None, kw_only=True)
    weights: WeightsInfo | None = dataclasses.field(default=None, kw_only=True)
    decoder: Decoder | None = dataclasses.field(default=None, kw_only=True)
    dimensions: Dimensions | None = dataclasses.field(default=None, kw_only=True)
    traced: TracedInfo | None = dataclasses.field(default=None, kw_only=True)
    exit_head: str | None = dataclasses.field(default=None, kw_only=True)
    draft_graph: str | None = dataclasses.field(default=None, kw_only=True)
    pooling: Pooling | None = dataclasses.field(default=None, kw_only=True)
    expert_hits: ExpertHits | None = dataclasses.field(default=None, kw_only=True)
    ahead: AheadInfo | None = dataclasses.field(default=None, kw_only=True)
    files: Mapping[str, FileInfo]

    @property
    def model(self) -> Model:
        """What is known of the model."""
        model = self.dimensions if self.decoder is None else self.decoder
        assert model is not None
        return model

    @property
    def weight_layout(self) -> str:
        """Name of the layout of the matrices in ``weights.bin``; it follows from the op profile."""
        return WEIGHT_LAYOUTS[self.op_profile]

    @property
    def activations_choice(self) -> str:
        """The value of the export's option that gives the same activations."""
        usual = "float" if self.activations == "float" else "auto"
        return usual if self.chosen is None else self.chosen.activations or usual

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

    @property
    def more_graphs(self) -> tuple[str, ...]:
        """Files of graphs over the same weights that do not make the model's own passes."""
        owners = (self.pooling, self.ahead)
        return tuple(filter(None, [self.draft_graph, *(None if one is None else one.graph for one in owners)]))

    def to_bytes(self) -> bytes:
        """Return the canonical form of this manifest: UTF-8 JSON, keys in field order, two spaces, final newline."""
        document: dict[str, Any] = {"format": FORMAT_NAME, **to_document(self)}
        if self.sampling is not None:
            document["sampling"] = self.sampling.given
        # What may be left out is left out where there is none.
        for field in dataclasses.fields(self):
            if field.default is None and document[field.name] is None:
                del document[field.name]
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
