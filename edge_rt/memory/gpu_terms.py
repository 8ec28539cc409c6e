"""Terms of a plan for a GPU: what a native package holds there, and what its driver takes of the process.

The sizes follow ``csrc/ops/*/*_gpu.{h,cc}`` and ``csrc/gpu/pass_arena.h``. What the driver takes for itself is an
estimate; how it rounds what it is asked for was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_rt.memory.activations import FEW_ROWS, kinds_of_heads, mixer_row_bytes
from edge_rt.memory.figures import Choice
from edge_rt.memory.shape import ModelShape
from edge_rt.memory.terms import (
    copied_rows_bytes,
    divided_hidden_bytes,
    divided_kept_bytes,
    divided_weights,
    drafts_ahead,
    drafts_itself,
    first_on_gpu,
    graphs_ended,
    hidden_bytes,
    kept_bytes,
    kv_rows,
    read_on_both,
    rows_of_layers,
)
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import GatedDelta
from edge_rt.package.states import SLOTS, state_sizes

RECORDED_ROWS: Final = FEW_ROWS
"""Rows of the largest pass that is recorded."""
RECORDED_SHAPES: Final = 72
"""Shapes of passes that are kept, each recorded by itself."""

PIECE: Final = 4 << 20
"""Bytes of a file of weights that are read at once, on their way to a GPU: ``csrc/gpu/weights_file.cc``."""
_LAYER_PIECES: Final = 4608
"""Bytes of the arguments of a layer's kernels, each at a multiple of 64: 14 of 320."""
_LAYER_RECORDED: Final = 6 << 10
"""Bytes of a layer in a recorded pass: these arguments, and what is known of their kernels."""
_SHARED_PAGE: Final = 1 << 20
"""Of more than that NVIDIA's driver gives whole pages (an H200, driver 580); smaller blocks share one."""
_ALIGNED_AT: Final = 256  # where tensors of a pass begin
_TENSORS: Final = 32  # of a pass, at once
_SPLIT: Final = 16  # of memory that is divided again and again a part lies between others
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


def gpu_kv_bytes(shape: ModelShape, choice: Choice, page: int) -> int:
    """Return the bytes of the KV cache on a GPU, where each layer has an array of its own.

    Args:
        page: of which the driver gives whole ones; 0: it gives what it is asked for.
    """
    full, windowed = kv_rows(shape, choice)
    first = 0 if choice.gpu_layers is None else first_on_gpu(shape, choice)
    sizes = rows_of_layers(shape, choice.kv_format, full, windowed)
    return sum(_of_driver(size, page) for layer, size in sizes.items() if layer >= first)


def gpu_state_bytes(shape: ModelShape, choice: Choice, page: int) -> int:
    """Return the bytes of the states of all slots on a GPU, each layer's arrays by themselves, and of those kept."""
    first = 0 if choice.gpu_layers is None else first_on_gpu(shape, choice)
    sizes = state_sizes(shape.model, choice.tree_rows, range(first, shape.model.num_layers))
    own = sum(_of_driver(choice.slots * SLOTS * 4 * size, page) for size in sizes.values())
    here = 0 if choice.gpu_layers is None else divided_kept_bytes(shape, choice)
    return own + choice.checkpoints * _of_driver(kept_bytes(shape, choice) - here, page)


def _draft_states_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the states that rows of a draft leave for those behind them, of one layer."""
    largest = max((4 * one.state_floats for one in shape.recurrences), default=0)
    return choice.slots * choice.tree_rows * largest


def _of_driver(wanted: int, page: int) -> int:
    return wanted if wanted <= _SHARED_PAGE or not page else -(-wanted // page) * page


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
    """Return the bytes of what passes need: their memory, and rows that are between the graphs of a package."""
    of_drafts = 0
    if drafts_itself(shape, choice):
        # A row of results for each of two views of the cache.
        of_drafts = 2 * (4 * shape.model.vocab_size + 128)
    if choice.gpu_layers is None:
        between = hidden_bytes(shape, choice)
    else:
        between = divided_hidden_bytes(shape, choice)[1] + copied_rows_bytes(shape, choice)
    return gpu_pass_memory(shape, choice) + between + of_drafts + _stream_bytes(shape, choice)


def _stream_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the stream of all rows, which a block that predicts ahead reads."""
    return 4 * shape.model.hidden_size * choice.largest_pass if drafts_ahead(shape, choice) else 0


