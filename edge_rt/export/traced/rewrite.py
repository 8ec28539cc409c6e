"""Gives a traced graph the inputs and outputs that the runtime binds.

The cache becomes a buffer of tokens, ``[capacity, kv_heads, head_dim]``: the graph reads its first rows and returns the
new ones, so that nothing is copied outside of it and rolling back is a length. Mask and positions follow from the
number of rows, so they are computed inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from edge_rt.errors import UnsupportedModel
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.traced.interface import MASK, PLACES, POSITIONS, TracedInterface

_ELEMENTWISE: Final = ("Add", "Cast", "Clip", "Div", "Identity", "Mul", "Sub", "Tanh")
"""Operators that change every logit alone: scales, soft-caps, biases."""
_MAX_STEPS: Final = 16


def select_rows(graph: ir.Graph, logits: ir.Value, logit_rows: ir.Value, vocab_size: int) -> tuple[bool, ir.Value]:
    """Gather the wanted rows before the head if it is found, else behind it.

    Args:
        logits: its output, ``[1, rows, vocabulary]``.
        logit_rows: int64 ``[logit_rows]``.

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


_END: Final = np.iinfo(np.int64).max
_PREFIX: Final = "pass"
MIN_OPSET: Final = 15
"""Oldest version of ONNX's operators that has the attributes of Shape that are used here."""


def past_name(layer: int, kind: str) -> str:
    """Return the name of the input with the cached rows of a layer."""
    return f"past.{layer}.{kind}"


def new_name(layer: int, kind: str) -> str:
    """Return the name of the output with the new rows of a layer."""
    return f"new.{layer}.{kind}"


class _Nodes:
    """Creates nodes with names of their own."""

    def __init__(self, prefix: str) -> None:
        self.made: list[ir.Node] = []
        self._prefix = prefix

    def add(
        self, op_type: str, inputs: Sequence[ir.Value], **attributes: int | list[int] | ir.TensorProtocol
    ) -> ir.Value:
        """Add a node with one output, and return that."""
        output = ir.Value(name=f"{self._prefix}.{len(self.made)}")
        self.made.append(ir.node(op_type, inputs, attributes, outputs=[output], name=f"{output.name}/{op_type}"))
        return output

    def numbers(self, values: Sequence[int]) -> ir.Value:
        """Return a constant int64 vector."""
        return self.add("Constant", [], value=ir.tensor(np.asarray(values, np.int64)))


def adapt(model: ir.Model, interface: TracedInterface, vocab_size: int, name: str) -> bool:
    """Change inputs and outputs of a traced graph to those of the op profile ``traced``, in place."""
    graph = model.graph
    opset = graph.opset_imports.get("", 0)
    if opset < MIN_OPSET:
        raise UnsupportedModel(
            f"{name}: the traced graph is of an old version of ONNX.",
            f"Its operators are of version {opset}, at least {MIN_OPSET} is read.",
            "Install newer versions of transformers and torch.",
        )
    _rename_values(graph)
    rows = _input("input_ids", ir.DataType.INT64, ["rows"])
    logit_rows = _input("logit_rows", ir.DataType.INT64, ["logit_rows"])
    shape: list[int | str] = ["past", interface.kv_heads, interface.head_dim]
    pasts = {key: _input(past_name(*key), ir.DataType.FLOAT, shape) for key in interface.caches}
    front, back = _Nodes(f"{_PREFIX}.front"), _Nodes(f"{_PREFIX}.back")
    past_length = _drive(front, interface, rows, next(iter(pasts.values())), name)
    replaced = {}
    for key, pair in interface.caches.items():
        by_head = front.add("Transpose", [pasts[key]], perm=[1, 0, 2])
        by_head.shape, by_head.type = ir.Shape([shape[1], "past", shape[2]]), pasts[key].type
        replaced[key] = front.add("Unsqueeze", [by_head, front.numbers([0])])
        _replace(pair.past, replaced[key])
    narrows, logits = select_rows(graph, interface.logits, logit_rows, vocab_size)
    outputs = [_output(logits if narrows else _without_batch(back, logits), "logits", ["logit_rows", vocab_size])]
    for key, pair in interface.caches.items():
        new = _appended(pair.present, replaced[key])
        if new is None:
            new = back.add("Slice", [pair.present, past_length, back.numbers([_END]), back.numbers([2])])
        by_token = back.add("Transpose", [_without_batch(back, new)], perm=[1, 0, 2])
        outputs.append(_output(by_token, new_name(*key), ["rows", *shape[1:]]))
    if graph.num_nodes():
        graph.insert_before(graph[0], front.made)
    else:
        graph.extend(front.made)
    graph.extend(back.made)
    graph.inputs[:] = [rows, logit_rows, *pasts.values()]
    graph.outputs[:] = outputs
    return narrows


def _rename_values(graph: ir.Graph) -> None:
    """Give all inputs, nodes and computed values numbers as names, so that none has the name of a new one."""
    for number, value in enumerate(graph.inputs):
        value.name = f"traced.input.{number}"
    for number, node in enumerate(graph):
        for place, value in enumerate(node.outputs):
            value.name = f"v{number}.{place}"
        node.name = f"v{number}/{node.op_type}"


def _drive(nodes: _Nodes, interface: TracedInterface, rows: ir.Value, past: ir.Value, name: str) -> ir.Value:
    """Compute tokens, mask and positions as the traced graph takes them; return the context's rows, int64 ``[1]``."""
    batch = nodes.numbers([0])
    _replace(interface.token_ids, nodes.add("Unsqueeze", [rows, batch]))
    past_length = nodes.add("Shape", [past], start=0, end=1)
    total = nodes.add("Add", [past_length, nodes.add("Shape", [rows])])
    ends = [nodes.add("Squeeze", [length]) for length in (past_length, total)]
    step = nodes.add("Constant", [], value=ir.tensor(np.asarray(1, np.int64)))
    places = nodes.add("Range", [*ends, step])
    for which, value in interface.driving.items():
        axes = 1 if which == PLACES else 2
        if value.dtype is None or value.shape is None or len(value.shape) != axes:
            raise UnsupportedModel(
                f"{name}: the traced graph takes tokens in a way that is not carried.",
                f"Its input '{which}' has the shape {value.shape}.",
                "Choose another model.",
            )
        if which == MASK:
            one = ir.tensor(np.asarray([1], value.dtype.numpy()))
            shape = nodes.add("Concat", [nodes.numbers([1]), total], axis=0)
            _replace(value, nodes.add("ConstantOfShape", [shape], value=one))
        elif which == POSITIONS:
            _replace(value, nodes.add("Unsqueeze", [places, batch]))
        else:
            _replace(value, places)
    return past_length


def _appended(present: ir.Value, past: ir.Value) -> ir.Value | None:
    """Return what a graph appends to a cache, which then need not outlive its layer; None if it appends nothing."""
    node = present.producer()
    if node is None or node.op_type != "Concat" or len(node.inputs) != 2 or node.inputs[0] is not past:
        return None
    return node.inputs[1] if node.attributes.get_int("axis", 0) in (2, -2) else None


def _without_batch(nodes: _Nodes, value: ir.Value) -> ir.Value:
    return nodes.add("Squeeze", [value, nodes.numbers([0])])


def _replace(old: ir.Value, new: ir.Value) -> None:
    new.shape, new.type = old.shape, old.type
    ir.convenience.replace_all_uses_with(old, new)


def _input(name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def _output(value: ir.Value, name: str, shape: Sequence[int | str]) -> ir.Value:
    value.name, value.shape, value.type = name, ir.Shape(shape), ir.TensorType(ir.DataType.FLOAT)
    return value
