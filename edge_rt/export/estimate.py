"""Predicts the disk space and memory of an export before anything is written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_rt.errors import MemoryBudgetExceeded, StorageError
from edge_rt.export.calibration.calibrate import calibration_bytes
from edge_rt.export.check.compare import CHECK_ROWS
from edge_rt.export.check.predictions import kv_losses_bytes, predicting_bytes
from edge_rt.export.decoder.weights import AheadWeights, DecoderWeights, LayerWeights
from edge_rt.export.op_profile import OpProfile
from edge_rt.export.quantise.decision import MEASURED_TOKENS, QUALITY_TOKENS, WeightChoice
from edge_rt.export.quantise.moments import HELD_OUT_SHARE, HELD_OUT_TOKENS, SEQUENCE, WIDTH, expert_width
from edge_rt.export.quantise.native import has_native_rounding
from edge_rt.export.quantise.rows import CHUNK_VALUES
from edge_rt.export.reference.gradients import HEAD_ROWS
from edge_rt.export.sources.compound import CompoundTensor, ConvertedTensor
from edge_rt.export.sources.packed import PackedTensor
from edge_rt.export.weights.blocks import PIECE_BYTES, open_bytes
from edge_rt.export.weights.linear import Linear, Part
from edge_rt.export.weights.matrices import PIECE_VALUES
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.decoder import Decoder
from edge_rt.package.layers import Experts
from edge_rt.system.byte_size import human_bytes, show_size
from edge_rt.system.machine import available_memory_bytes, usable_cpus

_ARITHMETIC_BYTES: Final = 56 << 20
"""What numpy's linear algebra holds with its threads; measured: about 50 MiB."""
KEPT_BYTES: Final = 44 << 20
"""What of that the process still holds in the stages behind; measured: 38 to 41 MiB."""
_HEAD_PIECE_COPIES: Final = 5
"""float32 arrays of a piece of the head alive while the next one is read."""
_BOTH_BYTES: Final = 12 << 20
"""Logits of a few rows of the head, of the checkpoint and of the package, and what is computed of them."""
_CHUNK_COPIES: Final = 6
"""float32 arrays alive while a thread quantises its chunk with numpy."""
_NATIVE_COPIES: Final = 2
"""The same with the native library: errors, codes, and what it takes for 64 rows at a time."""
_PIECE_COPIES: Final = 3
"""float32 arrays alive while a piece of a matrix is read."""
_CODE_COPIES: Final = 4
"""Arrays of bytes alive while codes are joined, packed into tiles and written."""
_FACTOR_COPIES: Final = 7
"""float32 arrays alive while the factor of one block of moments is computed."""
_FORWARD_COPIES: Final = 4
"""float32 arrays of the width of the feed-forward, and of attention weights, alive in a layer's forward pass."""
_BACKWARD_COPIES: Final = 7
"""The same on the way back, where attention weights are those of all heads and gradients at inputs are kept."""
_FREED_BYTES: Final = 24 << 20
"""What the heap keeps of a layer's arrays while those of the next are computed; measured: 10 MiB."""
_HEAD_COPIES: Final = 4
"""float64 arrays alive for the logits of a piece of the head."""


