"""What a decoder computes, layer by layer: the description that families give and that graphs and references read.

Layers of one kind are described once; ``layers.py`` says what a layer computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Final

from edge_rt.package.documents import RARE
from edge_rt.package.layers import (
    MAX_EPSILON,
    MAX_HEADS,
    MAX_WIDTH,
    Attention,
    FeedForward,
    Layer,
    are_finite,
    layer_problems,
)

MAX_LAYERS: Final = 1024
MAX_ALL_EXPERTS: Final = 1 << 16
"""Of all layers together."""
MAX_CONTEXT: Final = 1 << 24
MAX_ROWS: Final = 1 << 24
MIN_EPSILON: Final = 1e-12
MAX_TOP_TOKENS: Final = 8
"""Most likely tokens that a native graph returns with every row of logits."""

MAX_STORED_ROPE_BYTES: Final = 64 << 20
"""Largest tables of rotations that are stored in ``weights.bin``."""
NORMS: Final = ("rms", "layer")


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al., arXiv 2104.09864), ready to be computed.

    Attributes:
        kind: ``"default"``, or how the frequencies were changed, for people to read.
        base: the pairs of n dimensions would turn by ``base^(-2 i / n)`` per position if nothing were changed.
        frequencies: radians per position of every pair; pair i is elements i and ``i + len(frequencies)`` of a head.
        long_frequencies: those of contexts longer than ``short_context``; empty: the same.
        short_context: tokens of the longest context that ``frequencies`` are for; 0: of any.
    """

    kind: str
    base: float
    frequencies: tuple[float, ...]
    magnitude: float = 1.0
    long_frequencies: tuple[float, ...] = ()
    short_context: int = 0

    def frequencies_for(self, context: int) -> tuple[float, ...]:
        """Return the frequencies for a planned context of some tokens."""
        return self.long_frequencies if self.long_frequencies and context > self.short_context else self.frequencies

    @property
    def dimensions(self) -> int:
        """Elements of a head that are rotated, from the first one on."""
        return 2 * len(self.frequencies)


_STILL: Final = Rope("none", 1.0, (0.0,))


def rope_names(index: int) -> tuple[str, str]:
    """Return the names of the tables of a rotation, cosines and sines."""
    prefix = f"rope{index}" if index else "rope"
    return f"{prefix}.cos", f"{prefix}.sin"


