"""What an export through transformers takes, and what ONNX Runtime does with the weights of a traced graph."""

from __future__ import annotations

import math
from typing import Final

import onnx_ir as ir

from edge_rt.export.estimate import BASE_BYTES, GRAPH_AND_TEXT_BYTES, ExportEstimate
from edge_rt.export.sources.hf_folder import HFFolder
from edge_rt.export.traced.store import SMALLEST_STORED
from edge_rt.export.traced.tidy import matrices

_TRACER_BYTES: Final = 600 << 20
"""torch, transformers and onnxscript loaded, and the graph that they make. Measured: 474 MiB."""
_TRACER_COPIES: Final = 1.5
"""float32 copies of the weights that they hold. Measured with 65 million of them: 1.1."""
_PACKED_COLUMNS: Final = 16


def estimate_trace(folder: HFFolder) -> ExportEstimate:
    """Predict disk and memory of an export: of this process and of the one that traces, which do not run at once."""
    weights = 4 * sum(math.prod(tensor.shape) for tensor in folder.weights.tensors.values())
    return ExportEstimate(
        # The trace and the package lie beside each other until the graph is written.
        disk_bytes=2 * weights + GRAPH_AND_TEXT_BYTES,
        peak_memory_bytes=max(_TRACER_BYTES + int(_TRACER_COPIES * weights), BASE_BYTES + 2 * weights) + BASE_BYTES,
    )


def packed_and_mapped(graph: ir.Graph) -> tuple[int, int]:
    """Return the bytes of matrices that ONNX Runtime packs, and of ``weights.bin`` that stays mapped.

    A matrix that is only multiplied by is packed and then released; one that is also looked up in, as a tied embedding
    is, stays.
    """
    uses: dict[ir.Value, int] = {}
    packed = 0
    for node, matrix in matrices(graph):
        assert matrix.const_value is not None, matrix.name
        is_turned = bool(node.attributes.get_int("transB", 0))
        inputs, outputs = matrix.const_value.shape.numpy()
        if is_turned:
            inputs, outputs = outputs, inputs
        packed += 4 * inputs * -(-outputs // _PACKED_COLUMNS) * _PACKED_COLUMNS
        uses[matrix] = uses.get(matrix, 0) + 1
    mapped = 0
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < SMALLEST_STORED:
            continue
        if uses.get(value, 0) < len(value.uses()):
            mapped += tensor.nbytes
    return packed, mapped