def gpu_pass_memory(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the memory that passes of all sizes, of all sessions, divide anew: what the largest needs.

    Layers that are divided read tables of rotations on both sides, which are copied in every pass if they are not in
    ``weights.bin``.
    """
    sizes = {min(choice.largest_pass, RECORDED_ROWS), choice.largest_pass}
    largest = max(_pass_bytes(shape, rows, choice.ctx) for rows in sizes)
    if choice.gpu_layers is not None:
        largest += shape.loaded_rope_bytes * choice.ctx
    if shape.has_states_graph:
        # Of all rows states are wanted.
        largest += 4 * shape.model.hidden_size * choice.largest_pass
    of_sequence = 4 * (_maps(shape) * choice.ctx + 2 * (_TREE_HEAD + choice.largest_pass))
    inputs = choice.slots * (of_sequence + _state_inputs_bytes(shape, choice))
    held = largest + inputs + _draft_states_bytes(shape, choice) + _top_k_bytes(shape, choice.most_logits)
    return -(-(held + held // _SPLIT + _TENSORS * _ALIGNED_AT) // _ALIGNED_AT) * _ALIGNED_AT


def gpu_pieces(shape: ModelShape, choice: Choice, chunk: int) -> int:
    """Return the bytes of what kernels of a pass are given, which every session has in chunks of its own.

    Args:
        chunk: of so many bytes; 0: the driver has it.
    """
    if not chunk:
        return 0
    exits = shape.segments - 1
    graphs = shape.segments if choice.gpu_layers is None else graphs_ended(shape, choice)
    sessions = graphs + bool(exits) + drafts_itself(shape, choice) + shape.has_states_graph
    layers = -(-shape.model.num_layers // shape.segments)
    uploads = choice.slots * 4 * (_maps(shape) * choice.ctx + 2 * choice.largest_pass)
    return sessions * (1 + (layers * _LAYER_PIECES + uploads) // chunk) * chunk


def _state_inputs_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of what a pass is told of states: numbers of drafts, and a step of every row."""
    if not shape.recurrent_layers:
        return 0
    return 4 * (_STATE_HEAD + choice.tree_rows + 4 * choice.largest_pass) + 8 * _ALIGNED_AT


def _top_k_bytes(shape: ModelShape, rows: int) -> int:
    return rows * -(-shape.model.vocab_size // _TOP_K_PART) * _TOP_K_BYTES


def staging_bytes(shape: ModelShape, choice: Choice, chunk: int) -> int:
    """Return the bytes of the process from which recorded passes copy their inputs: maps, tree and tokens, pinned.

    Every segment of a package records a pass by itself. So do, for each node of a draft, those before its exit and the
    head.

    Args:
        chunk: 0: the driver has recorded passes; else they are in the process, and so are arguments of their kernels.
    """
    of_layers = _RECORDED + 4 * _maps(shape) * choice.ctx + 8 * RECORDED_ROWS
    exits = shape.segments - 1
    of_kernels = 0
    if chunk and choice.gpu_layers is None:
        of_kernels = -(-shape.model.num_layers // shape.segments) * _LAYER_RECORDED
    return _recorded_shapes(shape) * (of_layers + of_kernels) + RECORDED_ROWS * exits * _RECORDED


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
    return model.num_layers * 3 * (of_layer + _ALIGNED_AT) + of_layer + gate_and_sums


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
