"""Settles the types of a package's matrices that depend on what their errors would do to the model."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from edge_rt.export.checkpoint import Checkpoint
from edge_rt.export.decoder.weights import collect_weights
from edge_rt.export.quantise.decision import MEASURED_TOKENS
from edge_rt.export.quantise.limits import LimitedMatrices
from edge_rt.export.quantise.sensitivity import measured_choice, require_budget
from edge_rt.export.reference.gradients import DecoderGradients
from edge_rt.export.sources.tensor_reader import TensorReader
from edge_rt.export.weights.matrices import CheckpointMatrices
from edge_rt.export.weights.native import tile_bytes
from edge_rt.export.weights.weights_file import (
    PAGE_ALIGNED_FROM_BYTES,
    PAGE_BYTES,
    SMALL_ALIGNMENT_BYTES,
    WeightsLayout,
)


class OnStep(Protocol):
    """Is told how far measuring is."""

    def __call__(self, done: int, total: int, message: str = "") -> None:
        """Take the number of steps that are done, and of all; what begins now, in words."""


def require_least_size(checkpoint: Checkpoint, layout: WeightsLayout) -> None:
    """Refuse a size that the model does not fit with the types of fewest bits."""
    size = checkpoint.choice.size
    require_budget(_changing_bytes(checkpoint), size - _other_bytes(checkpoint, layout), size)


def settle_types(checkpoint: Checkpoint, layout: WeightsLayout, on_step: OnStep) -> Checkpoint:
    """Return the checkpoint with types that were measured, if its choice asks for that."""
    choice, source = checkpoint.choice, checkpoint.source
    if not choice.rivals and not choice.ladders:
        return checkpoint
    layers = 2 * checkpoint.decoder.num_layers if checkpoint.calibration is not None else 0
    matrices_count = len(choice.ladders) or sum(len(group.names) for group in choice.rivals)
    total = layers + matrices_count
    on_step(0, total, "measuring which matrices need more bits")
    with TensorReader(source.files) as stream:
        matrices = LimitedMatrices(CheckpointMatrices(stream, source.tensors), choice.types)
        influences = {}
        if checkpoint.calibration is not None:
            gradients = DecoderGradients(matrices, source, checkpoint.decoder)
            tokens = checkpoint.calibration.token_ids[:MEASURED_TOKENS]
            influences = gradients.influences(tokens, on_layer=lambda done: on_step(done, total))
        budget = choice.size - _other_bytes(checkpoint, layout)
        choice = measured_choice(
            choice,
            source.tensors,
            matrices,
            influences,
            budget,
            lambda done, _: on_step(layers + done, total),
        )
    on_step(total, total)
    weights = collect_weights(source, checkpoint.decoder, checkpoint.profile, choice.types)
    return dataclasses.replace(checkpoint, choice=choice, weights=weights)


def _other_bytes(checkpoint: Checkpoint, layout: WeightsLayout) -> int:
    """Return the bytes of ``weights.bin`` that no choice of types changes, and what other gaps between may add."""
    # With 8 bits a matrix takes twice as many bytes at most, and then may begin at a page.
    gaps = sum(
        PAGE_BYTES if 2 * slot.nbytes >= PAGE_ALIGNED_FROM_BYTES else SMALL_ALIGNMENT_BYTES
        for slot in layout.slots.values()
    )
    return layout.size - _changing_bytes(checkpoint) + gaps


def _changing_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the matrices whose types are to be measured, in those that they have so far."""
    types, tensors = checkpoint.choice.types, checkpoint.source.tensors
    return sum(tile_bytes(tensors[name], types[name]) for name in checkpoint.choice.ladders)
