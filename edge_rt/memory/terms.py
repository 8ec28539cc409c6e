"""The terms of a memory plan: bytes of each part of a running model, from a model's numbers and a choice.

The coefficients were measured in fresh processes by ``benchmarks/memory_terms.py`` and are rather too high than too
low. The formulas are in ``docs/memory.md``; ``plan_terms`` writes them as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from mmap import PAGESIZE
from typing import Final

from edge_rt.memory.activations import allocated_bytes, heaviest_rows
from edge_rt.memory.figures import Choice, Device
from edge_rt.memory.request import Request
from edge_rt.memory.shape import ModelShape
from edge_rt.package.decoder import Decoder
from edge_rt.package.exits import SELF_KV
from edge_rt.package.kv_formats import BLOCK_TOKENS, RESTING_PER_SLOT, ROW_BLOCK, window_capacity
from edge_rt.package.layer_sizes import TILE_ROWS
from edge_rt.package.spec_modes import AHEAD, AUTO, SELF
from edge_rt.package.states import CHECKPOINTS, SLOTS, states_bytes


@dataclass(frozen=True)
class TableBytes:
    """Bytes of the drafters' tables.

    Attributes:
        context: per context of each order in token recycling, with eight likely tokens.
    """

    token: int
    context: int


TABLES: Final = TableBytes(128, 192)
"""In the native library; these are bounds of its arrays. Measured, full: 60 to 102, and 155 to 185."""
NGRAM_TABLES: Final = TableBytes(420, 0)
"""Of n-grams instead of suffixes, in Python. Measured, full: 264 with random tokens."""
_PRICES: Final = 160 << 10  # curves, acceptance rates and bandits
AHEAD_ROWS: Final = 64
"""Rows of the largest pass of a block that predicts further ahead."""
_AHEAD_STATES: Final = 2  # arrays of so many rows
_SELF_SESSION: Final = 4 << 20  # a second graph: 0.8 MiB private, 1.9 MiB of outputs; the rest is slack


def table_bytes(spec: str | None) -> TableBytes:
    """Return the bytes of tables of a mode of speculation; None: ``auto``."""
    return NGRAM_TABLES if spec == "ngram" else TABLES


def drafter_bytes(choice: Choice, tables: TableBytes, *, of_itself: bool = False) -> int:
    """Return the bytes of the drafters' tables when full: texts are those of a slot, contexts are shared.

    Args:
        of_itself: whether a second graph of the model drafts as well.
    """
    if not choice.draft_max:
        return 0
    own = _SELF_SESSION if of_itself else 0
    of_slot = _PRICES + tables.token * choice.suffix_tokens
    return own + choice.slots * of_slot + tables.context * choice.recycling_contexts


MIB: Final = 1 << 20

BASE_BYTES: Final = 311 * MIB // 4
"""Python, ONNX Runtime, edge-rt's operators and the command line before a model is loaded. Measured: 77.1 MiB for
``generate``, 62.2 MiB for a program that imports only edge-rt; an interactive chat needs 5 MiB more for its line
editor."""

_FORMAT_FIXED: Final = 8 * MIB  # the library's code, and what a grammar's states take
_FORMAT_TOKEN: Final = 450
_TOKENIZER_FIXED: Final = 19 * MIB // 4
_MERGED_MOST: Final = 3 * MIB  # what merges take more than their bytes, with the library's code for them, at most
_MERGED_TEXT: Final = 9  # the same, per byte of tokenizer.json that tokens alone do not take
_TOKEN_TEXT: Final = 24  # bytes of a token in a tokenizer.json without merges
_TOKENIZER_BUCKET: Final = 48  # bytes per bucket of the library's hash tables; their number is a power of two
_TOKENIZER_TEXT: Final = 5  # bytes per byte of tokenizer.json, whose size grows with vocabulary and merges
_READING_TEXT: Final = 33  # the same while it is read
_READING_FIXED: Final = 10 * MIB
_SPELLED_BYTES: Final = 245  # per token whose text has been looked up
_SPELLED_TOKENS: Final = 4096  # tokens whose texts are cached
_ENCODED_BYTES: Final = 330  # per byte of text that is encoded at once: digits need 326, CJK 230, letters 190
_LONG_ENCODED_BYTES: Final = 640  # the same for a text longer than planned: digits need 388 to 625, CJK 168 to 268
_LEAST_STRETCH, _MOST_STRETCH = 8 << 10, 32 << 10  # bytes; a piece of 2,048 characters has at most the first
_WORD_CACHE: Final = MIB  # the library keeps 10,000 words

SESSION_FIXED: Final = 43 * MIB // 4
"""Measured with ONNX Runtime 1.32: 8.7 to 9.6 MiB, nearly all of it code that the first session touches, and what the
kernel maps around it, and 0.9 MiB that passes touch. Where it maps more at once, much of that code is there before; of
libraries that were written a moment ago it mapped up to 0.23 MiB more in all than 10.25 MiB here had room for."""
SECOND_SESSION: Final = MIB  # of a second model: the code of ONNX Runtime is there already
_SESSION_LAYER: Final = 16 << 10
_SESSION_GRAPH: Final = 192 << 10  # of every further graph
_STATES_ROWS: Final = 256  # of the largest pass of the graph of states
_SESSION_NODE: Final = 12 << 10  # of a traced graph, whose layers are many small operators
_TOKEN_LISTS: Final = 160  # bytes per context token in the lists of sequence, cache and prompt

# Portable packages, relative to weights.bin: weights that ONNX Runtime repacks, weights that stay mapped, and both
# together while the model loads.
_PACKED: Final = {"int8": 1.18, "float": 0.62}
_MAPPED: Final = {"int8": 0.42, "float": 0.62}
_PACKING: Final = {"int8": 1.6, "float": 0.65}

_MAPPED_AROUND: Final = 64 << 10  # of pages that the kernel maps together where one is touched
_ROTATIONS_AROUND: Final = 4 * _MAPPED_AROUND
"""Of two tables of rotations, what may be mapped around what is touched before and behind the rows that are not. These
are a mapping of their own, within which Linux stays."""
_FOLIO: Final = 2 << 20
"""What the kernel may map around a page, at most: of a tensor that ONNX Runtime maps by itself."""
_TABLE_TILES: Final = 16  # of the table of further embeddings, that are in memory at once
_LAYER_MATRICES: Final = 4
_NESTED_BYTES, _UPPER_BYTES = 9, 5  # of 8 nested weights, and of their upper halves with scales and minima

_SAMPLING_FIXED: Final = 3 * MIB  # numpy's random generator and the pages of its library
_SAMPLING_TOKEN: Final = 54
_PENALTIES_TOKEN: Final = 8
_MAPS_TOKEN: Final = 8  # the map of a slot, and the copy that passes read
_RESTING_TOKEN: Final = 8  # of an answer that has ended: its token, and where its row is
_POOL_BLOCK: Final = 48  # who holds a block of rows, and that it is free
_THREAD_HEAP: Final = MIB  # each caller's thread computes passes, and keeps what it freed in a heap of its own

GROWN: Final = 2
"""What an arena takes that ONNX Runtime makes for a session, relative to what passes need at once: each block that it
adds is twice as large as the one before. Sessions with a GPU have such a one; others one that is planned."""

FEW_HIDDEN_ROWS: Final = 64
"""Rows between segments for which there is a place behind every one of them, whatever the largest pass."""


def runtime_bytes(device: Device, resident_bytes: int | None) -> int:
    """Return the bytes that the process holds before a model is loaded.

    Args:
        resident_bytes: measured bytes; 0 if another model of the process already counts them; None for a command of
            ``edge-rt`` that is not started yet.
    """
    if resident_bytes is not None:
        return resident_bytes
    return BASE_BYTES if device.base_bytes is None else device.base_bytes


def kv_rows(shape: ModelShape, choice: Choice) -> tuple[int, int]:
    """Return the KV cache rows of a layer without a sliding window, and of a layer with one."""
    full = choice.kv_rows if choice.slots > 1 else choice.ctx
    if not shape.window_layers:
        return full, full
    return full, choice.slots * window_capacity(shape.model.ring_window, choice.largest_pass, choice.ctx)


def kv_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the KV cache: rows x layers x bytes of a row; and of the rows of convolutions."""
    full, windowed = kv_rows(shape, choice)
    return shape.cache_bytes(choice.kv_format, full, windowed) + shape.conv_layers * windowed * shape.conv_row_bytes


