"""What an export will need, computed before anything is written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_rt.errors import MemoryBudgetExceeded, StorageError
from edge_rt.export.blocks import PIECE_BYTES
from edge_rt.export.check import CHECK_ROWS
from edge_rt.export.llama_graph import LlamaWeights
from edge_rt.export.weights import WeightsLayout
from edge_rt.machine import available_memory_bytes
from edge_rt.package import ModelConfig

GRAPH_AND_TEXT_BYTES: Final = 8 << 20
"""Allowance for graph, manifest, tokenizer and template."""
BASE_BYTES: Final = 280 << 20
"""Python with numpy, onnx and ONNX Runtime loaded, the header's vocabulary and the tokenizer; measured: 250 MiB."""
PIECE_COPIES: Final = 6
"""Temporary arrays alive while one piece of a tensor is converted."""
PACKED_FACTOR: Final = 1.15
"""Bytes of MatMulNBits' own packed copy, and what it reads to make it, over the bytes in ``weights.bin``."""


@dataclass(frozen=True)
class ExportEstimate:
    """Predicted needs of an export, in bytes."""

    disk_bytes: int
    peak_memory_bytes: int


def estimate_export(weights: LlamaWeights, layout: WeightsLayout, config: ModelConfig) -> ExportEstimate:
    """Predict the size of the package and the peak memory of the process that writes it."""
    largest_piece = max(
        min(part.tensor.nbytes, PIECE_BYTES) if part.row_order is None else part.tensor.nbytes
        for linear in weights.linears()
        for part in linear.parts
    )
    largest_matrix = max(
        part.tensor.elements for linear in weights.linears() for part in linear.parts if linear.name != "embedding"
    )
    writing = PIECE_COPIES * largest_piece
    # The check holds one graph opened by ONNX Runtime at a time, after the reference is gone.
    opened = int(PACKED_FACTOR * layout.size)
    logits = 6 * CHECK_ROWS * config.vocab_size * 8
    reference = 2 * 4 * largest_matrix + logits
    return ExportEstimate(
        disk_bytes=layout.size + GRAPH_AND_TEXT_BYTES,
        peak_memory_bytes=BASE_BYTES + max(writing, opened + logits, reference),
    )


def require_room(estimate: ExportEstimate, destination: Path) -> None:
    """Refuse an export that cannot succeed.

    Raises:
        StorageError: the disk has less room than the package needs.
        MemoryBudgetExceeded: the machine has less memory than the export needs.
    """
    folder = next(parent for parent in (destination, *destination.parents) if parent.is_dir())
    free = shutil.disk_usage(folder).free
    if free < estimate.disk_bytes:
        raise StorageError(
            "The package does not fit the disk.",
            f"It needs {estimate.disk_bytes} bytes, {free} are free at {folder}.",
            "Free some space or choose another disk.",
        )
    available = available_memory_bytes()
    if available < estimate.peak_memory_bytes:
        raise MemoryBudgetExceeded(
            "The export does not fit the memory.",
            f"It needs {estimate.peak_memory_bytes} bytes, {available} are available.",
            "Close other programs, or export on a larger machine and copy the package.",
        )
