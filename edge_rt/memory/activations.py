"""What a pass takes for its intermediate values: the tensors between operators, and scratch memory inside them.

A pass computes layer by layer, so one layer's memory serves all. It is what ``csrc/ops/decoder_layer`` and
``csrc/ops/spec_attention/spec_attention_run.cc`` ask for, row by row.
"""

from __future__ import annotations

from typing import Final

from edge_rt.memory.shape import ModelShape

_BLOCK: Final = 32  # elements that share a scale
_CHUNK, _TILE, _SPAN = 64, 16, 256  # keys that attention takes together
_BLOCK_QUERIES: Final = 48
_MAX_BLOCK_ROWS: Final = 32
FEW_ROWS: Final = 16
_WORKER_SLOTS, _MAX_WORKERS = 4, 64
_APPEND_ITEMS: Final = 32
_SPAN_ITEMS, _CHUNK_ITEMS, _MOST_SPANS = 12, 9, 4  # wanted of attention over few rows; spans that an item takes

_FIXED: Final = 512 << 10
_MARGIN: Final = 1.05  # tensors begin on boundaries of 256 bytes, and outputs of the head's few rows

# Floats of a row between ONNX Runtime's own operators, over the sizes of a layer; measured, with its flash attention.
_PORTABLE_HIDDEN, _PORTABLE_QKV, _PORTABLE_INNER = 10, 4, 6


def allocated_bytes(shape: ModelShape, rows: int, ctx: int) -> int:
    """Return the bytes that a pass over ``rows`` tokens allocates behind a context of ``ctx``: a limit for an arena.

    Attention has room for as many threads as there may be; passes of one size touch the parts of those there are.
    """
    if shape.op_profile == "portable":
        floats = (
            _PORTABLE_HIDDEN * shape.hidden_size
            + _PORTABLE_QKV * shape.qkv_size
            + _PORTABLE_INNER * shape.intermediate_size
        )
        whole = 4 * shape.vocab_size * shape.hidden_size if shape.activations == "float" else 0
        return int(_MARGIN * (4 * floats * rows + whole)) + 8 * _FIXED
    return int(_MARGIN * (_layer_row_bytes(shape) * rows + _attention_bytes(shape, rows, ctx))) + _FIXED


def heaviest_rows(shape: ModelShape, most: int) -> tuple[int, ...]:
    """Return the passes of up to ``most`` rows among which the one is that allocates most.

    Attention spreads few rows over the context, with a state for every span of keys, and takes more then than for many;
    and it computes rows in blocks of like size, so one row more may make all of them smaller.
    """
    full = _most_block_rows(shape)
    few = min(most, FEW_ROWS)
    ends = {min(block, few) for block in range(full, few + full, full)}
    ends |= {most, max(few, (most - 1) // full * full)}
    return tuple(sorted(ends))


def own_rows_bytes(shape: ModelShape, threads: int) -> int:
    """Return what threads round for themselves in passes of few rows, and keep; it lies outside of any arena."""
    if shape.op_profile == "portable":
        return 0
    widest = max(shape.hidden_size, shape.num_heads * shape.head_dim, shape.intermediate_size)
    return threads * (FEW_ROWS * _rounded_bytes(widest) + 128)


def _layer_row_bytes(shape: ModelShape) -> int:
    """Return what a layer takes for each row, attention's own scratch aside."""
    attended = shape.num_heads * shape.head_dim
    stream = 4 * 2 * shape.hidden_size  # its input and its output
    steps = 4 * (shape.qkv_size + attended + shape.hidden_size + shape.intermediate_size)
    widest = max(shape.hidden_size, attended, shape.intermediate_size)
    return stream + steps + _rounded_bytes(widest) + _rounded_bytes(shape.intermediate_size)


def _rounded_bytes(features: int) -> int:
    """Return a row rounded to 8 bits, with scale and sum for every block."""
    return (_BLOCK + 8) * -(-features // _BLOCK)


def _most_block_rows(shape: ModelShape) -> int:
    return min(max(_BLOCK_QUERIES // (shape.num_heads // shape.num_kv_heads), 1), _MAX_BLOCK_ROWS)


def _block_rows(shape: ModelShape, rows: int) -> tuple[int, int]:
    """Return rows of a block that attention computes together, and the number of blocks."""
    blocks = -(-rows // _most_block_rows(shape))
    block_rows = -(-rows // blocks)
    return block_rows, -(-rows // block_rows)


def _spans(shape: ModelShape, rows: int, ctx: int) -> int:
    """Return the most spans of keys that the rows of a pass see, layers without a window first."""
    spans = -(-ctx // _SPAN)
    if shape.window_layers < shape.num_layers:
        return spans
    return min(spans, (shape.sliding_window + rows - 2) // _SPAN + 2)


def _slots(shape: ModelShape, rows: int, blocks: int, spans: int) -> int:
    """Return the parts of a pass that have memory of their own: as many as threads could work on at once."""
    units = shape.num_kv_heads * blocks
    if rows > FEW_ROWS:
        items = max(units, min(rows, _APPEND_ITEMS))
    else:
        # Up to four spans make an item: fewer while that leaves less than two dozen items, in any shorter context too.
        items = max(min(units * spans, 2 * _SPAN_ITEMS - 1), units * -(-spans // _MOST_SPANS), _CHUNK_ITEMS)
    return _WORKER_SLOTS + min(_MAX_WORKERS, items)


def _attention_bytes(shape: ModelShape, rows: int, ctx: int) -> int:
    spans = _spans(shape, rows, ctx)
    # A context begins with its first span.
    return max(_spread_bytes(shape, rows, count, ctx) for count in {1, spans})


def _spread_bytes(shape: ModelShape, rows: int, spans: int, ctx: int) -> int:
    """Return the scratch of attention over so many spans of keys."""
    padded = -(-shape.head_dim // _TILE) * _TILE
    groups = -(-shape.head_dim // _BLOCK)
    state = 4 * padded + 8  # of a query: its peak, its sum, its output
    queries = rows * shape.num_heads
    # Rounded queries too, which caches in 16 and 32 bits do without: so no smaller cache ever needs more in all.
    query = 4 * padded + -(-shape.head_dim // _CHUNK) * _CHUNK + 8 * groups
    block_rows, blocks = _block_rows(shape, rows)
    of_block = block_rows * (shape.num_heads // shape.num_kv_heads)
    slot = 4 * (of_block * _CHUNK + (_CHUNK + _TILE) * padded + 2 * _TILE * groups) + 3 * of_block * state + 1024
    shared = queries * query
    if rows <= FEW_ROWS:
        # Of few rows every span of keys has a state of its own until all are done; in a single span every chunk has,
        # and parts round their queries themselves.
        waiting = spans if spans > 1 else min(_SPAN // _CHUNK, -(-ctx // _CHUNK))
        shared = queries * (state * waiting + (query if spans > 1 else 0))
        slot += 0 if spans > 1 else of_block * query
    return shared + 1024 + _slots(shape, rows, blocks, spans) * slot
