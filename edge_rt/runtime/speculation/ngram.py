"""Drafts from tables of n-grams of several lengths (ANPD, Ou et al. 2024); prompt lookup is its simplest setting."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence as Items
from itertools import islice
from typing import Any, Final

from edge_rt.errors import ConfigError
from edge_rt.runtime.cache.kv_cache import common_prefix
from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.source import Guess

LEVELS: Final = (2, 3, 4, 5)
MAX_ENTRIES: Final = 1 << 17
MIN_ENTRIES: Final = 16
MAX_CHILDREN: Final = 3
TOKEN_BITS: Final = 20
"""Bits of a token in a key: enough for ``id + 1`` of every vocabulary that a package may have."""

_PER_LEVEL: Final = 2 * MAX_CHILDREN
_CONTEXT_TOKENS: Final = LEVELS[-1] - 1
_CONTEXT: Final = (1 << TOKEN_BITS * _CONTEXT_TOKENS) - 1
_ENTRY_BYTES: Final = sys.getsizeof(_CONTEXT)
_LIST_BYTES: Final = sys.getsizeof([0] * 4)
# fmt: off
_PRIORS: Final = (
    # One row per level; columns: latest continuation (seen once, seen more often), second, third.
    0.21, 0.39, 0.11, 0.19, 0.07, 0.22,
    0.46, 0.71, 0.17, 0.28, 0.10, 0.09,
    0.60, 0.80, 0.19, 0.20, 0.10, 0.16,
    0.77, 0.95, 0.14, 0.40, 0.07, 0.09,
)
# fmt: on


class TextSource(ABC):
    """Base of sources that learn from texts alone: every token is added once."""

    def __init__(self) -> None:
        self._known: list[int] = []

    def begin(self, token_ids: Items[int]) -> None:
        """Add the tokens that are new; what was learned from earlier texts is kept."""
        new = list(token_ids)
        common = common_prefix(self._known, new)
        self._take(new[common:] if common == len(self._known) else self._depart(new, common))
        self._known = new

    def extend(self, token_ids: Items[int]) -> None:
        """Add emitted tokens."""
        self._known.extend(token_ids)
        self._take(token_ids)

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Do nothing: this source learns from emitted tokens only."""
        del draft, accepted, outputs, context

    @abstractmethod
    def _depart(self, new: list[int], common: int) -> list[int]:
        """Switch to a text that shares only ``common`` tokens with the known one; return the tokens to be added."""

    @abstractmethod
    def _take(self, token_ids: Items[int]) -> None:
        """Learn tokens that follow those added last."""


class NgramSource(TextSource):
    """Guesses the tokens that earlier followed the last 4, 3, 2 or 1 tokens, taking the longest context that is known.

    A kind is (level, rank, whether the guess followed once or more often). A key keeps three tokens, the latest first,
    then the most frequent: in trees of 8 nodes over 240 conversations 0.1-2.6 % more tokens per step than with the most
    frequent first. Adding guesses of lower levels to those of the highest level that has any gave 0.1-0.8 % fewer
    tokens per step.

    A key is one integer, so a table of all levels is one dictionary; a token takes at most 4 entries, on real chats 1.8
    entries and 180 bytes. When the table is full, its older half is dropped (in 4 ms). With 4096 known tokens, adding
    one token and drafting a chain of 8 takes 13 us.

    Args:
        levels: lengths of n-grams, from 2 to 5: a level of n looks at the last n - 1 tokens.
        latest_only: keep only the latest next token: prompt lookup (Saxena 2023) with levels as its n-grams.
    """

    name = "ngram"

    def __init__(
        self, levels: Items[int] = LEVELS, *, latest_only: bool = False, max_entries: int = MAX_ENTRIES
    ) -> None:
        super().__init__()
        if not levels or not set(levels) <= set(LEVELS):
            raise ConfigError("The levels of n-grams are wrong.", f"Got {tuple(levels)}.", f"Choose from {LEVELS}.")
        if max_entries < MIN_ENTRIES:
            raise ConfigError("The table is too small.", f"{max_entries} entries.", f"Give at least {MIN_ENTRIES}.")
        self.num_kinds = len(_PRIORS)
        # A context that is shorter than a level needs has a smaller key: (bits, smallest key, first kind).
        self._levels = [
            ((1 << TOKEN_BITS * (level - 1)) - 1, 1 << TOKEN_BITS * (level - 2), _PER_LEVEL * (level - LEVELS[0]))
            for level in sorted(set(levels), reverse=True)
        ]
        self._latest_only = latest_only
        self._max_entries = max_entries
        # Nearly all keys were followed by one token, once: its id alone is stored. Else [token, count, token, count,
        # ...].
        self._table: dict[int, int | list[int]] = {}
        self._num_lists = 0
        self._context = 0

    def prior(self, kind: int) -> float:
        """Return the share of such guesses that were right in 240 conversations."""
        return _PRIORS[kind]

    def root(self) -> Any | None:
        """Return the last tokens as a cursor; None before the first token."""
        return self._context or None

    def children(self, cursor: Any) -> Items[Guess]:
        """Return at most three guesses."""
        for bits, smallest, base in self._levels:
            key = cursor & bits
            known = self._table.get(key) if key >= smallest else None
            if known is None:
                continue
            context = cursor << TOKEN_BITS & _CONTEXT
            if isinstance(known, int):
                return (Guess(known, base, context | known + 1),)
            return [
                Guess(known[at], base + at + (known[at + 1] > 1), context | known[at] + 1)
                for at in range(0, len(known), 2)
            ]
        return ()

    @property
    def memory_bytes(self) -> int:
        """Bytes of the table and the known text."""
        table = sys.getsizeof(self._table) + _ENTRY_BYTES * len(self._table) + _LIST_BYTES * self._num_lists
        return table + sys.getsizeof(self._known)

    def _depart(self, new: list[int], common: int) -> list[int]:
        self._context = 0
        for token in new[max(0, common - _CONTEXT_TOKENS) : common]:
            self._context = self._context << TOKEN_BITS | token + 1
        return new[common:]

    def _take(self, token_ids: Items[int]) -> None:
        context, levels = self._context, self._levels
        for token in token_ids:
            table = self._table
            for bits, smallest, _ in levels:
                key = context & bits
                if key < smallest:
                    continue
                known = table.get(key)
                if known is None or self._latest_only:
                    table[key] = token
                elif isinstance(known, list):
                    _count(known, token)
                else:
                    table[key] = [token, 2] if known == token else [token, 1, known, 1]
                    self._num_lists += 1
            context = (context << TOKEN_BITS | token + 1) & _CONTEXT
            if len(table) > self._max_entries:
                self._table = dict(islice(table.items(), len(table) // 2, None))
                self._num_lists = sum(isinstance(known, list) for known in self._table.values())
        self._context = context


def _count(known: list[int], token: int) -> None:
    """Move a token to the front of [token, count, ...], the others by count; of four tokens the last is dropped."""
    if known[0] == token:
        known[1] += 1
        return
    count = 1
    for at in range(2, len(known), 2):
        if known[at] == token:
            count += known[at + 1]
            del known[at : at + 2]
            break
    else:
        del known[2 * (MAX_CHILDREN - 1) :]
    if len(known) > 2 and known[3] > known[1]:
        known[:] = known[2:] + known[:2]
    known[:0] = (token, count)
