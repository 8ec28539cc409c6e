"""What nearly all descriptions begin with: the sizes of a model, from either kind of checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from edge_rt.errors import UnsupportedModel
from edge_rt.package.decoder import Attention, Decoder, FeedForward, Layer, Rope

MAX_LAYERS: Final = 1024
MAX_WIDTH: Final = 1 << 18
MAX_HEADS: Final = 1 << 12
MAX_HEAD_DIM: Final = 1024
"""Elements of the largest heads that are taken."""
MAX_CONTEXT: Final = 1 << 24
MAX_ROWS: Final = 1 << 24
MIN_EPSILON, MAX_EPSILON = 1e-12, 1.0


def require_head_dim(where: str, head_dim: int, way_out: str) -> None:
    """Refuse heads of a size that no operator takes: rotations turn pairs.

    Args:
        where: name of the checkpoint.
        way_out: how a model with such heads runs, for the error.

    Raises:
        UnsupportedModel: the size is odd, or too large.
    """
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise UnsupportedModel(
            f"{where}: this attention head size is not supported.",
            f"It is {head_dim}, it must be even and at most {MAX_HEAD_DIM}.",
            way_out,
        )


@dataclass(frozen=True)
class Dimensions:
    """Sizes of a model, checked against each other; see ``Decoder``."""

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    is_tied: bool

    def attention(self, **more: Any) -> Attention:
        """Return the attention of a layer; what differs from a plain llama is given."""
        scale = more.pop("scale", self.head_dim**-0.5)
        return Attention(self.num_heads, self.num_kv_heads, self.head_dim, scale, **more)

    def feed_forward(self, **more: Any) -> FeedForward:
        """Return the feed-forward of a layer; what differs from a plain llama is given."""
        return FeedForward(self.intermediate_size, **more)

    def decoder(self, family: str, layers: Layer | tuple[Layer, ...], *ropes: Rope, **more: Any) -> Decoder:
        """Return the description.

        Args:
            layers: of the model; one stands for all of them.
            ropes: the rotations that layers name.
        """
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
