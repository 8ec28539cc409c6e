"""Runs a draft head: a session of its one operator over weights that lie where they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence as Items
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.mapped_weights import MappedFile
from edge_rt.ort.op_library import NativeLibrary, native_library
from edge_rt.ort.session import Session
from edge_rt.package.drafter import TrainedDrafter
from edge_rt.package.drafter_tensors import VOCABULARY
from edge_rt.package.op_list import MAX_HEAD_DEPTH
from edge_rt.package.reader import Package
from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.head_graph import HeadShape, block_inputs, head_graph
from edge_rt.runtime.speculation.head_matrices import (
    ReducedHead,
    TargetMatrices,
    misfits_refused,
)
from edge_rt.runtime.speculation.source import NO_GUESSES, Forest, ForestSource

Array = npt.NDArray[Any]

PROMPT_ROWS: Final = 1024
"""Default of the most distinct tokens of a prompt that are added to the reduced head."""
_FRONTIER: Final = 8
"""Nodes whose children the operator looks for together."""


class Guesses(NamedTuple):
    """Nodes of a tree, the most probable first.

    Attributes:
        parents: for every node the earlier one that it follows, -1 for the last known token.
        depths: from 1.
    """

    ids: list[int]
    parents: list[int]
    depths: list[int]
    log_probs: list[float]


@dataclass(frozen=True)
class HeadWeights:
    """Tensors of a head and of its target, C-contiguous; matrices are tiles, uint8 ``[tiles, units, bytes]``.

    Attributes:
        lm_head: the target's LM head, in ``HeadShape.head``; rows of it are copied.
        give_back: see ``TargetMatrices``.
        fc: of the first product, ``[hidden, 2 hidden]``.
        state_norm, token_norm, output_norm: float32 ``[hidden]``.
        head_ids: int32, ascending: the tokens that can always be guessed.
    """

    embedding: Array
    lm_head: Array
    fc: Array
    state_norm: Array
    token_norm: Array
    output_norm: Array
    blocks: tuple[tuple[Array, Array, Array], ...]
    head_ids: Array
    give_back: Callable[[], None] | None = None


class HeadRunner:
    """One head: a state and a token in, a tree of guesses out.

    Args:
        weights: its tensors and the target's; they must live as long as the runner.
        isa: instruction set, None for the best.
        library: library of edge-rt's operators; None is the installed one.
        beside: a runner of the same shape and target, whose graph and reduced head it shares.

    Attributes:
        state: float32 ``[hidden]``, the last state that was given.
    """

    def __init__(
        self,
        shape: HeadShape,
        weights: HeadWeights,
        *,
        threads: int,
        prompt_rows: int = PROMPT_ROWS,
        isa: str | None = None,
        library: NativeLibrary | None = None,
        switch: StopSwitch | None = None,
        beside: HeadRunner | None = None,
    ) -> None:
        self._shape, self._weights = shape, weights
        self._switch = switch or StopSwitch()
        self.state = np.zeros(shape.hidden, np.float32)
        self._token, self._limits, self._last = np.zeros(1, np.int64), np.ones(3, np.int32), (1, 1, 1)
        self._tree = [np.zeros(shape.nodes, kind) for kind in (np.int32, np.int32, np.int32, np.float32)]
        self._count = np.zeros(1, np.int32)
        # Behind a pass the caches are cold, and memoryviews need less of the interpreter than numpy's indexing does.
        self._token_view, self._count_view = self._token.data, self._count.data
        self._views: list[Any] = [values.data for values in self._tree]
        if beside is None:
            library = library or native_library()
            self._reduced = ReducedHead(
                shape,
                weights.lm_head,
                weights.head_ids,
                prompt_rows=prompt_rows,
                library=library,
                give_back=weights.give_back,
            )
            self._session = Session(head_graph(shape), threads=threads, profile="native", isa=isa, library=library)
        else:
            assert beside._shape == shape, "another shape"
            self._reduced, self._session = beside._reduced, beside._session
        self._binding = self._session.binding()
        with misfits_refused():
            self._bind()
            # Tensors meet the graph here, and not in the middle of an answer.
            self.grow(self.state, 0, 1, 1, 1)

    def grow(self, state: Array, token_id: int, nodes: int, width: int, depth: int) -> Guesses:
        """Return the best nodes of the tree behind a state and a token.

        Args:
            state: float32 ``[hidden]``, the model's hidden state at the row that chose the token; it is copied to
                ``self.state``, unless it is that.
            nodes: most nodes, at least 1; the tree of fewer is the beginning of that of more.
            width: most guesses after a node, 1 to 64.
            depth: steps of the head, 1 to 8.
        """
        if state is not self.state:
            self.state[:] = state
        if (nodes, width, depth) != self._last:
            self._limits[:] = self._last = (nodes, width, depth)
        self._token_view[0] = token_id
        self._binding.run(self._switch)
        count = self._count_view[0]
        ids, parents, depths, log_probs = self._views
        return Guesses(
            ids[:count].tolist(), parents[:count].tolist(), depths[:count].tolist(), log_probs[:count].tolist()
        )

    def add_tokens(self, token_ids: Items[int]) -> None:
        """Let the head guess these tokens, too, instead of those added before; the last ones if they are too many."""
        self._reduced.add_tokens(token_ids)
        self.take_tokens()

    def take_tokens(self) -> None:
        """Let the head guess the tokens that were added to the reduced head, which another runner may share."""
        self._binding.bind_input("more_head", self._reduced.more_tiles)
        self._binding.bind_input("more_ids", self._reduced.more_ids)

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights, reduced heads and the work space of the largest step."""
        rows = min(_FRONTIER, self._shape.nodes)
        numbers = rows * (2 * self._shape.hidden + self._shape.intermediate + self._reduced.columns)
        states = (1 + (MAX_HEAD_DEPTH - 1) * rows) * self._shape.hidden
        return self.weights_bytes + self._reduced.memory_bytes + 4 * (numbers + states)

    @property
    def weights_bytes(self) -> int:
        """Bytes of the head's own matrices."""
        blocks = (array for block in self._weights.blocks for array in block)
        return sum(array.nbytes for array in (self._weights.fc, *blocks))

    def _bind(self) -> None:
        weights = self._weights
        blocks = [array for block in weights.blocks for array in block]
        fixed: dict[str, Array] = {
            "hidden": self.state[None],
            "token": self._token,
            "embedding": weights.embedding,
            "fc": weights.fc,
            "state_norm": weights.state_norm,
            "token_norm": weights.token_norm,
            "output_norm": weights.output_norm,
            "head": self._reduced.tiles,
            "head_ids": self._reduced.ids,
            "limits": self._limits,
            **dict(zip(block_inputs(self._shape.blocks), blocks, strict=True)),
        }
        for name, array in fixed.items():
            self._binding.bind_input(name, array)
        self.take_tokens()
        for name, array in zip(("ids", "parents", "depths", "log_probs"), self._tree, strict=True):
            self._binding.bind_output(name, array)
        self._binding.bind_output("count", self._count)


