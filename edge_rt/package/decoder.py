"""What a decoder computes, layer by layer: the description that families give and that graphs and references read.

A layer is, for a stream ``x [rows, hidden_size]``, r the residual scale, and norms where the description has them::

    x = x + r * post_norm(mixer(norm(x)))
    x = x + r * post_norm(feed_forward(norm(x)))

A mixer is attention, a short convolution, a gated delta rule or a state space. Experts, several feed-forwards of which
a router chooses some, may have the place of the one, or be added to it. Layers of one kind are described once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Final

from edge_rt.package.documents import RARE

MAX_LAYERS: Final = 1024
MAX_WIDTH: Final = 1 << 18
MAX_HEADS: Final = 1 << 12
MAX_HEAD_DIM: Final = 1024
"""Elements of the largest heads that operators take."""
MAX_EXPERTS: Final = 1 << 12
MAX_ALL_EXPERTS: Final = 1 << 16
"""Of all layers together."""
MAX_TAPS: Final = 16
"""Rows that a short convolution sees, at most."""
MAX_CONTEXT: Final = 1 << 24
MAX_ROWS: Final = 1 << 24
MIN_EPSILON, MAX_EPSILON = 1e-12, 1.0
MAX_TOP_TOKENS: Final = 8
"""Most likely tokens that a native graph returns with every row of logits."""

MAX_STORED_ROPE_BYTES: Final = 64 << 20
"""Largest tables of rotations that are stored in ``weights.bin``."""
ACTIVATIONS: Final = ("silu", "gelu", "relu2")
"""silu(x) = x sigmoid(x); gelu is its tanh form (Hendrycks and Gimpel, arXiv 1606.08415); relu2(x) = max(x, 0)^2."""
NORMS: Final = ("rms", "layer")
GATINGS: Final = ("softmax", "chosen", "sigmoid")
"""What makes weights of a router's scores: softmax of all of them, or of those of the chosen experts, or sigmoid."""
QK_NORMS: Final = ("none", "head", "row")
"""Norms of queries and keys: over each head, or over the rows of all heads."""


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


def rope_names(index: int) -> tuple[str, str]:
    """Return the names of the tables of a rotation, cosines and sines."""
    prefix = f"rope{index}" if index else "rope"
    return f"{prefix}.cos", f"{prefix}.sin"


@dataclass(frozen=True)
class QueryScaling:
    """A factor on queries that grows with their position: ``1 + beta ln(1 + floor(position / original_context))``."""

    beta: float
    original_context: int


@dataclass(frozen=True)
class Attention:
    """Attention of a layer.

    Attributes:
        rope: number of the rotation in ``Decoder.ropes``; None: positions are not told.
        window: tokens that a token sees, itself included; 0: all.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0: they do not.
        has_sinks: whether softmax has one more score for every head, without a value.
        has_gate: whether its output is multiplied by the sigmoid of gates, which lie behind the queries of every head
            in their matrix.
        clip: queries and keys behind their norms, and values, are limited to plus and minus this; 0: they are not.
        query_scaling: or None.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: int | None = 0
    window: int = 0
    softcap: float = 0.0
    qk_norm: str = "none"
    norm_after_rope: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_sinks: bool = False
    query_scaling: QueryScaling | None = None
    clip: float = field(default=0.0, metadata=RARE)
    has_gate: bool = field(default=False, metadata=RARE)

    @property
    def query_size(self) -> int:
        """Features of the queries of a token."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Features of the keys of a token, and of the values."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class FeedForward:
    """``down(activation(gate(x)) * up(x))``, or without a gate ``down(activation(up(x)))``.

    Attributes:
        limit: the gate is at most this, and what goes up between plus and minus this; 0: they have no limits.
        slope: of the sigmoid in ``"silu"``, ``x sigmoid(slope x)``.
        up_offset: is added to what goes up, behind the limit.
    """

    size: int
    activation: str = "silu"
    is_gated: bool = True
    has_bias: bool = False
    limit: float = field(default=0.0, metadata=RARE)
    slope: float = field(default=1.0, metadata=RARE)
    up_offset: float = field(default=0.0, metadata=RARE)


@dataclass(frozen=True)
class Experts:
    """Feed-forwards of one kind, of which a router chooses some for each row; their weighted sum.

    Attributes:
        count: how many there are.
        chosen: how many a row has: those with the highest scores, of equal ones the first.
        gating: one of ``GATINGS``.
        is_normalised: whether weights are divided by their sum and ``epsilon``.
        scale: factor on weights, behind that.
        has_choice_bias: whether the choice is made by scores behind ``gating`` plus a bias, which weights do not have.
    """

    count: int
    chosen: int
    each: FeedForward
    gating: str = "softmax"
    is_normalised: bool = False
    epsilon: float = 0.0
    scale: float = 1.0
    has_router_bias: bool = False
    has_choice_bias: bool = False


@dataclass(frozen=True)
class ShortConv:
    """``out(c * conv(b * u))``, where ``in(x)`` is ``[b | c | u]``; every feature is convolved on its own.

    Attributes:
        taps: rows that a row sees, itself included; those before the text are 0.
        has_bias: whether both matrices and the convolution have one.
    """

    taps: int
    has_bias: bool = False


