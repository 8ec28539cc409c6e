"""Looks at a process that is driven to its plan's limits: starts it, samples its memory, and ends it.

The process is ``memory_worker``; what is seen becomes a ``memory_report.MemoryRun``.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

from edge_rt import errors
from edge_rt.errors import EdgeRTError, InferenceError, MemoryBudgetExceeded, RuntimeUnavailable
from edge_rt.measure.memory_report import MemoryRun, Moment, Stage
from edge_rt.memory.choice import Choice
from edge_rt.memory.plan import Plan
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.system.process_memory import file_bytes, range_bytes, read_mappings, read_memory

SAMPLE_SECONDS: Final = 0.05
_KILLED: Final = -9
"""Exit code after SIGKILL, of which systems without ``/proc`` have no name."""


def measure_plan(
    package: Path,
    plan: Plan,
    *,
    worker: str = "edge_rt.measure.memory_worker",
    threads: int | None = None,
    turns: int = 0,
    on_stage: Callable[[str], None] | None = None,
) -> MemoryRun:
    """Load a package in a fresh process as planned, drive it to the plan's limits, and measure it meanwhile.

    Args:
        package: its folder.
        plan: what it is loaded with.
        worker: module that the process runs: ``memory_worker``, or one that has more in memory and then runs it.
        threads: None takes every CPU this process may use.
        turns: hold a chat of so many turns instead of driving it to its limits.
        on_stage: called with the name of every finished stage.

    Raises:
        EdgeRTError: what the process raised.
        MemoryBudgetExceeded: likewise, or the kernel killed it.
        RuntimeUnavailable: this system does not tell what a process holds.
    """
    asked = plan.request
    request = {
        "package": str(package),
        "budget_bytes": plan.budget_bytes,
        "base_bytes": sum(term.bytes for term in plan.terms if term.name == "runtime"),
        "ctx": asked.ctx,
        "kv": asked.kv,
        "spec": asked.spec,
        "draft_max": asked.draft_max,
        "prefill_chunk": asked.prefill_chunk,
        "corpus": asked.corpus,
        "threads": threads,
        "turns": turns,
    }
    # Refused here, not after a load.
    read_mappings()
    with tempfile.TemporaryFile() as complaints:
        started = time.perf_counter()
        process = subprocess.Popen(
            # Without the current folder in its path: what lies there is none of ours.
            [sys.executable, "-P", "-m", worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            # Ctrl-C is for this process, which ends that one.
            start_new_session=True,
        )
        try:
            corpus = None if asked.corpus is None else Path(asked.corpus).resolve()
            return _Watch(process, package / WEIGHTS_FILE, corpus, plan.choice, started, on_stage).follow(request)
        except (BrokenPipeError, EOFError) as error:
            raise _ended(process.wait(), complaints) from error
        finally:
            process.kill()
            process.communicate()


class _Watch:
    """Looks at a process while it works, and closer whenever it has finished something."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        weights: Path,
        corpus: Path | None,
        choice: Choice,
        started: float,
        on_stage: Callable[[str], None] | None,
    ) -> None:
        # As it comes through the pipe.
        self._choice = json.loads(json.dumps(asdict(choice)))
        self._process = process
        self._folder = Path(f"/proc/{process.pid}")
        self._weights = weights
        self._corpus = corpus
        self._started = started
        self._on_stage = on_stage
        self._addresses: dict[str, int] = {}
        self._stages: list[Stage] = []
        self._moments: list[Moment] = []

    def follow(self, request: dict[str, Any]) -> MemoryRun:
        """Give the process its task and follow it to the end.

        Raises:
            EdgeRTError: what it raised.
            BrokenPipeError, EOFError: it ended before.
        """
        assert self._process.stdout is not None
        self._say(json.dumps(request))
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(SAMPLE_SECONDS):
                    # One that has just ended tells nothing; the pipe will say so.
                    with suppress(RuntimeUnavailable):
                        self._moments.append(Moment(self._seconds(), read_memory(self._folder)))
                    continue
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise EOFError
                pending += piece
                # It waits for an answer to every line, so there is never more than one.
                if pending.endswith(b"\n"):
                    if self._hear(json.loads(pending)):
                        return MemoryRun(tuple(self._stages), tuple(self._moments))
                    pending = b""

    def _hear(self, told: dict[str, Any]) -> bool:
        """Take in what the process tells; returns whether it has finished."""
        name = told.pop("stage")
        if name == "error":
            raise _as_error(told["error"])
        if told.pop("choice", self._choice) != self._choice:
            raise InferenceError(
                "The process has planned something else than was to be measured.",
                f"{self._choice} was planned here.",
                "Report it if it repeats.",
            )
        for kind in ("cache", "logits"):
            if kind in told:
                self._addresses[kind] = told.pop(kind)
        if name != "addresses":
            self._look(name, told)
            if self._on_stage is not None:
                self._on_stage(name)
        self._say("")
        return bool(name == "end")

    def _look(self, name: str, facts: dict[str, Any]) -> None:
        mappings = read_mappings(self._folder)
        memory = read_memory(self._folder)
        cache, logits = (self._addresses.get(kind) for kind in ("cache", "logits"))
        stage = Stage(
            name,
            self._seconds(),
            memory,
            weights_bytes=file_bytes(mappings, self._weights),
            cache_bytes=0 if cache is None else range_bytes(mappings, [cache]),
            logits_bytes=0 if logits is None else range_bytes(mappings, [logits]),
            corpus_bytes=0 if self._corpus is None else file_bytes(mappings, self._corpus),
            facts=facts,
        )
        self._stages.append(stage)
        self._moments.append(Moment(stage.seconds, memory))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _seconds(self) -> float:
        return time.perf_counter() - self._started


def _as_error(told: dict[str, Any]) -> EdgeRTError:
    """Return the error that the other process told of."""
    kind = getattr(errors, told["type"], EdgeRTError)
    parts = told["what"], told["numbers"], told["action"]
    try:
        return kind(*parts) if issubclass(kind, EdgeRTError) else InferenceError(*parts)
    except TypeError:
        # One that is made from other arguments.
        return InferenceError(*parts)


def _ended(code: int, complaints: IO[bytes]) -> EdgeRTError:
    """Return the error for a process that ended without a word."""
    if code == _KILLED:
        return MemoryBudgetExceeded(
            "The process that was measured was killed.",
            "The kernel does that to a process that takes more memory than its group or the machine has.",
            "Give a smaller --memory or --ctx.",
        )
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    return InferenceError(
        "The process that was measured ended early.",
        f"Its exit code was {code}; it said: {lines[-1] if lines else 'nothing'}"[:300].rstrip(".") + ".",
        "Report it if it repeats.",
    )
