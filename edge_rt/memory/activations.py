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
_SLOTS, _MAX_WORKERS = 4, 64
_APPEND_ITEMS: Final = 32

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


def _block_rows(shape: ModelShape, rows: int) -> tuple[int, int]:
    """Return rows of a block that attention computes together, and the number of blocks."""
    most = min(max(_BLOCK_QUERIES // (shape.num_heads // shape.num_kv_heads), 1), _MAX_BLOCK_ROWS)
    blocks = -(-rows // most)
    block_rows = -(-rows // blocks)
    return block_rows, -(-rows // block_rows)


def _slots(shape: ModelShape, rows: int) -> int:
    items = shape.num_kv_heads * _block_rows(shape, rows)[1] * (1 if rows > FEW_ROWS else _SLOTS * 4)
    return _SLOTS + min(_MAX_WORKERS, max(items, _APPEND_ITEMS))


def _attention_bytes(shape: ModelShape, rows: int, ctx: int) -> int:
    padded = -(-shape.head_dim // _TILE) * _TILE
    groups = -(-shape.head_dim // _BLOCK)
    state = 4 * padded + 8  # of a query: its peak, its sum, its output
    queries = rows * shape.num_heads
    # Rounded queries too, which caches in 16 and 32 bits do without: so no smaller cache ever needs more in all.
    query = 4 * padded + groups * (_BLOCK + 8)
    waiting = state * max(-(-ctx // _SPAN) + 1, _SPAN // _CHUNK) if rows <= FEW_ROWS else 0
    of_block = _block_rows(shape, rows)[0] * (shape.num_heads // shape.num_kv_heads)
    slot = 4 * (of_block * _CHUNK + (_CHUNK + _TILE) * padded + _TILE * groups) + 3 * of_block * state + 1024
    return queries * (query + waiting) + _slots(shape, rows) * slot
