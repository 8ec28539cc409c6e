"""Cuts the graph of a package at its exits, and compares the parts with the whole, bit by bit."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.binding import StopSwitch
from edge_rt.errors import InvalidPackage
from edge_rt.export.check.compare import check_token_ids, run_graph
from edge_rt.export.checkpoint import Checkpoint
from edge_rt.export.decoder.segments import build_segments
from edge_rt.export.weights.weights_file import WeightsLayout
from edge_rt.export.writing import GRAPH_FILE, PRODUCER, save_graph
from edge_rt.package.manifest import Segment
from edge_rt.session import Session, pool_size
from edge_rt.system.machine import usable_cpus

HEAD_FILE: Final = "head.onnx"
CHECK_ROWS: Final = 24

Array = npt.NDArray[Any]


def cut_graph(
    checkpoint: Checkpoint, layout: WeightsLayout, exits: Sequence[int], folder: Path
) -> tuple[tuple[Segment, ...], str | None]:
    """Replace the whole graph, which was written and checked, by segments that compute the same bits.

    Args:
        checkpoint: what is known about it.
        layout: of the package.
        exits: layers behind which the graph is cut; none leave it whole.
        folder: of the package.

    Returns:
        The segments in the order they run, and the file of the head's graph, None for a whole graph.

    Raises:
        InvalidPackage: the segments compute something else.
        StorageError: a graph cannot be written.
    """
    decoder = checkpoint.decoder
    if not exits:
        return (Segment("model", GRAPH_FILE, 0, decoder.num_layers),), None
    segments = []
    for index, (first, end, model) in enumerate(
        build_segments(checkpoint.weights, layout, decoder, exits, producer=PRODUCER)
    ):
        is_head = first == end
        name = "head" if is_head else f"layers {first}-{end - 1}"
        segments.append(Segment(name, HEAD_FILE if is_head else f"model.{index}.onnx", first, end))
        save_graph(model, folder / segments[-1].graph)
    ids = check_token_ids(decoder.vocab_size, min(CHECK_ROWS, decoder.context_length))
    whole = run_graph(folder / GRAPH_FILE, decoder, ids, checkpoint.profile)
    gc.collect()
    _require_same(whole, _run_segments(checkpoint, segments[:-1], folder, ids))
    (folder / GRAPH_FILE).unlink()
    return tuple(segments[:-1]), segments[-1].graph


def _run_segments(checkpoint: Checkpoint, segments: Sequence[Segment], folder: Path, ids: Sequence[int]) -> Array:
    """Return the logits of a whole sequence; never more than one session is open."""
    decoder, profile = checkpoint.decoder, checkpoint.profile
    inputs, outputs = profile.feeds(decoder, ids)
    for segment in segments:
        session = Session(folder / segment.graph, threads=pool_size() or usable_cpus(), profile=profile.name)
        binding = session.binding()
        for spec in session.inputs:
            binding.bind_input(spec.name, inputs[spec.name])
        hidden = np.empty((len(ids), decoder.hidden_size), np.float32)
        for spec in session.outputs:
            binding.bind_output(spec.name, hidden if spec.name == "hidden_out" else outputs[spec.name])
        binding.run(StopSwitch())
        inputs["hidden"] = hidden
        del session, binding
        gc.collect()
    return outputs["logits"]


def _require_same(whole: Array, parts: Array) -> None:
    """Raise ``InvalidPackage`` unless two sets of logits have the same bits."""
    differing = int((whole.view(np.uint32) != parts.view(np.uint32)).sum())
    if differing:
        raise InvalidPackage(
            "The graphs that were cut at the exits do not compute what the whole graph does.",
            f"{differing} of {whole.size} logits have other bits.",
            "Report this with the name of the checkpoint, or leave out --exits.",
        )
