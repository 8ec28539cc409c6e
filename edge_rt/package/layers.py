"""What a layer of a decoder computes: mixers, feed-forwards, experts, and how they stand in the layer.

A layer is, for a stream ``x [rows, hidden_size]``, r the residual scale, and norms where the description has them::

    x = x + r * post_norm(mixer(norm(x)))
    x = x + r * post_norm(feed_forward(norm(x)))

A mixer is attention, a short convolution, a gated delta rule or a state space; attention and a state space may stand
side by side, and are added. Experts, several feed-forwards of which a router chooses some, may have the place of the
one, or be added to it. A layer may have one of the two steps alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from edge_rt.package.documents import RARE

MAX_WIDTH: Final = 1 << 18
MAX_HEADS: Final = 1 << 12
MAX_HEAD_DIM: Final = 1024
"""Elements of the largest heads that operators take."""
MAX_EXPERTS: Final = 1 << 12
MAX_TAPS: Final = 16
"""Rows that a short convolution sees, at most."""
MAX_EPSILON: Final = 1.0
ACTIVATIONS: Final = ("silu", "gelu", "relu2")
"""silu(x) = x sigmoid(x); gelu is its tanh form (Hendrycks and Gimpel, arXiv 1606.08415); relu2(x) = max(x, 0)^2."""
GATINGS: Final = ("softmax", "chosen", "sigmoid")
"""What makes weights of a router's scores: softmax of all of them, or of those of the chosen experts, or sigmoid."""
QK_NORMS: Final = ("none", "head", "row")
"""Norms of queries and keys: over each head, or over the rows of all heads."""
SPACE_NORMS: Final = ("behind", "before", "none")
"""Norms of what a state space makes: behind its gates, or before them."""


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
        norms_values: whether values are normed as heads are, without weights.
        values_are_keys: whether values are the keys before their norm and rotation.
        kv_from: number of an earlier layer whose keys and values this one reads, which has queries alone; None: it has
            its own.
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
    norms_values: bool = field(default=False, metadata=RARE)
    values_are_keys: bool = field(default=False, metadata=RARE)
    kv_from: int | None = field(default=None, metadata=RARE)

    @property
    def query_size(self) -> int:
        """Features of the queries of a token."""
        return self.num_heads * self.head_dim

    @property
    def query_rows(self) -> int:
        """Rows of the matrix of queries, gates included."""
        return 2 * self.query_size if self.has_gate else self.query_size

    @property
    def key_size(self) -> int:
        """Features of the keys of a token, and of the values."""
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        """Features of what is computed of a token before it attends."""
        parts = 0 if self.kv_from is not None else 1 if self.values_are_keys else 2
        return self.query_rows + parts * self.key_size


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
        groups: of neighbouring experts; a row chooses among those of ``chosen_groups``, whose two best scores sum
            highest.
        latent: features that experts read and make, between two matrices of all rows; 0: those of the stream. The
            router reads the stream.
        has_shared_gate: whether what the feed-forward beside them makes is multiplied by the sigmoid of a product of
            its input and one row.
        has_scales: whether weights are multiplied by a number of each expert, behind all else.
        has_own_norms: whether the router, the experts and the feed-forward beside them read the stream behind norms of
            their own, and what experts and feed-forward make is normed before it is added, and again behind that. The
            router's norm is divided by the root of the stream's features.
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
    groups: int = field(default=1, metadata=RARE)
    chosen_groups: int = field(default=1, metadata=RARE)
    latent: int = field(default=0, metadata=RARE)
    has_shared_gate: bool = field(default=False, metadata=RARE)
    has_scales: bool = field(default=False, metadata=RARE)
    has_own_norms: bool = field(default=False, metadata=RARE)


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

    @property
    def state_floats(self) -> int:
        """Numbers of the states of all heads."""
        return self.value_size * self.key_dim

    @property
    def transition_floats(self) -> int:
        """Numbers by which a row changes them: decays, keys and corrections."""
        return self.value_heads + self.key_heads * self.key_dim + self.value_size


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
        norm: one of ``SPACE_NORMS``; ``"before"``: the output is ``out(norm(y) silu(z))``.
    """

    heads: int
    head_dim: int
    groups: int
    state_size: int
    taps: int
    has_conv_bias: bool = True
    has_bias: bool = False
    norm: str = field(default="behind", metadata=RARE)

    @property
    def size(self) -> int:
        """Features of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """Features that are convolved: u, b and c."""
        return self.size + 2 * self.groups * self.state_size

    @property
    def state_floats(self) -> int:
        """Numbers of the states of all heads."""
        return self.size * self.state_size

    @property
    def transition_floats(self) -> int:
        """Numbers by which a row changes them: decays, b and s u."""
        return self.heads + self.groups * self.state_size + self.size


Recurrence = GatedDelta | StateSpace
"""A mixer with a state that every row changes."""


