"""Runs a block of a checkpoint that predicts further ahead (``edge_rt.package.ahead``) behind its model's passes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPackage
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.mapped_weights import MappedWeights
from edge_rt.ort.op_library import NativeLibrary, native_library
from edge_rt.ort.session import Session
from edge_rt.package.ahead import KV_FORMAT_NAME
from edge_rt.package.op_list import TILE_ROWS
from edge_rt.package.reader import Package
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.decode.draft import ROOT, Accepted
from edge_rt.runtime.forward.io_binding_ahead import LARGEST_PASS, AheadIOBinding
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.forward.outputs import Outputs, TopTokens
from edge_rt.runtime.forward.runner import ModelRunner
from edge_rt.runtime.speculation.head_matrices import TargetMatrices, target_matrices

Array = npt.NDArray[Any]


class AheadNorms(NamedTuple):
    """Norms of the stream: the model's final one, and the block's own; float32 ``[hidden_size]``."""

    model_norm: Array
    own_norm: Array


class AheadModel:
    """A block that follows the passes of its model, as a ``Follower``.

    It knows rows, each of a state and the token behind it, whose keys and values its cache holds in their order. What
    it did not see, such as rows that came from a file, it does without: they are missing among its rows.

    Args:
        target: of the LM head, rows of which are copied; None: all tokens can be guessed.
    """

    def __init__(
        self,
        runner: ModelRunner,
        io_binding: AheadIOBinding,
        cache: KVCache,
        norms: AheadNorms,
        *,
        vocab_size: int,
        target: TargetMatrices | None,
        library: NativeLibrary,
    ) -> None:
        self.known_tokens = vocab_size
        self._runner, self._io, self._cache, self._norms = runner, io_binding, cache, norms
        self._target, self._library = target, library
        self._known: list[int] = []
        # Of every row: the position of its state, and the token behind it. The first ones are in the cache; states of
        # the others wait.
        self._places: list[int] = []
        self._tokens: list[int] = []
        self._waiting = np.zeros((LARGEST_PASS, io_binding.model.hidden_size), np.float32)
        self._computed = 0
        # The last state whose token is not known; the last row that was computed, its state and what the block made.
        self._open: tuple[int, Array] | None = None
        self._last_place = -1
        self._last = np.zeros(io_binding.model.hidden_size, np.float32)
        self._guessed = np.zeros(io_binding.model.hidden_size, np.float32)

    def begin(self, token_ids: Items[int]) -> None:
        """Start a text; rows that are of it stay."""
        self._known = list(token_ids)
        count = bisect_left(self._places, len(self._known) - 1)
        if any(
            self._known[place + 1] != token for place, token in zip(self._places[:count], self._tokens, strict=False)
        ):
            count = 0
        self._keep(count)
        self._add_to_head(token_ids)

    def extend(self, token_ids: Items[int]) -> None:
        """Add known tokens."""
        self._known += token_ids

    def forget(self) -> None:
        """Forget all rows: the cache was emptied."""
        self._keep(0)
        self._open = None

    def room(self) -> int:
        """Return how many tokens it can draft: none where the last state is not known."""
        if not self._places or self._places[-1] != len(self._known) - 2:
            return 0
        if self._computed == len(self._places) and self._places[-1] != self._last_place:
            return 0
        return self._cache.capacity - len(self._places) + 1

    def behind(self) -> int:
        """Return how many rows it has to compute before the last one."""
        return max(0, len(self._places) - self._computed - 1)

    def passed(self, part: Part, outputs: Outputs) -> None:
        """Take in the rows of a pass that are certain: those before its drafts, and the one that these follow."""
        stream, start = outputs.stream, part.start
        if stream is None or part.logit_rows is not None:
            return
        certain = len(part.token_ids) - part.num_logits + 1
        # What the model computes again is another text, or the same again.
        count = bisect_left(self._places, start - 1)
        if count < len(self._places) and (self._places[count], self._tokens[count]) == (start - 1, part.token_ids[0]):
            count += 1
        elif self._open is not None and self._open[0] == start - 1:
            self._keep(count)
            self._add(start - 1, [part.token_ids[0]], self._open[1][None])
            count = len(self._places)
        self._keep(count)
        self._add(start, part.token_ids[1:certain], stream)
        self._open = (start + certain - 1, stream[certain - 1].copy())

    def observe(self, accepted: Accepted, outputs: Outputs) -> None:
        """Take in the rows that led to accepted tokens."""
        stream, at = outputs.stream, outputs.stream_rows
        if stream is None or at is None or self._open is None:
            return
        place = self._open[0]
        nodes = (ROOT, *accepted.path)[: len(accepted.token_ids)]
        self._add(place, accepted.token_ids[: len(nodes)], stream[[at[node - ROOT] for node in nodes]])
        self._open = None

    def follow(self, drafted: Items[int]) -> TopTokens:
        """Compute what is new; see ``Follower.follow``."""
        if drafted:
            self._cache.truncate(self._computed + len(drafted) - 1)
            outputs = self._run(drafted[-1:], self._guessed[None], self._norms.own_norm)
        else:
            if self._computed == len(self._places):
                # Its outputs are gone.
                self._computed -= 1
                self._waiting[0] = self._last
            outputs = self._compute()
        assert outputs.hidden is not None, "the graph returns what the block gives"
        assert outputs.top is not None, "native graphs compute the most likely tokens"
        self._guessed[:] = outputs.hidden[-1]
        top = outputs.top
        return TopTokens(self._io.token_ids[top.ids], top.logits, top.log_sum_exp)

    @property
    def memory_bytes(self) -> int:
        """Bytes of its cache, rows of the head and states."""
        return self._cache.used_bytes + self._io.more_tiles.nbytes + 2 * self._waiting.nbytes

    def _keep(self, count: int) -> None:
        """Forget all rows but the first ones."""
        del self._places[count:], self._tokens[count:]
        if count < self._computed:
            self._computed = count
        self._cache.truncate(min(self._computed, self._cache.length))

    def _add(self, place: int, token_ids: Items[int], states: Array) -> None:
        """Add rows of states from a position on, and the tokens behind them."""
        done = 0
        while done < len(token_ids):
            waiting = len(self._places) - self._computed
            if waiting == LARGEST_PASS:
                self._compute()
                waiting = 0
            count = min(LARGEST_PASS - waiting, len(token_ids) - done)
            if len(self._places) + count >= self._cache.capacity:
                self._keep(0)
                return
            self._waiting[waiting : waiting + count] = states[done : done + count]
            self._places += range(place + done, place + done + count)
            self._tokens += token_ids[done : done + count]
            done += count

    def _compute(self) -> Outputs:
        """Compute the rows that wait."""
        tokens = self._tokens[self._computed :]
        self._cache.truncate(self._computed)
        outputs = self._run(tokens, self._waiting[: len(tokens)], self._norms.model_norm)
        self._computed += len(tokens)
        self._last[:] = self._waiting[len(tokens) - 1]
        self._last_place = self._places[-1]
        return outputs

    def _run(self, token_ids: Items[int], states: Array, norm: Array) -> Outputs:
        self._io.stream[: len(token_ids)] = states
        self._io.stream_norm[:] = norm
        try:
            with self._cache.reserve(len(token_ids)) as rows:
                outputs = self._runner.forward(token_ids, rows.start, 1)
                rows.commit(token_ids)
        finally:
            # An interrupt may come at the end of the block as well.
            self._cache.end_pass()
        return outputs

    def _add_to_head(self, token_ids: Items[int]) -> None:
        """Copy the rows of the LM head of tokens that could not be guessed; the last ones if they are too many."""
        tiles = self._io.more_tiles
        if self._target is None or not len(tiles):
            return
        first = len(self._io.token_ids) - TILE_ROWS * len(tiles)
        backwards = np.asarray(token_ids, np.int64)[::-1]
        distinct, at = np.unique(backwards, return_index=True)
        new = np.flatnonzero(distinct >= first)
        new = new[np.argsort(at[new])][: TILE_ROWS * len(tiles)]
        ids = np.sort(distinct[new]).astype(np.int32)
        sizes = (self.known_tokens, self._io.model.hidden_size)
        into = tiles[: -(-len(ids) // TILE_ROWS)]
        self._library.gather_rows(self._target.lm_head_format, self._target.lm_head, sizes, ids, into)
        if self._target.give_back is not None:
            self._target.give_back()
        self._io.take_more(ids)


class OpenedAhead(NamedTuple):
    """A block that is open, and what its passes run on."""

    model: AheadModel
    runner: ModelRunner
    io_binding: AheadIOBinding
    cache: KVCache


def open_ahead_model(
    package: Package,
    weights: MappedWeights,
    session: Session,
    capacity: int,
    switch: StopSwitch,
    *,
    kv_format: str = KV_FORMAT_NAME,
) -> OpenedAhead:
    """Open the block of a package that has one.

    Args:
        weights: of the package.
        session: of the block's graph.
        capacity: positions of a text.
        kv_format: of its cache.
    """
    manifest = package.manifest
    info, decoder = manifest.ahead, manifest.decoder
    assert info is not None, manifest.op_profile
    assert decoder is not None, manifest.op_profile
    target = target_matrices(package, weights, is_resident=True) if info.more_rows(decoder) else None
    tiles = (0, 0) if target is None else (target.lm_head.shape[1], target.lm_head.shape[2])
    io_binding = AheadIOBinding(decoder, info, capacity, tiles, kv_format=kv_format)
    places = {**package.tensors[info.graph], **package.tensors[manifest.segments[-1].graph]}
    norms = []
    for name in ("final_norm", "ahead.output_norm"):
        place = places.get(name)
        if place is None or place.length != 4 * decoder.hidden_size:
            raise InvalidPackage(
                "The block that predicts ahead does not fit the model.",
                f"{name} is at {place}, {decoder.hidden_size} numbers are wanted.",
                "Export or pull the model again.",
            )
        norms.append(weights.array(place.offset, place.length, np.float32, (decoder.hidden_size,)))
    runner, cache = ModelRunner(session, io_binding, switch), io_binding.open_cache()
    model = AheadModel(
        runner,
        io_binding,
        cache,
        AheadNorms(*norms),
        vocab_size=decoder.vocab_size,
        target=target,
        library=native_library(),
    )
    return OpenedAhead(model, runner, io_binding, cache)