@dataclass(frozen=True)
class Decoder:
    """A model.

    Attributes:
        family: its architecture, for example ``"qwen3"``.
        kinds: the different layers that there are; those with attention have windows of at most one size.
        pattern: for every layer in order its number in ``kinds``.
        norm: one of ``NORMS``, of all norms but those of queries and keys, which are ``"rms"``.
        logit_softcap: then logits become ``softcap * tanh(logit / softcap)``; 0: they do not.
        per_layer_embedding: features of a further embedding that every token has for each layer; 0: none. With x what
            the stream begins with, t a row of a table ``[vocabulary, layers * features]``, and p so many features::

                e = (rms_norm_p(W x / sqrt(hidden_size)) + sqrt(p) t) / sqrt(2)
                x = x + rms_norm(out(gelu(gate(x)) * e[layer]))    # behind the feed-forward of each layer
    """

    name: str
    family: str
    hidden_size: int
    vocab_size: int
    context_length: int
    kinds: tuple[Layer, ...]
    pattern: tuple[int, ...]
    ropes: tuple[Rope, ...]
    norm_epsilon: float
    norm: str = "rms"
    has_norm_bias: bool = False
    is_tied: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    per_layer_embedding: int = field(default=0, metadata=RARE)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Every layer, in order."""
        return tuple(self.kinds[number] for number in self.pattern)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.pattern)

    @cached_property
    def attention_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have attention."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.attention is not None)

    @cached_property
    def kv_layers(self) -> tuple[int, ...]:
        """Numbers of those that have keys and values of their own, and so rows in the KV cache."""
        return tuple(number for number in self.attention_layers if self.attention_of(number).kv_from is None)

    @cached_property
    def attention_kinds(self) -> tuple[tuple[Attention, int], ...]:
        """Kinds of attention, and how many layers have each."""
        kinds = ((self.kinds[number].attention, self.pattern.count(number)) for number in dict.fromkeys(self.pattern))
        return tuple((attention, count) for attention, count in kinds if attention is not None)

    def kv_layer_of(self, layer: int) -> int:
        """Return the layer whose keys and values one of these layers reads: mostly itself."""
        source = self.attention_of(layer).kv_from
        return layer if source is None else source

    @cached_property
    def divisions(self) -> tuple[int, ...]:
        """Numbers of layers before which the layers can be divided: nothing behind reads keys of a layer before."""
        crossed = {
            number for reader in self.attention_layers for number in range(self.kv_layer_of(reader) + 1, reader + 1)
        }
        return tuple(number for number in range(1, self.num_layers) if number not in crossed)

    def attention_of(self, layer: int) -> Attention:
        """Return the attention of one of these layers."""
        attention = self.layers[layer].attention
        assert attention is not None, layer
        return attention

    def feed_forward_of(self, layer: int) -> FeedForward:
        """Return the feed-forward of a layer that has no experts in its place."""
        feed_forward = self.layers[layer].feed_forward
        assert feed_forward is not None, layer
        return feed_forward

    @cached_property
    def num_heads(self) -> int:
        """Heads of queries, of the layer that has most."""
        return max(self.attention_of(layer).num_heads for layer in self.attention_layers)

    @cached_property
    def num_kv_heads(self) -> int:
        """Heads of keys and values, of the layer that has most."""
        return max(self.attention_of(layer).num_kv_heads for layer in self.attention_layers)

    @cached_property
    def head_dim(self) -> int:
        """Elements of a head, of the layer that has the largest."""
        return max(self.attention_of(layer).head_dim for layer in self.attention_layers)

    @cached_property
    def has_equal_heads(self) -> bool:
        """Whether all layers with attention have keys and values of their own, in heads of one number and size."""
        attentions = map(self.attention_of, self.attention_layers)
        heads = {(one.num_heads, one.num_kv_heads, one.head_dim) for one in attentions}
        return len(heads) == 1 and self.kv_layers == self.attention_layers

    @cached_property
    def query_size(self) -> int:
        """Features of the queries of a token, of the layer that has most."""
        return max(self.attention_of(layer).query_size for layer in self.attention_layers)

    @cached_property
    def qkv_size(self) -> int:
        """Features of the queries, keys and values of a token, of the layer that has most."""
        return max(self.attention_of(layer).qkv_size for layer in self.attention_layers)

    @cached_property
    def query_group(self) -> int:
        """Heads of queries that share keys, of the layer where most do."""
        attentions = map(self.attention_of, self.attention_layers)
        return max(one.num_heads // one.num_kv_heads for one in attentions)

    @cached_property
    def intermediate_size(self) -> int:
        """Features of the widest feed-forward, or expert."""
        return max(part.size for layer in self.layers for part in layer.feed_forwards)

    @cached_property
    def conv_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have a short convolution."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.short_conv is not None)

    @cached_property
    def recurrent_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have a state."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.recurrence is not None)

    @cached_property
    def convolutions(self) -> Mapping[int, tuple[int, int]]:
        """Layer -> taps and features of its convolution, a short one or that before a state."""
        short = {number: (self.layers[number].short_conv, self.hidden_size) for number in self.conv_layers}
        states = {number: self.layers[number].recurrence for number in self.recurrent_layers}
        return {
            **{number: (conv.taps, width) for number, (conv, width) in short.items() if conv is not None},
            **{number: (one.taps, one.conv_size) for number, one in states.items() if one is not None},
        }

    @cached_property
    def cache_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that keep rows: keys and values, or what a short convolution reads."""
        return tuple(sorted((*self.kv_layers, *self.conv_layers)))

    @cached_property
    def expert_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have experts."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.experts is not None)

    @cached_property
    def unmeasured_part(self) -> str | None:
        """A part that gradients do not go through, so that types and roundings are not measured; None: none is."""
        if self.expert_layers:
            return "experts"
        if self.recurrent_layers:
            return "states"
        return None if self.has_equal_heads and not self.per_layer_embedding else "heads that differ"

    @cached_property
    def layer_windows(self) -> tuple[int, ...]:
        """Rows that a row sees in every layer, itself included: a window, a convolution's taps; 0: all, or none."""
        return tuple(
            (0 if layer.attention is None else layer.attention.window)
            if layer.short_conv is None
            else layer.short_conv.taps
            for layer in self.layers
        )

    @cached_property
    def ring_window(self) -> int:
        """The largest of these: what layers must keep that do not keep all rows; 0: all do."""
        return max(self.layer_windows)

    @cached_property
    def sliding_window(self) -> int:
        """The window of layers whose attention has one; 0: none has."""
        return max(self.attention_of(layer).window for layer in self.attention_layers)

    @property
    def top_tokens(self) -> int:
        """Most likely tokens that a native graph returns with every row of logits."""
        return min(MAX_TOP_TOKENS, self.vocab_size)

    @property
    def tables(self) -> tuple[Rope, ...]:
        """The rotations whose tables graphs read: without any those of a pair that stands still."""
        return self.ropes or (_STILL,)

    def rope_bytes(self, positions: int) -> int:
        """Return the bytes of the tables of all rotations, float32, for some positions."""
        return sum(2 * positions * len(rope.frequencies) * 4 for rope in self.tables)

    @cached_property
    def loads_rope(self) -> bool:
        """Whether tables of rotations are computed when a package is loaded; else they are in ``weights.bin``."""
        is_chosen = any(rope.long_frequencies for rope in self.ropes)
        return is_chosen or self.rope_bytes(self.context_length) > MAX_STORED_ROPE_BYTES

    @cached_property
    def short_context(self) -> int:
        """Tokens of the longest context that the first frequencies are for, where longer ones have others; else 0."""
        return max((rope.short_context for rope in self.ropes if rope.long_frequencies), default=0)

    def rotation(self, context: int) -> str | None:
        """Return which frequencies a context gets, ``"short"`` or ``"long"``; None if all contexts have the same."""
        if not self.short_context:
            return None
        return "long" if context > self.short_context else "short"

    def check(self) -> None:
        """Check that the numbers fit each other."""
        for problem, is_wrong in self._problems():
            if is_wrong:
                raise ValueError(problem)

    def _problems(self) -> Iterable[tuple[str, bool]]:
        yield "there are no layers", not self.pattern
        yield "a layer has a kind that is not there", not all(0 <= kind < len(self.kinds) for kind in self.pattern)
        yield "no layer has attention", not self.attention_layers
        yield "no layer has a feed-forward", not any(layer.feed_forwards for layer in self.kinds)
        yield "its context has no room for a prompt and an answer, 2 tokens", self.context_length < 2
        yield from _out_of_range(self)
        yield "the norm is unknown", self.norm not in NORMS
        for layer in self.kinds:
            yield from layer_problems(layer)
            if layer.attention is not None:
                yield from self._attention_problems(layer.attention)
        for number in self.attention_layers:
            yield "a layer reads keys and values that are not those of a layer like it", not self._has_source(number)
        experts = sum(0 if layer.experts is None else layer.experts.count for layer in self.layers)
        yield f"it has {experts} experts, at most {MAX_ALL_EXPERTS} are read", experts > MAX_ALL_EXPERTS
        features = self.per_layer_embedding
        yield "per_layer_embedding is out of range", not 0 <= features * self.num_layers <= 4 * MAX_WIDTH
        factors = (self.embedding_scale, self.residual_scale, self.logit_scale, self.logit_softcap)
        yield "a factor is no number", not are_finite(*factors)
        for rope in self.ropes:
            yield "a rotation has no frequencies", not rope.frequencies
            yield "long frequencies are not as many", len(rope.long_frequencies) not in (0, len(rope.frequencies))
            numbers = (rope.base, rope.magnitude, *rope.frequencies, *rope.long_frequencies)
            yield "a rotation has a number out of range", rope.base <= 0 or not are_finite(*numbers)

    def _attention_problems(self, attention: Attention) -> Iterable[tuple[str, bool]]:
        yield "windows differ in size", attention.window not in (0, self.sliding_window)
        has_rope = attention.rope is None or 0 <= attention.rope < len(self.ropes)
        yield "a layer names a rotation that is not there", not has_rope
        rotated = self.ropes[attention.rope].dimensions if attention.rope is not None and has_rope else 0
        yield "more dimensions are rotated than heads have", rotated > attention.head_dim

    def _has_source(self, layer: int) -> bool:
        """Return whether a layer with attention has keys and values, its own or those of an earlier layer like it."""
        own = self.attention_of(layer)
        if own.kv_from is None:
            return True
        source = self.layers[own.kv_from].attention if 0 <= own.kv_from < layer else None
        if source is None or source.kv_from is not None:
            return False
        return all(
            getattr(own, name) == getattr(source, name) for name in ("num_kv_heads", "head_dim", "window", "rope")
        )


