"""Writes a traced graph and its weights as the files of a package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import onnx_ir as ir

from edge_rt.errors import InvalidModelFile, StorageError
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
    """Write the tensors to ``weights.bin``, read them back, and let the graph refer to them there.

    Args:
        model: its tensors lie in memory or in files of the trace.
        layout: of ``place``.
        folder: of the package.
        on_bytes: called with the bytes that were written, and with all of them.

    Raises:
        InvalidModelFile: a value of the weights is not finite.
        StorageError: reading or writing failed.
    """
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
    """Write the graph; shapes of what it computes between inputs and outputs are left out.

    Raises:
        StorageError: the disk is full.
    """
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
