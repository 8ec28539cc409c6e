"""Drafts what followed a text's longest suffix earlier (SAM-Decoding, Hu et al. 2024)."""

from __future__ import annotations

import sys
from collections.abc import Sequence as Items
from typing import Any, Final

from edge_rt.errors import ConfigError
from edge_rt.runtime.speculation.ngram import TextSource
from edge_rt.runtime.speculation.source import Guess
from edge_rt.runtime.speculation.text_sources import MAX_TOKENS, MIN_TOKENS, SUFFIX_PRIORS
from tests.reference.automaton import SuffixAutomaton

SEPARATOR: Final = -1
"""Separates two texts in the automaton; never drafted."""
MAX_CHILDREN: Final = 3
OVERLAP: Final = 16
"""Tokens shared with the previous text that are added again, as the context of the new tokens."""

_BUCKETS: Final = (0, 0, 1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 6)
"""Match length -> bucket: 1, 2, 3, 4-5, 6-8, 9-15, 16 and more."""
_LONGEST: Final = len(_BUCKETS) - 1
_PER_BUCKET: Final = 2 * MAX_CHILDREN
_KINDS: Final = len(SUFFIX_PRIORS) // 2


class SuffixSource(TextSource):
    """Guesses what followed earlier occurrences of the text's longest suffix.

    A kind is (this text or an earlier one; bucket of the match's length; rank; whether the guess followed once or more
    often).
    The latest continuation comes first, then the most frequent: in trees of 8 nodes over 240 conversations 0.1-2 % more
    tokens per step than either order alone. A match with fewer than three continuations adds those of its longest
    suffix that occurs at more positions: 0.5-1 % more tokens per step.

    Texts of earlier turns and conversations are used as well, until ``max_tokens`` are held. Then the automaton is
    rebuilt from the later half, in 2.5 us per token: with the default in 80 ms, every 32,768 tokens. The old automaton
    is freed first.

    Args:
        max_tokens: most tokens held, of all texts together.
    """

    name = "suffix"

    def __init__(self, *, max_tokens: int = MAX_TOKENS) -> None:
        super().__init__()
        if max_tokens < MIN_TOKENS:
            raise ConfigError("The automaton is too small.", f"{max_tokens} tokens.", f"Give at least {MIN_TOKENS}.")
        self.num_kinds = len(SUFFIX_PRIORS)
        self._max_tokens = max_tokens
        self._automaton = SuffixAutomaton()
        self._begin = 0  # index of the current text's first token

    def prior(self, kind: int) -> float:
        """Return the share of such guesses that were right in 240 conversations."""
        return SUFFIX_PRIORS[kind]

    def root(self) -> Any | None:
        """Return the cursor after the last token; None if that token occurs nowhere else."""
        known = self._automaton
        return (known.match, known.match_length) if known.match else None

    def children(self, cursor: Any) -> Items[Guess]:
        """Return at most three guesses; cursors are valid until tokens are added."""
        state, length = cursor
        known = self._automaton
        result: list[Guess] = []
        if not state:
            return result
        self._add_following(result, state, length)
        if len(result) < MAX_CHILDREN and (state := known.shorter(state)) > 0:
            self._add_following(result, state, known.length(state))
        return result

    @property
    def memory_bytes(self) -> int:
        """Bytes of automaton and known text, 120 per token."""
        return self._automaton.memory_bytes + sys.getsizeof(self._known)

    def limit(self, max_tokens: int) -> None:
        """Hold at most ``max_tokens`` tokens from now on; if there are more, the oldest are dropped."""
        if max_tokens < MIN_TOKENS:
            raise ConfigError("The automaton is too small.", f"{max_tokens} tokens.", f"Give at least {MIN_TOKENS}.")
        self._max_tokens = max_tokens
        if len(self._automaton) > max_tokens:
            self._rebuild(())

    def _depart(self, new: list[int], common: int) -> list[int]:
        if common <= OVERLAP:
            self._begin = len(self._automaton) + 1  # otherwise the conversation continues
        return [SEPARATOR, *new[max(0, common - OVERLAP) :]]

    def _take(self, token_ids: Items[int]) -> None:
        if len(self._automaton) + len(token_ids) <= self._max_tokens:
            self._automaton.extend(token_ids)
        else:
            self._rebuild(token_ids)

    def _rebuild(self, token_ids: Items[int]) -> None:
        """Rebuild the automaton from the newest tokens, half of those allowed, with ``token_ids`` at the end."""
        kept, held = self._max_tokens // 2, len(self._automaton)
        new = token_ids[max(0, len(token_ids) - kept) :]
        text = self._automaton.text[max(0, held - (kept - len(new))) :]
        text.extend(new)
        self._begin = max(self._begin - (held + len(token_ids) - len(text)), 0)
        # The old automaton is freed first: two of them would exceed the bound.
        self._automaton = SuffixAutomaton()
        self._automaton.extend(text)

    def _add_following(self, result: list[Guess], state: int, length: int) -> None:
        """Add guesses of what follows a match, up to ``MAX_CHILDREN`` in all and no token twice."""
        own = self._automaton
        base = _PER_BUCKET * _BUCKETS[min(length, _LONGEST)]
        known = [guess.token_id for guess in result]
        for token, behind in own.following(state):
            if token != SEPARATOR and token not in known:
                kind = base + 2 * len(result) + (own.count(behind) > 1)
                if own.end(behind) < self._begin:
                    kind += _KINDS
                result.append(Guess(token, kind, (behind, length + 1)))
                if len(result) == MAX_CHILDREN:
                    return
