"""The terms of a memory plan: what each part of a running model takes, from a model's numbers and a choice.

The coefficients were measured in fresh processes by ``benchmarks/memory_terms.py``, and err on the high side. Formulas
are in ``docs/memory.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edge_rt.kv_formats import KV_FORMAT, window_capacity
from edge_rt.memory.activations import allocated_bytes, heaviest_rows, own_rows_bytes
from edge_rt.memory.device import DeviceProfile
from edge_rt.memory.shape import ModelShape
from edge_rt.memory.size import show_size

MIB: Final = 1 << 20

BASE_BYTES: Final = 311 * MIB // 4
"""Python, ONNX Runtime, our operators and the command line before a model is loaded; measured: 77.1 MiB (``generate``),
62.2 MiB for a program that imports nothing but edge-rt; an interactive chat takes 5 MiB more for its line editor."""

_TOKENIZER_FIXED: Final = 31 * MIB // 4
_TOKENIZER_BUCKET: Final = 48  # bytes for each bucket of the library's hash tables, of which there is a power of two
_TOKENIZER_TEXT: Final = 5  # bytes for each byte of tokenizer.json, which grows with vocabulary and merges
_READING_TEXT: Final = 33  # the same while it is read
_READING_FIXED: Final = 10 * MIB
_SPELLED_BYTES: Final = 245  # of a token whose text has been looked up once
_SPELLED_TOKENS: Final = 4096  # so many are kept
_ENCODED_BYTES: Final = 128  # of a token of the prompt, in the tokenizer library's result
_WORD_CACHE: Final = MIB  # the library keeps 10,000 words

_SESSION_FIXED: Final = 33 * MIB // 4
_SESSION_LAYER: Final = 16 << 10
_TOKEN_LISTS: Final = 160  # bytes of a context token in the lists of sequence, cache and prompt

# Of a portable package, over weights.bin: what ONNX Runtime packs anew, what stays mapped, what loading takes.
_PACKED: Final = {"int8": 1.18, "float": 0.62}
_MAPPED: Final = {"int8": 0.42, "float": 0.62}
_PACKING: Final = 1.6

_FAULT_AROUND: Final = 256 << 10  # the kernel maps the pages around one that is touched

_SAMPLING_FIXED: Final = 3 * MIB  # numpy's random generator and the pages of its library
_SAMPLING_TOKEN: Final = 46

SUFFIX_TOKEN_BYTES: Final = 420
"""Of a token in the suffix automaton: random tokens take 264, measured when it is full; the rest is slack."""
RECYCLING_CONTEXT_BYTES: Final = 1310
"""Of a context of each order in token recycling, with eight likely tokens; with three of them it is 830."""
_PRICES: Final = 64 << 10  # curves, acceptance rates and bandits


@dataclass(frozen=True)
class Choice:
    """What a plan decides.

    Attributes:
        ctx: capacity of the context in tokens.
        kv_format: of the KV cache.
        spec: mode of speculation.
        draft_max: most drafted tokens of a pass; 0 with speculation off.
        prefill_chunk: tokens of one pass over a prompt.
        suffix_tokens: tokens that the suffix drafter (or the n-gram table, or a reference) holds; 0 where none is used.
        recycling_contexts: contexts that token recycling holds of each order; 0 where it is not used.
        logit_rows: rows of logits that are ever held.
    """

    ctx: int
    kv_format: str
    spec: str
    draft_max: int
    prefill_chunk: int
    suffix_tokens: int
    recycling_contexts: int
    logit_rows: int

    @property
    def tree_rows(self) -> int:
        """Rows of a pass that verifies the largest draft."""
        return self.draft_max + 1

    @property
    def largest_pass(self) -> int:
        """Rows of the largest pass."""
        return max(min(self.prefill_chunk, self.ctx), self.tree_rows)


@dataclass(frozen=True)
class Term:
    """A part of the memory.

    Attributes:
        name: one of runtime, tokenizer, weights, session, kv_cache, activations, logits, sampling, drafters.
        bytes: of it at its largest.
        kind: ``"file"`` (mapped: processes share it, and the kernel may drop it) or ``"private"``.
        text: the formula with its numbers.
    """

    name: str
    bytes: int
    kind: str
    text: str


@dataclass(frozen=True)
class Regimes:
    """Bytes at the peaks that have to fit, each by itself.

    Attributes:
        load: while tokenizer and graph are read, before weights and cache are touched.
        prefill: while the last chunk of a prompt that fills the context is computed.
        decode: while the largest draft is verified in a full context.
    """

    load: int
    prefill: int
    decode: int

    @property
    def largest(self) -> str:
        """Name of the regime that needs most."""
        named = {"load": self.load, "prefill": self.prefill, "decode": self.decode}
        return max(named, key=named.__getitem__)


def runtime_bytes(device: DeviceProfile, resident_bytes: int | None) -> int:
    """Return what the process holds before a model is loaded.

    Args:
        device: the machine.
        resident_bytes: what it was seen to hold; 0 if another model of the process has paid for it; None: it is yet to
            be started, as a command of ``edge-rt``.
    """
    if resident_bytes is not None:
        return resident_bytes
    return BASE_BYTES if device.base_bytes is None else device.base_bytes


def kv_rows(shape: ModelShape, choice: Choice) -> tuple[int, int]:
    """Return the rows of a layer's cache without a window, and with one."""
    if not shape.window_layers:
        return choice.ctx, choice.ctx
    return choice.ctx, window_capacity(shape.sliding_window, choice.largest_pass, choice.ctx)


