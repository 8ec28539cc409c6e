"""Answers that may call tools: free text until a call begins, then a grammar of calls.

Text that calls nothing costs no mask and no table: tables are built, and the grammar is compiled, when a call begins.
Where other answers would have to wait for that, it is done ahead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence as Items
from functools import partial
from typing import TYPE_CHECKING, Never

from edge_rt.errors import InvalidGrammar, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.runtime.decode.answer_grammar import AnswerGrammar, mask_of
from edge_rt.runtime.decode.draft import Draft
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.text.thoughts import ThoughtMarkers, ThoughtStream, overlap
from edge_rt.text.tool_grammar import CallStart

if TYPE_CHECKING:
    from edge_rt.runtime.decode.sampling import Sampler
    from edge_rt.text.grammar import Matcher


class FreeText:
    """An answer in front of its calls; tells where one begins. What is within thoughts begins none.

    Args:
        token_bytes: the text of a token in UTF-8.
    """

    def __init__(self, start: CallStart, thoughts: ThoughtMarkers | None, token_bytes: Callable[[int], bytes]) -> None:
        self._start: CallStart | None = start
        self._stream = ThoughtStream(thoughts)
        self._token_bytes = token_bytes
        self._text = ""
        self._tokens: list[int] = []

    def give_up(self) -> None:
        """Let all that follows be text."""
        self._start = None

    def call_with(self, token_id: int) -> tuple[int, ...] | None:
        """Return what ``push`` would return; nothing changes."""
        start = self._start
        if start is None or not start.may_end_with(token_id, self._text_of(token_id)):
            return None
        other = copy.copy(self)
        other._stream, other._tokens = copy.copy(self._stream), list(self._tokens)
        return other.push(token_id)

    def push(self, token_id: int) -> tuple[int, ...] | None:
        """Add a token; return the tokens, this one last, in which a call begins, or None."""
        start = self._start
        if start is None:
            return None
        _, text = self._stream.push(self._text_of(token_id))
        if start.token is not None:
            return (token_id,) if token_id == start.token and self._stream.is_answering else None
        # Where answers are messages, those to the user call nothing.
        self._text += "" if self._stream.has_channels and not self._stream.is_calling else text
        self._tokens.append(token_id)
        begun = start.pattern.search(self._text)
        if begun is not None:
            self._keep(len(self._text) - begun.start())
            return tuple(self._tokens)
        if start.marks:
            size = max(overlap(self._text, mark) for mark in start.marks)
            self._text = self._text[len(self._text) - size :]
        elif not start.may_follow(self._text):
            self.give_up()
        self._keep(len(self._text) + self._stream.num_held)
        return None

    def _keep(self, size: int) -> None:
        """Forget the tokens in front of the last ``size`` bytes."""
        first = len(self._tokens)
        while first > 0 and size > 0:
            first -= 1
            size -= len(self._token_bytes(self._tokens[first]))
        del self._tokens[:first]

    def _text_of(self, token_id: int) -> str:
        # A character for every byte: marks are found, and lengths are those of tokens.
        return self._token_bytes(token_id).decode("latin-1")


def _fail(error: Exception) -> Never:
    raise error


class CallGrammar(AnswerGrammar):
    """Follows an answer that may call tools.

    Text is chosen as without a grammar. A token with which a call begins is allowed if the grammar allows its text;
    from there on it is as in any other format. Where no grammar can be made, all is text, with a warning.

    Args:
        calls: returns the grammar of calls, whose first tokens are those in which one begins, and what is not enforced.
        begun: tokens of the answer that the prompt ends with.
    """

    def __init__(
        self,
        free: FreeText,
        calls: Callable[[], tuple[Matcher, tuple[str, ...]]],
        end_ids: Items[int],
        vocab_size: int,
        begun: Items[int] = (),
    ) -> None:
        super().__init__(None, end_ids, vocab_size)
        self._free: FreeText | None = free
        self._make = calls
        self._calls: Matcher | None = None
        for token in begun:
            if not self._allows(token):
                self._free = free
                free.give_up()
            self._take(token)

    def prepare(self) -> None:
        """Make the grammar of calls before one begins, so that other answers need not wait for it."""
        try:
            made = self._make()
        except (InvalidGrammar, MemoryBudgetExceeded, RuntimeUnavailable) as error:
            self._make = partial(_fail, error)
        else:
            self._make = lambda: made

    def _calls_made(self) -> Matcher | None:
        if self._calls is None:
            try:
                self._calls, self.warnings = self._make()
            except (InvalidGrammar, MemoryBudgetExceeded, RuntimeUnavailable) as error:
                self.warnings = (f"Calls are not held to the parameters of their tools: {error.what} {error.numbers}",)
                if self._free is not None:
                    self._free.give_up()
        return self._calls

    def pruned(self, draft: Draft) -> Draft:
        """Return a draft without the nodes that can never be accepted, as far as it is cheap to know."""
        return draft if self._free is not None else super().pruned(draft)

    def is_circle(self, text: bytes, behind: int) -> bool:
        """Return whether an answer that repeats itself could have done otherwise; free text always could."""
        return self._free is not None or super().is_circle(text, behind)

    def _choose(self, row: int, outputs: Outputs, sampler: Sampler) -> int:
        if self._free is None:
            return super()._choose(row, outputs, sampler)
        token = self._best(row, outputs, sampler)
        if token is None:
            token = sampler.sample(outputs.logits[row])
        if not self._allows(token):
            # It begins a call, and what no call has follows in the same token.
            others = mask_of(range(self._vocab_size), self._vocab_size) & ~mask_of((token,), self._vocab_size)
            return self._draw(row, outputs, sampler, others)
        return token

    def _allows(self, token: int) -> bool:
        free = self._free
        if free is None:
            return super()._allows(token)
        begin = None if token in self._end_ids else free.call_with(token)
        if begin is None:
            return True
        calls = self._calls_made()
        return calls is None or calls.allows_all(begin)

    def _take(self, token: int) -> None:
        if self._free is None:
            super()._take(token)
            return
        begin = self._free.push(token)
        if begin is not None and (calls := self._calls_made()) is not None:
            calls.take(begin)
            self._matcher, self._free = calls, None

    def _forced(self, most: int) -> list[int]:
        return [] if self._free is not None else super()._forced(most)

    def _check(self) -> None:
        if self._free is None:
            super()._check()
