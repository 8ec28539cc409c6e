"""Predicts the disk space and memory of an export before anything is written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_rt.byte_size import human_bytes, show_size
from edge_rt.errors import MemoryBudgetExceeded, StorageError
from edge_rt.export.calibration.calibrate import calibration_bytes
from edge_rt.export.check.compare import CHECK_ROWS
from edge_rt.export.decoder.weights import DecoderWeights
from edge_rt.export.op_profile import OpProfile
from edge_rt.export.quantise.decision import WeightChoice
from edge_rt.export.quantise.memory import KEPT_BYTES, quality_bytes, quantising_bytes
from edge_rt.export.sources.compound import CompoundTensor
from edge_rt.export.sources.converted import ConvertedTensor
from edge_rt.export.weights.blocks import PIECE_BYTES, open_bytes
from edge_rt.export.weights.linear import Linear, Part
from edge_rt.export.weights.matrices import PIECE_VALUES
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.package.manifest import ModelConfig
from edge_rt.system.machine import available_memory_bytes

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
        disk_bytes: of the package.
        peak_memory_bytes: of the process, with what it held before.
        more_bytes: of memory, beyond what the process holds when this is predicted; None: all of it.
    """

    disk_bytes: int
    peak_memory_bytes: int
    more_bytes: int | None = None


def estimate_export(
    weights: DecoderWeights,
    layout: WeightsLayout,
    config: ModelConfig,
    profile: OpProfile,
    calibration_tokens: int = 0,
    *,
    choice: WeightChoice | None = None,
    moment_tokens: int = 0,
    most_bytes: int = 0,
    resident_bytes: int = 0,
    reached_bytes: int = 0,
) -> ExportEstimate:
    """Predict the size of the package and the peak memory of the process that writes it.

    The process is measured when header, tokenizer and calibration text are read, because what these and the libraries
    take depends on much that no formula knows.

    Args:
        weights: matrices of the model.
        layout: positions of all tensors in ``weights.bin``.
        config: dimensions of the model.
        profile: operators of the graph.
        calibration_tokens: of the text that constants of 4-bit keys are computed from; 0 if there are none.
        choice: types of the matrices; None for those of the checkpoint.
        moment_tokens: of the text that weights are quantised with; 0 without one.
        most_bytes: of ``weights.bin`` if its types are still to be measured; 0: as in ``layout``.
        resident_bytes: memory of the process now.
        reached_bytes: its highest memory so far.
    """
    linears = tuple(weights.linears())
    parts = [part for linear in linears for part in linear.parts]
    writing = PIECE_COPIES * max(_bytes_in_memory(linear) for linear in linears)
    # The check has one graph open in ONNX Runtime at a time, after the reference was freed.
    halves = sum(2 * part.tensor.elements for part in parts if part.type_name == "F16")
    opened = int(profile.opened_factor * layout.size + profile.half_factor * halves)
    logits = 6 * CHECK_ROWS * config.vocab_size * 8
    # The reference holds matrices whole, except embedding and head, which it reads in pieces.
    ends = (weights.embedding, weights.head)
    largest = max(part.tensor.elements for linear in linears if linear not in ends for part in linear.parts)
    reference = int(4 * (largest + FLOAT_COPIES * max(map(_piece_values, parts)))) + PIECE_BYTES
    calibrating = opened + calibration_bytes(config, calibration_tokens) if calibration_tokens else 0
    quantising = arithmetic = 0
    size = layout.size
    if choice is not None and choice.quantises:
        size = most_bytes or size
        quantising = quantising_bytes(weights, config, moment_tokens, measures=bool(choice.rivals or choice.ladders))
        if moment_tokens:
            opened = int(max(opened, profile.opened_factor * size))
            # Later stages run in what quantising leaves.
            arithmetic = KEPT_BYTES
            quantising = max(quantising, arithmetic + quality_bytes(config, opened))
    # What adapters add is in memory while a matrix is read.
    more = LATER_BYTES + max(_held_bytes(linear) for linear in linears)
    more += max(writing, arithmetic + calibrating, quantising, arithmetic + logits + max(opened, reference))
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
    return sum(pieces) if linear.interleaved else max(pieces)


def _held_bytes(linear: Linear) -> int:
    """Return the bytes that are held while the parts of a matrix are open, besides their pieces."""
    return sum(part.tensor.held_bytes for part in linear.parts if isinstance(part.tensor, ConvertedTensor))


def require_room(estimate: ExportEstimate, destination: Path) -> None:
    """Refuse an export that cannot succeed.

    Raises:
        StorageError: the disk has less room than the package needs, or the destination cannot be examined.
        MemoryBudgetExceeded: the machine has less memory than the export needs.
    """
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
