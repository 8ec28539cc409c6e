"""Writes a traced graph and its weights as the files of a package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import onnx_ir.passes.common as passes

from edge_rt.errors import InvalidModelFile, StorageError
from edge_rt.export.graph.builder import IR_VERSION
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout, verify_checksums
from edge_rt.package.manifest import WEIGHTS_FILE

SMALLEST_STORED: Final = 4096
"""Bytes of the smallest tensor that is stored in ``weights.bin``; smaller ones are in the graph."""
_PIECE_BYTES: Final = 16 << 20


def place(model: ir.Model) -> WeightsLayout:
    """Return the places of the tensors of a graph in ``weights.bin``; each keeps the name that it has in the graph."""
    layout = WeightsLayout()
    for number, (name, value) in enumerate(_stored(model)):
        assert value.const_value is not None, name
        dtype = value.const_value.dtype.numpy()
        shape = tuple(int(size) for size in value.const_value.shape.numpy())
        layout.add(_slot_name(number), dtype, shape)
    return layout


def write_weights(model: ir.Model, layout: WeightsLayout, folder: Path, on_bytes: Callable[[int, int], None]) -> None:
    """Write the tensors to ``weights.bin``, read them back, and let the graph refer to them there."""
    done = 0
    placed = list(_stored(model))
    with WeightsFile(folder / WEIGHTS_FILE, layout) as out:
        for number, (name, value) in enumerate(placed):
            slot = layout.slots[_slot_name(number)]
            assert value.const_value is not None, name
            array = value.const_value.numpy()
            rows = max(1, _PIECE_BYTES // slot.row_bytes)
            for first in range(0, slot.shape[0], rows):
                piece = np.ascontiguousarray(array[first : first + rows])
                if slot.dtype.kind == "f" and not np.isfinite(piece).all() and _is_weight(slot.shape):
                    raise InvalidModelFile(
                        "A weight of the checkpoint is not a finite number.", f"It is in '{name}'.", "Fetch it again."
                    )
                out.write(slot, first, piece)
                done += piece.nbytes
                on_bytes(done, layout.size)
            value.const_value = ir.ExternalTensor(
                WEIGHTS_FILE, slot.offset, slot.nbytes, ir.DataType.from_numpy(slot.dtype),
                shape=ir.Shape(slot.shape), name=name,
            )  # fmt: skip
    verify_checksums(folder / WEIGHTS_FILE, layout, out.checksums)
    for name, value in model.graph.initializers.items():
        # Small ones may still lie in a file of the trace.
        if value.const_value is not None and value.const_value.nbytes < SMALLEST_STORED:
            value.const_value = ir.tensor(np.array(value.const_value.numpy()), name=name)


def write_graph(model: ir.Model, path: Path) -> None:
    """Write the graph; shapes of what it computes between inputs and outputs are left out."""
    kept = {*model.graph.inputs, *model.graph.outputs}
    for node in model.graph:
        for value in node.outputs:
            if value not in kept:
                value.shape, value.type = None, None
    try:
        path.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
    except OSError as error:
        raise StorageError("The graph could not be written.", f"{error.strerror}.", "Free some space.") from error


def _is_weight(shape: tuple[int, ...]) -> bool:
    """Return whether a tensor may be a weight; tables of more axes may hold masks, which are of -inf."""
    return len(shape) <= 2


def _slot_name(number: int) -> str:
    return f"t{number}"


def _stored(model: ir.Model) -> list[tuple[str, ir.Value]]:
    """Return the initializers that go to ``weights.bin``, in the order of the graph."""
    found = []
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= SMALLEST_STORED and tensor.size:
            found.append((name, value))
    return found


CONTRIB: str = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""


def write_out(model: ir.Model) -> ir.Model:
    """Return the model without functions of its own, and without constants that are nodes where they can be avoided."""
    if model.functions:
        model = passes.InlinePass()(model).model
    return passes.LiftConstantsToInitializersPass(lift_all_constants=False)(model).model


def simplify(model: ir.Model, producer: str) -> None:
    """Change a graph in place into one that ONNX Runtime opens without copies of its weights."""
    read_turned(model.graph)
    passes.RemoveUnusedNodesPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    _forget_origins(model)
    model.ir_version = IR_VERSION
    model.producer_name = producer


def read_turned(graph: ir.Graph) -> None:
    """Multiply by turned matrices as they are stored: ONNX Runtime would otherwise keep a turned copy of each."""
    for node in list(graph):
        if node.op_type != "MatMul" or node.domain not in ("", "ai.onnx"):
            continue
        turned = node.inputs[1]
        turn = None if turned is None else turned.producer()
        if turn is None or turn.op_type != "Transpose":
            continue
        matrix = turn.inputs[0]
        order = turn.attributes.get_ints("perm", None)
        if matrix is None or not matrix.is_initializer() or (order is not None and list(order) != [1, 0]):
            continue
        node.op_type, node.domain = "FusedMatMul", CONTRIB
        node.attributes["transB"] = ir.AttrInt64("transB", 1)
        node.replace_input_with(1, matrix)
        graph.opset_imports[CONTRIB] = 1


def matrices(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield the multiplications by a matrix of the weights, which ONNX Runtime packs, and the matrix."""
    for node in graph:
        if node.op_type in ("MatMul", "FusedMatMul", "Gemm"):
            matrix = node.inputs[1]
            if matrix is not None and matrix.is_initializer() and matrix.shape is not None and len(matrix.shape) == 2:
                yield node, matrix


def _forget_origins(model: ir.Model) -> None:
    """Drop what tells where a part came from: it names paths of the machine, and is larger than the graph."""
    model.metadata_props.clear()
    model.doc_string = None
    model.producer_version = None
    for graph in model.graphs():
        graph.metadata_props.clear()
        graph.doc_string = None
        graph.name = "model"
        for value in (*graph.inputs, *graph.initializers.values()):
            value.metadata_props.clear()
            value.doc_string = None
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
                value.doc_string = None