def rows_of_layers(shape: ModelShape, kv_format: str, full: int, windowed: int) -> dict[int, int]:
    """Return layer -> bytes of its rows, of a native package: keys and values, or what a short convolution reads."""
    convs = dict.fromkeys(shape.model.conv_layers, windowed * shape.conv_row_bytes)
    return {**shape.layer_bytes(kv_format, full, windowed), **convs}


def state_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the states of all slots, two of each with room for the largest draft, and of those kept."""
    own = choice.slots * states_bytes(shape.model, choice.tree_rows) if shape.recurrent_layers else 0
    return own + choice.checkpoints * kept_bytes(shape, choice)


def kept_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of what is kept of an earlier text: states, or with several slots what windows saw of it."""
    return _kept_before(shape, choice, shape.model.num_layers)


def _kept_before(shape: ModelShape, choice: Choice, end: int) -> int:
    """Return the same of the layers before one."""
    if shape.window_layers and choice.slots > 1:
        seen = min(shape.model.ring_window, choice.ctx) - 1
        sizes = rows_of_layers(shape, choice.kv_format, 0, seen)
        return sum(size for layer, size in sizes.items() if layer < end)
    return states_bytes(shape.model, 0, range(end)) // SLOTS


def divided_kept_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return how much of ``kept_bytes`` is in the process, with a choice that divides the layers."""
    return _kept_before(shape, choice, first_on_gpu(shape, choice))


def divided_state_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return how much of ``state_bytes`` is in the process, with a choice that divides the layers."""
    own = choice.slots * states_bytes(shape.model, choice.tree_rows, range(first_on_gpu(shape, choice)))
    return own + choice.checkpoints * divided_kept_bytes(shape, choice)


