"""The size of a package that does not exist: what every estimate says, and the arithmetic of those that guess.

What cannot be exported is estimated as if it could be, with matrices in 4 bits and embedding and head in 8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_rt.errors import UnsupportedModel
from edge_rt.op_list import MAX_HEAD_DIM, MAX_HEADS
from edge_rt.package.decoder import Decoder
from edge_rt.package.manifest import ModelConfig

MATRIX_BITS: Final = "matrices in 4 bits (blocks of 32 with scale and minimum), embedding and head in 8 bits"
"""Assumption for packages that cannot be exported yet."""
JSON_TOKEN_BYTES: Final = 42
"""Of a tokenizer.json, for each token: measured 32 to 43."""

_TILE_ROWS, _BLOCK = 16, 32
_BYTES_4_BIT, _BYTES_8_BIT = 320, 544  # of a block of a tile, for packed Q4_1 and Q8_0
_PAGE: Final = 4096
_MAX_LAYERS: Final = 4096
_MAX_CONTEXT: Final = 1 << 24
_HUGE: Final = 1 << 40


@dataclass(frozen=True)
class SizeEstimate:
    """The dimensions and sizes of a package that does not exist.

    Attributes:
        config: dimensions of the architecture.
        op_profile: of the package.
        weights_bytes: of its ``weights.bin``.
        embedding_bytes: of a token embedding that is not shared with the head; 0 if it is.
        tokenizer_bytes: of its ``tokenizer.json``.
        window_layers: layers with a sliding window.
        is_exact: whether an export gives these sizes.
        notes: what was assumed, and what edge-rt cannot do yet: sentences for the user.
        decoder: the description, if the model can be exported.
    """

    config: ModelConfig
    op_profile: str
    weights_bytes: int
    embedding_bytes: int
    tokenizer_bytes: int
    window_layers: int
    is_exact: bool
    notes: tuple[str, ...] = ()
    decoder: Decoder | None = None


def estimated(
    config: ModelConfig,
    shapes: Mapping[str, tuple[int, ...]],
    tokenizer: int,
    window_layers: int,
    notes: tuple[str, ...],
) -> SizeEstimate:
    """Return the estimate for tensors of these shapes.

    Args:
        config: dimensions of the model.
        shapes: of its tensors, outermost dimension first, by name.
        tokenizer: bytes of its ``tokenizer.json``.
        window_layers: layers with a sliding window.
        notes: sentences for the user.
    """
    total, embedding = 0, 0
    for name, shape in shapes.items():
        is_outer = _is_embedding(name) or _is_head(name)
        size = _tensor_bytes(shape, _BYTES_8_BIT if is_outer else _BYTES_4_BIT)
        if _is_head(name) and config.tied_embedding:
            continue
        if _is_embedding(name) and not config.tied_embedding:
            embedding = size
        total += -(-size // _PAGE) * _PAGE if size >= 16 * _PAGE else size
    total += 2 * 4 * config.context_length * (config.head_dim // 2)
    fits = config.head_dim <= MAX_HEAD_DIM and config.head_dim % 2 == 0 and config.num_heads <= MAX_HEADS
    if fits:  # constants of 4-bit keys
        total += 4 * config.num_layers * config.num_kv_heads * config.head_dim * (2 + config.head_dim)
    return SizeEstimate(
        config, "native" if fits else "portable", total, embedding, tokenizer, window_layers, False, notes
    )


def _is_embedding(name: str) -> bool:
    return any(part in name for part in ("embed_tokens", "token_embd", "wte.", "word_embeddings."))


def _is_head(name: str) -> bool:
    return "lm_head" in name or name == "output.weight"


def _tensor_bytes(shape: tuple[int, ...], block_bytes: int) -> int:
    """Return the bytes of a matrix in tiles of 16 rows and blocks of 32 columns, or of a vector in float32."""
    if len(shape) < 2:
        return 4 * math.prod(shape)
    *outer, rows, columns = shape
    return math.prod(outer) * -(-rows // _TILE_ROWS) * -(-columns // _BLOCK) * block_bytes


def checked_config(
    name: str,
    kind: str,
    *,
    hidden: Any,
    layers: Any,
    heads: Any,
    kv_heads: Any,
    head_dim: Any,
    inner: Any,
    vocabulary: Any,
    context: Any,
    window: int,
    tied: bool,
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
) -> ModelConfig:
    """Return the checked dimensions; fields that may be left out get the usual defaults.

    Raises:
        UnsupportedModel: a field is missing or out of range; ``where`` names the file.
    """

    def require(field: str, value: Any, most: int = _HUGE) -> int:
        if isinstance(value, list):  # in some architectures every layer has a value of its own
            value = max((item for item in value if type(item) is int), default=None)
        if type(value) is not int or not 1 <= value <= most:
            raise UnsupportedModel(
                f"{where}: the size of this model cannot be estimated.",
                f"It states no {field}."
                if value is None
                else f"The {field} is {value!r:.40}, must be a number from 1 to {most}.",
                "Give a model whose configuration has the usual fields.",
            )
        return value

    width, count = require("hidden size", hidden), require("number of heads", heads, 1 << 16)
    pairs = count if kv_heads is None else require("number of key-value heads", kv_heads, count)
    dim = width // count if head_dim is None else require("head size", head_dim, 1 << 16)
    return ModelConfig(
        name=name,
        architecture=kind,
        hidden_size=width,
        num_layers=require("number of layers", layers, _MAX_LAYERS),
        num_heads=count,
        num_kv_heads=pairs,
        head_dim=max(2, dim),
        intermediate_size=require("feed-forward size", inner),
        vocab_size=require("vocabulary", vocabulary, 1 << 28),
        context_length=require("context", context, _MAX_CONTEXT),
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        rope_scaling="none",
        tied_embedding=tied,
        num_parameters=max(1, sum(map(math.prod, shapes.values()))),
        sliding_window=window,
    )
