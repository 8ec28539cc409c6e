"""Runs several independent sequences of a native package at once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from edge_rt.errors import UnsupportedModel
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import Package

Floats = npt.NDArray[np.float32]
_ENTERING, _LEAVING = "hidden", "hidden_out"
"""The stream before and behind the layers of a segment."""
_INPUTS: Final = ("input_ids", "logit_rows", "past_length", "row_map", "parents", "sequence_rows", "kv_formats")

TOP_TOKENS = 64
"""Most likely tokens of a row that sampling chooses from: as many as the operator RowTopK finds."""


class Rows(NamedTuple):
    """What a pass computed for one sequence; valid until the next pass.

    Attributes:
        hidden: float32 ``[rows, hidden_size]``, the residual stream before the final norm.
        ids, logits: of the last row, the most likely tokens, int32 and float32 ``[TOP_TOKENS]``; None if not asked for.
    """

    hidden: Floats
    exits: tuple[Floats, ...]
    ids: npt.NDArray[np.int32] | None
    logits: Floats | None


class BatchRunner:
    """Sequences of one package that are computed together, each with its own part of one cache.

    Args:
        kv_format: of the cache; None: the package's default, with which its answers are written.

    Attributes:
        lengths: int32 ``[sequences]``, tokens of every sequence; set one to 0 to begin it anew.
    """

    def __init__(
        self,
        package: Package,
        *,
        sequences: int,
        capacity: int,
        threads: int,
        most_rows: int,
        kv_format: str | None = None,
    ) -> None:
        config = package.manifest.model
        self.sequences, self.capacity, self.most_rows = sequences, capacity, most_rows
        self.lengths = np.zeros(sequences, np.int32)
        top = min(TOP_TOKENS, config.vocab_size)
        segments = package.manifest.segments
        graph = batch_model([ir.load(package.file(one.graph)) for one in segments], top)
        self._folder = tempfile.TemporaryDirectory(
            prefix="edge-rt-batch-",
            ignore_cleanup_errors=True,  # Windows keeps mapped weights as long as the session lives
        )
        try:
            folder = Path(self._folder.name)
            ir.save(graph, folder / "batch.onnx")
            link_weights(package, folder)
            session = Session(folder / "batch.onnx", threads=threads, profile="native")
        except BaseException:
            self._folder.cleanup()
            raise
        form = KV_FORMAT[kv_format or package.manifest.kv_formats[0]]
        total, kv = sequences * capacity, config.num_kv_heads
        row_bytes = form.token_bytes(kv, config.head_dim) // (2 * kv)
        self._switch, self._binding = StopSwitch(), session.binding()
        self._counts = np.ones(sequences, np.int32)
        self._past = np.zeros(sequences, np.int32)
        self._caches = [np.zeros((2, kv, total, row_bytes), np.uint8) for _ in range(config.num_layers)]
        self._ids, self._parents = np.zeros(most_rows, np.int64), np.zeros(most_rows, np.int32)
        self._wanted = np.zeros(sequences, np.int64)
        self._row_outputs = ("hidden", *(f"exit.{index}" for index in range(len(segments) - 1)))
        self._outputs: dict[str, npt.NDArray[Any]] = {
            **{name: np.zeros((most_rows, config.hidden_size), np.float32) for name in self._row_outputs},
            "top_ids": np.zeros((sequences, top), np.int32),
            "top_logits": np.zeros((sequences, top), np.float32),
            "log_sum_exp": np.zeros(sequences, np.float32),
        }
        bind = self._binding.bind_input
        bind("sequence_rows", self._counts)
        bind("past_length", self._past)
        bind("row_map", np.arange(total, dtype=np.int32).reshape(sequences, capacity))
        bind("kv_formats", np.full(config.num_layers, form.id, np.int32))
        for index, cache in enumerate(self._caches):
            bind(f"cache.{index}", cache)
        self._bound = (0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._folder.cleanup()

    def forward(self, pieces: Sequence[Sequence[int]], wants: Sequence[bool]) -> list[Rows]:
        """Append a piece to every sequence and compute it.

        Args:
            wants: whether the likely tokens after its last one are wanted.
        """
        row = wanted = 0
        for index, piece in enumerate(pieces):
            end = row + len(piece)
            self._ids[row:end] = piece
            self._parents[row:end] = np.arange(-1, len(piece) - 1)
            self._counts[index] = len(piece)
            if wants[index]:
                self._wanted[wanted] = end - 1
                wanted += 1
            row = end
        self._past[:] = self.lengths
        self._bind(row, max(wanted, 1))
        self._binding.run(self._switch)
        self.lengths += self._counts
        result, row, wanted = [], 0, 0
        for index, piece in enumerate(pieces):
            hidden, *exits = (self._outputs[name][row : row + len(piece)] for name in self._row_outputs)
            row += len(piece)
            ids = logits = None
            if wants[index]:
                ids, logits = self._outputs["top_ids"][wanted], self._outputs["top_logits"][wanted]
                wanted += 1
            result.append(Rows(hidden, tuple(exits), ids, logits))
        return result

    def _bind(self, rows: int, wanted: int) -> None:
        if self._bound[0] != rows:
            self._binding.bind_input("input_ids", self._ids[:rows])
            self._binding.bind_input("parents", self._parents[:rows])
            for name in self._row_outputs:
                self._binding.bind_output(name, self._outputs[name][:rows])
        if self._bound[1] != wanted:
            self._binding.bind_input("logit_rows", self._wanted[:wanted])
            for name in ("top_ids", "top_logits", "log_sum_exp"):
                self._binding.bind_output(name, self._outputs[name][:wanted])
        self._bound = (rows, wanted)


def batch_model(models: Sequence[ir.Model], top: int) -> ir.Model:
    """Return a package's graph with the states of all rows, and logits of those that want them.

    Requires: the graphs of a native package without sliding windows; those of one with exits are joined.
    Ensures: the inputs of a whole graph; the outputs ``hidden [rows, hidden_size]`` (before the final norm),
    ``exit.{i}`` of the same shape for every exit, ``top_ids``, ``top_logits [logit_rows, top]`` and ``log_sum_exp
    [logit_rows]``.

    Args:
        models: the graphs of a package's segments, in their order; they are left unchanged.
    """
    graphs = [model.graph for model in models]
    given = {str(value.name): value for graph in graphs for value in graph.inputs if value.name != _ENTERING}
    if more := {name for name in given if name not in _INPUTS and not name.startswith("cache.")}:
        raise UnsupportedModel(
            "Several sequences cannot be computed together with this model.",
            f"Its graph has {len(more)} inputs that a batch does not know, for example {min(more)}.",
            "Train a drafter for another model.",
        )
    inputs = [ir.Value(name=name, shape=value.shape, type=value.type) for name, value in given.items()]
    constants = {
        str(name): ir.Value(name=name, shape=value.shape, type=value.type, const_value=value.const_value)
        for graph in graphs
        for name, value in graph.initializers.items()
    }
    values = {**constants, **{str(value.name): value for value in inputs}}
    nodes = list(_nodes(graphs, values, top))
    rows: dict[str, tuple[ir.DataType, list[str | int]]] = {
        **{name: (ir.DataType.FLOAT, ["rows", "hidden_size"]) for name in ("hidden", *_exits(graphs))},
        "top_ids": (ir.DataType.INT32, ["logit_rows", top]),
        "top_logits": (ir.DataType.FLOAT, ["logit_rows", top]),
        "log_sum_exp": (ir.DataType.FLOAT, ["logit_rows"]),
    }
    outputs = [values[name] for name in rows]
    for value, (dtype, shape) in zip(outputs, rows.values(), strict=True):
        value.shape, value.type = ir.Shape(shape), ir.TensorType(dtype)
    used = {value.name for node in nodes for value in node.inputs if value is not None}
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=nodes,
        initializers=[value for name, value in constants.items() if name in used],
        opset_imports=dict(graphs[0].opset_imports),
        name="batch",
    )
    return ir.Model(graph, ir_version=models[0].ir_version, producer_name="edge-rt")


def _exits(graphs: Sequence[ir.Graph]) -> list[str]:
    return [f"exit.{index}" for index in range(len(graphs) - 1)]


def _nodes(graphs: Sequence[ir.Graph], values: dict[str, ir.Value], top: int) -> Iterator[ir.Node]:
    """Make the nodes of the new graph, whose values are added."""

    def node(source: ir.Node, inputs: Sequence[ir.Value | None], names: Sequence[str], **changed: int) -> ir.Node:
        outputs = [ir.Value(name=name) for name in names]
        values.update(zip(names, outputs, strict=True))
        attributes = {name: attribute.value for name, attribute in source.attributes.items()} | changed
        return ir.node(
            source.op_type,
            inputs,
            attributes,
            domain=source.domain,
            outputs=outputs,
            name=f"{names[0]}/{source.op_type}",
        )

    gathers = []
    for graph, behind in zip(graphs, [*_exits(graphs), _LEAVING], strict=True):
        for source in graph:
            inputs = [None if value is None else values[str(value.name)] for value in source.inputs]
            names = [behind if value.name == _LEAVING else str(value.name) for value in source.outputs]
            if source.op_type == "Gather" and inputs[1] is values["logit_rows"]:
                # All rows go on to the end of the last layer: their hidden states are wanted.
                gathers.append(source)
                assert inputs[0] is not None
                values[names[0]] = inputs[0]
            elif names[0] == "logits":
                hidden = values["hidden"] = ir.Value(name="hidden")
                yield ir.node("Identity", inputs[:1], outputs=[hidden], name="hidden/Identity")
                yield node(gathers[0], [hidden, values["logit_rows"]], ["wanted"])
                yield node(source, [values["wanted"], *inputs[1:]], names)
            elif source.op_type == "RowTopK":
                yield node(source, inputs, names, k=top)
            else:
                yield node(source, inputs, names)
        if behind != _LEAVING:
            values[_ENTERING] = values[behind]


def link_weights(package: Package, folder: Path) -> None:
    """Put a package's weights beside a graph: ONNX Runtime refuses symbolic links that leave the folder."""
    source, target = package.file(WEIGHTS_FILE), folder / WEIGHTS_FILE
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
