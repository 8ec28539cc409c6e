"""What a pass of a traced graph needs: the bytes of the tensors that are alive at once, by rows and tokens.

Every tensor's size is a polynomial of the rows of a pass and of the tokens at its end. The nodes run in the order in
which ONNX Runtime runs them, and a tensor is freed behind its last use. ONNX Runtime fuses nodes, and needs less then.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import onnx_ir.passes.common as passes

from edge_rt.export.estimate import BASE_BYTES, GRAPH_AND_TEXT_BYTES, ExportEstimate
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.sources.hf_folder import HFFolder
from edge_rt.export.traced.store import SMALLEST_STORED, matrices
from edge_rt.package.weights_info import PassBytes

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
    """Return the bytes that ONNX Runtime packs and releases, and those that stay mapped to be looked up in."""
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


_VIEWS: Final = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that copy nothing."""
_IN_PLACE: Final = (
    "Add", "And", "Cast", "Clip", "Div", "Erf", "Exp", "Gelu", "Log", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal",
    "Relu", "Sigmoid", "Sqrt", "Sub", "Tanh",
)  # fmt: skip
"""Operators that write over an input that nothing else reads."""
MAX_POINTS: Final = 12
"""Points of a pass that are kept."""
_LONG: Final = (256, 4096)
"""Rows and tokens of a pass by which points are ranked where too many are left."""


_NOTHING: Final = PassBytes(0, 0, 0, 0, 0)
_ROWS: Final = (2, 3)
_TOKENS: Final = (8, 16)
"""Rows and tokens of the passes whose tensors are measured: four of them give the four terms of a size."""


def pass_points(model: ir.Model, symbols: Mapping[str, str]) -> tuple[PassBytes, ...]:
    """Return the points of a pass one of which needs the most memory, whatever its rows and tokens.

    Args:
        model: with the shapes of what it computes, as far as they are known; others are inferred.
        symbols: name of an axis in the graph -> ``"rows"``, ``"past"`` or ``"tokens"``.
    """
    proto = ir.to_proto(model)

    def sizes(rows: int, tokens: int, logit_rows: int) -> dict[str, int]:
        known = {"rows": rows, "past": tokens - rows, "tokens": tokens, "logit_rows": logit_rows}
        return _sizes(ir.from_proto(proto), known | {name: known[role] for name, role in symbols.items()})

    (few, many), (short, long) = _ROWS, _TOKENS
    corners = [sizes(few, short, 1), sizes(many, short, 1), sizes(few, long, 1), sizes(many, long, 1)]
    wider = sizes(few, short, 2)
    points = {name: _fitted([corner.get(name, 0) for corner in corners], size) for name, size in wider.items()}
    return _largest(_alive(_run_order(model.graph), points, set(model.graph.outputs)))


