"""Terms of a plan for a GPU: what a native package holds there, and what its driver takes of the process.

The sizes follow ``csrc/ops/*/*_gpu.{h,cc}`` and ``csrc/gpu/memory_pool.cc``. What the driver takes for itself is an
estimate; how it rounds what it is asked for was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_rt.memory.activations import FEW_ROWS, kinds_of_heads, mixer_row_bytes
from edge_rt.memory.figures import Choice
from edge_rt.memory.shape import ModelShape
from edge_rt.memory.terms import (
    divided_kept_bytes,
    divided_weights,
    drafts_ahead,
    drafts_itself,
    first_on_gpu,
    hidden_bytes,
    kept_bytes,
    kv_rows,
    read_on_both,
)
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import GatedDelta
from edge_rt.package.states import SLOTS, state_sizes

RECORDED_ROWS: Final = FEW_ROWS
"""Rows of the largest pass that is recorded."""
RECORDED_SHAPES: Final = 72
"""Shapes of passes that are kept, each recorded by itself."""

_PASS_LAYERS: Final = 40
"""Layers of a pass whose kernels' arguments fit 256 KiB: up to 12 kernels each, of 512 bytes."""
PIECE: Final = 4 << 20
"""Bytes of a file of weights that are read at once, on their way to a GPU: ``csrc/gpu/weights_file.cc``."""
_SHARED_PAGE: Final = 1 << 20
_PAGE: Final = 2 << 20
"""Of more than the first the driver gives whole pages of the second (an H200, driver 580); smaller blocks share one."""
_SMALLEST_BLOCK: Final = 256
_KEPT: Final = 12.5
"""The pool keeps blocks of every size that recorded passes had. Sizes are 8 to 15 steps, and the step doubles: up to a
size of 8 steps there are (8 + ... + 15) (1/2 + 1/4 + ...) = 92 steps in smaller blocks, and the block itself: 100 / 8
sizes."""
_ONCE: Final = 2
"""Of other passes it keeps less than what the two largest need."""
_BLOCK: Final = 32  # elements per scale
_BLOCK_FACTS: Final = 16  # bytes of a block's scale and sums
_SPAN: Final = 256
_QUERY_TILE: Final = 64  # a query's codes fill whole tiles
_DIM_TILE: Final = 16
_TOP_K_PART: Final = 4096  # logits of a part
_TOP_K_BYTES: Final = 12 + 64 * 8  # of a part: count, peak and sum; values and ids
_TREE_HEAD: Final = 4
_STATE_HEAD: Final = 5
_EXPERT_PLACE: Final = 1800
"""Bytes of what is said of an expert and of a group of its rows, of which each row may have its own."""
_ALIGNED: Final = 20 * 64  # arrays of one operator begin at lines
_RECORDED: Final = 4 << 10  # bytes of a recorded pass besides what grows with rows and context


@dataclass(frozen=True)
class GpuSizes:
    """Bytes of what lies on a GPU, each part at its largest.

    Attributes:
        weights: all matrices, and tables of rotations, but what is read where the file is mapped.
        activations: what passes need, the rows' map, the tree and the rows between graphs included.
    """

    context: int
    weights: int
    kv_cache: int
    activations: int
    logits: int
    states: int = 0

    @property
    def loaded(self) -> int:
        """Bytes that are held once the graph is open."""
        return self.context + self.weights

    @property
    def surely_held(self) -> int:
        """Bytes that a loaded model holds whatever it has computed, and gives back when it is closed."""
        return self.weights + self.kv_cache + self.logits + self.states

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return self.loaded + self.kv_cache + self.activations + self.logits + self.states


