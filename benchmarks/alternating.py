"""Runtimes in processes of their own, of which one works at a time; and ratios between what they took."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np


class Worker:
    """A runtime in a process of its own, stopped (SIGSTOP) except while it works.

    Thread pools that spin beside each other would falsify both figures. The process prints one line of JSON about
    itself, then answers each line of JSON with one.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._read()
        self._pause()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Let the process work on a request and return its answer."""
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        self._pause()
        return answer

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended early with exit code {self.process.wait()}")
        return json.loads(line)

    def _pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.stdin.close()
            self.process.wait()


def bootstrap(ratios: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % interval of the median."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (draws, len(ratios))), axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))


def ratio_text(above: Sequence[float], below: Sequence[float]) -> str:
    """Return the median of the ratios within rounds, with its 95 % interval."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    low, high = bootstrap(ratios)
    return f"{np.median(ratios):.2f} ({low:.2f}-{high:.2f})"