def _sizes(model: ir.Model, lengths: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of every tensor that a graph computes, by name; those of unknown shape are left out."""
    values = [value for node in model.graph for value in node.outputs]
    for value in (*model.graph.inputs, *values):
        if value.shape is not None:
            axes = (axis if isinstance(axis, int) else _length(axis.value, lengths) for axis in value.shape)
            value.shape = ir.Shape(axes)
    model = passes.ShapeInferencePass(data_prop=True)(model).model
    found = {}
    for node in model.graph:
        for value in node.outputs:
            if value.name and value.shape is not None and all(isinstance(axis, int) for axis in value.shape):
                size = 4 if value.dtype is None else max(1, int(value.dtype.itemsize))
                found[value.name] = math.prod(int(axis) for axis in value.shape if isinstance(axis, int)) * size
    return found


def _fitted(corners: Sequence[int], wider: int) -> PassBytes:
    """Return a size as a sum of terms, from its bytes at the four corners and with one more row of logits."""
    (few, many), (short, long) = _ROWS, _TOKENS
    begin, by_row, by_token, by_both = corners
    pair = (by_both - by_row - by_token + begin) // ((many - few) * (long - short))
    row = (by_row - begin) // (many - few) - pair * short
    token = (by_token - begin) // (long - short) - pair * few
    logit_row = wider - begin
    fixed = begin - row * few - token * short - pair * few * short - logit_row
    return PassBytes(fixed, row, token, pair, logit_row)


def _length(text: str | None, lengths: Mapping[str, int]) -> int | None:
    """Return the length that a symbolic axis stands for; None if that is unknown."""
    try:
        return None if text is None else _evaluated(ast.parse(text, mode="eval").body, lengths)
    except SyntaxError:
        return None


def _evaluated(tree: ast.expr, lengths: Mapping[str, int]) -> int | None:
    if isinstance(tree, ast.Name):
        return lengths.get(tree.id)
    if isinstance(tree, ast.Constant):
        return tree.value if isinstance(tree.value, int) else None
    if not isinstance(tree, ast.BinOp):
        return None
    left, right = _evaluated(tree.left, lengths), _evaluated(tree.right, lengths)
    if left is None or right is None:
        return None
    if isinstance(tree.op, ast.Add):
        return left + right
    if isinstance(tree.op, ast.Sub):
        return left - right
    return left * right if isinstance(tree.op, ast.Mult) else None


def _sum(one: PassBytes, other: PassBytes, sign: int = 1) -> PassBytes:
    return PassBytes(
        one.fixed + sign * other.fixed,
        one.row + sign * other.row,
        one.token + sign * other.token,
        one.pair + sign * other.pair,
        one.logit_row + sign * other.logit_row,
    )


def _run_order(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes as ONNX Runtime runs them: from the last result back, of several inputs the latest first."""
    numbers = {node: number for number, node in enumerate(graph)}
    ends = [node for node in numbers if all(not value.uses() for value in node.outputs)]
    order: list[ir.Node] = []
    seen: set[ir.Node] = set()
    waiting = [(node, False) for node in ends]
    while waiting:
        node, is_left = waiting.pop()
        if is_left:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        waiting.append((node, True))
        before = {value.producer() for value in node.inputs if value is not None}
        found = sorted((one for one in before if one is not None and one in numbers), key=numbers.__getitem__)
        waiting += [(one, False) for one in found if one not in seen]
    return order


def _alive(order: Sequence[ir.Node], sizes: Mapping[str, PassBytes], bound: set[ir.Value]) -> Iterator[PassBytes]:
    """Yield the bytes that are alive while each node runs; bound outputs and inputs are not counted."""
    homes: dict[ir.Value, ir.Value] = {}  # a view -> the tensor that it is a view of
    last: dict[ir.Value, int] = {}
    for place, node in enumerate(order):
        for value in node.inputs:
            if value is not None:
                last[_home(value, homes)] = place
        if node.op_type in _VIEWS and node.inputs[0] is not None and node.outputs[0] not in bound:
            homes[node.outputs[0]] = _home(node.inputs[0], homes)
    held: dict[ir.Value, PassBytes] = {}
    total = _NOTHING
    for place, node in enumerate(order):
        inputs = {_home(value, homes) for value in node.inputs if value is not None}
        ending = [value for value in inputs if last.get(value) == place and value in held]
        for value in node.outputs:
            if value in homes or value in bound or value not in last:
                continue
            size = sizes.get(value.name or "", _NOTHING)
            if node.op_type in _IN_PLACE:
                same = next((one for one in ending if held[one] == size), None)
                if same is not None:
                    ending.remove(same)
                    held[value] = held.pop(same)
                    continue
            held[value] = size
            total = _sum(total, size)
        yield total
        for value in ending:
            total = _sum(total, held.pop(value), -1)


def _home(value: ir.Value, homes: Mapping[ir.Value, ir.Value]) -> ir.Value:
    while value in homes:
        value = homes[value]
    return value


def _largest(points: Iterator[PassBytes]) -> tuple[PassBytes, ...]:
    """Return the points that no other one exceeds in every term; the largest of them if they are many."""
    kept: list[PassBytes] = []
    for point in set(points):
        if not any(_covers(other, point) for other in kept):
            kept = [other for other in kept if not _covers(point, other)]
            kept.append(point)
    terms = ("fixed", "row", "token", "pair", "logit_row")
    kept.sort(key=lambda point: (-point.total(*_LONG, 1), *(getattr(point, name) for name in terms)))
    if len(kept) <= MAX_POINTS:
        return tuple(kept)
    # What is dropped is covered by one more point, which has the largest of each of its terms.
    rest = [max(0, *(getattr(point, name) for point in kept[MAX_POINTS - 1 :])) for name in terms]
    return (*kept[: MAX_POINTS - 1], PassBytes(*rest))


def _covers(one: PassBytes, other: PassBytes) -> bool:
    """Return whether a point needs at least as much as another one, whatever rows and tokens; there are more tokens."""
    return (
        one.fixed >= other.fixed
        and one.pair >= other.pair
        and one.token >= other.token
        and one.logit_row >= other.logit_row
        and one.row + one.token >= other.row + other.token
        and one.row >= other.row
    )
