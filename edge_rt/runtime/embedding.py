"""Embeddings of texts: passes of a graph without a head over the model's own cache, several texts in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_rt.errors import ConfigError, ContextOverflow
from edge_rt.package.manifest import LAST, Manifest, Pooling
from edge_rt.runtime.cache.kv_cache import KVCache, Reservation
from edge_rt.runtime.cache.row_pool import PooledCache, RowPool, in_blocks
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.forward.runner import Runner
from edge_rt.text.tokenizer import Tokenizer

Array = npt.NDArray[Any]


def require_pooling(manifest: Manifest) -> Pooling:
    """Return how a package makes embeddings; refuse one that makes none."""
    if manifest.pooling is None:
        raise ConfigError(
            f"{manifest.model.name} gives no embeddings.",
            "Its package does not say which states of tokens a text's embedding is made of.",
            "Load a model that is made for them, such as qwen3-embedding-0.6b, exported for the native op profile.",
        )
    return manifest.pooling


def embedding_ids(
    texts: Iterable[str | Sequence[int]],
    tokenizer: Tokenizer,
    pooling: Pooling,
    prompt: str | None,
    most: int,
    *,
    truncate: bool,
) -> list[list[int]]:
    """Return the token ids of texts, with the prompt in front and the end token behind.

    Args:
        texts: or their token ids, which may have the end token.
        prompt: name of one of the package's prompts; None: none.
        most: tokens of context.
        truncate: whether a text that is longer loses its end; else it is refused.
    """
    prompts = pooling.prompts
    if prompt is not None and prompt not in prompts:
        raise ConfigError(
            f"The model has no prompt {prompt!r:.60}.",
            f"It has {', '.join(map(repr, prompts)) or 'none'}.",
            "Choose one of them, or put your own in front of the texts.",
        )
    before = "" if prompt is None else prompts[prompt]
    start = tokenizer.encode_prompt(before) if before else []
    ends = [] if pooling.end_token_id is None else [pooling.end_token_id]
    found = []
    for number, text in enumerate(texts):
        ids = tokenizer.encode_prompt(before + text) if isinstance(text, str) else [*start, *text]
        if not isinstance(text, str):
            _check_ids(number, ids, tokenizer.vocab_size)
            ids = ids[:-1] if ends and ids[-1:] == ends else ids
        if len(ids) + len(ends) > most:
            if not truncate:
                way = f"Text {number} is too long: cut it, load the model with a larger ctx, or give truncate=True."
                raise ContextOverflow(len(ids) + len(ends), 0, most, way=way)
            ids = ids[: most - len(ends)]
        if not ids and not ends:
            raise ConfigError(f"Text {number} is empty.", "It has no tokens.", "Leave it out.")
        found.append([*ids, *ends])
    return found


def _check_ids(number: int, ids: Sequence[int], count: int) -> None:
    if not all(0 <= one < count for one in ids):
        raise ConfigError(
            f"Text {number} has tokens that the model has not.",
            f"Its tokens have the ids 0 to {count - 1}.",
            "Give texts, or ids of this model's tokenizer.",
        )


@dataclass
class _Text:
    """A text under way: what is computed of it, and the sum of its states."""

    number: int
    token_ids: Sequence[int]
    cache: KVCache
    states: Array | None = None
    done: int = 0

    def add(self, states: Array) -> None:
        """Add states, row by row: so the sum does not depend on how a text was cut into passes."""
        for row in states.astype(np.float64):
            self.states = row if self.states is None else self.states + row

    def part(self, count: int, *, wants_all: bool, has_map: bool) -> Part:
        ids = self.token_ids[self.done : self.done + count]
        maps = (self.cache.row_map, self.cache.window_map) if has_map else (None, None)
        num_logits = len(ids) if wants_all else 1
        return Part(ids, self.done, num_logits, row_map=maps[0], states=self.cache.states, window_map=maps[1])


class Embedder:
    """Makes embeddings with the passes of a graph that gives states.

    Args:
        caches: over which texts of one pass are computed, one each; with one, texts are computed one after the other.
        most_rows: of a pass.
        pool: whose rows the caches share, which a pass is told by maps; None: one cache has its own.
    """

    def __init__(
        self, runner: Runner, pooling: Pooling, caches: Sequence[KVCache], *, most_rows: int, pool: RowPool | None
    ) -> None:
        self._runner, self._pooling, self._caches = runner, pooling, caches
        self._most_rows, self._pool = most_rows, pool

    def embed(
        self, texts: Sequence[Sequence[int]], size: int, on_progress: Callable[[int, int], None] | None = None
    ) -> Array:
        """Return float32 ``[texts, size]``; the caches are empty before and afterwards.

        Args:
            texts: token ids, at least one each.
            on_progress: called with the texts that are done, and with all.
        """
        result = np.empty((len(texts), size), np.float32)
        # Long ones first: then passes are full to the end.
        waiting = sorted(range(len(texts)), key=lambda number: (len(texts[number]), -number))
        for cache in self._caches:
            _clear(cache)
        free, running = list(self._caches), list[_Text]()
        try:
            while waiting or running:
                while waiting and free and self._has_room([*running, texts[waiting[-1]]]):
                    number = waiting.pop()
                    running.append(_Text(number, texts[number], free.pop()))
                self._pass(running)
                for text in [one for one in running if one.done == len(one.token_ids)]:
                    running.remove(text)
                    free.append(text.cache)
                    _clear(text.cache)
                    result[text.number] = self._pooled(text)
                    if on_progress is not None:
                        on_progress(len(texts) - len(waiting) - len(running), len(texts))
        finally:
            for cache in self._caches:
                _clear(cache)
        return result

    def _has_room(self, texts: Sequence[_Text | Sequence[int]]) -> bool:
        """Return whether the pool has rows for all of these texts; one alone always fits."""
        blocks = sum(in_blocks(len(text.token_ids if isinstance(text, _Text) else text)) for text in texts)
        return self._pool is None or len(texts) == 1 or blocks <= self._pool.num_blocks

    def _pass(self, running: Sequence[_Text]) -> None:
        """Compute the next tokens of texts; those that came first have first claim on the rows of the pass."""
        wants_all, room = self._pooling.mode != LAST, self._most_rows
        parts, under_way = list[Part](), list[tuple[_Text, Reservation]]()
        with ExitStack() as stack:
            for text in running:
                if count := min(len(text.token_ids) - text.done, room):
                    under_way.append((text, stack.enter_context(text.cache.reserve(count))))
                    parts.append(text.part(count, wants_all=wants_all, has_map=self._pool is not None))
                    room -= count
            for (text, reserved), part, outputs in zip(under_way, parts, self._runner.forward_many(parts), strict=True):
                reserved.commit(list(part.token_ids))
                text.done += len(part.token_ids)
                if wants_all or text.done == len(text.token_ids):
                    text.add(outputs.logits)

    def _pooled(self, text: _Text) -> Array:
        assert text.states is not None
        found = text.states if self._pooling.mode == LAST else text.states / len(text.token_ids)
        if self._pooling.normalises:
            length = float(np.sqrt(np.square(found).sum()))
            found = found / max(length, 1e-12)
        return np.asarray(found, np.float32)


def _clear(cache: KVCache) -> None:
    """Forget a cache's tokens; rows of a pool go back to it, for the other texts."""
    if isinstance(cache, PooledCache):
        cache.release()
    else:
        cache.truncate(0)
