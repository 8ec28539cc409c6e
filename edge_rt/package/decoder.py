"""What a decoder computes, layer by layer: the description that families give and that graphs and references read.

A layer is, for a stream ``x [rows, hidden_size]``, r the residual scale, and norms where the description has them::

    x = x + r * post_norm(attention(norm(x)))
    x = x + r * post_norm(feed_forward(norm(x)))

Layers of one kind are described once. Packages whose decoder is a plain llama need no description.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

MAX_TOP_TOKENS: Final = 8
"""Most likely tokens that a native graph returns with every row of logits."""

MAX_STORED_ROPE_BYTES: Final = 64 << 20
"""Largest tables of rotations that are stored in ``weights.bin``."""
ACTIVATIONS: Final = ("silu", "gelu", "relu2")
"""silu(x) = x sigmoid(x); gelu is its tanh form (Hendrycks and Gimpel, arXiv 1606.08415); relu2(x) = max(x, 0)^2."""
NORMS: Final = ("rms", "layer")
QK_NORMS: Final = ("none", "head", "row")
"""Norms of queries and keys: over each head, or over the rows of all heads."""


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al., arXiv 2104.09864), ready to be computed.

    Attributes:
        kind: ``"default"``, or how the frequencies were changed, for people to read.
        base: the pairs of n dimensions would turn by ``base^(-2 i / n)`` per position if nothing were changed.
        frequencies: radians per position of every pair; pair i is elements i and ``i + len(frequencies)`` of a head.
        magnitude: factor on cosines and sines.
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
        qk_norm: one of ``QK_NORMS``.
        norm_after_rope: whether that norm comes behind the rotation.
        has_sinks: whether softmax has one more score for every head, without a value.
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
        activation: one of ``ACTIVATIONS``.
        is_gated: whether there is a gate.
        has_bias: whether all its matrices have one.
    """

    size: int
    activation: str = "silu"
    is_gated: bool = True
    has_bias: bool = False


@dataclass(frozen=True)
class Layer:
    """A layer.

    Attributes:
        has_pre_norms: whether the inputs of both are normed.
        has_post_norms: whether their outputs are, before they are added to the stream.
    """

    attention: Attention
    feed_forward: FeedForward
    has_pre_norms: bool = True
    has_post_norms: bool = False


@dataclass(frozen=True)
class Decoder:
    """A model.

    Attributes:
        family: its architecture, for example ``"qwen3"``.
        vocab_size: rows of the embedding.
        kinds: the different layers that there are; all have heads of the same number and size, and windows of at most
            one size.
        pattern: for every layer in order its number in ``kinds``.
        ropes: the rotations that layers name.
        norm: one of ``NORMS``, of all norms but those of queries and keys, which are ``"rms"``.
        has_norm_bias: whether the norms of the stream have one.
        is_tied: whether the head is the embedding.
        residual_scale: factor on what sub-layers add.
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

    @property
    def num_heads(self) -> int:
        """Heads of queries, of every layer."""
        return self.layers[0].attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values, of every layer."""
        return self.layers[0].attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        """Elements of a head, of every layer."""
        return self.layers[0].attention.head_dim

    @property
    def intermediate_size(self) -> int:
        """Features of the widest feed-forward."""
        return max(layer.feed_forward.size for layer in self.layers)

    @cached_property
    def layer_windows(self) -> tuple[int, ...]:
        """Sliding window of every layer; 0: none."""
        return tuple(layer.attention.window for layer in self.layers)

    @property
    def sliding_window(self) -> int:
        """The window of layers that have one; 0: none has."""
        return max(self.layer_windows)

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

    @cached_property
    def is_plain(self) -> bool:
        """Whether it is a plain llama, which every version of edge-rt knows: nothing here differs from a default."""
        first = self.layers[0]
        attention = first.attention
        # The scale of these graphs was computed in this way.
        plain_attention = Attention(
            attention.num_heads,
            attention.num_kv_heads,
            attention.head_dim,
            attention.head_dim**-0.5,
            window=attention.window,
        )
        plain = Decoder(
            self.name,
            "llama",
            self.hidden_size,
            self.vocab_size,
            self.context_length,
            (Layer(plain_attention, FeedForward(first.feed_forward.size)),),
            (0,) * self.num_layers,
            self.ropes[:1],
            self.norm_epsilon,
            is_tied=self.is_tied,
        )
        return self == plain and not self.loads_rope and 2 * len(self.ropes[0].frequencies) == attention.head_dim

    def check(self) -> None:
        """Check that the numbers fit each other."""
        for problem, is_wrong in self._problems():
            if is_wrong:
                raise ValueError(problem)

    def _problems(self) -> Iterable[tuple[str, bool]]:
        yield "there are no layers", not self.pattern
        yield "its context has no room for a prompt and an answer, 2 tokens", self.context_length < 2
        yield "there are no rotations", not self.ropes
        yield "a layer has a kind that is not there", not all(0 <= kind < len(self.kinds) for kind in self.pattern)
        yield "the norm is unknown", self.norm not in NORMS
        for layer in self.layers:
            attention, feed_forward = layer.attention, layer.feed_forward
            yield (
                "heads differ from layer to layer",
                (
                    attention.num_heads,
                    attention.num_kv_heads,
                    attention.head_dim,
                )
                != (self.num_heads, self.num_kv_heads, self.head_dim),
            )
            yield "a window is below 0", attention.window < 0
            yield "windows differ in size", attention.window not in (0, self.sliding_window)
            yield (
                "a layer names a rotation that is not there",
                attention.rope is not None and not (0 <= attention.rope < len(self.ropes)),
            )
            yield "the norm of queries and keys is unknown", attention.qk_norm not in QK_NORMS
            yield "the activation is unknown", feed_forward.activation not in ACTIVATIONS
        for rope in self.ropes:
            yield "more dimensions are rotated than heads have", rope.dimensions > self.head_dim
            yield "a rotation has no frequencies", not rope.frequencies
            yield "long frequencies are not as many", len(rope.long_frequencies) not in (0, len(rope.frequencies))
