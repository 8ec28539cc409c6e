"""Runs the graph of a package over a KV cache: arrays in, logits out, no decisions."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

from edge_rt.errors import Busy, Cancelled, InferenceError, ModelClosed, UnsupportedModel
from edge_rt.ort.binding import StopSwitch
from edge_rt.ort.session import Session
from edge_rt.runtime.forward.cancel import CancelToken
from edge_rt.runtime.forward.io_binding_base import BoundPass, IOBinding, Part
from edge_rt.runtime.forward.outputs import Outputs
from edge_rt.runtime.forward.row_order import depth_first, in_order, put_back

MAX_KEPT_SHAPES: Final = 72
"""Bindings kept for later passes of the same shape; creating one takes about 40 microseconds."""


PassListener = Callable[[Part, Outputs], None]
"""Is told of a pass over one sequence, what it computed and its results."""


class Runner(ABC):
    """Runs passes over one cache, one at a time."""

    def __init__(self, io_binding: IOBinding, switch: StopSwitch) -> None:
        self._io_binding = io_binding
        self._switch = switch
        # Reentrant: a signal handler may close the model in the thread that runs it.
        self._running = threading.RLock()

    @abstractmethod
    def forward(
        self,
        token_ids: Sequence[int],
        start: int,
        num_logits: int,
        *,
        parents: Sequence[int] | None = None,
        logit_rows: Sequence[int] | None = None,
    ) -> Outputs:
        """Compute tokens into cache rows ``start`` to ``start + len(token_ids)``.

        Args:
            num_logits: how many of the last tokens need logits, at least 1.
            parents: for every token the earlier one of this pass that it follows, or -1 for the context's last; None
                for a chain. Only packages of the native op profile compute trees.
            logit_rows: indices of the ``num_logits`` tokens that need logits; None takes the last ones.

        Returns:
            The results for these rows. The memory belongs to the runner and is overwritten by any later pass, whatever
            its shape: copy what has to be kept.
        """

    def forward_many(self, parts: Sequence[Part]) -> list[Outputs]:
        """Compute tokens of several sequences, whose rows have the bits that they would have alone.

        No part may write rows of the cache that another reads or writes.

        Returns:
            The results of every part, whose memory is overwritten by any later pass.

        Raises:
            UnsupportedModel: the package, or the device, computes one sequence at a time.
        """
        if len(parts) > 1 or parts[0].row_map is not None:
            raise UnsupportedModel(
                "This model computes one sequence at a time.",
                f"A pass has {len(parts)}; native packages take several.",
                "Compute them one after the other.",
            )
        (one,) = parts
        found = self.forward(one.token_ids, one.start, one.num_logits, parents=one.parents, logit_rows=one.logit_rows)
        return [found]

    @property
    def cache_address(self) -> int | None:
        """An address in the mapping that is the memory of the cache, which holds nothing else; None on a device."""
        return self._io_binding.cache_address

    @abstractmethod
    def close(self) -> None:
        """Wait for the running pass, then release graph and cache; later passes raise ``Cancelled``."""


class ModelRunner(Runner):
    """One graph, one cache, one pass at a time."""

    def __init__(self, session: Session, io_binding: IOBinding, switch: StopSwitch) -> None:
        super().__init__(io_binding, switch)
        io_binding.check(session)
        self._session: Session | None = session
        self.listener: PassListener | None = None
        """Is told of every pass over one sequence; it must raise nothing but what a pass does."""
        self._passes: dict[tuple[int, int, int], BoundPass] = {}

    def forward(
        self,
        token_ids: Sequence[int],
        start: int,
        num_logits: int,
        *,
        parents: Sequence[int] | None = None,
        logit_rows: Sequence[int] | None = None,
    ) -> Outputs:
        """Compute tokens into cache rows ``start`` to ``start + len(token_ids)``; see ``Runner.forward``."""
        part = Part(token_ids, start, num_logits, parents, logit_rows)
        with self._running:
            return self._told(part, self._run(self._pass(len(token_ids), num_logits, 0), (part,)))

    def forward_many(self, parts: Sequence[Part]) -> list[Outputs]:
        """Compute tokens of several sequences; see ``Runner.forward_many``."""
        if parts[0].row_map is None or not self._io_binding.most_sequences:
            return super().forward_many(parts)
        assert len(parts) <= self._io_binding.most_sequences, (len(parts), self._io_binding.most_sequences)
        rows, counts = sum(len(part.token_ids) for part in parts), [part.num_logits for part in parts]
        with self._running:
            outputs = self._run(self._pass(rows, sum(counts), len(parts)), parts).split(counts)
            return [self._told(parts[0], outputs[0])] if len(parts) == 1 else outputs

    def _run(self, bound: BoundPass, parts: Sequence[Part]) -> Outputs:
        """Run a pass; with states, whose operators take trees depth first, in that order."""
        io_binding = self._io_binding
        if not io_binding.states:
            bound.set(parts)
            return bound.run(self._switch)
        ordered, moved = [], []
        for part in parts:
            states = part.states or io_binding.states[0]
            order = None if part.parents is None else depth_first(part.parents)
            if order is None or order == list(range(len(order))):
                ordered.append(part)
                states.note(None)
                continue
            found, places = in_order(part, order)
            ordered.append(found)
            moved.append((part, places))
            states.note(places)
        bound.set(ordered)
        outputs = bound.run(self._switch)
        for part, places in moved:
            own = (part.row_map, part.window_map)
            usual = (io_binding.row_map, None if io_binding.window is None else io_binding.window.row_map)
            put_back(usual if part.row_map is None else own, part.start, places)
        return outputs

    def close(self) -> None:
        """Wait for the running pass, then release graph and cache; later passes raise ``Cancelled``."""
        with self._running:
            self._session = self.listener = None
            self._passes.clear()
            self._io_binding.release()

    def _told(self, part: Part, outputs: Outputs) -> Outputs:
        if self.listener is not None:
            self.listener(part, outputs)
        return outputs

    def _pass(self, rows: int, num_logits: int, sequences: int) -> BoundPass:
        if self._session is None:
            raise Cancelled("The model was closed.")
        key = (rows, num_logits, sequences)
        if key not in self._passes:
            if self._io_binding.outputs.reserve(num_logits):
                # Old bindings would write to the old memory, and keep it alive.
                self._passes.clear()
            if len(self._passes) >= MAX_KEPT_SHAPES:
                del self._passes[next(iter(self._passes))]
            self._passes[key] = self._io_binding.bind(self._session, *key)
        return self._passes[key]


class ExclusiveRunner:
    """Gives a runner to one user at a time, in the process that opened it, until it is closed."""

    def __init__(self) -> None:
        self.switch = StopSwitch()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._runner: Runner | None = None

    def open(self, runner: Runner) -> None:
        """Take a runner, whose passes ``switch`` stops."""
        self._runner = runner

    def exchange(self, runner: Runner) -> None:
        """Take another runner in place of one that was closed.

        Raises:
            Cancelled: the model was closed in the meantime; the other runner is closed, too.
        """
        if self._runner is None:
            runner.close()
            raise Cancelled("The model was closed.")
        self._runner = runner

    @property
    def is_open(self) -> bool:
        """Whether there is a runner."""
        return self._runner is not None

    def get(self) -> Runner:
        """Return the runner, whoever uses it."""
        if self._runner is None:
            raise closed()
        if os.getpid() != self._pid:
            raise InferenceError(
                "The model cannot be used in a forked process.",
                f"It was loaded by process {self._pid}, this is {os.getpid()}.",
                "Load it after the fork, or start processes with 'spawn'.",
            )
        return self._runner

    def check_free(self) -> None:
        """Raise what ``hold`` would raise now."""
        self.get()
        if self._lock.locked():
            raise _busy()

    @contextmanager
    def hold(self, cancel: CancelToken, outer: CancelToken | None = None) -> Generator[Runner]:
        """Use the runner alone while a block runs.

        Args:
            outer: cancels ``cancel``; the caller's token, which is not cancelled here.
        """
        self.get()
        if not self._lock.acquire(blocking=False):
            raise _busy()
        unsubscribe = []
        try:
            runner = self.get()
            self.switch.reset()
            unsubscribe.append(cancel.on_cancel(self.switch.stop))
            if outer is not None:
                unsubscribe.append(outer.on_cancel(cancel.cancel))
            yield runner
        finally:
            for stop_listening in unsubscribe:
                stop_listening()
            self._lock.release()

    def close(self) -> bool:
        """Stop the pass under way and free the runner; return whether there was one."""
        runner, self._runner = self._runner, None
        if runner is None:
            return False
        self.switch.stop()
        runner.close()
        return True


def _busy() -> Busy:
    return Busy(
        "The model is generating already.", "One generation at a time per model.", "Wait for it, or close its stream."
    )


def closed() -> ModelClosed:
    """Return the error of a model that was closed."""
    return ModelClosed("The model is closed.", "", "Load it again.")
