"""Drafts from a text that the answer mostly repeats: input-guided copying (aggressive decoding, Ge et al. 2022)."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence as Items
from typing import Any, Final

from edge_rt.runtime.decode.draft import Accepted, Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.speculation.source import Guess
from edge_rt.runtime.speculation.text_sources import REFERENCE_PRIORS, require_reference

TOKEN_BITS: Final = 20
LONGEST: Final = 8
"""Most tokens that are compared where the last two tokens occur more than once."""
NEAREST: Final = 8
"""Most occurrences that are compared after the pointer, and before it."""
ASTRAY: Final = 4
"""Tokens after a mismatch during which a small edit is assumed."""

_RUN_KINDS: Final = (0, 1, 2, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 6)
"""Tokens copied so far -> kind: 0, 1, 2, 3, 4-7, 8-15, 16 and more."""
_LONG_RUN: Final = len(_RUN_KINDS) - 1
_EDITS: Final = (0, 1, 2)
"""Tokens of the reference to skip after a mismatch: one token was inserted, one replaced, or two replaced by one."""
_FIRST_EDIT: Final = 7

Cursor = tuple[int, int, int]


class ReferenceSource:
    """Follows a text with a pointer; after a mismatch it goes on where the last tokens of the answer occur in it.

    At least two tokens must agree. Of several occurrences the one with the longest agreement is taken; among equals the
    nearest after the pointer, then the nearest before it. In the first four tokens after a mismatch it assumes that one
    token was inserted, one was replaced, or two were replaced by one: on texts with random edits that gives 6 % more
    tokens per step. A kind is the number of tokens copied since (0, 1, 2, 3, 4-7, 8-15, 16 and more), or one of these
    edits, after the first token of a mismatch or after a later one.

    Args:
        token_ids: the text; it takes 60-105 bytes per token. Adding one token and drafting a chain of 8 takes 7 us.
    """

    name = "reference"
    num_kinds = len(REFERENCE_PRIORS)

    def __init__(self, token_ids: Items[int]) -> None:
        require_reference(token_ids)
        self._text = array("i", token_ids)
        # Token pair -> position after it; nearly all pairs occur once.
        self._places: dict[int, int | list[int]] = {}
        for behind in range(2, len(self._text) + 1):
            pair = self._text[behind - 2] << TOKEN_BITS | self._text[behind - 1]
            known = self._places.setdefault(pair, behind)
            if isinstance(known, list):
                known.append(behind)
            elif known != behind:
                self._places[pair] = [known, behind]
        self._known: list[int] = []
        self._pointer = 0
        self._run = 0
        self._astray = 0

    def prior(self, kind: int) -> float:
        """Return the share of such guesses that were right on answers whose references had random edits."""
        return REFERENCE_PRIORS[kind]

    def begin(self, token_ids: Items[int]) -> None:
        """Point at the beginning of the text; if the known tokens are given again, nothing changes."""
        new = list(token_ids)
        if new != self._known:
            self._pointer = self._run = self._astray = 0
            self._known = new

    def extend(self, token_ids: Items[int]) -> None:
        """Move the pointer over emitted tokens."""
        text = self._text
        for token in token_ids:
            self._known.append(token)
            if not self._astray and self._pointer < len(text) and text[self._pointer] == token:
                self._pointer += 1
                self._run += 1
            else:
                self._resume()

    def observe(self, draft: Draft, accepted: Accepted, outputs: Outputs, context: tuple[int, ...]) -> None:
        """Do nothing: this source learns from emitted tokens only."""
        del draft, accepted, outputs, context

    def root(self) -> Any | None:
        """Return the pointer as a cursor; None at the end of the text, and long after a mismatch."""
        if self._astray > ASTRAY or self._pointer >= len(self._text):
            return None
        return self._pointer, self._run, self._astray

    def children(self, cursor: Any) -> Items[Guess]:
        """Return the next token of the text, or at most three guesses after a mismatch."""
        pointer, run, astray = cursor
        text = self._text
        if not astray:
            if pointer >= len(text):
                return ()
            return (Guess(text[pointer], _RUN_KINDS[min(run, _LONG_RUN)], (pointer + 1, run + 1, 0)),)
        guesses: dict[int, Guess] = {}
        base = _FIRST_EDIT if astray == 1 else _FIRST_EDIT + len(_EDITS)
        for edit in _EDITS:
            at = pointer + edit
            if at < len(text) and text[at] not in guesses:
                guesses[text[at]] = Guess(text[at], base + edit, (at + 1, 1, 0))
        return list(guesses.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of the text, its index and the known tokens."""
        index = sys.getsizeof(self._places) + sum(
            sys.getsizeof(pair) + sys.getsizeof(places) for pair, places in self._places.items()
        )
        return self._text.itemsize * len(self._text) + index + sys.getsizeof(self._known)

    def _resume(self) -> None:
        """Continue where the last tokens occur in the text, or count one more token since the mismatch."""
        self._run = 0
        self._astray += 1
        known = self._known
        places = self._places.get(known[-2] << TOKEN_BITS | known[-1]) if len(known) > 1 else None
        if places is None:
            return
        if isinstance(places, int):
            candidates = [places]
        else:
            split = bisect_left(places, self._pointer)
            candidates = places[split : split + NEAREST] + places[max(0, split - NEAREST) : split][::-1]
        # Of equal items, max takes the first.
        self._pointer = max(candidates, key=self._agreement)
        self._run = self._agreement(self._pointer)
        self._astray = 0

    def _agreement(self, place: int) -> int:
        """Return how many tokens before a place agree with the end of the known text, at most ``LONGEST``."""
        known, text = self._known, self._text
        length = 0
        limit = min(place, len(known), LONGEST)
        while length < limit and text[place - 1 - length] == known[-1 - length]:
            length += 1
        return length
