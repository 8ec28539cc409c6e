"""How the rows of a pass that several sequences share are divided among their drafts, and what such passes teach."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence as Items
from itertools import pairwise
from typing import Final

from edge_rt.runtime.decode.draft import Draft
from edge_rt.runtime.decode.loop import Decoding
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.speculation.adaptive import LEAST_VALUE, AdaptiveDrafter
from edge_rt.runtime.speculation.core import Tree, divide
from edge_rt.runtime.speculation.cost_model import Costs, RowCosts
from edge_rt.runtime.speculation.library import DraftLibrary
from edge_rt.runtime.speculation.live_costs import LiveCosts

_NOTHING: Final = Draft()
_DEPTH_STEP: Final = 128
"""Tokens of context between two curves."""
_ROWS: Final = (1, 2, 3, 5, 8, 12, 16, 24)
"""Rows of passes of which it is learned what they cost, beyond one less than there are sequences."""
_KEEP: Final = 0.98
_FIRST_TRUST: Final = 10.0
_LEAST_TRUST: Final = 0.3


class Division:
    """Drafts for the sequences of a pass.

    What passes of so many sequences cost is learned from such passes alone; before any has run, it is what one sequence
    of as many rows costs.

    Args:
        library: None: there is none, and nobody drafts.
        costs: returns what passes of one sequence cost; asked for once somebody drafts.
        most_rows: rows of the largest pass that has drafts.
        draft_max: drafted tokens of a pass, at most.
    """

    def __init__(
        self, library: DraftLibrary | None, costs: Callable[[], Costs], *, most_rows: int, draft_max: int
    ) -> None:
        self._library, self._open, self._most_rows, self._draft_max = library, costs, most_rows, draft_max
        self._costs: Costs | None = None
        self._learned: dict[int, LiveCosts] = {}
        # By number of sequences, and by depth: computed again when costs have changed.
        self._curves: dict[int, tuple[int, array[float], float]] = {}
        self._attention: dict[int, array[float]] = {}
        self._changes = 0
        # Milliseconds with the rows that seemed to pay, where the pass has others to learn from them.
        self._less: float | None = None
        # Tokens per millisecond of a pass without drafts, and whether somebody can draft.
        self._rate, self._is_drafting = 0.0, False
        # Drafted tokens that were expected to be accepted, and those that were.
        self._expected = self._accepted = _FIRST_TRUST

    def drafts(self, decodings: Items[Decoding], most_rows: int) -> list[Draft]:
        """Return what each sequence drafts for the pass that computes the tokens they have, in at most so many rows."""
        drafters = [one.drafter if isinstance(one.drafter, AdaptiveDrafter) else None for one in decodings]
        self._less, self._is_drafting = None, self._library is not None and any(drafters)
        if self._library is None or not self._is_drafting:
            return [_NOTHING] * len(decodings)
        trust = self._trust(drafters)
        known = [decoding.num_pending for decoding in decodings]
        rows, most = sum(known), min(self._draft_max, min(self._most_rows, most_rows) - sum(known))
        awake = [drafter if drafter is not None and drafter.wakes(self._rate) else None for drafter in drafters]
        if most < 1 or not any(awake):
            return [_NOTHING] * len(decodings)
        costs, cheapest = self._curve(len(decodings))
        attention = [self._attention_at(len(decoding.sequence.token_ids)) for decoding in decodings]
        plain = _milliseconds(costs, known, attention)
        self._rate = rate = len(decodings) / plain
        least = max(LEAST_VALUE, cheapest * rate / trust)
        trees, drafting = [], 0.0
        for decoding, drafter, count, more in zip(decodings, awake, known, attention, strict=True):
            nodes = values = 0
            if drafter is not None:
                nodes, values = drafter.offer(decoding.sequence, min(decoding.room, most), least, rate)
                drafting += drafter.drafting_ms
            trees.append(Tree(nodes, values, count, more))
        tokens = len(decodings) / trust
        sizes = divide(self._library, trees, costs, most=most, tokens=tokens, drafting=drafting)
        total = sum(sizes)
        passing = _milliseconds(costs, [count + size for count, size in zip(known, sizes, strict=True)], attention)
        if (live := self._learned.get(len(decodings))) is not None:
            beyond = rows - len(decodings) + 1
            wanted = live.wanted(beyond + total, beyond + most)
            if wanted > beyond + total:
                least_nodes = wanted - beyond
                sizes = divide(
                    self._library, trees, costs, most=most, tokens=tokens, drafting=drafting, least=least_nodes
                )
            elif wanted == 1:
                sizes = [0] * len(sizes)
            self._less = passing if sum(sizes) != total else None
        price = rate * (passing - plain) / total if total else 0.0
        left, drafts = most - sum(sizes), []
        for drafter, size in zip(awake, sizes, strict=True):
            draft = _NOTHING if drafter is None else drafter.take(size, price, is_room=left > 0)
            left -= len(draft) - size
            drafts.append(draft)
        return drafts

    def leave_out(self, decoding: Decoding) -> None:
        """Tell who drafts for a sequence that the next pass has no draft of it."""
        if isinstance(decoding.drafter, AdaptiveDrafter):
            decoding.drafter.wakes(0.0)

    def learn(self, parts: Items[Part], ms: float) -> None:
        """Learn from a pass of answers alone."""
        if not self._is_drafting or (live := self._learned.get(len(parts))) is None:
            return
        counts = [len(part.token_ids) for part in parts]
        rows = sum(counts)
        if rows <= self._most_rows:
            attention = [self._attention_at(part.start) for part in parts]
            usual = _milliseconds(self._curve(len(parts))[0], counts, attention)
            live.compare(rows - len(parts) + 1, usual, ms, self._less)

    def _trust(self, drafters: Items[AdaptiveDrafter | None]) -> float:
        """Return how many drafted tokens are accepted for each one that is expected to be.

        Where drafts of many sequences compete, those that promise too much win.
        """
        outcomes = [drafter.outcome for drafter in drafters if drafter is not None]
        self._expected = _KEEP * self._expected + sum(expected for expected, _ in outcomes)
        self._accepted = _KEEP * self._accepted + sum(accepted for _, accepted in outcomes)
        return max(_LEAST_TRUST, min(self._accepted / self._expected, 1.0))

    def _curve(self, count: int) -> tuple[array[float], float]:
        """Return the milliseconds of passes of some sequences over 1, 2, ... rows, and of the cheapest further row."""
        if self._costs is None:
            self._costs = self._open()
        if count not in self._learned and isinstance(self._costs, LiveCosts):
            first = self._costs.curve(0, self._most_rows)[count - 1 :]
            rows = tuple(number for number in _ROWS if number <= len(first))
            ms = (tuple(first[number - 1] for number in rows),)
            self._learned[count] = LiveCosts(RowCosts(rows, (0,), ms, steady=False, passes=0))
        live = self._learned.get(count)
        changes = 0 if live is None else live.changes
        if count not in self._curves or self._curves[count][0] != changes:
            if live is None:
                curve = self._costs.curve(0, self._most_rows)
            else:
                beyond = live.curve(0, self._most_rows - count + 1)
                curve = [*beyond[:1] * (count - 1), *beyond]
            cheapest = min((b - a for a, b in pairwise(curve[count - 1 :])), default=0.0)
            self._curves[count] = changes, array("d", curve), cheapest
        return self._curves[count][1:]

    def _attention_at(self, depth: int) -> array[float]:
        """Return the milliseconds that attention of 1, 2, ... rows takes at about a depth beyond that of ``_curve``."""
        assert self._costs is not None, "nobody drafts"
        if self._changes != self._costs.changes:
            self._changes = self._costs.changes
            self._attention.clear()
        step = depth // _DEPTH_STEP
        if step not in self._attention:
            here, first = (self._costs.curve(at, self._most_rows) for at in (int((step + 0.5) * _DEPTH_STEP), 0))
            self._attention[step] = array("d", (a - b for a, b in zip(here, first, strict=True)))
        return self._attention[step]


def _milliseconds(costs: array[float], counts: Items[int], attention: Items[array[float]]) -> float:
    """Return the milliseconds of a pass that computes so many rows of each sequence."""
    ms = costs[sum(counts) - 1]
    for count, more in zip(counts, attention, strict=True):
        ms += more[count - 1]
    return ms