def kv_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return the bytes of the KV cache: rows x layers x bytes of a row."""
    full, windowed = kv_rows(shape, choice)
    rows = (shape.num_layers - shape.window_layers) * full + shape.window_layers * windowed
    return rows * shape.token_bytes(choice.kv_format)


def tokenizer_bytes(shape: ModelShape, ctx: int) -> int:
    """Return what stays of a tokenizer, and what texts of a context's length take in it."""
    buckets = 1 << (8 * shape.vocab_size // 7 - 1).bit_length()
    tables = _TOKENIZER_BUCKET * buckets + _TOKENIZER_TEXT * shape.tokenizer_bytes
    texts = _SPELLED_BYTES * min(shape.vocab_size, _SPELLED_TOKENS) + _ENCODED_BYTES * ctx + _WORD_CACHE
    return _TOKENIZER_FIXED + tables + texts


def reading_bytes(shape: ModelShape) -> int:
    """Return what reading ``tokenizer.json`` takes in the meantime, all in all."""
    return _READING_FIXED + _READING_TEXT * shape.tokenizer_bytes


def session_bytes(shape: ModelShape, ctx: int) -> int:
    """Return graph, bindings and code of ONNX Runtime, the lists of a context's tokens, and weights that it packs."""
    packed = int(_PACKED[shape.activations] * shape.weights_bytes) if shape.op_profile == "portable" else 0
    return _SESSION_FIXED + _SESSION_LAYER * shape.num_layers + _TOKEN_LISTS * ctx + packed


def weights_bytes(shape: ModelShape, ctx: int) -> int:
    """Return the mapped bytes of ``weights.bin`` that are touched: of the rotations, those of the context only."""
    if shape.op_profile == "portable":
        return int(_MAPPED[shape.activations] * shape.weights_bytes)
    unused = shape.rotation_bytes * (shape.context_length - ctx) // shape.context_length
    return max(0, shape.weights_bytes - max(0, unused - _FAULT_AROUND))


def sampling_bytes(shape: ModelShape) -> int:
    """Return what drawing a token takes: penalties, weights, probabilities and sums of a whole row."""
    return _SAMPLING_FIXED + _SAMPLING_TOKEN * shape.vocab_size


def logits_bytes(shape: ModelShape, rows: int) -> int:
    """Return rows of logits, float32, and the most likely tokens beside them."""
    return rows * (4 * shape.vocab_size + 128)


def drafter_bytes(choice: Choice) -> int:
    """Return the tables of the drafters, full."""
    if not choice.draft_max:
        return 0
    return _PRICES + SUFFIX_TOKEN_BYTES * choice.suffix_tokens + RECYCLING_CONTEXT_BYTES * choice.recycling_contexts


def passes_bytes(shape: ModelShape, rows: int, ctx: int) -> int:
    """Return the most that passes of up to ``rows`` tokens allocate: a prompt may end with any number of them."""
    return max(allocated_bytes(shape, size, ctx) for size in heaviest_rows(shape, rows))


def pass_memory_bytes(shape: ModelShape, choice: Choice) -> int:
    """Return what the passes of a choice allocate, those parts included that they never touch: a limit for an arena."""
    return passes_bytes(shape, choice.largest_pass, choice.ctx)


def terms_of(shape: ModelShape, device: DeviceProfile, choice: Choice, resident_bytes: int | None) -> tuple[Term, ...]:
    """Return all terms, as large as they ever get at once; their sum is what the process takes.

    Args:
        shape: the model.
        device: the machine.
        choice: what was decided.
        resident_bytes: as of ``runtime_bytes``.
    """
    terms, regimes = _parts(shape, device, choice, resident_bytes)
    excess = regimes.load - sum(term.bytes for term in terms)
    if excess <= 0:
        return terms
    more = f"; reading it takes {show_size(excess)} more than all that follows"
    return tuple(
        Term(term.name, term.bytes + excess, term.kind, term.text + more) if term.name == "tokenizer" else term
        for term in terms
    )


def regimes_of(shape: ModelShape, device: DeviceProfile, choice: Choice, resident_bytes: int | None) -> Regimes:
    """Return the bytes at each of the peaks; arguments as of ``terms_of``."""
    return _parts(shape, device, choice, resident_bytes)[1]


def _parts(
    shape: ModelShape, device: DeviceProfile, choice: Choice, resident_bytes: int | None
) -> tuple[tuple[Term, ...], Regimes]:
    base = runtime_bytes(device, resident_bytes)
    tokenizer, session = tokenizer_bytes(shape, choice.ctx), session_bytes(shape, choice.ctx)
    weights, kv = weights_bytes(shape, choice.ctx), kv_bytes(shape, choice)
    full, windowed = kv_rows(shape, choice)
    chunk = min(choice.prefill_chunk, choice.ctx)
    # Passes of other sizes lie elsewhere in the arena, so in time all of what the largest allocates is touched.
    own = own_rows_bytes(shape, device.threads)
    prefill = own + passes_bytes(shape, chunk, choice.ctx)
    tree = own + passes_bytes(shape, choice.tree_rows, choice.ctx)
    logits, one = logits_bytes(shape, choice.logit_rows), logits_bytes(shape, 1)
    sampling, drafters = sampling_bytes(shape), drafter_bytes(choice)
    is_portable = shape.op_profile == "portable"
    windows = f", {shape.window_layers} of them {windowed}" if shape.window_layers else ""
    rows, largest = (chunk, prefill) if prefill >= tree else (choice.tree_rows, tree)
    private = "private"
    terms = (
        Term("runtime", base, private, "Python, ONNX Runtime and edge-rt before a model is loaded"),
        Term("tokenizer", tokenizer, private, f"{shape.vocab_size} tokens, {show_size(shape.tokenizer_bytes)} of JSON"),
        Term("weights", weights, "file", _weights_text(shape)),
        Term(
            "session", session, private,
            f"graph of {shape.num_layers} layers, code of ONNX Runtime, lists of {choice.ctx} tokens"
            + (", packed weights" if is_portable else ""),
        ),
        Term(
            "kv_cache", kv, private,
            f"{full} rows x {shape.num_layers} layers{windows} x {shape.token_bytes(choice.kv_format)} B "
            f"({_kv_name(shape, choice)})",
        ),
        Term(
            "activations", largest, private,
            f"{rows} rows at once: {'a chunk of the prompt' if rows == chunk else 'a draft'}",
        ),
        Term("logits", logits, private, f"{choice.logit_rows} rows x {shape.vocab_size} x 4 B"),
        Term("sampling", sampling, private, f"arrays of {shape.vocab_size} tokens"),
        Term(
            "drafters", drafters, private,
            f"{choice.suffix_tokens} tokens x {SUFFIX_TOKEN_BYTES} B + {choice.recycling_contexts} contexts x "
            f"{RECYCLING_CONTEXT_BYTES} B" if drafters else "speculation is off",
        ),
    )  # fmt: skip
    loading = base + session + (int(_PACKING * shape.weights_bytes) if is_portable else 0)
    loading += max(reading_bytes(shape), tokenizer)
    constant = base + tokenizer + weights + session + kv
    # A first answer may draft, so its tables may be full before the last prompt; an arena keeps what it once had.
    regimes = Regimes(
        load=loading,
        prefill=constant + prefill + one + drafters + sampling,
        decode=constant + max(tree, prefill) + logits + drafters + sampling,
    )
    return terms, regimes


def _kv_name(shape: ModelShape, choice: Choice) -> str:
    return choice.kv_format if choice.kv_format in KV_FORMAT and shape.op_profile == "native" else "f32"


def _weights_text(shape: ModelShape) -> str:
    if shape.op_profile == "portable":
        return f"what stays mapped of {show_size(shape.weights_bytes)} in weights.bin"
    return "weights.bin, read in place" + (", once exported" if shape.is_estimate else "")
