"""Graph and weights of a checkpoint without the rest of an export, so that a test can spoil something in between."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edge_rt.export.check.compare import compare, compare_steps, run_graph, run_steps
from edge_rt.export.decoder.weights import build_graph, collect_weights, place_weights, write_rope_tables
from edge_rt.export.op_profile import PROFILES
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.reference.reference import DecoderReference
from edge_rt.export.sources.model_file import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.rows import CheckpointRows
from edge_rt.export.weights.weights_file import WeightsFile
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import open_package


def reference_of(stream, source, decoder, **options):
    """Return the reference of a checkpoint whose weights are the package's."""
    return DecoderReference(CheckpointMatrices(stream, source.tensors), source, decoder, **options)


def matrices_and_logits(path):
    """Return name -> weights of a checkpoint, in the order of the package, and its logits for some tokens."""
    source, decoder = open_checkpoint(path)
    with TensorReader(source.paths) as reader:
        matrices = CheckpointMatrices(reader, source.tensors)
        found = {name: np.concatenate(list(matrices.pieces(name))) for name in source.tensors}
        return found, reference_of(reader, source, decoder).logits([5, 17, 300, 17, 99, 4])


def package_logits(path, token_ids):
    """Return the logits of a package's graph."""
    manifest = open_package(path).manifest
    return run_graph(path / "model.onnx", manifest.decoder, token_ids, PROFILES[manifest.op_profile])


class Built:
    """A graph beside its ``weights.bin``.

    Args:
        gguf: the checkpoint.
        folder: where to write; must be empty.
        activations: ``"float"`` or ``"int8"``; the native profile has int8 only.
        profile: name of the op profile.
        change_weights: function of the collected weights that returns others.
        change_decoder: function of the description that returns another, for the graph only.
        is_calibrated: leave room for constants of 4-bit keys; they are 0, which no balance may be.

    Attributes:
        graph: path of the graph.
        profile: its op profile.
        source, decoder: the checkpoint and its description.
        used: the description of the graph.
        weights, layout: what lies in ``weights.bin``, and where.
    """

    def __init__(
        self, gguf, folder, activations="float", *, profile="portable", change_weights=None, change_decoder=None,
        is_calibrated=False,
    ):  # fmt: skip
        self.source, self.decoder = open_checkpoint(gguf)
        used = change_decoder(self.decoder) if change_decoder else self.decoder
        self.used = used
        self.profile = PROFILES[profile]
        self.weights = collect_weights(self.source, self.decoder, self.profile)
        if change_weights:
            self.weights = change_weights(self.weights)
        self.layout = place_weights(self.weights, self.decoder, self.profile, is_calibrated=is_calibrated)
        self.graph = folder / "model.onnx"
        with WeightsFile(folder / WEIGHTS_FILE, self.layout) as out, TensorReader(self.source.paths) as stream:
            self._fill(stream, out, used)
        graph = build_graph(self.profile.builder(self.layout, used, activations), self.weights, used, "test")
        self.graph.write_bytes(ir.to_proto(graph).SerializeToString(deterministic=True))

    def _fill(self, stream, out, decoder):
        for linear in self.weights.linears():
            self.profile.fill(linear, CheckpointRows(stream), self.layout, out, lambda count: None)
        for name, vector in self.weights.vectors.items():
            out.write(self.layout.slots[name], 0, vector.read(stream))
        write_rope_tables(out, self.layout, decoder)

    def run(self, token_ids):
        """Return the graph's logits of a whole sequence."""
        return run_graph(self.graph, self.used, token_ids, self.profile)

    def check_steps(self, token_ids):
        """Return how a native graph compares with the reference, as a whole and step by step."""
        streams = run_steps(self.graph, self.used, token_ids, self.profile)
        logits = self.run(token_ids)
        with TensorReader(self.source.paths) as stream:
            reference, steps = reference_of(stream, self.source, self.decoder).logits_and_steps(token_ids, streams)
        return compare(reference, logits, "int8", compare_steps(streams, logits, steps))

    def reference(self, token_ids, dtype="float64"):
        """Return the reference's logits ``[len(token_ids), vocabulary]``."""
        with TensorReader(self.source.paths) as stream:
            return reference_of(stream, self.source, self.decoder, dtype=dtype).logits(token_ids)
