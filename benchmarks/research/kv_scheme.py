"""Schemes to store keys and values: what a pass reads under each, when, and how many bytes it takes in all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from kv_codecs import (
    GROUP,
    asymmetric,
    calibrated_keys,
    hadamard,
    half,
    low_rank,
    outliers,
    symmetric8,
    two_planes,
    without,
)

from edge_rt.export.calibration.key_constants import KeyConstants

CHUNK = 128
"""Tokens that share factors and the outliers' vectors, where a scheme has them."""
OUTLIER_BYTES = 3
"""A float16 and its place among up to 256 elements."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Side:
    """How keys, or values, are stored.

    Attributes:
        kind: ``f16``; ``int8``: symmetric, 8 bits; ``token``: asymmetric groups of 32 elements of a token; ``channel``:
            of 32 tokens of an element; ``planes``: two planes of 4 bits, both read.
        bits: of ``token`` and ``channel``.
        rotated: by a Hadamard transform of each head before anything else.
        rank: of the approximation of the error, per head and chunk of 128 tokens; 0: none.
        outliers: elements kept apart at each end: of keys per channel and chunk, of values per token; 0: none.
        block: tokens that are quantised together, once they and ``tail`` more are there; 0: each token as it comes.
        tail: tokens that stay in float16 at least.
        first: tokens at the beginning of the text that stay in float16 for good: attention rests on them.
        centre: float32 ``[kv_heads, 1, head_dim]``, subtracted before and added after; None: nothing is. Of keys it
            needs no adding in earnest: a query's product with it is the same for all keys, which softmax does not see.
        constants: of a layer whose 4-bit keys are written as an export calibrates them, ``centre`` included; of kind
            ``token`` only.
    """

    kind: Literal["f16", "int8", "token", "channel", "planes"] = "f16"
    bits: int = 0
    rotated: bool = False
    rank: int = 0
    outliers: int = 0
    block: int = 0
    tail: int = 0
    first: int = 0
    centre: Array | None = field(default=None, compare=False)
    constants: KeyConstants | None = field(default=None, compare=False)

    def quantised(self, tokens: Any) -> Any:
        """Return how many tokens the pass over the last one of ``tokens`` (an integer, or an array) finds quantised.

        The newest token joins a float tail before the next flush, which comes between passes.
        """
        if self.block == 0:
            return tokens
        return self.block * np.maximum(0, (tokens - 1 - self.tail) // self.block)

    def read(self, x: Array, *, values: bool) -> Array:
        """Return what is read of ``x``, float32 ``[kv_heads, tokens, head_dim]``, where it is quantised.

        Tokens that do not fill a block or chunk yet are given back in float16.
        """
        whole = x.shape[1] if self.block == 0 else x.shape[1] // self._unit() * self._unit()
        result = half(x)
        if whole:
            result[:, self.first : whole] = self._read_whole(x[:, :whole], values=values)[:, self.first :]
        return result

    def _read_whole(self, x: Array, *, values: bool) -> Array:
        if self.constants is not None:
            return calibrated_keys(x, self.constants)
        turn = hadamard(x.shape[-1]) if self.rotated else None
        centred = x if self.centre is None else x - self.centre
        stored = centred if turn is None else centred @ turn
        chunks = stored
        if self.rank or self.outliers:
            chunks = stored.reshape(x.shape[0], -1, CHUNK, x.shape[-1])
        mask = self._outliers(chunks, values=values)
        rest = chunks if mask is None else self._without(chunks, mask, values=values)
        seen = self._quantise(rest)
        if self.rank:
            seen = seen + low_rank(rest - seen, self.rank)
        if mask is not None:
            seen = np.where(mask, half(chunks), seen)
        seen = seen.reshape(x.shape)
        seen = seen if turn is None else seen @ turn
        return seen if self.centre is None else seen + self.centre

    def _quantise(self, x: Array) -> Array:
        match self.kind:
            case "f16":
                return half(x)
            case "int8":
                return symmetric8(x)
            case "planes":
                return two_planes(x)[1]
            case "token":
                return asymmetric(x, self.bits)
            case "channel":
                return asymmetric(x, self.bits, axis=-2)

    def _outliers(self, chunks: Array, *, values: bool) -> Array | None:
        if not self.outliers:
            return None
        if not values:
            return outliers(chunks, self.outliers, axis=-2)
        return _heads_apart(outliers(_heads_together(chunks), self.outliers, axis=-1), len(chunks))

    def _without(self, chunks: Array, mask: Array, *, values: bool) -> Array:
        if not values:
            return without(chunks, mask, axis=-2)
        return _heads_apart(without(_heads_together(chunks), _heads_together(mask), axis=-1), len(chunks))

    def _unit(self) -> int:
        """Tokens that are quantised together."""
        if self.rank or self.outliers:
            return CHUNK
        return GROUP if self.kind == "channel" else 1

    def bytes(self, tokens: int, kv_heads: int, head_dim: int, *, values: bool) -> float:
        """Return the bytes of ``tokens`` tokens in one layer: codes, scales, factors, outliers and the float tail."""
        stored = max(0, int(self.quantised(tokens)) - self.first)
        return kv_heads * head_dim * (stored * self._element(kv_heads, head_dim, values=values) + 2 * (tokens - stored))

    def _element(self, kv_heads: int, head_dim: int, *, values: bool) -> float:
        """Return the bytes of one quantised element."""
        plain = {"f16": 2.0, "int8": 1 + 2 / GROUP, "planes": 1 + 4 / GROUP}.get(self.kind, self.bits / 8 + 4 / GROUP)
        factors = 2 * self.rank * (CHUNK + head_dim) / (CHUNK * head_dim)
        vector = kv_heads * head_dim if values else CHUNK
        return plain + factors + 2 * self.outliers * OUTLIER_BYTES / vector


def _heads_together(x: Array) -> Array:
    """Turn ``[heads, chunks, tokens, dim]`` into ``[chunks, tokens, heads * dim]``."""
    moved = np.moveaxis(x, 0, 2)
    return moved.reshape(*moved.shape[:2], -1)


def _heads_apart(x: Array, heads: int) -> Array:
    """Undo ``_heads_together``."""
    return np.moveaxis(x.reshape(*x.shape[:2], heads, -1), 2, 0)


@dataclass(frozen=True)
class Scheme:
    """How one layer's cache is stored."""

    keys: Side = field(default_factory=Side)
    values: Side = field(default_factory=Side)

    def bytes(self, tokens: int, kv_heads: int, head_dim: int) -> float:
        """Return the bytes of a token in one layer at a context of ``tokens``: the mean over the last 128 lengths."""
        lengths = range(max(1, tokens - CHUNK + 1), tokens + 1)
        per_token = [
            (
                self.keys.bytes(n, kv_heads, head_dim, values=False)
                + self.values.bytes(n, kv_heads, head_dim, values=True)
            )
            / n
            for n in lengths
        ]
        return sum(per_token) / len(per_token)