def quantising_bytes(weights: DecoderWeights, decoder: Decoder, tokens: int, *, measures: bool) -> int:
    """Predict the memory of measuring, if types are, and of quantising; ``tokens`` is 0 without a calibration text."""
    read = max(_read_bytes(part) for linear in weights.linears() for part in linear.parts)
    converting = max(_converting_bytes(linear, has_moments=tokens > 0) for linear in weights.linears())
    if not tokens:
        return _ARITHMETIC_BYTES + converting
    blocks = (*weights.layers, *(() if weights.ahead is None else (weights.ahead,)))
    layer = 4 * max(sum(part.tensor.elements for part in _parts(block)) for block in blocks)
    group = decoder.query_group
    # The inputs of one layer: those of q, k, v, of the output, of gate and up, of down.
    inputs = [matrices[0].in_features for matrices in _inputs(weights)]
    held_out = min(HELD_OUT_TOKENS, tokens // SEQUENCE // HELD_OUT_SHARE * SEQUENCE)
    moments, streams = sum(map(_square_bytes, inputs)) + 4 * held_out * sum(inputs), 4 * tokens * decoder.hidden_size
    moments += max((_expert_bytes(decoder, layer.experts, held_out) for layer in decoder.kinds), default=0)
    streams += 4 * tokens * decoder.per_layer_embedding * decoder.num_layers
    rows = min(SEQUENCE, tokens)
    forward = _FORWARD_COPIES * _activations(decoder, rows, group)
    walking = moments + max(layer + read + forward, converting)
    if not measures:
        return _ARITHMETIC_BYTES + streams + walking
    measuring = gradient_bytes(weights, decoder, min(MEASURED_TOKENS, tokens))
    return _ARITHMETIC_BYTES + max(streams + walking, measuring)


def gradient_bytes(weights: DecoderWeights, decoder: Decoder, rows: int) -> int:
    """Predict the memory of running so many tokens through the float model and back."""
    read = max(_read_bytes(part) for linear in weights.linears() for part in linear.parts)
    layer = 4 * max(sum(part.tensor.elements for part in _parts(layer)) for layer in weights.layers)
    kept = 4 * rows * decoder.hidden_size * decoder.num_layers
    head = (8 * _HEAD_COPIES * rows + 4 * decoder.hidden_size) * _head_rows(weights.head)
    return kept + max(layer + read + _BACKWARD_COPIES * _activations(decoder, rows, decoder.num_heads), head, read)


def quality_bytes(decoder: Decoder, opened: int) -> int:
    """Predict the memory of comparing predictions; an open graph's bytes are given back before the head is read."""
    cache = 8 * QUALITY_TOKENS * sum(decoder.attention_of(layer).key_size for layer in decoder.kv_layers)
    logits = 4 * QUALITY_TOKENS * decoder.vocab_size
    passing = _FORWARD_COPIES * _activations(decoder, QUALITY_TOKENS, decoder.num_heads)
    head = PIECE_BYTES + 4 * _HEAD_PIECE_COPIES * min(PIECE_VALUES, decoder.vocab_size * decoder.hidden_size)
    reading = _BOTH_BYTES + min(head, 24 * decoder.vocab_size * decoder.hidden_size)
    return logits + max(cache + passing + opened, reading)


def _activations(decoder: Decoder, rows: int, heads: int) -> int:
    """Return the bytes of one array of the feed-forward's width, and of the attention weights of some heads."""
    return 4 * rows * (decoder.intermediate_size + decoder.hidden_size + heads * rows)


def _inputs(weights: DecoderWeights) -> list[tuple[Linear, ...]]:
    """Return the matrices of one layer, or of a block that predicts further ahead, those with one input together."""
    if weights.ahead is None:
        return list(weights.layers[0].groups())
    return [(weights.ahead.fc,), *weights.ahead.layer.groups()]


def _expert_bytes(decoder: Decoder, experts: Experts | None, held_out: int) -> int:
    """Return the bytes of what is known of the inputs of a layer's experts; all rows that are held out have as many."""
    if experts is None:
        return 0
    sizes = (decoder.hidden_size, experts.each.size)
    width = expert_width(experts, decoder.hidden_size)
    return sum(experts.count * _square_bytes(size, width) + 4 * held_out * experts.chosen * size for size in sizes)


def _square_bytes(inputs: int, width: int = WIDTH) -> int:
    """Return the bytes of the products of inputs with each other, as far as they are summed."""
    return sum(4 * min(width, inputs - begin) ** 2 for begin in range(0, inputs, width))


def _converting_bytes(linear: Linear, *, has_moments: bool) -> int:
    """Return the bytes while a matrix is read, quantised and packed; parts that alternate are all open at once."""
    parts = linear.parts[:2] if linear.interleaved else (max(linear.parts, key=_read_bytes),)
    pieces = sum(_open_bytes(part) for part in parts)
    largest = max(part.tensor.elements for part in parts)
    copies = _NATIVE_COPIES if has_native_rounding() else _CHUNK_COPIES
    chunks = 4 * copies * usable_cpus() * min(CHUNK_VALUES, largest)
    reading = max(map(_read_bytes, parts))
    if not has_moments:
        return pieces + max(reading, chunks)
    factors = _square_bytes(linear.in_features)
    factoring = 4 * _FACTOR_COPIES * min(WIDTH, linear.in_features) ** 2
    return factors + pieces + max(factoring, chunks, reading)


def _open_bytes(part: Part) -> int:
    """Return the bytes of a piece that is kept: as floats twice, and of its codes."""
    return int((4 * 2 + _CODE_COPIES) * _share(part) * part.tensor.elements)


def _share(part: Part) -> float:
    """Return how much of a matrix is read at once: all of it if its rows are reordered."""
    if part.row_order is not None:
        return 1.0
    return min(1.0, PIECE_BYTES / part.tensor.nbytes, PIECE_VALUES / part.tensor.elements)


def _parts(layer: LayerWeights | AheadWeights) -> list[Part]:
    return [part for linear in layer.linears() for part in linear.parts]


def _read_bytes(part: Part) -> int:
    """Return the bytes while a piece of a matrix is read as floats."""
    is_whole = part.row_order is not None or isinstance(part.tensor, PackedTensor)
    raw = part.tensor.nbytes if is_whole else min(PIECE_BYTES, part.tensor.nbytes)
    return int(4 * _PIECE_COPIES * _share(part) * part.tensor.elements) + raw


def _head_rows(head: Linear) -> int:
    (tensor,) = (part.tensor for part in head.parts)
    return min(tensor.shape[1], HEAD_ROWS, max(1, PIECE_VALUES // tensor.shape[0]))


GRAPH_AND_TEXT_BYTES: Final = 8 << 20
"""Allowance for graph, manifest, tokenizer and template."""
BASE_BYTES: Final = 160 << 20
"""Of an export through another exporter: Python with numpy, onnx and ONNX Runtime loaded; measured: 130 MiB."""
LATER_BYTES: Final = 18 << 20
"""Modules that later stages import, code of ONNX Runtime that they touch, and gaps that freed arrays leave in the heap;
measured: 9 MiB where weights are kept, 16 with the portable profile."""
PIECE_COPIES: Final = 6
"""Temporary arrays alive while one piece of a tensor is converted."""
FLOAT_COPIES: Final = 3
"""float32 arrays alive while the reference dequantises a piece; measured: 3."""


@dataclass(frozen=True)
class ExportEstimate:
    """Predicted needs of an export, in bytes.

    Attributes:
        more_bytes: of memory, beyond what the process holds when this is predicted; None: all of it.
    """

    disk_bytes: int
    peak_memory_bytes: int
    more_bytes: int | None = None


def estimate_export(
    weights: DecoderWeights,
    layout: WeightsLayout,
    decoder: Decoder,
    profile: OpProfile,
    calibration_tokens: int = 0,
    *,
    choice: WeightChoice | None = None,
    moment_tokens: int = 0,
    kv_tokens: int = 0,
    rounding_tokens: int = 0,
    most_bytes: int = 0,
    resident_bytes: int = 0,
    reached_bytes: int = 0,
) -> ExportEstimate:
    """Predict the size of the package and the peak memory of the process that writes it.

    The process is measured when header, tokenizer and calibration text are read, because what these and the libraries
    take depends on much that no formula knows.

    Args:
        calibration_tokens: of the text that constants of 4-bit keys are computed from; 0 if there are none.
        choice: types of the matrices; None for those of the checkpoint.
        moment_tokens: of the text that weights are quantised with; 0 without one.
        kv_tokens: of the text that cache formats are compared on; 0 if they are not.
        rounding_tokens: that are run to measure which activations need 16 bits; 0 if it is not measured.
        most_bytes: of ``weights.bin`` if its types are still to be measured; 0: as in ``layout``.
    """
    linears = tuple(weights.linears())
    parts = [part for linear in linears for part in linear.parts]
    writing = PIECE_COPIES * max(_bytes_in_memory(linear) for linear in linears)
    # The check has one graph open in ONNX Runtime at a time, after the reference was freed.
    halves = sum(2 * part.tensor.elements for part in parts if part.type_name == "F16")
    opened = int(profile.opened_factor * layout.size + profile.half_factor * halves)
    logits = 6 * CHECK_ROWS * decoder.vocab_size * 8
    # The reference holds matrices whole, except embedding and head, which it reads in pieces.
    ends = (weights.embedding, weights.head)
    largest = max(part.tensor.elements for linear in linears if linear not in ends for part in linear.parts)
    reference = int(4 * (largest + FLOAT_COPIES * max(map(_piece_values, parts)))) + PIECE_BYTES
    calibrating = opened + calibration_bytes(decoder, calibration_tokens) if calibration_tokens else 0
    quantising = arithmetic = 0
    size = layout.size
    if choice is not None and choice.quantises:
        size = most_bytes or size
        quantising = quantising_bytes(weights, decoder, moment_tokens, measures=bool(choice.rivals or choice.ladders))
        if moment_tokens:
            opened = int(max(opened, profile.opened_factor * size))
            # Later stages run in what quantising leaves.
            arithmetic = KEPT_BYTES
            quantising = max(quantising, arithmetic + quality_bytes(decoder, opened))
    rounding = 0
    if rounding_tokens:
        arithmetic = KEPT_BYTES
        predicting = predicting_bytes(decoder, rounding_tokens, ["f32"])
        predicting += 4 * rounding_tokens * decoder.vocab_size + opened
        walking = _ARITHMETIC_BYTES + _FREED_BYTES + gradient_bytes(weights, decoder, rounding_tokens)
        rounding = max(walking, arithmetic + predicting)
    # What adapters add is in memory while a matrix is read.
    more = LATER_BYTES + max(_held_bytes(linear) for linear in linears)
    comparing = opened + kv_losses_bytes(decoder, kv_tokens) if kv_tokens else 0
    checking = logits + max(opened, reference)
    more += max(writing, quantising, rounding, arithmetic + max(calibrating, comparing, checking))
    return ExportEstimate(
        disk_bytes=size + GRAPH_AND_TEXT_BYTES,
        peak_memory_bytes=max(reached_bytes, resident_bytes + more),
        more_bytes=more,
    )


def _piece_values(part: Part) -> float:
    """Return the floats that are read of a matrix at a time."""
    values = part.tensor.elements * min(1.0, PIECE_BYTES / open_bytes(part.tensor))
    return values if isinstance(part.tensor, CompoundTensor) else min(values, PIECE_VALUES)


def _bytes_in_memory(linear: Linear) -> int:
    """Return the bytes of the checkpoint that are held at once while a matrix is converted."""
    pieces = [
        open_bytes(part.tensor) if part.row_order is not None else min(open_bytes(part.tensor), PIECE_BYTES)
        for part in linear.parts
    ]
    return sum(pieces[:2]) if linear.interleaved else max(pieces)


def _held_bytes(linear: Linear) -> int:
    """Return the bytes that are held while the parts of a matrix are open, besides their pieces."""
    return sum(part.tensor.held_bytes for part in linear.parts if isinstance(part.tensor, ConvertedTensor))


def require_room(estimate: ExportEstimate, destination: Path) -> None:
    """Refuse an export that cannot succeed."""
    try:
        folder = next(parent for parent in (destination, *destination.parents) if parent.is_dir())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StorageError(
            f"{destination} cannot be written.", f"{error.strerror}.", "Choose another place with --out."
        ) from error
    if free < estimate.disk_bytes:
        raise StorageError(
            "The package does not fit the disk.",
            f"It needs {human_bytes(estimate.disk_bytes)}, {human_bytes(free)} are free at {folder}.",
            "Free some space or choose another disk.",
        )
    available = available_memory_bytes()
    needed = estimate.peak_memory_bytes if estimate.more_bytes is None else estimate.more_bytes
    if available < needed:
        raise MemoryBudgetExceeded(
            "The export does not fit the memory.",
            f"It may need up to {show_size(estimate.peak_memory_bytes)}; {show_size(available)} are available.",
            "Close other programs, or export on a larger machine and copy the package.",
        )