BOUNDS: Final = (0.06, 0.12, 0.2, 0.32, 0.5, 0.7, 0.9)
"""Between the probabilities of two kinds."""
_LEVELS: Final = len(BOUNDS) + 1
_DEPTHS: Final = 3
_LOG_BOUNDS: Final = tuple(np.log(BOUNDS).tolist())


class HeadSource(ForestSource):
    """Guesses what a head finds likely after the last accepted token, and after its own guesses.

    The head runs once in a step, when the guesses are asked for. It starts from the hidden state of the row that chose
    the last token, which ``observe`` finds in the outputs; without it, as in the first step behind a cache that was
    restored, nothing is guessed. A kind is a depth (1, 2, 3 and more) and a level of the head's own probability.
    """

    name = "head"
    num_kinds = _DEPTHS * _LEVELS

    def __init__(self, runner: HeadRunner, *, nodes: int = 8, width: int = 8, depth: int = 1) -> None:
        self._runner = runner
        self._limits = (nodes, width, depth)
        # Set by ``observe`` with the runner's state; ``extend`` must add these tokens for it to hold.
        self._emitted: tuple[int, ...] = ()
        self._is_known = False

    def prior(self, kind: int) -> float:
        """Return the middle of the kind's probabilities, as if the head were always right about them."""
        bounds, level = (0.0, *BOUNDS, 1.0), kind % _LEVELS
        return (bounds[level] + bounds[level + 1]) / 2

    def begin(self, token_ids: Items[int]) -> None:
        """Add the known tokens to what the head can guess; until the next step there is no state to guess from."""
        self._forget()
        self._runner.add_tokens(token_ids)

    def extend(self, token_ids: Items[int]) -> None:
        """Move past emitted tokens; other ones than those observed have no known state."""
        self._is_known = bool(self._emitted) and tuple(token_ids) == self._emitted

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Keep the hidden state of the last accepted row."""
        del draft, context
        self._forget()
        if outputs.hidden is not None:
            row = accepted.path[-1] - ROOT if accepted.path else 0
            self._runner.state[:] = outputs.hidden[row]
            self._emitted = accepted.token_ids

    def forest(self) -> Forest:
        """Run the head; return its guesses, none where the last state is not known."""
        if not self._is_known:
            return NO_GUESSES
        found = self._runner.grow(self._runner.state, self._emitted[-1], *self._limits)
        kinds = [
            (min(depth, _DEPTHS) - 1) * _LEVELS + bisect_right(_LOG_BOUNDS, log_prob)
            for depth, log_prob in zip(found.depths, found.log_probs, strict=True)
        ]
        return Forest.of(found.ids, found.parents, kinds)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the head's weights, of its reduced matrices and of a step."""
        return self._runner.memory_bytes

    def _forget(self) -> None:
        self._emitted, self._is_known = (), False


