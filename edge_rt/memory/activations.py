"""Activation memory of a pass: the tensors between operators, and the scratch memory inside operators.

A pass computes one layer after another, so all layers reuse the memory of one. The sizes follow the allocations in
``csrc/ops/decoder_layer`` and ``csrc/ops/spec_attention/spec_attention_run.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_rt.memory.shape import ModelShape
from edge_rt.package.decoder import Decoder
from edge_rt.package.kv_formats import portable_head_dim
from edge_rt.package.layers import GatedDelta
from edge_rt.package.op_list import STRIPE
from edge_rt.package.spec_modes import MAX_DRAFT

_BLOCK: Final = 32  # elements per scale
_UNPACKED_BLOCK: Final = 768  # bytes of a block of a tile, at most
_CHUNK, _TILE, _SPAN = 64, 16, 256  # keys that attention processes together
_BLOCK_QUERIES, _MANY_QUERIES = 48, 96  # of a block, and of one in a pass of many rows
_MAX_BLOCK_ROWS: Final = 32
FEW_ROWS: Final = 16

_SUM_THREADS: Final = 8
"""Threads that keep sums of 16 outputs for every row of a pass with experts; what more of them keep is in a margin."""

_CONV_HIDDEN: Final = 4
"""Numbers of a row that a short convolution reads and makes, as a multiple of the stream's."""

_FIXED: Final = 512 << 10
_MARGIN: Final = 1.05  # covers alignment of tensors to 256 bytes, and the head's outputs for few rows

_TRACED_MARGIN: Final = 1.4
"""The same for traced graphs: an arena leaves gaps between tensors of many sizes. Measured: 1.40."""

# Floats per row between ONNX Runtime's operators, as multiples of the layer's sizes; measured with its flash attention.
_PORTABLE_HIDDEN, _PORTABLE_QKV, _PORTABLE_INNER = 10, 4, 6
_PADDED_QKV: Final = 2
"""The same of queries, keys and values that are copied to pad heads. Measured: 1.3."""


@dataclass(frozen=True)
class Heads:
    """What attention of a layer takes memory for."""

    heads: int
    kv_heads: int
    size: int
    window: int = 0

    @property
    def group(self) -> int:
        """Queries that share keys."""
        return self.heads // self.kv_heads


def kinds_of_heads(shape: ModelShape) -> tuple[Heads, ...]:
    """Return the different ones that the layers have."""
    model = shape.model
    if not isinstance(model, Decoder):
        window = model.sliding_window if model.layer_windows and all(model.layer_windows) else 0
        return (Heads(model.num_heads, model.num_kv_heads, model.head_dim, window),)
    found = (Heads(one.num_heads, one.num_kv_heads, one.head_dim, one.window) for one, _ in model.attention_kinds)
    return tuple(dict.fromkeys(found))


def allocated_bytes(shape: ModelShape, rows: int, ctx: int, sequences: int = 1) -> int:
    """Return an upper limit of the bytes that a pass over ``rows`` tokens allocates after a context of ``ctx`` tokens.

    Several sequences, of native packages, divide the rows in any way, and each has such a context. What helpers of
    attention take is in ``thread_bytes``.
    """
    if shape.traced is not None:
        return int(_TRACED_MARGIN * shape.traced.pass_bytes(rows, ctx)) + _FIXED
    if shape.op_profile == "portable":
        is_padded = portable_head_dim(shape.model.head_dim) != shape.model.head_dim
        floats = (
            _PORTABLE_HIDDEN * shape.model.hidden_size
            + (_PORTABLE_QKV + (_PADDED_QKV if is_padded else 0)) * shape.qkv_size
            + _PORTABLE_INNER * shape.model.intermediate_size
        )
        whole = 4 * shape.model.vocab_size * shape.model.hidden_size if shape.activations == "float" else 0
        return int(_MARGIN * (4 * floats * rows + whole)) + 8 * _FIXED
    return int(_MARGIN * (_layer_row_bytes(shape) * rows + _attention_bytes(shape, rows, ctx, sequences))) + _FIXED


def _stripes_bytes(shape: ModelShape) -> int:
    """Return the bytes of stripes of states that drafts leave for those behind them, of a thread.

    Operators ask for as many as there may be threads, and only those that compute write to theirs.
    """
    dims = [one.key_dim if isinstance(one, GatedDelta) else one.state_size for one in shape.recurrences]
    return (MAX_DRAFT + 1) * 4 * STRIPE * max(dims, default=0)


