"""Finds the head of a traced graph, so that it computes only the rows whose logits are asked for."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir

_ELEMENTWISE: Final = ("Add", "Cast", "Clip", "Div", "Identity", "Mul", "Sub", "Tanh")
"""Operators that change every logit alone: scales, soft-caps, biases."""
_MAX_STEPS: Final = 16


def select_rows(graph: ir.Graph, logits: ir.Value, logit_rows: ir.Value, vocab_size: int) -> tuple[bool, ir.Value]:
    """Gather the wanted rows before the head if it is found, else behind it.

    Args:
        graph: the traced graph, changed in place.
        logits: its output, ``[1, rows, vocabulary]``.
        logit_rows: int64 ``[logit_rows]``.
        vocab_size: length of a row of logits.

    Returns:
        Whether the head was found, and the logits: ``[logit_rows, vocabulary]`` if so, else with an axis of 1 before.
    """
    head, between = _find_head(logits, vocab_size)
    if head is None:
        return False, _gather(graph, logits, logit_rows, 1, behind=logits.producer())
    rows = head.inputs[0]
    assert rows is not None, head.name
    # Without the axis of batches the logits are a result as they are, and are not copied.
    axes = ir.node("Constant", [], {"value": ir.tensor(np.asarray([0], np.int64))}, name="logit_rows.axes/Constant")
    axes.outputs[0].name = "logit_rows.axes"
    flat = ir.Value(name="logit_rows.from", type=rows.type)
    if rows.shape is not None:
        flat.shape = ir.Shape(list(rows.shape)[1:])
    squeeze = ir.node("Squeeze", [rows, axes.outputs[0]], outputs=[flat], name="logit_rows.from/Squeeze")
    graph.insert_before(head, [axes, squeeze])
    head.replace_input_with(0, _gather(graph, flat, logit_rows, 0, before=head))
    for value in (*head.outputs, *between):
        _rename_rows(value)
    return True, logits


def _find_head(logits: ir.Value, vocab_size: int) -> tuple[ir.Node | None, list[ir.Value]]:
    """Return the multiplication by the head's matrix, and the values between it and the logits."""
    between: list[ir.Value] = []
    value: ir.Value | None = logits
    for _ in range(_MAX_STEPS):
        node = None if value is None else value.producer()
        if value is None or node is None or len(value.uses()) > 1:
            break
        if node.op_type == "MatMul" and _is_fixed(node.inputs[1]) and _last(value) in (vocab_size, None):
            return node, between
        if node.op_type not in _ELEMENTWISE:
            break
        between.append(value)
        moving = [one for one in node.inputs if not _is_fixed(one)]
        others = [one for one in node.inputs if _is_fixed(one)]
        if len(moving) != 1 or any(_axes(one) > 1 for one in others):
            break
        value = moving[0]
    return None, between


def _is_fixed(value: ir.Value | None) -> bool:
    """Return whether a value is the same in every pass: an initializer, a constant, or one that is only turned."""
    if value is None or value.is_initializer():
        return True
    node = value.producer()
    if node is None:
        return False
    return node.op_type == "Constant" or (node.op_type == "Transpose" and _is_fixed(node.inputs[0]))


def _axes(value: ir.Value | None) -> int:
    """Return the number of axes; of an unknown shape, too many to be a row's."""
    if value is None:
        return 0
    if value.shape is not None:
        return len(value.shape)
    return len(value.const_value.shape) if value.const_value is not None else 9


def _last(value: ir.Value) -> int | None:
    """Return the length of the last axis, or None if it is unknown."""
    found = None if value.shape is None else value.shape[-1]
    return found if isinstance(found, int) else None


def _rename_rows(value: ir.Value) -> None:
    if value.shape is not None:
        dimensions = list(value.shape)[1:]
        dimensions[-2] = ir.SymbolicDim("logit_rows")
        value.shape = ir.Shape(dimensions)


def _gather(
    graph: ir.Graph,
    rows: ir.Value,
    logit_rows: ir.Value,
    axis: int,
    *,
    before: ir.Node | None = None,
    behind: ir.Node | None = None,
) -> ir.Value:
    """Insert a node that selects rows, before or behind another one."""
    wanted = ir.Value(name="logit_rows.selected", type=rows.type)
    if rows.shape is not None:
        dimensions = list(rows.shape)
        dimensions[axis] = ir.SymbolicDim("logit_rows")
        wanted.shape = ir.Shape(dimensions)
    node = ir.node("Gather", [rows, logit_rows], {"axis": axis}, outputs=[wanted], name="logit_rows/Gather")
    if before is not None:
        graph.insert_before(before, node)
    elif behind is not None:
        graph.insert_after(behind, node)
    else:
        graph.append(node)
    return wanted
