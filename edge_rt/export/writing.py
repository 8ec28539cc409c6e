"""Writes the parts of a package: weights, as they are or quantised on the way; tokenizer and template; graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_rt.errors import StorageError
from edge_rt.export.checkpoint import Checkpoint
from edge_rt.export.decoder.weights import build_ahead_graph, build_graph, build_states_graph, write_rope_tables
from edge_rt.export.graph.ahead import AheadBuilder
from edge_rt.export.graph.native import NativeBuilder
from edge_rt.export.graph.native_products import NO_FINE_BLOCKS, FineBlocks
from edge_rt.export.graph.onnx_ir_import import ir
from edge_rt.export.quantise.moments import CalibrationWalk, InputMoments
from edge_rt.export.quantise.rows import LimitedMatrices, PartError, QuantisedRows
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.sources.source import TokenizerBuild
from edge_rt.export.weights.linear import Linear
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.rows import CheckpointRows
from edge_rt.export.weights.weights_file import WeightsFile, WeightsLayout
from edge_rt.package.ahead import AheadInfo
from edge_rt.package.expert_hits import ExpertHits
from edge_rt.package.manifest import TEMPLATE_FILE, TOKENIZER_FILE, TOOL_TEMPLATE_FILE, WEIGHTS_FILE
from edge_rt.system.byte_size import show_size
from edge_rt.system.machine import return_free_memory

GRAPH_FILE: Final = "model.onnx"
PRODUCER: Final = "edge-rt"
"""Program name in the graphs."""
DRAFT_GRAPH_FILE: Final = "draft.onnx"
"""The graph that reads the upper halves of nested codes alone."""
AHEAD_GRAPH_FILE: Final = "ahead.onnx"
"""The graph of a block that predicts further ahead."""
STATES_GRAPH_FILE: Final = "states.onnx"
"""The graph that embeddings are made with."""


@dataclass(frozen=True)
class Written:
    """What was written into ``weights.bin``.

    Attributes:
        checksums: CRC-32 by tensor.
        walk: the float model behind its last layer, if it ran.
        hits: how often experts would have been in a cache, if they were counted.
    """

    checksums: Mapping[str, int]
    errors: Sequence[PartError] = ()
    walk: CalibrationWalk | None = None
    hits: ExpertHits | None = None


def write_weights(
    stream: TensorReader,
    checkpoint: Checkpoint,
    layout: WeightsLayout,
    folder: Path,
    on_bytes: Callable[[int, int], None],
) -> Written:
    """Write all tensors but the constants of 4-bit keys."""
    total = sum(part.tensor.nbytes for linear in checkpoint.weights.linears() for part in linear.parts)
    done = 0

    def count(read: int) -> None:
        nonlocal done
        done += read
        on_bytes(done, total)

    on_bytes(0, total)
    plain = CheckpointMatrices(stream, checkpoint.source.tensors)
    matrices = LimitedMatrices(plain, checkpoint.choice.types)
    walk = None
    if checkpoint.choice.quantises and checkpoint.calibration is not None:
        walk = CalibrationWalk(matrices, checkpoint.source, checkpoint.decoder, checkpoint.calibration.token_ids)
    moments: dict[str, InputMoments] = {}
    rows = QuantisedRows(CheckpointRows(stream), matrices, moments)
    with WeightsFile(folder / WEIGHTS_FILE, layout) as out:
        for linears in _batches(checkpoint, walk, moments):
            for linear in linears:
                checkpoint.profile.fill(linear, rows, layout, out, count)
            rows.forget()
        _write_vectors(stream, checkpoint, layout, out)
        return Written(out.checksums, rows.errors, walk)


def weights_message(checkpoint: Checkpoint) -> str:
    """Return what is done to the weights, in words; empty if they stay as they are."""
    choice = checkpoint.choice
    if not choice.types:
        return ""
    if not choice.quantises:
        return f"converting to {choice.name}"
    how = "with" if checkpoint.calibration is not None else "without"
    what = f"to at most {show_size(choice.size)}" if choice.size else f"to {choice.name}"
    return f"quantising {what}, {how} a calibration text"


def _batches(
    checkpoint: Checkpoint, walk: CalibrationWalk | None, moments: dict[str, InputMoments]
) -> Iterator[Sequence[Linear]]:
    """Yield the matrices in the order in which their inputs are known, with the moments of these in ``moments``."""
    weights = checkpoint.weights
    if weights.head is not weights.embedding:
        yield (weights.embedding,)
    if weights.per_layer:
        yield weights.per_layer
    for index, layer in enumerate(weights.layers):
        if walk is not None:
            # The heap keeps what the last step took, and the next one would come on top.
            return_free_memory()
            moments |= walk.layer(index)
            return_free_memory()
        yield layer.linears()
        # Two layers' moments do not have to be in memory.
        moments.clear()
        if walk is not None:
            walk.forget()
    if weights.ahead is not None:
        if walk is not None:
            moments |= walk.ahead()
        yield weights.ahead.linears()
        moments.clear()
        if walk is not None:
            walk.forget()
    if walk is not None:
        moments |= walk.head()
    yield (weights.head,)


def _write_vectors(stream: TensorReader, checkpoint: Checkpoint, layout: WeightsLayout, out: WeightsFile) -> None:
    for name, vector in checkpoint.weights.vectors.items():
        out.write(layout.slots[name], 0, vector.read(stream))
    write_rope_tables(out, layout, checkpoint.decoder)


def write_texts(tokenizer: TokenizerBuild, folder: Path) -> None:
    """Write tokenizer and chat template."""
    try:
        (folder / TOKENIZER_FILE).write_text(tokenizer.json_text, encoding="utf-8")
        if tokenizer.chat_template is not None:
            (folder / TEMPLATE_FILE).write_text(tokenizer.chat_template, encoding="utf-8", newline="")
        if tokenizer.tool_template is not None:
            (folder / TOOL_TEMPLATE_FILE).write_text(tokenizer.tool_template, encoding="utf-8", newline="")
    except OSError as error:
        raise StorageError("The tokenizer could not be written.", f"{error.strerror}.", "Free some space.") from error


def write_graph(
    checkpoint: Checkpoint,
    layout: WeightsLayout,
    activations: str,
    path: Path,
    fine_blocks: FineBlocks = NO_FINE_BLOCKS,
) -> None:
    """Write the graph."""
    keeps_stream = checkpoint.weights.ahead is not None
    builder = checkpoint.profile.builder(
        layout, checkpoint.decoder, activations, fine_blocks, keeps_stream=keeps_stream
    )
    save_graph(build_graph(builder, checkpoint.weights, checkpoint.decoder, PRODUCER), path)


def write_ahead_graph(checkpoint: Checkpoint, layout: WeightsLayout, path: Path, info: AheadInfo) -> None:
    """Write the graph of the block that predicts further ahead."""
    builder = AheadBuilder(layout, checkpoint.decoder, info)
    save_graph(build_ahead_graph(builder, checkpoint.weights, PRODUCER), path)


def write_draft_graph(checkpoint: Checkpoint, layout: WeightsLayout, path: Path, fine_blocks: FineBlocks) -> None:
    """Write the graph that reads the upper halves of nested codes alone; inputs and outputs are those of the other."""
    builder = NativeBuilder(layout, checkpoint.decoder, reads_upper=True, fine_blocks=fine_blocks)
    save_graph(build_graph(builder, checkpoint.weights, checkpoint.decoder, PRODUCER), path)


def write_states_graph(
    checkpoint: Checkpoint, layout: WeightsLayout, path: Path, fine_blocks: FineBlocks = NO_FINE_BLOCKS
) -> None:
    """Write the graph that gives states behind the final norm; its other inputs are those of the model's own graph."""
    builder = NativeBuilder(layout, checkpoint.decoder, fine_blocks=fine_blocks)
    save_graph(build_states_graph(builder, checkpoint.weights, checkpoint.decoder, PRODUCER), path)


def save_graph(model: ir.Model, path: Path) -> None:
    """Write a graph, the same bytes every time."""
    try:
        path.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
    except OSError as error:
        raise StorageError("The graph could not be written.", f"{error.strerror}.", "Free some space.") from error
