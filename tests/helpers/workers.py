"""What the worker processes of one test run share: files that one of them makes, and the machine."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager

try:
    import fcntl
except ImportError:  # Windows, where only `-n 0` works
    fcntl = None


@contextmanager
def held(path, *, shared=False):
    """Hold a lock between processes, which ends with them; ``shared`` ones exclude only those that are not."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Not by closing alone: a child that was forked meanwhile would go on holding it.
            fcntl.flock(file, fcntl.LOCK_UN)


class SoleWorker:
    """One process: it makes its files itself and has the machine to itself.

    Args:
        folder: empty, and there as long as the tests run.
    """

    def __init__(self, folder):
        self.folder = folder

    def made_once(self, name, make):
        """Return the path of ``name``, which ``make(path)`` has written, in this process or in another."""
        path = self.folder / name / name
        if not path.exists():
            # Under another name until it is whole, so that what failed half-way is not taken for it.
            part = path.parent / "part" / name
            shutil.rmtree(part.parent, ignore_errors=True)
            part.parent.mkdir(parents=True)
            make(part)
            part.rename(path)
        return path

    @contextmanager
    def turn(self, *, alone):
        """Run one test."""
        yield


class Worker(SoleWorker):
    """One of several processes, on its share of the CPUs.

    One thread each computes faster than every process on all CPUs: threads of ONNX Runtime that wait for another burn
    the CPU that the other needs.

    Args:
        folder: that of all processes of this run.
        number, count: this process and how many there are.
    """

    def __init__(self, folder, number, count):
        super().__init__(folder)
        # Elsewhere a process cannot be kept to some CPUs.
        self._all = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else None
        self._share = self._all and self._all[number % len(self._all) :: count]

    def made_once(self, name, make):
        with held(self.folder / f"{name}.lock"):
            return super().made_once(name, make)

    @contextmanager
    def turn(self, *, alone):
        """Run one test: beside those of other processes, or ``alone``, while these wait, and on every CPU."""
        self._keep_to(self._all if alone else self._share)
        with ExitStack() as machine:
            # Whoever waits to be alone holds the gate meanwhile, so that no other test begins before it.
            with held(self.folder / "gate"):
                machine.enter_context(held(self.folder / "machine", shared=not alone))
            yield

    @staticmethod
    def _keep_to(cpus):
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