def slots_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of maps of rows and threads' heaps; of every further slot, of lists of tokens and penalties."""
    if choice.slots == 1:
        return 0
    resting = RESTING_PER_SLOT * _RESTING_TOKEN
    further = _TOKEN_LISTS * choice.ctx + _PENALTIES_TOKEN * shape.model.vocab_size
    own = choice.slots * (_THREAD_HEAP + (_MAPS_TOKEN + resting) * choice.ctx)
    return own + (choice.slots - 1) * further + _POOL_BLOCK * choice.kv_rows // ROW_BLOCK


def first_on_gpu(shape: ModelShape, choice: Choice) -> int:
    """Return the number of the first layer that a GPU computes, with a choice that divides the layers."""
    assert choice.gpu_layers is not None
    return shape.model.num_layers - choice.gpu_layers


def divided_kv_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the KV cache in the process, with a choice that divides the layers."""
    sizes = rows_of_layers(shape, choice.kv_format, *kv_rows(shape, choice))
    return sum(size for layer, size in sizes.items() if layer < first_on_gpu(shape, choice))


def divided_weights(shape: ModelShape, choice: Choice) -> tuple[int, int]:
    """Return the bytes of ``weights.bin`` that are read in the process and on a GPU, with a choice that divides layers.

    Of the rotary tables only the context's rows are touched in the process. ONNX Runtime maps tensors one by one there,
    each from the page in which the one before it ends: such a page counts twice. SmolLM2-135M: 4.7 pages a layer. The
    table of further embeddings is read before the first layer.
    """
    layers, first = shape.layers, first_on_gpu(shape, choice)
    assert layers is not None
    rotations = layers.rotations_before[first]
    unused = rotations * (shape.model.context_length - choice.ctx) // shape.model.context_length
    kinds = len(shape.model.tables) if isinstance(shape.model, Decoder) else 1
    # Every graph maps them by itself, from the first row on: a sine and a cosine for each kind.
    used = rotations - max(0, unused - 2 * kinds * _FOLIO)
    mapped = layers.before[first] - rotations + graphs_begun(shape, choice) * used - _unread_table(shape, alone=True)
    again = layers.copied_again[first] if layers.copied_again else 0
    return mapped + PAGESIZE * layers.tensors_before[first], layers.behind[first] + again


def graphs_begun(shape: ModelShape, choice: Choice) -> int:
    """Return how many graphs of layers the CPU begins, with a choice that divides the layers: by themselves, or all."""
    assert shape.layers is not None
    return sum(first < first_on_gpu(shape, choice) for first in shape.layers.first_layers)


def graphs_ended(shape: ModelShape, choice: Choice) -> int:
    """Return how many graphs of layers a GPU ends, with a choice that divides the layers."""
    assert shape.layers is not None
    # A graph ends where the next one begins, and the last one is always there.
    return 1 + sum(first > first_on_gpu(shape, choice) for first in shape.layers.first_layers[1:])


def divided_hidden_bytes(shape: ModelShape, choice: Choice) -> tuple[int, int]:
    """Return the bytes of rows between graphs in the process and on a GPU, with a choice that divides the layers.

    Where layers read rows behind some graph, there is room for all of them.
    """
    whole, of_host = hidden_bytes(shape, choice), _exits_in_process(shape, choice)
    return whole * (of_host > 0), whole * (of_host < shape.segments - 1)


def copied_rows_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes on a GPU of drafted rows in the process, of which the head reads copies, one row each."""
    rows = _exits_in_process(shape, choice) * choice.draft_max
    return (rows + 1) * 4 * shape.model.hidden_size if rows else 0


