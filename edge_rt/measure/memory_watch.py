"""Measures a process that runs up to its plan's limits: starts it, samples its memory, and ends it.

The process is ``memory_worker``; the result is a ``memory_report.MemoryRun``.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

from edge_rt import errors
from edge_rt.device.names import ON_CPU
from edge_rt.errors import EdgeRTError, InferenceError, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.measure.memory_report import MemoryRun, Moment, Stage
from edge_rt.memory.figures import Choice
from edge_rt.memory.plan import Plan
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.system.process_memory import file_bytes, range_bytes, read_mappings, read_memory

SAMPLE_SECONDS: Final = 0.05
_KILLED: Final = -9
"""Exit code after SIGKILL, a signal whose name is not defined on every system."""


WORKER: Final = "edge_rt.measure.memory_worker"


class MeasuredProcess:
    """A fresh process for one measurement. It has started at the beginning of the ``with`` block, and ends with it.

    Args:
        worker: module that it runs: ``memory_worker``, or one that first imports more and then runs it.
    """

    def __init__(self, worker: str = WORKER) -> None:
        self._worker = worker

    def __enter__(self) -> Self:
        # Fails here, before a load, on systems without this information.
        read_mappings()
        self._complaints = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                # -P: without the current folder in its path, which may hold unrelated modules.
                [sys.executable, "-P", "-m", self._worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                # Ctrl-C goes to this process only, which then ends the worker.
                start_new_session=True,
            )
        except BaseException:
            self._complaints.close()
            raise
        try:
            self._watch = _Watch(self._process)
            with self._ends_early():
                self._watch.wait_for_start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    @property
    def base_bytes(self) -> int:
        """Resident bytes before it loads anything: a plan for it counts them as those of the process."""
        return self._watch.base_bytes

    def run(
        self,
        package: Path,
        plan: Plan,
        *,
        threads: int | None = None,
        turns: int = 0,
        on_stage: Callable[[str], None] | None = None,
    ) -> MemoryRun:
        """Load a package in this process and run it up to the plan's limits, once.

        Args:
            threads: threads that compute; None uses every CPU this process may use.
            turns: run a chat of this many turns instead of going to the plan's limits.
        """
        asked = plan.request
        request = {
            "package": str(package),
            "budget_bytes": plan.budget_bytes,
            "base_bytes": plan.base_bytes,
            "driver_bytes": plan.sizes.driver,
            "ctx": asked.ctx,
            "kv": asked.kv,
            "spec": asked.spec,
            "draft_max": asked.draft_max,
            "prefill_chunk": asked.prefill_chunk,
            "kv_rows": asked.kv_rows,
            "experts": asked.experts,
            "corpus": asked.corpus,
            "drafter": asked.drafter_folder,
            "threads": threads,
            "device": str(ON_CPU if plan.device_choice is None else plan.device_choice.device),
            "device_budget_bytes": plan.device_budget_bytes,
            "slots": None if asked.slots == 1 else asked.slots,
            "turns": turns,
        }
        corpus = None if asked.corpus is None else Path(asked.corpus).resolve()
        drafter = None
        if plan.choice.drafter and asked.drafter is not None:
            drafter = Path(asked.drafter.path).resolve() / WEIGHTS_FILE
        files = _Files(package / WEIGHTS_FILE, corpus, drafter)
        with self._ends_early():
            return self._watch.follow(request, files, plan.choice, on_stage)

    @contextmanager
    def _ends_early(self) -> Iterator[None]:
        try:
            yield
        except (BrokenPipeError, EOFError) as error:
            raise _ended(self._process.wait(), self._complaints) from error

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._complaints.close()


class _Files(NamedTuple):
    """Files that the process maps; None: not that one."""

    weights: Path
    corpus: Path | None
    drafter: Path | None


class _Watch:
    """Samples the memory of a process while it works, and measures it in detail after every stage."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._folder = Path(f"/proc/{process.pid}")
        self._started = time.perf_counter()
        self._files: _Files | None = None
        self._choice: dict[str, Any] = {}
        self._on_stage: Callable[[str], None] | None = None
        self._addresses: dict[str, int] = {}
        self._stages: list[Stage] = []
        self._moments: list[Moment] = []

    @property
    def base_bytes(self) -> int:
        """Resident bytes after the first stage."""
        return self._stages[0].memory.resident_bytes

    def wait_for_start(self) -> None:
        """Wait until the process has imported what it needs, and waits for a request."""
        message = self._next()
        self._measure_stage(message.pop("stage"), message)

    def follow(
        self, request: dict[str, Any], files: _Files, choice: Choice, on_stage: Callable[[str], None] | None
    ) -> MemoryRun:
        """Send the request to the process and measure it until it has finished."""
        self._files, self._on_stage = files, on_stage
        # In the form in which it comes through the pipe.
        self._choice = json.loads(json.dumps(asdict(choice)))
        if on_stage is not None:
            on_stage(self._stages[0].name)
        self._send(json.dumps(request))
        while not self._handle(self._next()):
            pass
        return MemoryRun(tuple(self._stages), tuple(self._moments))

    def _next(self) -> dict[str, Any]:
        """Return the next message of the process; its memory is sampled until then."""
        assert self._process.stdout is not None
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            # It waits for a reply to every line, so there is never more than one.
            while not pending.endswith(b"\n"):
                if not selector.select(SAMPLE_SECONDS):
                    # A process that has just ended cannot be read; the pipe reports its end.
                    with suppress(RuntimeUnavailable):
                        self._moments.append(Moment(self._seconds(), read_memory(self._folder)))
                    continue
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise EOFError
                pending += piece
        return dict(json.loads(pending))

    def _handle(self, message: dict[str, Any]) -> bool:
        """Handle one message of the process; return whether it has finished."""
        name = message.pop("stage")
        if name == "error":
            raise _as_error(message["error"])
        if message.pop("choice", self._choice) != self._choice:
            raise InferenceError(
                "The measured process has made another plan.",
                f"The plan here is {self._choice}.",
                "Report it if it repeats.",
            )
        for kind in ("cache", "logits"):
            if kind in message:
                self._addresses[kind] = message.pop(kind)
        if name != "addresses":
            self._measure_stage(name, message)
            if self._on_stage is not None:
                self._on_stage(name)
        self._send("")
        return bool(name == "end")

    def _measure_stage(self, name: str, facts: dict[str, Any]) -> None:
        mappings = read_mappings(self._folder)
        memory = read_memory(self._folder)
        cache, logits = (self._addresses.get(kind) for kind in ("cache", "logits"))
        weights, corpus, drafter = self._files or (None, None, None)
        stage = Stage(
            name,
            self._seconds(),
            memory,
            weights_bytes=0 if weights is None else file_bytes(mappings, weights),
            cache_bytes=0 if cache is None else range_bytes(mappings, [cache]),
            logits_bytes=0 if logits is None else range_bytes(mappings, [logits]),
            corpus_bytes=0 if corpus is None else file_bytes(mappings, corpus),
            drafter_bytes=0 if drafter is None else file_bytes(mappings, drafter),
            facts=facts,
        )
        self._stages.append(stage)
        self._moments.append(Moment(stage.seconds, memory))

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _seconds(self) -> float:
        return time.perf_counter() - self._started


def _as_error(message: dict[str, Any]) -> EdgeRTError:
    """Return the error that the other process reported."""
    kind = getattr(errors, message["type"], EdgeRTError)
    parts = message["what"], message["numbers"], message["action"]
    try:
        return kind(*parts) if issubclass(kind, EdgeRTError) else InferenceError(*parts)
    except TypeError:
        # One that is made from other arguments.
        return InferenceError(*parts)


def _ended(code: int, complaints: IO[bytes]) -> EdgeRTError:
    """Return the error for a process that ended without reporting one."""
    if code == _KILLED:
        return MemoryBudgetExceeded(
            "The process that was measured was killed.",
            "The kernel kills a process that needs more memory than its cgroup or the machine has.",
            "Give a smaller --memory or --ctx.",
        )
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    return InferenceError(
        "The process that was measured ended early.",
        f"Its exit code was {code}; its last output: {lines[-1] if lines else 'nothing'}"[:300].rstrip(".") + ".",
        "Report it if it repeats.",
    )
