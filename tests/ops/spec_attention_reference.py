"""SpecAttention in float64, written from its definition: no chunks, no tiles, one row after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

FORMATS = ("f32", "f16", "int8", "k8v4", "int4", "int4x2", "int4x2_upper")
GROUP = 32
# How a format stores keys, and values; and which of the two it turns by a Hadamard transform.
CODINGS = {
    "f32": ("f32", "f32"),
    "f16": ("f16", "f16"),
    "int8": ("int8", "int8"),
    "k8v4": ("int8", "nibbles"),
    "int4": ("nibbles", "nibbles"),
    "int4x2": ("pairs", "pairs"),
    "int4x2_upper": ("upper", "upper"),
}
TURNED = {"k8v4": (False, True), "int4": (True, True), "int4x2": (True, True), "int4x2_upper": (True, True)}


@dataclass(frozen=True)
class Config:
    """Attributes of the operator."""

    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    scale: float = 0.25
    window: int = 0
    softcap: float = 0.0
    interleaved: int = 0
    epsilon: float = 1e-5
    layer: int = 1
    rotate: int = 1
    norm_after_rotation: int = 0
    gated: int = 0
    clip: float = 0.0

    @property
    def width(self):
        return ((2 if self.gated else 1) * self.heads + 2 * self.kv_heads) * self.dim

    @property
    def attributes(self):
        return {
            "num_heads": self.heads,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.dim,
            "layer": self.layer,
            "scale": self.scale,
            "window": self.window,
            "softcap": self.softcap,
            "interleaved": self.interleaved,
            "epsilon": self.epsilon,
            **({} if self.rotate == 1 else {"rotate": self.rotate}),
            **({} if self.norm_after_rotation == 0 else {"norm_after_rotation": self.norm_after_rotation}),
            **({} if self.gated == 0 else {"gated": self.gated}),
            **({} if self.clip == 0 else {"clip": self.clip}),
        }


@dataclass
class Tables:
    """What stays the same from pass to pass."""

    cos: np.ndarray
    sin: np.ndarray
    q_norm: np.ndarray | None = None
    k_norm: np.ndarray | None = None
    sinks: np.ndarray | None = None
    key_centre: np.ndarray | None = None
    key_balance: np.ndarray | None = None
    key_feedback: np.ndarray | None = None
    query_scale: np.ndarray | None = None
    optional: dict = field(init=False)

    def __post_init__(self):
        names = ("q_norm", "k_norm", "sinks", "key_centre", "key_balance", "key_feedback", "query_scale")
        named = {name: getattr(self, name) for name in names}
        self.optional = {name: array for name, array in named.items() if array is not None}


def row_bytes(coding, dim):
    """Return the bytes of one head's key, or value, of one token."""
    groups = -(-dim // GROUP)
    plain = {"f32": 4 * dim, "f16": 2 * dim, "int8": dim + 2 * groups}
    return plain[coding] if coding in plain else groups * (20 if coding == "nibbles" else 36)


def empty_cache(config, kv_format, capacity):
    width = -(-sum(row_bytes(coding, config.dim) for coding in CODINGS[kv_format]) // 2)
    return np.zeros((2, config.kv_heads, capacity, width), np.uint8)


def read_cache(cache, kv_format, dim):
    """Return the values of a cache as float64 [2, kv heads, capacity, dim], as they are stored: turned ones turned."""
    kv_heads, capacity = cache.shape[1:3]
    flat, out = cache.reshape(-1), []
    for coding in CODINGS[kv_format]:
        size = capacity * row_bytes(coding, dim)
        planes, flat = flat[: kv_heads * size].reshape(kv_heads, size), flat[kv_heads * size :]
        out.append(read_planes(np.ascontiguousarray(planes), coding, capacity, dim))
    return np.array(out)


def read_planes(planes, coding, capacity, dim):
    shape, groups = (len(planes), capacity, -1), -(-dim // GROUP)
    if coding in ("f32", "f16"):
        return planes.view({"f32": np.float32, "f16": np.float16}[coding]).reshape(shape).astype(np.float64)
    if coding == "int8":
        codes = planes[:, : capacity * dim].view(np.int8).reshape(shape)
        scales = np.ascontiguousarray(planes[:, capacity * dim :]).view(np.float16).reshape(shape)
        return codes * np.repeat(scales, GROUP, axis=-1)[..., :dim].astype(np.float64)
    codes, scales, minimums = read_codes(planes, coding, capacity, dim)
    values = codes * scales + minimums
    if coding == "pairs":
        size = capacity * groups * GROUP // 2
        finer = nibbles(planes[:, size : 2 * size].reshape(len(planes), capacity, groups, GROUP // 2))
        values += (finer - 8) * (scales / 16)
    return values.reshape(shape)[..., :dim]


def read_codes(planes, coding, capacity, dim):
    """Return the first codes [planes, capacity, groups, 32] and their groups' scales and minimums [..., 1]."""
    groups = -(-dim // GROUP)
    size = capacity * groups * GROUP // 2
    extras = np.ascontiguousarray(planes[:, size if coding == "nibbles" else 2 * size :])
    extras = extras.view(np.float16).astype(np.float64).reshape(len(planes), capacity, groups, 2)
    codes = nibbles(planes[:, :size].reshape(len(planes), capacity, groups, GROUP // 2))
    return codes, extras[..., :1], extras[..., 1:]


def read_int4_keys(cache, dim):
    """Return codes, scales and minimums of an int4 cache's keys, all [kv heads, capacity, dim]."""
    kv_heads, capacity = cache.shape[1:3]
    size = capacity * row_bytes("nibbles", dim)
    planes = np.ascontiguousarray(cache.reshape(-1)[: kv_heads * size].reshape(kv_heads, size))
    codes, *levels = read_codes(planes, "nibbles", capacity, dim)
    shape = (kv_heads, capacity, -1)
    return [codes.reshape(shape)[..., :dim], *(np.repeat(x, GROUP, -1).reshape(shape)[..., :dim] for x in levels)]


def coded_steps(x, codes, scales, minimums, feedback):
    """Return how many steps above its group's minimum each element of a key lay when it was rounded.

    Args:
        x: [dim], the key before feedback.
        codes, scales, minimums: [dim], of the key as it is stored.
        feedback: [dim, dim], of its kv head.
    """
    x, steps = x.copy(), np.zeros_like(x)
    for i in range(len(x)):
        steps[i] = (x[i] - minimums[i]) / scales[i]
        error = x[i] - (codes[i] * scales[i] + minimums[i])
        x[i + 1 :] -= error * feedback[i, i + 1 :].astype(np.float64)
    return steps


def nibbles(codes):
    """Return [..., 32] numbers out of [..., 16] bytes: all lower halves, then all upper ones."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1).astype(np.float64)


@lru_cache(maxsize=32)
def hadamard(dim):
    """Return the largest of these matrices whose size divides a number."""
    matrix = np.ones((1, 1))
    while dim % (2 * len(matrix)) == 0:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def turned(x):
    """Return the Hadamard transform of the last axis, in blocks of the largest power of two that divides it."""
    matrix = hadamard(x.shape[-1])
    blocks = x.reshape(*x.shape[:-1], -1, len(matrix))
    return (blocks @ matrix / np.sqrt(len(matrix))).reshape(x.shape)


def turns(kv_format):
    """Return functions for keys and queries, and for values and results: as they are, or turned."""
    return tuple(turned if is_turned else np.asarray for is_turned in TURNED.get(kv_format, (False, False)))


def depths(parents):
    out = []
    for parent in parents:
        out.append(0 if parent < 0 else out[parent] + 1)
    return out


def ancestors(parents, row):
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


def rotate(x, cos, sin, interleaved):
    """Rotate the last axis by the angles of one position."""
    half = len(cos)
    out = x.copy()
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    )
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def normed(x, weight, epsilon):
    """Return heads [heads, dim] normed one by one, or, with a weight for every element, all together."""
    if weight is None:
        return x
    of_row = len(weight) != x.shape[-1]
    mean = (x * x).mean(None if of_row else -1, keepdims=True)
    return x / np.sqrt(mean + epsilon) * weight.reshape(-1, x.shape[-1])


def positioned(config, tables, heads, weight, position):
    """Return heads of one row normed and rotated, in the order that the layer wants."""
    cos, sin = tables.cos[position].astype(np.float64), tables.sin[position].astype(np.float64)
    if not config.norm_after_rotation:
        heads = normed(heads, weight, config.epsilon)
    heads = clipped(config, heads)
    if config.rotate:
        heads = rotate(heads, cos, sin, config.interleaved)
    return normed(heads, weight, config.epsilon) if config.norm_after_rotation else heads


def clipped(config, heads):
    return np.clip(heads, -config.clip, config.clip) if config.clip else heads


def split_gates(config, qkv):
    """Return one row's queries, keys and values, and gates ``[heads, dim]`` or None."""
    heads = qkv.astype(np.float64).reshape(-1, config.dim)
    q, k, v = np.split(heads, [-2 * config.kv_heads, -config.kv_heads])
    return (q[::2], k, v, q[1::2]) if config.gated else (q, k, v, None)


def split_heads(config, tables, qkv, position):
    """Return queries, keys and values of one row, before they are rounded to any format."""
    q, k, v, _ = split_gates(config, qkv)
    q = positioned(config, tables, q, tables.q_norm, position) * config.scale
    if tables.query_scale is not None:
        q = q * float(tables.query_scale[position])
    return q, positioned(config, tables, k, tables.k_norm, position), clipped(config, v)


def balanced(config, tables, kv_format, queries, keys):
    """Return one row's queries and keys less the centre and in balance, where the format wants that."""
    if not TURNED.get(kv_format, (False, False))[0]:
        return queries, keys
    if tables.key_centre is not None:
        keys = keys - tables.key_centre
    if tables.key_balance is not None:
        keys = keys / tables.key_balance
        queries = queries * np.repeat(tables.key_balance, config.heads // config.kv_heads, axis=0)
    return queries, keys


def has_query_codes(kv_format):
    """Return whether scores are integer sums, for which queries are rounded."""
    return CODINGS[kv_format][0] not in ("f32", "f16")


def rounded(queries):
    """Return queries as integer scores see them: int8 codes per group."""
    out = queries.copy()
    for begin in range(0, queries.shape[-1], GROUP):
        part = queries[:, begin : begin + GROUP]
        scale = np.maximum(np.abs(part).max(-1, keepdims=True), 1e-30) / 127
        out[:, begin : begin + GROUP] = np.rint(part / scale) * scale
    return out


def attend(config, tables, qkv, cache, kv_format, past, row_map, parents):
    """Return y [rows, heads * dim] from a cache that holds the pass's rows already."""
    stored = read_cache(cache, kv_format, config.dim)
    group = config.heads // config.kv_heads
    out = []
    for row, depth in enumerate(depths(parents)):
        position = past + depth
        queries, keys, _ = split_heads(config, tables, qkv[row], position)
        queries, _ = balanced(config, tables, kv_format, queries, keys)
        turn_key, turn_value = turns(kv_format)
        queries = turn_key(queries)
        if has_query_codes(kv_format):
            queries = rounded(queries)
        positions = np.r_[np.arange(past), past + np.array(ancestors(parents, row))]
        first = max(0, position + 1 - config.window) if config.window else 0
        seen = np.asarray(row_map)[positions[first:]]
        gates = split_gates(config, qkv[row])[3]
        for kv_head in range(config.kv_heads):
            mine = slice(kv_head * group, (kv_head + 1) * group)
            keys, values = stored[0, kv_head, seen], stored[1, kv_head, seen]
            scores = queries[mine] @ keys.T
            if config.softcap:
                scores = config.softcap * np.tanh(scores / config.softcap)
            if tables.sinks is not None:
                scores = np.concatenate([scores, tables.sinks[mine, None]], axis=1)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            y = turn_value(weights[:, : len(seen)] @ values / weights.sum(1, keepdims=True))
            out.append(y if gates is None else y / (1 + np.exp(-gates[mine])))
    return np.concatenate(out).reshape(len(parents), -1)