MAX_NODES: Final = 8
"""Most guesses of a step; with the costs of rows measured on two processors, 3, 4 and 8 of them gave the same speed."""


@dataclass(frozen=True)
class DrafterJob:
    """What a trained drafter is loaded for.

    Attributes:
        prompt_rows: most tokens of a prompt that its reduced head may take in.
        isa: instruction set of the native operators; None is the best.
    """

    package: Package
    target: TargetMatrices
    drafter: TrainedDrafter
    draft_max: int
    prompt_rows: int
    threads: int
    isa: str | None


def open_head(job: DrafterJob) -> Callable[[], HeadSource]:
    """Load a trained head; return what makes a source of its guesses that has learned nothing."""
    shape = head_shape(job, min(MAX_NODES, job.draft_max))
    weights = head_weights(job.drafter, job.target, mapped_tensors(job.drafter))
    runner = HeadRunner(shape, weights, threads=job.threads, prompt_rows=job.prompt_rows, isa=job.isa)
    return lambda: HeadSource(runner, nodes=shape.nodes, width=shape.nodes)


def head_shape(job: DrafterJob, nodes: int) -> HeadShape:
    """Return sizes and formats of the heads of a drafter, whose trees have at most ``nodes`` nodes."""
    head, config = job.drafter.info.head, job.package.manifest.model
    return HeadShape(
        hidden=config.hidden_size,
        intermediate=head.intermediate_size,
        vocabulary=config.vocab_size,
        blocks=head.blocks,
        nodes=nodes,
        epsilon=head.epsilon,
        embedding=job.target.embedding_format,
        fc=head.formats["fc"],
        gate_up=head.formats["gate_up"],
        down=head.formats["down"],
        head=job.target.lm_head_format,
    )


def head_weights(
    drafter: TrainedDrafter, target: TargetMatrices, own: Mapping[str, Array], prefix: str = ""
) -> HeadWeights:
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
        give_back=target.give_back,
    )


def mapped_tensors(drafter: TrainedDrafter) -> dict[str, Array]:
    """Map the tensors of a drafter, read-only."""
    mapped = MappedFile(drafter.weights, drafter.weights_bytes)
    return {
        name: mapped.array(place.offset, place.length, np.dtype(place.dtype), place.shape)
        for name, place in drafter.info.head.tensors.items()
    }
