"""Loads a trained head: its own weights, and the embedding and LM head of its model, mapped where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.package.drafter import Drafter
from edge_rt.package.drafter_tensors import VOCABULARY
from edge_rt.runtime.drafters.head import HeadSource
from edge_rt.runtime.drafters.head_graph import HeadShape
from edge_rt.runtime.drafters.head_runner import HeadRunner, HeadWeights
from edge_rt.runtime.drafters.mapped_file import map_bytes
from edge_rt.runtime.drafters.provider import DrafterJob
from edge_rt.runtime.drafters.source import Source
from edge_rt.runtime.drafters.target import TargetMatrices, target_matrices

Array = npt.NDArray[Any]

MAX_NODES: Final = 8
"""Most guesses of a step; with the costs of rows measured on two processors, 3, 4 and 8 of them gave the same speed."""


class HeadProvider:
    """A trained head, loaded.

    Args:
        job: the drafter, and what it is loaded for.

    Raises:
        ConfigError: the package does not have what the head needs.
        InvalidPackage: the head does not fit it.
        StorageError: a file cannot be mapped.
    """

    name = "head"

    def __init__(self, job: DrafterJob) -> None:
        target = target_matrices(job.package)
        shape = head_shape(job, target, min(MAX_NODES, job.draft_max))
        weights = head_weights(job.drafter, target, mapped_tensors(job.drafter))
        self._nodes = shape.nodes
        self._runner = HeadRunner(shape, weights, threads=job.threads, prompt_rows=job.prompt_rows, isa=job.isa)

    @property
    def memory_bytes(self) -> int:
        """Bytes that it holds, mapped weights of its own included."""
        return self._runner.memory_bytes

    def source(self) -> Source:
        """Return a source that has learned nothing."""
        return HeadSource(self._runner, nodes=self._nodes, width=self._nodes)


def head_shape(job: DrafterJob, target: TargetMatrices, nodes: int) -> HeadShape:
    """Return sizes and formats of the heads of a drafter, whose trees have at most ``nodes`` nodes."""
    head, config = job.drafter.info.head, job.package.manifest.model
    return HeadShape(
        hidden=config.hidden_size,
        intermediate=head.intermediate_size,
        vocabulary=config.vocab_size,
        blocks=head.blocks,
        nodes=nodes,
        epsilon=head.epsilon,
        embedding=target.embedding_format,
        fc=head.formats["fc"],
        gate_up=head.formats["gate_up"],
        down=head.formats["down"],
        head=target.lm_head_format,
    )


def head_weights(drafter: Drafter, target: TargetMatrices, own: Mapping[str, Array], prefix: str = "") -> HeadWeights:
    """Return the tensors of a head: its own, whose names begin with ``prefix``, and those of its target."""
    blocks = tuple(
        (own[f"{prefix}block{i}.norm"], own[f"{prefix}block{i}.gate_up.tiles"], own[f"{prefix}block{i}.down.tiles"])
        for i in range(drafter.info.head.blocks)
    )
    return HeadWeights(
        embedding=target.embedding,
        lm_head=target.lm_head,
        fc=own[f"{prefix}fc.tiles"],
        state_norm=own[f"{prefix}state_norm"],
        token_norm=own[f"{prefix}token_norm"],
        output_norm=own[f"{prefix}output_norm"],
        blocks=blocks,
        head_ids=np.sort(own[VOCABULARY]),
    )


def mapped_tensors(drafter: Drafter) -> dict[str, Array]:
    """Map the tensors of a drafter, read-only.

    Raises:
        StorageError: the file cannot be mapped.
    """
    mapped = map_bytes(drafter.weights)
    return {
        name: mapped[place.offset : place.offset + place.length].view(np.dtype(place.dtype)).reshape(place.shape)
        for name, place in drafter.info.head.tensors.items()
    }
