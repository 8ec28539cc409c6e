"""Loads a trained head: its own weights, and the embedding and LM head of its model, mapped where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_rt.errors import StorageError
from edge_rt.package.drafter import Drafter
from edge_rt.package.drafter_tensors import VOCABULARY
from edge_rt.runtime.drafters.head import HeadSource
from edge_rt.runtime.drafters.head_graph import HeadShape
from edge_rt.runtime.drafters.head_runner import HeadRunner, HeadWeights
from edge_rt.runtime.drafters.provider import DrafterJob
from edge_rt.runtime.drafters.source import Source
from edge_rt.runtime.drafters.target import target_matrices

Array = npt.NDArray[Any]

MAX_NODES: Final = 8
"""Most guesses of a step: on the processors measured, a draft with more nodes of one step does not pay."""


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
        drafter, package = job.drafter, job.package
        head, config = drafter.info.head, package.manifest.model
        target = target_matrices(package)
        own = _tensors(drafter)
        blocks = tuple(
            (own[f"block{i}.norm"], own[f"block{i}.gate_up.tiles"], own[f"block{i}.down.tiles"])
            for i in range(head.blocks)
        )
        shape = HeadShape(
            hidden=config.hidden_size,
            intermediate=head.intermediate_size,
            vocabulary=config.vocab_size,
            blocks=head.blocks,
            nodes=min(MAX_NODES, job.draft_max),
            epsilon=head.epsilon,
            embedding=target.embedding_format,
            fc=head.formats["fc"],
            gate_up=head.formats["gate_up"],
            down=head.formats["down"],
            head=target.lm_head_format,
        )
        weights = HeadWeights(
            embedding=target.embedding,
            lm_head=target.lm_head,
            fc=own["fc.tiles"],
            state_norm=own["state_norm"],
            token_norm=own["token_norm"],
            output_norm=own["output_norm"],
            blocks=blocks,
            head_ids=np.sort(own[VOCABULARY]),
        )
        self._nodes = shape.nodes
        self._runner = HeadRunner(shape, weights, threads=job.threads, prompt_rows=job.prompt_rows, isa=job.isa)

    @property
    def memory_bytes(self) -> int:
        """Bytes that it holds, mapped weights of its own included."""
        return self._runner.memory_bytes

    def source(self) -> Source:
        """Return a source that has learned nothing."""
        return HeadSource(self._runner, nodes=self._nodes, width=self._nodes)


def _tensors(drafter: Drafter) -> dict[str, Array]:
    mapped = _map(drafter.weights)
    return {
        name: mapped[place.offset : place.offset + place.length].view(np.dtype(place.dtype)).reshape(place.shape)
        for name, place in drafter.info.head.tensors.items()
    }


def _map(path: Path) -> Array:
    try:
        return np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be mapped.", f"{error}.", "Check the file, and the memory.") from error
