"""A trained head, or adapters of exits, as a drafter's folder: matrices of 4 bits in tiles, and what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edge_rt.export.weights.codes import Codes
from edge_rt.export.weights.tile_formats import TILE_FORMATS, TILE_ROWS
from edge_rt.export.weights.tiles import pack_rows
from edge_rt.package.drafter import (
    EXIT,
    HEAD,
    AcceptanceRecord,
    DrafterInfo,
    DraftTarget,
    ExitRecord,
    HeadInfo,
    TrainedDrafter,
    TrainingRecord,
)
from edge_rt.package.drafter_tensors import VOCABULARY, exit_prefix
from edge_rt.package.reader import Package
from edge_rt.package.writer import DrafterWriter
from edge_rt.train.head import BLOCK, DraftHead, codes_of
from edge_rt.train.learn import Acceptance

FORMAT: Final = "w4m"
"""Of all matrices: 4 bits over a minimum, 5 bits a weight with scales."""
FORMAT_VERSION: Final = 1


def head_tensors_of(net: DraftHead, prefix: str = "") -> dict[str, bytes]:
    """Return the tensors of a head as ``weights.bin`` holds them, but its vocabulary; ``prefix`` begins their names."""
    tensors: dict[str, npt.NDArray[Any]] = {
        "fc.tiles": _tiles(net.fc.detach()),
        "state_norm": _floats(net.state_norm),
        "token_norm": _floats(net.token_norm),
        "output_norm": _floats(net.output_norm),
    }
    for index, (norm, gate_up, down) in enumerate(zip(net.block_norms, net.gate_up, net.down, strict=True)):
        tensors[f"block{index}.norm"] = _floats(norm)
        tensors[f"block{index}.gate_up.tiles"] = _tiles(_alternating(gate_up.detach()))
        tensors[f"block{index}.down.tiles"] = _tiles(down.detach())
    return {f"{prefix}{name}": np.ascontiguousarray(array).tobytes() for name, array in tensors.items()}


@dataclass(frozen=True)
class TrainedAdapter:
    """What was trained for an exit.

    Attributes:
        acceptance: measured with weights of 4 bits.
    """

    layer: int
    net: DraftHead
    acceptance: Acceptance


@dataclass(frozen=True)
class Label:
    """What a drafter says about itself besides figures."""

    name: str
    producer: str


def write_drafter(
    out: Path,
    package: Package,
    net: DraftHead,
    kept: Tensor,
    acceptance: Acceptance,
    training: TrainingRecord,
    label: Label,
    *,
    force: bool,
) -> TrainedDrafter:
    """Write a head's folder, absent or complete.

    Args:
        kept: int64, ids of its reduced vocabulary, the most frequent first.
        acceptance: measured with weights of 4 bits.
    """
    info = _info(package, net, kept, acceptance, training, label)
    with DrafterWriter(out, force=force) as writer:
        return writer.publish(info, {**head_tensors_of(net), **_vocabulary(kept)})


def write_adapters(
    out: Path,
    package: Package,
    adapters: Sequence[TrainedAdapter],
    kept: Tensor,
    training: TrainingRecord,
    label: Label,
    *,
    force: bool,
) -> TrainedDrafter:
    """Write the folder of the adapters of exits, at least one; arguments and errors as of ``write_drafter``."""
    last = adapters[-1]
    records = tuple(ExitRecord(one.layer, *(round(share, 4) for share in one.acceptance.first)) for one in adapters)
    info = _info(package, last.net, kept, last.acceptance, training, label)
    tensors = _vocabulary(kept)
    for one in adapters:
        tensors |= head_tensors_of(one.net, exit_prefix(one.layer))
    with DrafterWriter(out, force=force) as writer:
        return writer.publish(dataclasses.replace(info, kind=EXIT, exits=records), tensors)


def _info(
    package: Package, net: DraftHead, kept: Tensor, acceptance: Acceptance, training: TrainingRecord, label: Label
) -> DrafterInfo:
    manifest, shape = package.manifest, net.shape
    return DrafterInfo(
        format_version=FORMAT_VERSION,
        producer=label.producer,
        name=label.name,
        kind=HEAD,
        target=DraftTarget.of(manifest),
        head=HeadInfo(
            blocks=shape.blocks,
            intermediate_size=shape.intermediate_size,
            epsilon=shape.epsilon,
            formats=dict.fromkeys(("fc", "gate_up", "down"), FORMAT),
            vocabulary_size=len(kept),
        ),
        training=training,
        acceptance=AcceptanceRecord(
            tokens=acceptance.anchors,
            positions=tuple(round(share, 4) for share in acceptance.by_position),
            top2=round(acceptance.first[1], 4),
            top4=round(acceptance.first[2], 4),
        ),
        license=manifest.license,
        files={},
    )


def _vocabulary(kept: Tensor) -> dict[str, bytes]:
    return {VOCABULARY: kept.numpy().astype("<i4").tobytes()}


def _tiles(weight: Tensor) -> npt.NDArray[Any]:
    codes, scale, least = codes_of(weight)
    rows, columns = weight.shape
    found = Codes(
        codes.reshape(rows, columns).numpy().astype(np.uint8),
        d=scale.reshape(rows, columns // BLOCK).half().numpy(),
        m=least.reshape(rows, columns // BLOCK).half().numpy(),
    )
    return pack_rows(found, TILE_FORMATS[FORMAT])


def _alternating(gate_up: Tensor) -> Tensor:
    """Return rows of gate and up, 16 of each in turn, as the kernels read them."""
    gate, up = (part.reshape(-1, TILE_ROWS, part.shape[1]) for part in gate_up.chunk(2))
    return torch.stack([gate, up], 1).reshape(gate_up.shape)


def _floats(vector: Tensor) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = vector.detach().numpy().astype("<f4")
    return found