@dataclass(frozen=True)
class Dimensions:
    """Sizes of a model, named as in ``Decoder``: what a description begins with, and all that there is without one."""

    name: str
    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    norm_epsilon: float = 1e-5
    is_tied: bool = False
    layer_windows: ClassVar[tuple[int, ...]] = ()
    conv_layers: ClassVar[tuple[int, ...]] = ()
    recurrent_layers: ClassVar[tuple[int, ...]] = ()
    """No windows and states are known without a description."""
    sliding_window: ClassVar[int] = 0
    ring_window: ClassVar[int] = 0

    @property
    def query_size(self) -> int:
        """Features of the queries of a token."""
        return self.num_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        """Features of the queries, keys and values of a token."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def check(self) -> None:
        """Check that the numbers are in range."""
        for problem, is_wrong in _out_of_range(self):
            if is_wrong:
                raise ValueError(problem)

    def attention(self, **more: Any) -> Attention:
        """Return the attention of a layer; what differs from a plain llama is given."""
        scale = more.pop("scale", self.head_dim**-0.5)
        return Attention(self.num_heads, self.num_kv_heads, self.head_dim, scale, **more)

    def feed_forward(self, **more: Any) -> FeedForward:
        """Return the feed-forward of a layer; what differs from a plain llama is given."""
        return FeedForward(self.intermediate_size, **more)

    def decoder(self, family: str, layers: Layer | tuple[Layer, ...], *ropes: Rope, **more: Any) -> Decoder:
        """Return the description."""
        given = (layers,) * self.num_layers if isinstance(layers, Layer) else layers
        kinds = tuple(dict.fromkeys(given))
        return Decoder(
            name=self.name,
            family=family,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            kinds=kinds,
            pattern=tuple(kinds.index(layer) for layer in given),
            ropes=ropes,
            norm_epsilon=self.norm_epsilon,
            is_tied=self.is_tied,
            **more,
        )


Model = Decoder | Dimensions
"""What is known of a model."""


def sizes(model: Model) -> dict[str, str | int | bool]:
    """Return what any model has, for people and for JSON."""
    names = [one.name for one in fields(Dimensions) if one.name != "norm_epsilon"]
    return {name: getattr(model, name) for name in (*names, "sliding_window")}


def _out_of_range(model: Model) -> Iterable[tuple[str, bool]]:
    for name, most in (
        ("hidden_size", MAX_WIDTH),
        ("num_layers", MAX_LAYERS),
        ("num_heads", MAX_HEADS),
        ("num_kv_heads", MAX_HEADS),
        ("head_dim", MAX_WIDTH),
        ("intermediate_size", 4 * MAX_WIDTH),
        ("vocab_size", MAX_ROWS),
        ("context_length", MAX_CONTEXT),
    ):
        value = getattr(model, name)
        yield f"{name} is {value!s:.40}, must be 1 to {most}", not 1 <= value <= most
    yield f"norm_epsilon is {model.norm_epsilon}", not MIN_EPSILON <= model.norm_epsilon <= MAX_EPSILON
    heads, groups = model.num_heads, model.num_kv_heads
    if isinstance(model, Dimensions):
        yield f"num_heads, {heads}, is not a multiple of num_kv_heads, {groups}", heads % groups != 0
