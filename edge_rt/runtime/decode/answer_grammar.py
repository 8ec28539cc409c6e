"""Answers in a format: which tokens a grammar lets through, in plain decoding and along a tree of drafted ones.

One rule holds in both, so that they give the same text. After every token that is chosen, those that the grammar forces
are emitted without asking the model, until there is a choice again; where nothing can follow, that is an end token. No
random number is drawn where one token alone may follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edge_rt.errors import InvalidGrammar
from edge_rt.runtime.decode.draft import ROOT, Accepted, Draft
from edge_rt.runtime.decode.repetition import cycle_of
from edge_rt.runtime.forward.outputs import Outputs

if TYPE_CHECKING:
    from edge_rt.runtime.decode.sampling import Sampler
    from edge_rt.text.grammar import Mask, Matcher


@dataclass(frozen=True)
class Opening:
    """What a model may write in front of its answer: thoughts between markers.

    Attributes:
        begin, answer: tokens of the markers in front of thoughts, and of an answer without thoughts; may be empty.
        end: bytes of the marker behind thoughts.
        token_bytes: the text of a token in UTF-8.
        written: tokens of a marker that has begun.
        in_thoughts: whether thoughts have begun.
        tail: the last bytes of the thoughts, as many as may belong to their end.
        is_shared: whether what is written of a marker begins an answer without thoughts as well.
    """

    begin: tuple[int, ...]
    answer: tuple[int, ...]
    end: bytes
    token_bytes: Callable[[int], bytes]
    written: tuple[int, ...] = ()
    in_thoughts: bool = False
    tail: bytes = b""
    is_shared: bool = True

    @property
    def may_answer(self) -> bool:
        """Whether the answer may begin here without a marker, or have begun where it seemed to be one."""
        return not self.in_thoughts and self.is_shared and not self.answer

    def next_of_markers(self) -> set[int]:
        """Return the tokens that begin a marker, or go on with it."""
        at = len(self.written)
        markers = (marker for marker in (self.begin, self.answer) if len(marker) > at)
        return {marker[at] for marker in markers if marker[:at] == self.written}

    def allows(self, token_id: int) -> bool:
        """Return whether a token, no end token, may follow; for an answer that begins here the grammar says it."""
        if not self.in_thoughts:
            return token_id in self.next_of_markers()
        # What follows the marker in the same token would be the beginning of the answer.
        text = self.tail + self.token_bytes(token_id)
        at = text.find(self.end)
        return at < 0 or at + len(self.end) == len(text)

    def after(self, token_id: int) -> Opening | None:
        """Return what may be written behind an allowed token; None: the answer."""
        if self.in_thoughts:
            text = self.tail + self.token_bytes(token_id)
            return None if self.end in text else replace(self, tail=text[max(0, len(text) - len(self.end) + 1) :])
        written = (*self.written, token_id)
        if written == self.begin:
            return replace(self, written=(), in_thoughts=True)
        return None if written == self.answer else replace(self, written=written)


@dataclass(frozen=True)
class _Position:
    opening: Opening | None
    depth: int


class AnswerGrammar:
    """Follows one answer of a format.

    Args:
        end_ids: tokens that end the answer, the usual one first.
        opening: what may be written in front of the answer; None: nothing.
        matcher: None for one that begins later.

    Attributes:
        warnings: what of the format is not enforced, one sentence each.
        num_forced: tokens that were emitted without asking the model.
        is_whole: whether the answer has ended as its format wants, or could not go on.
    """

    def __init__(
        self,
        matcher: Matcher | None,
        end_ids: Items[int],
        vocab_size: int,
        opening: Opening | None = None,
        warnings: Items[str] = (),
    ) -> None:
        if matcher is not None:
            self._matcher = matcher
        self.warnings = tuple(warnings)
        self._end_ids = tuple(end_ids)
        self._vocab_size = vocab_size
        self._opening = opening
        self.num_forced = 0
        self.is_whole = False

    def begin(self, sampler: Sampler, room: int) -> tuple[int, ...]:
        """Return the tokens that the answer must begin with, at most ``room``; called once, before anything else."""
        return tuple(self._emit_forced(sampler, room))

    def _emit_forced(self, sampler: Sampler, room: int) -> list[int]:
        """Return the tokens that are forced now, at most ``room``."""
        tokens = self._forced(room)
        # An end token adds nothing to the answer's text.
        self.is_whole = len(tokens) > 0 and tokens[-1] in self._end_ids and len(tokens) - 1 <= room
        del tokens[room:]
        self.num_forced += len(tokens)
        for token in tokens:
            sampler.observe(token)
        return tokens

    # --- drafts ---

    def pruned(self, draft: Draft) -> Draft:
        """Return a draft without the nodes that can never be accepted: forbidden ones, and others than forced ones."""
        if not len(draft):
            return draft
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(draft.parents):
            children.setdefault(parent, []).append(node)
        kept: list[int] = []
        start = self._position()
        # Depth first, so that going back always leads to where a node's parent was taken in.
        waiting = [(node, start) for node in children.get(ROOT, ())]
        try:
            while waiting:
                node, position = waiting.pop()
                self._go_back(position)
                if self._allows(draft.token_ids[node]):
                    last = self._keep(node, draft, children, kept)
                    if last is not None:
                        waiting += [(child, self._position()) for child in children.get(last, ())]
        finally:
            self._go_back(start)
        self._check()
        if len(kept) == len(draft):
            return draft
        number = {node: count for count, node in enumerate(sorted(kept))}
        parents = (draft.parents[node] for node in number)
        return Draft(
            tuple(draft.token_ids[node] for node in number),
            tuple(ROOT if parent == ROOT else number[parent] for parent in parents),
        )

    def _keep(self, node: int, draft: Draft, children: dict[int, list[int]], kept: list[int]) -> int | None:
        """Keep an allowed node, and those of the tokens that are forced behind it.

        Returns:
            The node behind which there is a choice; None if no node of the draft can follow any more.
        """
        kept.append(node)
        if draft.token_ids[node] in self._end_ids:
            return None
        self._take(draft.token_ids[node])
        for token in self._forced(len(draft)):
            same = [child for child in children.get(node, ()) if draft.token_ids[child] == token]
            if not same:
                return None
            node = same[0]
            kept.append(node)
            if token in self._end_ids:
                return None
        return node

    # --- steps ---

    def accept(self, draft: Draft, outputs: Outputs, sampler: Sampler, room: int) -> Accepted:
        """Accept drafted tokens as long as they are chosen or forced, and emit one token more, and what it forces.

        The tokens behind those of the path and the next one are forced.

        Args:
            room: most tokens that are emitted.

        Raises:
            InvalidGrammar: the grammar turned out to be too costly.
        """
        children = {edge: node for node, edge in enumerate(zip(draft.parents, draft.token_ids, strict=True))}
        emitted: list[int] = []
        path: list[int] = []
        unasked: list[int] = []
        node: int | None = ROOT
        while node is not None and len(emitted) < room:
            token = self._choose(node + 1, outputs, sampler)
            sampler.observe(token)
            tokens = [token]
            if token in self._end_ids:
                self.is_whole = True
            else:
                self._take(token)
                tokens += self._emit_forced(sampler, room - len(emitted) - 1)
            unasked += range(len(emitted) + 1, len(emitted) + len(tokens))
            for token in tokens:
                emitted.append(token)
                if node is not None:
                    node = None if token in self._end_ids else children.get((node, token))
                    if node is not None:
                        path.append(node)
        self._check()
        # The last token is no row of the cache, wherever the room ends.
        return Accepted(tuple(emitted), tuple(path[: len(emitted) - 1]), len(draft), tuple(unasked))

    def _choose(self, row: int, outputs: Outputs, sampler: Sampler) -> int:
        best = self._best(row, outputs, sampler)
        if best is not None:
            return best
        mask = self._mask()
        count = np.count_nonzero(mask)
        if not count:
            raise InvalidGrammar(
                "No token of the model can continue the answer in its format.",
                f"{self._matcher.depth} tokens of it were written.",
                "Change the schema or grammar, or use another model.",
            )
        if count == 1:
            at = int(np.flatnonzero(mask)[0])
            word = int(mask[at])
            if word & (word - 1) == 0:
                return at * 32 + word.bit_length() - 1
        return self._draw(row, outputs, sampler, mask)

    def _best(self, row: int, outputs: Outputs, sampler: Sampler) -> int | None:
        """Return the largest logit that is allowed; None if it has to be looked for, or drawn."""
        top = outputs.top
        if sampler.takes_best and top is not None and math.isfinite(top.logits.item(row, 0)):
            # The largest logits in order, equal ones by id: the first that is allowed is the largest under the mask.
            for token, logit in zip(top.ids[row].tolist(), top.logits[row].tolist(), strict=True):
                if logit == -math.inf:
                    break
                if self._allows(token):
                    return int(token)
        return None

    def _draw(self, row: int, outputs: Outputs, sampler: Sampler, mask: Mask) -> int:
        token = sampler.sample(outputs.logits[row], mask)
        while not self._allows(token):
            # A rare token that ends what stands in front of the answer's format and begins that in one.
            mask = mask & ~mask_of((token,), self._vocab_size)
            token = sampler.sample(outputs.logits[row], mask)
        return token

    def is_circle(self, text: bytes, behind: int) -> bool:
        """Return whether an answer that repeats itself could have done otherwise, ``behind`` tokens ago.

        Args:
            text: the end of what was written then.
        """
        cycle = cycle_of(text)
        return not cycle or self._opening is not None or self._matcher.may_leave(cycle, behind)

    def _check(self) -> None:
        self._matcher.check()

    # --- one position ---

    def _allows(self, token: int) -> bool:
        opening, is_end = self._opening, token in self._end_ids
        if opening is not None:
            if not is_end and opening.allows(token):
                return True
            if not opening.may_answer:
                return False
        return self._matcher.may_end if is_end else self._matcher.allows(token)

    def _mask(self) -> Mask:
        opening = self._opening
        if opening is None:
            return self._matcher.mask()
        if opening.in_thoughts:
            return ~mask_of(self._end_ids, self._vocab_size) & mask_of(range(self._vocab_size), self._vocab_size)
        mask = mask_of(opening.next_of_markers(), self._vocab_size)
        return mask | self._matcher.mask() if opening.may_answer else mask

    def _take(self, token: int) -> None:
        opening = self._opening
        if opening is None or (opening.may_answer and not opening.allows(token)):
            self._opening = None
            self._matcher.take((token,))
            return
        after = opening.after(token)
        if opening.may_answer:
            # The matcher follows a marker as long as it may be the answer.
            begins = after is not None and not after.in_thoughts and self._matcher.allows(token)
            if begins:
                self._matcher.take((token,))
            else:
                self._matcher.take_back(self._matcher.depth - len(opening.written))
            after = after and replace(after, is_shared=begins)
        self._opening = after

    def _forced(self, most: int) -> list[int]:
        """Return the tokens that must follow, an end token last if nothing else can, and take them in.

        Where they are more than ``most``, the answer ends in the midst of them: one more is returned, and none taken.
        """
        result: list[int] = []
        while True:
            opening = self._opening
            if opening is None:
                if self._matcher.must_end:
                    return [*result, self._end_ids[0]]
                tokens = self._matcher.forced(most - len(result) + 1)
                if not tokens or len(result) + len(tokens) > most:
                    return result + tokens
                self._matcher.take(tokens)
            elif opening.in_thoughts or opening.may_answer or len(opening.next_of_markers()) != 1:
                return result
            else:
                tokens = list(opening.next_of_markers())
                self._take(tokens[0])
            if not tokens:
                return result
            result += tokens

    def _position(self) -> _Position:
        return _Position(self._opening, self._matcher.depth)

    def _go_back(self, position: _Position) -> None:
        self._opening = opening = position.opening
        # What may be a marker or an answer was taken back where it went on as a marker.
        written = opening.written if opening is not None and opening.may_answer else ()
        self._matcher.take_back(position.depth - len(written))
        if written:
            self._matcher.take(written)


def mask_of(tokens: Iterable[int], vocab_size: int) -> Mask:
    """Return the mask that lets some tokens through."""
    flags = np.zeros((vocab_size + 31) // 32 * 32, np.bool_)
    flags[list(tokens)] = True
    return np.packbits(flags, bitorder="little").view(np.uint32)