def centred(scheme: Scheme, centre: Array, first: int) -> Scheme:
    """Return a scheme whose keys are centred, and whose first tokens stay in float16.

    Args:
        scheme: what is changed.
        centre: of the keys, see ``Side``.
        first: tokens.
    """
    return Scheme(replace(scheme.keys, centre=centre, first=first), replace(scheme.values, first=first))


def calibrated(scheme: Scheme, constants: KeyConstants, *, has_feedback: bool = True) -> Scheme:
    """Return a scheme whose keys are written with constants of their layer; without feedback, each element alone."""
    if not has_feedback:
        constants = replace(constants, feedback=np.zeros_like(constants.feedback))
    return Scheme(replace(scheme.keys, constants=constants), scheme.values)


def recent(scheme: Scheme, tokens: int) -> Scheme:
    """Return a scheme under which every query reads so many tokens, itself included, in float16.

    What it reads depends on how far back a token lies and on nothing else.
    """
    late = {"block": 1, "tail": tokens - 1}
    return Scheme(replace(scheme.keys, **late), replace(scheme.values, **late))


def kivi(bits: int, *, tail: int = 0, rank: int = 0, outliers: int = 0) -> Scheme:
    """Return KIVI's scheme.

    Args:
        bits: 2 or 4.
        tail: 0: as published, with a residual of 128 tokens, keys flushed when it is full and values one by one. Else
            keys and values stay in float16 for at least that many tokens and are flushed together in blocks of 32,
            which is what exact rollback needs. With ``rank`` or ``outliers`` (GEAR) blocks are chunks of 128.
        rank: of GEAR's approximation of the error; 0: none.
        outliers: that GEAR keeps at each end of a chunk's channel, and twice as many of a token; 0: none.
    """
    if rank or outliers:
        common = Side(bits=bits, rank=rank, outliers=outliers, block=CHUNK, tail=tail)
        # 2 % of 128 tokens and of three heads' 192 elements.
        return Scheme(replace(common, kind="channel"), replace(common, kind="token", outliers=2 * outliers))
    if tail:
        return Scheme(Side("channel", bits, block=GROUP, tail=tail), Side("token", bits, block=GROUP, tail=tail))
    return Scheme(Side("channel", bits, block=CHUNK), Side("token", bits, block=1, tail=CHUNK))