def heaviest_rows(shape: ModelShape, most: int) -> tuple[int, ...]:
    """Return the row counts, up to ``most``, one of which allocates the most memory.

    The largest row count does not always need the most. For few rows attention splits the context into spans of keys
    and keeps a state for each span, which takes more memory than many rows do. Attention also computes rows in blocks
    of equal size, so one more row may make all blocks smaller.
    """
    few, ends = min(most, FEW_ROWS), {most}
    for heads in kinds_of_heads(shape):
        full = _most_block_rows(heads, FEW_ROWS)
        ends |= {min(block, few) for block in range(full, few + full, full)}
        full = _most_block_rows(heads, most)
        ends.add(max(few, (most - 1) // full * full))
    return tuple(sorted(ends))


def thread_bytes(shape: ModelShape, threads: int) -> int:
    """Return the bytes that threads keep for themselves, outside of any arena.

    They are for quantised rows in passes of few rows, and for unpacked tiles in passes of more; of gate and up two
    tiles are unpacked at once. In the same memory helpers have their item of attention; the caller's is the pass's. And
    for states of drafts.
    """
    if shape.op_profile != "native":
        return 0
    attended = shape.model.query_size
    widest = max(shape.model.hidden_size, attended, shape.model.intermediate_size)
    tiles = max(2 * shape.model.hidden_size, attended, shape.model.intermediate_size)
    own = FEW_ROWS * _rounded_bytes(shape, widest) + _stripes_bytes(shape) + 256
    unpacked = _UNPACKED_BLOCK * -(-tiles // _BLOCK)
    item = max(_item_bytes(heads, rows) for heads in kinds_of_heads(shape) for rows in (FEW_ROWS, FEW_ROWS + 1))
    return threads * own + unpacked + (threads - 1) * max(unpacked, item)


def _layer_row_bytes(shape: ModelShape) -> int:
    """Return the bytes that a layer needs for each row, without attention's scratch memory."""
    attended = shape.model.query_size
    stream = 4 * 2 * shape.model.hidden_size  # its input and its output
    steps = 4 * (shape.qkv_size + attended + shape.model.hidden_size + shape.model.intermediate_size)
    widest = max(shape.model.hidden_size, attended, shape.model.intermediate_size)
    rounded = _rounded_bytes(shape, widest) + _rounded_bytes(shape, shape.model.intermediate_size)
    more = _experts_row_bytes(shape) + _further_row_bytes(shape)
    return stream + max(steps, mixer_row_bytes(shape)) + rounded + more


def mixer_row_bytes(shape: ModelShape) -> int:
    """Return the bytes of a row between the matrices of the mixer other than attention that needs most."""
    # What attention makes waits for the state space beside it.
    waiting = 4 * shape.model.query_size if _has_mixers_beside(shape) else 0
    convs = 4 * _CONV_HIDDEN * shape.model.hidden_size if shape.conv_layers else 0
    return max(convs, waiting + _state_row_bytes(shape))


def _has_mixers_beside(shape: ModelShape) -> bool:
    """Return whether a layer has attention and a state space."""
    model = shape.model
    return isinstance(model, Decoder) and any(
        layer.attention is not None and layer.state_space is not None for layer in model.kinds
    )


def _state_row_bytes(shape: ModelShape) -> int:
    """Return the bytes of a row between the matrices of the layer whose state needs most, and in its operator."""
    found = 0
    for one in shape.recurrences:
        if isinstance(one, GatedDelta):
            prepared = one.conv_size - one.value_size + 2 * one.value_heads
            found = max(found, 2 * one.conv_size + 2 * one.value_size + 2 * one.value_heads + prepared)
        else:
            found = max(found, 2 * one.conv_size + 3 * one.size + 3 * one.heads)
    return 4 * found


def _further_row_bytes(shape: ModelShape) -> int:
    """Return the bytes of a row's further embeddings: of all layers, as they wait, and of one on its way."""
    model = shape.model
    if not isinstance(model, Decoder) or not model.per_layer_embedding:
        return 0
    return 4 * (model.per_layer_embedding * (model.num_layers + 1) + 2 * model.hidden_size)


def _experts_row_bytes(shape: ModelShape) -> int:
    """Return the bytes of a row in the layer whose experts need most: each of those that it has holds the row."""
    model = shape.model
    if not isinstance(model, Decoder):
        return 0
    found = 0
    for layer, experts in ((layer, layer.experts) for layer in model.kinds if layer.experts is not None):
        size, width = experts.each.size, experts.latent or model.hidden_size
        each = 4 * size + _rounded_bytes(shape, width) + _rounded_bytes(shape, size) + 16
        # Behind them: rows of their own and what they make of those, or what another feed-forward made.
        beside = 2 * experts.latent + (0 if layer.feed_forward is None else model.hidden_size)
        # What a norm of their own makes lies beside what the router's does.
        beside += model.hidden_size if experts.has_own_norms else 0
        sums = _TILE * _SUM_THREADS
        found = max(found, experts.chosen * each + 4 * (model.hidden_size + experts.count + _TILE + beside + sums))
    return found


def _rounded_bytes(shape: ModelShape, features: int) -> int:
    """Return the bytes of a row quantised to 8 bits, with a scale and a sum for every block; fine ones take two."""
    return (_BLOCK + 8) * (-(-features // _BLOCK) + shape.fine_blocks)


def _most_block_rows(heads: Heads, rows: int) -> int:
    queries = _MANY_QUERIES if rows > FEW_ROWS else _BLOCK_QUERIES
    return min(max(queries // (heads.group), 1), _MAX_BLOCK_ROWS)


def _block_rows(heads: Heads, rows: int) -> int:
    """Return the number of rows in a block that attention computes together."""
    blocks = -(-rows // _most_block_rows(heads, rows))
    return -(-rows // blocks)


def _spans(heads: Heads, rows: int, ctx: int) -> int:
    """Return the largest number of spans of keys that the rows of a pass attend to."""
    spans = -(-ctx // _SPAN)
    return min(spans, (heads.window + rows - 2) // _SPAN + 2) if heads.window else spans


def _item_bytes(heads: Heads, rows: int) -> int:
    """Return the most memory of an item of attention in passes of so many rows, or of fewer where these are few."""
    of_block = _most_block_rows(heads, rows) * heads.group
    own = of_block * _query_bytes(heads) if rows <= FEW_ROWS else 0
    return _slot_bytes(heads, of_block) + own


def _attention_bytes(shape: ModelShape, rows: int, ctx: int, sequences: int = 1) -> int:
    return max(_bytes_of_heads(heads, rows, ctx, sequences) for heads in kinds_of_heads(shape))


def _bytes_of_heads(heads: Heads, rows: int, ctx: int, sequences: int) -> int:
    spans = _spans(heads, rows, ctx)
    # The context starts at a span boundary.
    one = max(_spread_bytes(heads, rows, count, ctx) for count in {1, spans})
    return one if sequences == 1 else max(one, _several_bytes(heads, rows, spans, sequences))


def _several_bytes(heads: Heads, rows: int, spans: int, sequences: int) -> int:
    """Return the scratch memory of attention for several sequences, whatever number of rows each of them has.

    Results of a few rows of each wait until all spans, or the chunks of the only one, are done.
    """
    waiting = min(rows, FEW_ROWS * sequences) * max(spans, _SPAN // _CHUNK)
    queries = rows * _query_bytes(heads) + waiting * _state_bytes(heads)
    of_block = min(rows, _most_block_rows(heads, rows)) * (heads.group)
    slot = _slot_bytes(heads, of_block) + of_block * _query_bytes(heads)
    return heads.heads * queries + 1024 * sequences + slot


def _query_bytes(heads: Heads) -> int:
    """Return the bytes of a query, also of its codes.

    16-bit and 32-bit caches do not need these, but so a smaller cache never needs more.
    """
    padded = -(-heads.size // _TILE) * _TILE
    return 4 * padded + -(-heads.size // _CHUNK) * _CHUNK + 8 * -(-heads.size // _BLOCK)


def _state_bytes(heads: Heads) -> int:
    """Return the bytes of what is known of a query: maximum, sum and output."""
    return 4 * -(-heads.size // _TILE) * _TILE + 8


def _slot_bytes(heads: Heads, of_block: int) -> int:
    """Return the memory of a work item under way, for the queries of a block."""
    padded, groups = -(-heads.size // _TILE) * _TILE, -(-heads.size // _BLOCK)
    floats = of_block * _CHUNK + (_CHUNK + _TILE) * padded + 2 * _TILE * groups
    return 4 * floats + 3 * of_block * _state_bytes(heads) + 1024


def _spread_bytes(heads: Heads, rows: int, spans: int, ctx: int) -> int:
    """Return the scratch memory of attention over ``spans`` spans of keys, in bytes."""
    state, query, queries = _state_bytes(heads), _query_bytes(heads), rows * heads.heads
    block_rows = _block_rows(heads, rows)
    of_block = block_rows * (heads.group)
    slot = _slot_bytes(heads, of_block)
    shared = queries * query
    if rows <= FEW_ROWS:
        # With few rows every span of keys keeps a state until all are done. With a single span every chunk keeps one,
        # and each part quantises its queries itself.
        waiting = spans if spans > 1 else min(_SPAN // _CHUNK, -(-ctx // _CHUNK))
        shared = queries * (state * waiting + (query if spans > 1 else 0))
        slot += 0 if spans > 1 else of_block * query
    return shared + 1024 + slot
