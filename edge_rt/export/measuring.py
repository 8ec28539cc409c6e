"""Settles the types of a package's matrices that depend on what their errors would do to the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from edge_rt.export.checkpoint import Checkpoint
from edge_rt.export.families.llama_gradients import LlamaGradients
from edge_rt.export.families.llama_graph import collect_weights
from edge_rt.export.quantise.limits import LimitedMatrices
from edge_rt.export.quantise.sensitivity import measured_choice
from edge_rt.export.sources.tensor_reader import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.native import tile_bytes
from edge_rt.export.weights.weights_file import PAGE_BYTES, WeightsLayout

MEASURED_TOKENS: Final = 256
"""Tokens of the calibration text that the model runs on, and back."""


def settle_types(checkpoint: Checkpoint, layout: WeightsLayout, on_matrix: Callable[[int, int], None]) -> Checkpoint:
    """Return the checkpoint with types that were measured, if its choice asks for that.

    Args:
        checkpoint: what is known about it.
        layout: of the package with the types so far.
        on_matrix: called with the number of matrices that are done, and of all.

    Raises:
        ConfigError: the model does not fit the size that was asked for.
        InvalidModelFile: a value is not finite.
        UnsupportedModel: a value does not fit a type with codes, or the calibration text makes activations that are not
            finite.
        StorageError: the checkpoint cannot be read.
    """
    choice, source = checkpoint.choice, checkpoint.source
    if not choice.rivals and not choice.ladders:
        return checkpoint
    on_matrix(0, len(choice.ladders))
    with TensorReader(source.paths) as stream:
        matrices = LimitedMatrices(CheckpointMatrices(stream, source.tensors), choice.types)
        influences = {}
        if checkpoint.calibration is not None:
            gradients = LlamaGradients(matrices, source, checkpoint.config)
            influences = gradients.influences(checkpoint.calibration.token_ids[:MEASURED_TOKENS])
        budget = choice.size - _other_bytes(checkpoint, layout)
        choice = measured_choice(choice, source.tensors, matrices, influences, budget, on_matrix)
    weights = collect_weights(source, checkpoint.config, checkpoint.profile, choice.types)
    return dataclasses.replace(checkpoint, choice=choice, weights=weights)


def _other_bytes(checkpoint: Checkpoint, layout: WeightsLayout) -> int:
    """Return the bytes of ``weights.bin`` that no choice of types changes, and what rounding to pages may add."""
    types, tensors = checkpoint.choice.types, checkpoint.source.tensors
    chosen = sum(tile_bytes(tensors[name], types[name]) for name in checkpoint.choice.ladders)
    return layout.size - chosen + PAGE_BYTES * len(list(checkpoint.weights.linears()))
