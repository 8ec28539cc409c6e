"""The sources that draft for the answers of one slot: made when they are asked for, within the memory plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edge_rt.errors import ReferenceBudgetExceeded
from edge_rt.runtime.speculation.library import DraftLibrary
from edge_rt.runtime.speculation.source import AnySource
from edge_rt.runtime.speculation.text_sources import (
    MAX_CONTEXTS,
    MAX_TOKENS,
    MIN_TOKENS,
    NativeRecyclingSource,
    NativeReferenceSource,
    NativeSuffixSource,
)

if TYPE_CHECKING:
    from edge_rt.runtime.speculation.corpus import Corpus

CORPUS: Final = "corpus"
"""The source that searches a corpus."""
_TOKENS_PER_KEY: Final = 3
"""Tokens of the native suffix automaton that take the memory of a key of n-grams."""


@dataclass(frozen=True)
class TableBounds:
    """Bounds of the drafters' tables.

    Attributes:
        suffix_tokens: tokens of texts that the suffix automaton of a slot holds; one of n-grams and the tokens of a
            reference text takes no more memory; n-grams get what fits. 0: none of the three may be used.
        recycling_contexts: contexts of each order that token recycling keeps, of all slots; 0: it may not be used.
        is_planned: whether these come from a memory budget: one table may then grow instead of another, not in addition
            to it.
    """

    suffix_tokens: int = MAX_TOKENS
    recycling_contexts: int = MAX_CONTEXTS
    is_planned: bool = False


class SlotSources:
    """Texts are those of a slot's answers; what was likely behind a context is known to all slots.

    Args:
        library: None: there is none, and nobody asks for a source of it.
        corpus: further texts.
        only_ngrams: whether n-grams have the memory of the suffix automaton to themselves.
        beside: sources of another slot.
    """

    def __init__(
        self,
        library: DraftLibrary | None,
        bounds: TableBounds,
        corpus: Corpus | None,
        *,
        only_ngrams: bool = False,
        beside: SlotSources | None = None,
    ) -> None:
        self._given_library, self._bounds, self._corpus = library, bounds, corpus
        self._only_ngrams, self._beside = only_ngrams, beside
        self._sources: dict[str, AnySource] = {}

    def get(self, name: str) -> AnySource:
        """Return a source."""
        if name not in self._sources:
            makers: dict[str, Callable[[], AnySource]] = {
                "ngram": self._ngrams,
                "suffix": self._suffix,
                "recycling": self._recycling,
                CORPUS: self._corpus_source,
            }
            self._sources[name] = makers[name]()
        return self._sources[name]

    def reference(self, token_ids: Items[int]) -> AnySource:
        """Return a new source that copies from a text."""
        return NativeReferenceSource(self._library, token_ids)

    def replace(self, name: str, source: AnySource) -> None:
        """Replace a source by another one."""
        self._sources[name] = source

    def share(self, names: Collection[str], reference_tokens: int) -> bool:
        """Hold no more than is planned: n-grams, suffixes and a reference text share one table's memory.

        Returns:
            Whether a source was dropped.
        """
        if not reference_tokens and not {"ngram", "suffix"}.intersection(names):
            return False
        others = [name for name in ("ngram", "suffix") if name not in names and name in self._sources]
        for name in others:
            del self._sources[name]
        room = self.reference_room(names)
        if reference_tokens > room:
            raise ReferenceBudgetExceeded(reference_tokens, room)
        source = self.get("suffix") if "suffix" in names else None
        if isinstance(source, NativeSuffixSource):
            source.limit(max(MIN_TOKENS, self._bounds.suffix_tokens - reference_tokens))
        return bool(others)

    def reference_room(self, names: Collection[str]) -> int:
        """Return how many tokens of a reference text there is room for beside some sources."""
        return max(0, self._bounds.suffix_tokens - (MIN_TOKENS if "suffix" in names else 0))

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes; what slots share counts for the first one."""
        shared = () if self._beside is None else ("recycling",)
        return sum(source.memory_bytes for name, source in self._sources.items() if name not in shared)

    @property
    def _library(self) -> DraftLibrary:
        assert self._given_library is not None, "modes that draft are refused without it"
        return self._given_library

    def _ngrams(self) -> AnySource:
        from edge_rt.runtime.speculation.ngram import MAX_ENTRIES, MIN_ENTRIES, NgramSource

        if not self._bounds.is_planned:
            return NgramSource(max_entries=MAX_ENTRIES)
        # As many keys as take no more memory than is planned; see ``edge_rt.memory.terms``.
        keys = self._bounds.suffix_tokens // (1 if self._only_ngrams else _TOKENS_PER_KEY)
        return NgramSource(max_entries=max(MIN_ENTRIES, keys))

    def _suffix(self) -> AnySource:
        return NativeSuffixSource(self._library, max_tokens=max(MIN_TOKENS, self._bounds.suffix_tokens))

    def _recycling(self) -> NativeRecyclingSource:
        other = None if self._beside is None else self._beside.get("recycling")
        # In 240 answers a third token of context made no difference except in time.
        return NativeRecyclingSource(
            self._library,
            max_order=2,
            max_contexts=self._bounds.recycling_contexts,
            beside=other if isinstance(other, NativeRecyclingSource) else None,
        )

    def _corpus_source(self) -> AnySource:
        from edge_rt.runtime.speculation.corpus import CorpusSource

        assert self._corpus is not None
        return CorpusSource(self._corpus)
