"""Several generations in shared passes: who waits, who has a slot, and what each gives to the next pass.

Nobody runs it: whoever waits for an event of a generation computes the next step for all of them. So a lone generation
runs in its caller's thread, and a reader that takes nothing holds up nobody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence as Items
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, NamedTuple

from edge_rt.errors import Busy, Cancelled, out_of_memory
from edge_rt.runtime.cache.kv_cache import KVCache, common_prefix
from edge_rt.runtime.decode.accept import accept
from edge_rt.runtime.decode.draft import Accepted, Drafter, NullDrafter
from edge_rt.runtime.decode.loop import AcceptanceRule, Decoding
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.forward.runner import Runner
from edge_rt.runtime.generation import Generation
from edge_rt.runtime.results import Event
from edge_rt.runtime.stream import Events, Outcome

LEAST_PIECE: Final = 16
"""Tokens of a prompt that a pass computes beside answers, however slow they are."""
LONGEST_PASS_MS: Final = 60.0
"""How long a pass with a piece of a prompt may take beside answers, unless three passes without one take longer."""
_KEEP: Final = 0.75

Drafting = Callable[[], tuple[Drafter, AcceptanceRule]]
"""Returns who drafts, and which of the drafted tokens stay."""


class Wanted(NamedTuple):
    """How a generation is computed.

    Attributes:
        drafting: chooses who drafts while it is alone.
        is_alone: whether it shares no pass, because its text depends on its drafts.
        outer: the caller's token, which stops it.
    """

    drafting: Drafting
    is_alone: bool = False
    outer: CancelToken | None = None


class Ticket:
    """A generation that was submitted.

    Attributes:
        events: made and not read yet.
        error: what it failed with; None: it did not.
        has_ended: whether no further event comes.
    """

    def __init__(self, generation: Generation, outcome: Outcome, wanted: Wanted) -> None:
        self.generation, self.outcome, self.wanted = generation, outcome, wanted
        self.events: deque[Event] = deque()
        self.error: BaseException | None = None
        self.has_ended = False
        self.slot: int | None = None
        self.decoding: Decoding | None = None
        self.drafts = False
        self.unsubscribe: Callable[[], None] | None = None

    @property
    def pending(self) -> int:
        """Tokens that are not computed yet."""
        assert self.decoding is not None, "it has no slot"
        return len(self.decoding.sequence.token_ids) - self.decoding.cache.length


class Batch:
    """The generations of a model.

    A step takes those in that wait, first come, first served, as long as there are slots. A pass has the next token of
    every answer; the rest of it goes to the prompts, the oldest first, but beside answers only so many rows that the
    pass is short. Each generation has rows of its own for the longest answer, so none is cut short by another. A
    generation drafts as long as it has been the only one.

    Args:
        caches: one for every slot.
        hold: holds the model while there are generations; the token stops passes.
        most_rows: rows of the largest pass, without drafts.
        forget: what drafters have learned, where one of them has failed.
    """

    def __init__(
        self,
        caches: Items[KVCache],
        hold: Callable[[CancelToken], AbstractContextManager[Runner]],
        *,
        most_rows: int,
        forget: Callable[[], None],
    ) -> None:
        assert most_rows > len(caches), (most_rows, len(caches))
        self._caches = tuple(caches)
        self._hold, self._most_rows, self._forget = hold, most_rows, forget
        self._changed = threading.Condition()
        self._is_stepping, self._thread = False, 0
        self._waiting: deque[Ticket] = deque()
        self._active: list[Ticket] = []  # in the order in which they came
        self._held = ExitStack()
        self._runner: Runner | None = None
        # Milliseconds of a pass without prompts, and of a row of a prompt.
        self._pass_ms = self._row_ms = 0.0

    def submit(self, generation: Generation, outcome: Outcome, wanted: Wanted) -> Ticket:
        """Add a generation, from any thread; ``step`` computes it."""
        ticket = Ticket(generation, outcome, wanted)
        if wanted.outer is not None:
            ticket.unsubscribe = wanted.outer.on_cancel(outcome.cancel.cancel)
        with self._changed:
            self._waiting.append(ticket)
        return ticket

    def events(self, generation: Generation, wanted: Wanted, outcome: Outcome) -> Events:
        """Generate, together with others, and tell the outcome; as ``Generation.events``."""
        with outcome.telling(generation.settled):
            ticket = self.submit(generation, outcome, wanted)
            try:
                while (event := self._next(ticket)) is not None:
                    yield event
            finally:
                self.cancel(ticket)

    def step(self) -> bool:
        """Compute one pass, unless another thread does; return whether there is more to do."""
        with self._changed:
            if self._is_stepping:
                return True
            self._is_stepping = True
            self._thread = threading.get_ident()
        try:
            self._step()
        finally:
            self._end_step()
        return bool(self._active or self._waiting)

    def compute_until(self, is_reached: Callable[[], bool]) -> None:
        """Compute steps, or wait for those of others, until something is so; it is asked between two steps."""
        while True:
            with self._changed:
                while not (is_done := is_reached()) and self._is_stepping:
                    self._wait()
            if is_done:
                return
            self.step()

    def cancel(self, ticket: Ticket) -> None:
        """End a generation, which keeps its whole steps; does nothing if it has ended."""
        if ticket.has_ended:
            return
        ticket.outcome.cancel.cancel()
        with self._stepping():
            if not ticket.has_ended:
                self._end(ticket)
            self._release_if_idle()

    def drain(self) -> None:
        """Compute until no generation is left."""
        while self.step():
            with self._changed:
                while self._is_stepping:
                    self._wait()

    def forget_rows(self) -> None:
        """Empty the caches of all slots; nothing may be generated."""
        for cache in self._caches:
            cache.truncate(0)

    def close(self) -> None:
        """End all generations."""
        for ticket in (*self._active, *self._waiting):
            self.cancel(ticket)

    def check(self) -> None:
        """Assert the invariants between two steps."""
        with self._stepping():
            taken = [ticket.slot for ticket in self._active]
            assert len(set(taken)) == len(taken), taken
            assert bool(self._active) == (self._runner is not None), taken
            for cache in self._caches:
                cache.check()
                assert not cache.reserved, cache.reserved
            for ticket in self._active:
                sequence, cache = ticket.generation.sequence, self._caches[ticket.slot or 0]
                assert cache.token_ids == tuple(sequence.token_ids[: cache.length]), ticket.slot

    def _next(self, ticket: Ticket) -> Event | None:
        """Return the next event, computing steps where nobody does; None at the end."""
        self.compute_until(lambda: bool(ticket.events) or ticket.has_ended)
        if ticket.events:
            return ticket.events.popleft()
        if ticket.error is not None:
            raise ticket.error
        return None

    @contextmanager
    def _stepping(self) -> Generator[None]:
        """Keep others from computing steps while a block runs; waits for the one under way."""
        with self._changed:
            while self._is_stepping:
                self._wait()
            self._is_stepping = True
            self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._end_step()

    def _wait(self) -> None:
        """Wait for the step under way."""
        if self._thread == threading.get_ident():
            raise Busy("The model is computing.", "It was called by what a step has called.", "Call it afterwards.")
        self._changed.wait()

    def _end_step(self) -> None:
        with self._changed:
            self._is_stepping = False
            self._changed.notify_all()

    def _step(self) -> None:
        for ticket in (*self._active, *self._waiting):
            if ticket.outcome.cancel.cancelled:
                self._end(ticket)
        self._admit()
        try:
            if self._active:
                self._compute()
        except Cancelled:
            # The model was closed.
            for ticket in tuple(self._active):
                self._end(ticket, is_stopped=True)
        finally:
            for ticket in self._active:
                assert ticket.decoding is not None
                ticket.decoding.drop()
            self._release_if_idle()

    def _admit(self) -> None:
        """Give slots to those that wait, in their order."""
        while self._waiting and len(self._active) < len(self._caches):
            ticket = self._waiting[0]
            if self._active and (ticket.wanted.is_alone or self._active[0].wanted.is_alone):
                return
            try:
                if self._runner is None:
                    self._runner = self._held.enter_context(self._hold(CancelToken()))
                self._begin(ticket)
            except BaseException as error:
                self._end(ticket, error)
                if not isinstance(error, Exception):
                    raise
            else:
                with self._changed:
                    self._waiting.remove(ticket)
                if len(self._active) > 1:
                    self._stop_drafting(self._active[0])

    def _begin(self, ticket: Ticket) -> None:
        """Let a generation begin in the free slot whose rows have most of its prompt."""
        taken = {other.slot for other in self._active}
        token_ids = ticket.generation.sequence.token_ids
        free = [index for index in range(len(self._caches)) if index not in taken]
        # Networks that draft know the first slot alone.
        slot = max(free, key=lambda index: common_prefix(list(self._caches[index].token_ids), token_ids))
        first = not self._active
        if first:
            slot = 0
        drafter, rule = ticket.wanted.drafting() if first else (NullDrafter(), accept)
        ticket.slot, ticket.drafts = slot, first
        ticket.decoding = ticket.generation.open(self._caches[slot], drafter, rule)
        self._active.append(ticket)
        if (forced := ticket.decoding.begin()) is not None:
            self._deliver(ticket, forced)

    def _stop_drafting(self, ticket: Ticket) -> None:
        if ticket.drafts and ticket.decoding is not None:
            ticket.drafts = False
            ticket.decoding.stop_drafting()

    def _compute(self) -> None:
        """Run one pass, and deliver what it gave."""
        parts = self._parts()
        runner = self._runner
        assert runner is not None, "the model is not held"
        started = time.perf_counter()
        computed = [part for _, part in parts]
        try:
            outputs = self._forward(runner, computed)
        except Cancelled:
            raise
        except Exception as error:
            for ticket, _ in parts:
                self._end(ticket, error)
            return
        self._learn(computed, 1e3 * (time.perf_counter() - started))
        left = [ticket for ticket, _ in parts]
        try:
            for ticket, output in zip(tuple(left), outputs, strict=True):
                assert ticket.decoding is not None
                try:
                    ticket.decoding.choose(output)
                except Exception as error:
                    left.remove(ticket)
                    self._end(ticket, error)
            for ticket in tuple(left):
                self._commit(ticket)
                left.remove(ticket)
        except BaseException as error:
            # Samplers have drawn numbers for tokens that are lost.
            for ticket in left:
                self._end(ticket, error)
            raise

    def _forward(self, runner: Runner, parts: list[Part]) -> list[Outputs]:
        if len(self._caches) == 1:
            token_ids, start, num_logits, parents, _, _ = parts[0]
            return [runner.forward(token_ids, start, max(num_logits, 1), parents=parents)]
        if not any(part.num_logits for part in parts):
            parts[-1] = parts[-1]._replace(num_logits=1)
        return runner.forward_many(parts)

    def _commit(self, ticket: Ticket) -> None:
        assert ticket.decoding is not None
        try:
            if (accepted := ticket.decoding.commit()) is not None:
                self._deliver(ticket, accepted)
            else:
                ticket.generation.tell_progress()
        except Exception as error:
            self._end(ticket, error)

    def _parts(self) -> list[tuple[Ticket, Part]]:
        """Return what each generation gives to the next pass; its rows are reserved."""
        answering = [ticket for ticket in self._active if ticket.pending == 1]
        parts = []
        for ticket in answering:
            assert ticket.decoding is not None
            parts.append((ticket, ticket.decoding.prepare(1)))
        room = self._piece_rows(len(answering))
        for ticket in self._active:
            if ticket in answering or room <= 0:
                continue
            assert ticket.decoding is not None
            part = ticket.decoding.prepare(room)
            parts.append((ticket, part))
            room -= len(part.token_ids)
        return parts

    def _piece_rows(self, answers: int) -> int:
        """Return how many rows of a pass prompts may have beside the tokens of some answers."""
        most = self._most_rows - answers
        if not answers or not self._row_ms:
            return most if not answers else min(most, LEAST_PIECE)
        left = max(LONGEST_PASS_MS, 3 * self._pass_ms) - self._pass_ms
        return max(min(most, int(left / self._row_ms)), min(most, LEAST_PIECE))

    def _learn(self, parts: list[Part], ms: float) -> None:
        """Learn what passes cost: of answers, and for each row of a prompt."""
        rows = sum(len(part.token_ids) for part in parts)
        if rows == len(parts):
            self._pass_ms = _KEEP * self._pass_ms + (1 - _KEEP) * ms if self._pass_ms else ms
        elif rows >= len(parts) + LEAST_PIECE - 1:
            each = max(ms - self._pass_ms, 0.0) / (rows - len(parts))
            self._row_ms = _KEEP * self._row_ms + (1 - _KEEP) * each if self._row_ms else each

    def _deliver(self, ticket: Ticket, accepted: Accepted) -> None:
        generation = ticket.generation
        event = generation.take(accepted, ticket.outcome)
        with self._changed:
            ticket.events.append(event)
        if generation.sequence.is_finished:
            self._end(ticket)

    def _end(self, ticket: Ticket, error: BaseException | None = None, *, is_stopped: bool = False) -> None:
        """End a generation between two steps: finished, cancelled, or failed."""
        generation, rest = ticket.generation, None
        if ticket.decoding is not None:
            ticket.decoding.drop()
            try:
                if error is None:
                    if is_stopped or not generation.sequence.is_finished:
                        generation.stop()
                    rest = generation.rest()
                    generation.close()
            except Exception as failure:
                error = failure
        else:
            generation.sequence.finish("cancelled")
        if error is not None and ticket.drafts:
            self._forget()
        if isinstance(error, MemoryError):
            error = out_of_memory(error, "Load the model with fewer slots, or a smaller context.")
        if ticket.unsubscribe is not None:
            ticket.unsubscribe()
            ticket.unsubscribe = None
        with self._changed:
            if ticket in self._active:
                self._active.remove(ticket)
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            if rest is not None:
                ticket.events.append(rest)
            ticket.error, ticket.has_ended = error, True

    def _release_if_idle(self) -> None:
        if not self._active and self._runner is not None:
            self._runner = None
            self._held.close()