@dataclass(frozen=True)
class GatedDelta:
    """Linear attention with a state that forgets and corrects itself (Yang et al., arXiv 2412.06464).

    Per head of values, with a state S ``[key_dim, value_dim]``, and k and q of length 1 behind a convolution and SiLU::

        S = exp(a softplus(alpha + dt)) S;  S = S + k (sigmoid(beta) (v - S^T k))^T;  o = S^T q / sqrt(key_dim)

    Attributes:
        taps: rows that the convolution sees.
        is_tiled: whether head v of values has head v modulo ``key_heads`` of keys; else each of these has neighbours.
        epsilon: is added to the squared length of k and q.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    is_tiled: bool = False
    epsilon: float = 1e-6

    @property
    def conv_size(self) -> int:
        """Features that are convolved: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_size

    @property
    def value_size(self) -> int:
        """Features of the values of a row."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class StateSpace:
    """Mamba-2 (Dao and Gu, arXiv 2405.21060).

    ``in(x)`` is ``[z | u b c | t]``; the middle is convolved, through SiLU. Per head, with a state S ``[head_dim,
    state_size]`` and ``s = softplus(t + dt)``::

        S = exp(a s) S + (s u) b^T;  y = S c + d u

    The output is ``out(norm(y silu(z)))``; b, c and the norm are of groups of neighbouring heads.

    Attributes:
        taps: rows that the convolution sees.
        has_bias: whether both matrices have one.
    """

    heads: int
    head_dim: int
    groups: int
    state_size: int
    taps: int
    has_conv_bias: bool = True
    has_bias: bool = False

    @property
    def size(self) -> int:
        """Features of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """Features that are convolved: u, b and c."""
        return self.size + 2 * self.groups * self.state_size


@dataclass(frozen=True)
class Layer:
    """A layer.

    Attributes:
        attention: its mixer; None: it has another one.
        feed_forward: None: there are experts in its place; what both make is added.
        has_post_norms: whether their outputs are, before they are added to the stream.
    """

    attention: Attention | None
    feed_forward: FeedForward | None
    has_pre_norms: bool = True
    has_post_norms: bool = False
    short_conv: ShortConv | None = field(default=None, metadata=RARE)
    gated_delta: GatedDelta | None = field(default=None, metadata=RARE)
    state_space: StateSpace | None = field(default=None, metadata=RARE)
    experts: Experts | None = field(default=None, metadata=RARE)

    @property
    def feed_forwards(self) -> tuple[FeedForward, ...]:
        """The kinds of feed-forwards that it has, those of experts once."""
        parts = (self.feed_forward, None if self.experts is None else self.experts.each)
        return tuple(part for part in parts if part is not None)


