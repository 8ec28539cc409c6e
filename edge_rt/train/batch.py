"""Runs several independent sequences of a native package at once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import Package
from edge_rt.train.batch_graph import batch_model

Floats = npt.NDArray[np.float32]
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
        graph = batch_model([ir.load(package.file(one.graph)) for one in segments], sequences, top)
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
        self._counts = np.ones(sequences, np.int64)
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
        bind("past_lengths", self._past)
        bind("kv_formats", np.full(config.num_layers, form.id, np.int32))
        for index, cache in enumerate(self._caches):
            bind(f"cache.{index}", cache)
        for index in range(sequences):
            rows = np.zeros(total, np.int32)
            rows[:capacity] = np.arange(index * capacity, (index + 1) * capacity)
            bind(f"row_map.{index}", rows)
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
        self.lengths += self._counts.astype(np.int32)
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


def link_weights(package: Package, folder: Path) -> None:
    """Put a package's weights beside a graph: ONNX Runtime refuses symbolic links that leave the folder."""
    source, target = package.file(WEIGHTS_FILE), folder / WEIGHTS_FILE
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