def per_token(bits: int, *, keys_rotated: bool, values_rotated: bool) -> Scheme:
    """Return asymmetric groups of 32 of every token, nothing held back."""
    return Scheme(Side("token", bits, keys_rotated), Side("token", bits, values_rotated))


def schemes() -> dict[str, Scheme]:
    """Return name -> scheme of everything that is compared, the same in all layers."""
    int4 = per_token(4, keys_rotated=True, values_rotated=True)
    gear = {"rank": 4, "outliers": 1}
    return {
        "f16": Scheme(),
        "int8": Scheme(Side("int8"), Side("int8")),
        "int4x2, both planes": Scheme(Side("planes", rotated=True), Side("planes", rotated=True)),
        "k8v4": Scheme(Side("int8"), Side("token", 4)),
        "k8v4, values rotated": Scheme(Side("int8"), Side("token", 4, rotated=True)),
        "int4, not rotated": per_token(4, keys_rotated=False, values_rotated=False),
        "int4, keys rotated": per_token(4, keys_rotated=True, values_rotated=False),
        "int4, both rotated": int4,
        "int4, last 16 tokens f16": recent(int4, 16),
        "int4, last 64 tokens f16": recent(int4, 64),
        "KIVI-4": kivi(4),
        "KIVI-4, blocks of 32": kivi(4, tail=32),
        "int2, both rotated": per_token(2, keys_rotated=True, values_rotated=True),
        "KIVI-2": kivi(2),
        "KIVI-2, blocks of 32": kivi(2, tail=32),
        "GEAR on KIVI-4, rank 2": kivi(4, rank=2),
        "GEAR on KIVI-4, rank 4, sparse": kivi(4, **gear),
        "GEAR on KIVI-2, rank 2": kivi(2, rank=2),
        "GEAR on KIVI-2, rank 4, sparse": kivi(2, **gear),
        "GEAR on int4, rank 2": _on(int4, rank=2),
        "GEAR on int4, rank 4, sparse": _on(int4, **gear),
    }


def _on(scheme: Scheme, *, rank: int, outliers: int = 0) -> Scheme:
    """Add GEAR's residual to a scheme, in chunks: their float tail is what the error is computed from."""
    return Scheme(
        replace(scheme.keys, rank=rank, outliers=outliers, block=CHUNK),
        replace(scheme.values, rank=rank, outliers=2 * outliers, block=CHUNK),
    )
