"""A suffix automaton that grows with a text: it finds where the longest suffix occurred before, and what followed.

Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"; drafting from it is SAM-Decoding
(Hu et al. 2024). A state stands for all substrings that end at the same positions. Every state knows the length of its
longest one, its link (the state of the longest suffix that ends at more positions) and its transitions.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from itertools import islice

NO_STATE = -1
NO_TOKEN = -2
UPDATED_LINKS = 16
"""States whose end and count are updated per token, those of the longest suffixes first."""
SCANNED = 8
"""Of a state with many transitions, only this many of the first and of the newest ones are returned."""
_SMALL_DICT_BYTES = sys.getsizeof({0: 0}) + 3 * sys.getsizeof(1 << 29)


class SuffixAutomaton:
    """Suffix automaton of a sequence of integers >= -1; states are numbers, 0 is the empty string.

    Nine states out of ten have at most one transition. The first transition is therefore stored in flat arrays, and
    only states with more have a dictionary for the rest. On real chats a token takes 1.4 states and 110 bytes, and
    appending it takes 2.2 us; 99 % of the links have exact ends and counts.

    Attributes:
        text: the tokens, int32.
        match: state of the longest suffix of the text that occurs earlier too (0: none does).
        match_length: length of that suffix in tokens.
        match_end: position of the last token of an earlier occurrence, the latest that is known; -1 without a match.
    """

    def __init__(self, token_ids: Iterable[int] = (), *, updated_links: int = UPDATED_LINKS) -> None:
        self.text = array("i")
        self._updated_links = updated_links
        self._length = array("i", [0])
        self._link = array("i", [NO_STATE])
        self._end = array("i", [-1])
        self._count = array("i", [0])
        self._token = array("i", [NO_TOKEN])
        self._target = array("i", [NO_STATE])
        self._more: dict[int, dict[int, int]] = {}
        self._last = 0
        self.match = 0
        self.match_length = 0
        self.match_end = -1
        self.extend(token_ids)

    def __len__(self) -> int:
        return len(self.text)

    @property
    def num_states(self) -> int:
        """Number of states, at most twice the tokens."""
        return len(self._length)

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes, estimated from the number of dictionaries."""
        arrays = (self.text, self._length, self._link, self._end, self._count, self._token, self._target)
        flat = sum(map(sys.getsizeof, arrays))
        # Measuring every dictionary would take milliseconds. Nearly all have the minimum size; the root's is large.
        root = sys.getsizeof(self._more.get(0, ()))
        return flat + sys.getsizeof(self._more) + root + len(self._more) * _SMALL_DICT_BYTES

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens: amortised O(1) each."""
        for token in token_ids:
            self._append(token)

    def _append(self, token: int) -> None:
        length, link, end, count = self._length, self._link, self._end, self._count
        first, target, more = self._token, self._target, self._more
        position = len(self.text)
        self.text.append(token)
        state = self._last
        new = self._add(position + 1, NO_STATE, position, 1)
        self._last = new
        found = NO_STATE
        while state >= 0:
            known = first[state]
            if known == NO_TOKEN:
                first[state] = token
                target[state] = new
            elif known == token:
                found = target[state]
                break
            else:
                others = more.get(state)
                if others is None:
                    more[state] = {token: new}
                else:
                    found = others.get(token, NO_STATE)
                    if found >= 0:
                        break
                    others[token] = new
            state = link[state]
        if state < 0:
            link[new] = self.match = self.match_length = 0
            self.match_end = -1
            return
        if length[found] != length[state] + 1:
            found = self._split(found, state, token)
        link[new] = self.match = found
        self.match_length = length[found]
        # Read before the update: this is the end of an occurrence before this token.
        self.match_end = end[found]
        for _ in range(self._updated_links):
            if found <= 0:
                break
            end[found] = position
            count[found] += 1
            found = link[found]

    def _add(self, length: int, link: int, end: int, count: int) -> int:
        self._length.append(length)
        self._link.append(link)
        self._end.append(end)
        self._count.append(count)
        self._token.append(NO_TOKEN)
        self._target.append(NO_STATE)
        return len(self._length) - 1

    def _split(self, old: int, state: int, token: int) -> int:
        """Give the short substrings of ``old``, reached from ``state``, a state of their own; return it."""
        link, first, target, more = self._link, self._token, self._target, self._more
        new = self._add(self._length[state] + 1, link[old], self._end[old], self._count[old])
        first[new], target[new] = first[old], target[old]
        if old in more:
            more[new] = dict(more[old])
        link[old] = new
        while state >= 0:
            if first[state] == token:
                if target[state] != old:
                    break
                target[state] = new
            else:
                others = more.get(state)
                if others is None or others.get(token) != old:
                    break
                others[token] = new
            state = link[state]
        return new

    def _next(self, state: int, token: int) -> int:
        """Return the state after a token, or ``NO_STATE``."""
        if self._token[state] == token:
            return self._target[state]
        others = self._more.get(state)
        return NO_STATE if others is None else others.get(token, NO_STATE)

    def advance(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return state and length of the longest suffix of (a match, then ``token``) that occurs in the text."""
        while state >= 0:
            behind = self._next(state, token)
            if behind >= 0:
                return behind, length + 1
            state = self._link[state]
            length = self._length[state] if state >= 0 else 0
        return 0, 0

    def shorter(self, state: int) -> int:
        """Return the state of the longest suffix that occurs at more positions, ``NO_STATE`` for the root."""
        return self._link[state]

    def length(self, state: int) -> int:
        """Return the length of the state's longest substring in tokens."""
        return self._length[state]

    def end(self, state: int) -> int:
        """Return the position of the last token of an occurrence, the latest that is known; -1 for the root."""
        return self._end[state]

    def count(self, state: int) -> int:
        """Return how often its substrings occur: at least 1, and too low for states beyond ``UPDATED_LINKS``."""
        return self._count[state]

    def following(self, state: int) -> list[tuple[int, int]]:
        """Return (token, state after it) of a state's transitions: the latest first, then the most frequent.

        At most ``2 * SCANNED + 1`` of them are examined.
        """
        token, target = self._token[state], self._target[state]
        others = self._more.get(state)
        if others is None:
            return [(token, target)] if token != NO_TOKEN else []
        if len(others) <= 2 * SCANNED:
            tokens = {behind: other for other, behind in others.items()}
        else:
            tokens = {behind: other for other, behind in islice(others.items(), SCANNED)}
            tokens.update((behind, other) for other, behind in islice(reversed(others.items()), SCANNED))
        tokens[target] = token
        # Sort keys are methods of arrays for speed: this runs for every node of a draft.
        order = sorted(tokens, key=self._count.__getitem__, reverse=True)
        latest = max(order, key=self._end.__getitem__)
        if order[0] != latest:
            order.remove(latest)
            order.insert(0, latest)
        return [(tokens[behind], behind) for behind in order]
