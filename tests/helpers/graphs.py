"""Graph and weights of a checkpoint without the rest of an export, so that a test can spoil something in between."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edge_rt.export.check.compare import compare, compare_steps, run_graph, run_steps
from edge_rt.export.check.reference import LlamaReference
from edge_rt.export.families.llama import read_config
from edge_rt.export.families.llama_graph import build_graph, collect_weights, place_weights, write_rope_tables
from edge_rt.export.op_profile import PROFILES
from edge_rt.export.opening import open_checkpoint
from edge_rt.export.sources.gguf_header import read_header
from edge_rt.export.sources.gguf_source import gguf_source
from edge_rt.export.sources.tensor_reader import TensorReader
from edge_rt.export.weights.blocks import float_rows, read_rows
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.rows import CheckpointRows
from edge_rt.export.weights.weights_file import WeightsFile
from edge_rt.package.manifest import WEIGHTS_FILE


def reference_of(stream, source, config, **options):
    """Return the reference of a checkpoint whose weights are the package's."""
    return LlamaReference(CheckpointMatrices(stream, source.tensors), source, config, **options)


def matrices_and_logits(path):
    """Return name -> weights of a checkpoint, in the order of the package, and its logits for some tokens."""
    source, config = open_checkpoint(path)
    with TensorReader(source.paths) as reader:
        matrices = CheckpointMatrices(reader, source.tensors)
        found = {name: np.concatenate(list(matrices.pieces(name))) for name in source.tensors}
        return found, reference_of(reader, source, config).logits([5, 17, 300, 17, 99, 4])


class Built:
    """A graph beside its ``weights.bin``.

    Args:
        gguf: the checkpoint.
        folder: where to write; must be empty.
        activations: ``"float"`` or ``"int8"``; the native profile has int8 only.
        profile: name of the op profile.
        change_weights: function of the collected weights that returns others.
        change_config: function of the config that returns another, for the graph only.
        change_model: the same of the manifest's numbers.
        is_calibrated: leave room for constants of 4-bit keys; they are 0, which no balance may be.

    Attributes:
        graph: path of the graph.
        profile: its op profile.
        config, model: numbers of the checkpoint and of the manifest.
        weights, layout: what lies in ``weights.bin``, and where.
    """

    def __init__(
        self, gguf, folder, activations="float", *, profile="portable", change_weights=None, change_config=None,
        change_model=None, is_calibrated=False,
    ):  # fmt: skip
        self.header = read_header(gguf)
        self.config = read_config(self.header)
        used = change_config(self.config) if change_config else self.config
        self.model = (change_model or (lambda model: model))(used.to_model_config(1))
        self.profile = PROFILES[profile]
        self.weights = collect_weights(gguf_source(self.header), self.config, self.profile)
        if change_weights:
            self.weights = change_weights(self.weights)
        self.layout = place_weights(self.weights, self.config, self.profile, is_calibrated=is_calibrated)
        self.graph = folder / "model.onnx"
        self._gguf = gguf
        with WeightsFile(folder / WEIGHTS_FILE, self.layout) as out, TensorReader([gguf]) as stream:
            self._fill(stream, out, used)
        graph = build_graph(
            self.weights, self.layout, self.model, profile=self.profile, activations=activations, producer="test"
        )
        self.graph.write_bytes(ir.to_proto(graph).SerializeToString(deterministic=True))

    def _fill(self, stream, out, config):
        slots = self.layout.slots
        for linear in self.weights.linears():
            self.profile.fill(linear, CheckpointRows(stream), self.layout, out, lambda count: None)
        for name, tensor in self.weights.vectors.items():
            out.write(slots[name], 0, float_rows(tensor, read_rows(stream, tensor))[0].astype("<f4"))
        freqs = self.header.tensors.get("rope_freqs.weight")
        factors = None if freqs is None else float_rows(freqs, read_rows(stream, freqs))[0]
        write_rope_tables(out, slots["rope.cos"], slots["rope.sin"], config, factors)

    def run(self, token_ids):
        """Return the graph's logits of a whole sequence."""
        return run_graph(self.graph, self.model, token_ids, self.profile)

    def check_steps(self, token_ids):
        """Return how a native graph compares with the reference, as a whole and step by step."""
        streams = run_steps(self.graph, self.model, token_ids, self.profile)
        logits = self.run(token_ids)
        with TensorReader([self._gguf]) as stream:
            reference, steps = reference_of(stream, gguf_source(self.header), self.config).logits_and_steps(
                token_ids, streams
            )
        return compare(reference, logits, "int8", compare_steps(streams, logits, steps))

    def reference(self, token_ids, dtype="float64"):
        """Return the reference's logits ``[len(token_ids), vocabulary]``."""
        with TensorReader([self._gguf]) as stream:
            return reference_of(stream, gguf_source(self.header), self.config, dtype=dtype).logits(token_ids)
