"""Several generations in shared passes: who begins, computes and ends, and what becomes of a pass that fails.

Nobody runs it: whoever waits for an event of a generation computes the next step for all of them. So a lone generation
runs in its caller's thread, and a reader that takes nothing holds up nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from edge_rt.errors import DEVICE_FAILURES, Cancelled, EdgeRTError, out_of_memory
from edge_rt.runtime.admission import Admission, Ticket, Turn, Wanted
from edge_rt.runtime.cache.kv_cache import KVCache
from edge_rt.runtime.cache.row_pool import RowPool
from edge_rt.runtime.decode.draft import Accepted, Drafter, NullDrafter
from edge_rt.runtime.decode.loop import AcceptanceRule
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.io_binding_base import Part
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.forward.runner import Runner
from edge_rt.runtime.generation import Generation, Held
from edge_rt.runtime.pass_rows import PassRows
from edge_rt.runtime.results import Event
from edge_rt.runtime.speculation.division import Division
from edge_rt.runtime.step_turns import StepTurns
from edge_rt.runtime.stream import Events, Outcome


class Batch:
    """The generations of a model.

    A step takes those in that wait and whose turn it is (``Admission``); ``PassRows`` says what each gives to its pass.
    Networks draft for a generation that began alone, while it is so.

    Args:
        admission: who waits, and who has a slot.
        hold: holds the model while there are generations; the token stops passes.
        division: divides the rows of a pass among the drafts of several generations.
        most_rows: rows of the largest pass.
        forget: what drafters have learned, where one of them has failed.
        instead: lets something else compute where a GPU has failed with one of ``DEVICE_FAILURES``, calls
            ``take_over`` and returns whether it did; None: nothing does.
    """

    def __init__(
        self,
        admission: Admission,
        hold: Callable[[CancelToken], AbstractContextManager[Runner]],
        division: Division,
        *,
        most_rows: int,
        forget: Callable[[], None],
        instead: Callable[[EdgeRTError], bool] | None = None,
    ) -> None:
        self._instead = instead
        assert most_rows > len(admission.caches), (most_rows, len(admission.caches))
        self.admission = admission
        self._active = admission.active
        self._hold, self._forget = hold, forget
        self._rows = PassRows(admission, division, most_rows, self._fail)
        self._turns = StepTurns()
        self._held = ExitStack()
        self._failed: list[tuple[Ticket, EdgeRTError]] = []
        self._runner: Runner | None = None
        # False in the middle of a turn, and behind one that an interrupt has ended there.
        self._is_whole = True

    def take_over(
        self, caches: Sequence[KVCache], pool: RowPool | None, division: Division, most_rows: int, note: str
    ) -> None:
        """Compute with other caches from now on, as those were lost with their device; as at the beginning.

        Who was under way goes on where it was, in the order in which it began and before all that wait, as there are
        slots and rows.

        Args:
            note: a sentence about that.
        """
        assert most_rows > len(caches), (most_rows, len(caches))
        self.admission.exchange(caches, pool, note)
        self._rows.take_over(division, most_rows)

    def submit(self, generation: Generation, outcome: Outcome, wanted: Wanted) -> Ticket:
        """Add a generation, from any thread; ``step`` computes it.

        Raises:
            QueueFull: too many wait.
        """
        ticket = Ticket(generation, outcome, wanted)
        self.admission.add(ticket, self._rows.retry_after)
        if wanted.outer is not None:
            ticket.unsubscribe = wanted.outer.on_cancel(outcome.cancel.cancel)
        return ticket

    def events(self, generation: Generation, wanted: Wanted, outcome: Outcome) -> Events:
        """Generate, together with others, and tell the outcome; as ``Generation.events``."""
        ticket = self.submit(generation, outcome, wanted)
        # One that was collected as garbage in the middle of a step has no result yet, and nobody who wants it.
        with outcome.telling(lambda: generation.settled() if ticket.has_ended else None):
            try:
                while (event := self._next(ticket)) is not None:
                    yield event
            finally:
                try:
                    self.cancel(ticket)
                except KeyboardInterrupt:
                    # It may have come before anything was noted.
                    outcome.cancel.cancel()
                    raise

    def step(self) -> bool:
        """Compute one pass, unless another thread does; return whether there is more to do."""
        return not self._turns.take_or_leave(self._step) or self.admission.has_work

    def compute_until(self, is_reached: Callable[[], bool]) -> None:
        """Compute steps, or wait for those of others, until something is so; it is asked between two steps."""
        while not self._turns.wait(is_reached, lambda: self.admission.is_held):
            self.step()

    def cancel(self, ticket: Ticket) -> None:
        """End a generation, which keeps its whole steps; does nothing if it has ended.

        In the middle of a step of the same thread, which collects garbage anywhere, the next step ends it. So it does
        where an interrupt comes meanwhile.
        """
        if ticket.has_ended:
            return
        ticket.outcome.cancel.cancel()
        if self._turns.is_inside:
            return
        with self._between_steps():
            pass

    @contextmanager
    def alone(self, outer: CancelToken | None = None) -> Generator[Runner]:
        """Hold the model for passes of one's own, once all that came before has ended; what comes later waits.

        Args:
            outer: stops the waiting, and then the passes.

        Raises:
            Cancelled: it was stopped while it waited.
        """
        turn, cancel = Turn(), CancelToken()
        unsubscribe = None if outer is None else outer.on_cancel(cancel.cancel)
        self.admission.add_turn(turn)
        try:
            self.compute_until(lambda: cancel.cancelled or self.admission.is_turn(turn))
            if cancel.cancelled:
                raise Cancelled("It was stopped while it waited.")
            with self._between_steps(), self._hold(cancel) as runner:
                yield runner
        finally:
            if unsubscribe is not None:
                unsubscribe()
            self.admission.end_turn(turn)
            self._turns.tell()

    def forget_rows(self) -> None:
        """Forget the rows that no generation computes with, between two steps."""
        with self._between_steps():
            self.admission.forget()

    def close(self) -> None:
        """End all generations."""
        for ticket in (*self._active, *self.admission.waiting):
            self.cancel(ticket)

    def check(self) -> None:
        """Assert the invariants between two steps."""
        with self._between_steps():
            self.admission.check()
            assert bool(self._active) == (self._runner is not None), self._active

    def _next(self, ticket: Ticket) -> Event | None:
        """Return the next event, computing steps where nobody does; None at the end."""
        self.compute_until(lambda: bool(ticket.events) or ticket.has_ended)
        if ticket.events:
            return ticket.events.popleft()
        if ticket.error is not None:
            raise ticket.error
        return None

    @contextmanager
    def _between_steps(self) -> Generator[None]:
        """Take a turn that computes no step, once all is whole."""
        with self._turns.take():
            try:
                self._finish()
                self._release_if_idle()
                yield
                self._is_whole = True
            finally:
                self._release_if_idle()

    def _finish(self) -> None:
        """Finish what an interrupt has left of an earlier turn, and end who was stopped."""
        if not self._is_whole:
            self.admission.mend()
        self._is_whole = False
        for ticket in (*self._active, *self.admission.waiting):
            if ticket.has_ended or ticket.outcome.cancel.cancelled:
                self._end(ticket)

    def _step(self) -> None:
        try:
            self._finish()
            self._admit()
            if self._active:
                self._compute()
            self._is_whole = True
        except Cancelled:
            # The model was closed.
            for ticket in tuple(self._active):
                self._end(ticket, is_stopped=True)
        finally:
            try:
                self._drop()
            except KeyboardInterrupt:
                # The second one, maybe: whoever is impatient leaves no pass under way.
                self._drop()
                raise

    def _drop(self) -> None:
        """Free what was reserved for a pass, and the model where nobody is under way; may be called twice."""
        for ticket in self._active:
            if ticket.decoding is not None:
                ticket.decoding.drop()
        self._release_if_idle()

    def _admit(self) -> None:
        """Let those begin that have a slot and rows."""
        while (ticket := self.admission.head) is not None:
            try:
                if self._runner is None:
                    self._runner = self._held.enter_context(self._hold(CancelToken()))
                is_first = not self._active
                # Before it has rows: networks that draft may have to measure passes first, which empties the cache.
                drafting = ticket.wanted.drafting(0, True) if is_first else None
                if (begun := self.admission.next()) is None:
                    return
                if begun is not ticket or drafting is None:
                    ticket = begun
                    drafting = ticket.wanted.drafting(ticket.slot or 0, False)
                self._open(ticket, *drafting)
            except Cancelled:
                # The model was closed while passes were measured.
                self._end(ticket, is_stopped=True)
            except Exception as error:
                self._fail(ticket, error)
            self._settle()

    def _open(self, ticket: Ticket, drafter: Drafter, rule: AcceptanceRule) -> None:
        """Begin a generation that has a slot and rows, or go on with it behind a device that has failed."""
        ticket.drafts = not isinstance(drafter, NullDrafter)
        try:
            if (given := self._begin(ticket, drafter, rule)) is not None:
                self._deliver(ticket, given)
        except BaseException as error:
            # An interrupt: what is half begun is not begun again.
            if not isinstance(error, Exception):
                self._end(ticket, error)
            raise

    def _begin(self, ticket: Ticket, drafter: Drafter, rule: AcceptanceRule) -> Accepted | None:
        generation, cache, note = ticket.generation, self.admission.cache_of(ticket), ticket.note
        if note is None:
            ticket.decoding = generation.open(cache, drafter, rule)
            return ticket.decoding.begin()
        assert self._runner is not None, "the model is not held"
        ticket.decoding, ticket.note = generation.resume(Held(self._runner, drafter, rule, cache, note=note)), None
        ticket.decoding.begin()
        return generation.missed()

    def _compute(self) -> None:
        """Run one pass, and deliver what it gave."""
        self._pass()
        self._settle()

    def _pass(self) -> None:
        parts, answers = self._rows.prepare()
        if not parts:
            return
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
                self._fail(ticket, error)
            return
        self._rows.learn(computed, answers, 1e3 * (time.perf_counter() - started))
        left = [ticket for ticket, _ in parts]
        try:
            for ticket, output in zip(tuple(left), outputs, strict=True):
                try:
                    ticket.running.choose(output)
                except Exception as error:
                    left.remove(ticket)
                    self._fail(ticket, error)
            for ticket in tuple(left):
                self._commit(ticket)
                left.remove(ticket)
        except BaseException as error:
            # Samplers have drawn numbers for tokens that are lost.
            for ticket in left:
                self._end(ticket, error)
            raise

    def _forward(self, runner: Runner, parts: list[Part]) -> list[Outputs]:
        if self.admission.pool is None:
            (one,) = parts
            return [runner.forward(one.token_ids, one.start, max(one.num_logits, 1), parents=one.parents)]
        if not any(part.num_logits for part in parts):
            parts[-1] = parts[-1]._replace(num_logits=1)
        return runner.forward_many(parts)

    def _commit(self, ticket: Ticket) -> None:
        try:
            if (accepted := ticket.running.commit()) is not None:
                self._deliver(ticket, accepted)
            else:
                ticket.generation.tell_progress()
        except Exception as error:
            self._fail(ticket, error)

    def _deliver(self, ticket: Ticket, accepted: Accepted) -> None:
        generation = ticket.generation
        event = generation.take(accepted, ticket.outcome)
        with self._turns.lock:
            ticket.events.append(event)
        if generation.sequence.is_finished:
            self._end(ticket)

    def _fail(self, ticket: Ticket, error: BaseException) -> None:
        """End a generation that has failed; where a GPU did, once it is known that nothing takes its place."""
        if not isinstance(error, DEVICE_FAILURES) or self._instead is None:
            self._end(ticket, error)
            return
        if ticket.decoding is not None:
            ticket.decoding.drop()
        # What it was raised through holds what was opened on the GPU.
        for one in (error, error.__cause__):
            if one is not None:
                one.with_traceback(None)
        self._failed.append((ticket, error))

    def _settle(self) -> None:
        """Let something take the place of a GPU that has failed, or end those whose passes these were.

        Only when nobody is in the middle of a step: of others tokens may be chosen, which are not chosen twice.
        """
        failed, self._failed = self._failed, []
        if not failed:
            return
        assert self._instead is not None, "nothing takes its place"
        for ticket in self._active:
            # What was begun for the next pass must not outlive the runner.
            if ticket.decoding is not None:
                ticket.decoding.drop()
        try:
            has_taken_over = self._instead(failed[0][1])
        except Cancelled:
            raise
        except Exception as failure:
            # The model is closed.
            for ticket in {id(one): one for one in (*self._active, *(one for one, _ in failed))}.values():
                self._end(ticket, failure)
            return
        if has_taken_over:
            # Whoever goes on holds what computes now.
            self._runner = None
            self._held.close()
            return
        for ticket, error in failed:
            self._end(ticket, error)

    def _end(self, ticket: Ticket, error: BaseException | None = None, *, is_stopped: bool = False) -> None:
        """End a generation between two steps: finished, cancelled, or failed; again, if an interrupt came meanwhile."""
        if not ticket.has_ended:
            self._settle_result(ticket, error, is_stopped=is_stopped)
        self.admission.leave(ticket)

    def _settle_result(self, ticket: Ticket, error: BaseException | None, *, is_stopped: bool) -> None:
        """Make the last event, or say what a generation has failed with; its rows are still its own."""
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
        elif ticket.note is not None:
            # It was begun on a device that has failed, and what it has given stays.
            generation.sequence.finish("cancelled")
            rest = generation.rest()
            generation.close()
        else:
            generation.sequence.finish("cancelled")
        if error is not None and ticket.drafts:
            self._forget()
        if isinstance(error, MemoryError):
            error = out_of_memory(error, "Load the model with fewer slots, or a smaller context.")
        if ticket.unsubscribe is not None:
            unsubscribe, ticket.unsubscribe = ticket.unsubscribe, None
            unsubscribe()
        if ticket.decoding is not None:
            self._rows.learn_length(generation.sequence.num_answer_tokens)
        with self._turns.lock:
            if rest is not None:
                ticket.events.append(rest)
            ticket.error, ticket.has_ended = error, True

    def _release_if_idle(self) -> None:
        if not self._active:
            self._runner = None
            self._held.close()