def _exits_in_process(shape: ModelShape, choice: Choice) -> int:
    assert shape.layers is not None
    return sum(end < first_on_gpu(shape, choice) for end in shape.layers.first_layers[1:])


def read_on_both(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of ``weights.bin`` that count on both sides of a division."""
    layers, first = shape.layers, first_on_gpu(shape, choice)
    assert layers is not None
    return layers.before[first] + layers.behind[first] - layers.before[-1]


def tokenizer_bytes(shape: ModelShape, ctx: int) -> int:
    """Return the bytes of a loaded tokenizer, including those to encode texts of a context's length."""
    buckets = 1 << (8 * shape.model.vocab_size // 7 - 1).bit_length()
    tables = _TOKENIZER_BUCKET * buckets + _TOKENIZER_TEXT * shape.tokenizer_bytes
    merged = max(0, shape.tokenizer_bytes - _TOKEN_TEXT * shape.model.vocab_size)
    tables += min(_MERGED_MOST, _MERGED_TEXT * merged)
    spelled = _SPELLED_BYTES * min(shape.model.vocab_size, _SPELLED_TOKENS)
    encoded = _encoding_room(shape, ctx) - _SAMPLING_TOKEN * shape.model.vocab_size
    return _TOKENIZER_FIXED + tables + spelled + encoded + _WORD_CACHE


def longest_stretch(ctx: int) -> int:
    """Return how many bytes of text without a place to split the plan has memory to encode at once."""
    return min(max(ctx, _LEAST_STRETCH), _MOST_STRETCH)


def long_stretch_bytes(shape: ModelShape, ctx: int, stretch_bytes: int) -> int:
    """Return the memory, beyond the planned one, to encode ``stretch_bytes`` bytes of text at once."""
    if stretch_bytes <= longest_stretch(ctx):
        return 0
    return max(0, _LONG_ENCODED_BYTES * stretch_bytes - _encoding_room(shape, ctx))


def encodable_bytes(shape: ModelShape, ctx: int, more_bytes: int) -> int:
    """Return the bytes of text that can be encoded at once with ``more_bytes`` of memory beyond the planned one."""
    return max(longest_stretch(ctx), (_encoding_room(shape, ctx) + more_bytes) // _LONG_ENCODED_BYTES)


def _encoding_room(shape: ModelShape, ctx: int) -> int:
    """Return the memory to encode a text; sampling, which runs after encoding, reuses it for its arrays."""
    return max(_ENCODED_BYTES * longest_stretch(ctx), _SAMPLING_TOKEN * shape.model.vocab_size)


def reading_bytes(shape: ModelShape) -> int:
    """Return the total bytes needed while ``tokenizer.json`` is read."""
    return _READING_FIXED + _READING_TEXT * shape.tokenizer_bytes


def session_bytes(shape: ModelShape, ctx: int) -> int:
    """Return the bytes of ONNX Runtime's graph, bindings and code, and of what every token of the context takes.

    These are lists of tokens, and tables of rotary embeddings that are computed when a package is loaded.
    """
    nodes = 0 if shape.traced is None else _SESSION_NODE * shape.traced.nodes
    nodes += _SESSION_GRAPH * (shape.graphs - 1)
    if shape.has_states_graph:
        nodes += 4 * shape.model.hidden_size * _STATES_ROWS
    return (
        SESSION_FIXED + _SESSION_LAYER * shape.model.num_layers + nodes + (_TOKEN_LISTS + shape.loaded_rope_bytes) * ctx
    )


def hidden_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the rows between the segments of a package with exits, for its largest pass."""
    if shape.segments == 1:
        return 0
    return 4 * shape.model.hidden_size * max(2 * choice.largest_pass, (shape.segments - 1) * FEW_HIDDEN_ROWS)


def packed_bytes(shape: ModelShape) -> int:
    """Return the bytes of weights that ONNX Runtime repacks into private memory; 0 for a native package."""
    if shape.traced is not None:
        return shape.traced.packed_bytes
    return int(_PACKED[shape.activations] * shape.weights_bytes) if shape.op_profile == "portable" else 0


def packing_bytes(shape: ModelShape) -> int:
    """Return the bytes needed while weights are packed, packed and mapped weights included."""
    if shape.traced is not None:
        return shape.traced.packed_bytes + shape.traced.mapped_bytes
    return int(_PACKING[shape.activations] * shape.weights_bytes) if shape.op_profile == "portable" else 0


def weights_bytes(shape: ModelShape, ctx: int) -> int:
    """Return the mapped bytes of ``weights.bin`` that are touched; of the rotary tables only the context's rows are."""
    if shape.traced is not None:
        return shape.traced.mapped_bytes
    if shape.op_profile == "portable":
        return int(_MAPPED[shape.activations] * shape.weights_bytes)
    unused = shape.rotation_bytes * (shape.model.context_length - ctx) // shape.model.context_length
    return max(0, shape.weights_bytes - max(0, unused - _ROTATIONS_AROUND) - _unread_table(shape))


def _unread_table(shape: ModelShape, *, alone: bool = False) -> int:
    """Return the bytes of the table of further embeddings that are not in memory at any time.

    Its rows lie in tiles of 16. So many of these are read before all are given back, each with what the kernel maps
    around it: whole windows.

    Args:
        alone: whether ONNX Runtime maps it.
    """
    around = _FOLIO if alone else _MAPPED_AROUND
    tile = shape.table_bytes * TILE_ROWS // shape.model.vocab_size
    windows = -(-tile // around) + 1
    return max(0, shape.table_bytes - _TABLE_TILES * windows * around)


def dense_bytes(shape: ModelShape, choice: Choice, request: Request) -> int:
    """Return the bytes of ``weights.bin`` in memory with a choice: without experts that are read into a cache.

    The others are read in place, or beside a cache copied; a trained drafter reads the embedding in place.
    """
    whole = weights_bytes(shape, choice.ctx)
    if choice.expert_bytes is None or shape.experts is None:
        return whole
    return max(0, whole - shape.experts.stored_bytes) + embedding_bytes(choice, request)


def drafts_itself(shape: ModelShape, choice: Choice) -> bool:
    """Return whether a model drafts with the upper halves of its own weights, in the mode ``self`` or among others."""
    return choice.spec == SELF or (
        shape.has_upper_halves and choice.draft_max > 0 and choice.spec == AUTO and choice.kv_format == SELF_KV
    )


def drafts_ahead(shape: ModelShape, choice: Choice) -> bool:
    """Return whether a block of the package that predicts further ahead drafts, by itself or among others."""
    return shape.ahead is not None and choice.draft_max > 0 and choice.spec in (AUTO, AHEAD)


def ahead_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of such a block: its cache, its graph and passes, states of rows, and rows of the LM head."""
    if (ahead := shape.ahead) is None or not drafts_ahead(shape, choice):
        return 0
    states = 4 * shape.model.hidden_size * (choice.largest_pass + _AHEAD_STATES * AHEAD_ROWS)
    own = (ahead.token_bytes + _TOKEN_LISTS) * choice.ctx + ahead.head_bytes + 8 * ahead.columns
    return own + states + passes_bytes(shape, AHEAD_ROWS, choice.ctx) + _SELF_SESSION


def embedding_bytes(choice: Choice, request: Request) -> int:
    """Return the bytes of the model's embedding, which a trained drafter reads in the process wherever passes run."""
    return request.drafter.embedding_bytes if choice.drafter and request.drafter is not None else 0


def drafting_bytes(shape: ModelShape, choice: Choice, request: Request) -> int:
    """Return the bytes of ``weights.bin`` that what drafts reads in the process wherever passes run, at most."""
    ahead = shape.ahead.weights_bytes if shape.ahead is not None and drafts_ahead(shape, choice) else 0
    return embedding_bytes(choice, request) + ahead


def largest_copied(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the largest tensor that both sides of a division read, at most: ONNX Runtime copies these."""
    assert shape.layers is not None
    largest = shape.weights_bytes if shape.largest_tensor_bytes is None else shape.largest_tensor_bytes
    # Tables of cosines and of sines are tensors of their own.
    table = shape.layers.rotations_before[first_on_gpu(shape, choice)] // 2
    return min(read_on_both(shape, choice), max(largest, table))


def mapped_again_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of ``weights.bin`` that self-drafting maps again where a GPU computes some layers, at most.

    That is the head, and the upper halves of the layers: the same pages of memory, but they count as resident once for
    every mapping.
    """
    if not drafts_itself(shape, choice):
        return 0
    head = min(shape.model.vocab_size * shape.model.hidden_size * _NESTED_BYTES // 8, shape.weights_bytes)
    upper = (shape.weights_bytes - head) * _UPPER_BYTES // _NESTED_BYTES
    around = _MAPPED_AROUND * _LAYER_MATRICES * shape.model.num_layers
    return min(head + upper + around, divided_weights(shape, choice)[0])


def sampling_bytes(shape: ModelShape) -> int:
    """Return the bytes to sample a token: penalties, weights, probabilities and sums of a whole row."""
    return _SAMPLING_FIXED + _SAMPLING_TOKEN * shape.model.vocab_size


def format_bytes(vocab_size: int) -> int:
    """Return the bytes of answers in a format: a library, its tables and ours. Measured: 28.6 MiB for 49,152 tokens."""
    return _FORMAT_FIXED + _FORMAT_TOKEN * vocab_size


def stored_block_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the memory for a block of rows from or to a file, and for what convolutions see behind texts.

    With one slot nobody encodes texts meanwhile, so the block has that memory; with several, other callers may.
    """
    block = BLOCK_TOKENS * shape.full_layers * shape.token_bytes(choice.kv_format)
    # What short convolutions see behind a text: copies that are kept, of the end, and of what is read.
    seen = shape.conv_layers * max(shape.model.ring_window - 1, 0) * shape.conv_row_bytes
    if choice.slots > 1:
        return block + 2 * seen
    return max(0, block + (CHECKPOINTS + 2) * seen - _encoding_room(shape, choice.ctx))


def logits_bytes(shape: ModelShape, rows: int, *, hidden: bool = False) -> int:
    """Return the bytes of rows of float32 logits, of the most likely tokens of each row, and of its hidden states."""
    return rows * (4 * shape.model.vocab_size + 128 + hidden_row_bytes(shape, hidden=hidden))


def hidden_row_bytes(shape: ModelShape, *, hidden: bool) -> int:
    """Return the bytes of a row of float32 hidden states, if passes return them."""
    return 4 * shape.model.hidden_size if hidden else 0


def passes_bytes(shape: ModelShape, rows: int, ctx: int, slots: int = 1) -> int:
    """Return the most bytes that a pass of up to ``rows`` tokens allocates; a last chunk may have any such size."""
    found = shape.known_passes.get((rows, ctx, slots))
    if found is None:
        found = max(allocated_bytes(shape, size, ctx, slots) for size in heaviest_rows(shape, rows))
        shape.known_passes[rows, ctx, slots] = found
    return found


def pass_memory_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes that the passes of a choice allocate, untouched parts included: a limit for an arena."""
    return passes_bytes(shape, choice.largest_pass, choice.ctx, choice.slots)


def corpus_bytes(choice: Choice, request: Request) -> int:
    """Return the mapped bytes of a corpus that lookups touch in a long run: all of it, if suffixes are looked up."""
    return request.corpus_bytes if choice.suffix_tokens else 0