@dataclass(frozen=True)
class Decoder:
    """A model.

    Attributes:
        family: its architecture, for example ``"qwen3"``.
        kinds: the different layers that there are; those with attention have heads of the same number and size, and
            windows of at most one size.
        pattern: for every layer in order its number in ``kinds``.
        norm: one of ``NORMS``, of all norms but those of queries and keys, which are ``"rms"``.
        logit_softcap: then logits become ``softcap * tanh(logit / softcap)``; 0: they do not.
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
        """Numbers of the layers that have attention, and so rows in the KV cache."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.attention is not None)

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

    @property
    def num_heads(self) -> int:
        """Heads of queries, of every layer with attention."""
        return self.attention_of(self.attention_layers[0]).num_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values, of every layer with attention."""
        return self.attention_of(self.attention_layers[0]).num_kv_heads

    @property
    def head_dim(self) -> int:
        """Elements of a head, of every layer with attention."""
        return self.attention_of(self.attention_layers[0]).head_dim

    @cached_property
    def intermediate_size(self) -> int:
        """Features of the widest feed-forward, or expert."""
        return max(part.size for layer in self.layers for part in layer.feed_forwards)

    @cached_property
    def conv_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have a short convolution."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.short_conv is not None)

    @cached_property
    def expert_layers(self) -> tuple[int, ...]:
        """Numbers of the layers that have experts."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.experts is not None)

    @cached_property
    def layer_windows(self) -> tuple[int, ...]:
        """Rows that a row sees in every layer, itself included: a sliding window, a convolution's taps; 0: all."""
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

    def rope_bytes(self, positions: int) -> int:
        """Return the bytes of the tables of all rotations, float32, for some positions."""
        return sum(2 * positions * len(rope.frequencies) * 4 for rope in self.ropes)

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
        yield "a layer has no feed-forward", not all(layer.feed_forwards for layer in self.kinds)
        yield "its context has no room for a prompt and an answer, 2 tokens", self.context_length < 2
        yield from _out_of_range(self)
        yield "the norm is unknown", self.norm not in NORMS
        yield "there are no rotations", not self.ropes
        for layer in self.kinds:
            mixers = (layer.attention, layer.short_conv, layer.gated_delta, layer.state_space)
            yield "a layer has not one mixer", sum(mixer is not None for mixer in mixers) != 1
            if layer.attention is not None:
                yield from self._attention_problems(layer.attention)
            if layer.short_conv is not None:
                yield "a convolution has a size out of range", not 1 <= layer.short_conv.taps <= MAX_TAPS
            if layer.gated_delta is not None:
                yield from _delta_problems(layer.gated_delta)
            if layer.state_space is not None:
                yield from _space_problems(layer.state_space)
            for feed_forward in layer.feed_forwards:
                yield "the activation is unknown", feed_forward.activation not in ACTIVATIONS
                yield "a feed-forward has a size out of range", not 1 <= feed_forward.size <= 4 * MAX_WIDTH
                limits = (feed_forward.limit, feed_forward.slope, feed_forward.up_offset)
                yield "a feed-forward has a limit that is no number", not _are_finite(*limits) or limits[0] < 0
                is_plain = feed_forward.activation == "silu" and feed_forward.is_gated
                yield "a feed-forward has limits that it cannot have", limits != (0.0, 1.0, 0.0) and not is_plain
            if layer.experts is not None:
                yield from _experts_problems(layer.experts)
        experts = sum(0 if layer.experts is None else layer.experts.count for layer in self.layers)
        yield f"it has {experts} experts, at most {MAX_ALL_EXPERTS} are read", experts > MAX_ALL_EXPERTS
        factors = (self.embedding_scale, self.residual_scale, self.logit_scale, self.logit_softcap)
        yield "a factor is no number", not _are_finite(*factors)
        for rope in self.ropes:
            yield "more dimensions are rotated than heads have", rope.dimensions > self.head_dim
            yield "a rotation has no frequencies", not rope.frequencies
            yield "long frequencies are not as many", len(rope.long_frequencies) not in (0, len(rope.frequencies))
            numbers = (rope.base, rope.magnitude, *rope.frequencies, *rope.long_frequencies)
            yield "a rotation has a number out of range", rope.base <= 0 or not _are_finite(*numbers)

    def _attention_problems(self, attention: Attention) -> Iterable[tuple[str, bool]]:
        heads = (attention.num_heads, attention.num_kv_heads, attention.head_dim)
        yield "heads differ from layer to layer", heads != (self.num_heads, self.num_kv_heads, self.head_dim)
        yield "a window is below 0", attention.window < 0
        yield "windows differ in size", attention.window not in (0, self.sliding_window)
        has_rope = attention.rope is None or 0 <= attention.rope < len(self.ropes)
        yield "a layer names a rotation that is not there", not has_rope
        yield "the norm of queries and keys is unknown", attention.qk_norm not in QK_NORMS
        scaling = attention.query_scaling
        growth = () if scaling is None else (scaling.beta,)
        factors = (attention.scale, attention.softcap, attention.clip, *growth)
        yield "scores have a factor that is no number", not _are_finite(*factors) or attention.clip < 0
        yield "queries grow from a position below 1", scaling is not None and scaling.original_context < 1


def _delta_problems(delta: GatedDelta) -> Iterable[tuple[str, bool]]:
    heads, groups = delta.value_heads, delta.key_heads
    yield "a delta rule has heads out of range", not (1 <= groups <= MAX_HEADS and 1 <= heads <= MAX_HEADS)
    yield f"{heads} heads of values are no multiple of {groups} heads of keys", heads % groups != 0
    sizes = (delta.key_dim, delta.value_dim)
    yield "a delta rule has a size out of range", not all(1 <= size <= MAX_HEAD_DIM for size in sizes)
    yield "a convolution has a size out of range", not 1 <= delta.taps <= MAX_TAPS
    yield "an epsilon is out of range", not 0 < delta.epsilon <= MAX_EPSILON


def _space_problems(space: StateSpace) -> Iterable[tuple[str, bool]]:
    heads, groups = space.heads, space.groups
    yield "a state space has heads out of range", not (1 <= groups <= MAX_HEADS and 1 <= heads <= MAX_HEADS)
    yield f"{heads} heads of a state space are no multiple of {groups} groups", heads % groups != 0
    sizes = (space.head_dim, space.state_size)
    yield "a state space has a size out of range", not all(1 <= size <= MAX_HEAD_DIM for size in sizes)
    yield "a convolution has a size out of range", not 1 <= space.taps <= MAX_TAPS


def _experts_problems(experts: Experts) -> Iterable[tuple[str, bool]]:
    yield "there are too few or too many experts", not 1 <= experts.count <= MAX_EXPERTS
    yield "more experts are chosen than there are", not 1 <= experts.chosen <= experts.count
    yield "how experts are weighted is unknown", experts.gating not in GATINGS
    yield "weights of experts have a factor that is no number", not _are_finite(experts.epsilon, experts.scale)
    yield "weights of experts are divided by less than 0", experts.epsilon < 0


def _are_finite(*numbers: float) -> bool:
    return all(math.isfinite(number) for number in numbers)


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
    """No windows are known without a description."""
    sliding_window: ClassVar[int] = 0
    ring_window: ClassVar[int] = 0

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
    yield f"num_heads, {heads}, is not a multiple of num_kv_heads, {groups}", heads % groups != 0