def pooled(count: float) -> int:
    """Return the bytes that the pool takes for a tensor: up to an eighth more."""
    wanted = max(1, int(count))
    step = _SMALLEST_BLOCK
    while step * 16 <= wanted:
        step *= 2
    return -(-wanted // step) * step


def gpu_kv_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the KV cache on a GPU, where each layer has an array of its own."""
    full, windowed = kv_rows(shape, choice)
    first = 0 if choice.gpu_layers is None else first_on_gpu(shape, choice)
    sizes = shape.layer_bytes(choice.kv_format, full, windowed)
    convs = shape.conv_layers * _of_driver(windowed * shape.conv_row_bytes) if shape.conv_layers else 0
    return convs + sum(_of_driver(size) for layer, size in sizes.items() if layer >= first)


def gpu_state_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the states of all slots on a GPU, each layer's arrays by themselves, and of those kept."""
    sizes = state_sizes(shape.model, choice.tree_rows)
    own = sum(_of_driver(choice.slots * SLOTS * 4 * size) for size in sizes.values())
    here = 0 if choice.gpu_layers is None else divided_kept_bytes(shape, choice)
    return own + choice.checkpoints * _of_driver(kept_bytes(shape, choice) - here)


def _draft_states_bytes(shape: ModelShape) -> int:
    """Return the bytes of states that drafts leave for those behind them, in passes that are recorded.

    These share a block, or two: what rows need besides makes it a little larger.
    """
    largest = max((4 * one.state_floats for one in shape.recurrences), default=0)
    return 2 * pooled(-(-RECORDED_ROWS // 2) * largest * 9 // 8) if largest else 0


def _of_driver(wanted: int) -> int:
    return wanted if wanted <= _SHARED_PAGE else -(-wanted // _PAGE) * _PAGE


def gpu_weights(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of all matrices, and of tables of rotations: they lie there once for all sessions.

    Where layers are divided, what both sides read is copied for each session by itself.
    """
    if choice.gpu_layers is None:
        return laid_bytes(shape) + shape.loaded_rope_bytes * choice.ctx
    more = drafts_itself(shape, choice) + shape.has_states_graph
    return divided_weights(shape, choice)[1] + more * read_on_both(shape, choice)


def laid_bytes(shape: ModelShape) -> int:
    """Return the bytes of ``weights.bin`` that a GPU reads: all but those of a block that predicts ahead.

    What that has for itself stays in the process.
    """
    return shape.weights_bytes - (0 if shape.ahead is None else shape.ahead.own_bytes)


def gpu_activations(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes that passes of every size up to the largest take in time, and keep.

    The session of every segment has a pool of its own; so has that of the head alone, which makes a row of logits.
    """
    if choice.gpu_layers is not None:
        return _divided_activations(shape, choice)
    rows = choice.largest_pass
    few = pooled(_pass_bytes(shape, min(rows, RECORDED_ROWS), choice.ctx))
    largest = max(few, pooled(_pass_bytes(shape, rows, choice.ctx)))
    of_sequence = 4 * (_maps(shape) * choice.ctx + _TREE_HEAD + rows) + _state_inputs_bytes(shape, choice)
    small = choice.slots * of_sequence
    of_layers = int(_KEPT * few) + _ONCE * largest + pooled(small) + _draft_states_bytes(shape)
    of_head = 0 if shape.segments == 1 else pooled(_top_k_bytes(shape, 1)) + pooled(_layer_bytes(shape, 1))
    of_drafts = gpu_self_drafting(shape, choice) if drafts_itself(shape, choice) else 0
    of_rows = hidden_bytes(shape, choice) + _stream_bytes(shape, choice)
    of_states = _states_activations(shape, choice)
    top = pooled(_top_k_bytes(shape, choice.logit_rows))
    return shape.segments * of_layers + top + of_head + of_drafts + of_rows + of_states


def _stream_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the stream of all rows, which a block that predicts ahead reads."""
    return 4 * shape.model.hidden_size * choice.largest_pass if drafts_ahead(shape, choice) else 0


def _states_activations(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of passes of a graph for embeddings: none is recorded, and of all rows states are wanted."""
    if not shape.has_states_graph:
        return 0
    rows = choice.largest_pass
    of_sequence = 4 * (_maps(shape) * choice.ctx + _TREE_HEAD + rows) + _state_inputs_bytes(shape, choice)
    largest = pooled(_pass_bytes(shape, rows, choice.ctx) + 4 * shape.model.hidden_size * rows)
    return _ONCE * largest + pooled(choice.slots * of_sequence)


def _divided_activations(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of passes that the CPU begins: none is recorded, so that nothing is kept for one.

    Tables of rotations that are not in ``weights.bin`` are read on both sides, and copied in every pass.
    """
    copied = shape.loaded_rope_bytes * choice.ctx
    sizes = {min(choice.largest_pass, RECORDED_ROWS), choice.largest_pass}
    largest = max(pooled(_pass_bytes(shape, rows, choice.ctx) + copied) for rows in sizes)
    small = choice.slots * 4 * (_maps(shape) * choice.ctx + _TREE_HEAD + choice.largest_pass)
    of_session = _ONCE * largest + pooled(small)
    top = pooled(_top_k_bytes(shape, choice.logit_rows))
    of_drafts = of_session + 2 * pooled(4 * shape.model.vocab_size + 128) if drafts_itself(shape, choice) else 0
    return of_session + top + of_drafts + _states_activations(shape, choice) + _stream_bytes(shape, choice)


def _state_inputs_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of what a pass is told of states: numbers of drafts, and a step of every row."""
    if not shape.recurrent_layers:
        return 0
    return 4 * (_STATE_HEAD + choice.tree_rows + 4 * choice.largest_pass) + 8 * _SMALLEST_BLOCK


def _top_k_bytes(shape: ModelShape, rows: int) -> int:
    return rows * -(-shape.model.vocab_size // _TOP_K_PART) * _TOP_K_BYTES


def gpu_self_drafting(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of a second session that drafts with the upper halves of the weights, besides these.

    It has a pool of its own for passes of few rows, and a row of results for each of two views of the cache.
    """
    rows = min(choice.largest_pass, RECORDED_ROWS)
    passes = int((_KEPT + _ONCE) * pooled(_pass_bytes(shape, rows, choice.ctx)))
    return passes + 2 * pooled(4 * shape.model.vocab_size + 128)


def staging_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the pinned bytes of the process from which recorded passes copy their inputs: maps, tree and tokens.

    Every segment of a package records a pass by itself. So do, for each node of a draft, those before its exit and the
    head.
    """
    of_layers = _RECORDED + 4 * _maps(shape) * choice.ctx + 8 * RECORDED_ROWS
    exits = shape.segments - 1
    return _recorded_shapes(shape) * of_layers + RECORDED_ROWS * exits * _RECORDED


def recorded_passes(shape: ModelShape, choice: Choice) -> int:
    """Return how many passes are kept, of up to ``_PASS_LAYERS`` layers each; none where layers are divided."""
    parts = -(-shape.model.num_layers // _PASS_LAYERS)
    return 0 if choice.gpu_layers is not None else parts * _recorded_shapes(shape)


def _recorded_shapes(shape: ModelShape) -> int:
    exits = shape.segments - 1
    return RECORDED_SHAPES * shape.segments + RECORDED_ROWS * exits * (exits + 1) // 2


def _maps(shape: ModelShape) -> int:
    """Return how many maps of rows a pass reads: layers with a sliding window have one of their own."""
    return 2 if shape.window_layers else 1


def attention_bytes(shape: ModelShape, rows: int, ctx: int) -> int:
    """Return the scratch memory of attention on a GPU: queries, and a state for every span of keys with few rows."""
    spans = 1 if rows > FEW_ROWS else -(-ctx // _SPAN) + 1
    found = 0
    for heads in kinds_of_heads(shape):
        padded = -(-heads.size // _DIM_TILE) * _DIM_TILE
        codes = -(-heads.size // _QUERY_TILE) * _QUERY_TILE + 8 * -(-heads.size // _BLOCK)
        found = max(found, heads.heads * (max(4 * padded, codes) + spans * (8 + 4 * padded)))
    return rows * found + 1024


def _pass_bytes(shape: ModelShape, rows: int, ctx: int) -> int:
    inside = max(attention_bytes(shape, rows, ctx), _experts_bytes(shape, rows))
    return _further_bytes(shape, rows) + _layer_bytes(shape, rows) + inside


def _further_bytes(shape: ModelShape, rows: int) -> int:
    """Return the bytes of rows' further embeddings: from the table, with the stream's part, and of each layer."""
    model = shape.model
    if not isinstance(model, Decoder) or not model.per_layer_embedding:
        return 0
    of_layer = 4 * rows * model.per_layer_embedding
    gate_and_sums = 4 * rows * 2 * model.hidden_size
    return model.num_layers * (2 * of_layer + pooled(of_layer)) + of_layer + gate_and_sums


def _experts_bytes(shape: ModelShape, rows: int) -> int:
    """Return the bytes of the layer whose experts need most: each of those that a row has holds it, and what it made.

    The sizes follow ``place_experts`` in ``csrc/ops/experts/experts_gpu.cc``.
    """
    model, found = shape.model, 0
    if not isinstance(model, Decoder):
        return 0
    for experts in (layer.experts for layer in model.kinds):
        if experts is None:
            continue
        size, width = experts.each.size, experts.latent or model.hidden_size
        element = 4 if shape.activations == "float" else 1
        rounded = sum((element * _BLOCK + _BLOCK_FACTS) * -(-one // _BLOCK) for one in (width, size))
        place = rounded + 4 * (size + width + 5) + _EXPERT_PLACE
        # Two norms, scores and a share; rows of their own and what they make of those, or what stands beside them.
        row = 4 * (2 * model.hidden_size + experts.count + _DIM_TILE + 1 + 2 * width + model.hidden_size)
        found = max(found, rows * (experts.chosen * place + row) + _ALIGNED)
    return found


def _layer_bytes(shape: ModelShape, rows: int) -> int:
    """Return the bytes that a layer needs for its rows: input, output, the values between, and rounded copies."""
    model = shape.model
    attended = model.query_size
    between = max(shape.qkv_size + attended, mixer_row_bytes(shape) // 4)
    values = 2 * model.hidden_size + between + model.hidden_size + 2 * model.intermediate_size
    made = [one.value_size if isinstance(one, GatedDelta) else one.size for one in shape.recurrences]
    widest = max(model.hidden_size, attended, model.intermediate_size, *made)
    element = 4 if shape.activations == "float" else 1
    blocks = sum(-(-size // _BLOCK) + shape.fine_blocks for size in (widest, model.intermediate_size))
    rounded = (element * _BLOCK + _BLOCK_FACTS) * blocks
    return rows * (4 * values + rounded)
