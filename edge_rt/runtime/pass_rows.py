"""Which rows of the next pass each generation has: answers and their drafts, and pieces of prompts beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge_rt.errors import Cancelled
from edge_rt.runtime.admission import Admission, Ticket
from edge_rt.runtime.decode.draft import Draft
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.speculation.division import Division

LEAST_PIECE: Final = 16
"""Tokens of a prompt that a pass computes beside answers, however slow they are."""
LONGEST_PASS_MS: Final = 60.0
"""How long a pass with a piece of a prompt may take beside answers, unless three passes without one take longer."""
_KEEP: Final = 0.75


class PassRows:
    """Divides the rows of passes among generations, and learns what passes cost.

    A pass has the next token of every answer, and of what texts draft for them as much as pays; the rest of it goes to
    the prompts, the oldest first, but beside answers only so many rows that the pass is short.

    Args:
        admission: who is under way.
        division: divides the rows among the drafts of several generations.
        most_rows: rows of the largest pass.
        fail: ends a generation that has failed.
    """

    def __init__(
        self, admission: Admission, division: Division, most_rows: int, fail: Callable[[Ticket, Exception], None]
    ) -> None:
        self._admission, self._active = admission, admission.active
        self._division, self._most_rows, self._fail = division, most_rows, fail
        # Milliseconds of a pass without prompts, and of a row of a prompt; tokens of an answer.
        self._pass_ms = self._row_ms = self._answer_tokens = 0.0

    def take_over(self, division: Division, most_rows: int) -> None:
        """Divide the passes of something else from now on."""
        self._division, self._most_rows = division, most_rows

    def prepare(self) -> tuple[list[tuple[Ticket, Part]], int]:
        """Return what each gives to the next pass, answers first, and how many these are; the rows are reserved."""
        answers = self._answers()
        return [*answers, *self._pieces(answers)], len(answers)

    def learn(self, parts: list[Part], answers: int, ms: float) -> None:
        """Learn what passes cost: of answers, which come first, and for each row of a prompt."""
        rows = sum(len(part.token_ids) for part in parts[answers:])
        if not rows:
            self._pass_ms = _KEEP * self._pass_ms + (1 - _KEEP) * ms if self._pass_ms else ms
            if len(parts) > 1:
                self._division.learn(parts, ms)
        elif rows >= LEAST_PIECE - 1:
            each = max(ms - self._pass_ms, 0.0) / rows
            self._row_ms = _KEEP * self._row_ms + (1 - _KEEP) * each if self._row_ms else each

    def retry_after(self) -> float:
        """Return in about how many seconds an answer ends, by the speeds of passes and the lengths of answers."""
        prompts = passes = 0.0
        for ticket in tuple(self._active):
            sequence = ticket.generation.sequence
            prompts += max(sequence.num_prompt_tokens - (ticket.decoding.cache.length if ticket.decoding else 0), 0)
            left = min(sequence.room, max(self._answer_tokens - sequence.num_answer_tokens, 1.0))
            passes = min(passes or left, left)
        return max(1e-3 * (self._pass_ms * passes + self._row_ms * prompts), 0.1)

    def learn_length(self, tokens: int) -> None:
        """Learn from an answer of so many tokens."""
        self._answer_tokens += (1 - _KEEP) * (tokens - self._answer_tokens) if self._answer_tokens else tokens

    def _answers(self) -> list[tuple[Ticket, Part]]:
        """Return what answers give to the next pass, with their drafts; the rows are reserved."""
        tickets, spare = [], min(len(self._admission.caches), self._most_rows - len(self._active))
        for ticket in self._active:
            # Behind a grammar an answer has tokens that are forced as well.
            more = ticket.running.num_pending - 1
            if not more or (ticket.generation.sequence.num_answer_tokens and more <= spare):
                spare -= more
                tickets.append(ticket)
        if len(self._active) == 1:
            return [prepared for ticket in tickets for prepared in self._prepared(ticket)]
        # Drafts leave prompts that wait their piece.
        kept = LEAST_PIECE if len(tickets) < len(self._active) else 0
        drafts = self._division.drafts([ticket.running for ticket in tickets], self._most_rows - kept)
        pairs = zip(tickets, drafts, strict=True)
        return [prepared for ticket, draft in pairs for prepared in self._prepared(ticket, draft=draft)]

    def _prepared(
        self, ticket: Ticket, most: int | None = None, draft: Draft | None = None
    ) -> list[tuple[Ticket, Part]]:
        """Return what a generation gives to the next pass; nothing where that fails, which ends it and no other."""
        try:
            return [(ticket, ticket.running.prepare(most, draft))]
        except Cancelled:
            raise
        except Exception as error:
            self._fail(ticket, error)
            return []

    def _pieces(self, answers: list[tuple[Ticket, Part]]) -> list[tuple[Ticket, Part]]:
        """Return what prompts give to the next pass beside answers; the rows are reserved."""
        room = self._piece_rows(sum(len(part.token_ids) for _, part in answers))
        computed, pieces = {id(ticket) for ticket, _ in answers}, []
        for ticket in tuple(self._active):
            if id(ticket) in computed or room <= 0:
                continue
            draft = None
            if len(self._active) > 1:
                self._division.leave_out(ticket.running)
                draft = Draft()
            for prepared in self._prepared(ticket, room, draft):
                pieces.append(prepared)
                room -= len(prepared[1].token_ids)
        return pieces

    def _piece_rows(self, answers: int) -> int:
        """Return how many rows of a pass prompts may have beside so many of answers."""
        most = self._most_rows - answers
        if not answers or not self._row_ms:
            return most if not answers else min(most, LEAST_PIECE)
        left = max(LONGEST_PASS_MS, 3 * self._pass_ms) - self._pass_ms
        return max(min(most, int(left / self._row_ms)), min(most, LEAST_PIECE))
