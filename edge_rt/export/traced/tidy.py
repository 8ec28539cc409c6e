"""Simplifies a traced graph: functions written out, turned weights read as they are, nothing kept that is unused."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
import onnx_ir.passes.common as passes

from edge_rt.export.graph.builder import IR_VERSION

CONTRIB: str = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""


def write_out(model: ir.Model) -> ir.Model:
    """Return the model without functions of its own, and without constants that are nodes where they can be avoided."""
    if model.functions:
        model = passes.InlinePass()(model).model
    return passes.LiftConstantsToInitializersPass(lift_all_constants=False)(model).model


def simplify(model: ir.Model, producer: str) -> None:
    """Change a graph in place into one that ONNX Runtime opens without copies of its weights.

    Args:
        model: with its final inputs and outputs.
        producer: name of the program that writes it.
    """
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