@dataclass(frozen=True)
class Layer:
    """A layer.

    Attributes:
        attention: its mixer, or one of two; None: it has another one, or none.
        feed_forward: None: there are experts in its place, or nothing; what both make is added.
        has_post_norms: whether their outputs are, before they are added to the stream.
        has_scale: whether the stream is multiplied by a number behind the layer.
    """

    attention: Attention | None
    feed_forward: FeedForward | None
    has_pre_norms: bool = True
    has_post_norms: bool = False
    short_conv: ShortConv | None = field(default=None, metadata=RARE)
    gated_delta: GatedDelta | None = field(default=None, metadata=RARE)
    state_space: StateSpace | None = field(default=None, metadata=RARE)
    experts: Experts | None = field(default=None, metadata=RARE)
    has_scale: bool = field(default=False, metadata=RARE)

    @property
    def has_mixer(self) -> bool:
        """Whether rows see others."""
        mixers = (self.attention, self.short_conv, self.gated_delta, self.state_space)
        return any(mixer is not None for mixer in mixers)

    @property
    def recurrence(self) -> Recurrence | None:
        """Its mixer with a state; None: it has none."""
        return self.gated_delta or self.state_space

    @property
    def feed_forwards(self) -> tuple[FeedForward, ...]:
        """The kinds of feed-forwards that it has, those of experts once."""
        parts = (self.feed_forward, None if self.experts is None else self.experts.each)
        return tuple(part for part in parts if part is not None)


def layer_problems(layer: Layer) -> Iterable[tuple[str, bool]]:
    """Return what may be wrong with a layer by itself, and whether it is."""
    # A state space may have attention beside it, or no mixer.
    others = (layer.attention, layer.short_conv, layer.gated_delta)
    alone = (layer.short_conv, layer.gated_delta, layer.state_space)
    yield "a layer has several mixers", any(sum(one is not None for one in some) > 1 for some in (others, alone))
    is_double = layer.attention is not None and layer.state_space is not None
    yield "a norm is behind two mixers", is_double and layer.has_post_norms
    yield "a layer has neither a mixer nor a feed-forward", not layer.has_mixer and not layer.feed_forwards
    if layer.attention is not None:
        yield from _attention_problems(layer.attention)
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
        yield "a feed-forward has a limit that is no number", not are_finite(*limits) or limits[0] < 0
        is_plain = feed_forward.activation == "silu" and feed_forward.is_gated
        yield "a feed-forward has limits that it cannot have", limits != (0.0, 1.0, 0.0) and not is_plain
    if layer.experts is not None:
        yield from _experts_problems(layer.experts)
        has_shared = layer.feed_forward is not None
        yield "a shared expert that is not there has a gate", layer.experts.has_shared_gate and not has_shared
        has_norms = has_shared and layer.has_pre_norms and layer.has_post_norms
        is_usual = not layer.experts.latent and not layer.experts.has_shared_gate
        yield "experts have norms that they cannot have", layer.experts.has_own_norms and not (has_norms and is_usual)


def _attention_problems(attention: Attention) -> Iterable[tuple[str, bool]]:
    heads, groups = attention.num_heads, attention.num_kv_heads
    yield "a layer has heads out of range", not (1 <= groups <= MAX_HEADS and 1 <= heads <= MAX_HEADS)
    yield f"num_heads, {heads}, is not a multiple of num_kv_heads, {groups}", groups > 0 and heads % groups != 0
    yield "a layer has a head size out of range", not 1 <= attention.head_dim <= MAX_WIDTH
    has_values = attention.norms_values or attention.values_are_keys
    yield "a layer has values of its own and reads another's", has_values and attention.kv_from is not None
    yield "a window is below 0", attention.window < 0
    yield "the norm of queries and keys is unknown", attention.qk_norm not in QK_NORMS
    scaling = attention.query_scaling
    growth = () if scaling is None else (scaling.beta,)
    factors = (attention.scale, attention.softcap, attention.clip, *growth)
    yield "scores have a factor that is no number", not are_finite(*factors) or attention.clip < 0
    yield "queries and keys have limits behind their rotation", attention.clip != 0 and attention.norm_after_rope
    yield "queries with gates have one norm of all heads", attention.has_gate and attention.qk_norm == "row"
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
    yield "the norm of a state space is unknown", space.norm not in SPACE_NORMS


def _experts_problems(experts: Experts) -> Iterable[tuple[str, bool]]:
    yield "there are too few or too many experts", not 1 <= experts.count <= MAX_EXPERTS
    yield "more experts are chosen than there are", not 1 <= experts.chosen <= experts.count
    yield "how experts are weighted is unknown", experts.gating not in GATINGS
    yield "weights of experts have a factor that is no number", not are_finite(experts.epsilon, experts.scale)
    yield "weights of experts are divided by less than 0", experts.epsilon < 0
    yield "latent rows have a size out of range", not 0 <= experts.latent <= MAX_WIDTH
    groups = experts.groups
    yield "there are no groups of experts", not 1 <= experts.chosen_groups <= groups
    # The two best of each are compared.
    is_even = groups == 1 or (groups > 1 and experts.count % groups == 0 and experts.count >= 2 * groups)
    yield f"{experts.count} experts are not in {groups} groups of two or more", not is_even
    most = experts.count // max(groups, 1) * experts.chosen_groups
    yield "more experts are chosen than chosen groups have", experts.chosen > most


def are_finite(*numbers: float) -> bool:
    """Return whether all are numbers, and none infinite."""
    return all(math.isfinite(number) for number in numbers)
